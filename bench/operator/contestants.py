"""Who makes pods: the operator, loops without a mind, and the Indexed Jobs of Kubernetes itself. Each makes the same number of
pods of one template in a namespace of its own, which is removed before the next one's turn."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import audit
import jobset
import process
from plane import OPERATOR_USER, wait_for

MADE_LIMIT_S = 900
REST_LIMIT_S = 60
REST_SHARE = 0.2  # of a core, all of the control plane together
JOBSET_VERSION = "0.10.1"  # as tools/kubernetes/lib.sh has it
IMAGE = "registry.example/trainer:1"
TRAINER = {"name": "trainer", "image": IMAGE, "command": ["train"],
           "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}


@dataclasses.dataclass
class Shape:
    """So many jobs of so many pods."""
    jobs: int
    pods: int

    @property
    def total(self):
        return self.jobs * self.pods

    def names(self):
        return [f"job-{i}" for i in range(self.jobs)]

    def __str__(self):
        return f"{self.jobs:,} job{'s' if self.jobs > 1 else ''} x {self.pods:,} pods"


@dataclasses.dataclass
class Made:
    """One measurement."""
    pods_per_second: float
    ready_seconds: float | None  # from the first request until all pods were said to be ready
    requests_per_pod: float      # creations of pods asked for, dry runs included
    writes: dict                 # of the contestant, by "verb resource"
    processor_seconds: float | None
    peak_mb: float | None
    server_seconds: float        # of the API server and etcd


def training_job(name, pods, **spec):
    return {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
            "spec": {"numNodes": pods, "failurePolicy": {"backoff": {"initialSeconds": 0}},
                     "template": {"spec": {"containers": [TRAINER]}}, **spec}}


def indexed_job(name, pods, subdomain=None):
    names = {"subdomain": subdomain} if subdomain else {}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0,
                     "template": {"spec": {"restartPolicy": "Never", "containers": [TRAINER], **names}}}}


def headless_service(job):
    """By which the pods of a Job find each other."""
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": job},
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"batch.kubernetes.io/job-name": job}}}


class World:
    """What every contestant works with."""

    def __init__(self, plane, binaries, benches, work):
        self.plane = plane
        self.binaries = binaries
        self.benches = benches
        self.work = work
        self.cache = pathlib.Path(os.environ.get("TRAINYARD_CACHE") or pathlib.Path.home() / ".cache" / "trainyard")
        self.kubeconfig = work / "operator.kubeconfig"
        plane.write_operator_kubeconfig(self.kubeconfig)
        self.missed = []  # goals, each told in a line
        self._namespaces = 0

    def jobset(self):
        return jobset.JobSet(self.cache / f"jobset-{JOBSET_VERSION}", self.plane, self.work)

    def operator(self, level="info", arguments=()):
        return process.Operator(self.binaries / "trainyard-operator", self.kubeconfig, self.work, level, arguments)

    def namespace(self):
        """A fresh one, on a server that has nothing else to do; a context manager that removes it."""
        self._wait_for_rest()
        self._namespaces += 1
        return _Namespace(self.plane, f"bench-{self._namespaces}")

    def _wait_for_rest(self):
        """What its controllers still do for a namespace that is gone, they would do in the time of the next contestant."""
        def at_rest():
            before = self._plane_seconds()
            time.sleep(1)
            return self._plane_seconds() - before < REST_SHARE
        try:
            wait_for("the control plane to come to rest", REST_LIMIT_S, at_rest, 0)
        except RuntimeError as error:
            print(f"  {error}; the next measurement begins all the same", file=sys.stderr, flush=True)

    def _plane_seconds(self):
        return sum(process.processor_seconds(pid) for pid in self.plane.pids().values())

    def server_seconds(self):
        pids = self.plane.pids()
        return sum(process.processor_seconds(pids[name]) for name in ("kube-apiserver", "etcd"))


class _Namespace:
    def __init__(self, plane, name):
        self._plane, self._name = plane, name

    def __enter__(self):
        self._plane.make_namespace(self._name)
        return self._name

    def __exit__(self, *_):
        self._plane.remove_namespace(self._name)


def job_path(namespace, kind="trainingjobs"):
    group = "apis/trainyard.dev/v1alpha1" if kind == "trainingjobs" else "apis/batch/v1"
    return f"/{group}/namespaces/{namespace}/{kind}"


def _all_ready(plane, path, shape, ready_of):
    def look():
        jobs = plane.call("GET", path + "?resourceVersion=0")["items"]
        return len(jobs) == shape.jobs and all(ready_of(job.get("status", {})) == shape.pods for job in jobs)
    wait_for(f"{shape} to be ready", MADE_LIMIT_S, look, 1)


def wait_until_ready(plane, namespace, shape):
    _all_ready(plane, job_path(namespace), shape, lambda status: status.get("nodes", {}).get("ready", 0))


def _made(events, namespace, shape, **costs):
    created = audit.pods_made(events, namespace)
    if len(created) < shape.total:
        raise RuntimeError(f"{len(created)} pods were made, wanted {shape.total}")
    asked = [event for event in events if event.namespace == namespace and event.verb == "create" and event.resource == "pods"]
    maker = created[0].user
    ours = [event for event in events if event.namespace == namespace and event.user == maker]
    # From the first word of the jobs until the last pod is there.
    start = min(event.received for event in events
                if event.namespace == namespace and (event.resource.split("/")[0] in ("trainingjobs", "jobsets", "jobs", "pods")))
    seconds = max(event.answered for event in created) - start
    ready = costs.pop("ready_at", None)
    return Made(pods_per_second=shape.total / seconds, ready_seconds=None if ready is None else ready - start,
                requests_per_pod=len(asked) / len(created), writes=dict(audit.writes(ours)), **costs)


def by_operator(world, shape):
    """Its jobs are given to an operator that is running."""
    with world.namespace() as namespace, world.operator() as operator:
        log = audit.AuditLog(world.plane.audit_log)
        server = world.server_seconds()
        path = job_path(namespace)
        world.plane.call_many([("POST", path, training_job(name, shape.pods)) for name in shape.names()])
        wait_until_ready(world.plane, namespace, shape)
        return _made(log.read(), namespace, shape, ready_at=time.time(),
                     processor_seconds=process.processor_seconds(operator.pid), peak_mb=process.memory_mb(operator.pid),
                     server_seconds=world.server_seconds() - server)


def by_indexed_jobs(world, shape, with_services=False):
    with world.namespace() as namespace:
        log = audit.AuditLog(world.plane.audit_log)
        server = world.server_seconds()
        manager = world.plane.pids()["kube-controller-manager"]
        before = process.processor_seconds(manager)
        path = job_path(namespace, "jobs")
        if with_services:
            world.plane.call_many([("POST", f"/api/v1/namespaces/{namespace}/services", headless_service(name)) for name in shape.names()])
        world.plane.call_many([("POST", path, indexed_job(name, shape.pods, name if with_services else None)) for name in shape.names()])
        _all_ready(world.plane, path, shape, lambda status: status.get("ready", 0))
        return _made(log.read(), namespace, shape, ready_at=time.time(),
                     processor_seconds=process.processor_seconds(manager) - before, peak_mb=None,
                     server_seconds=world.server_seconds() - server)


def by_indexed_jobs_with_services(world, shape):
    return by_indexed_jobs(world, shape, with_services=True)


def by_job_sets(world, shape):
    """JobSets of one Job each; processor time is that of its controller and of kube-controller-manager."""
    with world.namespace() as namespace, world.jobset() as controller:
        log = audit.AuditLog(world.plane.audit_log)
        server = world.server_seconds()
        pids = (controller.pid, world.plane.pids()["kube-controller-manager"])
        before = sum(map(process.processor_seconds, pids))
        path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"
        world.plane.call_many([("POST", path, jobset.job_set(name, indexed_job(name, shape.pods))) for name in shape.names()])
        # The Jobs behind them say how many pods are ready.
        _all_ready(world.plane, job_path(namespace, "jobs"), shape, lambda status: status.get("ready", 0))
        return _made(log.read(), namespace, shape, ready_at=time.time(),
                     processor_seconds=sum(map(process.processor_seconds, pids)) - before, peak_mb=None,
                     server_seconds=world.server_seconds() - server)


def _by_loop(world, shape, *options):
    """The jobs are there before it begins; no operator runs."""
    with world.namespace() as namespace:
        path = job_path(namespace)
        world.plane.call_many([("POST", path, training_job(name, shape.pods, managedBy="bench.trainyard.dev/loop"))
                               for name in shape.names()])
        log = audit.AuditLog(world.plane.audit_log)
        server = world.server_seconds()
        command = [str(world.benches / "operator_loop"), "--kubeconfig", str(world.kubeconfig), "--namespace", namespace, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=MADE_LIMIT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        told = json.loads(done.stdout)
        # Its list of the jobs is not part of what it is measured by.
        events = [event for event in log.read() if event.verb in audit.WRITES]
        return _made(events, namespace, shape, processor_seconds=told["processor_seconds"], peak_mb=None,
                     server_seconds=world.server_seconds() - server)


def by_whole_loop(world, shape):
    return _by_loop(world, shape, "--whole")


def by_bare_loop(world, shape):
    return _by_loop(world, shape)


def operator_writes(events):
    """What an operator wrote but for its lease."""
    return {what: count for what, count in audit.writes(events, OPERATOR_USER).items() if not what.endswith(" leases")}
