#!/usr/bin/env python3
"""Measures trainyard-operator on a real API server with fake nodes. Started by tools/run_operator_bench."""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

import contestants  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
import scenarios  # noqa: E402
import streams  # noqa: E402
from contestants import Shape, World  # noqa: E402
from plane import Plane  # noqa: E402

METHOD = """\
* One control plane (etcd without fsync, kube-apiserver, -scheduler, -controller-manager) and kwok's kubelets, all on this machine: whoever
  makes pods shares the processors with what schedules and starts them. The audit log has one line a request, for every contestant the same.
* Contestants take turns, each in a namespace of its own, which is gone before the next begins, the control plane at rest; a small gang that
  is not counted goes ahead of them, as a server that has just started is slow. Medians.
* pods/s = pods / (answer to the last creation - arrival of the first job, in the API server's audit log). Of the loops the jobs are there
  already: their clock starts with their first write.
* loop: `operator_loop --whole`, 32 connections, bodies made beforehand: the operator's three watches, of each job the status before the first
  pod, each second and after the last, Service (not its slices: some 5 a gang), an event, and at the end disruption budget and event. bare loop: `operator_loop`, the POSTs of pods alone. Both with
  the operator's credentials, so that the server's fairness treats them alike.
* Indexed Jobs: those of kube-controller-manager, with `--kube-api-qps=1000 --kube-api-burst=1000` as the operator has. Their pods have one
  variable where ours have 31, and cannot find each other; "with Services" each Job has the headless Service that its pods need for that.
* JobSet: v0.10.1 as administrator, 1,000 requests a second, without its webhooks (what they fill in is written out); takes part where
  `tools/kubernetes/build --jobset` has built it. Its processor seconds hold kube-controller-manager's, whose Jobs make the pods.
* until all are ready: from the first job's arrival until the jobs' statuses say so, looked at each second.
* pod requests per pod = requests to create pods, dry runs and refused ones included / pods. writes per pod: everything that the
  contestant wrote / pods. Processor seconds: user and system (proc(5)). Peak MB: VmHWM of the operator's process, 10^6 bytes.
* Agents: one process plays those of all pods, each with a TLS stream and a token of its own that the API server made for its pod.
"""


@dataclasses.dataclass
class Scale:
    """How much of everything."""
    nodes: int
    gang: Shape
    many: Shape
    wide: Shape
    restart_pods: int
    small_jobs: int
    agents: int
    rest_s: int
    rounds: int
    part_s: int  # a contest begins no further round after so long
    against: tuple = ()  # names of contestants, all where it is empty


SCALES = {
    "quick": Scale(nodes=8, gang=Shape(1, 300), many=Shape(20, 8), wide=Shape(3, 100), restart_pods=100, small_jobs=5, agents=50, rest_s=5,
                   rounds=1, part_s=60),
    "medium": Scale(nodes=20, gang=Shape(1, 1000), many=Shape(100, 8), wide=Shape(4, 250), restart_pods=300, small_jobs=20, agents=300, rest_s=20,
                    rounds=1, part_s=240),
    "full": Scale(nodes=100, gang=Shape(1, 5000), many=Shape(500, 8), wide=Shape(10, 1000), restart_pods=1000, small_jobs=200,
                  agents=1000, rest_s=60, rounds=3, part_s=420),
}
WARM_UP = Shape(1, 100)
ENTRANTS = {"operator": contestants.by_operator, "loop": contestants.by_whole_loop, "bare loop": contestants.by_bare_loop,
            "Indexed Jobs": contestants.by_indexed_jobs,
            "Indexed Jobs with Services": contestants.by_indexed_jobs_with_services}


def _contest(shape_of):
    def run(world, scale):
        entrants = dict(ENTRANTS)
        if world.jobset().is_built():
            entrants["JobSet"] = contestants.by_job_sets
        if scale.against:
            entrants = {name: make for name, make in entrants.items() if name in ("operator", *scale.against)}
        return scenarios.contest(world, shape_of(scale), entrants, scale.rounds, scale.part_s)
    return run


PARTS = {
    "gang": (lambda scale: str(scale.gang), _contest(lambda scale: scale.gang)),
    "many": (lambda scale: str(scale.many), _contest(lambda scale: scale.many)),
    "wide": (lambda scale: str(scale.wide), _contest(lambda scale: scale.wide)),
    "scale": (lambda scale: f"Memory and rest at {scale.wide.total:,} pods",
              lambda world, scale: scenarios.at_scale(world, scale.wide, scale.rest_s)),
    "restart": (lambda scale: f"Restart of {scale.restart_pods:,} pods",
                lambda world, scale: scenarios.restart(world, scale.restart_pods, scale.rounds, scale.part_s)),
    "fair": (lambda scale: "A small job beside a huge one",
             lambda world, scale: scenarios.beside_a_huge_job(world, scale.gang.total, scale.small_jobs)),
    "stream": (lambda scale: f"Control streams of {scale.agents:,} agents",
               lambda world, scale: streams.many_agents(world, scale.agents, scale.rest_s)),
}


def parse():
    parser = argparse.ArgumentParser(prog="tools/run_operator_bench", description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="full",
                        help="quick: small numbers once, minutes; medium: some more, where others keep the machine busy; full: the numbers of docs/measurements/operator.md, under an hour")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; may be repeated")
    parser.add_argument("--rounds", type=int, help="runs of each contestant, however long they take (else no round begins after some minutes)")
    parser.add_argument("--against", action="append", default=[], choices=[*list(ENTRANTS)[1:], "JobSet"],
                        help="only this contestant beside the operator; may be repeated")
    parser.add_argument("--build", required=True, help="build folder with bin/ and bench/")
    parser.add_argument("--out", help="write the section here too")
    return parser.parse_args()


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was begun is ended in order
    scale = dataclasses.replace(SCALES[options.scale], against=tuple(options.against))
    if options.rounds:  # as many, however long they take
        scale = dataclasses.replace(scale, rounds=options.rounds, part_s=math.inf)
    build = pathlib.Path(options.build).resolve()
    described = machine.describe(str(build / "bin/trainyard-operator"), report.build_of(build))
    command = (f"make bench-operator BENCH='--scale {options.scale}{''.join(' --part ' + part for part in options.part or [])}"
               f"{''.join(f' --against {json.dumps(name)}' for name in options.against)}"
               f"{f' --rounds {options.rounds}' if options.rounds else ''}'")
    lines = [f"## Operator, {described}", "", f"Command: `{command}`; {scale.nodes} fake nodes, {scale.rounds} round(s) at most.", "",
             METHOD]
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder, \
            Plane(pathlib.Path(folder) / "plane", scale.nodes) as plane:
        world = World(plane, build / "bin", build / "bench", pathlib.Path(folder))
        contestants.by_operator(world, WARM_UP)
        lines += report.of_parts((title(scale), functools.partial(part, world, scale))
                                 for title, part in (PARTS[name] for name in options.part or PARTS))
    report.publish(lines, options.out)
    for missed in world.missed:
        print(f"missed: {missed}", file=sys.stderr)
    return 1 if world.missed else 0


if __name__ == "__main__":
    sys.exit(main())
