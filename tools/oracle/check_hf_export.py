#!/usr/bin/env python3
"""Checks that `transformers` loads an exported folder, and that it is the model it should be.

Usage: python3 tools/oracle/check_hf_export.py DIRECTORY [ORIGINAL]
Needs: torch 2.15, transformers 5.23.

Loads DIRECTORY with GPT2LMHeadModel, fails on missing or unexpected tensors, prints the logits of a
fixed sequence, and with ORIGINAL (another folder) demands equal configurations, equal tensors bit for
bit and equal logits.
"""

import sys

import torch
import transformers

SIZES = ["n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "layer_norm_epsilon",
         "activation_function", "resid_pdrop", "embd_pdrop", "attn_pdrop", "tie_word_embeddings"]


def load(folder):
    model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(kind):
            sys.exit(f"{folder}: {kind}: {sorted(info[kind])}")
    return model.eval()


def logits_of(model):
    count = min(model.config.n_positions, 12)
    tokens = torch.tensor([[(5 * i + 1) % model.config.vocab_size for i in range(count)]])
    with torch.no_grad():
        return model(tokens).logits[0]


def main():
    model = load(sys.argv[1])
    logits = logits_of(model)
    print(f"{sys.argv[1]}: {sum(p.numel() for p in model.parameters())} parameters, "
          f"last logits {[round(x, 6) for x in logits[-1, :4].tolist()]}")
    if len(sys.argv) < 3:
        return
    original = load(sys.argv[2])
    for name in SIZES:
        if getattr(model.config, name) != getattr(original.config, name):
            sys.exit(f"config {name}: {getattr(model.config, name)} != {getattr(original.config, name)}")
    theirs = original.state_dict()
    for name, tensor in model.state_dict().items():
        if not torch.equal(tensor, theirs[name]):
            sys.exit(f"tensor {name} differs")
    if not torch.equal(logits, logits_of(original)):
        sys.exit("logits differ")
    print("equal: configuration, every tensor, logits")


if __name__ == "__main__":
    main()
