#!/usr/bin/env python3
"""Adds up what the test programs reported and prints the one line that counts.

    tools/test_summary.py [--skips FILE] PRESET=DIR [PRESET=DIR ...]

DIR holds ctest's junit.xml and, under gtest/, the XML file of every GoogleTest binary; or the folders beside/,
computing/, timing/ and again/ of tools/run_ctest, which hold the same each. A binary that wrote its cases is counted by cases.
A script, or a binary that crashed before its end, is counted as one. Failures and skips are printed by name,
failures with the first lines of what was expected, or the last lines of a program that crashed or ran out of time.
A program that failed and passed in again/ is flaky: it counts as passed and is printed by name. More than five flaky
programs are a failure. A program that a fixture kept from running, and that passed in again/, is not flaky. FILE lists
the skips that are allowed: regular expressions, one per line, of which one must match "PRESET: PROGRAM: SUITE.CASE:
REASON" from its beginning; any other skip is a failure. What CMake disables for a sanitizer needs no line. Where
TRAINYARD_TEST_SEED is set, it is printed with the failures. The last line is `N passed, N failed, N skipped`. The exit
status is 1 when anything failed, when nothing passed, or when a report is missing. A sanitizer's report is a failure,
whatever the program that it is about, or the test that started that, made of it. The ten slowest programs are named.
"""

import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


SHOWN = 15  # lines of a failure; the whole is in ctest.log
FLAKY_MAX = 5  # programs per run
SLOWEST = 10  # programs that are named
FOUND_BY_SANITIZER = r"(ERROR|FATAL): \w*Sanitizer|WARNING: ThreadSanitizer|runtime error: |CHECK failed: "
NOT_BUILT = "disabled in this build"
NOT_RUN = "was not run"


def shortened(message: str) -> str:
    return "\n             ".join(line[:300] for line in (message.splitlines() or [""])[: 2 * SHOWN])


def last_words(output: str):
    """Of a program that did not come to report: the case that it was in, what it missed first, its last lines."""
    lines = output.rstrip().splitlines()
    begun = [line.split("]", 1)[1].strip() for line in lines if line.startswith("[ RUN      ]")]
    ended = [re.split(r"[ ,]", line.split("]", 1)[1].strip())[0] for line in lines if re.match(r"\[ *(OK|FAILED|SKIPPED) *\]", line)]
    if begun and begun[-1] not in ended:
        yield f"it was in {begun[-1]}, after {len(begun) - 1} others"
    missed = next((index for index, line in enumerate(lines) if line.endswith(": Failure")), None)
    if missed is not None and missed < len(lines) - SHOWN:
        yield from lines[missed : missed + SHOWN // 2]
        yield "..."
    yield from lines[-SHOWN:]


def cases_of(report: pathlib.Path):
    """Yields (name, outcome, message) of one GoogleTest XML file."""
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            name = f"{suite.get('name')}.{case.get('name')}"
            failure, skipped = case.find("failure"), case.find("skipped")
            if failure is not None:
                yield name, "failed", (failure.get("message") or "").strip()
            elif skipped is not None or case.get("result") in ("skipped", "suppressed"):
                yield name, "skipped", ((skipped.get("message") if skipped is not None else None) or "no reason given").strip()
            elif case.get("status") == "notrun":
                yield name, "skipped", "disabled"
            else:
                yield name, "passed", ""


def programs_of(folder: pathlib.Path):
    """The outcomes, [(test, outcome, message)], of each program of one call of ctest, by name."""
    cases = {}
    for report in sorted((folder / "gtest").glob("*.xml")):
        try:
            cases.setdefault(report.stem, []).extend(cases_of(report))
        except ElementTree.ParseError:
            pass  # cut off by a crash: ctest's verdict on the binary stands
    programs = {}
    for test in ElementTree.parse(folder / "junit.xml").getroot().iter("testcase"):
        name, status = test.get("name"), test.get("status")
        outcomes = [(f"{name}: {case}", outcome, message) for case, outcome, message in cases.get(name, [])]
        failed = status == "fail"
        if failed and not any(outcome == "failed" for _, outcome, _ in outcomes):
            # A crash, a time-out, a sanitizer's report at exit: no case says so, the binary does.
            failure = test.find("failure")
            message = (failure.get("message") if failure is not None else "") or "without a failed case"
            outcomes.append((name, "failed", "\n".join([message, *last_words(test.findtext("system-out") or "")])))
        elif status == "disabled":
            outcomes.append((name, "skipped", NOT_BUILT))
        elif status == "notrun":
            outcomes.append((name, "failed", NOT_RUN))
        elif not outcomes:
            outcomes.append((name, "passed", ""))
        programs[name] = outcomes
    return programs


def has_failed(outcomes) -> bool:
    return any(outcome == "failed" for _, outcome, _ in outcomes)


def runs_of(folder: pathlib.Path):
    return [folder / name for name in ("beside", "computing", "timing") if (folder / name / "junit.xml").is_file()] or [folder]


def sanitizer_reports(folder: pathlib.Path) -> dict:
    """What sanitizers found in processes of the preset, by program. Their files also hold remarks, as of a thread whose
    registers cannot be read."""
    reports = {}
    for run in runs_of(folder):
        for report in sorted((run / "sanitizer").glob("report.*")):
            text = report.read_text(errors="replace").strip()
            if re.search(FOUND_BY_SANITIZER, text):
                reports.setdefault(report.name.removeprefix("report.").rpartition(".")[0], []).append(text)
    return reports


def seconds_of(folder: pathlib.Path):
    """(seconds, program) of each program of the preset."""
    for run in runs_of(folder):
        for test in ElementTree.parse(run / "junit.xml").getroot().iter("testcase"):
            yield float(test.get("time") or 0), test.get("name")


def outcomes_of(folder: pathlib.Path):
    """The outcomes of one preset, and the flaky programs: [(program, first failure)]."""
    runs = runs_of(folder)
    programs, flaky = {}, []
    for run in runs:
        for name, outcomes in programs_of(run).items():
            if not has_failed(programs.get(name, [])):  # a fixture runs in each
                programs[name] = outcomes
    if (folder / "again" / "junit.xml").is_file():
        counted = (folder / "again" / "names").read_text().split()
        for name, outcomes in programs_of(folder / "again").items():
            first = programs.get(name, [])
            if name in counted and has_failed(first) and not has_failed(outcomes):
                failures = [f"{test}: {message}" for test, outcome, message in first if outcome == "failed" and message != NOT_RUN]
                flaky += [(name, failure) for failure in failures[:1]]
                programs[name] = outcomes
    return [outcome for outcomes in programs.values() for outcome in outcomes], flaky


def reason_of(message: str) -> str:
    """The first line of why a case was skipped, without GoogleTest's line of where."""
    lines = [line for line in message.splitlines() if not re.fullmatch(r"\S+:\d+", line)]
    return lines[0] if lines else "no reason given"


def skips_of(file: pathlib.Path) -> list:
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def main(arguments: list) -> int:
    skips = None
    if arguments[:1] == ["--skips"]:
        skips, arguments = skips_of(pathlib.Path(arguments[1])), arguments[2:]
    total = {"passed": 0, "failed": 0, "skipped": 0}
    failed, skipped, flaky, slowest = [], [], [], []
    for argument in arguments:
        preset, _, folder = argument.partition("=")
        folder = pathlib.Path(folder)
        if not any((folder / run / "junit.xml").is_file() for run in ("", "beside", "computing")):
            total["failed"] += 1
            failed.append(f"{preset}: no report in {folder}: the tests did not run to their end")
            continue
        counts = dict.fromkeys(total, 0)
        outcomes, found = outcomes_of(folder)
        outcomes += [(name, "failed", f"{len(reports)} processes with a sanitizer's report, the first:\n{reports[0]}")
                     for name, reports in sanitizer_reports(folder).items()]
        slowest += [(seconds, f"{preset}: {name}") for seconds, name in seconds_of(folder)]
        flaky += [f"{preset}: {name} failed beside other tests and passed alone ({folder}/*/ctest.log); "
                  f"first: {shortened(message)}" for name, message in found]
        for name, outcome, message in outcomes:
            line = f"{preset}: {name}: {reason_of(message)}"
            if outcome == "skipped" and not (skips is None or message == NOT_BUILT or any(s.match(line) for s in skips)):
                outcome, message = "failed", f"skipped, which no line of the list of skips allows: {reason_of(message)}"
            counts[outcome] += 1
            if outcome == "failed":
                failed.append(f"{preset}: {name}: {shortened(message)}")
            elif outcome == "skipped":
                skipped.append(line)
        for outcome, count in counts.items():
            total[outcome] += count
        print(f"  {preset:8} {counts['passed']:5} passed {counts['failed']:4} failed {counts['skipped']:4} skipped")
    if len(flaky) > FLAKY_MAX:
        total["failed"] += 1
        failed.append(f"{len(flaky)} programs are flaky, at most {FLAKY_MAX} are allowed")
    slowest = [f"{seconds:4.0f} s  {name}" for seconds, name in sorted(slowest, reverse=True)[:SLOWEST]]
    for kind, names in (("slowest", slowest), ("skipped", skipped), ("flaky", flaky), ("FAILED", failed)):
        for name in names:
            print(f"  {kind:8} {name}")
    if failed and os.environ.get("TRAINYARD_TEST_SEED"):
        print(f"  seed     TRAINYARD_TEST_SEED={os.environ['TRAINYARD_TEST_SEED']} draws the same cases")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if total["failed"] == 0 and total["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
