"""Processes, results and reports of run.py."""

import ctypes
import glob
import json
import os
import pathlib
import re
import signal
import site
import subprocess
import sys
import tarfile
import tempfile
import time

import cases

BUNDLE = pathlib.Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def die_with_parent():
    """In a new process: SIGKILL when the thread that started it ends, however that ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class NotRun(Exception):
    """What a part needs and this machine lacks."""


def library_folders():
    """Where CUDA's libraries may be: the wheels beside PyTorch first, whose versions its own figures are of."""
    wheels = [folder for base in site.getsitepackages() for folder in glob.glob(f"{base}/nvidia/*/lib")]
    return [folder for folder in [*wheels, "/usr/local/nvidia/lib64", "/usr/local/cuda/lib64"] if os.path.isdir(folder)]


def environment():
    folders = [BUNDLE / "lib", *library_folders(), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}


def has_gpu():
    return any(re.fullmatch(r"nvidia\d+", name) for name in os.listdir("/dev"))


def json_lines(text):
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:  # a line that was cut
                pass
    return found


class Runner:
    def __init__(self, out, emulated, deadline_s):
        self.out, self.gpu = out, has_gpu() and not emulated
        self.programs = BUNDLE / ("bin" if self.gpu else "emulated")
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.logs, self.weights = self.work / "logs", self.work / "gpt2.weights"
        self.logs.mkdir()
        self.end = time.monotonic() + deadline_s
        self.deadline = self.end
        self.name, self.reports = "", {}

    def call(self, command, log, plain=False, limit=None, until_says=None, **environment_of_it):
        """Status and output of a command, which dies with its children at the part's deadline, or at its own: status None then.
        SIGKILL ends it as well as soon as `until_says` of its output is true."""
        path = self.logs / f"{self.name}.{re.sub(r'[^A-Za-z0-9]+', '_', log)}.log"
        until = min(self.deadline, time.monotonic() + (limit or 1e9))
        with open(path, "w+") as text:
            process = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent,
                                       env={**(os.environ if plain else environment()), **environment_of_it})
            try:
                while until_says and process.poll() is None and time.monotonic() < until:
                    if until_says(path.read_text(errors="replace")):
                        process.kill()
                        break
                    time.sleep(0.01)
                status = process.wait(timeout=max(until - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                status = None
            finally:  # also where a signal ends this program
                try:  # what it has left behind
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                try:
                    process.wait(timeout=5)
                except subprocess.TimeoutExpired:  # it hangs in the driver: the next parts do not wait for it
                    status = None
        return status, path.read_text(errors="replace")

    def say(self, **fields):
        """A result, written at once: whatever happens later, it is there."""
        with open(self.out / "results.jsonl", "a") as file:
            file.write(json.dumps({"part": self.name, **fields}) + "\n")

    def failure(self, status, text):
        return {"error": f"ran out of time: {text[-200:]}" if status is None else f"status {status}: {text[-1000:]}"}

    def identity(self):
        """Card, clocks, driver, versions of libraries"""
        result = {"libraries": {}, "folders": library_folders()}
        if self.gpu:
            fields = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
            status, text = self.call(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], "smi")
            result["card"] = dict(zip(fields.split(","), (x.strip() for x in text.split(",")))) if status == 0 else text[-300:]
        for library, function in (("libcublasLt.so.13", "cublasLtGetVersion"), ("libcudnn.so.9", "cudnnGetVersion"),
                                  ("libnccl.so.2", None)):
            code = f"import ctypes; x = ctypes.CDLL('{library}')"
            code += f"; f = x.{function}; f.restype = ctypes.c_size_t; print(f())" if function else (
                "; v = ctypes.c_int(); x.ncclGetVersion(ctypes.byref(v)); print(v.value)")
            status, text = self.call([sys.executable, "-c", code], library)
            result["libraries"][library] = text.strip() if status == 0 else f"not here: {text.strip()[-200:]}"
        return True, result

    def shapes(self, large, small):
        return large if self.gpu else small

    def engine_says(self, what, *arguments, **how):
        """The last line of the engine's output, or why there is none."""
        status, text = self.call([self.programs / cases.ENGINE, *arguments], what, **how)
        found = json_lines(text)
        return found[-1] if status == 0 and found else self.failure(status, text)

    def part(self, name, limit):
        started = time.monotonic()
        self.name, self.deadline = name, min(started + limit, self.end)
        try:
            if started >= self.end:
                raise NotRun("no time was left")
            passed, details = getattr(self, name)()
            status = "passed" if passed else "timed out" if time.monotonic() >= self.deadline else "failed"
            report = {"status": status, **details}
        except NotRun as reason:
            report = {"status": "not run", "reason": str(reason)}
        except (OSError, ValueError, LookupError, TypeError) as error:
            report = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
        report = {"part": name, "device": "gpu" if self.gpu else "emulation",
                  "seconds": round(time.monotonic() - started, 1), **report}
        self.reports[name] = report
        self.keep()
        print(f"part {name}: {report['status']} in {report['seconds']} s "
              f"({getattr(self, name).__doc__.splitlines()[0]})", flush=True)
        return report["status"]

    def keep(self):
        """Writes report and archive anew; a full disk costs them alone."""
        try:
            text = json.dumps({"device": "gpu" if self.gpu else "emulation", "parts": self.reports}, indent=1)
            (self.out / "report.json.new").write_text(text + "\n")
            (self.out / "report.json.new").replace(self.out / "report.json")
            with tarfile.open(self.out / "logs.tar.gz", "w:gz") as archive:
                archive.add(self.logs, "logs")
        except OSError as error:
            print(f"the report could not be written: {error}", file=sys.stderr, flush=True)
