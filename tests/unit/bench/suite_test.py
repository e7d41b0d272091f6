"""bench/suite: a contestant that fails stands in the table."""

import contextlib
import io
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench" / "suite"))
import measure  # noqa: E402
import sharded  # noqa: E402
import training  # noqa: E402

SHAPE = training.Shape("a model", {"layers": 1, "hidden": 8, "heads": 1, "vocab": 16}, ranks=2, threads=1, sequences=2, length=8, steps=1)
RUN = {"seconds": 2.0, "start": 1.0, "peak": 2**30, "processor": 1.0, "hidden": None}


def fails():
    raise RuntimeError("out of memory")


def times_out():
    raise subprocess.TimeoutExpired("torchrun", 900)


def results_of(**contestants):
    with contextlib.redirect_stderr(io.StringIO()):
        return measure.interleave(2, {name.replace("_", " "): run for name, run in contestants.items()}, 60)


class SuiteTest(unittest.TestCase):
    def row(self, text, name):
        rows = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
        self.assertEqual(len(rows), 1, text)
        return [cell.strip() for cell in rows[0].strip("|").split("|")]

    def test_a_contestant_that_fails_stands_in_the_table_of_training(self):
        results = results_of(trainyard_bf16=lambda: RUN, PyTorch_bf16_eager=lambda: RUN, PyTorch_bf16_compiled=fails,
                             PyTorch_fp32_tuned=times_out)
        text = training.summarize(SHAPE, results)
        for name in ("PyTorch bf16 compiled", "PyTorch fp32 tuned"):
            self.assertEqual(self.row(text, name), [name, "-", "-", "-", "-", "-", "2 failed"])
        self.assertEqual(self.row(text, "PyTorch bf16 eager")[-1], "2")

    def test_a_contestant_that_fails_stands_in_the_table_of_sharded_training(self):
        ran = iter([RUN])
        results = results_of(trainyard_fp32_stage_1=lambda: RUN, PyTorch_fp32_FSDP2_tuned=fails,
                             PyTorch_fp32_DDP_tuned=lambda: next(ran, None) or fails())
        text = sharded._summarize(SHAPE, results)
        self.assertEqual(self.row(text, "PyTorch fp32 FSDP2 tuned")[-1], "2 failed")
        self.assertEqual(self.row(text, "PyTorch fp32 DDP tuned")[-1], "1, 1 failed")

    def test_two_ranks_are_held_against_compiled_pytorch_too(self):
        class Context:
            quick, cores = False, 2

        peers = training.gpt2_experiments(Context())[1][1]
        self.assertIn("PyTorch bf16 compiled", peers)


if __name__ == "__main__":
    unittest.main()
