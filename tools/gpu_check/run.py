#!/usr/bin/env python3
"""What run.sh does. A bundle has bin/ (programs for the device), emulated/ (the same over the emulation), expected.record
(results that the emulation computed) and peers.py.

The status is 0 when a device was confirmed, 1 when a part failed or ran out of time, and 3 when nothing failed but a part was not
run, or there is no GPU and the emulation ran in its place. --emulated asks for the emulation, whose success is then 0.
"""

import argparse
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

BUNDLE = pathlib.Path(__file__).resolve().parent
LIMITS_S = {"a": 60, "b": 120, "c": 120, "d": 60}
# Results of these tests have the emulation's bits on every device: no special function is in them.
EXACT = re.compile(r"CudaOptimizerTest|CudaNormTest|CudaElementwiseTest\.(Dropout|Embedding|BiasSums)|CudaSemanticsTest")
SMALL = ["--tokens", "64", "--width", "128", "--heads", "2", "--vocab", "256", "--sequence", "32", "--runs", "1"]
SHAPES = {"GPT-2 124M": ["--tokens", "65536", "--width", "768", "--heads", "12"],
          "GPT-2 1558M": ["--tokens", "16384", "--width", "1600", "--heads", "25"]}
SMALL_STEP = ["--layers", "1", "--width", "64", "--heads", "1", "--vocab", "64", "--sequence", "16", "--samples", "1", "--runs", "1"]
TEST, LADDER, STEP = "kernels_cuda_test", "gpu_kernel_ladder", "gpu_gpt2_step"


# Losses of the small step on the device and over the emulation: first and last. Both compute in bf16 and differ by rounding,
# which four steps of a large learning rate amplify.
LOSS_DIFFERENCES_MAX = {"first_loss": 0.02, "last_loss": 0.1}
UNCONFIRMED = 3


class NotRun(Exception):
    """What a part needs and this machine lacks."""


def environment():
    """Where CUDA's libraries are on such machines."""
    folders = [*glob.glob("/usr/local/lib/python3*/*-packages/nvidia/*/lib"), "/usr/local/nvidia/lib64",
               "/usr/local/cuda/lib64"]
    found = [folder for folder in folders if os.path.isdir(folder)]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join([*found, os.environ.get("LD_LIBRARY_PATH", "")])}


def has_gpu():
    return any(re.fullmatch(r"nvidia\d+", name) for name in os.listdir("/dev"))


class Runner:
    def __init__(self, out, emulated):
        self.out, self.gpu = out, has_gpu() and not emulated
        self.programs = BUNDLE / ("bin" if self.gpu else "emulated")
        self.deadline = 0.0

    def call(self, command, log, **environment_of_it):
        """Output of a command, which dies with its children at the part's deadline."""
        with open(self.out / log, "w+") as text:
            process = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**environment(), **environment_of_it})
            try:
                status = process.wait(timeout=max(self.deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            text.seek(0)
            return status, text.read()

    def a(self):
        """The tests that CI runs on the CPU; results that must have the emulation's bits are compared."""
        record = self.out / "device.record"
        record.unlink(missing_ok=True)
        status, text = self.call([self.programs / TEST], "a.log", TRAINYARD_CUDA_RECORD=str(record))
        read = lambda path: dict(line.rsplit(" ", 1) for line in path.read_text().splitlines())  # noqa: E731
        actual, expected = read(record), read(BUNDLE / "expected.record")
        common = actual.keys() & expected.keys()
        differing = sorted({key.split()[0] for key in common if actual[key] != expected[key]})
        wrong = [name for name in differing if EXACT.match(name)]
        lost = sorted({key.split()[0] for key in expected.keys() - actual.keys() if EXACT.match(key)})
        failed = re.findall(r"\[  FAILED  \] ([\w./]+)", text)
        return (status == 0 and not wrong and not lost and bool(common),
                {"failed": sorted(set(failed)), "results_compared": len(common), "differ_by_rounding": differing,
                 "differ_and_must_not": wrong, "missing": lost})

    def b(self):
        """Each kernel beside the device's copy, and PyTorch's own operation in the same run."""
        result = {}
        for shape, arguments in (SHAPES.items() if self.gpu else {"tiny": SMALL}.items()):
            status, text = self.call([self.programs / LADDER, *arguments], f"b.{shape.replace(' ', '_')}.log")
            if status != 0:
                return False, {"failed": shape, "output": text[-2000:]}
            kernels = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            copy = kernels[0]["gb_s"]
            for kernel in kernels:
                kernel["of_copy"] = round(kernel["gb_s"] / copy, 3) if kernel["gb_s"] else None
            result[shape] = {"ours": kernels}
            if self.gpu:
                status, text = self.call([sys.executable, BUNDLE / "peers.py", *arguments],
                                         f"b.{shape.replace(' ', '_')}.peers.log")
                result[shape]["torch"] = ([json.loads(line) for line in text.splitlines() if line.startswith("{")]
                                          if status == 0 else f"not run: {text[-300:]}")
        return True, result

    def small_losses_differ(self):
        """What of the losses of the same few steps of a small model differs between device and emulation."""
        losses = {}
        for folder in ("bin", "emulated"):
            status, text = self.call([BUNDLE / folder / STEP, *SMALL_STEP], f"c.{folder}.small.log")
            if status != 0:
                return {folder: text[-2000:]}
            losses[folder] = json.loads(text.splitlines()[-1])
        return {name: [losses["bin"][name], losses["emulated"][name]] for name, most in LOSS_DIFFERENCES_MAX.items()
                if not abs(losses["bin"][name] - losses["emulated"][name]) <= most}

    def c(self):
        """A block and a whole step of GPT-2 124M; tokens/s beside PyTorch compiled, with cuDNN attention."""
        status, text = self.call([self.programs / STEP, *([] if self.gpu else SMALL_STEP)], "c.log")
        if status != 0:
            return False, {"output": text[-2000:]}
        ours = json.loads(text.splitlines()[-1])
        result = {"ours": ours}
        if self.gpu:
            result["losses_that_differ"] = self.small_losses_differ()
            status, text = self.call([sys.executable, BUNDLE / "peers.py", "--step"], "c.peers.log")
            lines = [line for line in text.splitlines() if line.startswith("{")]
            result["torch"] = json.loads(lines[-1]) if status == 0 and lines else f"not run: {text[-300:]}"
        return ours["last_loss"] < ours["first_loss"] and not result.get("losses_that_differ"), result

    def d(self):
        """compute-sanitizer's memcheck and racecheck over the tests' tiny sizes."""
        tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
        if not self.gpu:
            raise NotRun("needs a GPU")
        if tool is None:
            raise NotRun("needs compute-sanitizer, of the CUDA toolkit")
        result = {}
        for check in ("memcheck", "racecheck"):
            command = [tool, "--tool", check, "--error-exitcode", "9", self.programs / TEST]
            status, text = self.call(command, f"d.{check}.log")
            if "Unable to find injection" in text or "not supported" in text.lower() or "Failed to" in text:
                raise NotRun(f"compute-sanitizer does not run here: {text.strip()[-300:]}")
            result[check] = "passed" if status == 0 else text[-1000:]
        return all(value == "passed" for value in result.values()), result

    def part(self, name, limit):
        started = time.monotonic()
        self.deadline = started + limit
        try:
            passed, details = getattr(self, name)()
            report = {"status": "passed" if passed else "failed", **details}
        except NotRun as reason:
            report = {"status": "not run", "reason": str(reason)}
        except subprocess.TimeoutExpired:
            report = {"status": "timed out", "limit_s": limit}
        except (OSError, ValueError, LookupError) as error:
            report = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
        report = {"part": name, "device": "gpu" if self.gpu else "emulation",
                  "seconds": round(time.monotonic() - started, 1), **report}
        (self.out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
        print(f"part {name}: {report['status']} in {report['seconds']} s "
              f"({getattr(self, name).__doc__.split(';')[0].splitlines()[0].rstrip('.')}) -> {self.out / name}.json", flush=True)
        return report["status"]


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description="Confirms and measures the CUDA kernels.")
    parser.add_argument("--parts", default=",".join(LIMITS_S), help="which, of a,b,c,d (default: all)")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for reports")
    parser.add_argument("--limit", action="append", default=[], metavar="PART=SECONDS", help="instead of its own limit")
    parser.add_argument("--emulated", action="store_true", help="run the emulation, which confirms nothing about a device")
    arguments = parser.parse_args()
    limits = dict(LIMITS_S)
    try:
        limits |= {part: float(seconds) for part, seconds in (limit.split("=") for limit in arguments.limit)}
        parts = arguments.parts.split(",")
        unknown = sorted({*parts, *limits} - LIMITS_S.keys())
    except ValueError:
        parser.error(f"--limit {' '.join(arguments.limit)}: wanted PART=SECONDS")
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(LIMITS_S)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(arguments.out.resolve(), arguments.emulated)
    statuses = {part: runner.part(part, limits[part]) for part in LIMITS_S if part in parts}
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
