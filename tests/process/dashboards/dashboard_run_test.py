#!/usr/bin/env python3
"""Every panel about a job has data of a real one: `trainyard run` trains the built-in engine, a rank of it is killed, a Prometheus scrapes the
run and its agents, and tools/dashboards/render draws the dashboard. Usage: dashboard_run_test.py BIN, the folder of the programs."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import reference  # noqa: E402  beside this file
from prometheus import PrometheusProcess  # noqa: E402

sys.path.insert(0, str(reference.ROOT / "tools"))
from dashboards import queries  # noqa: E402

DEADLINE_S = 120
JOB = {
    "apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "tiny", "namespace": "team"},
    "spec": {
        "numNodes": 2, "numProcPerNode": 1,
        "engine": {"model": {"family": "GPT2", "layers": 1, "hidden": 16, "heads": 2, "vocab": 257, "maxPositions": 16},
                   "data": {"tokens": ["data/train"], "validation": ["data/train"], "sequenceLength": 16},
                   "batch": {"globalSequences": 8, "microSequences": 4}, "steps": 10000000, "runtime": {"threads": 1},
                   "evaluation": {"everySteps": 100, "sequences": 8}},
        "checkpointPolicy": {"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}, "everySteps": 200},
        "failurePolicy": {"backoff": {"initialSeconds": 0}}}}


class DashboardOfARunTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)
        (self.folder / "text").write_text((reference.ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8"), encoding="utf-8")
        subprocess.run([BIN / "trainyard", "data", "prepare", self.folder / "text", "--out", self.folder / "data"], check=True, capture_output=True,
                       timeout=DEADLINE_S)
        (self.folder / "job.yaml").write_text(json.dumps(JOB))  # JSON is YAML
        (self.folder / "targets.json").write_text("[]")
        (self.folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "trainyard", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}]}))
        self.prometheus = PrometheusProcess(self.folder)
        self.addCleanup(self.prometheus.end)
        with (self.folder / "out").open("w") as out:
            self.run_process = subprocess.Popen(
                [BIN / "trainyard", "run", self.folder / "job.yaml", "--run-dir", self.folder / "run", "--metrics-address", "127.0.0.1:0"], stdout=out, stderr=out,
                env=os.environ | {"TRAINYARD_METRICS_ADDRESS": "127.0.0.1:0", "LD_LIBRARY_PATH": str(self.make_gpu()),
                                  "TRAINYARD_FAKE_NVML": str(self.folder / "gpus")})

        self.addCleanup(self.end_run)

    def make_gpu(self):
        """The folder of a management library that tells of one GPU (tests/support/fake_nvml.cc)."""
        libraries = self.folder / "lib"
        libraries.mkdir()
        (libraries / "libnvidia-ml.so.1").symlink_to(BIN.parent / "tests/libtrainyard-fake-nvml.so")
        (self.folder / "gpus").write_text("0.name GPU\n0.uuid U\n0.used 1000\n0.total 2000\n0.utilization 50\n0.temperature 60\n0.power 300000\n"
                                          "0.power_limit 700000\n0.clock 1980\n0.throttle 0x20\n0.ecc_corrected 1\n0.ecc_uncorrected 0\nxid 0 13\n")
        return libraries

    def end_run(self):
        self.run_process.send_signal(signal.SIGINT)
        try:
            self.run_process.wait(DEADLINE_S)
        finally:
            self.run_process.kill()

    def status(self):
        try:
            return json.loads((self.folder / "run/status.json").read_text())["status"]
        except (OSError, ValueError, KeyError):
            return {}

    def name_targets(self):
        """The run, and the agents of its newest pods."""
        found = [path.read_text().split("\n")[0] for path in [self.folder / "run/metrics-address", *self.folder.glob("run/pods/*/metrics-address")]
                 if path.exists() and not (path.parent / "exit.json").exists()]
        fresh = self.folder / "targets.new"
        fresh.write_text(json.dumps([{"targets": sorted(filter(None, found))}]))
        fresh.rename(self.folder / "targets.json")

    def wait_for(self, what, condition):
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            self.assertIsNone(self.run_process.poll(), (self.folder / "out").read_text())
            self.assertLess(time.monotonic(), deadline, f"waited for {what}: {(self.folder / 'out').read_text()}")
            self.name_targets()
            time.sleep(0.2)

    def query(self, text):
        api = queries.Prometheus(self.prometheus.address)
        found = api.instant(text, api.now())
        return found[0][1] if len(found) == 1 else None

    def ranks(self):
        """Pids of the rank processes of this run."""
        return [int(path.parent.name) for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
                if self.is_rank(path.parent)]

    def is_rank(self, process):
        try:
            return (process / "comm").read_text() == "trainyard-worke\n" and str(self.folder).encode() in (process / "environ").read_bytes()
        except OSError:
            return False

    def test_every_panel_has_data(self):
        begin = time.monotonic()
        job = '{trainer_namespace="team",trainer_job="tiny"}'
        self.wait_for("a checkpoint in Prometheus", lambda: (self.query(f"max(trainyard_checkpoint_step{job})") or 0) >= 200)
        os.kill(self.ranks()[0], signal.SIGKILL)
        self.wait_for("the restart", lambda: self.query(f"sum(max by (class) (trainyard_restarts_total{job}))") == 1)
        self.assertEqual(self.status()["restarts"]["total"], 1)
        # As many steps again, of the new processes, seen in both kinds of targets.
        self.wait_for("rates of the new ranks", lambda: self.query(f"count(rate(trainyard_rank_steps_total{job}[10s]) > 0)") == 4)
        self.wait_for("its agents", lambda: self.query(f"sum(trainyard_agent_running_ranks{job})") == 2)
        self.wait_for("an evaluation", lambda: self.query(f"max(trainyard_validation_loss_nats{job}) < bool 10") == 1)
        self.wait_for("a checkpoint of theirs", lambda: (self.query(f'max(trainyard_checkpoints_total{{result="committed",{job[1:]})') or 0) >= 1)
        picture = BIN.parent / "dashboards/run.html"
        drawn = subprocess.run([sys.executable, reference.ROOT / "tools/dashboards/render", self.prometheus.address, picture, "--dashboard", "job",
                                "--variable", "namespace=team", "--variable", "job=tiny", "--since", str(round(time.monotonic() - begin)),
                                "--scrape-interval", "1", "--need-data", "--may-lack", "trainyard_model_flops_"], capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        self.assertEqual(drawn.returncode, 0, drawn.stdout + drawn.stderr)
        self.assertTrue(picture.read_text(encoding="utf-8"))


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
