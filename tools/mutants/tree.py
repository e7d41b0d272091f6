"""A private copy of the sources, in which something is changed and the tests that must notice are run."""

import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import threading
import time

# Variables of the environment: which mutant is chosen, and where to note those in functions that were run.
CHOSEN = "TRAINYARD_MUTANT"
REACHED = "TRAINYARD_MUTANTS_REACHED"
OF_RUN = "TRAINYARD_MUTANTS_RUN"  # by which process: what its tests leave behind is known by it

TEST_SECONDS_MAX = 300  # of one test under one mutant: a hang is caught by it
TEST_SECONDS_MIN = 20
SIM_SECONDS = 6  # of random stories: what these do not find, the exhaustive ones are asked
SLOWER = 5  # a test may take so many times what it takes without a bug
BUILD_SECONDS_MAX = 3600
# A mutant may take memory, or write, for ever.
DATA_BYTES_MAX = 6 << 30
FILE_BYTES_MAX = 1 << 30

# What a change leaves unused is no error here, although it is in the flags: the same flags as everywhere let the
# compiler's cache give what other builds have made. Without optimisation the changed file compiles in half the time.
LENIENT = "".join(f'#pragma GCC diagnostic warning "-W{name}"\n' for name in (
    "unused-variable", "unused-but-set-variable", "unused-but-set-parameter", "unused-parameter", "unused-function",
    "unused-value", "unused-result", "unused-local-typedefs", "unused-const-variable", "empty-body", "uninitialized",
    "maybe-uninitialized", "shadow", "parentheses", "logical-not-parentheses", "type-limits", "return-type",
    "tautological-compare", "bool-compare", "int-in-bool-context", "nonnull-compare", "implicit-fallthrough",
    "dangling-else", "misleading-indentation", "address", "restrict", "array-bounds",
    "stringop-overflow")) + "#pragma GCC optimize (\"O0\")\n"
BINARIES_FOR = ("training_test", "run_test")  # tests that start the programs


def reached_in(path):
    """Numbers of the mutants in functions that a run has noted."""
    return {int(number) for number in path.read_text().split()} if path.exists() else set()


def _limit():
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))


def end_left_behind(marks):
    """Ends whoever has all of these variables: what a test has started in other sessions and, by its mutant, not ended."""
    wanted = {f"{name}={value}".encode() for name, value in marks.items()}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if wanted <= set((process / "environ").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended, or is somebody else's


class Tree:
    def __init__(self, root, name="tree", preset="dev"):
        self.root = pathlib.Path(root)
        self.tree = self.root / "build" / "mutants" / name
        self.preset = preset
        self.jobs = int(os.environ.get("TRAINYARD_JOBS", os.cpu_count()))
        self.seconds = {}  # of each test without a bug
        self.reached = {}  # by each test: numbers of the mutants in functions that it runs; None where nobody knows
        self.by_ctest = tests_of_tier(self.root, "apiserver")
        self.one_plane = threading.Lock()
        self.environment = {**os.environ, "GTEST_FAIL_FAST": "1", "TRAINYARD_SIM_SECONDS": str(SIM_SECONDS),
                            OF_RUN: str(os.getpid())}
        # The tests' own short bounds hold, also where everything else runs long.
        self.environment.pop("TRAINYARD_LONG_TESTS", None)
        self.environment.pop("GTEST_OUTPUT", None)
        if name == "generated":  # of which several are judged at once
            self.environment["TRAINYARD_SIM_THREADS"] = "1"

    def prepare(self, log, changed=None):
        """Copies, with `changed` texts by path in place of the files', and configures; exits where that fails."""
        self.tree.mkdir(parents=True, exist_ok=True)
        self._copy_sources(changed or {})
        if self._run(["cmake", "--preset", self.preset], log, BUILD_SECONDS_MAX) != 0:
            raise SystemExit(f"does not configure; see {log}")

    def write(self, path, text):
        """Where it differs: files that are equal keep their time."""
        target = self.tree / path
        if not target.exists() or target.read_text() != text:
            target.write_text(text)

    def _copy_sources(self, changed):
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=self.root, check=True,
                                capture_output=True).stdout.decode().split("\0")
        wanted = {name for name in listed if name and (self.root / name).is_file()}
        for path in sorted(self.tree.rglob("*")):
            inside = path.relative_to(self.tree)
            if inside.parts[0] != "build" and path.is_file() and str(inside) not in wanted:
                path.unlink()
        for name in wanted:
            source, target = self.root / name, self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name in changed:
                self.write(name, changed[name])
            elif not target.exists() or target.read_bytes() != source.read_bytes():
                shutil.copy(source, target)

    def _run(self, command, log, seconds, limited=False, folder=None, extra=None):
        """The exit status; 124 when it ran out of time: then all that it started has been ended."""
        environment = {**self.environment, **(extra or {})}
        with open(log, "ab") as output:
            process = subprocess.Popen(command, cwd=folder or self.tree, stdout=output, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
                                       preexec_fn=_limit if limited else None)
            try:
                status = process.wait(timeout=seconds)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    return 124
                raise
        try:  # what a crashed test has left behind in its session
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return status

    def build(self, tests, log):
        """Whether the tests, and what they start, could be built; goes on after an error."""
        programs = ["trainyard_binaries"] if set(tests) & set(BINARIES_FOR) else []
        return self._run(["cmake", "--build", "--preset", self.preset, "-j", str(self.jobs), "--target", *programs, *tests,
                          "--", "-k", "0"], log, BUILD_SECONDS_MAX) == 0

    def _test(self, test, log, seconds, extra=None):
        """None when it passes, else how it failed. `extra`: of the environment."""
        begun = log.stat().st_size if log.exists() else 0
        build = self.tree / "build" / self.preset
        if test in self.by_ctest:  # with its control plane
            with self.one_plane:
                status = self._run(["ctest", "-R", f"^{test}$", "--no-tests=error", "--output-on-failure"], log, seconds,
                                   folder=build, extra=extra)
        else:
            status = self._run([str(build / "test" / test)], log, seconds, limited=True, folder=build / "tests",
                               extra=extra)
        if status == 0:
            return None
        if status == 124:
            return f"{test} (ran out of {seconds:.0f} s)"
        with open(log, "rb") as text:
            text.seek(begun)
            failed = re.search(r"\[  FAILED  \] ([\w./]+)", text.read().decode(errors="replace"))
        return f"{test}: {failed.group(1)}" if failed else f"{test} (crashed, {status})"

    def vet(self, test, log):
        """Runs the test without any bug, once, and notes what it reaches; exits where it fails."""
        if test in self.seconds:
            return
        notes = log.parent / f"{test}.reached"
        for attempt in (1, 2):
            started = time.monotonic()
            notes.unlink(missing_ok=True)
            failed = self._test(test, log, TEST_SECONDS_MAX, {REACHED: str(notes)})
            if failed is None:
                self.seconds[test] = time.monotonic() - started
                self.reached[test] = None if test in self.by_ctest else reached_in(notes)
                return
            print(f"    without any bug: {failed}, attempt {attempt}", flush=True)
        raise SystemExit(f"{test} fails without any bug; see {log}")

    def first_failing(self, tests, log, mutant=None):
        """How the first of `tests` fails that does, or None. All have been vetted."""
        for test in tests:
            limit = min(TEST_SECONDS_MAX, max(TEST_SECONDS_MIN, SLOWER * self.seconds[test]))
            chosen = {} if mutant is None else {CHOSEN: str(mutant)}
            failed = self._test(test, log, limit, chosen)
            if mutant is not None:
                end_left_behind({OF_RUN: os.getpid(), **chosen})
            if failed:
                return failed
        return None

    def judge(self, path, mutated, tests, log):
        """(outcome, by) of a file whose text is another: caught and by which test, survived, or broken. The file is
        good again afterwards."""
        good = (self.tree / path).read_text()
        try:
            self.write(path, LENIENT + "#line 1\n" + mutated)
            if not self.build(tests, log):
                return "broken", "does not compile"
            failed = self.first_failing(tests, log)
            return ("caught", failed) if failed else ("survived", ", ".join(tests))
        finally:
            self.write(path, good)


def _tests_in(path):
    text = path.read_text()
    names = set(re.findall(r"trainyard_(?:[a-z]+_)?test\(([a-z0-9_]+)", text))
    for name in re.findall(r"trainyard_emulated_test\(([a-z0-9_]+)", text):
        names.remove(name)
        names.update((f"{name}_emulated_test", f"{name}_race_test"))
    # A list that registers in a loop: foreach(name IN ITEMS a b) ... prefix_${name}_test.
    for items, body in re.findall(r"foreach\(name ([^)]*)\)(.*?)endforeach", text, re.S):
        for pattern in re.findall(r"trainyard_(?:[a-z]+_)?test\(([a-z0-9_]*\$\{name\}[a-z0-9_]*)", body):
            names.update(pattern.replace("${name}", item) for item in items.split())
    return names


def tests_of_tier(root, tier):
    """Names of the tests that the lists of a tier register."""
    return {name for path in (pathlib.Path(root) / "tests" / tier).glob("**/*.cmake") for name in _tests_in(path)}


def registered_tests(root):
    """Names of the tests that the build knows, from the lists of every tier."""
    return {name for path in (pathlib.Path(root) / "tests").glob("**/*.cmake") for name in _tests_in(path)}
