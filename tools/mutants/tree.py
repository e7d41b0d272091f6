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

TEST_SECONDS_MAX = 300  # of one test under one mutant
TEST_SECONDS_MIN = 150  # tests await what does not come for 60 s, some twice, before a case fails
SIM_SECONDS = 6  # of random stories: what these do not find, the exhaustive ones are asked
SLOWER = 5  # a test may take so many times what it takes without a bug
BUILD_SECONDS_MAX = 3600
# A mutant may take memory, or write, for ever.
DATA_BYTES_MAX = 6 << 30
FILE_BYTES_MAX = 1 << 30

# What a change leaves unused is no error here, although it is in the flags: the same flags as everywhere let the
# compiler's cache give what other builds have made.
LENIENT = "".join(f'#pragma GCC diagnostic warning "-W{name}"\n' for name in (
    "unused-variable", "unused-but-set-variable", "unused-but-set-parameter", "unused-parameter", "unused-function",
    "unused-value", "unused-result", "unused-local-typedefs", "unused-const-variable", "empty-body", "uninitialized",
    "maybe-uninitialized", "shadow", "parentheses", "logical-not-parentheses", "type-limits", "return-type",
    "tautological-compare", "bool-compare", "int-in-bool-context", "nonnull-compare", "implicit-fallthrough",
    "dangling-else", "misleading-indentation", "address", "restrict", "array-bounds",
    "stringop-overflow"))
# How a test ended.
PASSED, FAILED, HUNG, ODD = "passed", "failed", "hung", "odd"
LIMITS = (signal.SIGKILL, signal.SIGXCPU, signal.SIGXFSZ)  # end what takes too much, and say nothing of why
BINARIES_FOR = ("training_test", "run_test")  # tests that start the programs


def lenient(text):
    """A file's text as it is compiled with a bug, and without one where the two are compared."""
    return LENIENT + "#line 1\n" + text


def how_it_ended(test, status, output, seconds):
    """(PASSED, FAILED, HUNG or ODD, in words). It fails by a case that does, or by a crash: a CHECK, a sanitizer, a
    signal. Whatever else ends it says nothing of the sources: the time, a limit, a start that did not succeed."""
    if status == 0:
        return PASSED, f"{test} passes"
    if status == 124 or "***Timeout" in output:
        return HUNG, f"{test} (ran out of {seconds:.0f} s)"
    case = re.search(r"\[  FAILED  \] ([\w./]+)", output)
    if case:
        return FAILED, f"{test}: {case.group(1)}"
    if -status in LIMITS:
        return HUNG, f"{test} (ran out of its memory or disk, {status})"
    if status < 0 or re.search(r": check failed: |ERROR: \w+Sanitizer|runtime error: |\*\*\*Exception", output):
        return FAILED, f"{test} (crashed, {status})"
    return ODD, f"{test} (ended with {status}, and no case failed)"


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
        # The tests' own short bounds and cases hold, also where everything else runs long or draws others.
        for name_of in ("TRAINYARD_LONG_TESTS", "TRAINYARD_TEST_SEED", "GTEST_OUTPUT"):
            self.environment.pop(name_of, None)
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
        """As how_it_ended(). `extra`: of the environment."""
        begun = log.stat().st_size if log.exists() else 0
        build = self.tree / "build" / self.preset
        if test in self.by_ctest:  # with its control plane
            with self.one_plane:
                status = self._run(["ctest", "-R", f"^{test}$", "--no-tests=error", "--output-on-failure"], log, seconds,
                                   folder=build, extra=extra)
        else:
            status = self._run([str(build / "test" / test)], log, seconds, limited=True, folder=build / "tests",
                               extra=extra)
        with open(log, "rb") as text:
            text.seek(begun)
            return how_it_ended(test, status, text.read().decode(errors="replace"), seconds)

    def vet(self, test, log):
        """Runs the test without any bug, and notes its time and what it reaches; in words how it fails, twice, or None."""
        if test in self.seconds:
            return None
        notes = log.parent / f"{test}.reached"
        for attempt in (1, 2):
            started = time.monotonic()
            notes.unlink(missing_ok=True)
            ended, words = self._test(test, log, TEST_SECONDS_MAX, {REACHED: str(notes)})
            if ended == PASSED:
                self.seconds[test] = time.monotonic() - started
                self.reached[test] = None if test in self.by_ctest else reached_in(notes)
                return None
            print(f"    without any bug: {words}, attempt {attempt}", flush=True)
        return words

    def ask(self, test, log, mutant=None):
        """(outcome, by) of one test that has been vetted: caught, hung or survived. What fails once and then passes has
        caught nothing."""
        limit = min(TEST_SECONDS_MAX, max(TEST_SECONDS_MIN, SLOWER * self.seconds[test]))
        chosen = {} if mutant is None else {CHOSEN: str(mutant)}
        for attempt in (1, 2):
            ended, words = self._test(test, log, limit, chosen)
            if mutant is not None:
                end_left_behind({OF_RUN: os.getpid(), **chosen})
            if ended != FAILED:
                break
        if ended == PASSED and attempt == 2:
            words = f"{test} fails once and then passes"
        return {FAILED: "caught", HUNG: "hung"}.get(ended, "survived"), words

    def judge(self, path, mutated, tests, log, may_hang=False):
        """(outcome, by) of a file whose text is another: caught, by every one of the tests; survived or hung, by those
        that did not catch it; or broken. `may_hang`: a hang is what is expected of it. The file is afterwards as it was."""
        good = (self.tree / path).read_text()
        try:
            self.write(path, lenient(mutated))
            if not self.build(tests, log):
                return "broken", "does not compile"
            asked = [self.ask(test, log) for test in tests]
        finally:
            self.write(path, good)
        missed = [entry for entry in asked if entry[0] != "caught" and not (may_hang and entry[0] == "hung")]
        outcome = min((outcome for outcome, _ in missed), key=("survived", "hung").index, default="caught")
        return outcome, "; ".join(by for _, by in missed or asked)


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
