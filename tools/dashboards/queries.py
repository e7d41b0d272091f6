"""What a dashboard asks, with its variables filled in, and the answers of a Prometheus."""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT_S = 60


def panels_of(dashboard):
    """All panels but the headings of rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def filled(expression, variables, rate_interval="1m"):
    """The expression as Grafana would send it; a variable of which `variables` has nothing is an error."""
    def value(match):
        name = match.group(1)
        if name == "__rate_interval":
            return rate_interval
        if name not in variables:
            raise KeyError(f"the variable {name} has no value: {expression}")
        return variables[name]
    return re.sub(r"\$(\w+)", value, expression)


def legend_of(pattern, labels):
    if pattern == "__auto":
        return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name != "__name__") or labels.get("__name__", "value")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match.group(1), ""), pattern)


class Prometheus:
    """A server's HTTP API. Errors of queries are RuntimeErrors that name the query."""

    def __init__(self, address):
        self.address = address.rstrip("/")

    def ask(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/{path}?{query}", timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path} {parameters.get('query', '')}: {error.code}: {error.read().decode(errors='replace')[:500]}") from error

    def now(self):
        return float(self.ask("query", query="time()")["result"][0])

    def instant(self, query, at):
        """(labels, value) of each series."""
        data = self.ask("query", query=query, time=f"{at:.3f}")
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in data["result"]]

    def range(self, query, start, end, step):
        """(labels, [(time, value)]) of each series; values that are no number are left out."""
        data = self.ask("query_range", query=query, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:g}")
        answers = []
        for series in data["result"]:
            points = [(float(time), float(value)) for time, value in series["values"]]
            answers.append((series["metric"], [(time, value) for time, value in points if math.isfinite(value)]))
        return answers
