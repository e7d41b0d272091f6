"""What is measured, and the tables it is told in."""

import json
import math
import statistics
import sys
import time

import audit
import contestants
import measure
import process
from contestants import Shape, World
from plane import wait_for

RESTART_LIMIT_S = 600
PEAK_MB_MAX = 150  # of 10,000 pods; fewer take less
SMALL_LIMIT_S = 120


def percentile(values, share):
    """The smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _median_of(results, field):
    return measure.median([getattr(result, field) for result in results if getattr(result, field) is not None])


def _writes_per_pod(results, shape):
    return statistics.median(sum(result.writes.values()) for result in results) / shape.total


def _told_writes(results):
    """Of the newest result, in words."""
    counts = sorted(results[-1].writes.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {what}" for what, count in counts)


def contest(world: World, shape: Shape, entrants, rounds, budget_s):
    """Everybody makes the same pods in turns."""
    def take(name, make):
        made = make(world, shape)
        print(f"  {name}: {made}", file=sys.stderr, flush=True)  # also of a measurement that is cut short
        return made
    results = measure.interleave(rounds, {name: (lambda name=name, make=make: take(name, make)) for name, make in entrants.items()},
                                 budget_s)
    ours = _median_of(results["operator"], "pods_per_second")
    rows = []
    for name, made in results.items():
        rate = _median_of(made, "pods_per_second")
        rows.append([name, measure.number(rate), "-" if name == "operator" else measure.ratio(ours, rate),
                     measure.number(_median_of(made, "ready_seconds"), 1),
                     measure.number(_median_of(made, "requests_per_pod"), 3), measure.number(_writes_per_pod(made, shape), 2),
                     measure.number(_per_thousand(made, "processor_seconds", shape), 2),
                     measure.number(_per_thousand(made, "server_seconds", shape), 2),
                     measure.number(_median_of(made, "peak_mb")), results.runs(name)])
    text = measure.table(["", "pods/s", "operator against it", "until all are ready, s", "pod requests per pod", "writes per pod",
                          "own processor s per 1,000 pods", "API server's and etcd's", "peak MB", "runs"], rows)
    return text + f"\n\nThe operator's writes, newest run: {_told_writes(results['operator'])}.\n"


def _per_thousand(results, field, shape):
    value = _median_of(results, field)
    return None if value is None else value / shape.total * 1000


def at_scale(world: World, shape: Shape, rest_s):
    """Memory with all pods there, and writes while nothing happens to them. Adds to world.missed."""
    with world.namespace() as namespace, world.operator() as operator:
        path = contestants.job_path(namespace)
        world.plane.call_many([("POST", path, contestants.training_job(name, shape.pods)) for name in shape.names()])
        contestants.wait_until_ready(world.plane, namespace, shape)
        time.sleep(5)  # what follows the last pod, such as an event, is not rest
        log = audit.AuditLog(world.plane.audit_log)
        before = process.processor_seconds(operator.pid)
        time.sleep(rest_s)
        spent = process.processor_seconds(operator.pid) - before
        written = sum(contestants.operator_writes(log.read()).values())
        peak = process.memory_mb(operator.pid)
        rows = [_held_against(world, f"{shape}: peak resident memory", peak, f"{peak:.0f} MB", PEAK_MB_MAX),
                ["resident memory at rest", f"{process.memory_mb(operator.pid, 'VmRSS'):.0f} MB", "", ""],
                _held_against(world, f"writes in {rest_s} s at rest, its lease aside", written, written, 0),
                ["processor time at rest", f"{100 * spent / rest_s:.2f} % of a core", "", ""]]
    with world.namespace() as namespace:
        rows.append(_taken_over(world, namespace, shape))
    return measure.table(["", "measured", "goal: at most", ""], rows)


def _held_against(world, what, measured, told, most):
    """A row of the table."""
    if measured > most:
        world.missed.append(f"{what}: {told}, wanted at most {most}")
    return [what, told, most, "reached" if measured <= most else "missed"]


def _taken_over(world, namespace, shape):
    """A second operator finds what a first has left: it has nothing to write."""
    path = contestants.job_path(namespace)
    with world.operator():
        world.plane.call_many([("POST", path, contestants.training_job(name, 8)) for name in shape.names()])
        contestants.wait_until_ready(world.plane, namespace, Shape(shape.jobs, 8))
        time.sleep(2)
    log = audit.AuditLog(world.plane.audit_log)
    with world.operator():
        time.sleep(5)
        events = log.read()
    written = contestants.operator_writes(events)
    told = ", ".join(f"{count} {what}" for what, count in sorted(written.items())) or "0"
    return _held_against(world, f"writes of a new leader that finds {shape.jobs} running jobs", sum(written.values()), told, 0)


def restart(world: World, pods, rounds, budget_s):
    """One pod of a running gang fails."""
    def one(strategy):
        with world.namespace() as namespace, world.operator() as operator:
            path = contestants.job_path(namespace)
            world.plane.call("POST", path, contestants.training_job(
                "gang", pods, failurePolicy={"restartStrategy": strategy, "backoff": {"initialSeconds": 0}}))
            contestants.wait_until_ready(world.plane, namespace, Shape(1, pods))
            victim = world.plane.call("GET", f"/api/v1/namespaces/{namespace}/pods?limit=1")["items"][0]["metadata"]["name"]
            log = audit.AuditLog(world.plane.audit_log)
            before = process.processor_seconds(operator.pid)
            began = time.time()
            world.plane.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{victim}/status", FAILED,
                             "application/merge-patch+json")

            def again():
                status = world.plane.call("GET", f"{path}/gang")["status"]
                return status["restarts"].get("total", 0) == 1 and status["nodes"].get("ready", 0) == pods
            wait_for(f"{pods} pods to run again", RESTART_LIMIT_S, again, 0.25)
            return {"seconds": time.time() - began, "processor": process.processor_seconds(operator.pid) - before,
                    "writes": contestants.operator_writes(log.read())}
    results = measure.interleave(rounds, {name: (lambda name=name: one(name)) for name in ("RecreateAll", "ReplacePod")}, budget_s)
    rows = []
    for name, runs in results.items():
        if not runs:
            rows.append([f"{pods:,} pods, `{name}`", "-", "-", "-", results.runs(name)])
            continue
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(runs[-1]["writes"].items(), key=lambda item: -item[1]))
        rows.append([f"{pods:,} pods, `{name}`", f"{statistics.median(run['seconds'] for run in runs):.1f}",
                     f"{statistics.median(run['processor'] for run in runs):.2f}", counts, results.runs(name)])
    return measure.table(["one pod fails", "until all are ready again, s", "operator's processor s", "its writes", "runs"], rows)


FAILED = {"status": {"phase": "Failed", "containerStatuses": [
    {"name": "trainer", "image": contestants.IMAGE, "imageID": "", "ready": False, "restartCount": 0,
     "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}}


def beside_a_huge_job(world: World, huge_pods, small_jobs):
    """Small jobs come one by one, first alone, then while a huge one is made."""
    rows = []
    for what, huge in (("alone", 0), (f"beside a job of {huge_pods:,} pods that is being made", huge_pods)):
        with world.namespace() as namespace, world.operator("debug") as operator:
            path = contestants.job_path(namespace)
            if huge:
                world.plane.call("POST", path, contestants.training_job("huge", huge))
            waits, overlapped = _small_jobs(world, namespace, small_jobs, huge)
            times = [entry["seconds"] for entry in map(json.loads, operator.log.read_text().splitlines())
                     if entry.get("message") == "reconciled" and entry.get("job", "").startswith("small-")]
            rows.append([what, f"{1000 * percentile(times, 0.5):.0f}", f"{1000 * percentile(times, 0.99):.0f}", len(times),
                         f"{statistics.median(waits):.2f}", f"{max(waits):.2f}", overlapped])
    return measure.table(["small jobs of 4 pods", "reconcile p50, ms", "p99, ms", "reconciles", "applied until its pods are there, s",
                          "longest", "jobs meanwhile"], rows)


def _small_jobs(world, namespace, count, huge):
    """Applies them one after another, as long as the huge job is not whole; how long each waits for its last pod."""
    path = contestants.job_path(namespace)
    log = audit.AuditLog(world.plane.audit_log)
    for i in range(count):
        name = f"small-{i}"
        world.plane.call("POST", path, contestants.training_job(name, 4))

        def whole():
            return world.plane.call("GET", f"{path}/{name}").get("status", {}).get("nodes", {}).get("active", 0) == 4
        wait_for(f"job {name}", SMALL_LIMIT_S, whole, 0.05)
        if huge and len(audit.pods_made(log.read(), namespace)) >= huge + 4 * (i + 1):
            break
    events = log.read()
    waits = []
    for j in range(i + 1):
        applied = next(event.received for event in events if event.resource == "trainingjobs" and event.verb == "create" and
                       event.name == f"small-{j}")
        made = [event for event in audit.pods_made(events, namespace) if event.name.startswith(f"small-{j}-")]
        waits.append(max(event.answered for event in made) - applied)
    return waits, i + 1
