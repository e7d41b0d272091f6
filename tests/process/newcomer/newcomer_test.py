"""A newcomer's walk: the commands of the README's "Your own data", then those that `trainyard init` prints.

    newcomer_test.py BIN

On 1 MB of text: at most ten commands, ten minutes on two cores, builds aside.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
COMMANDS, SECONDS = 10, 600


def readme_commands():
    section = (ROOT / "README.md").read_text().split("## Your own data\n")[1]
    block = section.split("```\n")[1]
    lines = [re.split(r"\s+# ", line)[0].strip() for line in block.splitlines()]
    return [command for line in lines for command in line.split(" && ") if command]


class NewcomerTest(unittest.TestCase):
    def run_command(self, command):
        self.commands.append(command)
        path = f"{BIN}:{os.environ['PATH']}"
        ended = subprocess.run(["/bin/bash", "-c", command], cwd=self.folder, env={**os.environ, "PATH": path},
                               capture_output=True, text=True, errors="replace",  # a byte may be no letter
                               timeout=SECONDS)
        self.assertEqual(ended.returncode, 0, f"{command}\n{ended.stdout}\n{ended.stderr}")
        return ended.stdout

    def test_from_texts_to_a_model_that_is_trained_further(self):
        self.commands = []
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            self.folder = pathlib.Path(folder)
            (self.folder / "my-texts").mkdir()
            words = (ROOT / "LICENSE").read_text().split()
            for number in range(25):
                text = " ".join(words[(number * 37 + i * (i % 7 + 1)) % len(words)] for i in range(6000))
                (self.folder / "my-texts" / f"text {number}.{'md' if number % 5 == 0 else 'txt'}").write_text(text)
            printed = [self.run_command(command) for command in readme_commands()]
            shown = [line.split("     # ")[0].strip() for line in printed[0].split("next:\n")[1].splitlines()]
            export = next(line for line in shown if line.startswith("trainyard export "))
            further = next(line for line in shown if " --steps " in line)
            self.run_command(export)
            self.assertTrue((self.folder / export.split()[-1] / "model.safetensors").exists())
            before = json.loads(self.run_command("trainyard evaluate runs/my-texts -o json"))
            self.run_command(further)
            after = json.loads(self.run_command("trainyard evaluate runs/my-texts -o json"))
            self.assertEqual(after["step"], 2 * before["step"])
            loss = [score["sets"][0]["lossNatsPerToken"] for score in (before, after)]
            self.assertLess(loss[1], loss[0] + 0.1)  # a fast machine has read the text ten times by then
        seconds = time.monotonic() - begun
        print(f"{len(self.commands)} commands, {seconds:.0f} s: {self.commands}")
        self.assertLessEqual(len(self.commands), COMMANDS)
        self.assertLessEqual(seconds, SECONDS)


if __name__ == "__main__":
    BIN = sys.argv.pop()
    unittest.main()
