#!/usr/bin/env python3
"""What failures cost: trains one job several times while its ranks or pods are killed at random.

    bench/goodput/poisson_kills.py [--bin DIR] [--manifest FILE] [--ranks N] [--nodes N] [--means S,S,...]
                                   [--victims Rank|Pod] [--seconds S | --steps N] [--seed N] [--strategy NAME]
                                   [--memory-every-steps Auto|N,...] [--memory-replicas N] [--out FOLDER]

For each mean time between failures (0: none), and each interval of states in memory, a fresh run of
`--seconds` seconds, which ends by SIGINT with a checkpoint, or of `--steps` steps. At exponentially
distributed times (Poisson process) a random rank gets SIGKILL, or the agent of a random pod, with which
its ranks end and the memory that it holds. Only processes of that run are signalled. Times come from
this program's own clock and from the progress pages of the ranks, read every few milliseconds, not from
what Trainyard says of itself; the run's own ledger (status.json) is printed beside them. With `--steps`
all runs must end in the state of the run without failures, which has to be among them: another state
hash ends this program with status 1.

Formulas. goodput = (steps kept / wall seconds) / (the same without failures, with the same interval): a
step that is lost and done again counts once. With `--steps` the wall includes the last checkpoint.
lost steps of a failure = newest step of any rank when it struck - step resumed from. Recovery, from the
kill: `decide` until the new generation stands in the status, `start` until its first rank process
exists, `restore` until every rank has restored its state, `first step` until the first new step is
done. A failure that strikes before the first step counts as a failure of its own, and its times run
from the newest kill.

Prints Markdown; writes goodput.json and goodput.svg into --out.
"""

import argparse
import json
import mmap
import os
import pathlib
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.004
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 120
LAST_LINES = 10
ENDLESS_STEPS = 100000000

# Offsets in a rank's progress page (common/worker_contract.h).
MAGIC, PAGE_BYTES = 0x5459415244504731, 4096
STEP_OFFSET, RESTORED_OFFSET = 24, 120


class Page:
    """One rank's progress page, mapped through /proc while the process lives."""

    def __init__(self, pid, fd):
        with open(f"/proc/{pid}/fd/{fd}", "rb") as file:
            self.memory = mmap.mmap(file.fileno(), PAGE_BYTES, prot=mmap.PROT_READ)
        if struct.unpack_from("<Q", self.memory, 0)[0] not in (0, MAGIC):
            raise ValueError("not a progress page")

    def _number(self, offset):
        """-1 as long as the rank has not set the page up: its zeros mean nothing yet."""
        if struct.unpack_from("<Q", self.memory, 0)[0] != MAGIC:
            return -1
        return struct.unpack_from("<q", self.memory, offset)[0]

    def step(self):
        return self._number(STEP_OFFSET)

    def restored_step(self):
        return self._number(RESTORED_OFFSET)


class Rank:
    def __init__(self, pid, agent, environment):
        self.pid, self.agent = pid, agent
        self.number = int(environment["RANK"])
        self.generation = int(environment["TRAINYARD_GENERATION"])
        self.page = Page(pid, environment["TRAINYARD_PROGRESS_FD"])


def children_of(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        pass
    return found


def ranks_of(run_pid):
    """The living ranks of a run: grandchildren that have a progress page."""
    ranks = []
    for agent in children_of(run_pid):
        for pid in children_of(agent):
            try:
                raw = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
                environment = dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)
                if "TRAINYARD_PROGRESS_FD" in environment and pathlib.Path(f"/proc/{pid}/exe").exists():
                    ranks.append(Rank(pid, agent, environment))
            except (OSError, KeyError, ValueError):
                pass  # it is just starting or ending
    return ranks


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Failure:
    """One kill and what followed, in seconds of this program's clock."""

    def __init__(self, at, step, generation):
        self.at, self.step, self.generation = at, step, generation
        self.decided = self.started = self.restored = self.first_step = None
        self.resumed_from = None

    def lost_steps(self):
        return None if self.resumed_from is None else max(0, self.step - self.resumed_from)


def generation_in_status(run_dir):
    try:
        document = json.loads((run_dir / "status.json").read_text())
        return document.get("status", document).get("membership", {}).get("generation", 0)
    except (OSError, ValueError):
        return 0


class Experiment:
    def __init__(self, options, mean, memory_every, folder):
        self.options, self.mean, self.memory_every = options, mean, memory_every
        self.run_dir = folder / f"run-{mean:g}-{memory_every}"
        self.job = tuned_job(options, memory_every, folder)
        self.random = random.Random(options.seed * 1000 + int(mean))
        self.failures = []
        self.ranks = []
        self.newest_step = 0

    def start(self):
        log = open(self.run_dir.with_suffix(".log"), "wb")
        command = [str(self.options.bin / "trainyard"), "run", str(self.job), "--run-dir", str(self.run_dir),
                   "--nodes", str(self.options.nodes), "--procs", str(self.options.ranks // self.options.nodes), "-o", "json"]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def refresh(self):
        """Looks for new ranks when the known ones are not all alive."""
        if len(self.ranks) < self.options.ranks or not all(is_alive(rank.pid) for rank in self.ranks):
            self.ranks = ranks_of(self.process.pid)

    def observe(self, now):
        self.refresh()
        steps = [rank.page.step() for rank in self.ranks]
        failure = self.failures[-1] if self.failures else None
        if failure is None or failure.first_step is not None:
            self.newest_step = max([self.newest_step, *steps])
            return
        if failure.decided is None:
            if generation_in_status(self.run_dir) > failure.generation:
                failure.decided = now
            return
        mine = [rank for rank in self.ranks if rank.generation > failure.generation]
        if failure.started is None and mine:
            failure.started = now
        restored = [rank.page.restored_step() for rank in mine]
        if failure.restored is None and len(mine) == self.options.ranks and min(restored) >= 0:
            failure.restored, failure.resumed_from = now, restored[0]
        if failure.restored is not None and mine and max(rank.page.step() for rank in mine) > failure.resumed_from:
            failure.first_step = now
            self.newest_step = max(rank.page.step() for rank in mine)

    def kill_one(self, now):
        alive = [rank for rank in self.ranks if is_alive(rank.pid)]
        if not alive:
            return False
        victim = self.random.choice(alive)
        step = max(rank.page.step() for rank in alive)
        # Nothing new is lost when it strikes again before the first step.
        self.failures.append(Failure(now, max(step, 0), victim.generation))
        os.kill(victim.agent if self.options.victims == "Pod" else victim.pid, signal.SIGKILL)
        return True

    def wait_for_first_step(self):
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            self.refresh()
            if len(self.ranks) == self.options.ranks and min(rank.page.step() for rank in self.ranks) > 0:
                return
            time.sleep(POLL_SECONDS)
        ended = self.process.poll() is not None
        late = f"no first step within {START_SECONDS_MAX} s"
        raise SystemExit(self.last_words("ended before its first step" if ended else late))

    def last_words(self, what):
        """What happened and what the run said last; its log goes with the folder."""
        lines = self.run_dir.with_suffix(".log").read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join([f"{self.run_dir.name}: {what}; it said:"] + ["  " + line for line in lines])

    def next_kill(self, now):
        return now + self.random.expovariate(1 / self.mean) if self.mean > 0 else float("inf")

    def run(self):
        self.start()
        try:
            self.wait_for_first_step()
            begun = time.monotonic()
            first = max(rank.page.step() for rank in self.ranks)
            kill_at = self.next_kill(begun)
            while (now := time.monotonic()) < begun + self.options.seconds:
                if self.process.poll() is not None:
                    if self.options.steps and self.process.returncode == 0:
                        break
                    raise SystemExit(self.last_words("ended by itself"))
                self.observe(now)
                if now >= kill_at and self.kill_one(now):
                    kill_at = self.next_kill(now)
                time.sleep(POLL_SECONDS)
            else:
                if self.options.steps:
                    raise SystemExit(self.last_words(f"has not done {self.options.steps} steps in {self.options.seconds:g} s"))
            wall = time.monotonic() - begun
        finally:
            self.stop()
        return self.result(wall, first)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def kept_steps(self):
        """Steps that were not lost: while a failure is being recovered from, those before it that count."""
        if self.options.steps:
            return self.options.steps
        failure = self.failures[-1] if self.failures else None
        if failure is None or failure.first_step is not None:
            return self.newest_step
        return failure.resumed_from if failure.resumed_from is not None else self.newest_step

    def state_hash(self):
        """Of the state that the run has ended with; empty where it was interrupted."""
        for line in reversed(self.run_dir.with_suffix(".log").read_text(errors="replace").splitlines()):
            if line.startswith("{") and (found := json.loads(line)).get("type") == "summary":
                return found.get("stateHash", "")
        return ""

    def result(self, wall, first):
        document = json.loads((self.run_dir / "status.json").read_text())
        status = document.get("status", document)
        recovered = [f for f in self.failures if f.first_step is not None]
        stages = {
            "decide": [f.decided - f.at for f in recovered],
            "start": [f.started - f.at for f in recovered],
            "restore": [f.restored - f.at for f in recovered],
            "first step": [f.first_step - f.at for f in recovered],
        }
        return {"mean": self.mean, "memoryEverySteps": self.memory_every, "stateHash": self.state_hash(),
                "wall": wall, "steps": self.kept_steps() - first, "failures": len(self.failures),
                "recovered": len(recovered), "lost": [f.lost_steps() for f in recovered], "stages": stages,
                "ledger": status.get("goodput"), "restarts": status.get("restarts", {}).get("total")}


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def undisturbed(results, memory_every):
    """The run without failures of this interval, or else the first one of it."""
    of_interval = [r for r in results if r["memoryEverySteps"] == memory_every]
    return next((r for r in of_interval if r["mean"] == 0), of_interval[0])


def row(result, results, options):
    base = undisturbed(results, result["memoryEverySteps"])
    steps_per_second = base["steps"] / base["wall"]
    rate = result["steps"] / result["wall"]
    lost = result["lost"]
    mean = "none" if result["mean"] == 0 else f"{result['mean']:g} s"
    lost_text = f"{statistics.mean(lost):.1f} ({max(lost)})" if lost else "-"
    cells = [result["memoryEverySteps"], mean, f"{result['wall']:.0f}", str(result["failures"]), f"{rate:.2f}",
             f"{100 * rate / steps_per_second:.1f} %", lost_text]
    for stage in ("decide", "start", "restore", "first step"):
        times = result["stages"][stage]
        cells.append(f"{statistics.median(times):.2f} / {quantile(times, 0.99):.2f}" if times else "-")
    ledger = result["ledger"] or {}
    cells.append(str(ledger.get("ratio", "-")))
    if options.steps:
        cells.append("equal" if has_right_state(result, results) else "DIFFERS")
    return "| " + " | ".join(cells) + " |"


def has_right_state(result, results):
    return result["stateHash"] == next(r["stateHash"] for r in results if r["mean"] == 0) != ""


def markdown(results, options):
    heads = ["memoryEverySteps", "mean time between kills", "wall, s", "kills", "steps/s kept", "goodput",
             "lost steps a failure, mean (max)", "decide, s p50 / p99", "start", "restore", "first step", "the run's own ledger"]
    if options.steps:
        heads.append("state hash")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + [row(result, results, options) for result in results])


def svg(results):
    """Goodput over the mean time between failures, logarithmic; of the first interval of states in memory."""
    results = [r for r in results if r["memoryEverySteps"] == results[0]["memoryEverySteps"]]
    base = undisturbed(results, results[0]["memoryEverySteps"])
    rate = base["steps"] / base["wall"]
    points = sorted((r["mean"], r["steps"] / r["wall"] / rate) for r in results if r["mean"] > 0)
    width, height, left, bottom = 640, 320, 60, 40
    import math
    low, high = math.log10(min(p[0] for p in points) / 1.5), math.log10(max(p[0] for p in points) * 1.5)

    def place(mean, goodput):
        x = left + (math.log10(mean) - low) / (high - low) * (width - left - 20)
        return x, height - bottom - goodput * (height - bottom - 20)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             "<style>text{fill:#444}line{stroke:#ccc}@media(prefers-color-scheme:dark){text{fill:#ccc}line{stroke:#555}}</style>"]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = place(points[0][0], share)[1]
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - 20}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for mean, goodput in points:
        x, y = place(mean, goodput)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#2a78d6"/>')
        parts.append(f'<text x="{x:.1f}" y="{y - 10:.1f}" text-anchor="middle">{goodput:.0%}</text>')
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{mean:g} s</text>')
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in points))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#2a78d6" stroke-width="2"/>')
    parts.append(f'<text x="{(left + width) / 2}" y="{height - 4}" text-anchor="middle">mean time between kills of a rank</text>')
    return "\n".join(parts + ["</svg>"]) + "\n"


def tuned_job(options, memory_every, folder):
    """The manifest with budgets that do not end the experiment, as JSON beside the runs."""
    shown = subprocess.run([str(options.bin / "trainyard"), "validate", str(options.manifest), "-o", "json"],
                           capture_output=True, check=False)
    if shown.returncode != 0:
        raise SystemExit(shown.stdout.decode() + shown.stderr.decode())
    text = options.manifest.read_text()
    marker = "  engine:\n"
    if text.count(marker) != 1:
        raise SystemExit(f"{options.manifest}: found {text.count(marker)} lines '  engine:', wanted one under spec")
    policy = (f"  failurePolicy:\n    restartStrategy: {options.strategy}\n"
              "    backoff: {initialSeconds: 0, maxSeconds: 1}\n    budgets:\n" + "".join(
        f"    - {{class: {c}, maxRestarts: 10000, windowSeconds: 60}}\n" for c in ("Application", "Infrastructure", "Hang")))
    text = text.replace(marker, policy + marker).replace("numNodes: 1\n", f"numNodes: {options.nodes}\n")
    saving = f"everySteps: {options.every_steps}"
    if memory_every != "Auto":
        saving += f"\n    memoryEverySteps: {memory_every}"
    if options.memory_replicas:
        saving += f"\n    memoryReplicas: {options.memory_replicas}"
    for old, new in (("../../runs", str(ROOT / "runs")), ("everySteps: 200", saving),
                     ("steps: 2500", f"steps: {options.steps or ENDLESS_STEPS}"), ("evaluation: {everySteps: 500, sequences: 256}", "")):
        text = text.replace(old, new)
    job = folder / f"job-{memory_every}.yaml"
    job.write_text(text)
    return job


def main():
    parser = argparse.ArgumentParser(description="Trains while ranks or pods are killed at random; prints what that costs.")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--manifest", type=pathlib.Path, default=ROOT / "manifests/examples/state-of-the-union.yaml")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=1, help="pods, of equally many ranks")
    parser.add_argument("--victims", default="Rank", choices=("Rank", "Pod"), help="what is killed")
    parser.add_argument("--means", default="0,60,15,5", help="seconds between kills, 0 for none")
    parser.add_argument("--seconds", type=float, default=180, help="of each run; with --steps at most")
    parser.add_argument("--steps", type=int, help="of each run, which then ends by itself; its state is compared")
    parser.add_argument("--every-steps", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategy", default="RecreateAll", choices=("RecreateAll", "ReplacePod", "InPlace"))
    parser.add_argument("--memory-every-steps", default="Auto",
                        help="under InPlace, one or several: a number, or Auto, with which copies cost at most 1 %% of a step")
    parser.add_argument("--memory-replicas", type=int, default=0, help="under InPlace: copies on the next node")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/goodput")
    options = parser.parse_args()
    if options.nodes < 1 or options.ranks % options.nodes != 0:
        raise SystemExit(f"--ranks {options.ranks}: wanted a multiple of --nodes {options.nodes}, as pods have equally many ranks")
    means = [float(mean) for mean in options.means.split(",")]
    if options.steps and 0 not in means:
        raise SystemExit("--steps compares with the run without kills: --means must have 0")
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="trainyard-goodput-") as name:
        folder = pathlib.Path(name)
        for mean in means:
            for memory_every in options.memory_every_steps.split(","):
                print(f"# mean {mean:g} s, memoryEverySteps {memory_every}", file=sys.stderr, flush=True)
                results.append(Experiment(options, mean, memory_every, folder).run())
    (options.out / "goodput.json").write_text(json.dumps(results, indent=1) + "\n")
    if any(r["mean"] > 0 for r in results):
        (options.out / "goodput.svg").write_text(svg(results))
    print(markdown(results, options))
    if options.steps and not all(has_right_state(result, results) for result in results):
        raise SystemExit("a run has not ended in the state of the run without kills")


if __name__ == "__main__":
    main()
