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
LADDER = """case "$*" in
*--skip\ begun,gone) echo '{"begins": "copy"}'; echo '{"kernel": "copy", "gb_s": 2.0}'; echo '{"kernel": "x", "gb_s": 1.0}';;
*) echo '{"begins": "begun"}'; echo '{"kernel": "begun", "gb_s": 2.0}'; echo '{"begins": "gone"}'; kill -9 $$;;
esac"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.bundle = pathlib.Path(self.folder.name)
        for name in ("run.sh", "run.py", "floors.json"):
            shutil.copy(TOOLS / name, self.bundle)
        (self.bundle / "expected.record").write_text("CudaOptimizerTest.X 0 7\nCudaAttentionTest.Y 0 8\n")
        for folder in ("bin", "emulated"):
            (self.bundle / folder).mkdir()
        self.program("kernels_cuda_test", 'case "$*" in *list*) echo "CudaOptimizerTest."; echo "  X";; '
                     '*) cat > "$TRAINYARD_CUDA_RECORD" < expected;; esac')
        self.write_record("CudaOptimizerTest.X 0 7\nCudaAttentionTest.Y 0 8\n")
        self.step_ends_with({"bin": 1.0, "emulated": 1.0})
        self.program("gpu_products", """echo '{"chain": "form 0", "hash": "7"}'""")
        self.program("gpu_kernel_ladder", """echo '{"begins": "copy"}'; echo '{"kernel": "copy", "gb_s": 2.0}'""")

    def tearDown(self):
        self.folder.cleanup()

    def program(self, name, text, folders=("bin", "emulated")):
        for folder in folders:
            path = self.bundle / folder / name
            path.write_text(f'#!/bin/sh\ncd "{self.bundle}"\n{text}\n')
            path.chmod(0o755)

    def step_ends_with(self, losses, same_in_reverse="true"):
        for folder, loss in losses.items():
            line = f'"losses": [2.0, {loss}], "norms": [1.0], "canonical": true, "same_in_reverse": {same_in_reverse}, "tokens_s": 1'
            self.program("gpu_gpt2_step", f"echo '{{{line}}}'", folders=[folder])

    def write_record(self, text):
        (self.bundle / "expected").write_text(text)

    def run_parts(self, *arguments, emulated=True):
        out = self.bundle / "out"
        asked = ["--emulated"] if emulated else []
        run = subprocess.run([self.bundle / "run.sh", "--out", out, *asked, *arguments], capture_output=True, text=True)
        report = out / "report.json"
        return run, json.loads(report.read_text())["parts"] if report.exists() else {}

    def statuses(self, reports):
        return {name: report["status"] for name, report in reports.items()}

    def test_reports_every_part_in_three_files(self):
        run, reports = self.run_parts("--parts", "identity,products,tests,step,ladder")
        self.assertEqual(0, run.returncode, run.stdout + run.stderr)
        self.assertEqual(dict.fromkeys(("identity", "products", "tests", "step", "ladder"), "passed"), self.statuses(reports))
        self.assertEqual(2, reports["tests"]["results_compared"])
        out = self.bundle / "out"
        self.assertEqual(["logs.tar.gz", "report.json", "results.jsonl"], sorted(path.name for path in out.iterdir()))
        said = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        self.assertIn({"part": "products", "shape": "", "chain": "form 0", "hash": "7"}, said)

    def test_a_part_that_hangs_ends_at_its_limit_and_the_rest_runs(self):
        self.program("gpu_products", "sleep 600 & sleep 600")
        started = time.monotonic()
        run, reports = self.run_parts("--parts", "products,ladder", "--limit", "products=0.3")
        self.assertLess(time.monotonic() - started, 300)
        self.assertEqual(1, run.returncode)
        self.assertEqual({"products": "timed out", "ladder": "passed"}, self.statuses(reports))
        self.assertIn("part ladder: passed", run.stdout)

    def test_all_parts_end_by_one_deadline(self):
        self.program("gpu_products", "sleep 600")
        run, reports = self.run_parts("--parts", "products,ladder", "--deadline", "5")
        self.assertEqual({"products": "timed out", "ladder": "not run"}, self.statuses(reports))
        self.assertEqual("no time was left", reports["ladder"]["reason"])

    def test_a_kernel_that_takes_the_program_with_it_stops_no_other(self):
        self.program("gpu_kernel_ladder", LADDER)
        run, reports = self.run_parts("--parts", "ladder")
        self.assertEqual(("failed", ["tiny: gone"]), (reports["ladder"]["status"], reports["ladder"]["wrong"]))
        self.assertEqual(["begun", "gone", "copy", "x"], [k["kernel"] for k in reports["ladder"]["shapes"]["tiny"]])

    def test_a_missing_program_and_a_full_disk_stop_no_other_part(self):
        (self.bundle / "emulated" / "gpu_products").unlink()
        out = self.bundle / "out"
        out.mkdir()
        (out / "logs.tar.gz").mkdir()  # which no archive can replace
        run, reports = self.run_parts("--parts", "products,ladder")
        self.assertEqual({"products": "failed", "ladder": "passed"}, self.statuses(reports))
        self.assertIn("the report could not be written", run.stderr)

    def test_a_failing_suite_is_run_again_test_by_test(self):
        self.program("kernels_cuda_test", 'case "$*" in *list*) echo "S."; echo "  A"; echo "  B";; '
                     '*S.A) exit 0;; *) echo "[ RUN      ] S.A"; echo "[ RUN      ] S.B"; exit 1;; esac')
        run, reports = self.run_parts("--parts", "tests")
        self.assertEqual(("failed", ["S.B"]), (reports["tests"]["status"], reports["tests"]["failed"]))

    def test_exact_sums_that_depend_on_the_order_are_a_failure(self):
        self.step_ends_with({"emulated": 1.0}, same_in_reverse="false")
        run, reports = self.run_parts("--parts", "step")
        self.assertIn("canonical: the order of micro-batches changes exact sums", reports["step"]["wrong"])

    def test_exact_results_may_not_differ_and_rounded_ones_may(self):
        self.write_record("CudaOptimizerTest.X 0 7\nCudaAttentionTest.Y 0 9\n")
        run, reports = self.run_parts("--parts", "tests")
        self.assertEqual(("passed", ["CudaAttentionTest.Y"]), (reports["tests"]["status"], reports["tests"]["differ_by_rounding"]))
        self.write_record("CudaOptimizerTest.X 0 1\nCudaAttentionTest.Y 0 8\n")
        run, reports = self.run_parts("--parts", "tests")
        self.assertEqual(("failed", ["CudaOptimizerTest.X"]), (reports["tests"]["status"], reports["tests"]["differ_and_must_not"]))

    def test_an_exact_result_that_the_device_did_not_record_is_a_failure(self):
        self.write_record("CudaAttentionTest.Y 0 8\n")
        run, reports = self.run_parts("--parts", "tests")
        self.assertEqual((1, ["CudaOptimizerTest.X"]), (run.returncode, reports["tests"]["missing"]))

    def test_what_a_part_lacks_is_said_and_confirms_nothing(self):
        run, reports = self.run_parts("--parts", "sanitizer")
        self.assertEqual((3, "not run", "needs a GPU"),
                         (run.returncode, reports["sanitizer"]["status"], reports["sanitizer"]["reason"]))
        self.assertIn("not run: sanitizer: confirms nothing about that", run.stdout)

    def test_the_emulation_is_no_success_unless_asked_for(self):
        if has_gpu():
            self.skipTest("this machine has a GPU")
        run, reports = self.run_parts("--parts", "tests", emulated=False)
        self.assertEqual((3, "passed", "emulation"), (run.returncode, reports["tests"]["status"], reports["tests"]["device"]))
        self.assertIn("emulation, no GPU: confirms nothing about a device", run.stdout)
        self.assertEqual(0, self.run_parts("--parts", "tests")[0].returncode)

    def test_losses_of_the_device_may_differ_by_rounding_alone(self):
        """On a machine that has a GPU the part step compares them; here its comparison is called."""
        sys.path.insert(0, str(self.bundle))
        self.addCleanup(sys.path.remove, str(self.bundle))
        self.addCleanup(sys.modules.pop, "run")
        import run as module  # the copy in this bundle
        runner = module.Runner(self.bundle, False)
        runner.deadline = time.monotonic() + 300
        self.step_ends_with({"bin": 1.015, "emulated": 1.0})
        self.assertEqual({}, runner.small_losses_differ())
        for wrong in (1.5, float("nan")):
            self.step_ends_with({"bin": json.dumps(wrong), "emulated": 1.0})
            self.assertEqual(["losses"], list(runner.small_losses_differ()))

    def test_refuses_parts_that_there_are_not(self):
        run, reports = self.run_parts("--parts", "tests,z")
        self.assertEqual(2, run.returncode)
        self.assertIn("no such part: z; there are identity, products, ", run.stderr)
        self.assertEqual({}, reports)


if __name__ == "__main__":
    unittest.main()
