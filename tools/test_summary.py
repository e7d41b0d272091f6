#!/usr/bin/env python3
"""Adds up what the test programs reported and prints the one line that counts.

    tools/test_summary.py PRESET=DIR [PRESET=DIR ...]

DIR holds ctest's junit.xml and, under gtest/, the XML file of every GoogleTest binary. A binary
that wrote its cases is counted by cases; one that did not (a script, or a crash before the end) is
counted as one. Failures and skips are printed by name, failures with the first lines of what was
expected, or the last that a program said which crashed or ran out of time. Ends with `N passed, N failed, N skipped`;
the exit status is 1 when anything failed, when nothing passed, or when a report is missing.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


SHOWN = 15  # lines of a failure; the whole is in DIR/ctest.log


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


def outcomes_of(folder: pathlib.Path):
    """Yields (test, outcome, message) of one preset."""
    cases = {}
    for report in sorted((folder / "gtest").glob("*.xml")):
        try:
            cases.setdefault(report.stem, []).extend(cases_of(report))
        except ElementTree.ParseError:
            pass  # cut off by a crash: ctest's verdict on the binary stands
    for test in ElementTree.parse(folder / "junit.xml").getroot().iter("testcase"):
        name, status = test.get("name"), test.get("status")
        inner = cases.get(name, [])
        for case, outcome, message in inner:
            yield f"{name}: {case}", outcome, message
        binary_failed = status == "fail"
        if binary_failed and not any(outcome == "failed" for _, outcome, _ in inner):
            # A crash, a time-out, a sanitizer's report at exit: no case says so, the binary does.
            failure = test.find("failure")
            message = (failure.get("message") if failure is not None else "") or "without a failed case"
            yield name, "failed", "\n".join([message, *last_words(test.findtext("system-out") or "")])
        elif status in ("notrun", "disabled"):
            yield name, "skipped" if status == "disabled" else "failed", "was not run"
        elif not inner and not binary_failed:
            yield name, "passed", ""


def main(arguments: list) -> int:
    total = {"passed": 0, "failed": 0, "skipped": 0}
    failed, skipped = [], []
    for argument in arguments:
        preset, _, folder = argument.partition("=")
        if not (pathlib.Path(folder) / "junit.xml").is_file():
            total["failed"] += 1
            failed.append(f"{preset}: no report in {folder}: the tests did not run to their end")
            continue
        counts = dict.fromkeys(total, 0)
        for name, outcome, message in outcomes_of(pathlib.Path(folder)):
            counts[outcome] += 1
            lines = message.splitlines() or [""]
            if outcome == "failed":
                failed.append(f"{preset}: {name}: " + "\n             ".join(line[:300] for line in lines[: 2 * SHOWN]))
            elif outcome == "skipped":
                skipped.append(f"{preset}: {name}: {lines[0]}")
        for outcome, count in counts.items():
            total[outcome] += count
        print(f"  {preset:8} {counts['passed']:5} passed {counts['failed']:4} failed {counts['skipped']:4} skipped")
    for name in skipped:
        print(f"  skipped  {name}")
    for name in failed:
        print(f"  FAILED   {name}")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if total["failed"] == 0 and total["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
