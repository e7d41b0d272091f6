#!/usr/bin/env python3
"""The archives of tools/dist: whole by their checksums, the same twice, and what is in them runs without this machine's libraries.

    dist_test.py FOLDER-OF-PROGRAMS
"""

import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "images"))

import packages  # noqa: E402

EPOCH = "1700000000"
binaries = None


def run(*command, **more):
    more.setdefault("env", {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"})
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=300, **more)


class DistTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        cls.out = cls.make("first")
        cls.programs = next(cls.out.glob("trainyard-*-linux-x86_64.tar.gz"))
        with tarfile.open(cls.programs) as tar:
            tar.extractall(cls.folder / "root")
        cls.home = next((cls.folder / "root").iterdir())

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    @classmethod
    def make(cls, name):
        done = run(ROOT / "tools/dist", "programs", "chart", "--binaries", binaries, "--out", cls.folder / name,
                   env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
        assert done.returncode == 0, done.stderr
        return cls.folder / name

    def test_checksums_hold_and_name_every_file(self):
        done = run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        named = {line.split()[1] for line in (self.out / "SHA256SUMS").read_text().splitlines()}
        self.assertEqual(named | {"SHA256SUMS"}, {path.name for path in self.out.iterdir()})

    def test_the_same_inputs_give_the_same_bytes(self):
        self.assertEqual((self.make("again") / "SHA256SUMS").read_text(), (self.out / "SHA256SUMS").read_text())

    def test_libraries_come_from_the_archive(self):
        outside = set()
        for program in (self.home / "bin").iterdir():
            found = packages.libraries_of(program)
            self.assertTrue(found, program)
            outside |= {path for path in found.values() if self.home / "lib/trainyard" not in path.resolve().parents}
        self.assertEqual(set(packages.owners_of(outside).values()), {"libc6"})

    def test_text_becomes_a_trained_model(self):
        texts = self.folder / "texts"
        texts.mkdir()
        for part in range(4):
            (texts / f"{part}.txt").write_text("".join(f"wagon {n} of train {part}\n" for n in range(100)))
        program = self.home / "bin/trainyard"
        made = run(program, "init", "--data", texts, "--steps", 5, cwd=self.folder)
        self.assertEqual(made.returncode, 0, made.stderr)
        trained = run(program, "run", "texts-job/job.yaml", "--procs", 1, cwd=self.folder)
        self.assertEqual(trained.returncode, 0, trained.stdout + trained.stderr)
        self.assertIn("state hash", trained.stdout)

    def test_a_chart_is_one_folder_with_its_files(self):
        with tarfile.open(next(self.out.glob("trainyard-chart-*.tgz"))) as tar:
            names = tar.getnames()
        self.assertIn("trainyard/Chart.yaml", names)
        self.assertIn("trainyard/files/crd.yaml", names)
        self.assertTrue(all(name.startswith("trainyard/") for name in names), names)

    def test_what_is_missing_is_named(self):
        done = run(ROOT / "tools/dist", "images", "--images", self.folder / "none", "--out", self.folder / "empty")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("make images", done.stderr)


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
