"""Parts that run the engine: as threads of one program, and the worker itself."""

import json
import re
import shutil
import signal
import sys
import tempfile

import cases
from runner import BUNDLE, NotRun, Runner, json_lines


def are_near(losses, others):
    """Written so that NaN is a difference."""
    return len(losses) == len(others) and all(abs(a - b) <= cases.SMALL_LOSSES_DIFFER_MAX for a, b in zip(losses, others))


def without_grain(arguments):
    """Of Fast numerics."""
    at = arguments.index("--grain") if "--grain" in arguments else len(arguments)
    return [*arguments[:at], *arguments[at + 2:]]


class EngineParts(Runner):
    def engine(self):
        """The engine itself, with its ranks on one GPU: one state for all layouts, losses near it with Fast numerics, time of a step"""
        result, wrong = {}, []
        for model, arguments in self.shapes(cases.ENGINES, cases.SMALL_ENGINES).items():
            layouts = result[model] = {}
            for layout, more in self.shapes(cases.LAYOUTS, cases.SMALL_LAYOUTS).items():
                status, text = self.call([self.programs / cases.ENGINE, *arguments, *more], f"{model} {layout}", limit=30)
                found = json_lines(text)
                layouts[layout] = found[-1] if status == 0 and found else self.failure(status, text)
                self.say(model=model, layout=layout, **layouts[layout])
                if "error" in layouts[layout]:
                    wrong.append(f"{model}, {layout}")
                elif layouts[layout]["hash"] != layouts["1 rank"].get("hash"):
                    wrong.append(f"{model}, {layout}: another state than that of one rank")
            losses = layouts["1 rank"].get("losses", [])
            if model in cases.FAST_ENGINES:
                found = layouts[cases.FAST] = self.engine_says(f"{model} {cases.FAST}", *without_grain(arguments), "--fast", limit=30)
                self.say(model=model, layout=cases.FAST, **found)
                if "error" in found or not are_near(losses, found["losses"]):
                    wrong.append(f"{model}, {cases.FAST}: " + ("no run" if "error" in found else
                                                               f"losses {found['losses']} differ from canonical ones, {losses}"))
            if losses and not losses[-1] < losses[0]:
                wrong.append(f"{model}: the loss does not fall")
            if self.gpu and model in cases.SMALL_ENGINES and losses:
                status, text = self.call([BUNDLE / "emulated" / cases.ENGINE, *arguments], f"{model} emulated", limit=30)
                there = json_lines(text)[-1]["losses"] if status == 0 and json_lines(text) else []
                if not are_near(losses, there):
                    wrong.append(f"{model}: losses {losses} differ from the emulation's {there}")
        return not wrong, {"wrong": wrong, "models": result}

    def worker_config(self, name, **parallelism):
        """An engine configuration as trainyard-agent writes it, in a file."""
        model, batch, steps, _ = cases.WORKER if self.gpu else cases.SMALL_WORKER
        config = {"device": "Cuda", "model": {"family": "GPT2", **model}, "batch": batch, "steps": steps,
                  "data": {"tokens": [str(self.work / "tokens")], "sequenceLength": model["maxPositions"]},
                  "numerics": {"grainSequences": batch["microSequences"]}}
        if parallelism:
            config["parallelism"] = {"mode": "Distributed", **{key: value for key, value in parallelism.items() if key != "transport"}}
        if "transport" in parallelism:
            config["runtime"] = {"transport": parallelism["transport"]}
        path = self.work / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}.json"
        path.write_text(json.dumps(config))
        return path

    def worker_tokens(self):
        model, _, _, count = cases.WORKER if self.gpu else cases.SMALL_WORKER
        if (self.work / "tokens").exists():
            return None
        status, text = self.call([self.programs / cases.TRAIN, "--write-tokens", self.work / "tokens", "--vocab", str(model["vocab"]),
                                  "--count", str(count)], "tokens")
        return None if status == 0 else self.failure(status, text)

    def state_of(self, name, command, **environment):
        """The state that a run ends in, or why there is none."""
        status, text = self.call(command, name, limit=30 if self.gpu else None, **environment)
        found = [line for line in json_lines(text) if "state_hash" in line]
        return {key: found[-1][key] for key in ("state_hash", "loss") if key in found[-1]} if status == 0 and found else (
            self.failure(status, text))

    def worker_states(self, runs):
        """Runs by name, each a command and its environment: all have to end in the state of the first."""
        result, wrong = {}, []
        for name, (command, environment) in runs.items():
            result[name] = found = self.state_of(name, command, **environment)
            self.say(run=name, **found)
            first = next(iter(result.values()))
            if "error" in found:
                wrong.append(name)
            elif found["state_hash"] != first.get("state_hash"):
                wrong.append(f"{name}: another state than that of {next(iter(result))}")
        return not wrong, {"wrong": wrong, "runs": result}

    def worker(self):
        """trainyard-worker itself on one rank, and its train loop with ranks as threads of one GPU: one state for all layouts"""
        if error := self.worker_tokens():
            return False, {"wrong": ["tokens"], "tokens": error}
        alone = {"TRAINYARD_ENGINE_CONFIG": str(self.worker_config("alone"))}
        runs = {"trainyard-worker": ([self.programs / cases.WORKER_PROGRAM], alone)}
        for name, (ranks, zero) in cases.WORKER_LAYOUTS.items():
            config = self.worker_config(name, zeroStage=zero)
            runs[name] = ([self.programs / cases.TRAIN, "--config", config, "--ranks", str(ranks)], {})
        return self.worker_states(runs)

    def nccl(self):
        """The worker's train loop with two ranks on one GPU, which exchange by NCCL: the state of ranks that use host memory"""
        if self.gpu:
            status, text = self.call([sys.executable, "-c", cases.NCCL_VERSION], "version")
            if status is None:
                return False, {"wrong": ["NCCL's version"], **self.failure(status, text)}
            found = text.strip() if status == 0 else "0"
            if not found.isdigit() or int(found) < cases.NCCL_TWO_RANKS_VERSION:
                raise NotRun("two ranks on one GPU need libnccl.so.2 of 2.30 or newer, which this bundle does not carry and NVIDIA's wheel "
                             f"nvidia-nccl-cu13 has; put it into {BUNDLE / 'lib'}; found version {found}")
        if error := self.worker_tokens():
            return False, {"wrong": ["tokens"], "tokens": error}
        command = [self.programs / cases.TRAIN, "--ranks", "2", "--config"]
        return self.worker_states({
            "host memory": ([*command, self.worker_config("host", zeroStage=3)], {}),
            "NCCL": ([*command, self.worker_config("nccl", zeroStage=3, transport="Nccl")], {"NCCL_MULTI_RANK_GPU_ENABLE": "1"})})

    def resume(self):
        """A run that SIGKILL ends in the middle of a step, resumed from its checkpoint: the state of a run that was not killed"""
        arguments, saved = (cases.RESUMED, cases.SAVED_AFTER) if self.gpu else (cases.SMALL_RESUMED, cases.SMALL_SAVED_AFTER)
        whole = self.engine_says("whole", *arguments)
        if "error" in whole:
            return False, {"wrong": ["a run that is not killed"], "whole": whole}
        result, wrong = {}, []
        for name, (before, after) in self.shapes(cases.RESUMES, cases.SMALL_RESUMES).items():
            folder = tempfile.mkdtemp(dir=self.work)
            begun = lambda text: any(line.get("done", 0) > saved for line in json_lines(text))  # noqa: E731
            status, text = self.call([self.programs / cases.ENGINE, *arguments, *before, "--checkpoints", folder, "--save-after", str(saved),
                                      "--until-killed"], f"{name} killed", until_says=begun)
            if status != -signal.SIGKILL:
                found = self.failure(status, text)
            else:
                found = self.engine_says(f"{name} resumed", *arguments, *after, "--checkpoints", folder)
            shutil.rmtree(folder, ignore_errors=True)
            result[name] = found = {key: found[key] for key in ("hash", "resumed_from", "error") if key in found}
            self.say(layout=name, expected_hash=whole["hash"], **found)
            if "error" in found:
                wrong.append(name)
            elif found["resumed_from"] != saved:
                wrong.append(f"{name}: resumed from step {found['resumed_from']}, and {saved} was saved")
            elif found["hash"] != whole["hash"]:
                wrong.append(f"{name}: another state than that of a run that was not killed")
        return not wrong, {"wrong": wrong, "expected_hash": whole["hash"], "layouts": result}

    def speed(self):
        """Tokens/s of the engine: at least half of what tools/gpu_budget predicts for an H200"""
        result, wrong = {}, []
        budget = json.loads((BUNDLE / "budget.json").read_text())
        for model, arguments in self.shapes(cases.SPEEDS, cases.SMALL_SPEEDS).items():
            found = self.engine_says(model, *arguments, "--no-hash")
            keys = ("tokens_s", "step_ms", "planned_gpu_bytes", "taken_gpu_bytes", "own_attention", "losses", "error")
            result[model] = found = {key: found[key] for key in keys if key in found}
            if "of GPU memory" in found.get("error", ""):
                found["not_run"] = found.pop("error")  # a smaller card is no fault
            elif "error" in found:
                wrong.append(model)
            elif self.gpu and model not in budget:
                wrong.append(f"{model}: budget.json has no prediction")
            elif model in budget:
                found["predicted_tokens_s"] = round(budget[model])
                found["of_predicted"] = round(found["tokens_s"] / budget[model], 3)
                if not found["of_predicted"] >= cases.SPEED_FLOOR:
                    wrong.append(f"{model}: {found['of_predicted']} of the predicted tokens/s, less than {cases.SPEED_FLOOR}")
            self.say(model=model, **found)
        if all("not_run" in found for found in result.values()):
            raise NotRun("no model fits this card's memory")
        return not wrong, {"wrong": wrong, "floor": cases.SPEED_FLOOR, "models": result}

    def losses(self):
        """Losses of the engine and of PyTorch from the same weights and batches"""
        arguments, start = cases.LOSSES if self.gpu else cases.SMALL_LOSSES, self.work / "start.safetensors"
        status, text = self.call([sys.executable, "-c", "import torch"], "torch", plain=True)
        if status is None:
            return False, {"wrong": ["import torch"], **self.failure(status, text)}
        if status != 0:
            raise NotRun(f"needs PyTorch: {text.strip()[-200:]}")
        ours = self.engine_says("engine", *arguments, "--export", start, "--no-hash")
        if "error" in ours:
            return False, {"wrong": ["engine"], "engine": ours}
        recipe = self.work / "recipe.json"
        recipe.write_text(json.dumps(ours))
        given = dict(zip(arguments[::2], arguments[1::2]))
        of_model = [x for name in ("--layers", "--width", "--heads", "--vocab", "--sequence", "--global") if name in given
                    for x in (name, given[name])]
        status, text = self.call([sys.executable, BUNDLE / "peers.py", "--train", start, "--recipe", recipe, *of_model], "peer", plain=True)
        found = json_lines(text)
        if status != 0 or not found:
            return False, {"wrong": ["PyTorch"], "torch": self.failure(status, text)}
        pairs = list(zip(ours["losses"], found[-1]["losses"]))
        apart = [abs(a - b) for a, b in pairs]
        # Written so that NaN is a difference.
        passed = len(ours["losses"]) == len(found[-1]["losses"]) and bool(apart) and all(x <= cases.LOSSES_DIFFER_MAX for x in apart)
        result = {"steps": len(pairs), "largest_difference": max(apart, default=None), "bound": cases.LOSSES_DIFFER_MAX}
        self.say(**result, engine=ours["losses"], torch=found[-1]["losses"])
        return passed, {**result, "engine": ours["losses"], "torch": found[-1]}
