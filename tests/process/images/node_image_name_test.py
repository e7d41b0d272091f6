#!/usr/bin/env python3
"""The node image of tools/kind has another name where anything else goes into it, or one made before would be taken."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
VERSIONS = {"kubernetes_version": "tools/kubernetes/lib.sh", "etcd_version": "tools/kubernetes/lib.sh",
            "kind_version": "tools/kind/lib.sh", "coredns_version": "tools/kind/lib.sh"}
FILES = ["tools/kind/image", "tools/kind/archive.sh", "tools/kind/coredns/main.go",
         *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "tools/kind/node_image").iterdir()))]


class NodeImageNameTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        shutil.copytree(ROOT / "tools", self.root / "tools")

    def said(self, *command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, timeout=60,
                              env=os.environ | {"TRAINYARD_CACHE": str(self.root / "cache")})
        return done.stdout.strip()

    def name(self):
        return self.said(self.root / "tools/kind/build", "--print")

    def program(self, variable):
        return self.said("bash", "-c", f'. "$1/tools/kind/lib.sh"; echo "${variable}"', "bash", self.root)

    def change(self, file, text):
        (self.root / file).write_text(text, encoding="utf-8")

    def test_another_version_of_a_program_is_another_image(self):
        names = {self.name()}
        for variable, file in VERSIONS.items():
            before = (self.root / file).read_text(encoding="utf-8")
            self.change(file, re.sub(rf"(?m)^{variable}=\S+", f"{variable}=99.9.9", before))
            self.assertNotIn(self.name(), names, variable)
            names.add(self.name())
            self.change(file, before)
        self.assertIn(self.name(), names, "all as it was")

    def test_another_file_is_another_image(self):
        self.assertGreater(len(FILES), 5)
        names = {self.name()}
        for file in FILES:
            before = (self.root / file).read_text(encoding="utf-8")
            self.change(file, before + "\n")
            self.assertNotIn(self.name(), names, file)
            names.add(self.name())
            self.change(file, before)
        (self.root / "tools/kind/node_image/default-cni.yaml").rename(self.root / "tools/kind/node_image/default-other.yaml")
        self.assertNotIn(self.name(), names, "a file of another name")

    def test_what_is_built_of_a_file_of_ours_is_built_anew_where_it_changes(self):
        before = self.program("coredns_bin")
        self.change("tools/kind/coredns/main.go", "package main\n")
        self.assertNotEqual(self.program("coredns_bin"), before)


if __name__ == "__main__":
    unittest.main()
