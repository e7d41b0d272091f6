"""Training with a model cut into stages: steps against torch.distributed.pipelining, and memory of every rank."""

import itertools

from measure import interleave, median, number, ratio, table
from sharded import GPT2_30M, PURPOSES
from training import GPT2_124M, Shape, our_run

OURS = ("GPipe", "OneFOneB", "ZeroBubbleH1")
THEIRS = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")

FORMULAS = """* Micro-batches of one sequence, one thread per rank. PyTorch: tuned as in the part gpt2; two stages per rank where the schedule has several.
* processor s: what all ranks compute in a step, all their threads, user and system. It hardly depends on what else runs; ours also spins while it waits.
* Ratios are theirs / ours: above 1 ours is better. best: against the best of PyTorch in this column."""


def _ours(context, shape, schedule, recompute="None"):
    return our_run(context, shape, "FP32", micro_sequences=1,
                   parallelism={"pipeline": shape.ranks, "pipelineSchedule": schedule, "recompute": recompute})


def their_run(context, shape, **how):
    """One run of a script whose processor seconds are those of all ranks."""
    run = context.torch.train(context.text, ranks=shape.ranks, threads=shape.threads, sequences=shape.sequences, length=shape.length,
                              steps=shape.steps, warm=shape.warm, model=shape.model, **how)
    seconds = run["processorSeconds"]
    return {"seconds": median(run["stepSeconds"]), "all_processors": sum(seconds) / len(seconds)}


def steps_table(results, rivals):
    """Seconds and processor seconds of a step, ours against the best of those PyTorch runs for which `rivals(ours, peer)` holds."""
    figures = {name: [median([run[key] for run in of_name]) for key in ("seconds", "all_processors")]
               for name, of_name in results.items() if of_name}
    rows = []
    for name in results:
        if name not in figures:
            rows.append([name, *["-"] * 4, results.runs(name)])
            continue
        peers = [figures[peer] for peer in figures if peer.startswith("PyTorch") and rivals(name, peer)]
        against = [ratio(min(peer[column] for peer in peers), figures[name][column])
                   if peers and name.startswith("trainyard") else "-" for column in (0, 1)]
        rows.append([name, number(figures[name][0], 2), against[0], number(figures[name][1], 2), against[1], results.runs(name)])
    return table(["", "step, s", "best", "processor s", "best", "runs"], rows)


def throughput(context):
    """Two ranks that each have a part of the layers."""
    shape = Shape("GPT-2 30M", GPT2_30M, ranks=2, threads=1, sequences=8, length=256, steps=3)
    runs = {f"trainyard {schedule}": lambda s=schedule: _ours(context, shape, s) for schedule in OURS}
    if context.torch.available:
        runs |= {f"PyTorch {schedule}": lambda s=schedule: their_run(context, shape, schedule=s) for schedule in THEIRS}
    results = interleave(context.rounds, runs, 300)
    torch = f"PyTorch {context.torch.version}" if context.torch.available else "No PyTorch was given (`--python`)"
    return (f"{FORMULAS}\n\n{torch}. **{shape.title}** fp32: {shape.ranks} ranks, {shape.sequences} sequences of {shape.length} tokens "
            "a step.\n\n" + steps_table(results, lambda ours, peer: True) + "\n")


MEMORY_FORMULAS = """* process: resident high-water mark less resident shared memory (VmHWM - RssShmem of /proc/PID/status) before the last step begins.
* planned: what the engine holds by purpose (`trainyard_rank_memory_bytes`), and 24 MiB for the process, as `trainyard plan` has it, without the
  snapshot of a checkpoint."""
PROCESS_MIB = 24


def memory(context):
    """What every rank of GPT-2 124M in four stages holds."""
    shape = Shape("", GPT2_124M, ranks=4, threads=1, sequences=8, length=128, steps=2)
    mib, rows = 2**20, []
    for schedule, recompute in itertools.product(("GPipe", "OneFOneB"), ("None", "Full")):
        run = _ours(context, shape, schedule, recompute)
        for rank in sorted(run["own_peak"]):
            held = run["planned"][rank]
            planned = sum(held[purpose] for purpose in PURPOSES) / mib + PROCESS_MIB
            process = run["own_peak"][rank] / mib
            rows.append([f"{schedule}, {recompute}, rank {rank}", *(number(held[purpose] / mib) for purpose in PURPOSES), number(planned),
                         number(process), number(process - planned)])
    header = ["MiB", *(purpose.replace("_", " ") for purpose in PURPOSES), "planned", "process", "difference"]
    return (f"{MEMORY_FORMULAS}\n\n**GPT-2 124M fp32**: 4 ranks x 1 thread, {shape.sequences} micro-batches of {shape.length} tokens.\n\n"
            + table(header, rows) + "\n")
