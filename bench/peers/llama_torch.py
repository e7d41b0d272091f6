#!/usr/bin/env python3
"""Trains a Llama in PyTorch on the CPU and prints one JSON line: what `tools/run_bench` holds our engine against.

Usage: OMP_NUM_THREADS=2 python llama_torch.py --text FILE [--layers 12 --hidden 768 --heads 12 --kv-heads 12 --ffn 3072 --vocab 32000]
       [--sequences 4] [--tokens 256] [--steps 4] [--warm 1] [--bf16] [--compile]
       torchrun --nproc-per-node 2 llama_torch.py --parallel ddp|zero1|fsdp2 ...    (--sequences is a rank's part of the batch)
Needs: torch. Training and output are those of gpt2_torch.py. The projections to queries, keys and values are one product, as are
those to gates and their inputs. Cosines and sines are computed once, in fp32. The head is a table of its own.
"""

from gpt2_torch import main  # before torch, whose import it times

import torch
from torch import nn
from torch.nn import functional as F

THETA = 10000.0
EPSILON = 1e-6


def rotation(tokens, head_dim):
    """Cosines and sines of each position, [tokens, head_dim]: both halves are the same."""
    frequencies = THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.arange(tokens, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x_BHTD, cosine, sine):
    low, high = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cosine + torch.cat((-high, low), dim=-1) * sine


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.project_in = nn.Linear(width, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.project_out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTC, cosine, sine):
        batch, tokens, width = x_BTC.shape
        heads = self.project_in(x_BTC).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = (rotate(x, cosine, sine).to(v.dtype) for x in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.project_out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.norm_attention = nn.RMSNorm(options.hidden, eps=EPSILON)
        self.attention = Attention(options.hidden, options.heads, options.kv_heads)
        self.norm_mlp = nn.RMSNorm(options.hidden, eps=EPSILON)
        self.gate_up = nn.Linear(options.hidden, 2 * options.ffn, bias=False)
        self.down = nn.Linear(options.ffn, options.hidden, bias=False)

    def forward(self, x_BTC, cosine, sine):
        x_BTC = x_BTC + self.attention(self.norm_attention(x_BTC), cosine, sine)
        gate, up = self.gate_up(self.norm_mlp(x_BTC)).chunk(2, dim=-1)
        return x_BTC + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.token = nn.Embedding(options.vocab, options.hidden)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.hidden, eps=EPSILON)
        self.head = nn.Linear(options.hidden, options.vocab, bias=False)
        cosine, sine = rotation(options.tokens, options.hidden // options.heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BT, targets_BT):
        x_BTC = self.token(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC, self.cosine, self.sine)
        logits_BTV = self.head(self.norm(x_BTC))
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


if __name__ == "__main__":
    main(Llama, {"layers": 12, "hidden": 768, "heads": 12, "kv-heads": 12, "ffn": 3072, "vocab": 32000})
