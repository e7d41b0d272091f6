#!/usr/bin/env python3
"""Steps of pipelines whose passes take a known time: measured, simulated and by formula. Prints Markdown, draws an SVG.

    bench/pipeline/pipelines.py --build build/release --svg docs/measurements/pipelines.svg
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

PASS_MS = 20
RANKS = range(2, 9)
MICRO_BATCHES = (2, 4, 8, 16)
PER_RANK = {"Interleaved": 2}
TOLERANCE = 0.03


def formula_ms(schedule, p, m):
    """docs/concepts/pipelines.md, with F = B = W."""
    passes = {
        "Naive": 3 * m * p,
        "GPipe": 3 * (m + p - 1),
        "OneFOneB": 3 * (m + p - 1),
        "Interleaved": 3 * (m + (p - 1) / PER_RANK["Interleaved"]),
        "ZeroBubbleH1": 3 * m + 2 * (p - 1) - (min(m, p) - 1),
    }
    return PASS_MS * passes[schedule]


def exact_ms(schedule, p, m):
    """The same, where a gradient is sent before the W of its layer, so that only the first stage's last W is waited for, and where
    a message leaves before it is received."""
    passes = {"Naive": m * (2 * p + 1), "GPipe": 3 * m + 2 * (p - 1), "OneFOneB": 3 * m + 2 * (p - 1),
              "Interleaved": 3 * m + 2 * (p - 1) / PER_RANK["Interleaved"]}
    return PASS_MS * passes[schedule] if schedule in passes else formula_ms(schedule, p, m)


def measure(program, schedule, p, m, steps):
    """One row; a real-time priority, where it is allowed, keeps other programs from delaying who wakes up."""
    priority = ["chrt", "--rr", "1"] if os.geteuid() == 0 and shutil.which("chrt") else []
    command = [str(program), schedule, str(p), str(PER_RANK.get(schedule, 1)), str(m), str(PASS_MS), str(steps)]
    row = json.loads(subprocess.run(priority + command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {"schedule": schedule, "p": p, "m": m, "measured": 1000 * statistics.median(row["measured"]),
            "simulated": 1000 * row["simulated"], "exact": exact_ms(schedule, p, m), "formula": formula_ms(schedule, p, m)}


def faults_of(row):
    faults = []
    ratio = row["measured"] / row["simulated"]
    if abs(ratio - 1) > TOLERANCE:
        faults.append("measured and simulated differ")
    if abs(row["simulated"] - row["exact"]) > 0.1:
        faults.append("simulated and the formula differ")
    return [f"{row['schedule']}, p {row['p']}, m {row['m']}: {fault}" for fault in faults]


def table(rows, schedules):
    cells = {(row["p"], row["m"], row["schedule"]): f"{row['measured']:,.0f} / {row['simulated']:,.0f} / {row['formula']:,.0f}"
             for row in rows}
    lines = ["| p | m | " + " | ".join(schedules) + " |", "|---:|---:|" + "---:|" * len(schedules)]
    for p in RANKS:
        for m in MICRO_BATCHES:
            lines.append(f"| {p} | {m} | " + " | ".join(cells.get((p, m, schedule), "-") for schedule in schedules) + " |")
    return "\n".join(lines)


def summary(rows, schedules):
    lines = ["| schedule | rows | measured / simulated | simulated / formula |", "|---|---:|---:|---:|"]
    for schedule in schedules:
        own = [row for row in rows if row["schedule"] == schedule]
        real = [row["measured"] / row["simulated"] for row in own]
        bound = [row["simulated"] / row["formula"] for row in own]
        lines.append(f"| `{schedule}` | {len(own)} | {min(real):.4f} to {max(real):.4f} | {min(bound):.3f} to {max(bound):.3f} |")
    return "\n".join(lines)


COLOURS = {"OneFOneB": "#1f6fb2", "Interleaved": "#2e8b57", "ZeroBubbleH1": "#b23a48"}
LABELS = {"OneFOneB": "GPipe, OneFOneB"}  # which take equally long
WIDTH, HEIGHT, LEFT, TOP, PANEL = 860, 380, 60, 50, 340


def panel(rows, m, left):
    """Step times of all schedules for m micro-batches, as multiples of a step without waiting: simulated as lines."""
    shown = [row for row in rows if row["m"] == m and row["schedule"] in COLOURS]
    top = 1.05 * max(row["simulated"] for row in shown) / (3 * PASS_MS * m)

    def x(p):
        return left + (p - min(RANKS)) * PANEL / (len(RANKS) - 1)

    def y(row_ms):
        return TOP + 270 * (top - row_ms / (3 * PASS_MS * m)) / (top - 1)

    parts = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{m} micro-batches</text>',
             f'<path d="M{left} {TOP}V{TOP + 270}H{left + PANEL}" fill="none" stroke="#666"/>']
    for p in RANKS:
        parts.append(f'<text x="{x(p):.1f}" y="{TOP + 288}" text-anchor="middle">{p}</text>')
    for tick in range(5):
        value = 1 + tick * (top - 1) / 4
        parts.append(f'<text x="{left - 6}" y="{TOP + 274 - 270 * tick / 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for schedule, colour in COLOURS.items():
        own = sorted((row for row in shown if row["schedule"] == schedule), key=lambda row: row["p"])
        if not own:
            continue
        points = " ".join(f"{x(row['p']):.1f},{y(row['simulated']):.1f}" for row in own)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        parts += [f'<circle cx="{x(row["p"]):.1f}" cy="{y(row["measured"]):.1f}" r="4" fill="{colour}" fill-opacity="0.6"/>'
                  for row in own]
    return parts


def draw(rows):
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             '<text x="12" y="18">Time of a step / time without waiting, by number of stages: simulated (lines), measured (dots)</text>']
    parts += panel(rows, MICRO_BATCHES[1], LEFT) + panel(rows, MICRO_BATCHES[-1], LEFT + PANEL + 90)
    drawn = [schedule for schedule in COLOURS if any(row["schedule"] == schedule for row in rows)]
    for index, schedule in enumerate(drawn):
        at = LEFT + 150 * index
        parts += [f'<rect x="{at}" y="{HEIGHT - 22}" width="12" height="12" fill="{COLOURS[schedule]}"/>',
                  f'<text x="{at + 18}" y="{HEIGHT - 12}">{LABELS.get(schedule, schedule)}</text>']
    return "\n".join(parts + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, help="build folder with bench/pipeline_bench")
    parser.add_argument("--schedules", default="Naive,GPipe,OneFOneB,Interleaved,ZeroBubbleH1")
    parser.add_argument("--steps", type=int, default=5, help="of each row, after a first one (default 5)")
    parser.add_argument("--svg", help="where the picture goes")
    options = parser.parse_args()
    program = pathlib.Path(options.build) / "bench" / "pipeline_bench"
    schedules = options.schedules.split(",")
    rows = []
    for schedule in schedules:
        for p in RANKS:
            for m in MICRO_BATCHES:
                if schedule == "Interleaved" and m % p:
                    continue  # refused
                rows.append(measure(program, schedule, p, m, options.steps))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(summary(rows, schedules), table(rows, schedules), sep="\n\n")
    if options.svg:
        pathlib.Path(options.svg).write_text(draw(rows), encoding="utf-8")
    faults = [fault for row in rows for fault in faults_of(row)]
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
