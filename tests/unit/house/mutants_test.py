#!/usr/bin/env python3
"""The generator of mutants: what it reads of C++, what it makes of it, and that all it makes is well formed."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from mutants import cpp, generated, operators, tree  # noqa: E402

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
            self.assertEqual(judged[generated.row_of(first)], "a_test: A.B")
            self.assertEqual(judged[generated.row_of(second)], generated.GAP)
            self.assertEqual(generated.test_of(judged[generated.row_of(third)]), "b_test")
            generated.write_judged(root, [first], {})
            self.assertEqual(list(generated.read_judged(root)), [generated.row_of(first)])


class PlantedTest(unittest.TestCase):
    def drawn(self, seed, test="kernels_cuda_emulated_test"):
        return subprocess.run([ROOT / "tools/run_mutants", "--list", "--by", test, "--sample", "5", "--seed", seed],
                              capture_output=True, text=True)

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


class JudgeTest(unittest.TestCase):
    def test_what_a_test_leaves_behind_ends_with_it(self):
        marks = {tree.OF_RUN: f"{os.getpid()}-of-this-test", tree.CHOSEN: "7"}
        others = {**marks, tree.CHOSEN: "8"}
        left, kept = (subprocess.Popen(["sleep", "60"], env={**os.environ, **of}, start_new_session=True)
                      for of in (marks, others))
        try:
            tree.end_left_behind(marks)
            self.assertEqual(left.wait(timeout=60), -signal.SIGKILL)
            self.assertIsNone(kept.poll())
        finally:
            for process in (left, kept):
                process.kill()
                process.wait()


if __name__ == "__main__":
    unittest.main()
