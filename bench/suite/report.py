"""The Markdown section that a measurement writes: one part after the other, whatever becomes of each."""

import pathlib
import subprocess
import sys
import time

import machine


def build_of(folder):
    """What a build folder is called in a section."""
    folder = pathlib.Path(folder).resolve()
    return "build preset `release`" if folder.name == "release" else f"build folder {folder.name}"


def of_parts(parts):
    """Lines of a section for each (title, measure): `measure()` gives its Markdown. One that cannot be measured says so, and
    the others go on."""
    lines = []
    for title, measure in parts:
        began, load = time.monotonic(), machine.load()
        print(f"== {title}", file=sys.stderr, flush=True)
        try:
            body = measure()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            body = f"Not measured: {error}\n"
            print(body, file=sys.stderr)
        lines += [f"### {title}", "", body.rstrip(), "", f"({time.monotonic() - began:.0f} s; load before it {load:.1f})", ""]
    return lines


def publish(lines, out):
    """Prints them, and writes them to the file `out` where there is one."""
    text = "\n".join(lines)
    print(text)
    if out:
        path = pathlib.Path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"written to {out}", file=sys.stderr)
