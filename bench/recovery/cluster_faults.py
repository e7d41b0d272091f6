#!/usr/bin/env python3
"""How long a job on real nodes takes from a fault to its next step.

    bench/recovery/cluster_faults.py [--bin DIR] [--kills N] [--losses N] [--ranks N] [--strategy NAME] [--within P50,P99] [--folder DIR] [--out FILE]

Starts the cluster of the tests (tests/cluster/cluster: one control plane, two workers, nodes lost after 10 s without a
heartbeat) and trains one small job on both workers, --ranks of them on each, with checkpoints on a volume that they share.
Its settings are the defaults, but for budgets that the faults do not use up and windows so short that no fault is the third of
a pod, which would replace it. Then, one after the other, ranks get SIGKILL in their pods (--kills), and workers lose their power (--losses, each with a
job of its own, whose pods leave a lost node at once). Columns are seconds since the fault, by this machine's clock, which the
nodes share:

    detect      the operator's log says that a rank has exited or that an agent is silent
    decide      the new generation stands in the job's status
    pods ready  all its pods are ready
    ranks       all its rank processes exist
    restored    all of them have their state
    first step  all of them have done one

The last three are read from the ranks' progress pages through /proc every few milliseconds. Needs root, or at least the right to
read the ranks' /proc. Prints Markdown; --out has every fault as JSON. Exit status: 1 where --within is missed by the kills, or
where a pod or container is another one after kills in place.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "goodput"))
from poisson_kills import Page, quantile  # noqa: E402  pylint: disable=wrong-import-position

NAMESPACE, JOB, NODES = "recovery", "train", 2
HISTOGRAM_SECONDS = 0.1
STAGES = ("detect", "decide", "pods ready", "ranks", "restored", "first step")
POLL_SECONDS = 0.005
SCAN_SECONDS = 0.05
LIMIT_SECONDS = 180


def wait_for(what, condition, limit=LIMIT_SECONDS):
    deadline = time.time() + limit
    while not (found := condition()):
        if time.time() > deadline:
            raise SystemExit(f"waited {limit} s for {what}")
        time.sleep(POLL_SECONDS)
    return found


class Cluster:
    def __init__(self, folder, binaries):
        self.folder, self.binaries = folder, binaries
        self.environment = {**os.environ, "KUBECONFIG": str(folder / "admin.kubeconfig")}

    def __enter__(self):
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([ROOT / "tests/cluster/cluster", "up", self.folder, self.binaries], check=True, stdout=sys.stderr,
                       env={**os.environ, "TRAINYARD_CLUSTER": "required"})
        return self

    def __exit__(self, *_):
        subprocess.run([ROOT / "tests/cluster/cluster", "down", self.folder], check=True, stdout=sys.stderr)

    def kubectl(self, *words, text=None):
        done = subprocess.run([self.folder / "kubectl", *words], input=text, capture_output=True, text=True, check=False, env=self.environment)
        if done.returncode != 0:
            raise SystemExit(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def node(self, act, name):
        subprocess.run([ROOT / "tools/kind/node", self.folder, act, name], check=True, stdout=subprocess.DEVNULL)

    def volume(self, claim):
        done = subprocess.run([ROOT / "tools/kind/volume", self.folder, claim, "--namespace", NAMESPACE], check=True, capture_output=True, text=True)
        return pathlib.Path(done.stdout.splitlines()[-1])


class Rank:
    """A rank's process, wherever in the cluster: this machine sees them all."""

    def __init__(self, pid, environment):
        self.pid, self.pod = pid, environment["TRAINYARD_POD_NAME"]
        self.uid, self.generation = environment["TRAINYARD_JOB_UID"], int(environment["TRAINYARD_GENERATION"])
        self.page = Page(pid, environment["TRAINYARD_PROGRESS_FD"])


def ranks_of(uid, generation):
    ranks = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or (entry / "comm").read_text() != "trainyard-worke\n":
                continue
            raw = (entry / "environ").read_bytes().decode(errors="replace")
            environment = dict(word.split("=", 1) for word in raw.split("\0") if "=" in word)
            if environment.get("TRAINYARD_JOB_UID") == uid and int(environment.get("TRAINYARD_GENERATION", -1)) >= generation:
                ranks.append(Rank(int(entry.name), environment))
        except (OSError, KeyError, ValueError):
            pass  # it is just starting or ending
    return ranks


class Watch:
    """Every state of the job, with the time at which it came."""

    def __init__(self, cluster):
        self.seen = []
        command = [cluster.folder / "kubectl", "get", "tj", JOB, "--namespace", NAMESPACE, "--watch", "--output", "json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=cluster.environment)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        decoder, text = json.JSONDecoder(), ""
        for line in self.process.stdout:
            text += line
            if line.rstrip() != "}":
                continue
            job, _ = decoder.raw_decode(text)
            self.seen.append((time.time(), job))
            text = ""

    def first(self, since, condition):
        return next((at for at, job in self.seen if at >= since and condition(job.get("status", {}))), None)

    def status(self):
        return self.seen[-1][1].get("status", {}) if self.seen else {}

    def end(self):
        self.process.kill()
        self.process.wait()


def manifest(ranks, strategy):
    tolerations = [{"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
                   for taint in ("unreachable", "not-ready")]
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
              "labelSelector": {"matchLabels": {"trainyard.dev/job-name": JOB}}}
    container = {"name": "trainer", "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "500m"}},
                 "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "data", "readOnly": True}]}
    budgets = [{"class": name, "maxRestarts": 1000, "windowSeconds": 1} for name in ("Application", "Infrastructure", "Preemption", "Hang")]
    return {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": JOB, "namespace": NAMESPACE}, "spec": {
        "numNodes": NODES, "numProcPerNode": ranks,
        "engine": {"model": {"family": "GPT2", "layers": 2, "hidden": 64, "heads": 2, "vocab": 257, "maxPositions": 64},
                   "data": {"tokens": ["/data/train"], "sequenceLength": 64}, "batch": {"globalSequences": 8, "microSequences": 4},
                   "runtime": {"threads": 1}, "steps": 100_000_000},
        "checkpointPolicy": {"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}, "everySteps": 50},
        "failurePolicy": {"restartStrategy": strategy, "budgets": budgets},
        "template": {"spec": {"containers": [container], "tolerations": tolerations, "topologySpreadConstraints": [spread],
                              "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "ckpt"}}]}}}}


class Training:
    """One job, from its first checkpoint on."""

    def __init__(self, cluster, claim, ranks, strategy):
        self.cluster, self.world = cluster, NODES * ranks
        cluster.kubectl("delete", "tj", JOB, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
        wait_for("the pods before to be gone", lambda: not cluster.kubectl("get", "pods", "--namespace", NAMESPACE, "--output", "name").strip())
        subprocess.run(["rm", "-rf", claim / JOB], check=True)
        cluster.kubectl("apply", "--filename", "-", text=json.dumps(manifest(ranks, strategy)))
        self.uid = json.loads(cluster.kubectl("get", "tj", JOB, "--namespace", NAMESPACE, "--output", "json"))["metadata"]["uid"]
        self.watch = Watch(cluster)
        self.ranks = self.trained(1, time.time(), {})

    def trained(self, generation, since, times):
        """Waits for a step of every rank of that generation; notes when what was seen."""
        ranks, scanned, deadline = [], 0, time.time() + LIMIT_SECONDS
        while "first step" not in times:
            now = time.time()
            if now > deadline:
                raise SystemExit(f"no step of generation {generation} within {LIMIT_SECONDS} s: {self.watch.status()}")
            if len(ranks) < self.world and now - scanned > SCAN_SECONDS:
                ranks, scanned = ranks_of(self.uid, generation), now
            if len(ranks) == self.world:
                times.setdefault("ranks", now - since)
                restored = [rank.page.restored_step() for rank in ranks]
                if min(restored) >= 0:
                    times.setdefault("restored", now - since)
                    if all(rank.page.step() > before for rank, before in zip(ranks, restored)):
                        times["first step"] = now - since
            time.sleep(POLL_SECONDS)
        return ranks

    def recover(self, at):
        """What follows the fault that struck at that time."""
        times, before = {}, self.ranks[0].generation
        self.ranks = self.trained(before + 1, at, times)
        generation = self.ranks[0].generation
        decided = wait_for("the status", lambda: self.watch.first(at, lambda s: s.get("membership", {}).get("generation", 0) > before))
        times["decide"] = decided - at
        ready = wait_for("ready pods", lambda: self.watch.first(
            at, lambda s: s.get("membership", {}).get("generation") == generation and s.get("nodes", {}).get("ready") == NODES))
        times["pods ready"] = ready - at
        since = datetime.datetime.fromtimestamp(at - 1, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        log = self.cluster.kubectl("logs", "--namespace", "trainyard-system", "deployment/trainyard-operator", f"--since-time={since}")
        for line in log.splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            told = datetime.datetime.fromisoformat(entry["time"].replace("Z", "+00:00")).timestamp() if "time" in entry else 0
            if told >= at and entry.get("message") in ("rank exited", "an agent has gone silent"):
                times["detect"] = told - at
                break
        return times

    def saved(self, claim):
        wait_for("a checkpoint", lambda: any((claim / JOB).glob(f"g{self.ranks[0].generation}-step-*/manifest.json")))


def kills(training, claim, count, chance):
    found = []
    for number in range(count):
        training.saved(claim)
        victim = chance.choice(training.ranks)
        at = time.time()
        os.kill(victim.pid, 9)
        found.append(training.recover(at))
        print(f"kill {number + 1}: {found[-1]}", file=sys.stderr)
    return found


def containers(cluster):
    """By the UID of each pod, how often its containers were started again."""
    pods = json.loads(cluster.kubectl("get", "pods", "--namespace", NAMESPACE, "--output", "json"))["items"]
    return {pod["metadata"]["uid"]: sum(status["restartCount"] for status in pod["status"].get("containerStatuses", [])) for pod in pods}


def losses(cluster, claim, count, chance, ranks, strategy):
    found = []
    for number in range(count):
        training = Training(cluster, claim, ranks, strategy)
        training.saved(claim)
        pods = json.loads(cluster.kubectl("get", "pods", "--namespace", NAMESPACE, "--output", "json"))["items"]
        node = chance.choice(pods)["spec"]["nodeName"]
        at = time.time()
        cluster.node("kill", node)
        found.append(training.recover(at))
        print(f"loss {number + 1}: {found[-1]}", file=sys.stderr)
        training.watch.end()
        cluster.node("start", node)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")
    return found


def row(name, faults):
    cells = [name, str(len(faults))]
    for stage in STAGES:
        times = [fault[stage] for fault in faults if stage in fault]
        cells.append(f"{statistics.median(times):.2f} / {quantile(times, 0.99):.2f}" if times else "-")
    return "| " + " | ".join(cells) + " |"


def print_histogram(faults):
    bins = {}
    for fault in faults:
        bins[int(fault["first step"] / HISTOGRAM_SECONDS)] = bins.get(int(fault["first step"] / HISTOGRAM_SECONDS), 0) + 1
    print("\n| first step, s | kills |\n|---|---|")
    for place in range(min(bins), max(bins) + 1):
        print(f"| {place * HISTOGRAM_SECONDS:.1f} to {(place + 1) * HISTOGRAM_SECONDS:.1f} | {bins.get(place, 0)} |")


def seconds_pair(text):
    try:
        p50, p99 = (float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted two times in seconds, as 1,3") from None
    return p50, p99


def judge(results, goals, strategy):
    """Prints what was measured against what is wanted; whether all of it is reached."""
    times = [fault["first step"] for fault in results["kills"]]
    measured = [(f"{name} from a kill to the first step", found, goal)
                for name, found, goal in zip(("p50", "p99"), (statistics.median(times), quantile(times, 0.99)), goals or ())]
    if strategy == "InPlace":
        measured += [(name, results[name], 0) for name in ("pods replaced", "containers started again")]
    for name, found, goal in measured:
        print(f"{name}: {found:.3g}, wanted at most {goal:g}")
    return all(found <= goal for _, found, goal in measured)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--losses", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2, help="in each pod")
    parser.add_argument("--strategy", default="InPlace", choices=("RecreateAll", "ReplacePod", "InPlace"))
    parser.add_argument("--within", type=seconds_pair, metavar="P50,P99", help="seconds that the kills may cost")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs/recovery-cluster", help="of the cluster")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.within and not options.kills:
        parser.error("--within judges kills: found --kills 0, wanted at least 1")
    chance = random.Random(options.seed)
    results = {"kills": [], "losses": []}
    with Cluster(options.folder.resolve(), options.bin.resolve()) as cluster:
        cluster.kubectl("create", "namespace", NAMESPACE)
        claim = cluster.volume("ckpt")
        subprocess.run([options.bin / "trainyard", "data", "prepare", ROOT / "docs/ARCHITECTURE.md", "--out", claim / "data"],
                       check=True, stdout=subprocess.DEVNULL)
        if options.kills:
            training = Training(cluster, claim, options.ranks, options.strategy)
            before = containers(cluster)
            results["kills"] = kills(training, claim, options.kills, chance)
            after = containers(cluster)
            results["pods replaced"] = len(before.keys() - after.keys())
            results["containers started again"] = sum(after.values()) - sum(before.values())
            training.watch.end()
        if options.losses:
            results["losses"] = losses(cluster, claim, options.losses, chance, options.ranks, options.strategy)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print("| fault | count | " + ", s p50 / p99 | ".join(STAGES) + ", s p50 / p99 |")
    print("|---|---|" + "---|" * len(STAGES))
    print(row("a rank gets SIGKILL in its pod", results["kills"]))
    print(row("a node loses its power", results["losses"]))
    if not results["kills"]:
        return 0
    print_histogram(results["kills"])
    print()
    return 0 if judge(results, options.within, options.strategy) else 1


if __name__ == "__main__":
    sys.exit(main())
