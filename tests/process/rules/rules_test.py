#!/usr/bin/env python3
"""The chart's rules for Prometheus: promtool takes them, each alert is tested to fire and to be silent and has its runbook, and
each series that they name is one that docs/reference/metrics.md lists."""

import pathlib
import re
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RULES = sorted((ROOT / "charts/trainyard/files/rules").glob("*.yaml"))


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def alerts(rules):
    return re.findall(r"^ *- alert: (\w+)$", rules.read_text(encoding="utf-8"), re.MULTILINE)


class RulesTest(unittest.TestCase):
    def test_promtool_takes_every_file(self):
        self.assertTrue(RULES)
        for rules in RULES:
            code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", rules)
            self.assertEqual(code, 0, said)

    def test_every_alert_fires_where_it_should(self):
        for rules in RULES:
            text = (HERE / f"{rules.stem}_test.yaml").read_text(encoding="utf-8")
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text.replace("RULES", str(rules)))
                file.flush()
                code, said = promtool("test", "rules", file.name)
            self.assertEqual(code, 0, said)
            for alert in alerts(rules):
                self.assertRegex(text, rf"alertname: {alert}\n", f"{alert} is never expected to fire")
                self.assertRegex(text, rf"alertname: {alert}, exp_alerts: \[\]", f"{alert} is never expected to be silent")

    def test_every_alert_has_its_runbook(self):
        book = (ROOT / "docs/operating/alerts.md").read_text(encoding="utf-8")
        for rules in RULES:
            for alert in alerts(rules):
                self.assertIn(f"\n## {alert}\n", book)
                self.assertIn(f"docs/operating/alerts.md#{alert.lower()}\n", rules.read_text(encoding="utf-8"))

    def test_series_are_those_of_the_reference(self):
        listed = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
        for rules in RULES:
            named = re.findall(r"\b((?:controller_runtime|workqueue|leader_election|rest_client|trainyard)_\w+)\b",
                               re.sub(r"(?m)^ *- (record|alert):.*$", "", rules.read_text(encoding="utf-8")))
            self.assertTrue(named)
            for series in named:
                self.assertIn(f"`{re.sub('_(bucket|sum|count)$', '', series)}`", listed)


if __name__ == "__main__":
    unittest.main()
