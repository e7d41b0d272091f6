"""Training with states cut over the ranks: tokens per second against PyTorch, memory by purpose, overlap on a limited link."""

import subprocess

import ours
from machine import multiplies_bf16
from measure import interleave, median, number, ratio, table
from training import GPT2_124M, Shape, fastest_peer, our_run, rates_of, torch_run

GPT2_30M = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 16384}
STAGES = (1, 2, 3)
# What cuts the same states in PyTorch; its only way to cut gradients cuts weights as well.
COUNTERPART = {1: "ZeRO-1", 2: "FSDP2", 3: "FSDP2"}
PEERS = {"DDP": "ddp", "ZeRO-1": "zero1", "FSDP2": "fsdp2"}

FORMULAS = """* tokens/s and peak memory as in the part gpt2; one thread per rank, over shared memory (ours) and gloo (PyTorch).
* PyTorch: DDP is DistributedDataParallel with gradients as views of buckets; ZeRO-1 the same with ZeroRedundancyOptimizer, parameters as views of
  buckets; FSDP2 is `fully_shard` of each layer and of the model. bf16 by autocast. tuned: as in the part gpt2, its allocator settings included.
* processor s: what rank 0 computes in a step, all its threads, user and system. It hardly depends on what else runs; ours also spins while it waits.
* fastest: against the fastest of PyTorch in the same number format, whatever it cuts. counterpart: stage 1 against the faster ZeRO-1, stages 2 and 3
  against the faster FSDP2."""


def _contestants(context, shape, formats, tunings):
    runs = {}
    for number_format in formats:
        for stage in STAGES:
            runs[f"trainyard {number_format} stage {stage}"] = lambda f=number_format, s=stage: our_run(
                context, shape, f.upper(), zero_stage=s)
        if not context.torch.available or (number_format == "bf16" and not multiplies_bf16()):
            continue
        for tuning in tunings if number_format == "fp32" else tunings[-1:]:
            for name, parallel in PEERS.items():
                runs[f"PyTorch {number_format} {name} {tuning}"] = lambda f=number_format, t=tuning, p=parallel: torch_run(
                    context, shape, tuned=t == "tuned", bf16=f == "bf16", parallel=p)
    return runs


def _summarize(shape, results):
    rate = rates_of(shape, results)
    rows = []
    for name, runs in results.items():
        if not runs:
            rows.append([name, *["-"] * 5, results.runs(name)])
            continue
        fastest = counterpart = "-"
        words = name.split()
        if words[0] == "trainyard":
            peers = [rate[peer] for peer in rate if peer.startswith(f"PyTorch {words[1]} {COUNTERPART[int(words[3])]}")]
            fastest = ratio(rate[name], fastest_peer(rate, words[1]))
            counterpart = ratio(rate[name], max(peers, default=None))
        best = shape.tokens / min(run["seconds"] for run in runs)
        peak = median([run["peak"] for run in runs if run["peak"]])
        rows.append([name, f"{number(rate[name])} ({number(best)})", fastest, counterpart,
                     number(median([run["processor"] for run in runs]), 2),
                     number(peak / 2**30 if peak else None, 2), results.runs(name)])
    return (f"**{shape.title}**: {shape.ranks} ranks x {shape.threads} thread, {shape.sequences} sequences of {shape.length} "
            "tokens a step.\n\n" + table(["", "tokens/s", "fastest", "counterpart", "processor s", "peak GiB a rank", "runs"], rows))


def throughput(context):
    """Stages 1 to 3 beside PyTorch's DDP, ZeroRedundancyOptimizer and FSDP2. Every experiment runs at least one round."""
    both, tuned = ("stock", "tuned"), ("tuned",)
    shapes = [
        (Shape("GPT-2 30M", GPT2_30M, ranks=2, threads=1, sequences=8, length=256, steps=3), ("fp32", "bf16"), both, 120),
        (Shape("GPT-2 124M", GPT2_124M, ranks=2, threads=1, sequences=4, length=256, steps=2), ("fp32", "bf16"), tuned, 150),
    ]
    if not context.quick:
        shapes.append((Shape("GPT-2 30M on four ranks", GPT2_30M, ranks=4, threads=1, sequences=8, length=256, steps=2),
                       ("fp32",), tuned, 60))
    text = [FORMULAS, "", f"PyTorch {context.torch.version}." if context.torch.available else
            "No PyTorch was given (`--python`), so its rows are missing.", ""]
    for shape, formats, tunings, budget_s in shapes:
        results = interleave(context.rounds, _contestants(context, shape, formats, tunings), budget_s)
        text += [_summarize(shape, results), ""]
    return "\n".join(text)


MEMORY_FORMULAS = """* process: resident high-water mark less resident shared memory (VmHWM - RssShmem of /proc/PID/status) of the rank where it is largest, while
  it trains. engine: `trainyard_rank_memory_bytes` of that rank by purpose; parameters: weights, masters and gathered weights; gradients: exact sums,
  those of a micro-batch included. rest: process less engine: program, page tables, data, buffers of the transport outside of shared memory."""
CUTS = {"stage 0": {"zero_stage": 0}, "stage 1": {"zero_stage": 1}, "stage 2": {"zero_stage": 2},
        "stage 3": {"zero_stage": 3}, "stage 3, 2 x 2": {"zero_stage": 3, "shard": 2}}
PURPOSES = ("parameters", "optimizer", "gradients", "activations", "kernel_scratch")


def memory(context):
    """What a rank of GPT-2 124M holds at each stage, by the kernel's count and by the engine's own."""
    shape = Shape("", GPT2_124M, ranks=4, threads=1, sequences=4, length=256, steps=2)
    mib, rows, processes, engines = 2**20, [], [], []
    for name, cut in CUTS.items():
        run = our_run(context, shape, "FP32", **cut)
        rank = max(run["own_peak"], key=run["own_peak"].get)
        process, planned = run["own_peak"][rank], run["planned"][rank]
        engine = sum(planned[purpose] for purpose in PURPOSES)
        rows.append([name, *(number(planned[purpose] / mib) for purpose in PURPOSES), number(engine / mib),
                     number(process / mib), number((process - engine) / mib)])
        processes.append(f"{process / mib:.0f}")
        engines.append(f"{engine / mib:.0f}")
    names = ", ".join(f'"{name}"' for name in CUTS)
    picture = ["```mermaid", "xychart-beta", '  title "GPT-2 124M on 4 ranks: MiB of the largest rank, process (bars) and engine (line)"',
               f"  x-axis [{names}]", '  y-axis "MiB" 0 --> ' + str(500 * (1 + int(max(map(float, processes))) // 500)),
               f"  bar [{', '.join(processes)}]", f"  line [{', '.join(engines)}]", "```"]
    header = ["MiB", *(purpose.replace("_", " ") for purpose in PURPOSES), "engine", "process", "rest"]
    return (MEMORY_FORMULAS + "\n\n**GPT-2 124M fp32**: 4 ranks x 1 thread, one sequence of 256 tokens per rank.\n\n"
            + table(header, rows) + "\n\n" + "\n".join(picture) + "\n")


# Every TCP socket of the ranks sends no faster than this: the kernel paces it (socket(7), tcp(7)).
PACER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
static int paced(int fd) {
  const char *rate = getenv("TRAINYARD_BENCH_BYTES_PER_SECOND");
  unsigned long bytes_per_s = rate ? strtoul(rate, 0, 10) : 0;
  if (fd >= 0 && bytes_per_s > 0) setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, sizeof(bytes_per_s));
  return fd;
}
int socket(int domain, int type, int protocol) {
  int (*real)(int, int, int) = dlsym(RTLD_NEXT, "socket");
  int fd = real(domain, type, protocol);
  return domain == AF_INET || domain == AF_INET6 ? paced(fd) : fd;
}
int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
  int (*real)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
  int accepted = real(fd, address, length, flags), domain = AF_UNSPEC;
  socklen_t size = sizeof(domain);
  if (accepted >= 0) getsockopt(accepted, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain == AF_INET || domain == AF_INET6 ? paced(accepted) : accepted;
}
"""
OVERLAP_FORMULAS = """* Two ranks over TCP on this machine; the kernel paces every socket to the rate of the link, either direction by itself (SO_MAX_PACING_RATE).
* computation: a step less the spans in which the training thread waited for communication. communication: bytes that a rank sends in a step (half of
  the buffer of each reduce-scatter and all-gather, a whole one of each all-reduce) / the rate of the link. step: wall time.
* step / longer: against max(computation, communication), what perfect overlap would reach; step / sum: what no overlap would give is 1. Medians of steps.
* hidden: the trace's own figure (docs/formats/trace.md), in which waiting for a slow peer counts as communication."""
RATES = (50, 100, 200)  # MB/s: communication longer than, as long as and shorter than computation on two cores of 2026
SENT_SHARE_OF_TWO = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5}


def _pacer(context):
    source, library = context.work / "pacer.c", context.work / "pacer.so"
    source.write_text(PACER, encoding="utf-8")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True)
    return library


def _parts_of_step(spans, warm):
    """(step, computation, bytes sent by one of two ranks): medians and, of bytes, the mean over the steps after `warm`."""
    steps = spans["step"][warm:]
    waits = [sum(e - b for name in ("communication_wait", "pipeline_wait") for b, e, _ in spans.get(name, []) if begin <= b < end) for begin, end, _ in steps]
    sent = sum(SENT_SHARE_OF_TWO[args["name"].split()[0]] * args["bytes"]
               for b, _, args in spans["collective"] if steps[0][0] <= b < steps[-1][1])
    return (median([end - begin for begin, end, _ in steps]),
            median([end - begin - wait for (begin, end, _), wait in zip(steps, waits)]), sent / len(steps))


def overlap(context):
    """A step of two ranks against the longer of its computation and its communication, on links of several rates."""
    pacer = _pacer(context)
    shape = Shape("", GPT2_30M, ranks=2, threads=1, sequences=8, length=256, steps=4 if context.quick else 6, warm=2)
    rows = []
    for megabytes_per_s in RATES:
        for stage in (0, 1, 3):
            environment = {"LD_PRELOAD": str(pacer), "TRAINYARD_BENCH_BYTES_PER_SECOND": str(megabytes_per_s * 10**6)}
            run = our_run(context, shape, "FP32", zero_stage=stage, transport="Tcp", environment=environment)
            step, computed, sent = _parts_of_step(run["spans"], shape.warm)
            link = sent / (megabytes_per_s * 10**6)
            rows.append([f"{megabytes_per_s} MB/s, stage {stage}", f"{computed:.2f}", f"{sent / 1e6:.0f}", f"{link:.2f}", f"{step:.2f}",
                         ratio(step, max(computed, link)), ratio(step, computed + link), f"{100 * run['hidden']:.0f} %"])
    header = ["", "computation, s", "MB sent a rank", "communication, s", "step, s", "step / longer", "step / sum", "hidden"]
    return (OVERLAP_FORMULAS + f"\n\n**GPT-2 30M fp32**: 2 ranks x 1 thread, {shape.sequences} sequences of {shape.length} tokens a "
            "step.\n\n" + table(header, rows) + "\n")
