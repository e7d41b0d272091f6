#!/usr/bin/env python3
"""Trains a GPT-2 in PyTorch on the CPU and prints one JSON line: what `tools/run_bench` holds our engine against.

Usage: OMP_NUM_THREADS=2 python gpt2_torch.py --text FILE [--layers 12 --hidden 768 --heads 12 --vocab 50257]
       [--sequences 4] [--tokens 256] [--steps 4] [--warm 1] [--bf16] [--compile]
       torchrun --nproc-per-node 2 gpt2_torch.py --parallel ddp|zero1|fsdp2 ...     (--sequences is a rank's part of the batch)
Needs: torch. Tokens are the bytes of FILE; AdamW, clipping at norm 1, tied embeddings, no dropout, as our manifests say.

The line has step seconds and the processor seconds of rank 0 in them (lists, warm-up left out), loss, peak resident bytes, the seconds of `import torch`, and the
CLOCK_MONOTONIC time at the end of the first step, so that whoever started the process knows what the start cost.
"""

import argparse
import json
import os
import resource
import time

import_began = time.monotonic()
import torch
from torch import nn
from torch.nn import functional as F

import_seconds = time.monotonic() - import_began


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x_BTC):
        batch, tokens, width = x_BTC.shape
        parts = self.project_in(x_BTC).split(width, dim=-1)
        q, k, v = (part.reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project_out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BTC):
        x_BTC = x_BTC + self.attention(self.norm_attention(x_BTC))
        return x_BTC + self.down(F.gelu(self.up(self.norm_mlp(x_BTC)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.token = nn.Embedding(options.vocab, options.hidden)
        self.position = nn.Embedding(options.tokens, options.hidden)
        self.layers = nn.ModuleList(Layer(options.hidden, options.heads) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BT, targets_BT):
        x_BTC = self.token(tokens_BT) + self.position(torch.arange(tokens_BT.shape[1]))
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        logits_BTV = self.norm(x_BTC) @ self.token.weight.T
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


def parse(numbers):
    parser = argparse.ArgumentParser(description="A decoder in PyTorch on the CPU.")
    for name, default in (numbers | {"sequences": 4, "tokens": 256, "steps": 4, "warm": 1}).items():
        parser.add_argument("--" + name, type=int, default=default)
    for name in ("bf16", "compile"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--parallel", choices=("ddp", "zero1", "fsdp2"))
    parser.add_argument("--text", required=True)
    return parser.parse_args()


def windows_of(options, sequences):
    """Text for 64 steps of so many sequences: int64 [windows, tokens + 1]."""
    window = options.tokens + 1
    with open(options.text, "rb") as file:
        text = torch.frombuffer(bytearray(file.read(window * sequences * 64)), dtype=torch.uint8).long()
    return text[: text.numel() // window * window].view(-1, window)


def distribute(model, parallel):
    """The model as PyTorch's data parallelism of that name trains it; as it is without one."""
    if parallel == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh)
    elif parallel:
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model


def optimizer_of(model, parallel):
    how = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    if parallel == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, **how)
    return torch.optim.AdamW(model.parameters(), **how)


def main(make_model, numbers):
    """Trains `make_model(options)`; `numbers`: the model's sizes that are options, with their defaults."""
    options = parse(numbers)
    torch.manual_seed(1)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    rank, ranks = 0, 1
    if options.parallel:
        torch.distributed.init_process_group("gloo")
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = make_model(options)
    trained = distribute(model, options.parallel)
    forward = torch.compile(trained) if options.compile else trained
    optimizer = optimizer_of(model, options.parallel)
    windows = windows_of(options, options.sequences * ranks)

    seconds, processor, first_step_end, loss = [], [], None, None
    for step in range(options.warm + options.steps):
        began, processor_began = time.monotonic(), time.process_time()
        rows = [((step * ranks + rank) * options.sequences + i) % len(windows) for i in range(options.sequences)]
        batch = windows[rows]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
            loss = forward(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        ended = time.monotonic()
        first_step_end = first_step_end or ended
        if step >= options.warm:
            seconds.append(ended - began)
            processor.append(time.process_time() - processor_began)
    if rank == 0:
        print(json.dumps({"stepSeconds": seconds, "processorSeconds": processor, "loss": value, "parameters": sum(p.numel() for p in model.parameters()),
                          "tokensPerStep": options.sequences * options.tokens * ranks, "ranks": ranks,
                          "peakBytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                          "importSeconds": import_seconds, "firstStepEnd": first_step_end,
                          "torch": torch.__version__}), flush=True)
    if options.parallel:
        torch.distributed.barrier()  # gloo aborts a rank whose peer is gone
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Gpt2, {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50257})
