"""Training: tokens a second, start to first step, peak memory; and what checkpoints cost."""

import ours
from machine import multiplies_bf16
from measure import interleave, median, number, ratio, table

GPT2_124M = {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50257}
LLAMA_160M = {"family": "Llama", "layers": 12, "hidden": 768, "heads": 12, "kvHeads": 12, "ffn": 3072, "vocab": 32000,
              "tieEmbeddings": False}
EXAMPLE = {"layers": 4, "hidden": 256, "heads": 4, "vocab": 257}

FORMULAS = """* tokens/s = tokens of a global batch / median of the step times of a run; of the runs the median is given, the best in parentheses.
  Ours: the `step` spans of rank 0's trace. PyTorch: wall time around forward, backward, clipping, step and zero_grad. First steps are left out.
* roof: FLOPs a token / peak. FLOPs a token of GPT-2 with tied embeddings, causal attention: 6 (12 L C^2 + V C) + 6 L C T. Of Llama with
  as many key heads as query heads: 6 (4 L C^2 + 3 L C F + V C) + 6 L C T.
* start to first step: from exec to the end of the first step, one clock. Peak memory: resident high-water mark of the
  largest rank process while it trains (a checkpoint in progress holds a copy of the state beside it).
* stock: PyPI's PyTorch as it comes. All others are tuned: MKL told to take its fast path on this processor, and glibc to keep the memory that
  is freed, which costs peak memory. Fused AdamW in all. compiled: `torch.compile`. Ours is held against the fastest of its number format."""


def flops_per_token(model, length):
    layers, width, vocab = model["layers"], model["hidden"], model["vocab"]
    block = 12 * width * width
    if model.get("family") == "Llama":
        block = 2 * width * width * (1 + model["kvHeads"] / model["heads"]) + 3 * width * model["ffn"]
    return 6 * (layers * block + vocab * width) + 6 * layers * width * length


class Shape:
    """One experiment: a model, how the batch is cut, how many processes."""

    def __init__(self, title, model, *, ranks, threads, sequences, length, steps, warm=1):
        self.title = title
        self.model = model
        self.ranks = ranks
        self.threads = threads
        self.sequences = sequences
        self.length = length
        self.steps = steps
        self.warm = warm

    @property
    def tokens(self):
        return self.sequences * self.length


def our_run(context, shape, compute, environment=None, **how):
    """One run of ours, with `environment` over this process's own; `how`: more options of ours.manifest."""
    model = dict(shape.model, maxPositions=max(shape.length, 128), dropout=0.0)
    job = ours.manifest(model, context.tokens, name="bench", ranks=shape.ranks, threads=shape.threads,
                        sequences=shape.sequences, length=shape.length, steps=shape.warm + shape.steps,
                        compute=compute, **how)
    run = ours.train(context.binaries, context.work, job, keep_steps=shape.warm + shape.steps, environment=environment)
    return {"seconds": median(run.step_seconds(shape.warm)), "processor": run.processor_seconds(shape.warm),
            "all_processors": run.processor_seconds(shape.warm, all_ranks=True),
            "start": run.start_to_first_step(), "peak": run.peak_bytes, "own_peak": run.own_peak_bytes, "planned": run.planned_bytes,
            "spans": run.spans, "hidden": _hidden(run)}


def _hidden(run):
    rank = run.ranks[0]
    if len(run.ranks) == 1 or not rank["communicationNanos"]:
        return None
    return 1 - rank["exposedNanos"] / rank["communicationNanos"]


def torch_run(context, shape, **how):
    result = context.torch.train(context.text, ranks=shape.ranks, threads=shape.threads, sequences=shape.sequences,
                                 length=shape.length, steps=shape.steps, warm=shape.warm, model=shape.model, **how)
    return {"seconds": median(result["stepSeconds"]),
            "processor": sum(result["processorSeconds"]) / len(result["processorSeconds"]),
            "start": result["firstStepEnd"] - result["started"], "peak": result["peakBytes"],
            "import": result["importSeconds"]}


def contestants(context, shape, peers):
    """Ours in both formats, and PyTorch as `peers` says: {name: options of Torch.train}."""
    runs = {"trainyard fp32": lambda: our_run(context, shape, "FP32"),
            "trainyard bf16": lambda: our_run(context, shape, "BF16")}
    if context.torch.available:
        for name, how in peers.items():
            if multiplies_bf16() or not how.get("bf16"):
                runs[name] = lambda how=how: torch_run(context, shape, **how)
    return runs


PEERS = {
    "PyTorch fp32 stock": {"tuned": False},
    "PyTorch fp32 tuned": {},
    "PyTorch bf16 eager": {"bf16": True},
    "PyTorch bf16 compiled": {"bf16": True, "compiled": True},
}
FEW_PEERS = {name: PEERS[name] for name in ("PyTorch fp32 tuned", "PyTorch bf16 eager")}

NO_BF16 = ("This processor has no instructions for bf16 products. PyTorch took 15 times as long in bf16 as in fp32 on such "
           "a one (AMD Zen 3), so it takes part in fp32 only, and that is what ours in bf16 is held against.")


def rates_of(shape, results):
    """{name: tokens/s} of those that ran."""
    return {name: shape.tokens / median([r["seconds"] for r in runs]) for name, runs in results.items() if runs}


def fastest_peer(rate, number_format):
    """The best rate of PyTorch in a number format, or in fp32 where it takes no part in that one; None without PyTorch."""
    peers = {kind: [rate[name] for name in rate if name.startswith(f"PyTorch {kind}")] for kind in (number_format, "fp32")}
    return max(peers[number_format] or peers["fp32"], default=None)


def summarize(shape, results):
    """Markdown of one experiment."""
    rate = rates_of(shape, results)
    rows = []
    for name, runs in results.items():
        if not runs:
            rows.append([name, *["-"] * 5, results.runs(name)])
            continue
        best = shape.tokens / min(r["seconds"] for r in runs)
        against = "-"
        if name.startswith("trainyard"):
            against = ratio(rate[name], fastest_peer(rate, name.split()[1]))
        peak = median([r["peak"] for r in runs if r["peak"]])
        hidden = median([r["hidden"] for r in runs if r.get("hidden") is not None])
        rows.append([name, f"{number(rate[name])} ({number(best)})", against,
                     number(median([r["start"] for r in runs]), 1),
                     number(peak / 2**30 if peak else None, 2),
                     "-" if hidden is None else f"{100 * hidden:.0f} %", results.runs(name)])
    header = ["", "tokens/s", "against PyTorch", "start to first step, s", "peak GiB a rank", "communication hidden",
              "runs"]
    gflop = flops_per_token(shape.model, shape.length) / 1e9
    return (f"**{shape.title}**: {shape.ranks} process(es) x {shape.threads} thread(s), {shape.sequences} sequences of "
            f"{shape.length} tokens a step, {gflop:.3f} GFLOP a token.\n\n" + table(header, rows))


def gpt2_experiments(context):
    quick, cores = context.quick, context.cores
    steps = 2 if quick else 3
    shapes = [
        (Shape("GPT-2 124M", GPT2_124M, ranks=1, threads=cores, sequences=4, length=256, steps=steps),
         FEW_PEERS if quick else PEERS, 560),
        (Shape("GPT-2 124M, two ranks", GPT2_124M, ranks=2, threads=max(1, cores // 2), sequences=4, length=256,
               steps=steps), {} if quick else PEERS, 400),
    ]
    if not quick:
        shapes.append((Shape("GPT-2 124M, long sequences", GPT2_124M, ranks=1, threads=cores, sequences=1,
                             length=1024, steps=2), FEW_PEERS, 240))
    return shapes


def llama_experiments(context):
    quick, cores = context.quick, context.cores
    return [(Shape("Llama 160M", LLAMA_160M, ranks=1, threads=cores, sequences=4, length=256, steps=2 if quick else 3),
             FEW_PEERS if quick else PEERS, 560)]


def example_experiments(context):
    cores = context.cores
    return [
        (Shape("`make run` model, 3.2 M parameters", EXAMPLE, ranks=1, threads=cores, sequences=8, length=128,
               steps=40, warm=5), FEW_PEERS, 90),
        (Shape("`make run` model, two ranks", EXAMPLE, ranks=2, threads=max(1, cores // 2), sequences=8, length=128,
               steps=40, warm=5), FEW_PEERS, 120),
    ]


def _measure(context, experiments):
    text = [FORMULAS, "", f"PyTorch {context.torch.version}." if context.torch.available else
            "No PyTorch was given (`--python`), so its rows are missing.", ""]
    if context.torch.available and not multiplies_bf16():
        text += [NO_BF16, ""]
    for shape, peers, budget_s in experiments:
        results = interleave(context.rounds, contestants(context, shape, peers), budget_s)
        text += [summarize(shape, results), ""]
    return "\n".join(text)


def gpt2(context):
    """GPT-2 124M, real sizes."""
    return _measure(context, gpt2_experiments(context))


def llama(context):
    """Llama 160M, real sizes."""
    return _measure(context, llama_experiments(context))


def example(context):
    """The model of `make run`."""
    return _measure(context, example_experiments(context))


CHECKPOINT_FORMULAS = """* with: tokens of the steps from the end of the 2nd to the end of the last but one / the time between them, checkpoints as said below;
  without: the same stretch, no checkpoint. stall = time that the training thread stood still for checkpoints in it / that time.
* bandwidth = bytes of this rank's shard / its write time, fsync included; it is written beside training."""


def checkpoint(context):
    """What a checkpoint at every 10th step of GPT-2 124M costs."""
    steps, every_steps = (11, 5) if context.quick else (21, 10)
    shape = Shape("", GPT2_124M, ranks=1, threads=context.cores, sequences=4, length=256, steps=steps)
    model = dict(GPT2_124M, maxPositions=256, dropout=0.0)

    def run(every):
        job = ours.manifest(model, context.tokens, name="bench", ranks=1, threads=shape.threads,
                            sequences=shape.sequences, length=shape.length, steps=steps, compute="BF16",
                            checkpoint_every=every)
        ended = ours.train(context.binaries, context.work, job, keep_steps=steps)
        step = ended.spans["step"]
        # The last step's checkpoint, which every run takes, is after the stretch.
        begin, end, counted = step[1][1], step[steps - 2][1], steps - 3
        waits = [(b, e) for b, e, _ in ended.spans.get("checkpoint_wait", []) if begin <= b and e <= end]
        writes = [e - b for b, e, _ in ended.spans.get("checkpoint_write", [])]
        return {"rate": counted * shape.tokens / (end - begin), "stall": sum(e - b for b, e in waits) / (end - begin),
                "stall_each": median([e - b for b, e in waits]), "write": median(writes)}

    results = interleave(context.rounds, {"without": lambda: run(0), "with": lambda: run(every_steps)}, 330)
    if results.without():
        return f"**GPT-2 124M bf16**: failed: {', '.join(results.without())}; see the errors of the run.\n"
    without, with_ = (median([r["rate"] for r in results[name]]) for name in ("without", "with"))
    parameters = 124_439_808
    write = median([r["write"] for r in results["with"]])
    stall_each = [r["stall_each"] for r in results["with"] if r["stall_each"] is not None]
    rows = [["tokens/s without", number(without)], ["tokens/s with", number(with_)],
            ["with / without", f"{100 * with_ / without:.1f} %"],
            ["stall", f"{100 * median([r['stall'] for r in results['with']]):.2f} %"],
            ["stall a checkpoint", f"{1e3 * median(stall_each):.0f} ms" if stall_each else "-"],
            ["write of 12 B x 124.4 M", f"{write:.2f} s, {12 * parameters / write / 1e9:.2f} GB/s"],
            ["runs", results.runs("with")]]
    return (CHECKPOINT_FORMULAS + "\n\n**GPT-2 124M bf16**, one process, 4 sequences of 256 tokens, checkpoint at every "
            f"{every_steps}th step.\n\n" + table(["", "median"], rows) + "\n")
