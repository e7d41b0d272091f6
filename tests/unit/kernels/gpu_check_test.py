"""run.sh of the GPU bundle: parts end at their limit, and the others are still reported."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

TOOLS = pathlib.Path(sys.argv.pop(1))
# The same as run.py's: whether there is a device.
has_gpu = lambda: any(re.fullmatch(r"nvidia\d+", name) for name in os.listdir("/dev"))  # noqa: E731
LADDER = """case "$*" in
*--skip\ begun,gone) echo '{"begins": "copy"}'; echo '{"kernel": "copy", "gb_s": 2.0}'; echo '{"kernel": "x", "gb_s": 1.0}';;
*) echo '{"begins": "begun"}'; echo '{"kernel": "begun", "gb_s": 2.0}'; echo '{"begins": "gone"}'; kill -9 $$;;
esac"""


# An engine whose checkpoint is a file. It trains until it is killed where it is asked to, and resumes with the state of $1.
ENGINE = """for last; do :; done
case "$*" in
*--until-killed*) for x; do [ "$before" = --checkpoints ] && touch "$x/saved"; before=$x; done
  echo '{{"done": 1}}'; echo '{{"done": 2}}'; {hangs};;
*--checkpoints*) [ -e "$last/saved" ] && echo '{{"hash": "{hash}", "losses": [2.0, 1.0], "resumed_from": {resumed}}}';;
*) echo '{{"hash": "7", "losses": [2.0, 1.0], "resumed_from": -1, "tokens_s": 5, "step_ms": 1.0}}';;
esac"""
RESUMED_AS = "2 ranks, ZeRO 3, as 1 rank"


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.bundle = pathlib.Path(self.folder.name)
        for path in [TOOLS / "run.sh", *TOOLS.glob("*.py")]:
            shutil.copy(path, self.bundle)
        floors = subprocess.run([TOOLS.parent / "gpu_budget", "-o", "floors"], check=True, capture_output=True, text=True).stdout
        (self.bundle / "floors.json").write_text(floors)
        (self.bundle / "budget.json").write_text('{"tiny": 10}')
        (self.bundle / "expected.record").write_text("CudaOptimizerTest.X 0 7\nCudaAttentionTest.Y 0 8\n")
        for folder in ("bin", "emulated"):
            (self.bundle / folder).mkdir()
        self.program("kernels_cuda_test", 'case "$*" in *list*) echo "CudaOptimizerTest."; echo "  X";; '
                     '*) cat > "$TRAINYARD_CUDA_RECORD" < expected;; esac')
        self.write_record("CudaOptimizerTest.X 0 7\nCudaAttentionTest.Y 0 8\n")
        self.step_ends_with({"bin": 1.0, "emulated": 1.0})
        self.program("gpu_engine", """echo '{"hash": "7", "losses": [2.0, 1.0]}'""")
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
        run, reports = self.run_parts("--parts", "identity,products,tests,step,engine,ladder")
        self.assertEqual(0, run.returncode, run.stdout + run.stderr)
        self.assertEqual(dict.fromkeys(("identity", "products", "tests", "step", "engine", "ladder"), "passed"), self.statuses(reports))
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

    def test_a_layout_that_ends_in_another_state_is_a_failure(self):
        self.program("gpu_engine", """case "$*" in *--zero*) h=8;; *) h=7;; esac; echo '{"losses": [2.0, 1.0], "hash": "'$h'"}'""")
        run, reports = self.run_parts("--parts", "engine")
        self.assertEqual(["gpt2, 2 ranks, ZeRO 3: another state than that of one rank",
                          "llama, 2 ranks, ZeRO 3: another state than that of one rank"], reports["engine"]["wrong"])
        for fast in ("1.03", "NaN"):
            self.program("gpu_engine", f"""l=1.0; case "$*" in *--fast*) l={fast};; esac; echo '{{"losses": [2.0, '$l'], "hash": "7"}}'""")
            wrong = self.run_parts("--parts", "engine")[1]["engine"]["wrong"]
            self.assertEqual(1, len(wrong))
            self.assertRegex(wrong[0], r"gpt2, 1 rank, Fast: losses .* differ from canonical ones")
        self.program("gpu_engine", "echo no product; exit 1")
        run, reports = self.run_parts("--parts", "engine")
        self.assertEqual("failed", reports["engine"]["status"])
        self.assertIn("no product", reports["engine"]["models"]["gpt2"]["1 rank"]["error"])

    def engine_resumes(self, hash="7", resumed=1, hangs="exec sleep 600"):
        self.program("gpu_engine", ENGINE.format(hash=hash, resumed=resumed, hangs=hangs))
        reports = self.run_parts("--parts", "resume")[1]
        return reports["resume"]["status"], reports["resume"]["wrong"]

    def test_a_run_that_was_killed_has_to_end_in_the_state_of_one_that_was_not(self):
        self.assertEqual(("passed", []), self.engine_resumes())
        self.assertEqual(("failed", [f"{RESUMED_AS}: another state than that of a run that was not killed"]), self.engine_resumes(hash="8"))
        self.assertEqual(("failed", [f"{RESUMED_AS}: resumed from step -1, and 1 was saved"]), self.engine_resumes(resumed=-1))
        self.assertEqual(("failed", [RESUMED_AS]), self.engine_resumes(hangs="exit 0"))

    def worker_ends_in(self, alone="7", zero3="7", zero1="7", nccl="7"):
        """The hashes of the states that runs of the worker end in."""
        self.program("trainyard-worker", f"""grep -q '"device": "Cuda"' "$TRAINYARD_ENGINE_CONFIG" || exit 3
            echo '{{"message":"run complete","state_hash":"{alone}","loss":1.5}}'; echo '{{"message":"after"}}'""")
        self.program("gpu_train", f"""case "$*" in
            *--write-tokens*) mkdir "$2"; exit;;
            *--ranks*) for x; do [ "$before" = --config ] && config=$x; before=$x; done;;
            esac
            hash={zero3}; grep -q '"zeroStage": 1' "$config" && hash={zero1}; grep -q Nccl "$config" && hash={nccl}
            echo '{{"state_hash":"'$hash'","loss":1.5}}'""")

    def test_the_worker_and_its_layouts_have_to_end_in_one_state(self):
        self.worker_ends_in()
        run, reports = self.run_parts("--parts", "worker,nccl")
        self.assertEqual({"worker": "passed", "nccl": "passed"}, self.statuses(reports), run.stdout)
        self.assertEqual(["trainyard-worker", "2 ranks, ZeRO 3", "4 ranks, ZeRO 1"], list(reports["worker"]["runs"]))
        self.worker_ends_in(zero1="8", nccl="9")
        reports = self.run_parts("--parts", "worker,nccl")[1]
        self.assertEqual(["4 ranks, ZeRO 1: another state than that of trainyard-worker"], reports["worker"]["wrong"])
        self.assertEqual(["NCCL: another state than that of host memory"], reports["nccl"]["wrong"])
        self.program("trainyard-worker", "echo 'no driver'; exit 64")
        reports = self.run_parts("--parts", "worker")[1]
        self.assertIn("no driver", reports["worker"]["runs"]["trainyard-worker"]["error"])
        self.program("gpu_train", "exit 1")
        self.assertEqual(["tokens"], self.run_parts("--parts", "worker")[1]["worker"]["wrong"])

    def module(self):
        """run.py of this bundle."""
        sys.path.insert(0, str(self.bundle))
        self.addCleanup(sys.path.remove, str(self.bundle))
        for name in ("run", "runner", "cases", "kernel_parts", "engine_parts"):
            self.addCleanup(sys.modules.pop, name, None)
        import run as module
        return module

    def test_the_parts_of_a_call_end_within_its_deadline(self):
        module = self.module()
        for name, parts in module.CALLS.items():
            self.assertLessEqual(sum(parts.values()), module.DEADLINE_S, name)
        for part in module.LIMITS_S:
            self.assertTrue(callable(getattr(module.Parts, part)), part)

    def test_two_ranks_on_one_gpu_are_not_run_by_an_older_nccl(self):
        module = self.module()
        runner = module.Parts(self.bundle, False, 300)
        self.addCleanup(shutil.rmtree, runner.work)
        runner.gpu, runner.deadline = True, time.monotonic() + 300
        with mock.patch("cases.NCCL_VERSION", "print(22803)"):
            self.assertEqual("not run", runner.part("nccl", 300))
        self.assertIn("2.30 or newer, which this bundle does not carry", runner.reports["nccl"]["reason"])
        self.assertIn("found version 22803", runner.reports["nccl"]["reason"])

    def test_a_run_that_is_ended_leaves_no_program_behind(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            pids = self.bundle / "pids"
            self.program("gpu_products", f'echo $$ >> "{pids}"; exec sleep 600')
            run = subprocess.Popen([self.bundle / "run.sh", "--out", self.bundle / "out", "--emulated", "--parts", "products"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not pids.exists() or not pids.read_text().strip():
                self.assertIsNone(run.poll())
                time.sleep(0.01)
            run.send_signal(number)
            self.assertEqual(128 + number if number == signal.SIGTERM else -number, run.wait())
            engine = pathlib.Path("/proc") / pids.read_text().split()[0] / "cmdline"
            while engine.exists() and b"sleep" in engine.read_bytes():  # this test's time limit ends a wait for nothing
                time.sleep(0.01)
            pids.unlink()

    def test_speed_is_held_against_what_was_predicted(self):
        self.program("gpu_engine", ENGINE.format(hash="7", resumed=1, hangs="exit 0"))
        run, reports = self.run_parts("--parts", "speed")
        tiny = reports["speed"]["models"]["tiny"]
        self.assertEqual(("passed", 5, 10, 0.5), (reports["speed"]["status"], *(
            tiny[key] for key in ("tokens_s", "predicted_tokens_s", "of_predicted"))))
        (self.bundle / "budget.json").write_text('{"tiny": 11}')
        self.assertEqual(["tiny: 0.455 of the predicted tokens/s, less than 0.5"], self.run_parts("--parts", "speed")[1]["speed"]["wrong"])
        self.program("gpu_engine", "echo 'gpu_engine: needs 9 bytes of GPU memory, and 8 are free'; exit 1")
        run, reports = self.run_parts("--parts", "speed")
        self.assertEqual((3, "not run"), (run.returncode, reports["speed"]["status"]))
        self.program("gpu_engine", "exit 1")
        self.assertEqual(["tiny", "tiny, Fast"], self.run_parts("--parts", "speed")[1]["speed"]["wrong"])

    def test_losses_beside_pytorch_are_bounded_and_need_it(self):
        (self.bundle / "torch.py").write_text("raise ImportError('no torch for this test')\n")
        with mock.patch.dict(os.environ, PYTHONPATH=str(self.bundle)):
            run, reports = self.run_parts("--parts", "losses")
            self.assertEqual((3, "not run"), (run.returncode, reports["losses"]["status"]))
            self.assertIn("no torch for this test", reports["losses"]["reason"])
            (self.bundle / "torch.py").write_text("")
            for loss, status in (("1.01", "passed"), ("1.03", "failed"), ("NaN", "failed"), ("1.0, 0.5", "failed")):
                (self.bundle / "peers.py").write_text(f"""print('{{"losses": [2.0, {loss}]}}')""")
                reports = self.run_parts("--parts", "losses")[1]
                self.assertEqual((status, 0.02), (reports["losses"]["status"], reports["losses"]["bound"]), loss)

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
        runner = self.module().Parts(self.bundle, False, 300)
        self.addCleanup(shutil.rmtree, runner.work)
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
