#!/usr/bin/env python3
"""What run.sh does. A bundle has bin/ (programs for the device), emulated/ (the same over the emulation), expected.record
(results that the emulation computed), floors.json (what operations cannot be faster than, by tools/gpu_budget), budget.json
(tokens/s that it predicts), peers.py and the other modules beside this one.

Each part is made of processes of their own: one that fails, hangs or loses the device stops no other. --out gets results.jsonl
(a line as soon as it is known), report.json and logs.tar.gz, both rewritten after each part.

The status is 0 when a device was confirmed, 1 when a part failed or ran out of time, and 3 when nothing failed but a part was not
run, or there is no GPU and the emulation ran in its place. --emulated asks for the emulation, whose success is then 0.
"""

import argparse
import pathlib
import shutil
import signal
import sys

sys.dont_write_bytecode = True
from engine_parts import EngineParts  # noqa: E402
from kernel_parts import KernelParts  # noqa: E402

DEADLINE_S = 400
# What one call runs in at most DEADLINE_S: parts in the order that teaches most, with their limits in seconds.
CALLS = {
    "kernels": {"identity": 15, "products": 55, "tests": 45, "step": 75, "torch": 90, "ladder": 35, "counters": 35, "operations": 25,
                "sanitizer": 25},
    "engine": {"identity": 15, "engine": 75, "worker": 75, "nccl": 20, "resume": 75, "speed": 80, "losses": 60},
}
LIMITS_S = {part: seconds for parts in CALLS.values() for part, seconds in parts.items()}
UNCONFIRMED = 3


class Parts(KernelParts, EngineParts):
    """A part is a method that returns whether it passed and what it found, or raises NotRun."""


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description="Confirms and measures the CUDA kernels.")
    parser.add_argument("--call", choices=CALLS, default="kernels", help="kernels and steps, or the engine (default: %(default)s)")
    parser.add_argument("--parts", help=f"which, of {','.join(LIMITS_S)} (default: those of the call)")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for reports")
    parser.add_argument("--limit", action="append", default=[], metavar="PART=SECONDS", help="instead of its own limit")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="of all parts (default: %(default)s)")
    parser.add_argument("--emulated", action="store_true", help="run the emulation, which confirms nothing about a device")
    arguments = parser.parse_args()
    limits = dict(LIMITS_S)
    try:
        limits |= {part: float(seconds) for part, seconds in (limit.split("=") for limit in arguments.limit)}
        parts = arguments.parts.split(",") if arguments.parts else list(CALLS[arguments.call])
        unknown = sorted({*parts, *limits} - LIMITS_S.keys())
    except ValueError:
        parser.error(f"--limit {' '.join(arguments.limit)}: wanted PART=SECONDS")
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(LIMITS_S)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.jsonl").unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # a part under way ends with this program
    runner = Parts(arguments.out.resolve(), arguments.emulated, arguments.deadline)
    try:
        statuses = {part: runner.part(part, limits[part]) for part in LIMITS_S if part in parts}
    finally:
        shutil.rmtree(runner.work, ignore_errors=True)
    not_run = [part for part, status in statuses.items() if status == "not run"]
    if not_run:
        print(f"not run: {', '.join(not_run)}: confirms nothing about that")
    if not runner.gpu:
        print("emulation, no GPU: confirms nothing about a device")
    if not set(statuses.values()) <= {"passed", "not run"}:
        sys.exit(1)
    sys.exit(UNCONFIRMED if not_run or not (runner.gpu or arguments.emulated) else 0)


if __name__ == "__main__":
    main()
