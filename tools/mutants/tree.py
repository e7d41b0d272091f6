"""A private copy of the sources, in which one file at a time is changed and the tests that must notice are run."""

import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

TEST_SECONDS_MAX = 300  # of one test under one mutant: a hang is caught by it
TEST_SECONDS_MIN = 20
SLOWER = 5  # a test may take so many times what it takes without a bug
BUILD_SECONDS_MAX = 1800
# A mutant may take memory, or write, for ever.
DATA_BYTES_MAX = 6 << 30
FILE_BYTES_MAX = 1 << 30

# What a change leaves unused is no error here, although it is in the flags: the same flags as everywhere let the
# compiler's cache give what other builds have made. Without optimisation the changed file compiles in half the time.
PRELUDE = "".join(f'#pragma GCC diagnostic warning "-W{name}"\n' for name in (
    "unused-variable", "unused-but-set-variable", "unused-but-set-parameter", "unused-parameter", "unused-function",
    "unused-value", "unused-result", "unused-local-typedefs", "unused-const-variable", "empty-body", "uninitialized",
    "maybe-uninitialized", "shadow", "parentheses", "logical-not-parentheses", "type-limits", "return-type",
    "tautological-compare", "bool-compare", "int-in-bool-context", "nonnull-compare")) + "#line 1\n"
BINARIES_FOR = ("training_test", "run_test")  # tests that start the programs


def _limit():
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))


class Tree:
    def __init__(self, root, preset="dev"):
        self.root = pathlib.Path(root)
        self.tree = self.root / "build" / "mutants" / "tree"
        self.preset = preset
        self.jobs = os.environ.get("TRAINYARD_JOBS", str(os.cpu_count()))
        self.seconds = {}  # of each test without a bug
        self.environment = {**os.environ, "GTEST_FAIL_FAST": "1"}
        # The tests' own short bounds hold, also where everything else runs long.
        self.environment.pop("TRAINYARD_LONG_TESTS", None)
        self.environment.pop("GTEST_OUTPUT", None)

    def prepare(self, log):
        """Copies and configures; exits where that fails."""
        self.tree.mkdir(parents=True, exist_ok=True)
        self._copy_sources()
        if self._run(["cmake", "--preset", self.preset], log, BUILD_SECONDS_MAX) != 0:
            raise SystemExit(f"does not configure; see {log}")

    def _copy_sources(self):
        """Brings the copy to the working tree's state; files that are equal keep their time."""
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=self.root, check=True,
                                capture_output=True).stdout.decode().split("\0")
        wanted = {name for name in listed if name and (self.root / name).is_file()}
        for path in sorted(self.tree.rglob("*")):
            inside = path.relative_to(self.tree)
            if inside.parts[0] != "build" and path.is_file() and str(inside) not in wanted:
                path.unlink()
        for name in wanted:
            source, target = self.root / name, self.tree / name
            if target.exists() and target.read_bytes() == source.read_bytes():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def _run(self, command, log, seconds, limited=False):
        """The exit status; 124 when it ran out of time: then all that it started has been ended."""
        with open(log, "ab") as output:
            process = subprocess.Popen(command, cwd=self.tree, stdout=output, stderr=subprocess.STDOUT,
                                       env=self.environment, start_new_session=True,
                                       preexec_fn=_limit if limited else None)
            try:
                return process.wait(timeout=seconds)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    return 124
                raise

    def build(self, tests, log):
        """Whether the tests, and what they start, could be built."""
        programs = ["trainyard_binaries"] if set(tests) & set(BINARIES_FOR) else []
        return self._run(["cmake", "--build", "--preset", self.preset, "-j", self.jobs, "--target", *programs, *tests],
                         log, BUILD_SECONDS_MAX) == 0

    def _test(self, test, log, seconds):
        """None when it passes, else how it failed."""
        begun = log.stat().st_size if log.exists() else 0
        status = self._run(["ctest", "--test-dir", f"build/{self.preset}", "-R", f"^{test}$", "--no-tests=error",
                            "--output-on-failure"], log, seconds, limited=True)
        if status == 0:
            return None
        if status == 124:
            return f"{test} (ran out of {seconds:.0f} s)"
        with open(log, "rb") as text:
            text.seek(begun)
            failed = re.search(r"\[  FAILED  \] ([\w./]+)", text.read().decode(errors="replace"))
        return f"{test}: {failed.group(1)}" if failed else f"{test} (crashed)"

    def vet(self, test, log):
        """Builds and runs the test without any bug, once; exits where it fails."""
        if test in self.seconds:
            return
        if not self.build([test], log):
            raise SystemExit(f"{test} does not build without any bug; see {log}")
        for attempt in (1, 2):
            started = time.monotonic()
            failed = self._test(test, log, TEST_SECONDS_MAX)
            if failed is None:
                self.seconds[test] = time.monotonic() - started
                return
            print(f"    without any bug: {failed}, attempt {attempt}", flush=True)
        raise SystemExit(f"{test} fails without any bug; see {log}")

    def judge(self, file, mutated, tests, log, baseline):
        """(outcome, by): caught and by which test, survived, or broken. The file is good again afterwards."""
        path = self.tree / file
        good = path.read_text()
        try:
            for test in tests:
                if test not in self.seconds:
                    path.write_text(good)
                    self.vet(test, baseline)
                path.write_text(PRELUDE + mutated)
                if not self.build([test], log):
                    return "broken", "does not compile"
                limit = min(TEST_SECONDS_MAX, max(TEST_SECONDS_MIN, SLOWER * self.seconds[test]))
                failed = self._test(test, log, limit)
                if failed:
                    return "caught", failed
            return "survived", ", ".join(tests)
        finally:
            path.write_text(good)


def registered_tests(root):
    """Names of the tests that the build knows, from the lists of every tier."""
    names = set()
    for path in (pathlib.Path(root) / "tests").glob("*/*.cmake"):
        found = [path, *path.parent.glob("*/*.cmake")]
        for part in found:
            text = part.read_text()
            names.update(re.findall(r"trainyard_(?:apiserver_|sim_)?test\(([a-z0-9_]+)", text))
            # A list that registers in a loop: foreach(name IN ITEMS a b) ... prefix_${name}_test.
            for items, body in re.findall(r"foreach\(name ([^)]*)\)(.*?)endforeach", text, re.S):
                for pattern in re.findall(r"trainyard_test\(([a-z0-9_]*\$\{name\}[a-z0-9_]*)", body):
                    names.update(pattern.replace("${name}", item) for item in items.split())
    return names
