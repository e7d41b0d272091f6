"""Training with every layer cut over ranks: steps against DTensor of PyTorch."""

from machine import multiplies_bf16
from measure import interleave
from pipelines import steps_table, their_run
from sharded import GPT2_30M
from training import Shape, our_run

FORMULAS = """* One thread per rank; all ranks have the same sequences. cut: attention by heads, MLP by columns, the tied table and the loss by rows of the
  vocabulary. sequence-parallel: norms and the residual stream by positions as well. PyTorch: DTensor with `loss_parallel`, over gloo, tuned as in the part gpt2.
* processor s: what all ranks compute in a step, all their threads, user and system. It hardly depends on what else runs; ours also spins while it waits.
* Ratios are theirs / ours: above 1 ours is better. best: against the best of PyTorch in this column and number format."""


def throughput(context):
    """Two ranks that each have half of every layer."""
    shape = Shape("GPT-2 30M", GPT2_30M, ranks=2, threads=1, sequences=8, length=256, steps=3)
    runs = {}
    for number_format in ("fp32", "bf16"):
        for name, by_positions in (("cut", False), ("sequence-parallel", True)):
            cuts = {"tensor": shape.ranks, "sequenceParallel": by_positions}
            runs[f"trainyard {number_format} {name}"] = lambda f=number_format, c=cuts: our_run(
                context, shape, f.upper(), micro_sequences=shape.sequences, parallelism=c)
            if context.torch.available and (number_format == "fp32" or multiplies_bf16()):
                runs[f"PyTorch {number_format} {name}"] = lambda f=number_format, p=by_positions: their_run(
                    context, shape, bf16=f == "bf16", parallel="sequence-parallel" if p else "tensor")
    results = interleave(context.rounds, runs, 300)
    torch = f"PyTorch {context.torch.version}" if context.torch.available else "No PyTorch was given (`--python`)"

    def same_format(ours, peer):
        return ours.split()[1] == peer.split()[1]

    return (f"{FORMULAS}\n\n{torch}. **{shape.title}**: {shape.ranks} ranks, {shape.sequences} sequences of {shape.length} tokens "
            "a step.\n\n" + steps_table(results, same_format) + "\n")
