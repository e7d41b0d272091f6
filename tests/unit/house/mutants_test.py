#!/usr/bin/env python3
"""The generator of mutants: what it reads of C++, what it makes of it, and that all it makes is well formed."""

import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from mutants import cpp, generated, operators, planted, tree  # noqa: E402

CODE = r'''
namespace n {
constexpr std::chrono::seconds kPause{10};
struct Thing { int x = 3; };  // { not a block
Status Impl::delete_pod(const PodRef& pod, Duration grace) {
  // own_writes_.deleted_pod(pod.uid); is only a comment
  const auto reply = options_.client->remove(
      kPods, {pod.ns, pod.name}, {.preconditions = {.uid = pod.uid}, .grace = grace});
  if (!reply && reply.error().reason == kube::Reason::kNotFound) return {};
  log("own_writes_.deleted_pod(\"}\");");
  own_writes_.deleted_pod(pod.uid);
  if (count > budget) look_in(std::chrono::seconds(1));
  return {};
}
int other(int a) { return a; }
}  // namespace n
'''


def made(operator, code=CODE):
    source = operators.Source("x.cc", code)
    return [(code[c.start:c.end], c.text) for f in source.functions for c in operator(source, f)]


def is_balanced(code):
    stack = []
    for char in code:
        if char in cpp.OPENING:
            stack.append(cpp.OPENING[char])
        elif char in ")]}":
            if not stack or stack.pop() != char:
                return False
    return not stack


class ReadingTest(unittest.TestCase):
    def test_blanks_comments_and_literals_and_keeps_every_place(self):
        code = cpp.mask(CODE)
        self.assertEqual(len(code), len(CODE))
        self.assertEqual(code.count("\n"), CODE.count("\n"))
        self.assertNotIn("not a block", code)
        self.assertEqual(code.count("own_writes_"), 1)

    def test_finds_functions_by_the_names_they_are_defined_under(self):
        self.assertEqual([f.name for f in cpp.functions(cpp.mask(CODE))], ["Impl::delete_pod", "other"])

    def test_cuts_a_body_into_statements(self):
        function = cpp.functions(cpp.mask(CODE))[0]
        self.assertEqual([s.kind for s in function.statements],
                         ["simple", "if", "simple", "simple", "if", "simple"])
        self.assertTrue(CODE[function.statements[0].start:].startswith("const auto reply"))

    def test_looks_into_the_blocks_of_lambdas(self):
        code = cpp.mask("void f() { run([&](int i) { use(i); }, 3); done({a, b}); }")
        outer = cpp.functions(code)[0].statements
        self.assertEqual([code[s.start:s.end] for s in outer[0].inner], ["use(i);"])
        self.assertEqual(outer[1].inner, [])

    def test_an_else_belongs_to_its_if(self):
        code = cpp.mask("void f() { if (a) { b(); } else if (c) d(); else e(); g(); }")
        statements = cpp.functions(code)[0].statements
        self.assertEqual([s.kind for s in statements], ["if", "simple"])
        self.assertEqual(len(statements[0].inner), 2)


class OperatorTest(unittest.TestCase):
    def test_a_dropped_write_looks_like_success(self):
        changes = made(operators.drop_write)
        self.assertEqual(len(changes), 1)
        self.assertTrue(changes[0][0].startswith("options_.client->remove("))
        self.assertIn("ApiResult<nlohmann::json>", changes[0][1])

    def test_preconditions_are_dropped_and_swapped(self):
        self.assertEqual([text for _, text in made(operators.precondition)],
                         [".preconditions = {}", '.preconditions = {.uid = "swapped"}'])

    def test_an_answer_is_taken_for_another(self):
        self.assertEqual([text for _, text in made(operators.misread_code)], ["false", "true"])

    def test_expectations_are_forgotten_where_they_are_statements(self):
        self.assertEqual(made(operators.forget_expectation), [("own_writes_.deleted_pod(pod.uid);", "{}")])

    def test_nobody_looks_again(self):
        self.assertEqual(made(operators.drop_requeue), [("look_in(std::chrono::seconds(1));", "{}")])

    def test_pauses_are_longer_and_none_where_one_looks_again(self):
        def texts(code):
            return [c.text for c in operators.wrong_delay(operators.Source("x.cc", code))]
        self.assertEqual(texts(CODE.replace("std::chrono::seconds(1)", "kPause")), ["10000", "0"])
        self.assertEqual(texts(CODE), [])

    def test_what_a_log_alone_hears_is_left_alone(self):
        code = """void f() {
  if (error.code == ErrorCode::kConflict) logger_.info("again");
  if (!made) look_in(kPause);
  write(x);
  if (made) return;
  logger_.warning("not made");
}
void log_report() { if (error.code == ErrorCode::kConflict) write(x); }"""
        found = [(c.operator, code[c.start:c.end]) for _, c in operators.changes(
            operators.Source("x.cc", code), ["writes", "preconditions", "decisions"])]
        self.assertEqual(found, [("negate-condition", "!made"), ("drop-write", "write(x);"),
                                 ("twice-write", "write(x);")])

    def test_what_is_misread_anyway_is_not_turned_round(self):
        code = "void f() { if (error.code == ErrorCode::kConflict) write(x); }"
        self.assertEqual(made(operators.negate_condition, code), [])
        self.assertEqual(len(made(operators.misread_code, code)), 2)

    def test_conditions_and_bounds(self):
        self.assertIn(("count > budget", "!(count > budget)"), made(operators.negate_condition))
        self.assertEqual(made(operators.off_by_one), [(">", ">=")])

    def test_a_declaration_is_never_dropped(self):
        code = "void f() { const Status kept = cluster_.delete_pod(a, b); Status other = write(x); use(kept); }"
        self.assertEqual([text for text, _ in made(operators.drop_write, code)], ["cluster_.delete_pod(a, b)"])


class GeneratedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mutants = generated.make(ROOT)

    def test_names_are_unique_and_every_mutant_differs(self):
        self.assertEqual(len({m.name for m in self.mutants}), len(self.mutants))
        self.assertEqual([m.name for m in self.mutants if m.text == m.was], [])

    def test_brackets_stay_paired(self):
        texts = {m.file: (ROOT / m.file).read_text() for m in self.mutants}
        for mutant in self.mutants:
            self.assertTrue(is_balanced(cpp.mask(mutant.apply(texts[mutant.file]))), mutant.name)

    def test_every_operator_finds_something(self):
        self.assertGreaterEqual(len(self.mutants), 500)
        traffic = {"drop-write", "twice-write", "swap-order", "drop-precondition", "swap-precondition", "ignore-uid",
                   "misread-code", "forget-expectation", "drop-requeue", "wrong-delay", "negate-condition",
                   "drop-decision", "skip-generation"}
        self.assertEqual(traffic, {m.operator for m in self.mutants})
        self.assertEqual(traffic | {"off-by-one", "drop-count", "ignore-field"},
                         {m.operator for m in generated.make(ROOT, values=True)})

    def test_a_draw_depends_on_its_seed_alone(self):
        drawn = generated.sample(self.mutants, 5, "a")
        self.assertEqual(drawn, generated.sample(list(reversed(self.mutants)), 5, "a"))
        self.assertNotEqual(drawn, generated.sample(self.mutants, 5, "b"))

    def test_an_explanation_is_for_one_change(self):
        mutant = self.mutants[0]
        fits = generated.Explanation(mutant.name.rsplit(":", 1)[0], mutant.was, "because")
        self.assertEqual(generated.explanation_of(mutant, [fits]), "because")
        other = generated.Explanation(fits.where, "something else", "because")
        self.assertIsNone(generated.explanation_of(mutant, [other]))

    def test_what_came_of_a_mutant_is_kept_until_it_is_made_no_more(self):
        first, second, third = self.mutants[:3]
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / generated.JUDGED).parent.mkdir(parents=True)
            generated.write_judged(root, self.mutants, {first.name: "a_test: A.B", second.name: None})
            generated.write_judged(root, self.mutants, {third.name: "b_test (ran out of 20 s)"})
            judged = generated.read_judged(root)
            self.assertEqual(judged[generated.row_of(first)].test, "a_test: A.B")
            self.assertEqual(judged[generated.row_of(second)].test, generated.GAP)
            self.assertEqual(generated.test_of(judged[generated.row_of(third)].test), "b_test")
            generated.write_judged(root, [first], {})
            self.assertEqual(list(generated.read_judged(root)), [generated.row_of(first)])

    def test_a_mutant_is_stale_when_its_function_has_changed_and_never_by_a_comment(self):
        def mutants(code):
            with tempfile.TemporaryDirectory() as folder:
                root = pathlib.Path(folder)
                (root / "x.cc").write_text(code)
                return list(generated.of_file(root, "x.cc", {"operators": ["writes", "expectations", "requeues"], "tests": ["t"]}, False))
        made = mutants(CODE)
        self.assertGreater(len(made), 1)
        judged = {generated.row_of(m): generated.Judged("t", m.was, m.around, f"2026-01-0{n}") for n, m in enumerate(made, 1)}
        def stale(code_or_mutants, rows, count=99):
            made_of = mutants(code_or_mutants) if isinstance(code_or_mutants, str) else code_or_mutants
            return [m.name for m in generated.stale(made_of, rows, count)]
        names = [m.name for m in made]
        self.assertEqual(stale(made, judged), [])
        self.assertEqual(stale(CODE.replace("is only a comment", 'is "one"\n'), judged), [])
        for was, becomes in (("count > budget", "count >= budget"), ('log("own', 'log("their'), ('(\\"}\\")', '(\\"]\\")')):
            self.assertIn(was, CODE)
            changed = list(reversed(mutants(CODE.replace(was, becomes))))
            self.assertEqual(stale(changed, judged), names)  # the longest ago first
            self.assertEqual(stale(changed, judged, 1), names[:1])
        never = generated.row_of(made[-1])
        old = {row: generated.Judged(entry.test, entry.was) for row, entry in judged.items() if row != never}
        self.assertEqual(stale(made, old), [names[-1], *names[:-1]], "rows of before this column after those never judged")

    def test_mutants_that_look_the_same_are_judged_together(self):
        twin = dataclasses.replace(self.mutants[0], name=self.mutants[0].name.rsplit(":", 1)[0] + ":99")
        self.assertEqual(generated.row_of(twin), generated.row_of(self.mutants[0]))
        self.assertEqual(generated.stale([self.mutants[0], self.mutants[1], twin], {}, 1), [self.mutants[0], twin])

    def test_a_row_of_other_columns_is_named(self):
        for line in ("a\tb\tc", "", "a\tb\tc\td\te\tf\tg"):
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / generated.JUDGED
                file.parent.mkdir(parents=True)
                file.write_text(f"x:f:o\tdigest\t-\twas\n{line}\n")
                with self.assertRaisesRegex(SystemExit, "judged.tsv:2: found"):
                    generated.read_judged(pathlib.Path(folder))


class PlantedTest(unittest.TestCase):
    def drawn(self, seed, test="kernels_cuda_emulated_test"):
        return subprocess.run([ROOT / "tools/run_mutants", "--list", "--by", test, "--sample", "5", "--seed", seed],
                              capture_output=True, text=True)

    def test_a_draw_of_all_has_only_sampled_ones_each_of_another_room(self):
        known = {mutant["name"]: mutant for mutant in planted.read(ROOT)}
        for seed in "abc":
            names = subprocess.run([ROOT / "tools/run_mutants", "--list", "--sample", "4", "--seed", seed],
                                   capture_output=True, text=True, check=True).stdout.split()
            self.assertEqual(len({planted.room_of(known[name]) for name in names}), 4)
            self.assertTrue(all(known[name]["sampled"] for name in names))
        mutants = [{"name": str(i), "file": f"a/{room}/x.cc"} for i, room in enumerate("bbbbc")]
        self.assertEqual({planted.room_of(m) for m in planted.sample(mutants, 2, "any")}, {"a/b", "a/c"})
        self.assertEqual(len(planted.sample(mutants, 4, "any")), 4)

    def test_a_draw_has_bugs_that_the_test_must_catch_and_depends_on_its_seed(self):
        planted = tomllib.loads((ROOT / "tests/mutants/mutants.toml").read_text())["mutant"]
        tests = {mutant["name"]: mutant["tests"] for mutant in planted}
        names = self.drawn("a").stdout.split()
        self.assertEqual(len(set(names)), 5)
        for name in names:
            self.assertIn("kernels_cuda_emulated_test", tests[name])
        self.assertEqual(names, self.drawn("a").stdout.split())
        self.assertNotEqual(names, self.drawn("b").stdout.split())

    def test_a_test_that_no_bug_names_is_refused(self):
        run = self.drawn("a", "no_such_test")
        self.assertEqual((run.returncode, run.stderr), (64, "no planted bug names the test no_such_test\n"))


# What a test does that sees the file x.cc; {fail} is what GoogleTest prints of a case.
FAIL = "echo '[  FAILED  ] Suite.Case'; exit 1"
TESTS = {
    "sees_test": f"grep -q BUG $file && {{ {FAIL}; }}; exit 0",
    "blind_test": "exit 0",
    "crash_test": "grep -q BUG $file && kill -ABRT $$; exit 0",
    "checked_test": "grep -q BUG $file && { echo 'x.cc:3: check failed: false'; exit 134; }; exit 0",
    "slow_test": "grep -q BUG $file && sleep 600; exit 0",
    "flaky_test": f"grep -q BUG $file && test ! -e seen && {{ touch seen; {FAIL}; }}; exit 0",
    "unstarted_test": "grep -q BUG $file && exit 3; exit 0",
    "full_test": "grep -q BUG $file && kill -XFSZ $$; exit 0",
    # Of a generated mutant, which the environment chooses.
    "chosen_test": f'[ -n "$TRAINYARD_MUTANTS_REACHED" ] && echo 1 >"$TRAINYARD_MUTANTS_REACHED"; '
                   f'[ -n "$TRAINYARD_MUTANT" ] && {{ {FAIL}; }}; exit 0',
    "chosen_slow_test": '[ -n "$TRAINYARD_MUTANTS_REACHED" ] && echo 1 >"$TRAINYARD_MUTANTS_REACHED"; '
                        '[ -n "$TRAINYARD_MUTANT" ] && sleep 600; exit 0',
    "pragma_test": f"grep -q pragma $file && {{ {FAIL}; }}; exit 0",
}


class FakeTree(tree.Tree):
    """One whose tests are shell commands, and whose compiler takes all but one word."""

    def prepare(self, log, changed=None):
        build = self.tree / "build" / self.preset
        (build / "test").mkdir(parents=True)
        (build / "tests").mkdir()
        log.touch()
        for path, text in changed.items():
            self.write(path, text)
        for name, command in TESTS.items():
            script = build / "test" / name
            script.write_text(f"#!/bin/bash\nfile={self.tree}/x.cc\n{command}\n")
            script.chmod(0o755)

    def build(self, tests, log):
        return "NONSENSE" not in (self.tree / "x.cc").read_text()


class VerdictTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        loader = importlib.machinery.SourceFileLoader("run_mutants", str(ROOT / "tools/run_mutants"))
        cls.tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_mutants", loader))
        loader.exec_module(cls.tool)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "x.cc").write_text("good\n")
        self.replace(tree, "Tree", FakeTree)
        self.replace(self.tool, "ROOT", self.root)

    def replace(self, where, name, value):
        patch = mock.patch.object(where, name, value)
        patch.start()
        self.addCleanup(patch.stop)

    def plant(self, *tests, replace="BUG", **more):
        """(exit status, what it printed, junit) of one bug that the tests must catch."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = self.tool.run_planted([{"name": "bug", "file": "x.cc", "find": "good", "replace": replace,
                                             "tests": list(tests), **more}], "planted")
        return status, output.getvalue(), (self.root / "build/mutants/results/planted/junit.xml").read_text()

    def expect_red(self, words, *tests, **more):
        status, output, junit = self.plant(*tests, **more)
        self.assertEqual(status, 1, output)
        self.assertIn(words, junit)
        self.assertIn("<failure", junit)

    def test_a_case_that_fails_a_check_and_a_crash_catch(self):
        status, output, junit = self.plant("sees_test", "crash_test", "checked_test")
        self.assertEqual(status, 0, output)
        self.assertIn("1 caught, 0 survived, 0 hung, 0 broken of 1", output)
        self.assertNotIn("<failure", junit)

    def test_every_test_that_it_names_must_catch_it(self):
        self.expect_red("survived: blind_test passes", "sees_test", "blind_test")

    def test_a_slow_mutant_is_not_caught(self):
        self.replace(tree, "TEST_SECONDS_MIN", 1)
        self.expect_red("hung: slow_test (ran out of ", "slow_test")

    def test_a_hang_catches_where_the_row_says_so(self):
        self.replace(tree, "TEST_SECONDS_MIN", 1)
        status, output, _ = self.plant("slow_test", hang=True)
        self.assertEqual(status, 0, output)

    def test_what_fails_once_and_then_passes_catches_nothing(self):
        self.expect_red("survived: flaky_test fails once and then passes", "flaky_test")

    def test_an_end_of_which_no_case_speaks_catches_nothing(self):
        self.expect_red("survived: unstarted_test (ended with 3, and no case failed)", "unstarted_test")

    def test_a_limit_that_is_met_catches_nothing(self):
        self.expect_red("hung: full_test (ran out of its memory or disk", "full_test")

    def test_a_bug_that_does_not_compile_is_red(self):
        self.expect_red("broken: does not compile", "sees_test", replace="NONSENSE")

    def test_a_mutant_that_changes_nothing_and_is_caught_is_red(self):
        self.expect_red("nothing changed: pragma_test", "sees_test", "pragma_test")


    def generate(self, judged, *tests):
        """(exit status, output) of one mutant that the operators make, of which judged.tsv says `judged`."""
        (self.root / "x.cc").write_text(CODE)
        source = operators.Source("x.cc", CODE)
        function = source.functions[0]
        change = next(iter(operators.forget_expectation(source, function)))
        mutant = generated.Mutant("x:f:forget-expectation:1", "x.cc", "forget-expectation", 1, "was", "becomes",
                                  change.start, change.end, change.text, tests, "digest", "around")
        (self.root / "tests/mutants").mkdir(parents=True)
        (self.root / generated.JUDGED).write_text(f"x:f:forget-expectation\tdigest\t{judged}\twas\n")
        options = mock.Mock(resume=False, minutes=0, write_judged=False, sample=0)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = self.tool.run_generated([mutant], [], options)
        return status, output.getvalue()

    def test_a_generated_mutant_is_caught_by_the_first_test_that_fails(self):
        status, output = self.generate("-", "blind_test", "chosen_test")
        self.assertEqual(status, 0, output)
        self.assertIn("1 of 1 caught", output)

    def test_a_generated_mutant_that_only_hangs_is_red_until_it_is_known_to(self):
        self.replace(tree, "TEST_SECONDS_MIN", 1)
        status, output = self.generate("chosen_test: Suite.Case", "chosen_slow_test")
        self.assertEqual(status, 1, output)
        self.assertIn("0 survived, 1 hung", output)

    def test_a_generated_mutant_that_is_known_to_hang_is_caught_by_it(self):
        self.replace(tree, "TEST_SECONDS_MIN", 1)
        status, output = self.generate("chosen_slow_test (ran out of 20 s)", "chosen_slow_test")
        self.assertEqual(status, 0, output)


class JudgeTest(unittest.TestCase):
    def test_what_a_test_leaves_behind_ends_with_it(self):
        marks = {tree.OF_RUN: f"{os.getpid()}-of-this-test", tree.CHOSEN: "7"}
        others = {**marks, tree.CHOSEN: "8"}
        left, kept = (subprocess.Popen(["sleep", "600"], env={**os.environ, **of}, start_new_session=True)
                      for of in (marks, others))
        try:
            # A process is there a moment before its environment is.
            deadline = time.monotonic() + 60
            while not all(pathlib.Path(f"/proc/{p.pid}/environ").read_bytes() for p in (left, kept)):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            tree.end_left_behind(marks)
            self.assertEqual(left.wait(timeout=60), -signal.SIGKILL)
            self.assertIsNone(kept.poll())
        finally:
            for process in (left, kept):
                process.kill()
                process.wait()


if __name__ == "__main__":
    unittest.main()
