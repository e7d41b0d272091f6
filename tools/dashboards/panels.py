"""What dashboards are written in: rows of panels of one kind each, laid out in Grafana's grid of 24 columns from the left to the right.

A panel's queries are of the datasource that the variable `datasource` names. Where a query has a legend, `{{label}}` in it stands
for the label's value.
"""

COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SERIES_HEIGHT, STAT_HEIGHT = 8, 4


def _targets(queries, instant):
    """`queries`: one or a list; each an expression, or a pair of it and its legend."""
    targets = []
    for number, query in enumerate(queries if isinstance(queries, list) else [queries]):
        expression, legend = (query, "") if isinstance(query, str) else query
        target = {"datasource": DATASOURCE, "refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend or "__auto"}
        targets.append(target | ({"instant": True, "range": False} if instant else {"range": True}))
    return targets


def _panel(kind, title, queries, unit, width, height, *, description, instant, defaults, options, links):
    defaults = {"unit": unit} | defaults
    if links:
        defaults["links"] = links
    return {"type": kind, "title": title, "description": description, "datasource": DATASOURCE, "gridPos": {"w": width, "h": height},
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options, "targets": _targets(queries, instant)}


def stat(title, queries, unit="none", *, width=3, what="", names=False, decimals=None, bad=None, colours=None):
    """One number, or with `names` the legend of the one series there is. `bad`: from there on it is red."""
    steps = [{"color": "green" if bad is not None else "text", "value": None}] + ([{"color": "red", "value": bad}] if bad is not None else [])
    defaults = {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}, "mappings": []}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "name" if names else "value",
               "colorMode": "value", "graphMode": "none", "justifyMode": "center", "orientation": "auto"}
    made = _panel("stat", title, queries, unit, width, STAT_HEIGHT, description=what, instant=True, defaults=defaults, options=options, links=None)
    if colours:
        made["fieldConfig"]["overrides"] = [{"matcher": {"id": "byName", "options": name}, "properties": [
            {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]} for name, colour in colours.items()]
    return made


def series(title, queries, unit="short", *, width=12, what="", stacked=False, least=0, most=None, steps=False, points=False, decimals=None,
           links=None):
    """Lines over time. `least`: where the axis begins; None: at the lowest value."""
    custom = {"drawStyle": "points" if points else "line", "lineWidth": 1, "pointSize": 5, "fillOpacity": 40 if stacked else 8, "spanNulls": False,
              "showPoints": "auto", "lineInterpolation": "stepAfter" if steps else "linear",
              "stacking": {"mode": "normal" if stacked else "none", "group": "A"}}
    defaults = {"color": {"mode": "palette-classic"}, "custom": custom}
    for key, value in (("min", least), ("max", most), ("decimals", decimals)):
        if value is not None:
            defaults[key] = value
    options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    return _panel("timeseries", title, queries, unit, width, SERIES_HEIGHT, description=what, instant=False, defaults=defaults, options=options,
                  links=links)


def bars(title, query, unit="short", *, width=12, what="", most=None, decimals=None, links=None):
    """The newest value of each series, as a bar."""
    defaults = {"color": {"mode": "continuous-BlPu"}, "min": 0}
    for key, value in (("max", most), ("decimals", decimals)):
        if value is not None:
            defaults[key] = value
    options = {"orientation": "horizontal", "displayMode": "basic", "showUnfilled": True, "valueMode": "color",
               "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return _panel("bargauge", title, query, unit, width, SERIES_HEIGHT, description=what, instant=True, defaults=defaults, options=options, links=links)


def states(title, query, *, width=12, what=""):
    """A bar over time for each series, filled where it is 1."""
    mapping = {"type": "value", "options": {"0": {"text": " ", "color": "transparent", "index": 0}, "1": {"text": " ", "color": "blue", "index": 1}}}
    defaults = {"color": {"mode": "fixed", "fixedColor": "blue"}, "custom": {"lineWidth": 0, "fillOpacity": 80}, "mappings": [mapping]}
    options = {"mergeValues": True, "showValue": "never", "rowHeight": 0.8, "alignValue": "left",
               "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "single", "sort": "none"}}
    return _panel("state-timeline", title, query, "none", width, SERIES_HEIGHT, description=what, instant=False, defaults=defaults, options=options,
                  links=None)


def variable(name, query, label, *, several=False):
    made = {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "refresh": 2, "sort": 1, "hide": 0,
            "query": {"query": query, "refId": "variable"}, "definition": query, "multi": several, "includeAll": several}
    return made | ({"allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}} if several else {"current": {}})


def dashboard(uid, title, description, variables, rows, *, since, refresh, annotations=()):
    """`rows`: (title, panels) from the top to the bottom; panels that do not fit beside the others go below them."""
    panels, y = [], 0
    for name, members in rows:
        panels.append({"type": "row", "title": name, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}, "panels": []})
        x, y, tallest = 0, y + 1, 0
        for panel in members:
            width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
            if x + width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            panel["gridPos"] = {"x": x, "y": y, "w": width, "h": height}
            x, tallest = x + width, max(tallest, height)
            panels.append(panel)
        y += tallest
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0, "current": {}}
    marks = [{"name": name, "enable": True, "hide": False, "iconColor": colour, "datasource": DATASOURCE, "expr": expression, "titleFormat": text,
              "step": "15s"} for name, colour, expression, text in annotations]
    return {"uid": uid, "title": title, "description": description, "tags": ["trainyard"], "schemaVersion": 39, "version": 1, "editable": True,
            "graphTooltip": 1, "timezone": "browser", "time": {"from": since, "to": "now"}, "refresh": refresh,
            "links": [{"title": "Trainyard", "type": "dashboards", "tags": ["trainyard"], "asDropdown": True, "includeVars": True, "keepTime": True}],
            "annotations": {"list": marks}, "templating": {"list": [source, *variables]}, "panels": panels}
