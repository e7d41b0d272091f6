#!/usr/bin/env python3
"""What it costs that one device gathers and hands out: `mode: DataParallel` beside rings.

    bench/ledger/data_parallel.py

With the `trainyard` on PATH: trains one model on 1, 2 and 4 ranks in both modes and counts the bytes that the busiest
rank sends and receives in a step. Under DataParallel rank 0 takes part in every transfer, so that they grow with the
number of ranks P; among rings no rank sends more than twice the sums, whatever P.
"""

import pathlib
import sys
import tempfile

import job

STEPS = 60
RANKS = (1, 2, 4)
SUM_BYTES, WEIGHT_BYTES = 8, 4  # of a parameter: its exact sum, and what its update gives
LINK_BYTES_PER_S = 10**9
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather")


def bytes_per_step(metrics, ranks):
    """(sent, received) by the rank that moves the most, by the mean of each operation."""
    found = {}
    for (name, labels), number in metrics.items():
        labels = dict(labels)
        found[name, labels.get("rank"), labels.get("operation")] = number
    moved = []
    for rank in range(ranks):
        value = lambda name, operation: found.get((name, str(rank), operation), 0.0)
        steps = found["trainyard_rank_steps_total", str(rank), None]
        sums = [0.0, 0.0]
        for operation in OPERATIONS:
            count = value("trainyard_rank_collectives_total", operation)
            if count == 0:
                continue
            for i, name in enumerate(("sent", "received")):
                mean = value(f"trainyard_rank_collective_{name}_bytes_total", operation) / count
                sums[i] += mean * round(count / steps)
        moved.append(tuple(sums))
    return max(moved, key=sum)


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 64
    modes = {"DataParallel": {"mode": "DataParallel"}, "rings, ZeRO-0": {"zeroStage": 0}}
    found, hashes = {}, set()
    with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
        tokens = job.prepare(pathlib.Path(folder), 400)
        for mode, parallelism in modes.items():
            for ranks in RANKS:
                work = pathlib.Path(folder) / f"{len(found)}"
                work.mkdir()
                what = job.manifest(tokens, ranks=ranks, steps=STEPS, parallelism=parallelism,
                                    model={"layers": 2, "hidden": 128, "heads": 4}, sequences=12)
                found[mode, ranks] = bytes_per_step(job.train(work, what), ranks)
                hashes.add(job.summary(work)["stateHash"])
    parameters = found["DataParallel", 2][1] / SUM_BYTES
    for (mode, ranks), (sent, received) in found.items():
        print(f"{mode:<14} {ranks} ranks: the busiest sends {sent / 1e6:6.2f} MB and receives {received / 1e6:6.2f} MB a step, "
              f"{1e3 * max(sent, received) / LINK_BYTES_PER_S:.2f} ms of a link of 1 GB/s")
    two, four = sum(found["DataParallel", 2]), sum(found["DataParallel", 4])
    bound = 2 * SUM_BYTES * parameters
    most = max(sent for (mode, _), (sent, _) in found.items() if mode != "DataParallel")
    print(f"measured: rank 0 of DataParallel moves {four / two:.2f} times the bytes on 4 ranks that it moves on 2, expected: 3")
    print(f"measured: with rings no rank sends more than {most / 1e6:.2f} MB, expected: at most twice the sums, {bound / 1e6:.2f} MB")
    print(f"measured: {len(hashes)} end state, expected: 1")
    return 0 if abs(four / two - 3) < 0.03 and most <= bound and len(hashes) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
