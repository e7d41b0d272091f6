"""Panels as SVG. Each function draws into a box of the panel's inside and gives back a list of elements."""

import html
import math
import time

from . import units

PALETTE = ("#3366cc", "#e07b28", "#2e9e6b", "#c0392b", "#8e5bb5", "#937048", "#d65f9e", "#6b7280", "#a3a829", "#22a5b8", "#1f4e8c", "#f0b429")
NAMED = {"green": "#2e9e6b", "red": "#c0392b", "orange": "#e07b28", "blue": "#3366cc", "text": "#1f2430"}
GREY, LINE, INK = "#6b7280", "#e3e6eb", "#1f2430"
LETTER = 6.1  # of the legend's font, in pixels: a little more than the mean


def text(x, y, words, *, size=11, colour=GREY, anchor="start", weight="normal"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(words)}</text>'


def clipped(words, width):
    letters = max(3, int(width / LETTER))
    return words if len(words) <= letters else words[:letters - 1] + "…"


def rectangle(x, y, width, height, fill, more=""):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0, width):.1f}" height="{max(0, height):.1f}" fill="{fill}"{more}/>'


def no_data(box):
    x, y, width, height = box
    return [text(x + width / 2, y + height / 2, "no data", anchor="middle", size=13)]


def legend(box, names, lines):
    """The names with their colours, in at most `lines` lines at the bottom; and how many lines it took."""
    x, y, width, height = box
    rows, at = [[]], 0
    for number, name in enumerate(names):
        name = clipped(name, 200)
        size = 24 + LETTER * len(name)
        if at + size > width and rows[-1]:
            if len(rows) == lines:
                rows[-1].append((at, None, f"+{len(names) - number}"))
                break
            rows.append([])
            at = 0
        rows[-1].append((at, PALETTE[number % len(PALETTE)], name))
        at += size
    drawn = []
    for row, members in enumerate(rows):
        baseline = y + height - 15 * (len(rows) - 1 - row) - 3
        for left, colour, name in members:
            if colour:
                drawn.append(rectangle(x + left, baseline - 5, 12, 3, colour))
            drawn.append(text(x + left + 16, baseline, name))
    return drawn, len(rows)


class Axes:
    """Where a time and a value are drawn; the grid, and what is written at it."""

    def __init__(self, box, span, bounds, unit, decimals=None):
        x, y, width, height = box
        least, most = bounds
        values = units.ticks(least, most, unit)
        labels = [units.text_of(value, unit, decimals) for value in values]
        margin = 10 + LETTER * max(map(len, labels), default=1)
        self.left, self.right, self.top, self.bottom = x + margin, x + width - 6, y + 4, y + height - 18
        self.span, self.least, self.most = span, least, most
        self.drawn = []
        for value, label in zip(values, labels):
            line = self.y(value)
            self.drawn.append(f'<path d="M{self.left:.1f} {line:.1f}H{self.right:.1f}" stroke="{LINE}"/>')
            self.drawn.append(text(self.left - 6, line + 4, label, anchor="end"))
        step, times = units.time_ticks(*span, max(2, int((self.right - self.left) / 80)))
        for moment in times:
            words = time.strftime("%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m-%d", time.gmtime(moment))
            self.drawn.append(text(min(max(self.x(moment), self.left + 12), self.right - 18), self.bottom + 14, words, anchor="middle"))

    def x(self, moment):
        return self.left + (moment - self.span[0]) / (self.span[1] - self.span[0]) * (self.right - self.left)

    def y(self, value):
        return self.bottom - (value - self.least) / ((self.most - self.least) or 1) * (self.bottom - self.top)


def bounds_of(values, least, most):
    """What the axis shows: the values, and what the panel says of its ends."""
    low, high = (min(values), max(values)) if values else (0, 1)
    if least is not None:
        low = min(least, low)
    if most is not None:
        high = max(most, high)
    if high - low < 1e-12 * max(1.0, abs(high)):
        return (low, high + (abs(high) or 1)) if low == least else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
    room = 0.06 * (high - low)
    return (low if low == least else low - room), (high if high == most else high + room)


def runs_of(points, step):
    """The points in runs without a gap."""
    runs = []
    for point in points:
        if not runs or point[0] - runs[-1][-1][0] > 1.5 * step:
            runs.append([])
        runs[-1].append(point)
    return runs


def path_of(points, axes, stepped):
    parts = []
    for number, (moment, value) in enumerate(points):
        x, y = axes.x(moment), axes.y(value)
        parts.append(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" if not stepped or not number else f"H{x:.1f}V{y:.1f}")
    return "".join(parts)


def stack(answers):
    """The answers with those below them added; where one has nothing it counts as nothing."""
    below, stacked = {}, []
    times = sorted({moment for _, points in answers for moment, _ in points})
    for name, points in answers:
        own = dict(points)
        floor = [(moment, below.get(moment, 0.0)) for moment in times]
        for moment, value in own.items():
            below[moment] = below.get(moment, 0.0) + value
        stacked.append((name, floor, [(moment, below.get(moment, 0.0)) for moment in times]))
    return stacked


def lines(panel, answers, box, span, step, marks):
    """A panel of kind timeseries. `answers`: (name, [(time, value)])."""
    custom, defaults = panel["fieldConfig"]["defaults"]["custom"], panel["fieldConfig"]["defaults"]
    names = [name for name, _ in answers]
    drawn, rows = legend(box, names, 2)
    x, y, width, height = box
    stacked = stack(answers) if custom["stacking"]["mode"] == "normal" else []
    values = [value for _, _, points in stacked for _, value in points] if stacked else [value for _, points in answers for _, value in points]
    axes = Axes((x, y, width, height - 15 * rows - 4), span, bounds_of(values, defaults.get("min"), defaults.get("max")), defaults["unit"],
                defaults.get("decimals"))
    drawn += axes.drawn
    for moment in marks:
        drawn.append(f'<path d="M{axes.x(moment):.1f} {axes.top}V{axes.bottom:.1f}" stroke="{NAMED["orange"]}" stroke-dasharray="3 3"/>')
    stepped = custom["lineInterpolation"] == "stepAfter"
    for number, (_, floor, points) in enumerate(stacked):
        if floor == points:
            continue  # always nothing: its line would hide the one below
        colour = PALETTE[number % len(PALETTE)]
        for low, high in zip(runs_of(floor, step), runs_of(points, step)):
            back = path_of(list(reversed(low)), axes, False).replace("M", "L", 1) if not stepped else "".join(
                f"L{axes.x(after):.1f} {axes.y(value):.1f}H{axes.x(moment):.1f}" for (after, _), (moment, value) in zip(reversed(low), list(reversed(low))[1:]))
            top = path_of(high, axes, stepped)
            drawn.append(f'<path d="{top}{back}Z" fill="{colour}" fill-opacity="0.35"/><path d="{top}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
    for number, (_, points) in enumerate([] if stacked else answers):
        colour = PALETTE[number % len(PALETTE)]
        for run in runs_of(points, step):
            if len(run) == 1 or custom["drawStyle"] == "points":
                drawn += [f'<circle cx="{axes.x(moment):.1f}" cy="{axes.y(value):.1f}" r="2" fill="{colour}"/>' for moment, value in run]
            else:
                drawn.append(f'<path d="{path_of(run, axes, stepped)}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-linejoin="round"/>')
    return drawn


def states(answers, box, span, step):
    """A panel of kind state-timeline: a row for each series that is ever 1, filled where it is."""
    x, y, width, height = box
    shown = [(name, points) for name, points in answers if any(value == 1 for _, value in points)]
    if not shown:
        return no_data(box)
    margin = 10 + LETTER * max(len(name) for name, _ in shown)
    axes = Axes((x + margin, y, width - margin, height), span, (0, 1), "none")
    drawn = [element for element in axes.drawn if not element.startswith("<path") and 'text-anchor="end"' not in element]
    row = (axes.bottom - axes.top) / len(shown)
    for number, (name, points) in enumerate(shown):
        top, size = axes.top + number * row, min(row * 0.8, 34)
        drawn.append(text(axes.left - 8, top + row / 2 + 4, name, anchor="end", colour=INK))
        drawn.append(rectangle(axes.left, top + (row - size) / 2, axes.right - axes.left, size, "#f1f3f6"))
        for run in runs_of([point for point in points if point[1] == 1], step):
            begin, end = axes.x(run[0][0]), axes.x(min(run[-1][0] + step, span[1]))
            drawn.append(rectangle(begin, top + (row - size) / 2, max(2, end - begin), size, PALETTE[0]))
    return drawn


def bars(panel, answers, box):
    """A panel of kind bargauge. `answers`: (name, value)."""
    x, y, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    most = max([defaults.get("max") or 0] + [value for _, value in answers if math.isfinite(value)]) or 1
    answers = sorted(answers, key=lambda answer: -answer[1])
    room = max(int(width / 3), 60)
    row = min(height / len(answers), 26)
    drawn = []
    for number, (name, value) in enumerate(answers):
        middle = y + row * (number + 0.5)
        drawn.append(text(x, middle + 4, clipped(name, room), colour=INK))
        full = width - room - 90
        drawn.append(rectangle(x + room, middle - row * 0.35, full, row * 0.7, "#f1f3f6"))
        drawn.append(rectangle(x + room, middle - row * 0.35, full * max(0, min(1, value / most)), row * 0.7, PALETTE[0]))
        drawn.append(text(x + width - 4, middle + 4, units.text_of(value, defaults["unit"], defaults.get("decimals")), anchor="end", colour=INK))
    return drawn


def number(panel, answers, box):
    """A panel of kind stat."""
    x, y, width, height = box
    name, value = answers[0]
    defaults = panel["fieldConfig"]["defaults"]
    words = name if panel["options"]["textMode"] == "name" else units.text_of(value, defaults["unit"], defaults.get("decimals"))
    colour = NAMED["text"]
    for level in defaults["thresholds"]["steps"]:
        if level["value"] is None or value >= level["value"]:
            colour = NAMED[level["color"]]
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == name:
            colour = NAMED[override["properties"][0]["value"]["fixedColor"]]
    size = min(34, width / max(1, 0.62 * len(words)))
    return [text(x + width / 2, y + height / 2 + size / 3 - 4, words, size=round(size), colour=colour, anchor="middle", weight="600")]
