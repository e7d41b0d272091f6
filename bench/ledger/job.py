"""A small job on text made here, run by the `trainyard` on PATH; what its ranks have counted and traced."""

import json
import pathlib
import re
import subprocess
import time
import urllib.error
import urllib.request

LIMIT_S = 600
SAMPLE = re.compile(r"^(\w+)(?:\{(.*?)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="(.*?)"')


def prepare(work: pathlib.Path, lines: int = 4000) -> pathlib.Path:
    """Token shards of lines that do not repeat."""
    text = work / "lines.txt"
    text.write_text("".join(f"line {i}: {i * i} is the square of {i}, {i * 7919 % 10007} is not\n" for i in range(lines)),
                    encoding="utf-8")
    subprocess.run(["trainyard", "data", "prepare", "--tokenizer", "bytes", "--out", work / "data", text], check=True,
                   stdout=subprocess.DEVNULL)
    return work / "data" / "train"


def manifest(tokens: pathlib.Path, *, ranks: int, steps: int, parallelism: dict, model=None, sequences: int = 12) -> dict:
    return {
        "apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "ledger"},
        "spec": {
            "numNodes": 1, "numProcPerNode": ranks,
            "engine": {
                "model": model or {"layers": 4, "hidden": 256, "heads": 4}, "data": {"tokens": [str(tokens)], "sequenceLength": 64},
                "steps": steps, "batch": {"globalSequences": sequences, "microSequences": max(1, sequences // ranks)},
                "optimizer": {"learningRate": 3.0e-4}, "parallelism": parallelism, "runtime": {"threads": 1},
            },
            "checkpointPolicy": {"everySteps": 0, "storage": {"persistentVolumeClaim": {"claimName": "ledger"}}},
        },
    }


def command(work: pathlib.Path, job: dict, *options: str) -> list:
    path = work / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return ["trainyard", "run", str(path), "--run-dir", str(work / "run"), "-o", "json", "--metrics-address", "127.0.0.1:0", *options]


def scrape(run_dir: pathlib.Path) -> dict:
    """{(metric, labels as a sorted tuple of pairs): value}; empty before the run serves it and after it has ended."""
    try:
        address = (run_dir / "metrics-address").read_text(encoding="utf-8").strip()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError, ValueError):
        return {}
    return {(name, tuple(sorted(LABEL.findall(labels)))): float(value) for name, labels, value in SAMPLE.findall(text)}


def train(work: pathlib.Path, job: dict, *options: str) -> dict:
    """Runs it to its end; the newest metrics before that. Raises when it does not complete."""
    newest = {}
    with open(work / "out.txt", "w+", encoding="utf-8") as out:
        with subprocess.Popen(command(work, job, *options), stdout=out, stderr=subprocess.STDOUT) as process:
            begin = time.monotonic()
            while process.poll() is None:
                if time.monotonic() - begin > LIMIT_S:
                    process.terminate()
                newest = scrape(work / "run") or newest
                time.sleep(0.05)
        if process.returncode != 0:
            out.seek(0)
            raise RuntimeError(f"the run ended with {process.returncode}:\n{out.read()[-2000:]}")
    return newest


def summary(work: pathlib.Path) -> dict:
    """What train() came to: the last line of its output."""
    return json.loads((work / "out.txt").read_text(encoding="utf-8").splitlines()[-1])
