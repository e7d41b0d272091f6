#!/usr/bin/env python3
"""Trains the GPT-2 of gpt2_torch.py with torch.distributed.pipelining on the CPU: what our pipelines are held against.

Usage: torchrun --nproc-per-node 2 gpt2_pipeline_torch.py --schedule GPipe|1F1B|Interleaved1F1B|InterleavedZeroBubble|ZBVZeroBubble
       --text FILE [--layers 6 --hidden 512 --heads 8 --vocab 16384] [--sequences 8] [--tokens 256] [--steps 3] [--warm 1]
Needs: torch. A micro-batch is one sequence, --sequences are those of a step. The schedules of several stages per rank have two.
Layers are cut such that the stage that costs most costs least, as ours are; the tied table is on the first and the last stage.

Rank 0 prints one JSON line like gpt2_torch.py, with the processor seconds of all ranks.
"""

import argparse
import itertools
import json
import os
import resource
import time

import torch
from gpt2_torch import Layer, windows_of
from torch import distributed, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from torch.nn import functional as F

SCHEDULES = {"GPipe": (schedules.ScheduleGPipe, 1), "1F1B": (schedules.Schedule1F1B, 1),
             "Interleaved1F1B": (schedules.ScheduleInterleaved1F1B, 2),
             "InterleavedZeroBubble": (schedules.ScheduleInterleavedZeroBubble, 2),
             "ZBVZeroBubble": (schedules.ScheduleZBVZeroBubble, 2)}


class Stage(nn.Module):
    def __init__(self, options, layers, first, last):
        super().__init__()
        self.first, self.last = first, last
        if first or last:
            torch.manual_seed(1)  # the same table on both
            self.token = nn.Embedding(options.vocab, options.hidden)
        if first:
            self.position = nn.Embedding(options.tokens, options.hidden)
        self.layers = nn.ModuleList(Layer(options.hidden, options.heads) for _ in layers)
        if last:
            self.norm = nn.LayerNorm(options.hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x_BTC):
        if self.first:
            x_BTC = self.token(x_BTC) + self.position(torch.arange(x_BTC.shape[1]))
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return self.norm(x_BTC) @ self.token.weight.T if self.last else x_BTC


def parse():
    parser = argparse.ArgumentParser(description="GPT-2 in a pipeline of PyTorch on the CPU.")
    for name, default in {"layers": 6, "hidden": 512, "heads": 8, "vocab": 16384, "sequences": 8, "tokens": 256, "steps": 3, "warm": 1}.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--schedule", choices=SCHEDULES, required=True)
    parser.add_argument("--text", required=True)
    return parser.parse_args()


def cut(options, stages):
    """Layers of each stage; the head costs as many layers as it has their products."""
    head = options.vocab / (12 * options.hidden)

    def costs(ends):
        counts = [end - begin for begin, end in itertools.pairwise((0, *ends, options.layers))]
        return sorted((count + head * (stage == stages - 1) for stage, count in enumerate(counts)), reverse=True)

    ends = min(itertools.combinations_with_replacement(range(options.layers + 1), stages - 1), key=costs)
    return [range(*of_stage) for of_stage in itertools.pairwise((0, *ends, options.layers))]


def loss_of(logits_BTV, targets_BT):
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


def main():
    options = parse()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    kind, per_rank = SCHEDULES[options.schedule]
    count = ranks * per_rank
    own = [rank, count - 1 - rank] if options.schedule.startswith("ZBV") else list(range(rank, count, ranks))
    layers = cut(options, count)
    modules = {stage: Stage(options, layers[stage], stage == 0, stage == count - 1) for stage in own}
    stages = [pipelining.PipelineStage(module, stage, count, torch.device("cpu")) for stage, module in modules.items()]
    schedule = kind(stages[0] if per_rank == 1 else stages, n_microbatches=options.sequences, loss_fn=loss_of)
    has_first, has_last = 0 in own, count - 1 in own
    last_rank = 0 if options.schedule.startswith("ZBV") else ranks - 1
    ends = distributed.new_group(sorted({0, last_rank}))
    if has_first and has_last:
        modules[count - 1].token = modules[0].token
    parameters = list({id(p): p for module in modules.values() for p in module.parameters()}.values())
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    windows = windows_of(options, options.sequences)

    seconds, processor, loss = [], [], None
    for step in range(options.warm + options.steps):
        began, processor_began = time.monotonic(), time.process_time()
        batch = windows[[(step * options.sequences + i) % len(windows) for i in range(options.sequences)]]
        losses = []
        arguments = [batch[:, :-1]] if has_first else []
        schedule.step(*arguments, **({"target": batch[:, 1:], "losses": losses} if has_last else {}))
        tied = modules[0 if has_first else count - 1].token.weight if has_first or has_last else None
        if tied is not None and last_rank != 0:
            distributed.all_reduce(tied.grad, group=ends)
        counted = [p.grad for p in parameters if p is not tied or has_first]
        square = nn.utils.get_total_norm(counted) ** 2
        distributed.all_reduce(square)
        torch._foreach_mul_([p.grad for p in parameters], min(1.0, 1 / square.item() ** 0.5))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        distributed.all_reduce(loss)  # every rank's step ends when all have
        if step >= options.warm:
            seconds.append(time.monotonic() - began)
            used = torch.tensor(time.process_time() - processor_began)
            distributed.all_reduce(used)
            processor.append(used.item())
    if rank == 0:
        print(json.dumps({"stepSeconds": seconds, "processorSeconds": processor, "loss": loss.item(), "ranks": ranks,
                          "peakBytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                          "torch": torch.__version__}), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
