"""run.sh of the GPU bundle: parts end at their limit, and the others are still reported."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

TOOLS = pathlib.Path(sys.argv.pop(1))
# The same as run.py's: whether there is a device.
has_gpu = lambda: any(re.fullmatch(r"nvidia\d+", name) for name in os.listdir("/dev"))  # noqa: E731
LADDER_LINE = '{"kernel": "copy", "gb_s": 2.0}\n{"kernel": "x", "gb_s": 1.0}'


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.bundle = pathlib.Path(self.folder.name)
        for name in ("run.sh", "run.py"):
            shutil.copy(TOOLS / name, self.bundle)
        (self.bundle / "expected.record").write_text("CudaOptimizerTest.X 0 7\nCudaAttentionTest.Y 0 8\n")
        for folder in ("bin", "emulated"):
            (self.bundle / folder).mkdir()
        self.program("kernels_cuda_test", 'cat > "$TRAINYARD_CUDA_RECORD" < expected')
        self.write_record("CudaOptimizerTest.X 0 7\nCudaAttentionTest.Y 0 8\n")
        self.step_ends_with({"bin": 1.0, "emulated": 1.0})
        self.program("gpu_kernel_ladder", f"echo '{LADDER_LINE}'")

    def tearDown(self):
        self.folder.cleanup()

    def program(self, name, text, folders=("bin", "emulated")):
        for folder in folders:
            path = self.bundle / folder / name
            path.write_text(f'#!/bin/sh\ncd "{self.bundle}"\n{text}\n')
            path.chmod(0o755)

    def step_ends_with(self, losses):
        for folder, loss in losses.items():
            self.program("gpu_gpt2_step", f'echo \'{{"first_loss": 2.0, "last_loss": {loss}}}\'', folders=[folder])

    def write_record(self, text):
        (self.bundle / "expected").write_text(text)

    def run_parts(self, *arguments, emulated=True):
        out = self.bundle / "out"
        asked = ["--emulated"] if emulated else []
        run = subprocess.run([self.bundle / "run.sh", "--out", out, *asked, *arguments], capture_output=True, text=True)
        return run, {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}

    def test_reports_every_part(self):
        run, reports = self.run_parts("--parts", "a,b,c")
        self.assertEqual(0, run.returncode, run.stdout + run.stderr)
        self.assertEqual({"a": "passed", "b": "passed", "c": "passed"}, {k: v["status"] for k, v in reports.items()})
        self.assertEqual(2, reports["a"]["results_compared"])

    def test_a_part_that_hangs_ends_at_its_limit_and_the_rest_runs(self):
        self.program("kernels_cuda_test", "sleep 600 & sleep 600")
        started = time.monotonic()
        run, reports = self.run_parts("--parts", "a,b", "--limit", "a=0.3")
        self.assertLess(time.monotonic() - started, 300)
        self.assertEqual(1, run.returncode)
        self.assertEqual({"a": "timed out", "b": "passed"}, {k: v["status"] for k, v in reports.items()})
        self.assertIn("part b: passed", run.stdout)

    def test_exact_results_may_not_differ_and_rounded_ones_may(self):
        self.write_record("CudaOptimizerTest.X 0 7\nCudaAttentionTest.Y 0 9\n")
        run, reports = self.run_parts("--parts", "a")
        self.assertEqual(("passed", ["CudaAttentionTest.Y"]), (reports["a"]["status"], reports["a"]["differ_by_rounding"]))
        self.write_record("CudaOptimizerTest.X 0 1\nCudaAttentionTest.Y 0 8\n")
        run, reports = self.run_parts("--parts", "a")
        self.assertEqual(("failed", ["CudaOptimizerTest.X"]), (reports["a"]["status"], reports["a"]["differ_and_must_not"]))

    def test_an_exact_result_that_the_device_did_not_record_is_a_failure(self):
        self.write_record("CudaAttentionTest.Y 0 8\n")
        run, reports = self.run_parts("--parts", "a")
        self.assertEqual((1, ["CudaOptimizerTest.X"]), (run.returncode, reports["a"]["missing"]))

    def test_what_a_part_lacks_is_said_and_confirms_nothing(self):
        run, reports = self.run_parts("--parts", "d")
        self.assertEqual((3, "not run", "needs a GPU"), (run.returncode, reports["d"]["status"], reports["d"]["reason"]))
        self.assertIn("not run: d: confirms nothing about that", run.stdout)

    def test_the_emulation_is_no_success_unless_asked_for(self):
        if has_gpu():
            self.skipTest("this machine has a GPU")
        run, reports = self.run_parts("--parts", "a", emulated=False)
        self.assertEqual((3, "passed", "emulation"), (run.returncode, reports["a"]["status"], reports["a"]["device"]))
        self.assertIn("emulation, no GPU: confirms nothing about a device", run.stdout)
        self.assertEqual(0, self.run_parts("--parts", "a")[0].returncode)

    def test_losses_of_the_device_may_differ_by_rounding_alone(self):
        """On a machine that has a GPU part c compares them; here its comparison is called."""
        sys.path.insert(0, str(self.bundle))
        self.addCleanup(sys.path.remove, str(self.bundle))
        self.addCleanup(sys.modules.pop, "run")
        import run as module  # the copy in this bundle
        runner = module.Runner(self.bundle, False)
        runner.deadline = time.monotonic() + 300
        self.step_ends_with({"bin": 1.05, "emulated": 1.0})
        self.assertEqual({}, runner.small_losses_differ())
        for wrong in (1.5, float("nan")):
            self.step_ends_with({"bin": json.dumps(wrong), "emulated": 1.0})
            self.assertEqual(["last_loss"], list(runner.small_losses_differ()))

    def test_refuses_parts_that_there_are_not(self):
        run, reports = self.run_parts("--parts", "a,z")
        self.assertEqual(2, run.returncode)
        self.assertIn("no such part: z; there are a, b, c, d", run.stderr)
        self.assertEqual({}, reports)


if __name__ == "__main__":
    unittest.main()
