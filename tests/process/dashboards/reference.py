"""What docs/reference/metrics.md lists, and what a PromQL expression names."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset", "inf", "nan"}
# Of every series about a job, and those that Prometheus itself gives.
COMMON_LABELS = {"trainer_namespace", "trainer_job", "le", "job", "instance"}


def documented():
    """Labels by the name of the series; a histogram stands under the names of its parts."""
    series = {}
    for line in (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or not re.fullmatch(r"`\w+`", cells[0]):
            continue
        name, labels = cells[0].strip("`"), {label.strip() for label in cells[2].split(",") if label.strip()}
        for part in ([f"{name}_bucket", f"{name}_sum", f"{name}_count"] if cells[1] == "histogram" else [name]):
            series[part] = labels | COMMON_LABELS
    return series


def groupings(expression):
    """The label lists of by, on and their like."""
    return [[label.strip() for label in found.split(",") if label.strip()]
            for found in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)", expression)]


def selectors(expression):
    """(name, {label: (operator, value)}) of each series that the expression selects."""
    bare = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)", " ", expression)
    found = []
    for match in re.finditer(r'([a-zA-Z_:][\w:]*)\s*(\{((?:[^{}"]|"(?:[^"\\]|\\.)*")*)\})?(?=(\s*\()?)|"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\d[\w.]*', bare):
        name, matchers, called = match.group(1), match.group(3), match.group(4)
        if name is None or called or name.lower() in WORDS:
            continue
        labels = {label: (how, value) for label, how, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"', matchers or "")}
        found.append((name, labels))
    return found
