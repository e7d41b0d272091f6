#!/usr/bin/env python3
"""What run.sh does. A bundle has bin/ (programs for the device), emulated/ (the same over the emulation), expected.record
(results that the emulation computed), floors.json (what operations cannot be faster than) and peers.py.

Each part is made of processes of their own: one that fails, hangs or loses the device stops no other. --out gets results.jsonl
(a line as soon as it is known), report.json and logs.tar.gz, both made anew after each part.

The status is 0 when a device was confirmed, 1 when a part failed or ran out of time, and 3 when nothing failed but a part was not
run, or there is no GPU and the emulation ran in its place. --emulated asks for the emulation, whose success is then 0.
"""

import argparse
import ctypes
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import tempfile
import time

BUNDLE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 400
# The parts in the order that teaches most, with their limits in seconds.
LIMITS_S = {"identity": 20, "products": 60, "tests": 45, "step": 90, "torch": 110, "ladder": 40, "counters": 45, "operations": 40,
            "sanitizer": 40}
# Results of these tests have the emulation's bits on every device: no special function is in them.
EXACT = re.compile(r"CudaOptimizerTest|CudaNormTest|CudaElementwiseTest\.(Dropout|Embedding|BiasSums)|CudaSemanticsTest")
TEST, LADDER, STEP, PRODUCTS = "kernels_cuda_test", "gpu_kernel_ladder", "gpu_gpt2_step", "gpu_products"

SHAPES = {"GPT-2 124M": ["--tokens", "65536", "--width", "768", "--heads", "12"],
          "GPT-2 1558M": ["--tokens", "16384", "--width", "1600", "--heads", "25"],
          "Qwen2.5-1.5B": ["--tokens", "16384", "--width", "1536", "--heads", "12", "--kv-heads", "2", "--vocab", "151936"]}
SMALL_SHAPES = {"tiny": ["--tokens", "64", "--width", "128", "--heads", "2", "--vocab", "256", "--sequence", "32", "--runs", "1"]}
PRODUCT_SHAPES = {"GPT-2 124M": ["--tokens", "65536", "--width", "768", "--wide", "3072", "--vocab", "50304"],
                  "GPT-2 1558M": ["--tokens", "16384", "--width", "1600", "--wide", "6400", "--vocab", "50304"],
                  "Qwen2.5-1.5B": ["--tokens", "16384", "--width", "1536", "--wide", "8960", "--vocab", "151936"]}
SMALL_PRODUCTS = {"tiny": ["--tokens", "64", "--width", "32", "--wide", "64", "--vocab", "64", "--runs", "1"]}
FORMS = ["--tokens", "512", "--width", "1024", "--wide", "768"]
XL = ["--layers", "48", "--width", "1600", "--heads", "25", "--samples", "16", "--classifier-chunks", "1"]
STEPS = {"fast": ["--split-k", "--profile"], "fast, split-K 1": [], "canonical": ["--canonical", "--profile", "--hash"],
         "canonical, graph": ["--canonical", "--graph"], "canonical, 4 micro-batches": [
             "--canonical", "--samples", "16", "--micro-batches", "4", "--runs", "5", "--hash"],
         "own attention": ["--split-k", "--own-attention", "--runs", "5"],
         "1558M fast": [*XL, "--split-k", "--profile", "--runs", "5"], "1558M canonical": [*XL, "--canonical", "--runs", "5"]}
SMALL_STEP = ["--layers", "1", "--width", "64", "--heads", "1", "--vocab", "64", "--sequence", "16", "--samples", "1", "--runs", "1",
              "--classifier-chunks", "2", "--losses", "4"]
SMALL_STEPS = {"fast": ["--split-k", "--profile"], "canonical": ["--canonical", "--micro-batches", "2", "--hash"],
               "canonical, graph": ["--canonical", "--graph", "--micro-batches", "2"]}
KERNELS_COUNTED = "gelu|cross_entropy|norm|embedding_backward|token_sums|squares|attention"
COUNTERS = ["gpu__time_duration.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "smsp__issue_active.avg.pct_of_peak_sustained_active", "sm__warps_active.avg.pct_of_peak_sustained_active",
            "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"]
# Losses of a few steps of a small model on the device and over the emulation. Both compute in bf16 and differ by rounding.
SMALL_LOSSES_DIFFER_MAX = 0.02
# Beside PyTorch in bf16, from the same weights.
LOSSES_DIFFER_MAX, NORMS_DIFFER_MAX = 0.02, 0.01
UNCONFIRMED = 3


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
    def __init__(self, out, emulated, deadline_s=DEADLINE_S):
        self.out, self.gpu = out, has_gpu() and not emulated
        self.programs = BUNDLE / ("bin" if self.gpu else "emulated")
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.logs, self.weights = self.work / "logs", self.work / "gpt2.weights"
        self.logs.mkdir()
        self.end = time.monotonic() + deadline_s
        self.deadline = self.end
        self.name, self.reports = "", {}

    def call(self, command, log, plain=False, limit=None, **environment_of_it):
        """Status and output of a command, which dies with its children at the part's deadline, or at its own: status None then."""
        path = self.logs / f"{self.name}.{re.sub(r'[^A-Za-z0-9]+', '_', log)}.log"
        until = min(self.deadline, time.monotonic() + (limit or 1e9))
        with open(path, "w+") as text:
            process = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**(os.environ if plain else environment()), **environment_of_it})
            try:
                status = process.wait(timeout=max(until - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                status = None
            try:  # what it has left behind
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
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

    def products(self):
        """cuBLASLt's products against the chain that canonical numerics means; the price of split-K 1"""
        wrong, lines = 0, []
        shapes = self.shapes(PRODUCT_SHAPES, SMALL_PRODUCTS)
        forms = self.shapes(FORMS, SMALL_PRODUCTS["tiny"])
        for what, shape, arguments in [("forms", "", forms), *(("plans", *item) for item in shapes.items())]:
            status, text = self.call([self.programs / PRODUCTS, "--what", what, *arguments], f"{what} {shape}")
            found = json_lines(text)
            wrong += status != 0
            for line in [*found, *([] if status == 0 else [self.failure(status, text)])]:
                self.say(shape=shape, **line)
                lines.append({"shape": shape, **line})
        return wrong == 0, {"results": lines}

    def tests(self):
        """The tests that CI runs on the CPU; results that must have the emulation's bits are compared"""
        record = self.logs / "device.record"
        program, failed = self.programs / TEST, []
        status, text = self.call([program, "--gtest_list_tests"], "list")
        suites = re.findall(r"^(\S+)\.(?:\s.*)?$", text, re.M) if status == 0 else []
        for suite in suites:
            again = {"TRAINYARD_CUDA_RECORD": str(record)}
            status, text = self.call([program, f"--gtest_filter={suite}.*"], suite, limit=15 if self.gpu else 60, **again)
            if status == 0:
                continue
            ran = re.findall(r"\[ RUN      \] (\S+)", text)
            alone = [name for name in ran if self.call([program, f"--gtest_filter={name}"], name, limit=10)[0] != 0]
            failed += alone or [f"{suite}.*"]
            self.say(suite=suite, failed=alone, **self.failure(status, text))
        read = lambda path: dict(line.rsplit(" ", 1) for line in path.read_text().splitlines())  # noqa: E731
        actual, expected = read(record) if record.exists() else {}, read(BUNDLE / "expected.record")
        common = actual.keys() & expected.keys()
        differing = sorted({key.split()[0] for key in common if actual[key] != expected[key]})
        wrong = [name for name in differing if EXACT.search(name)]
        lost = sorted({key.split()[0] for key in expected.keys() - actual.keys() if EXACT.search(key)})
        return (bool(suites) and not failed and not wrong and not lost and bool(common),
                {"suites": len(suites), "failed": sorted(set(failed)), "results_compared": len(common),
                 "differ_by_rounding": differing, "differ_and_must_not": wrong, "missing": lost})

    def small_losses_differ(self):
        """What of the losses of the same few steps of a small model differs between device and emulation."""
        losses = {}
        for folder in ("bin", "emulated"):
            status, text = self.call([BUNDLE / folder / STEP, *SMALL_STEP], f"small {folder}", limit=30)
            if status != 0 or not json_lines(text):
                return {folder: self.failure(status, text)}
            losses[folder] = json_lines(text)[-1]["losses"]
        apart = [[a, b] for a, b in zip(losses["bin"], losses["emulated"]) if not abs(a - b) <= SMALL_LOSSES_DIFFER_MAX]
        return {"losses": apart} if apart or len(losses["bin"]) != len(losses["emulated"]) else {}

    def step(self):
        """Steps of GPT-2 chained from the launchers: time of each operation, exact sums, a graph"""
        result, wrong = {}, []
        for name, arguments in self.shapes(STEPS, SMALL_STEPS).items():
            small = [] if self.gpu else SMALL_STEP
            more = ["--export", str(self.weights)] if name == "fast" and self.gpu else []
            status, text = self.call([self.programs / STEP, *small, *arguments, *more], name, limit=60)
            found = json_lines(text)
            result[name] = found[-1] if status == 0 and found else self.failure(status, text)
            self.say(form=name, **result[name])
            if "error" in result[name]:
                wrong.append(name)
                continue
            ours = result[name]
            if not ours["losses"][-1] < ours["losses"][0]:
                wrong.append(f"{name}: the loss does not fall")
            if ours["canonical"] and not ours.get("same_in_reverse", True):
                wrong.append(f"{name}: the order of micro-batches changes exact sums")
        graph, plain = result.get("canonical, graph", {}), result.get("canonical", {})
        if "losses" in graph and "losses" in plain and graph["losses"] != plain["losses"]:
            wrong.append("a graph changes losses")
        if self.gpu and (apart := self.small_losses_differ()):
            wrong.append(f"a small model differs from the emulation: {apart}")
        return not wrong, {"wrong": wrong, "forms": result, "against_floors": self.against_floors(result.get("fast", {}))}

    def against_floors(self, step):
        """Of each operation of a step: milliseconds, and what it cannot be faster than on an H200."""
        floors = json.loads((BUNDLE / "floors.json").read_text())["GPT-2 124M"] if self.gpu else {}
        return {name: {"ms": spent["ms"], "floor_ms": round(floors[name] * spent["calls"] / 1000, 3),
                       "of_floor": round(floors[name] * spent["calls"] / 1000 / spent["ms"], 3) if spent["ms"] else None}
                for name, spent in step.get("operations", {}).items() if name in floors}

    def torch(self):
        """PyTorch's step, compiled, with cuDNN attention, from the same weights"""
        if not self.gpu:
            raise NotRun("needs a GPU")
        result, wrong = {}, []
        for name, form, arguments in (("124M", "fast", ["--weights", str(self.weights)] if self.weights.exists() else []),
                                      ("1558M", "1558M fast", ["--layers", "48", "--width", "1600", "--heads", "25", "--tokens", "16384",
                                                           "--by-block"])):
            status, text = self.call([sys.executable, BUNDLE / "peers.py", "--step", *arguments], name, plain=True)
            found = json_lines(text)
            result[name] = theirs = found[-1] if status == 0 and found else self.failure(status, text)
            self.say(model=name, **theirs)
            ours = self.reports.get("step", {}).get("forms", {}).get(form, {})
            if "error" in theirs:
                wrong.append(name)
            elif "tokens_s" in ours and "tokens_s" in theirs:
                theirs["ours_over_theirs"] = round(ours["tokens_s"] / theirs["tokens_s"], 3)
            if "--weights" in arguments and "losses" in theirs and "losses" in ours:
                theirs["losses_apart"] = max(abs(a - b) for a, b in zip(ours["losses"], theirs["losses"]))
                theirs["norm_apart"] = abs(theirs["norms"][0] / ours["norms"][0] - 1)
                if not theirs["losses_apart"] <= LOSSES_DIFFER_MAX or not theirs["norm_apart"] <= NORMS_DIFFER_MAX:
                    wrong.append(f"{name}: losses or norms differ from PyTorch's")
        return not wrong, {"wrong": wrong, "models": result}

    def ladder(self):
        """Each kernel beside the device's copy"""
        result, wrong = {}, []
        for shape, arguments in self.shapes(SHAPES, SMALL_SHAPES).items():
            done, kernels = [], []
            while True:
                status, text = self.call([self.programs / LADDER, *arguments, "--skip", ",".join(done)],
                                         f"{shape} {len(done)}", limit=30)
                found = json_lines(text)
                kernels += [line for line in found if "kernel" in line or "scratch_bytes" in line]
                begun = [line["begins"] for line in found if "begins" in line]
                if status == 0 or not begun or begun[-1] in done:
                    break
                if status is None or "error" not in found[-1]:
                    kernels.append({"kernel": begun[-1], **self.failure(status, text)})
                done += begun  # those that were measured, and the one that was not
                if time.monotonic() >= self.deadline:
                    break
            if status != 0 and not begun:
                kernels.append(self.failure(status, text))
            copy = next((kernel["gb_s"] for kernel in kernels if kernel.get("kernel") == "copy" and "gb_s" in kernel), None)
            for kernel in kernels:
                if copy and kernel.get("gb_s"):
                    kernel["of_copy"] = round(kernel["gb_s"] / copy, 3)
                self.say(shape=shape, **kernel)
            wrong += [f"{shape}: {kernel.get('kernel')}" for kernel in kernels if "error" in kernel]
            result[shape] = kernels
        return not wrong, {"wrong": wrong, "shapes": result}

    def tool(self, name, *where):
        found = shutil.which(name) or next((path for path in [f"/usr/local/cuda/bin/{name}", *where] if os.path.exists(path)), None)
        if not self.gpu:
            raise NotRun("needs a GPU")
        if found is None:
            raise NotRun(f"needs {name}, of the CUDA toolkit")
        return found

    def counters(self):
        """Counters of ncu: share of memory's bandwidth, issue slots, sectors per store request"""
        command = [self.tool("ncu"), "--csv", "--clock-control", "none", "--metrics", ",".join(COUNTERS), "--kernel-name",
                   f"regex:{KERNELS_COUNTED}", self.programs / LADDER, *SHAPES["GPT-2 124M"], "--runs", "1", "--skip",
                   "attention_fp32_forward,attention_fp32_backward"]
        status, text = self.call(command, "ncu")
        if "ERR_NVGPUCTRPERM" in text or "Failed to initialize" in text:
            raise NotRun(f"ncu does not run here: {text.strip()[-300:]}")
        rows = re.findall(r'^"\d+".*?"([^"]+)\(.*?"(\w+__[\w.]+)","([^"]*)","([^"]*)"$', text, re.M)
        kernels = {}
        for kernel, metric, unit, value in rows:
            kernels.setdefault(kernel.split("::")[-1], {})[metric] = f"{value} {unit}"
        for kernel, values in kernels.items():
            self.say(kernel=kernel, **values)
        return status == 0 and bool(kernels), {"kernels": kernels, **({} if status == 0 else self.failure(status, text))}

    def operations(self):
        """PyTorch's own operations at the ladder's shapes"""
        if not self.gpu:
            raise NotRun("needs a GPU")
        result = {}
        for shape in ("GPT-2 124M", "GPT-2 1558M"):
            status, text = self.call([sys.executable, BUNDLE / "peers.py", *SHAPES[shape]], shape, plain=True)
            result[shape] = json_lines(text)
            for line in result[shape]:
                self.say(shape=shape, **line)
            if status != 0:
                return False, {**result, **self.failure(status, text)}
        return True, result

    def sanitizer(self):
        """compute-sanitizer's memcheck and racecheck of own kernels over the tests' tiny sizes"""
        tool = self.tool("compute-sanitizer")
        result = {}
        for check in ("memcheck", "racecheck"):
            # Of a library's kernels racecheck reports hazards that its authors know better than we do.
            command = [tool, "--tool", check, "--error-exitcode", "9", "--kernel-regex-exclude", "kernel_substring=cudnn",
                       self.programs / TEST]
            status, text = self.call(command, check)
            if "Unable to find injection" in text or "not supported" in text.lower():
                raise NotRun(f"compute-sanitizer does not run here: {text.strip()[-300:]}")
            result[check] = "passed" if status == 0 else self.failure(status, text)
        return all(value == "passed" for value in result.values()), result

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


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description="Confirms and measures the CUDA kernels.")
    parser.add_argument("--parts", default=",".join(LIMITS_S), help=f"which, of {','.join(LIMITS_S)} (default: all)")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for reports")
    parser.add_argument("--limit", action="append", default=[], metavar="PART=SECONDS", help="instead of its own limit")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="of all parts (default: %(default)s)")
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
    (arguments.out / "results.jsonl").unlink(missing_ok=True)
    runner = Runner(arguments.out.resolve(), arguments.emulated, arguments.deadline)
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
