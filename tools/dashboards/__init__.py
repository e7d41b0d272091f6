"""The dashboards of the chart, written as Python, and a renderer that draws them without Grafana (tools/dashboards/render)."""

import json

from . import fleet, job


def texts():
    """File name and text of each dashboard, as the chart holds them: tools/chart writes them there."""
    return {f"{name}.json": json.dumps(module.make(), indent=1, ensure_ascii=False) + "\n" for name, module in (("fleet", fleet), ("job", job))}
