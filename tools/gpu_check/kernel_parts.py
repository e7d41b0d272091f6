"""Parts that run kernels, products and steps of gpt2_step, and PyTorch's beside them."""

import json
import os
import re
import shutil
import sys
import time

import cases
from runner import BUNDLE, NotRun, Runner, json_lines


class KernelParts(Runner):
    def products(self):
        """cuBLASLt's products against the chain that canonical numerics means; the price of split-K 1"""
        wrong, lines = 0, []
        shapes = self.shapes(cases.PRODUCT_SHAPES, cases.SMALL_PRODUCTS)
        forms = self.shapes(cases.FORMS, cases.SMALL_PRODUCTS["tiny"])
        for what, shape, arguments in [("forms", "", forms), *(("plans", *item) for item in shapes.items())]:
            status, text = self.call([self.programs / cases.PRODUCTS, "--what", what, *arguments], f"{what} {shape}")
            found = json_lines(text)
            wrong += status != 0
            for line in [*found, *([] if status == 0 else [self.failure(status, text)])]:
                self.say(shape=shape, **line)
                lines.append({"shape": shape, **line})
        return wrong == 0, {"results": lines}

    def tests(self):
        """The tests that CI runs on the CPU; results that must have the emulation's bits are compared"""
        record = self.logs / "device.record"
        program, failed = self.programs / cases.TEST, []
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
        wrong = [name for name in differing if cases.EXACT.search(name)]
        lost = sorted({key.split()[0] for key in expected.keys() - actual.keys() if cases.EXACT.search(key)})
        return (bool(suites) and not failed and not wrong and not lost and bool(common),
                {"suites": len(suites), "failed": sorted(set(failed)), "results_compared": len(common),
                 "differ_by_rounding": differing, "differ_and_must_not": wrong, "missing": lost})

    def small_losses_differ(self):
        """What of the losses of the same few steps of a small model differs between device and emulation."""
        losses = {}
        for folder in ("bin", "emulated"):
            status, text = self.call([BUNDLE / folder / cases.STEP, *cases.SMALL_STEP], f"small {folder}", limit=30)
            if status != 0 or not json_lines(text):
                return {folder: self.failure(status, text)}
            losses[folder] = json_lines(text)[-1]["losses"]
        apart = [[a, b] for a, b in zip(losses["bin"], losses["emulated"]) if not abs(a - b) <= cases.SMALL_LOSSES_DIFFER_MAX]
        return {"losses": apart} if apart or len(losses["bin"]) != len(losses["emulated"]) else {}

    def step(self):
        """Steps of GPT-2 chained from the launchers: time of each operation, exact sums, a graph"""
        result, wrong = {}, []
        for name, arguments in self.shapes(cases.STEPS, cases.SMALL_STEPS).items():
            small = [] if self.gpu else cases.SMALL_STEP
            more = ["--export", str(self.weights)] if name == "fast" and self.gpu else []
            status, text = self.call([self.programs / cases.STEP, *small, *arguments, *more], name, limit=60)
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
        against = {form: self.against_floors(result.get(form, {}), model)
                   for form, model in (("fast", "GPT-2 124M"), ("1558M fast", "GPT-2 1558M"))}
        return not wrong, {"wrong": wrong, "forms": result, "against_floors": against}

    def against_floors(self, step, model):
        """Of each operation of a step: milliseconds, and what it cannot be faster than on an H200."""
        floors = json.loads((BUNDLE / "floors.json").read_text())[model] if self.gpu else {}
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
                if not theirs["losses_apart"] <= cases.LOSSES_DIFFER_MAX or not theirs["norm_apart"] <= cases.NORMS_DIFFER_MAX:
                    wrong.append(f"{name}: losses or norms differ from PyTorch's")
        return not wrong, {"wrong": wrong, "models": result}

    def ladder(self):
        """Each kernel beside the device's copy"""
        result, wrong = {}, []
        for shape, arguments in self.shapes(cases.SHAPES, cases.SMALL_SHAPES).items():
            done, kernels = [], []
            while True:
                status, text = self.call([self.programs / cases.LADDER, *arguments, "--skip", ",".join(done)],
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
        command = [self.tool("ncu"), "--csv", "--clock-control", "none", "--metrics", ",".join(cases.COUNTERS), "--kernel-name",
                   f"regex:{cases.KERNELS_COUNTED}", self.programs / cases.LADDER, *cases.SHAPES["GPT-2 124M"], "--runs", "1", "--skip",
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
            status, text = self.call([sys.executable, BUNDLE / "peers.py", *cases.SHAPES[shape]], shape, plain=True)
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
                       self.programs / cases.TEST]
            status, text = self.call(command, check)
            if "Unable to find injection" in text or "not supported" in text.lower():
                raise NotRun(f"compute-sanitizer does not run here: {text.strip()[-300:]}")
            result[check] = "passed" if status == 0 else self.failure(status, text)
        return all(value == "passed" for value in result.values()), result
