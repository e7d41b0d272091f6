#!/usr/bin/env python3
"""The chart's dashboards: what Grafana takes, what Prometheus parses, and only what docs/reference/metrics.md lists. That queries
have data is shown in a cluster (tests/cluster/monitoring_test.cc)."""

import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import reference  # noqa: E402  beside this file

sys.path.insert(0, str(reference.ROOT / "tools"))
import dashboards  # noqa: E402
from dashboards import queries, units  # noqa: E402

FOLDER = reference.ROOT / "charts/trainyard/files/dashboards"
KINDS = {"row", "stat", "timeseries", "bargauge", "state-timeline"}
# Grafana's names (https://github.com/grafana/grafana: packages/grafana-data, valueFormats/categories).
UNITS = {"none", "short", "locale", "percentunit", "s", "dtdurations", "bytes", "Bps", "ops", "reqps", "sci", "watt", "hertz",
         "celsius"}
VARIABLES = {"namespace": "team-1", "job": "big"}
# Series of Prometheus' own.
OWN_SERIES = {"ALERTS"}


def all_dashboards():
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def expressions(dashboard):
    """(where, expression) of all that the dashboard asks."""
    for panel in queries.panels_of(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for note in dashboard["annotations"]["list"]:
        yield note["name"], note["expr"]


def overlap(one, other):
    return (one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"] and
            one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"])


def unknown_names(expression, documented):
    """What the expression asks for that nobody serves."""
    wrong = []
    for name, labels in reference.selectors(queries.filled(expression, VARIABLES)):
        if name in OWN_SERIES:
            continue
        if name not in documented:
            wrong.append(name)
        else:
            wrong += [f"{name}{{{label}}}" for label in labels if label not in documented[name]]
    return wrong


class DashboardsTest(unittest.TestCase):
    def test_they_are_what_their_sources_say(self):
        self.assertEqual(sorted(path.name for path in FOLDER.iterdir()), sorted(dashboards.texts()))
        for name, text in dashboards.texts().items():
            self.assertTrue((FOLDER / name).read_text(encoding="utf-8") == text, f"{name} is not up to date: run tools/chart")

    def test_promtool_parses_every_expression(self):
        rules = [{"record": f"dashboard:{name}:{number}", "expr": queries.filled(expression, VARIABLES)}
                 for name, dashboard in all_dashboards().items() for number, (_, expression) in enumerate(expressions(dashboard))]
        self.assertGreater(len(rules), 60)
        self.assertEqual(self.promtool(rules)[0], 0, self.promtool(rules)[1])
        self.assertNotEqual(self.promtool(rules + [{"record": "a", "expr": "sum by (x (y)"}])[0], 0)

    def promtool(self, rules):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({"groups": [{"name": "dashboards", "rules": rules}]}, file)  # JSON is YAML
            file.flush()
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def test_series_and_labels_are_those_of_the_reference(self):
        documented = reference.documented()
        self.assertGreater(len(documented), 70)
        for name, dashboard in all_dashboards().items():
            for where, expression in expressions(dashboard):
                self.assertTrue(reference.selectors(expression), expression)
                self.assertEqual(unknown_names(expression, documented), [], f"{name}: {where}: {expression}")

    def test_an_unknown_series_or_label_would_be_seen(self):
        documented = reference.documented()
        for expression, wrong in (('sum by (a) (rate(trainyard_stepp{trainer_job="$job"}[$__rate_interval]))', ["trainyard_stepp"]),
                                  ('trainyard_step{rankk="1"} / on (x) group_left (y) trainyard_rank_step{rank="}"}', ["trainyard_step{rankk}"]),
                                  ("histogram_quantile(0.9, trainyard_step_duration_seconds)", ["trainyard_step_duration_seconds"]),
                                  ("time() - trainyard_step offset 5m or vector(0)", [])):
            self.assertEqual(unknown_names(expression, documented), wrong)

    def test_legends_name_labels_that_the_query_leaves(self):
        for name, dashboard in all_dashboards().items():
            for panel in queries.panels_of(dashboard):
                for target in panel["targets"]:
                    left = set(itertools.chain(*reference.groupings(target["expr"])))
                    for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                        self.assertIn(label, left, f"{name}: {panel['title']}")
                if panel["type"] != "stat":
                    self.assertNotIn("__auto", [target["legendFormat"] for target in panel["targets"]], f"{name}: {panel['title']}")

    def test_panels_stand_beside_and_below_each_other(self):
        for name, dashboard in all_dashboards().items():
            panels = dashboard["panels"]
            self.assertEqual(len({panel["id"] for panel in panels}), len(panels), name)
            titles = [panel["title"] for panel in queries.panels_of(dashboard)]
            self.assertEqual(len(set(titles)), len(titles), name)
            for panel in panels:
                grid = panel["gridPos"]
                self.assertTrue(0 <= grid["x"] and grid["x"] + grid["w"] <= 24 and grid["w"] > 0 and grid["h"] > 0, panel["title"])
            for one, other in itertools.combinations(panels, 2):
                self.assertFalse(overlap(one["gridPos"], other["gridPos"]), f"{name}: {one['title']} and {other['title']}")

    def test_every_panel_is_whole(self):
        for name, dashboard in all_dashboards().items():
            declared = {variable["name"] for variable in dashboard["templating"]["list"]}
            for panel in dashboard["panels"]:
                self.assertIn(panel["type"], KINDS)
                if panel["type"] == "row":
                    continue
                self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS)
                self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"})
                references = [target["refId"] for target in panel["targets"]]
                self.assertTrue(references)
                self.assertEqual(len(set(references)), len(references), panel["title"])
            for where, expression in expressions(dashboard):
                used = set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval"}
                self.assertLessEqual(used, declared, f"{name}: {where}")

    def test_dashboards_are_told_apart_and_link_to_each_other(self):
        boards = all_dashboards()
        uids = [board["uid"] for board in boards.values()]
        self.assertEqual(len(set(uids)), len(uids))
        for board in boards.values():
            self.assertRegex(board["uid"], r"^[a-zA-Z0-9_-]{1,40}$")
            for target in re.findall(r"/d/([\w-]+)\?", json.dumps(board)):
                self.assertIn(target, uids)
            for query in re.findall(r"label_values\(([^)]*), (\w+)\)", json.dumps(board["templating"])):
                self.assertEqual(unknown_names(query[0].replace('\\"', '"'), reference.documented()), [])


class UnitsTest(unittest.TestCase):
    def test_numbers_are_written_as_people_read_them(self):
        for value, unit, wanted in ((0.00123, "s", "1.23 ms"), (90, "s", "90 s"), (5400, "s", "90 min"), (3725, "dtdurations", "1h 2m"), (0, "s", "0 s"),
                                    (3 << 30, "bytes", "3 GiB"), (1536, "bytes", "1.5 KiB"), (2.5e6, "Bps", "2.5 MB/s"), (0.123, "percentunit", "12.3 %"),
                                    (1234567, "locale", "1,234,567"), (1234567, "short", "1.23 M"), (3e-4, "sci", "3.00e-04"), (5.55, "none", "5.55"),
                                    (0.25, "reqps", "0.25/s"), (float("nan"), "s", "–"), (100, "none", "100")):
            self.assertEqual(units.text_of(value, unit), wanted)

    def test_ticks_are_round_and_within(self):
        for least, most, unit in ((0, 1, "none"), (0, 0.0037, "s"), (2.3, 5.1, "none"), (0, 7 << 20, "bytes"), (0, 5000, "s"), (3, 3, "none")):
            made = units.ticks(least, most, unit)
            self.assertTrue(1 <= len(made) <= 8, (least, most, made))
            self.assertTrue(all(least - 1e-9 <= value <= most * (1 + 1e-9) for value in made))


if __name__ == "__main__":
    unittest.main()
