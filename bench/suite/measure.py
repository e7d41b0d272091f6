"""Medians, interleaving and Markdown tables."""

import statistics
import subprocess
import sys
import time


def median(values):
    return statistics.median(values) if values else None


def in_turn(names, turn):
    """The order of one round: a row of a Williams design, where after as many rounds as there are names (twice as many, if
    they are odd in number) each has come once (twice) at each place and behind each other one."""
    count = len(names)
    zigzag = [-(step // 2) if step % 2 == 0 else (step + 1) // 2 for step in range(count)]
    row = [names[(place + turn) % count] for place in zigzag]
    return row[::-1] if count % 2 and turn // count % 2 else row


class Results(dict):
    """{name: [measurement, ...]}; `failed` is how many rounds each name failed."""

    def __init__(self, names):
        super().__init__((name, []) for name in names)
        self.failed = dict.fromkeys(names, 0)

    def runs(self, name):
        """For a table: of a name that failed, that as well."""
        failed = f"{self.failed[name]} failed" if self.failed[name] else ""
        return ", ".join(part for part in (str(len(self[name])) if self[name] else "", failed) if part) or "0"

    def without(self):
        """The names without a measurement."""
        return [name for name, measured in self.items() if not measured]


def interleave(rounds, contestants, budget_s):
    """Runs every contestant once a round, so that a slow minute of the machine meets all of them, and each behind another one
    in each round: the one before decides how much memory the kernel has at hand.

    `contestants` maps a name to a function that returns a measurement or None. One that fails is reported on stderr and counted,
    and the others go on. Stops after the round in which `budget_s` ran out. Returns Results.
    """
    names = list(contestants)
    results = Results(names)
    began = time.monotonic()
    for turn in range(rounds):
        for name in in_turn(names, turn):
            started = time.monotonic()
            try:
                result = contestants[name]()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                result = None
                results.failed[name] += 1
                print(f"  {name} failed: {error}", file=sys.stderr)
            took = time.monotonic() - started
            print(f"  round {turn + 1}/{rounds}  {name:42} {took:6.1f} s", file=sys.stderr, flush=True)
            if result is not None:
                results[name].append(result)
        if time.monotonic() - began > budget_s and turn + 1 < rounds:
            print(f"  stopped after round {turn + 1}: the part's {budget_s:.0f} s are used up", file=sys.stderr)
            break
    return results


def table(header, rows):
    """A Markdown table; the first column is text, the others are right-aligned."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def ratio(ours, theirs):
    return "-" if not ours or not theirs else f"{ours / theirs:.2f}x"
