"""Runs `trainyard run` and takes its times from the trace that the ranks leave."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

RUN_LIMIT_S = 600
POLL_S = 0.1


def manifest(model, tokens, validation=None, *, name, ranks, threads, sequences, length, steps, compute,
             checkpoint_every=0):
    """A TrainingJob as JSON, which is YAML too. `sequences`: of the global batch."""
    data = {"tokens": [str(tokens)], "sequenceLength": length}
    if validation:
        data["validation"] = [str(validation)]
    return {
        "apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": {
            "numNodes": 1, "numProcPerNode": ranks,
            "engine": {
                "model": model, "data": data, "steps": steps,
                "batch": {"globalSequences": sequences, "microSequences": sequences // ranks},
                "optimizer": {"learningRate": 3.0e-4, "gradientClip": 1.0},
                "precision": {"compute": compute},
                "runtime": {"threads": threads},
            },
            "checkpointPolicy": {"everySteps": checkpoint_every,
                                 "storage": {"persistentVolumeClaim": {"claimName": "bench"}}},
        },
    }


def _peak_bytes(run_dir):
    """Resident high-water marks of the run's ranks."""
    peaks = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "exe").rsplit("/", 1)[-1] != "trainyard-worker":
                continue
            if str(run_dir).encode() not in (entry / "environ").read_bytes():
                continue
            for line in (entry / "status").read_text(encoding="utf-8").splitlines():
                if line.startswith("VmHWM:"):
                    peaks.append(int(line.split()[1]) * 1024)
        except (OSError, ValueError):
            continue  # it has just ended
    return peaks


class Run:
    """One ended run: spans of rank 0 in seconds of CLOCK_MONOTONIC, peak memory, and when it was started."""

    def __init__(self, run_dir, started, samples, summary):
        self.started = started
        self.summary = summary
        with open(run_dir / "trace.json", encoding="utf-8") as file:
            trace = json.load(file)
        self.ranks = trace["otherData"]["ranks"]
        self.spans = {}
        for event in trace["traceEvents"]:
            if event["ph"] != "X" or event["pid"] != 0:
                continue
            begin = event["ts"] * 1e-6
            self.spans.setdefault(event["cat"], []).append((begin, begin + event["dur"] * 1e-6, event["args"]))
        for spans in self.spans.values():
            spans.sort(key=lambda span: span[0])
        # The copy for the last checkpoint, which every run takes, is not part of training.
        copied = self.spans.get("checkpoint_wait", [(float("inf"),)])[0][0]
        self.peak_bytes = max((peak for at, peak in samples if at < copied), default=None)

    def step_seconds(self, warm):
        return [end - begin for begin, end, _ in self.spans["step"][warm:]]

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


def train(binaries, work, job, keep_steps):
    """Trains `job` in a fresh folder below `work`. Raises when the run does not complete."""
    run_dir = work / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    path = work / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    command = [str(binaries / "trainyard"), "run", str(path), "--run-dir", str(run_dir), "-o", "json",
               f"--trace={keep_steps}"]
    started = time.monotonic()
    samples = []
    with open(work / "out.jsonl", "w+", encoding="utf-8") as out, open(work / "err.txt", "w+", encoding="utf-8") as err:
        with subprocess.Popen(command, stdout=out, stderr=err) as process:
            while process.poll() is None:
                samples += [(time.monotonic(), peak) for peak in _peak_bytes(run_dir)]
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
    run = Run(run_dir, started, samples, summary)
    shutil.rmtree(run_dir, ignore_errors=True)
    return run
