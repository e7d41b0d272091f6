"""Runs `trainyard run` and takes its times from the trace that the ranks leave, and its memory from /proc and /metrics."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

RUN_LIMIT_S = 600
POLL_S = 0.1
METRICS_EVERY_S = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


def manifest(model, tokens, validation=None, *, name, ranks, threads, sequences, length, steps, compute,
             checkpoint_every=0, zero_stage=1, shard=0, transport="Auto", micro_sequences=0, parallelism=None):
    """A TrainingJob as JSON, which is YAML too. `sequences`: of the global batch; `shard`: 0 for all ranks; `micro_sequences`: 0 for
    all of a rank; `parallelism`: in place of the fields for ZeRO."""
    data = {"tokens": [str(tokens)], "sequenceLength": length}
    if validation:
        data["validation"] = [str(validation)]
    return {
        "apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": {
            "numNodes": 1, "numProcPerNode": ranks,
            "engine": {
                "model": model, "data": data, "steps": steps,
                "batch": {"globalSequences": sequences, "microSequences": micro_sequences or sequences // ranks},
                "optimizer": {"learningRate": 3.0e-4, "gradientClip": 1.0},
                "precision": {"compute": compute},
                "parallelism": parallelism or {"zeroStage": zero_stage, "shard": shard},
                "runtime": {"threads": threads, "transport": transport},
            },
            "checkpointPolicy": {"everySteps": checkpoint_every,
                                 "storage": {"persistentVolumeClaim": {"claimName": "bench"}}},
        },
    }


def _used(run_dir):
    """{rank: (resident high-water mark, the same less the shared memory that is resident now, processor seconds so far)} of the
    run's ranks, in bytes."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "exe").rsplit("/", 1)[-1] != "trainyard-worker":
                continue
            environment = (entry / "environ").read_bytes().split(b"\0")
            if not any(str(run_dir).encode() in variable for variable in environment):
                continue
            rank = next(int(variable[5:]) for variable in environment if variable.startswith(b"RANK="))
            lines = (line.split() for line in (entry / "status").read_text(encoding="utf-8").splitlines())
            kib = {words[0]: int(words[1]) for words in lines if words and words[0] in ("VmHWM:", "RssShmem:")}
            times = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            found[rank] = (kib["VmHWM:"] * 1024, (kib["VmHWM:"] - kib["RssShmem:"]) * 1024,
                           (int(times[11]) + int(times[12])) / TICKS)
        except (OSError, ValueError, KeyError, StopIteration):
            continue  # it has just ended
    return found


def _planned(run_dir):
    """{rank: {purpose: bytes}} of what the engine says it holds, from the run's /metrics; empty until ranks have told it."""
    try:
        address = (run_dir / "metrics-address").read_text(encoding="utf-8").strip()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError):
        return {}  # not up yet, or just ended
    found = {}
    for labels, value in re.findall(r"^trainyard_rank_memory_bytes\{(.*?)\} (\S+)$", text, re.MULTILINE):
        label = dict(re.findall(r'(\w+)="(.*?)"', labels))
        found.setdefault(int(label["rank"]), {})[label["purpose"]] = float(value)
    return found


class Run:
    """One ended run: spans of rank 0 in seconds of CLOCK_MONOTONIC, memory by rank, and when it was started."""

    def __init__(self, run_dir, started, samples, planned, summary):
        self.started = started
        self.planned_bytes = planned
        self.summary = summary
        with open(run_dir / "trace.json", encoding="utf-8") as file:
            trace = json.load(file)
        self.ranks = trace["otherData"]["ranks"]
        self.spans = {}
        for event in trace["traceEvents"]:
            if event["ph"] != "X" or event["pid"] != 0:
                continue
            begin = event["ts"] * 1e-6
            self.spans.setdefault(event["cat"], []).append((begin, begin + event["dur"] * 1e-6,
                                                             event["args"] | {"name": event["name"]}))
        for spans in self.spans.values():
            spans.sort(key=lambda span: span[0])
        # The copy for the last checkpoint, which every run takes, is not part of training. Other ranks may make it before rank 0.
        copied = self.spans["step"][-1][0] if len(self.ranks) > 1 else self.spans.get("checkpoint_wait", [(float("inf"),)])[0][0]
        self.own_peak_bytes, self.peak_bytes = {}, None
        self.processor = [(at, used[0][2]) for at, used in samples if 0 in used]
        self.all_processors = [(at, sum(seconds for _, _, seconds in used.values())) for at, used in samples
                               if len(used) == len(self.ranks)]
        for at, used in samples:
            for rank, (peak, own, _) in used.items() if at < copied else ():
                self.own_peak_bytes[rank] = max(own, self.own_peak_bytes.get(rank, 0))
                self.peak_bytes = max(peak, self.peak_bytes or 0)

    def step_seconds(self, warm):
        return [end - begin for begin, end, _ in self.spans["step"][warm:]]

    def processor_seconds(self, warm, all_ranks=False):
        """Of rank 0 or of all ranks in a step, all threads: mean over the steps after `warm`, from the samples nearest to their
        begin and end."""
        begin, end = self.spans["step"][warm][0], self.spans["step"][-1][1]
        samples = self.all_processors if all_ranks else self.processor
        first, last = (min(samples, key=lambda sample: abs(sample[0] - at)) for at in (begin, end))
        return (last[1] - first[1]) * (end - begin) / (last[0] - first[0]) / len(self.spans["step"][warm:])

    def start_to_first_step(self):
        return self.spans["step"][0][1] - self.started


def _stop(process):
    """The second interrupt ends a run and all its ranks at once."""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(1)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()


def train(binaries, work, job, keep_steps, environment=None):
    """Trains `job` in a fresh folder below `work`, with `environment` over this process's own. Raises when the run does not
    complete."""
    run_dir = work / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    path = work / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    command = [str(binaries / "trainyard"), "run", str(path), "--run-dir", str(run_dir), "-o", "json",
               f"--trace={keep_steps}", "--metrics-address", "127.0.0.1:0"]
    started = asked = time.monotonic()
    samples, planned = [], {}
    with open(work / "out.jsonl", "w+", encoding="utf-8") as out, open(work / "err.txt", "w+", encoding="utf-8") as err:
        with subprocess.Popen(command, stdout=out, stderr=err, env=dict(os.environ, **(environment or {}))) as process:
            while process.poll() is None:
                samples.append((time.monotonic(), _used(run_dir)))
                if time.monotonic() - asked > METRICS_EVERY_S:
                    planned, asked = _planned(run_dir) or planned, time.monotonic()
                if time.monotonic() - started > RUN_LIMIT_S:
                    _stop(process)
                    raise RuntimeError(f"{' '.join(command)} took more than {RUN_LIMIT_S} s")
                time.sleep(POLL_S)
        out.seek(0)
        err.seek(0)
        text = out.read()
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text[-2000:]}{err.read()[-2000:]}")
    summary = json.loads(text.strip().splitlines()[-1])
    run = Run(run_dir, started, samples, planned, summary)
    shutil.rmtree(run_dir, ignore_errors=True)
    return run
