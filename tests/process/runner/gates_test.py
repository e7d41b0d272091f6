"""That tools/build, tools/lint, tools/check_end_states and tools/check_features turn red when they should, and that
tools/explore notes what it finds."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOOD = "int twice(int number) { return 2 * number; }\n"
BAD = "int BadName(int number) { return 2 * number; }\n"


class Copy:
    """A repository of its own with some of the tools."""

    def __init__(self, folder: str, *tools: str):
        self.root = pathlib.Path(folder)
        (self.root / "tools").mkdir()
        for tool in tools:
            (self.root / "tools" / tool).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / "tools" / tool, self.root / "tools" / tool)

    def write(self, path: str, text: str, mode: int = 0o644) -> pathlib.Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def run(self, *command, **environment) -> tuple:
        ended = subprocess.run(command, cwd=self.root, env=dict(os.environ, **environment), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return ended.returncode, ended.stdout

    def commit(self) -> None:
        for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -q -m planted"):
            status, output = self.run("git", *command.split())
            assert status == 0, output


class GateTest(unittest.TestCase):
    def copy(self, *tools: str) -> Copy:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Copy(folder.name, *tools)


class BuildTest(GateTest):
    def configured(self, options: str = "") -> Copy:
        copy = self.copy("build")
        copy.write("a.cc", "int a(int unused) { return 1; }\n")
        copy.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(planted CXX)\n"
                   "add_compile_options(-Wall -Wextra -Werror -Wno-error)\nadd_library(a a.cc)\n")
        status, output = copy.run("cmake", "-S", ".", "-B", "build/dev", "-G", "Ninja", *options.split())
        self.assertEqual(status, 0, output)
        return copy

    def test_a_warning_is_red_until_it_is_mended(self):
        copy = self.configured()
        for _ in range(2):  # a second build has nothing to compile otherwise
            status, output = copy.run("tools/build", "dev")
            self.assertEqual(status, 1, output)
            self.assertIn("warnings are errors", output)
        copy.write("a.cc", GOOD)
        status, output = copy.run("tools/build", "dev")
        self.assertEqual(status, 0, output)

    def test_a_build_that_fails_is_red(self):
        copy = self.configured()
        copy.write("a.cc", "int a( {\n")
        self.assertNotEqual(copy.run("tools/build", "dev")[0], 0)

    def test_a_preset_may_forgive(self):
        self.assertEqual(self.configured("-DTRAINYARD_WERROR:BOOL=OFF").run("tools/build", "dev")[0], 0)


@unittest.skipUnless(all(map(shutil.which, ("clang-format-14", "clang-tidy-14", "shellcheck", "git"))), "tools/setup lint")
class LintTest(GateTest):
    def repository(self) -> Copy:
        """Two commits, the second of which adds a file; without an origin."""
        copy = self.copy("lint")
        for name in (".clang-format", ".clang-tidy", "tools/check_english", "tools/odd_english.tsv"):
            shutil.copy(ROOT / name, copy.root / name)
        copy.write("tools/setup", "#!/bin/sh\n", 0o755)
        copy.write(".gitignore", "/build/\n")
        copy.write("common/old.cc", BAD)
        copy.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(planted CXX)\n"
                   "set(CMAKE_EXPORT_COMPILE_COMMANDS ON)\nadd_library(a common/a.cc common/old.cc)\nadd_custom_target(common_proto_generated)\n")
        copy.write("CMakePresets.json", '{"version": 6, "configurePresets": [{"name": "dev", "generator": "Ninja", '
                   '"binaryDir": "build/dev"}]}')
        copy.commit()
        copy.write("common/a.cc", GOOD)
        copy.commit()
        return copy

    def lint(self, copy: Copy, **environment) -> tuple:
        return copy.run("tools/lint", "--quick", **environment)

    def test_what_is_well_is_green(self):
        status, output = self.lint(self.repository())
        self.assertEqual(status, 0, output)
        self.assertIn("clang-tidy: 1 files changed", output)

    def test_a_file_that_is_not_formatted_is_red(self):
        copy = self.repository()
        copy.write("common/b.h", "int   b();\n")
        status, output = self.lint(copy)
        self.assertEqual(status, 1, output)
        self.assertIn("lint: failed: clang-format", output)

    def test_a_script_with_a_fault_is_red(self):
        copy = self.repository()
        copy.write("tools/script", "#!/bin/bash\nrm $1\n")
        status, output = self.lint(copy)
        self.assertEqual(status, 1, output)
        self.assertIn("lint: failed: shellcheck", output)

    def test_odd_english_is_red_but_not_in_code(self):
        copy = self.repository()
        copy.write("README.md", "# A page\n\nWork goes on with the next step.\n\n```\nit goes on\n```\n")
        status, output = self.lint(copy)
        self.assertEqual(status, 1, output)
        self.assertIn('README.md:3: "goes on"', output)
        self.assertIn("1 found", output)
        self.assertIn("lint: failed: check_english", output)
        copy.write("tools/odd_english.tsv", "\\bgoes on\\b\tcontinues\tIt continues.\n")
        self.assertIn("the expression matches, separated", self.lint(copy)[1])

    def test_a_fault_that_clang_tidy_finds_is_red_in_a_committed_file_too(self):
        copy = self.repository()
        copy.write("common/a.cc", GOOD + BAD)
        copy.commit()
        status, output = self.lint(copy)
        self.assertEqual(status, 1, output)
        self.assertIn("common/a.cc:2:5: error", output)
        self.assertIn("lint: failed: clang-tidy", output)

    def test_a_fault_that_clang_tidy_finds_is_red_in_a_file_that_git_does_not_know(self):
        copy = self.repository()
        copy.write("common/b.cc", BAD)
        copy.write("CMakeLists.txt", (copy.root / "CMakeLists.txt").read_text().replace("common/old.cc", "common/b.cc"))
        status, output = self.lint(copy)
        self.assertEqual(status, 1, output)
        self.assertIn("common/b.cc:1:5: error", output)

    def test_a_fault_beside_the_lines_that_changed_is_not(self):
        copy = self.repository()
        copy.write("common/old.cc", BAD + GOOD)
        status, output = self.lint(copy)
        self.assertEqual(status, 0, output)
        self.assertIn("clang-tidy: 2 files changed", output)

    def test_form_is_formatting_and_scripts(self):
        copy = self.repository()
        copy.write("common/a.cc", BAD)
        status, output = copy.run("tools/lint", "--form")
        self.assertEqual(status, 0, output)
        copy.write("common/b.h", "int   b();\n")
        copy.write("tools/script", "#!/bin/bash\nrm $1\n")
        status, output = copy.run("tools/lint", "--form")
        self.assertEqual(status, 1, output)
        self.assertIn("lint: failed: clang-format", output)
        self.assertIn("lint: failed: shellcheck", output)

    def test_in_a_checkout_of_one_commit_nothing_has_changed(self):
        copy = self.repository()
        shutil.rmtree(copy.root / ".git")
        copy.commit()
        status, output = self.lint(copy)
        self.assertEqual(status, 0, output)
        self.assertIn("clang-tidy: 0 files changed", output)

    def test_what_there_was_no_time_for_is_named(self):
        status, output = self.lint(self.repository(), TRAINYARD_LINT_SECONDS="0")
        self.assertEqual(status, 0, output)
        self.assertIn("left out, the time is over: common/a.cc", output)

    def test_a_folder_whose_files_git_does_not_list_is_red(self):
        copy = self.repository()
        shutil.rmtree(copy.root / ".git")
        self.assertNotEqual(self.lint(copy)[0], 0)


class ExploreTest(GateTest):
    """The steps are shell commands here, and they are counted in place of minutes."""

    def repository(self, *steps: str) -> Copy:
        copy = self.copy("explore")
        for tool in ("tools/setup", "tools/fetch_data.sh", "tools/kubernetes/build", "tools/build", "bin/cmake"):
            copy.write(tool, "#!/bin/sh\n", 0o755)
        copy.write(".gitignore", "/build/\n")
        copy.write("tests/explore.txt", "# steps\n" + "".join(f"{step}\n" for step in steps))
        text = (copy.root / "tools/explore").read_text()
        for old, new in (("while time.monotonic() < end:", "for _ in range(int(os.environ['STEPS'])):"),
                         ("STEP_LIMIT_S = 1800", "STEP_LIMIT_S = int(os.environ.get('LIMIT', '60'))")):
            self.assertIn(old, text)
            text = text.replace(old, new)
        copy.write("tools/explore", text, 0o755)
        copy.commit()
        return copy

    def run_explore(self, copy: Copy, steps: int, *options: str) -> tuple:
        return copy.run("tools/explore", *options, **self.environment(copy, STEPS=str(steps)))

    def environment(self, copy: Copy, **more: str) -> dict:
        return {"PATH": f"{copy.root}/bin:{os.environ['PATH']}", **more}

    def explored(self, copy: Copy, steps: int, **more: str) -> str:
        """Runs so many steps, the first one first."""
        copy.write("build/explore/next", "0\n")
        status, output = copy.run("tools/explore", **self.environment(copy, STEPS=str(steps), **more))
        self.assertEqual(status, 0, output)
        return output

    def rows(self, copy: Copy) -> list:
        file = copy.root / "tests/findings.tsv"
        return [line.split("\t") for line in file.read_text().splitlines()] if file.exists() else []

    def test_where_nothing_is_found_nothing_is_written(self):
        copy = self.repository("true")
        self.assertIn("explore: 2 steps, 0 found\n", self.explored(copy, 2))
        self.assertEqual(self.rows(copy), [])

    def test_each_finding_is_a_row_that_can_be_repeated(self):
        copy = self.repository("echo '1/1 Test #1: a ...***Failed'; echo a/b.cc:7: Failure; echo wanted 1 in $PWD/tests/c, "
                               "'`/tmp/x/y`' -I/opt/z //u/v file:///w/q; SEED={seed} sh -c 'exit $((SEED > 0))' >/dev/null", "true")
        self.assertIn("explore: 1 steps, 1 found, listed in tests/findings.tsv", self.explored(copy, 1))
        commit = copy.run("git", "rev-parse", "--short=12", "HEAD")[1].strip()
        ((day, at, command, words),) = self.rows(copy)
        self.assertRegex(day, r"^\d{4}-\d\d-\d\d$")
        self.assertEqual((at, words), (commit, "a/b.cc:7: Failure wanted 1 in tests/c, `y` z v q"))
        self.assertRegex(command, r"SEED=[0-9]+ sh .* >/dev/null$")

    def test_a_step_names_the_command_that_repeats_its_finding_and_the_input_is_kept(self):
        copy = self.repository(r"mkdir -p build/fuzz/findings; echo x >build/fuzz/findings/a-crash-1; "
                               r"echo 'ERROR: AddressSanitizer: one'; echo 'repeat: f build/fuzz/findings/a-crash-1'; "
                               r"echo 'runtime error: two'; printf 'repeat: g\t\033 /root/h\n'; exit 1")
        self.explored(copy, 1)
        self.assertEqual([row[2:] for row in self.rows(copy)],
                         [["f tests/findings/a-crash-1", "ERROR: AddressSanitizer: one"], ["g h", "runtime error: two"]])
        self.assertEqual((copy.root / "tests/findings/a-crash-1").read_text(), "x\n")

    def test_what_is_listed_is_not_listed_again(self):
        copy = self.repository("echo left at 0x{seed} >&2; echo 'repeat: a:drop-write:1'; echo 'repeat: a:drop-write:2'; exit 1")
        copy.write("tests/findings.tsv", "2026-01-01\tabc\tx\ty")  # whose last line has no end
        copy.commit()
        self.explored(copy, 2)
        self.assertEqual([row[2] for row in self.rows(copy)], ["x", "a:drop-write:1", "a:drop-write:2"])

    def test_words_are_told_where_the_output_has_none(self):
        copy = self.repository(r"printf '\0\001'; exit 3")
        self.explored(copy, 1)
        self.assertEqual(self.rows(copy)[0][3], "ended with status 3")

    def test_a_hang_ends_with_all_that_it_started_and_the_next_step_begins(self):
        for hang in ("sleep 60", "exec env -i sleep 60"):
            copy = self.repository("echo 'repeat: f'; (trap '' TERM; sleep 61) & setsid sleep 62 & env -i setsid sh -c 'sleep 63; :' & " + hang,
                                   "sleep 0.1; touch ran")
            output = self.explored(copy, 2, LIMIT="1")
            self.assertTrue((copy.root / "ran").exists(), output)
            self.assertEqual([row[2] for row in self.rows(copy)][0], "f")
            self.assertIn("did not end within", self.rows(copy)[1][3])
            self.assertEqual(self.commands(copy), [])

    def commands(self, copy: Copy) -> list:
        """Command lines of what runs in the repository."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").resolve() == copy.root.resolve():
                    found.append((process / "cmdline").read_bytes())
            except OSError:
                continue
        return found

    def test_an_interrupt_ends_it_and_what_it_has_started(self):
        for place in ("step", "setup"):
            for number in (signal.SIGINT, signal.SIGTERM):
                copy = self.repository("touch begun; sleep 60", "touch next")
                copy.write("build/explore/next", "0\n")
                if place == "setup":
                    copy.write("bin/cmake", "#!/bin/sh\ntouch begun\nsleep 60\n", 0o755)
                    copy.write(".gitignore", "/build/\n/begun\n")
                    copy.commit()
                # As a script starts it in the background.
                process = subprocess.Popen(["tools/explore"], cwd=copy.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                           env=dict(os.environ, **self.environment(copy, STEPS="2")),
                                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
                while not (copy.root / "begun").exists():
                    time.sleep(0.01)
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=60), 130)
                self.assertFalse((copy.root / "next").exists())
                # What was killed may take a moment to be gone.
                end = time.monotonic() + 30
                while self.commands(copy) and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertEqual(self.commands(copy), [])

    def test_a_number_that_was_cut_off_is_drawn_again(self):
        copy = self.repository("true")
        copy.write("build/explore/next", "")
        self.assertEqual(self.run_explore(copy, 1)[0], 0)

    def test_steps_come_round_and_a_call_goes_on_after_the_last(self):
        copy = self.repository("echo a >>build/ran", "echo b >>build/ran", "echo c >>build/ran; echo left out: c")
        self.assertIn("left out: c", self.explored(copy, 4))
        self.assertEqual((copy.root / "build/explore/next").read_text(), "1\n")
        self.assertEqual((copy.root / "build/ran").read_text(), "a\nb\nc\na\n")

    def test_when_the_time_is_over_no_step_begins(self):
        copy = self.repository("true")
        text = (ROOT / "tools/explore").read_text()
        copy.write("tools/explore", text, 0o755)
        copy.commit()
        self.assertIn("explore: 0 steps, 0 found", self.run_explore(copy, 1, "0")[1])

    def test_what_is_not_committed_is_refused_but_for_the_findings(self):
        copy = self.repository("true")
        copy.write("tests/findings.tsv", "a row\n")
        copy.write("tests/findings/input", "x\n")
        self.assertEqual(self.run_explore(copy, 1)[0], 0)
        copy.write("tests/fuzz/new_fuzz.cc", "")
        status, output = self.run_explore(copy, 1)
        self.assertEqual(status, 64, output)
        self.assertIn("not committed", output)

    def test_minutes_are_a_number(self):
        copy = self.repository("true")
        for minutes in ("soon", "-1", "99999999999999999999"):
            status, output = self.run_explore(copy, 1, minutes)
            self.assertEqual(status, 64, output)
            self.assertIn(f"found '{minutes}'", output)
        self.assertEqual(self.run_explore(copy, 1, "08")[0], 0)

    def test_what_cannot_be_built_is_named(self):
        copy = self.repository("true")
        copy.write("tools/build", "#!/bin/sh\nexit 1\n", 0o755)
        copy.commit()
        status, output = self.run_explore(copy, 1)
        self.assertEqual(status, 64, output)
        self.assertIn("explore: tools/build dev", output)


class EndStatesTest(GateTest):
    SHAPES = {"plain": (3, 29), "tensor": (12, 29), "sliced": (12, 24), "context": (12, 32), "ring": (12, 48)}

    def judged(self, status: int = 0, **changed: str) -> tuple:
        """Of the first letters of their names for hashes, but what is changed."""
        copy = self.copy("check_end_states")
        pinned = {name: {"3": {"fp32": f"{name[0]}a", "bf16": f"{name[0]}b"}} for name in (*self.SHAPES, "default", "cut") if name != "plain"}
        copy.write("tests/fixtures/end_states.json", json.dumps(pinned))

        def rows(plain):
            found = []
            for name, (heads, length) in self.SHAPES.items():
                pins = pinned[plain if name == "plain" else name]["3"]
                states = [("fp32", pins["fp32"]), ("fp32", changed.get(plain if name == "plain" else name, pins["fp32"])), ("bf16", pins["bf16"])]
                found += [{"heads": heads, "sequenceLength": length, "compute": compute, "stateHash": state} for compute, state in states]
            return json.dumps({"rows": found})

        default, of_cut = rows("default"), rows("cut")
        program = copy.write("trainyard", f"""#!/bin/sh
case "$*" in *--cut*) echo '{of_cut}' ;; *) echo '{default}' ;; esac
exit {status}
""", 0o755)
        return copy.run("python3", "-B", "tools/check_end_states", program)

    def test_the_pinned_states_are_green(self):
        self.assertEqual(self.judged()[0], 0)

    def test_a_changed_hash_in_one_cell_is_red(self):
        for changed in ("default", "cut", "tensor", "sliced", "context", "ring"):
            status, output = self.judged(**{changed: "zz"})
            self.assertEqual(status, 1, output)
            self.assertIn("found {'plain': {'fp32': {", output)

    def test_a_matrix_that_fails_is_red(self):
        self.assertEqual(self.judged(status=70)[0], 1)


class FeaturesTest(GateTest):
    WORKS = "M01 | a | R | b | **works** | c"

    def judged(self, rows, commands: str, options=(), program: str = "exit 0") -> tuple:
        copy = self.copy("check_features")
        copy.write("docs/features.md", "".join(f"| {row} |\n" for row in rows) + f"\n## Commands\n\n{commands}")
        copy.write("build/release/bin/trainyard", f'#!/bin/sh\necho "ran $*" >>{copy.root}/ran\n{program}\n', 0o755)
        status, output = copy.run("python3", "-B", "tools/check_features", *options)
        ran = copy.root / "ran"
        return status, output, ran.read_text().splitlines() if ran.exists() else []

    @staticmethod
    def block(row: str, *lines: str) -> str:
        return f"### {row} a\n\n```sh\n" + "".join(f"{line}\n" for line in lines) + "```\n"

    def test_every_command_of_the_section_runs_once(self):
        status, output, ran = self.judged(
            ["M01 | a | R | b | **works** | not this: `trainyard no`", "M02 | a | R | b | **works** | c",
             "M03 | a | R | b | not yet | `trainyard never`"],
            self.block("M01", "trainyard a: b", "trainyard c | \\", "  cat") + self.block("M02", "trainyard c | cat"))
        self.assertEqual((status, ran), (0, ["ran a: b", "ran c"]), output)
        self.assertIn("2 passed, 0 failed, 1 not yet", output)

    def test_a_command_that_fails_is_red_wherever_it_stands(self):
        status, output, ran = self.judged([self.WORKS], self.block("M01", "trainyard bad", "trainyard good"), program='[ "$1" = good ]')
        self.assertEqual((status, ran), (1, ["ran bad", "ran good"]), output)
        self.assertIn("failed: M01", output)

    def test_a_misspelt_program_is_red(self):
        self.assertEqual(self.judged([self.WORKS], self.block("M01", "trainyrd matrix"))[0], 1)

    def test_a_row_that_works_without_a_command_is_red(self):
        for commands in ("", self.block("M01")):
            status, output, _ = self.judged([self.WORKS], commands)
            self.assertEqual(status, 1, output)
            self.assertIn("M01: found no command", output)

    def test_commands_of_a_row_that_does_not_work_or_does_not_exist_are_red(self):
        for row, named in (("M01 | a | R | b | not yet | c", "M01"), (self.WORKS, "M02")):
            status, output, ran = self.judged([row], self.block("M01", "trainyard a") + self.block("M02", "trainyard b"))
            self.assertEqual((status, ran), (1, []), output)
            self.assertIn("found commands of", output)
            self.assertIn(named, output)

    def test_a_section_that_cannot_be_read_is_red(self):
        good = self.block("M01", "trainyard a")
        for commands in (good + good, good.replace("### M01", "### M1"), good.partition("\n")[2], good[:-4],
                         self.block("M01", "trainyard a \\")):
            status, output, ran = self.judged([self.WORKS], commands)
            self.assertEqual((status, ran), (1, []), output)
            self.assertIn("section Commands: ", output)

    def test_quick_leaves_out_what_needs_more_than_the_programs(self):
        status, output, ran = self.judged([self.WORKS, "O01 | a | R | b | **works** | c"],
                                          self.block("M01", "trainyard a") + self.block("O01", "tools/run_e2e"), options=["--quick"])
        self.assertEqual((status, ran), (0, ["ran a"]), output)
        self.assertIn("1 left out", output)


if __name__ == "__main__":
    unittest.main()
