"""Every picture that Trainyard writes, in a viewer that knows neither scripts nor CSS variables (librsvg).

    pictures_test.py BIN
"""
import collections
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
WHITE = (255, 255, 255)
FORWARD, GRADIENTS, CURVE = (0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x0B, 0x63, 0xB5)


def pixels_of(png):
    """A counter of the (red, green, blue) of an 8-bit PNG, and the alpha near its corner."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        chunk = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunk)
            assert depth == 8 and colour in (2, 6) and interlace == 0
            size_of_pixel = 4 if colour == 6 else 3
        elif kind == b"IDAT":
            data += chunk
        at += size + 12
    raw, stride = zlib.decompress(data), size_of_pixel * width
    before = bytearray(stride)
    rows = []
    for y in range(height):
        how, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for i in range(stride):
            back = i - size_of_pixel
            left, up, corner = (row[back] if back >= 0 else 0), before[i], (before[back] if back >= 0 else 0)
            if how == 1:
                row[i] = (row[i] + left) & 255
            elif how == 2:
                row[i] = (row[i] + up) & 255
            elif how == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            elif how == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))
                row[i] = (row[i] + near[2]) & 255
        rows.append(row)
        before = row
    colours = collections.Counter(tuple(row[i : i + 3]) for row in rows for i in range(0, stride, size_of_pixel))
    return colours, rows[2][4 * 2 + 3] if size_of_pixel == 4 else 255


class PicturesTest(unittest.TestCase):
    def check(self, svg, *wanted, width=500):
        self.assertNotIn("var(", svg.read_text())
        done = subprocess.run(["rsvg-convert", "--width", str(width), svg], capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        colours, alpha = pixels_of(done.stdout)
        everything = sum(colours.values())
        shown = f"{svg.name}: {colours.most_common(8)}"
        self.assertEqual(alpha, 255, "it has a background of its own")
        self.assertGreater(colours[WHITE], everything * 0.3, shown)
        black = sum(count for colour, count in colours.items() if max(colour) < 24)
        self.assertLess(black, everything * 0.02, shown)
        for colour in wanted:
            self.assertGreater(colours[colour], 20, f"{colour} in {shown}")

    def command(self, folder, *arguments):
        done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=120,
                              env={**os.environ, "TRAINYARD_WORKER": str(BIN / "trainyard-worker")})
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stdout}{done.stderr}")

    def test_pictures_of_pages(self):
        pages = sorted(ROOT.glob("docs/**/*.svg"))
        self.assertGreaterEqual(len(pages), 2)
        for page in pages:
            with self.subTest(page=page.name):
                self.check(page)

    def test_pictures_of_commands(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "text.txt").write_text("".join(f"line {i * i % 997} of the text\n" for i in range(400)))
            trainyard = BIN / "trainyard"
            self.command(folder, trainyard, "init", "--data", "text.txt", "--steps", "20", "--out", "job")
            job = (folder / "job/job.yaml").read_text()
            self.command(folder, trainyard, "plan", "job/job.yaml", "--svg", "plan.svg")
            self.check(folder / "plan.svg", GRADIENTS)
            piped = job.replace("    steps:", "    parallelism: {pipeline: 2}\n    steps:")
            piped = piped.replace("numProcPerNode: 1", "numProcPerNode: 2")
            (folder / "job/piped.yaml").write_text(piped)
            self.command(folder, trainyard, "plan", "job/piped.yaml", "--program", "--svg", "program.svg")
            self.check(folder / "program.svg", FORWARD, GRADIENTS)
            self.command(folder, trainyard, "run", "job/job.yaml", "--run-dir", "run")
            self.command(folder, ROOT / "tools/report_svg", "run", "report.svg")
            self.check(folder / "report.svg", CURVE, width=1600)  # a curve is 1.6 units wide, a dot 5


BIN = pathlib.Path(sys.argv.pop(1)).resolve()
if not shutil.which("rsvg-convert"):
    sys.exit("pictures_test: rsvg-convert is missing: run tools/setup test")
unittest.main()
