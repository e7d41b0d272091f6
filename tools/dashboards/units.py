"""Numbers as people read them, by the names that Grafana has for units; and where to put the ticks of an axis."""

import math


def _scaled(value, base, prefixes, unit):
    power = 0
    while abs(value) >= base and power < len(prefixes) - 1:
        value, power = value / base, power + 1
    return f"{_short(value)} {prefixes[power]}{unit}".rstrip()


def _short(value, decimals=None):
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if value == 0:
        return "0"
    digits = max(0, 2 - int(math.floor(math.log10(abs(value)))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _seconds(value):
    size = abs(value)
    if size == 0:
        return "0 s"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"), (172800, 1 / 3600, "h")):
        if size < limit:
            return f"{_short(value * factor)} {unit}"
    return f"{_short(value / 86400)} d"


def _duration(value):
    left, parts = int(round(value)), []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])


def text_of(value, unit, decimals=None):
    if not math.isfinite(value):
        return "–"
    if unit == "percentunit":
        return f"{_short(100 * value, decimals)} %"
    if unit == "bytes":
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"), "")
    if unit == "Bps":
        return _scaled(value, 1000, ("", "k", "M", "G", "T"), "B/s")
    if unit in ("ops", "reqps"):
        return f"{_short(value, decimals)}/s"
    if unit == "s":
        return _seconds(value)
    if unit == "dtdurations":
        return _duration(value)
    if unit == "watt":
        return _scaled(value, 1000, ("", "k", "M"), "W")
    if unit == "hertz":
        return _scaled(value, 1000, ("", "k", "M", "G"), "Hz")
    if unit == "celsius":
        return f"{_short(value, decimals)} °C"
    if unit == "locale":
        return f"{value:,.{decimals or 0}f}"
    if unit == "sci":
        return f"{value:.2e}" if value else "0"
    if unit == "none":
        return _short(value, decimals)
    return _scaled(value, 1000, ("", "k", "M", "G", "T"), "").rstrip()


def ticks(least, most, unit, wanted=5):
    """Round values from least to most, some `wanted` of them."""
    span = most - least
    if not span > 0:
        return [least]
    if unit == "s" and span > 90:
        steps = [15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200] + [86400 * 2 ** power for power in range(20)]
        step = next(size for size in steps if span / size <= wanted)
    elif unit == "bytes":
        step = 2.0 ** math.ceil(math.log2(span / wanted))
    else:
        raw = span / wanted
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(least / step - 1e-9)
    return [number * step for number in range(first, int(math.floor(most / step + 1e-9)) + 1)]


TIME_STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400]


def time_ticks(start, end, wanted):
    step = next((size for size in TIME_STEPS if (end - start) / size <= wanted), TIME_STEPS[-1])
    return step, [number * step for number in range(math.ceil(start / step), int(end // step) + 1)]
