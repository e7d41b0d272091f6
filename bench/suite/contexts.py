"""Memory and time of ranks that share out the positions of every sequence, by the sequence's length."""

from measure import number, table
from pipelines import PROCESS_MIB
from sharded import PURPOSES
from training import Shape, our_run

MODEL = {"layers": 4, "hidden": 256, "heads": 8, "vocab": 257}
LENGTHS = (1024, 2048, 4096, 8192)
LAYOUTS = {"context 1": {"context": 1}} | {
    f"context {ranks}, {mode}": {"context": ranks, "contextMode": mode} for ranks in (2, 4) for mode in ("Ulysses", "Ring")}

FORMULAS = f"""* step: median seconds of a step after the first; processors: processor seconds of it, all ranks. With more ranks than processors only these compare layouts.
* activations: what the engine holds for them (`trainyard_rank_memory_bytes`), in the largest rank; engine: all it holds, as `trainyard plan` has it.
* process: resident high-water mark less resident shared memory (VmHWM - RssShmem of /proc/PID/status) before the last step begins. rest:
  process less engine: program, mapped files of tokens, data; a planned process has {PROCESS_MIB} MiB."""


def memory(context):
    """One sequence a step; as many ranks as shares."""
    mib, rows, held = 2**20, [], {}
    for length in LENGTHS:
        for layout, parallelism in LAYOUTS.items():
            shape = Shape("", MODEL, ranks=parallelism["context"], threads=1, sequences=1, length=length, steps=4)
            run = our_run(context, shape, "FP32", micro_sequences=1, parallelism=parallelism)
            most = max(run["own_peak"], key=lambda rank: run["planned"][rank]["activations"])
            planned = run["planned"][most]
            activations, engine = planned["activations"] / mib, sum(planned[purpose] for purpose in PURPOSES) / mib
            process = run["own_peak"][most] / mib
            held[length, layout] = activations
            rows.append([f"{length:,} tokens, {layout}", number(run["seconds"], 2), number(run["all_processors"], 2),
                         number(activations, 1), number(engine, 1), number(process, 1), number(process - engine, 1)])
    picture = ["```mermaid", "xychart-beta", f'  title "MiB of activations of a rank by tokens of a sequence: {"; ".join(LAYOUTS)}"',
               f"  x-axis {[f'{length:,}' for length in LENGTHS]}".replace("'", '"'),
               f'  y-axis "MiB" 0 --> {100 * (1 + int(max(held.values())) // 100)}',
               *(f"  line [{', '.join(number(held[length, layout], 1) for length in LENGTHS)}]" for layout in LAYOUTS), "```"]
    sizes = "4 layers, 256 columns, 8 heads, 257 tokens"
    return (f"{FORMULAS}\n\n**{sizes}, fp32**: one sequence a step, one thread per rank.\n\n"
            + table(["", "step, s", "processors, s", "activations, MiB", "engine, MiB", "process, MiB", "rest, MiB"], rows)
            + "\n\n" + "\n".join(picture) + "\n")
