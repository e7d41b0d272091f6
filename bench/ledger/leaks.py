#!/usr/bin/env python3
"""What runs leave behind: processes, shared memory, sockets, folders.

    bench/ledger/leaks.py [--rounds 3]

Trains small jobs on three ranks with the `trainyard` on PATH: to their end, with a rank that is killed, stopped by an
interrupt, and with a launcher that is killed and can tidy nothing up itself. After each it counts what is still there.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import job

END_S = 60
PROGRAMS = {"trainyard", "trainyard-agent", "trainyard-worker"}


def processes(run_dir):
    """{process id: program} of what belongs to the run."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            program = os.readlink(entry / "exe").rsplit("/", 1)[-1].removesuffix(" (deleted)")
            words = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if program in PROGRAMS and str(run_dir).encode() in words:
                found[int(entry.name)] = program
        except OSError:
            continue  # it has just ended
    return found


def holders_of_shared_memory():
    """Processes, whatever they are, that have a part of a run's shared memory mapped."""
    found = set()
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if "memfd:trainyard" in (entry / "maps").read_text(encoding="utf-8", errors="replace"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def left(run_dir, known):
    """{kind: what is there now and was not in `known`}."""
    sockets = {line.split()[-1] for line in pathlib.Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
               if str(run_dir) in line}
    now = {
        "processes": set(processes(run_dir)),
        "shared memory": holders_of_shared_memory(),
        "sockets": sockets,
        "folders": {entry.name for entry in pathlib.Path(tempfile.gettempdir()).glob("trainyard*")},
    }
    return {kind: found - known.get(kind, set()) for kind, found in now.items()}


def settled(run_dir, known):
    """What is left once nothing more goes away."""
    deadline = time.monotonic() + END_S
    while any((found := left(run_dir, known)).values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def await_step(run_dir, process):
    deadline = time.monotonic() + END_S
    while process.poll() is None and time.monotonic() < deadline:
        if any(name == "trainyard_step" and value >= 3 for (name, _), value in job.scrape(run_dir).items()):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the run has not come to step 3 within {END_S} s")


def kill_a_rank(process, run_dir):
    worker = next(pid for pid, program in processes(run_dir).items() if program == "trainyard-worker")
    os.kill(worker, signal.SIGKILL)


STORIES = {
    "to its end": (None, 30, {0}),
    "a rank is killed": (kill_a_rank, 200, {0}),
    "interrupted": (lambda process, run_dir: process.send_signal(signal.SIGINT), 100000, {75}),
    "its launcher is killed": (lambda process, run_dir: process.kill(), 100000, {-signal.SIGKILL}),
}


def tell(work, tokens, name):
    """What the story has left; raises when it did not end as it should."""
    act, steps, statuses = STORIES[name]
    run_dir = work / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    known = left(run_dir, {})
    line = job.command(work, job.manifest(tokens, ranks=3, steps=steps, parallelism={"zeroStage": 1}))
    with open(work / "out.txt", "w", encoding="utf-8") as out:
        with subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT) as process:
            try:
                if act is not None:
                    await_step(run_dir, process)
                    act(process, run_dir)
                process.wait(job.LIMIT_S)
            except BaseException:
                process.terminate()
                raise
    if process.returncode not in statuses:
        raise RuntimeError(f"{name}: ended with {process.returncode}:\n{(work / 'out.txt').read_text()[-2000:]}")
    return settled(run_dir, known)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of every story (default 3)")
    options = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
        work = pathlib.Path(folder)
        tokens = job.prepare(work)
        print(f"{'RUN':<24}{'ROUNDS':>7}" + "".join(f"{kind:>15}" for kind in left(work / "run", {})) )
        for name in STORIES:
            counts = {}
            for _ in range(options.rounds):
                for kind, found in tell(work, tokens, name).items():
                    counts[kind] = counts.get(kind, 0) + len(found)
            faults += sum(counts.values())
            print(f"{name:<24}{options.rounds:>7}" + "".join(f"{count:>15}" for count in counts.values()), flush=True)
    print(f"measured: {faults} left over, expected: 0")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
