#!/usr/bin/env python3
"""Trains the GPT-2 of gpt2_torch.py with PyTorch's tensor parallelism (DTensor) on the CPU: what ours is held against.

Usage: torchrun --nproc-per-node 2 gpt2_tensor_torch.py --text FILE [--layers 6 --hidden 512 --heads 8 --vocab 16384]
       [--sequences 8] [--tokens 256] [--steps 3] [--warm 1] [--bf16] [--sequence-parallel]
Needs: torch. All ranks have the same sequences. Attention is cut by heads, the MLP by its hidden columns, the tied table by rows, and
the loss is taken from logits that stay cut (`loss_parallel`). --sequence-parallel cuts norms and the residual stream by positions.

Rank 0 prints one JSON line like gpt2_torch.py, with the processor seconds of all ranks.
"""

import argparse
import contextlib
import json
import os
import resource
import time

import torch
from gpt2_torch import Attention, Gpt2, Layer, windows_of
from torch import distributed, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)
from torch.nn import functional as F


class CutAttention(Attention):
    """The product's columns are those of one head after the other, each queries, keys, values: a cut leaves heads whole."""

    def forward(self, x_BTC):
        batch, tokens, width = x_BTC.shape
        heads = self.project_in(x_BTC).view(batch, tokens, -1, 3, width // self.heads)
        q, k, v = heads.transpose(1, 2).unbind(3)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project_out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class CutLayer(Layer):
    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.attention = CutAttention(width, heads)


class CutGpt2(Gpt2):
    def __init__(self, options):
        super().__init__(options)
        self.layers = nn.ModuleList(CutLayer(options.hidden, options.heads) for _ in range(options.layers))
        for parameter in self.layers.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head = nn.Linear(options.hidden, options.vocab, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens_BT):
        x_BTC = self.token(tokens_BT) + self.position(torch.arange(tokens_BT.shape[1])[None])
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return self.head(self.norm(x_BTC))


def parse():
    parser = argparse.ArgumentParser(description="GPT-2 by DTensor of PyTorch on the CPU.")
    for name, default in {"layers": 6, "hidden": 512, "heads": 8, "vocab": 16384, "sequences": 8, "tokens": 256, "steps": 3, "warm": 1}.items():
        parser.add_argument("--" + name, type=int, default=default)
    for name in ("bf16", "sequence-parallel"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--text", required=True)
    return parser.parse_args()


def cut(model, mesh, by_positions):
    """Cuts the model in place. With `by_positions` the residual stream is cut along its tokens between the products."""
    stream = Shard(1) if by_positions else Replicate()
    rows = {"output_layouts": stream}
    whole = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
    plan = {"token": RowwiseParallel(input_layouts=Replicate(), **rows),
            "position": RowwiseParallel(input_layouts=Replicate(), **rows),
            "head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)}
    if by_positions:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        plan = {"attention.project_in": ColwiseParallel(), "attention.project_out": RowwiseParallel(**rows),
                "up": ColwiseParallel(), "down": RowwiseParallel(**rows)}
        if by_positions:
            plan |= {"norm_attention": SequenceParallel(), "norm_mlp": SequenceParallel(), "attention": whole,
                     "up": ColwiseParallel(input_layouts=stream)}
        parallelize_module(layer, mesh, plan)
    model.head.weight = model.token.weight  # cut alike; parallelize_module has untied them


def main():
    options = parse()
    torch.manual_seed(1)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    model = CutGpt2(options)
    cut(model, distributed.init_device_mesh("cpu", (ranks,)), options.sequence_parallel)
    # Neither clipping nor the fused AdamW takes whole tensors and cut ones in one call.
    cut_parts = [p for p in model.parameters() if isinstance(p, DTensor)]
    plain = [p for p in model.parameters() if not isinstance(p, DTensor)]
    optimizers = [torch.optim.AdamW(group, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
                  for group in (cut_parts, plain) if group]
    windows = windows_of(options, options.sequences)

    seconds, processor, loss = [], [], None
    for step in range(options.warm + options.steps):
        began, processor_began = time.monotonic(), time.process_time()
        batch = windows[[(step * options.sequences + i) % len(windows) for i in range(options.sequences)]]
        bf16 = torch.autocast("cpu", dtype=torch.bfloat16) if options.bf16 else contextlib.nullcontext()
        with loss_parallel():
            with bf16:
                logits_BTV = model(batch[:, :-1])
            loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), batch[:, 1:].flatten())
            loss.backward()
        squares = [nn.utils.get_total_norm([p.grad for p in group]) ** 2 for group in (cut_parts, plain) if group]
        squares = [s.full_tensor() if isinstance(s, DTensor) else s for s in squares]
        scale = min(1.0, 1 / sum(squares).item() ** 0.5)
        for optimizer in optimizers:
            torch._foreach_mul_([p.grad for group in optimizer.param_groups for p in group["params"]], scale)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        value = (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()
        if step >= options.warm:
            seconds.append(time.monotonic() - began)
            used = torch.tensor(time.process_time() - processor_began)
            distributed.all_reduce(used)
            processor.append(used.item())
    if rank == 0:
        print(json.dumps({"stepSeconds": seconds, "processorSeconds": processor, "loss": value, "ranks": ranks,
                          "peakBytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                          "torch": torch.__version__}), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
