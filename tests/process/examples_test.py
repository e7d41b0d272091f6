#!/usr/bin/env python3
"""The example jobs with an engine: each can be planned for the ranks that it names and fits into its pods' limits, and
every `trainyard plan` and `trainyard validate` of its comments works as it stands there.

usage: examples_test.py SOURCE TRAINYARD
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

VOCABULARY = "256"  # of bytes; the presets' own is larger


def main() -> int:
    source, trainyard = (os.path.abspath(path) for path in sys.argv[1:3])
    folder = os.path.join(source, "manifests", "examples")
    failures, planned, commands = [], 0, 0
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # what threads take counts for the pods' memory
    with tempfile.TemporaryDirectory() as work:
        os.symlink(os.path.join(source, "manifests"), os.path.join(work, "manifests"))

        def run(*arguments):
            return subprocess.run([trainyard, *arguments], cwd=work, capture_output=True, text=True, timeout=60, check=False)

        for name in sorted(os.listdir(folder)):
            if not name.endswith(".yaml"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = file.read()
            for line in re.findall(r"^# +trainyard ((?:plan|validate) [^\n]*)", text, re.MULTILINE):
                commands += 1
                done = run(*shlex.split(line, comments=True))
                if done.returncode != 0:
                    failures.append(f"{name}: trainyard {line}\n{done.stdout}{done.stderr}")
            if not re.search(r"^  engine:", text, re.MULTILINE):
                continue
            planned += 1
            number = {key: int(value) for key, value in re.findall(r"^  (numNodes|numProcPerNode): (\d+)", text, re.MULTILINE)}
            ranks = number["numNodes"] * number["numProcPerNode"]
            arguments = ["plan", f"manifests/examples/{name}", "-o", "json"]
            if "preset:" not in text:
                arguments += ["--vocab", VOCABULARY]
            done = run(*arguments)
            if done.returncode != 0:
                failures.append(f"{name}: trainyard {' '.join(arguments)}\n{done.stderr}")
                continue
            plan = json.loads(done.stdout)
            if plan["ranks"] != ranks:
                failures.append(f"{name}: planned for {plan['ranks']} ranks, wanted {ranks}")
            if plan.get("podDoubt"):
                failures.append(f"{name}: does not fit into its pods: {plan['podDoubt']}")
    if planned < 13 or commands < 5:
        failures.append(f"{planned} examples with an engine and {commands} commands in comments: wanted more")
    print("\n".join(failures) or f"{planned} examples planned, {commands} commands run")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
