"""Runs the scripts of bench/peers, stock and tuned."""

import json
import os
import pathlib
import subprocess
import time

PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"
LIMIT_S = 900
# On AMD processors MKL, which PyPI's torch uses, takes a slow path unless this function says otherwise.
SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
# glibc gives large blocks back to the kernel at once and has their pages zeroed again in the next step. PyTorch is faster, and
# larger, where it keeps them.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(10**12), "MALLOC_TOP_PAD_": str(2**28)}


class Torch:
    """PyTorch of one interpreter. `available` is False where there is none; its parts are then left out."""

    def __init__(self, python, work):
        self.python = python
        self.work = work
        self.version = None
        if python:
            probe = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True,
                                   text=True, check=False)
            self.version = probe.stdout.strip() or None
        self.shim = self._build_shim() if self.version else None

    @property
    def available(self):
        return self.version is not None

    def _build_shim(self):
        source, library = self.work / "mkl_tuned.c", self.work / "mkl_tuned.so"
        source.write_text(SHIM, encoding="utf-8")
        subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        return library

    def train(self, text, *, ranks, threads, sequences, length, steps, warm, model, tuned=True, bf16=False,
              compiled=False, parallel="ddp", schedule=None):
        """One process (or torchrun's, where there are several ranks: `parallel`, which may be tensor or sequence-parallel, or a
        pipeline of that `schedule`): the script's JSON, with `started` added."""
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive")
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.work / "inductor")
        if tuned:
            environment |= KEEP_MEMORY | {"LD_PRELOAD": str(self.shim)}
        command = [self.python]
        if ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        one_batch = bool(schedule) or parallel in ("tensor", "sequence-parallel")  # of all ranks
        family = model.get("family", "gpt2").lower()
        script = PEERS / f"{family}{'_pipeline' if schedule else '_tensor' if one_batch else ''}_torch.py"
        command += [str(script), "--text", str(text), "--sequences", str(sequences if one_batch else sequences // ranks),
                    "--tokens", str(length), "--steps", str(steps), "--warm", str(warm)]
        options = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kvHeads": "kv-heads", "ffn": "ffn", "vocab": "vocab"}
        for name in options.keys() & model.keys():
            command += ["--" + options[name], str(model[name])]
        if one_batch:
            command += ["--schedule", schedule] if schedule else ["--sequence-parallel"] * (parallel == "sequence-parallel")
        elif ranks > 1:
            command += ["--parallel", parallel]
        command += ["--bf16"] * bf16 + ["--compile"] * compiled
        started = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not lines:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        result = json.loads(lines[-1])
        result["started"] = started
        return result
