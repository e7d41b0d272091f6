"""tools/gpu_budget: its predictions, and the column that gpu-check measured."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1))
TOOL = SOURCE / "tools/gpu_budget"


def run(*arguments, status=0):
    done = subprocess.run([TOOL, *arguments], capture_output=True, text=True)
    if done.returncode != status:
        raise AssertionError(f"status {done.returncode}: {done.stderr}")
    return done.stdout if status == 0 else done.stderr


class GpuBudgetTest(unittest.TestCase):
    def test_predicts_the_rates_that_the_kernels_were_made_for(self):
        of = {budget["model"]: budget for budget in json.loads(run("-o", "json"))}
        self.assertGreaterEqual(of["GPT-2 124M"]["predicted_tokens_s"], 600e3)
        self.assertGreaterEqual(of["GPT-2 1558M"]["predicted_tokens_s"], 54e3)
        for budget in of.values():
            self.assertLess(budget["floor_ms"], budget["predicted_ms"])
            self.assertAlmostEqual(budget["floor_ms"],
                                   sum(one["floor_us"] * one["calls"] for one in budget["operations"]) / 1000)

    def test_floors_have_the_operations_of_the_step_that_is_measured(self):
        step = (SOURCE / "tests/gpu/gpt2_step.cc").read_text()
        named = set(re.findall(r'operation\("([^"]+)"', step))
        floors = json.loads(run("-o", "floors"))
        self.assertGreater(len(named), 10)
        # What Fast has not, or what moves no bytes that an operation cannot avoid.
        self.assertEqual(named - floors["GPT-2 124M"].keys() - {"add_exact", "memset"}, set())
        # 65,536 rows of 768: two bf16 streams in, two out.
        self.assertEqual(floors["GPT-2 124M"]["norm forward"], round(4 * 2 * 65536 * 768 / 3.85e12 * 1e6))

    def test_what_was_measured_stands_beside_it(self):
        operations = {"gelu forward": {"calls": 12, "ms": 12 * 0.4}, "adamw": {"calls": 1, "ms": 1.0}}
        report = {"parts": {"step": {"forms": {"fast": {"operations": operations, "tokens_s": 600000.0}}}}}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(report, file)
            file.flush()
            text = run("GPT-2 124M", "--report", file.name)
        self.assertRegex(text, r"gelu forward +12 +\d+ +\d+ +400 ")
        self.assertIn("600,000", text)
        self.assertRegex(text.splitlines()[-3], r"gelu forward: \+\d\.\d\d ms of a step", "the largest difference first")

    def test_the_engines_rate_stands_beside_its_models(self):
        of_model = {"GPT-2 124M": {"tokens_s": 318000}, "GPT-2 124M, canonical": {"not_run": "no memory"}}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"parts": {"speed": {"models": of_model}}}, file)
            file.flush()
            found = {of["model"]: of for of in json.loads(run("-o", "json", "--report", file.name))}
            text = run("GPT-2 124M", "--report", file.name)
        self.assertEqual([318000, None], [found[name]["engine_tokens_s"] for name in of_model])
        self.assertRegex(text, r"tokens/s of engine +6\d\d,\d\d\d +318,000 +0\.50\n")

    def test_wrong_arguments_are_named(self):
        self.assertIn("GPT-9: no such model; there are: GPT-2 124M", run("GPT-9", status=2))
        self.assertIn("no part `step` or `speed` in it", run("--report", SOURCE / "CMakePresets.json", status=2))
        self.assertIn("No such file", run("--report", "/nowhere.json", status=2))


if __name__ == "__main__":
    unittest.main()
