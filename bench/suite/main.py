#!/usr/bin/env python3
"""Measures this build on this machine and writes a Markdown section. Started by tools/run_bench."""

import argparse
import functools
import os
import pathlib
import subprocess
import tempfile

import contexts
import kernels
import machine
import pipelines
import report
import sharded
import tensors
import training
from torch_peer import Torch

PARTS = {
    "gemm": ("Matrix products", kernels.gemm),
    "comm": ("Collectives", kernels.communication),
    "gpt2": ("Training GPT-2 124M", training.gpt2),
    "llama": ("Training Llama 160M", training.llama),
    "example": ("Training the model of `make run`", training.example),
    "sharded": ("Training with sharded states, against PyTorch", sharded.throughput),
    "memory": ("Memory of a rank by ZeRO stage", sharded.memory),
    "overlap": ("Overlap on a limited link", sharded.overlap),
    "pipeline": ("Training in a pipeline, against PyTorch", pipelines.throughput),
    "pipeline-memory": ("Memory of the ranks of a pipeline", pipelines.memory),
    "tensor": ("Training with layers cut over ranks, against PyTorch", tensors.throughput),
    "context-memory": ("Memory of the ranks that share sequences", contexts.memory),
    "checkpoint": ("Checkpoints", training.checkpoint),
}


class Context:
    """What every part works with."""

    def __init__(self, options, work):
        self.binaries = pathlib.Path(options.build).resolve() / "bin"
        self.benches = pathlib.Path(options.build).resolve() / "bench"
        self.quick = options.quick
        self.rounds = options.rounds or (2 if options.quick else 5)
        self.work = work
        self.cores = machine.cores()
        self.torch = Torch(options.python, work)
        self.text = work / "text" / "train.txt"
        self.tokens = work / "data" / "train"

    def prepare(self, text):
        """Tokens of the given text, one a byte, for both sides."""
        self.text.parent.mkdir()
        sources = sorted(path for path in pathlib.Path(text).rglob("*.txt")) or [pathlib.Path(text)]
        with open(self.text, "wb") as out:
            for source in sources:
                out.write(source.read_bytes())
        subprocess.run([str(self.binaries / "trainyard"), "data", "prepare", str(self.text.parent), "--out",
                        str(self.work / "data"), "--tokenizer", "bytes"], check=True, stdout=subprocess.DEVNULL)


def parse():
    parser = argparse.ArgumentParser(prog="tools/run_bench", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer peers and rounds: some minutes, rough figures")
    parser.add_argument("--rounds", type=int, help="runs of each contestant (default 5, --quick 2)")
    parser.add_argument("--python", default=os.environ.get("TRAINYARD_BENCH_PYTHON"),
                        help="interpreter that has torch (default $TRAINYARD_BENCH_PYTHON); without one peers are left out")
    parser.add_argument("--text", required=True, help="folder of text to train on")
    parser.add_argument("--build", required=True, help="build folder with bin/ and bench/")
    parser.add_argument("--out", help="write the section here too")
    return parser.parse_args()


def main():
    options = parse()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        context = Context(options, pathlib.Path(folder))
        context.prepare(options.text)
        described = machine.describe(str(context.binaries / "trainyard"), report.build_of(options.build))
        command = "make bench" if not options.part else "tools/run_bench --part " + " --part ".join(options.part)
        lines = [f"## {described}", "", f"Command: `{command}{' --quick' if options.quick else ''}`; contestants take "
                 f"turns, {context.rounds} rounds at most, medians.", ""]
        lines += report.of_parts((title, functools.partial(part, context))
                                 for title, part in (PARTS[name] for name in options.part or PARTS))
    report.publish(lines, options.out)


if __name__ == "__main__":
    main()
