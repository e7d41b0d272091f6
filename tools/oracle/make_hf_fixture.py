#!/usr/bin/env python3
"""Makes tests/fixtures/hf_tiny_gpt2: a tiny GPT-2 with random weights, as `transformers` saves it.

Usage: python3 tools/oracle/make_hf_fixture.py [DIRECTORY]     (default: tests/fixtures/hf_tiny_gpt2)
Needs: torch 2.15, transformers 5.23, safetensors 0.8 (tests read what this leaves, not these).

Leaves config.json, model.safetensors (names with the `transformer.` prefix, as GPT2LMHeadModel saves
them), bare.safetensors (the same tensors under bare names, with the `attn.bias` buffers of older
files, in bfloat16) and logits.json: token sequences with the logits and the mean next-token loss that
transformers gives in float64 arithmetic.
"""

import json
import pathlib
import sys

import safetensors.torch
import torch
import transformers

LAYERS, HIDDEN, HEADS, VOCAB, POSITIONS = 2, 32, 2, 61, 16
SEQUENCES = [
    [0],
    [60, 1, 59, 2],
    [(7 * i + 3) % VOCAB for i in range(POSITIONS)],
]


def make_model():
    torch.manual_seed(20240229)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=HIDDEN, n_head=HEADS, vocab_size=VOCAB, n_positions=POSITIONS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            # Everything random, biases and norms too: zeros and ones hide a swap.
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def probe(model):
    model = model.double()
    probes = []
    with torch.no_grad():
        for tokens in SEQUENCES:
            ids = torch.tensor([tokens])
            logits = model(ids).logits[0]
            loss = None
            if len(tokens) > 1:
                loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).item()
            probes.append({"tokens": tokens, "loss": loss,
                           "logits": [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]})
    return probes


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/fixtures/hf_tiny_gpt2"
    out.mkdir(parents=True, exist_ok=True)
    model = make_model()
    model.save_pretrained(out, safe_serialization=True)
    (out / "generation_config.json").unlink(missing_ok=True)
    bare = {name.removeprefix("transformer."): tensor.detach().to(torch.bfloat16).contiguous()
            for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    causal = torch.tril(torch.ones(POSITIONS, POSITIONS, dtype=torch.uint8))
    for layer in range(LAYERS):
        bare[f"h.{layer}.attn.bias"] = causal.view(1, 1, POSITIONS, POSITIONS).clone()
    safetensors.torch.save_file(bare, out / "bare.safetensors", metadata={"format": "pt"})
    probes = {"torch": torch.__version__, "transformers": transformers.__version__,
              "sequences": probe(model)}
    (out / "logits.json").write_text(json.dumps(probes) + "\n")
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:8d} {file.name}")


if __name__ == "__main__":
    main()
