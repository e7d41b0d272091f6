#!/usr/bin/env python3
"""Makes tests/fixtures/decoders: tiny random models of Llama's kind, as `transformers` saves them, with
its logits and 30 optimizer steps as PyTorch does them, in float64.

Run by hand when the fixture has to change, never by the tests:

    python3 -m venv ~/.cache/trainyard/oracle
    ~/.cache/trainyard/oracle/bin/pip install torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 numpy
    ~/.cache/trainyard/oracle/bin/python tools/oracle/make_decoder_fixture.py

A folder for each case: config.json, model.safetensors and expected.json (recipe, tokens, losses, norms of
gradients, logits of the last position of each sequence before and after). The data set is one global
batch, seen whole at every step: sequence b is tokens[b*T : b*T + T + 1].
"""

import json
import math
import pathlib
import sys

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "fixtures" / "decoders"
NAMES = sys.argv[2:]  # of cases; none: all

SEED, VOCAB, SEQUENCES, LENGTH = 20240229, 61, 4, 16
STEPS, WARMUP, LEARNING_RATE, MIN_RATIO = 30, 5, 5.0e-3, 0.1
BETAS, EPSILON, WEIGHT_DECAY, CLIP = (0.9, 0.95), 1.0e-8, 0.1, 1.0

COMMON = dict(vocab_size=VOCAB, num_hidden_layers=2, hidden_size=24, intermediate_size=40,
              num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)


def rope(rope_type="default", theta=10000.0, **others):
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **others}}


CASES = {
    "llama": (transformers.LlamaConfig, rope(theta=500.0)),
    "llama-biases-tied": (transformers.LlamaConfig,
                          dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=6, **rope())),
    "llama-linear": (transformers.LlamaConfig, rope("linear", factor=4.0)),
    "llama-llama3": (transformers.LlamaConfig,
                     dict(head_dim=16, **rope("llama3", 100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                              original_max_position_embeddings=32))),
    "llama-yarn": (transformers.LlamaConfig,
                   dict(head_dim=16, **rope("yarn", 100.0, factor=4.0, original_max_position_embeddings=16))),
    "qwen2": (transformers.Qwen2Config, rope(theta=1000000.0)),
    "qwen3": (transformers.Qwen3Config, dict(head_dim=10, **rope(theta=1000000.0))),
    "mistral": (transformers.MistralConfig, dict(sliding_window=None, num_key_value_heads=3, **rope())),
    "mistral-window": (transformers.MistralConfig, dict(sliding_window=5, num_key_value_heads=3, **rope())),
    "qwen2-window": (transformers.Qwen2Config, dict(use_sliding_window=True, sliding_window=7, max_window_layers=1,
                                                    **rope(theta=1000000.0))),
    # One key head for all queries, biases of attention alone, and an epsilon that counts.
    "llama-one-key-head": (transformers.LlamaConfig,
                           dict(num_key_value_heads=1, attention_bias=True, rms_norm_eps=0.05, tie_word_embeddings=True,
                                head_dim=8, **rope(theta=20000.0))),
    # A key head for each query, and every key of yarn's.
    "qwen3-yarn-window": (transformers.Qwen3Config,
                          dict(num_key_value_heads=6, head_dim=12, attention_bias=True, tie_word_embeddings=True,
                               use_sliding_window=True, sliding_window=6, max_window_layers=1,
                               **rope("yarn", 1000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=8.0,
                                      beta_slow=2.0, attention_factor=1.2, truncate=False))),
}


def learning_rate(step):
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / WARMUP
    progress = (step - WARMUP) / max(1, STEPS - WARMUP)
    return LEARNING_RATE * (MIN_RATIO + (1 - MIN_RATIO) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_model(kind, options):
    torch.manual_seed(SEED)
    config = kind(**{**COMMON, **options})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            # Everything random, biases and norms too: zeros and ones hide a swap.
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def last_logits(model, tokens):
    with torch.no_grad():
        logits = torch.stack([model(tokens[b : b + 1, :LENGTH]).logits[0, -1] for b in range(SEQUENCES)])
    return [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]


def train(model, tokens):
    # The decay goes to matrices alone.
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        logits = model(tokens[:, :LENGTH]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] - losses[-1] > 1, losses
    return losses, norms


def main():
    generator = torch.Generator().manual_seed(SEED)
    stream = torch.randint(0, VOCAB, (SEQUENCES * LENGTH + 1,), generator=generator)
    tokens = torch.stack([stream[b * LENGTH : b * LENGTH + LENGTH + 1] for b in range(SEQUENCES)])
    for name, (kind, options) in CASES.items():
        if NAMES and name not in NAMES:
            continue
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        model = make_model(kind, options)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        model = model.double()
        before = last_logits(model, tokens)
        losses, norms = train(model, tokens)
        expected = {
            "recipe": {"sequenceLength": LENGTH, "sequences": SEQUENCES, "steps": STEPS, "warmupSteps": WARMUP,
                       "learningRate": LEARNING_RATE, "minRatio": MIN_RATIO, "betas": BETAS, "epsilon": EPSILON,
                       "weightDecay": WEIGHT_DECAY, "gradientClip": CLIP},
            "tokens": stream.tolist(), "loss": losses, "gradientNorm": norms,
            "logitsBefore": before, "logitsAfter": last_logits(model, tokens)}
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        print(name, losses[0], losses[-1], max(norms))


if __name__ == "__main__":
    main()
