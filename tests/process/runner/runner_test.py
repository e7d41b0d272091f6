"""How tools/run_ctest and tools/test_summary.py judge: planted tests fail, crash, hang, skip and disturb each other.

    runner_test.py BUILD     BUILD is the folder of the dev build, for the lists of tools/run_tests
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None

# Fails the first time that it runs, passes the second time.
ONCE = 'test -e {name}.seen || { touch {name}.seen; exit 1; }'


class Planted:
    """A repository of its own with the runner and tests that are shell commands."""

    def __init__(self, folder: str, preset: str = "dev"):
        self.root, self.preset = pathlib.Path(folder), preset
        (self.root / "tools").mkdir()
        for name in ("run_ctest", "test_summary.py"):
            shutil.copy(ROOT / "tools" / name, self.root / "tools" / name)
        self.build = self.root / "build" / preset
        self.build.mkdir(parents=True)
        self.lines = []
        self.add("steady", "unit", "true")

    def add(self, name: str, labels: str, command: str, more: str = "") -> None:
        script = self.build / name
        script.write_text(f"#!/bin/sh\ncd {self.build}\n{command.replace('{name}', name)}\n")
        script.chmod(0o755)
        self.lines += [f'add_test({name} "{script}")',
                       f'set_tests_properties({name} PROPERTIES LABELS "{labels}" TIMEOUT 20 {more})']

    def skip(self, name: str, reason: str) -> None:
        """A GoogleTest program whose only case skips itself."""
        self.add(name, "unit", f"""cat >"${{GTEST_OUTPUT#xml:}}{name}.xml" <<END
<testsuites><testsuite name="S"><testcase name="C" status="run" result="skipped"><skipped message="a/b.cc:7&#x0A;{reason}"/></testcase></testsuite></testsuites>
END""")

    def run(self, skips: str = None, seed: str = "", **variables) -> tuple:
        """(status, output) of the summary after both passes; `skips`: the list of those that may be."""
        (self.build / "CTestTestfile.cmake").write_text("\n".join(self.lines) + "\n")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CTEST_")} | variables
        for action in ("beside", "alone"):
            subprocess.run([self.root / "tools/run_ctest", action, self.preset], check=True, env=environment,
                           stdout=subprocess.PIPE)
        options = []
        if skips is not None:
            (self.root / "skips.txt").write_text(skips)
            options = ["--skips", self.root / "skips.txt"]
        judged = subprocess.run([sys.executable, "-B", self.root / "tools/test_summary.py", *options,
                                 f"{self.preset}={self.build}/results"], text=True, stdout=subprocess.PIPE,
                                env=dict(environment, TRAINYARD_TEST_SEED=seed))
        return judged.returncode, judged.stdout


class RunnerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_a_process_test_that_fails_beside_others_only_is_flaky_and_green(self):
        planted = Planted(self.folder.name)
        planted.add("disturbed", "process", f"echo first words; {ONCE}")
        status, output = planted.run()
        self.assertEqual(status, 0, output)
        self.assertIn("flaky    dev: disturbed failed beside other tests and passed alone", output)
        self.assertTrue(output.endswith("2 passed, 0 failed, 0 skipped\n"), output)
        for run in ("beside", "again"):  # both outputs are kept
            self.assertIn("first words" if run == "beside" else "100% tests passed",
                          (planted.build / "results" / run / "ctest.log").read_text())

    def test_what_fails_twice_is_red(self):
        planted = Planted(self.folder.name)
        planted.add("broken", "process", "echo why; exit 1")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: broken", output)
        self.assertTrue(output.endswith("1 passed, 1 failed, 0 skipped\n"), output)

    def test_a_failure_of_any_tier_runs_again_on_dev_and_release(self):
        tiers = ("unit", "sim", "fuzz", "form", "release")
        for preset in ("dev", "release"):
            with self.subTest(preset), tempfile.TemporaryDirectory() as folder:
                planted = Planted(folder, preset)
                for tier in tiers:
                    planted.add(f"of_{tier}", tier, ONCE)
                status, output = planted.run()
                self.assertEqual(status, 0, output)
                for tier in tiers:
                    self.assertIn(f"flaky    {preset}: of_{tier} failed", output)

    def test_exact_ones_never_run_again(self):
        planted = Planted(self.folder.name)
        planted.add("of_bits", "comm;exact", ONCE)
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertTrue(output.endswith("1 passed, 1 failed, 0 skipped\n"), output)

    def with_fixture(self, up: str) -> Planted:
        """A fixture with six dependents, one of them exact."""
        planted = Planted(self.folder.name)
        planted.add("up", "apiserver", up, "FIXTURES_SETUP plane")
        for index in range(5):
            planted.add(f"needs_it{index}", "apiserver", "touch {name}.ran", "FIXTURES_REQUIRED plane")
        planted.add("judges_it", "apiserver;exact", "touch {name}.ran", "FIXTURES_REQUIRED plane")
        return planted

    def test_what_a_fixture_kept_from_running_runs_once_more_and_is_not_flaky(self):
        planted = self.with_fixture(up=ONCE)
        status, output = planted.run()
        self.assertEqual(status, 0, output)
        self.assertIn("flaky    dev: up", output)
        self.assertEqual(output.count("flaky    "), 1, output)
        self.assertEqual(len(list(planted.build.glob("*.ran"))), 6)
        self.assertTrue(output.endswith("8 passed, 0 failed, 0 skipped\n"), output)

    def test_a_fixture_that_fails_twice_is_red_with_what_needs_it(self):
        planted = self.with_fixture(up="exit 1")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: judges_it: was not run", output)
        self.assertTrue(output.endswith("1 passed, 7 failed, 0 skipped\n"), output)

    def test_a_fixture_that_is_red_at_once_stays_red_when_its_dependents_bring_it_up(self):
        words = re.search(r'kExact\[\] = "(.*)"', (ROOT / "tests/support/exact.h").read_text()).group(1)
        once = "test -e {name}.seen && exit 0; touch {name}.seen; "
        for why, up, labels, more in (("crashes", once + "kill -SEGV $$", "apiserver", ""),
                                      ("hangs", once + "exec sleep 100", "apiserver", "TIMEOUT 1"),
                                      ("is exact", ONCE, "apiserver;exact", ""),
                                      ("compares", f"test -e {{name}}.seen || echo '{words}'; {ONCE}", "apiserver", "")):
            with self.subTest(why), tempfile.TemporaryDirectory() as folder:
                planted = Planted(folder)
                planted.add("up", labels, up, f"FIXTURES_SETUP plane {more}")
                planted.add("needs_it", "apiserver", "true", "FIXTURES_REQUIRED plane")
                status, output = planted.run()
                self.assertEqual(status, 1, output)
                self.assertIn("FAILED   dev: up", output)
                self.assertTrue(output.endswith("2 passed, 1 failed, 0 skipped\n"), output)

    def test_a_cleanup_never_runs_again(self):
        planted = self.with_fixture(up="true")
        planted.add("down", "apiserver", ONCE, "FIXTURES_CLEANUP plane")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: down", output)

    def test_a_fixture_that_failed_beside_others_counts_though_it_is_up_for_what_depends_on_time(self):
        planted = Planted(self.folder.name)
        planted.add("up", "apiserver", "test -e {name}.seen && exit 0; touch {name}.seen; kill -SEGV $$", "FIXTURES_SETUP plane")
        planted.add("needs_it", "apiserver", "true", "FIXTURES_REQUIRED plane")
        planted.add("timed", "apiserver;timing", "true", "FIXTURES_REQUIRED plane")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: up", output)

    def test_a_fixture_that_fails_once_in_each_way_is_red(self):
        planted = Planted(self.folder.name)
        planted.add("up", "apiserver", "test -e timing || { touch timing; exit 1; }; test -e over && exit 0; touch over; kill -SEGV $$",
                    "FIXTURES_SETUP plane")
        planted.add("needs_it", "apiserver", "true", "FIXTURES_REQUIRED plane")
        planted.add("timed", "apiserver;timing", "true", "FIXTURES_REQUIRED plane")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: up", output)

    def test_an_exact_one_that_fails_when_its_fixture_is_up_at_last_is_red(self):
        planted = self.with_fixture(up=ONCE)
        planted.add("judges_it_too", "apiserver;exact", "exit 1", "FIXTURES_REQUIRED plane")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: judges_it_too", output)

    def test_an_exact_comparison_that_failed_once_is_red(self):
        words = re.search(r'kExact\[\] = "(.*)"', (ROOT / "tests/support/exact.h").read_text()).group(1)
        planted = Planted(self.folder.name)
        planted.add("of_hashes", "process", f"test -e {{name}}.seen || echo '{words}: state hash'; {ONCE}")
        planted.add("of_report", "process", f"""echo '<testsuites><testsuite name="S"><testcase name="C"><failure message="'
test -e {{name}}.seen || echo '{words}' >"${{GTEST_OUTPUT#xml:}}{{name}}.xml"; {ONCE}""")
        planted.add("of_time", "process", f"echo 'no hash: state hash'; {ONCE}")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: of_hashes", output)
        self.assertIn("FAILED   dev: of_report", output)
        self.assertIn("flaky    dev: of_time", output)

    def test_a_skip_that_is_not_listed_is_red(self):
        planted = Planted(self.folder.name)
        planted.skip("skips", "no memory cgroup here")
        self.assertEqual(planted.run()[0], 0, "without a list")
        status, output = planted.run(skips="# why\ndev: other: .*\n")
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: skips: S.C: skipped, which no line of the list of skips allows: no memory", output)
        status, output = planted.run(skips=r"dev: skips: S\.C: no memory")
        self.assertEqual(status, 0, output)
        self.assertTrue(output.endswith("1 passed, 0 failed, 1 skipped\n"), output)

    def test_what_a_build_disables_is_no_skip_of_its_own(self):
        planted = Planted(self.folder.name)
        planted.add("disabled", "unit", "true", "DISABLED TRUE")
        status, output = planted.run(skips="")
        self.assertEqual(status, 0, output)

    def test_the_seed_is_printed_with_failures(self):
        planted = Planted(self.folder.name)
        self.assertNotIn("TRAINYARD_TEST_SEED", planted.run(seed="77")[1])
        planted.add("broken", "unit", "exit 1")
        self.assertIn("TRAINYARD_TEST_SEED=77 draws the same cases", planted.run(seed="77")[1])

    def test_nothing_under_a_sanitizer_runs_again(self):
        for preset in ("asan", "tsan"):
            with self.subTest(preset), tempfile.TemporaryDirectory() as folder:
                planted = Planted(folder, preset)
                planted.add("raced", "comm", ONCE)
                self.assertEqual(planted.run()[0], 1)

    def with_sanitizer(self) -> str:
        """A program that AddressSanitizer complains of."""
        source = pathlib.Path(self.folder.name) / "fault.cc"
        source.write_text("int main(int argc, char**) { int* p = new int[4]; delete[] p; return p[argc]; }\n")
        program = source.with_suffix("")
        compiler = shutil.which("clang++-14") or "c++"
        compiled = subprocess.run([compiler, "-fsanitize=address,undefined", "-g", source, "-o", program],
                                  stderr=subprocess.PIPE, text=True)
        self.assertEqual(compiled.returncode, 0, compiled.stderr)
        return str(program)

    def test_a_sanitizers_report_of_a_child_is_red_at_once(self):
        fault = self.with_sanitizer()
        planted = Planted(self.folder.name, "asan")
        planted.add("swallows", "process", f"for _ in 1 2; do {fault} >/dev/null 2>&1; done; exit 0")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   asan: fault: 2 processes with a sanitizer's report, the first:", output)
        self.assertIn("heap-use-after-free", output)
        self.assertTrue(output.endswith("2 passed, 1 failed, 0 skipped\n"), output)

    def test_a_sanitizers_report_after_much_output_is_red(self):
        fault = self.with_sanitizer()
        planted = Planted(self.folder.name, "asan")
        planted.add("talks", "process", f"head -c 1000000 /dev/zero | tr '\\0' x; {fault} || true")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("heap-use-after-free", output)

    def test_a_remark_of_a_sanitizer_is_no_report(self):
        planted = Planted(self.folder.name, "asan")
        remark = "==a==7==Unable to get registers from thread 6."
        planted.add("remarks", "process", 'file=${ASAN_OPTIONS##*log_path=\\"}; echo "' + remark + '" >"${file%%\\"*}.a.7"')
        status, output = planted.run()
        self.assertEqual(status, 0, output)
        self.assertIn(remark, next((planted.build / "results/beside/sanitizer").iterdir()).read_text())

    def test_a_test_that_asks_for_a_sanitizers_report_is_green(self):
        fault = self.with_sanitizer()
        planted = Planted(self.folder.name, "asan")
        planted.add("asks", "process", f"ASAN_OPTIONS= UBSAN_OPTIONS= {fault} 2>&1 | grep -q heap-use-after-free")
        status, output = planted.run()
        self.assertEqual(status, 0, output)

    def test_the_slowest_programs_are_named(self):
        planted = Planted(self.folder.name)
        for index in range(11):
            planted.add(f"other{index}", "unit", "true")
        planted.add("slow", "unit", "sleep 1.2")
        output = planted.run()[1]
        self.assertRegex(output, r"slowest     1 s  dev: slow\n")
        self.assertEqual(output.count("  slowest "), 10, output)

    def test_a_crash_is_red_at_once(self):
        planted = Planted(self.folder.name)
        planted.add("crashed", "process", "test -e crashed.seen && exit 0; touch crashed.seen; kill -SEGV $$")
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED   dev: crashed", output)

    def test_a_time_limit_is_red_at_once(self):
        planted = Planted(self.folder.name)
        planted.add("hung", "process", "test -e hung.seen && exit 0; touch hung.seen; exec sleep 100", "TIMEOUT 1")
        self.assertEqual(planted.run()[0], 1)

    def test_six_flaky_programs_are_red_five_are_not(self):
        planted = Planted(self.folder.name)
        for index in range(5):
            planted.add(f"flaky{index}", "process", ONCE)
        status, output = planted.run()
        self.assertEqual(status, 0, output)
        for seen in planted.build.glob("*.seen"):
            seen.unlink()
        planted.add("flaky5", "cluster", ONCE)
        status, output = planted.run()
        self.assertEqual(status, 1, output)
        self.assertIn("6 programs are flaky, at most 5 are allowed", output)

    def test_what_depends_on_time_runs_last_and_alone(self):
        planted = Planted(self.folder.name)
        for index in range(3):
            planted.add(f"timed{index}", "unit;timing", "mkdir alone && sleep 0.2 && rmdir alone && test -e others")
        planted.add("other", "unit", "sleep 0.5; touch others")
        status, output = planted.run()
        self.assertEqual(status, 0, output)
        self.assertNotIn("flaky", output)  # a second run would hide a first one beside others

    def test_what_computes_takes_what_is_left_beside_what_waits(self):
        planted = Planted(self.folder.name)
        met = "touch {name}.runs; until test -e waits.runs -a -e computes.runs; do sleep 0.1; done; "
        own = os.nice(0)
        for name, label, niceness in (("waits", "process", own), ("computes", "unit", min(own + 5, 19))):
            planted.add(name, label, f"{met}test $(nice) -eq {niceness}", "PROCESSORS 2")
        status, output = planted.run(TRAINYARD_JOBS="1")
        self.assertEqual(status, 0, output)
        self.assertNotIn("flaky", output)
        self.assertTrue(output.endswith("3 passed, 0 failed, 0 skipped\n"), output)

    def test_a_lost_report_is_red(self):
        planted = Planted(self.folder.name)
        planted.run()
        shutil.rmtree(planted.build / "results")
        judged = subprocess.run([sys.executable, "-B", planted.root / "tools/test_summary.py",
                                 f"dev={planted.build}/results"], stdout=subprocess.PIPE)
        self.assertEqual(judged.returncode, 1)


@unittest.skipUnless(BUILD == ROOT / "build" / "dev", "the lists of tools/run_tests are those of build/dev")
class ListsTest(unittest.TestCase):
    def names(self, *options) -> set:
        listed = subprocess.run([ROOT / "tools/run_tests", *options, "--list"], check=True, text=True,
                                stdout=subprocess.PIPE)
        return {line for line in listed.stdout.splitlines() if line.startswith("dev ")}

    def test_what_ci_runs_contains_what_make_test_runs(self):
        quick, everything = self.names(), self.names("--all")
        self.assertGreater(len(quick), 100)
        self.assertLess(quick, everything)

    def test_what_ci_runs_draws_nothing(self):
        shown = subprocess.run(["ctest", "--test-dir", BUILD, "-N", "-L", "^explore$", "-FA", "."], check=True, text=True,
                               stdout=subprocess.PIPE)
        explored = {f"dev {name}" for name in re.findall(r"Test +#\d+: (\S+)", shown.stdout)}
        self.assertIn("dev operator_proxy_crash_test", explored)
        self.assertEqual(self.names("--all") & explored, set())

    def test_what_ci_runs_has_the_form(self):
        self.assertIn("dev lint_test", self.names("--all"))

    def test_the_list_of_skips_is_one_of_expressions(self):
        lines = [line for line in (ROOT / "tests/skips.txt").read_text().splitlines() if line and line[0] != "#"]
        self.assertGreater(len(lines), 1)
        for line in lines:
            re.compile(line)

    def test_the_names_of_the_commands(self):
        for target, command in (("test", "tools/run_tests"), ("test-all", "tools/run_tests --all"),
                                ("test-long", "tools/run_tests --long")):
            shown = subprocess.run(["make", "-n", "-C", ROOT, "--no-print-directory", target], check=True, text=True,
                                   stdout=subprocess.PIPE)
            self.assertEqual(shown.stdout.strip(), command)
        self.assertIn("exec make test-all\n", (ROOT / ".ci/run").read_text())


if __name__ == "__main__":
    unittest.main()
