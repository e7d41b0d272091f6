#!/usr/bin/env python3
"""What the loader costs a step, and what opening 10^8 samples costs.

    bench/ledger/loader.py

With the `trainyard` on PATH: opens token shards of 10^4 and of 10^8 samples and counts the pages that the program
touches and the processor time it takes; then trains on the larger ones and takes the waits for data from the trace.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import job

SMALL, LARGE = 10**4, 10**8  # samples of one token
STEPS = 200
PAGES_MORE = 64  # noise of the C library and the kernel; all of the large shards have 50,000
WAIT_SHARE = 0.01


def write(work, name, samples):
    text = work / f"{name}.txt"
    line = b"".join(b"%09d, the next one\n" % i for i in range(10**4))
    with open(text, "wb") as file:
        for begin in range(0, samples + 1, len(line)):
            file.write(line[:samples + 1 - begin])
    subprocess.run(["trainyard", "data", "prepare", "--tokenizer", "bytes", "--out", work / name, text], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    text.unlink()
    return work / name / "train"


def opened(tokens):
    """(page faults, processor seconds) of `data show`, the least of five."""
    found = []
    for _ in range(5):
        child = subprocess.Popen(["trainyard", "data", "show", tokens], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, child.returncode
        found.append((usage.ru_minflt + usage.ru_majflt, usage.ru_utime + usage.ru_stime))
    return min(found)


def waits(work, tokens):
    """(steps, seconds in them, seconds of waits for data) of rank 0."""
    what = job.manifest(tokens, ranks=2, steps=STEPS, parallelism={"zeroStage": 1}, model={"layers": 2, "hidden": 128, "heads": 2})
    what["spec"]["engine"]["data"]["sequenceLength"] = 1
    what["spec"]["engine"]["batch"] = {"globalSequences": 512, "microSequences": 256}
    job.train(work, what, f"--trace={STEPS}")
    trace = json.loads((work / "run" / "trace.json").read_text(encoding="utf-8"))
    seconds = {"step": [], "data_wait": []}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 0 and event["cat"] in seconds:
            seconds[event["cat"]].append(event["dur"] * 1e-6)
    return len(seconds["step"]), sum(seconds["step"]), sum(seconds["data_wait"])


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 64
    with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
        work = pathlib.Path(folder)
        small, large = opened(write(work, "small", SMALL)), opened(tokens := write(work, "large", LARGE))
        for name, samples, (pages, seconds) in (("small", SMALL, small), ("large", LARGE, large)):
            print(f"open {name}: {samples:>11,} samples, {pages} pages touched, {seconds * 1e3:.1f} ms of a processor")
        steps, total, waited = waits(work, tokens)
    more = large[0] - small[0]
    print(f"measured: {more} pages more for {LARGE // SMALL:,} times the samples, expected: at most {PAGES_MORE}")
    share = waited / total
    print(f"measured: {waited * 1e3:.3f} ms of waits for data in {steps} steps of {total / steps * 1e3:.2f} ms, {share:.3%}, "
          f"expected: at most {WAIT_SHARE:.1%}")
    return 0 if more <= PAGES_MORE and steps == STEPS and share <= WAIT_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
