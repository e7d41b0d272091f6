#!/usr/bin/env python3
"""tools/dashboards/render draws both dashboards of the chart from a real Prometheus that holds an hour of a made-up job."""

import itertools
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import reference  # noqa: E402  beside this file
from prometheus import PrometheusProcess  # noqa: E402

RENDER = reference.ROOT / "tools/dashboards/render"
STEP_S, HOUR_S, DEADLINE_S = 15, 3600, 60
# Values of the labels that docs/reference/metrics.md names, for two jobs' worth of series.
VALUES = {
    "rank": ["0", "1", "2", "3"], "phase": ["Running", "Restarting"], "condition": ["Stalled"], "state": ["target", "active", "ready"],
    "class": ["Application", "Infrastructure", "Hang"], "category": ["productive", "queue", "startup", "checkpoint", "recompute", "infra"],
    "result": ["committed", "failed", "success", "error", "requeue_after", "admitted", "refused"],
    "stage": ["data_wait", "forward", "backward", "collective_wait", "pipeline_wait", "optimizer", "checkpoint", "other"],
    "operation": ["all_reduce", "reduce_scatter", "all_gather"], "purpose": ["parameters", "optimizer", "gradients", "activations"],
    "controller": ["trainingjob"], "name": ["trainingjob", "trainyard-operator"], "code": ["200", "409", "503"], "method": ["GET", "POST", "PUT"],
    "host": ["10.0.0.1:443"], "kind": ["TrainingJob", "Pod", "Node"], "version": ["1"], "gpu": ["0", "1"], "uuid": ["GPU-a"], "xid": ["31", "79"], "layout": ["dp 2 x shard 2, ZeRO-3"], "reason": ["timeout"], "le": ["0.1", "0.2", "0.4", "+Inf"],
}
JOBS = [{"trainer_namespace": "team", "trainer_job": name} for name in ("big", "small")]


def value_of(name, kind, labels, second):
    """Of a series at a time: counters rise, gauges move, and after half an hour there was a restart."""
    shift = sum(map(ord, json.dumps(labels, sort_keys=True))) % 17 / 17
    if name == "trainyard_job_phase":
        restarting = 1750 <= second < 1850
        return float(restarting == (labels["phase"] == "Restarting"))
    if name in ("trainyard_job_generation", "trainyard_restarts_total", "trainyard_lost_steps_total"):
        return float(second >= 1800) + (name == "trainyard_job_generation")
    if name == "trainyard_checkpoint_timestamp_seconds":
        return time.time() - HOUR_S + second // 300 * 300
    if name == "leader_election_master_status":
        return float(labels["name"] == "trainyard-operator")
    if kind == "histogram":
        share = 1.0 if labels.get("le") == "+Inf" else min(1.0, float(labels.get("le", 1)) / 0.4)
        return second * share
    if kind == "counter":
        return second * (0.1 + shift)
    if name == "trainyard_loss_nats":
        return 2 + 3 * math.exp(-second / 900)
    return 10 * (1 + shift + 0.1 * math.sin(second / 200 + shift))


def series():
    """(name, kind, labels) of everything that the reference lists."""
    text = (reference.ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    kinds = dict(re.findall(r"(?m)^\| `(\w+)` \| (\w+) \|", text))
    for name, labels in reference.documented().items():
        family = next((family for family in (name, re.sub("_(bucket|sum|count)$", "", name)) if family in kinds))
        own = sorted(labels - reference.COMMON_LABELS) + (["le"] if name.endswith("_bucket") else [])
        for jobs in JOBS if name.startswith("trainyard_") else [{}]:
            for values in itertools.product(*(VALUES[label] for label in own)):
                yield name, kinds[family], jobs | dict(zip(own, values)) | {"job": "t", "instance": "i"}


def openmetrics(now):
    lines = []
    for name, kind, labels in series():
        written = ",".join(f'{label}="{value}"' for label, value in labels.items())
        lines += [f"{name}{{{written}}} {value_of(name, kind, labels, second):.6f} {now - HOUR_S + second}" for second in range(0, HOUR_S + 1, STEP_S)]
    return "\n".join(lines) + "\n# EOF\n"


class RenderTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        (folder / "series").write_text(openmetrics(int(time.time())), encoding="utf-8")
        subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "series", folder / "data"], check=True, capture_output=True,
                       timeout=DEADLINE_S)
        (folder / "prometheus.yml").write_text("{}")
        cls.prometheus = PrometheusProcess(folder)

    @classmethod
    def tearDownClass(cls):
        cls.prometheus.end()
        cls.folder.cleanup()

    def render(self, name, *options, dashboard=None):
        out = pathlib.Path(self.folder.name) / name
        done = subprocess.run([sys.executable, RENDER, self.prometheus.address, out, "--dashboard", dashboard or out.stem, *options], capture_output=True, text=True,
                              check=False, timeout=DEADLINE_S)
        return done.returncode, done.stdout + done.stderr, out.read_text(encoding="utf-8") if out.exists() else ""

    def test_every_panel_is_drawn(self):
        for name, variables in (("job", ["--variable", "namespace=team", "--variable", "job=big"]), ("fleet", [])):
            code, said, picture = self.render(f"{name}.svg", "--need-data", *variables)
            self.assertEqual(code, 0, said)
            root = xml.etree.ElementTree.fromstring(picture)
            words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
            panels = json.loads((reference.ROOT / f"charts/trainyard/files/dashboards/{name}.json").read_text(encoding="utf-8"))["panels"]
            for panel in panels:
                self.assertIn(panel["title"], words)
            self.assertNotIn("no data", words)
            self.assertNotRegex(picture, r"[\" ,ML](nan|inf)", "a number that is none")
            width, height = float(root.get("width")), float(root.get("height"))
            for element in root.iter("{http://www.w3.org/2000/svg}rect"):
                self.assertGreaterEqual(float(element.get("x")), 0)
                self.assertLessEqual(float(element.get("x")) + float(element.get("width")), width)
                self.assertLessEqual(float(element.get("y")) + float(element.get("height")), height)
            self.assertIn("big" if name == "job" else "team/big", picture)
        self.assertIn(">team/small<", picture)

    def test_restarts_are_marked(self):
        options = ["--variable", "namespace=team", "--variable", "job=big"]
        self.assertIn("stroke-dasharray", self.render("job.svg", *options)[2])
        self.assertNotIn("stroke-dasharray", self.render("job.svg", *options, "--since", "1200")[2])

    def test_a_job_without_data_is_named_with_its_queries(self):
        code, said, picture = self.render("job.html", "--variable", "namespace=team", "--variable", "job=none", "--need-data")
        self.assertEqual(code, 1)
        self.assertIn('no data: Loss: max(trainyard_loss_nats{trainer_namespace="team",trainer_job="none"})', said)
        self.assertIn(">no data<", picture)

    def test_a_variable_without_a_value_and_a_query_that_is_none_are_errors(self):
        code, said, _ = self.render("job.svg", "--variable", "namespace=team")
        self.assertNotEqual(code, 0)
        self.assertIn("the variable job has no value", said)
        board = json.loads((reference.ROOT / "charts/trainyard/files/dashboards/job.json").read_text(encoding="utf-8"))
        board["panels"][1]["targets"][0]["expr"] = "sum(("
        path = pathlib.Path(self.folder.name) / "broken.json"
        path.write_text(json.dumps(board))
        code, said, _ = self.render("broken.svg", "--variable", "namespace=team", "--variable", "job=big", dashboard=path)
        self.assertNotEqual(code, 0)
        self.assertIn("sum((", said)


if __name__ == "__main__":
    unittest.main()
