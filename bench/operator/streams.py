"""The control stream with many agents: what it costs the operator, and how soon everybody hears of a change."""

import collections
import pathlib
import socket
import subprocess
import tempfile
import threading
import time

import contestants
import measure
import process
from contestants import World
from plane import wait_for
from scenarios import FAILED, percentile

TOKEN_SECONDS = 3600
MET_LIMIT_S = 300
CHANGE_LIMIT_S = 120


def engine_job(name, pods):
    """A job whose pods have agents; no rank of it ever runs."""
    return {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
            "spec": {"numNodes": pods, "numProcPerNode": 1, "failurePolicy": {"backoff": {"initialSeconds": 0}},
                     "engine": {"model": {"family": "GPT2", "layers": 1, "hidden": 16, "heads": 2, "vocab": 257, "maxPositions": 16},
                                "data": {"tokens": ["/data/train"], "sequenceLength": 16},
                                "batch": {"globalSequences": pods, "microSequences": 1}, "steps": 1_000_000},
                     "template": {"spec": {"containers": [{"name": "trainer", "resources": contestants.TRAINER["resources"]}]}}}}


class Agents:
    """The process that plays the agents of a job's pods, and what it has heard. A context manager."""

    def __init__(self, world: World, namespace, job, address, folder):
        self._world, self._namespace, self._job = world, namespace, job
        self._address, self._folder = address, pathlib.Path(folder)
        self._known = set()
        self._lock = threading.Lock()
        self._heard = []  # (time, pod uid, word)

    def __enter__(self):
        path = f"/api/v1/namespaces/{self._namespace}/configmaps/{self._job}-control"
        authorities = self._world.plane.call("GET", path)["data"]["ca.crt"]
        (self._folder / "ca.crt").write_text(authorities, encoding="utf-8")
        self._process = subprocess.Popen([str(self._world.benches / "stream_agents"), self._address, str(self._folder / "ca.crt")],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()

    def _read(self):
        for line in self._process.stdout:
            at, uid, word = line.split()
            with self._lock:
                self._heard.append((float(at), uid, word))

    def heard(self, word, since=0.0):
        """Times by agent of a word said since then, the first of each."""
        times = {}
        with self._lock:
            for at, uid, said in self._heard:
                if said == word and at >= since:
                    times.setdefault(uid, at)
        return times

    def counts(self):
        with self._lock:
            return dict(collections.Counter(word for _, _, word in self._heard))

    def play(self, count):
        """Gives each pod that has none yet an agent, with a token as a kubelet would get it, until there are `count` new ones."""
        base = f"/api/v1/namespaces/{self._namespace}"

        def fresh():
            pods = self._world.plane.call("GET", f"{base}/pods?resourceVersion=0")["items"]
            found = [pod for pod in pods if pod["metadata"]["uid"] not in self._known and
                     not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") == "Running"]
            return found if len(found) >= count else None
        pods = wait_for(f"{count} pods to run", contestants.MADE_LIMIT_S, fresh, 1)
        wanted = [("POST", f"{base}/serviceaccounts/default/token", _token_request(pod)) for pod in pods]
        answers = self._world.plane.call_many(wanted)
        for pod, answer in zip(pods, answers):
            uid = pod["metadata"]["uid"]
            self._known.add(uid)
            token = self._folder / uid
            token.write_text(answer["status"]["token"], encoding="utf-8")
            variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
            self._process.stdin.write(f"{pod['metadata']['name']} {uid} {variables['TRAINYARD_JOB_UID']} "
                                      f"{variables['TRAINYARD_GENERATION']} {variables['TRAINYARD_NODE_INDEX']} {token}\n")
        self._process.stdin.flush()
        return {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}


def _token_request(pod):
    source = next(source["serviceAccountToken"] for volume in pod["spec"]["volumes"]
                  for source in volume.get("projected", {}).get("sources", []) if source.get("serviceAccountToken", {}).get("audience"))
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [source["audience"]], "expirationSeconds": TOKEN_SECONDS,
                     "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"],
                                        "uid": pod["metadata"]["uid"]}}}


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _spread(title, times, begin):
    waits = [at - begin for at in times.values()]
    return [title, f"{1000 * percentile(waits, 0.5):.0f}", f"{1000 * percentile(waits, 0.99):.0f}", f"{1000 * max(waits):.0f}",
            len(waits)]


def many_agents(world: World, pods, rest_s):
    """They connect, meet, train for a while, and one pod fails."""
    address = f"127.0.0.1:{_free_port()}"
    flags = ["--control-bind-address", address, "--control-address", address, "--worker-image", contestants.IMAGE]
    with world.namespace() as namespace, world.operator(arguments=flags) as operator, \
            tempfile.TemporaryDirectory(dir=world.work) as folder:
        path = contestants.job_path(namespace)
        world.plane.call("POST", path, engine_job("gang", pods))
        contestants.wait_until_ready(world.plane, namespace, contestants.Shape(1, pods))
        before = process.memory_mb(operator.pid, "VmRSS")
        with Agents(world, namespace, "gang", address, folder) as agents:
            began = time.time()
            first = agents.play(pods)
            met = wait_for("the agents to meet", MET_LIMIT_S, lambda: _all(agents.heard("table"), pods), 0.25)
            rows = [_spread("first token shown until the table of ranks is there", met, began),
                    _spread("last rank listens until the table of ranks is there", met, max(agents.heard("listening").values()))]
            costs = _rest(operator, rest_s, before, pods)
            rows += _change(world, namespace, agents, next(iter(first.values())), pods)
            costs.append(["what agents heard", ", ".join(f"{count:,} {word}" for word, count in sorted(agents.counts().items()))])
    return (measure.table([f"{pods:,} agents, ms", "p50", "p99", "longest", "agents"], rows) + "\n\n" +
            measure.table(["", "measured"], costs))


def _all(times, count):
    return times if len(times) >= count else None


def _rest(operator, rest_s, before, pods):
    """All train, nothing happens."""
    spent = process.processor_seconds(operator.pid)
    time.sleep(rest_s)
    spent = process.processor_seconds(operator.pid) - spent
    now = process.memory_mb(operator.pid, "VmRSS")
    return [[f"processor while {pods:,} agents report (each about 7 times a second)", f"{100 * spent / rest_s:.0f} % of a core"],
            ["resident memory before the first stream, with all", f"{before:.0f} MB, {now:.0f} MB"],
            ["memory a stream", f"{1000 * (now - before) / pods:.0f} KB"]]


def _change(world, namespace, agents, victim, pods):
    """One pod fails: until the agents of its generation are told that there is a next one."""
    began = time.time()
    world.plane.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{victim}/status", FAILED, "application/merge-patch+json")

    def told():
        times = agents.heard("stop", began)
        for uid, at in agents.heard("fenced", began).items():
            times.setdefault(uid, at)
        return times

    def all_know():
        return _all({**agents.heard("closed", began), **told()}, pods)
    try:
        wait_for("the agents to hear of the change", CHANGE_LIMIT_S, all_know, 0.25)
    except RuntimeError:
        if not told():
            raise
    times = told()
    # Who has lost its stream by then is refused when it comes back: its pod is gone.
    ended = len(agents.heard("closed", began).keys() - times.keys())
    return [_spread("a pod fails until told of the next generation (its pods are made meanwhile)", times, began),
            ["of the others: streams that ended before, agents that heard nothing", ended, pods - len(times) - ended, "", ""]]
