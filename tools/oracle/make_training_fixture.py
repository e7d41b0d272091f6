#!/usr/bin/env python3
"""Makes tests/fixtures/parity: 30 optimizer steps of a tiny GPT-2 as PyTorch does them.

Run by hand when the fixture has to change, never by the tests:

    python3 -m venv ~/.cache/trainyard/oracle
    ~/.cache/trainyard/oracle/bin/pip install torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 numpy
    ~/.cache/trainyard/oracle/bin/python tools/oracle/make_training_fixture.py

Written:
    hf/config.json, hf/model.safetensors   the initial weights as transformers saves a GPT2LMHeadModel
    expected.json                          recipe, tokens, curves in fp32 and float64, logits probes
    tokens.u16                             the same tokens as little-endian u16, one stream

The data set is exactly one global batch: sequence b is tokens[b*T : b*T + T + 1] (T inputs and,
shifted by one, T targets; stride T), seen whole at every step, so no sampler order matters.
Everything is seeded and single-threaded; the script checks its own premises (clipping is active,
the loss falls by at least one nat) and fails rather than write a fixture that proves nothing.
"""

import json
import math
import pathlib

import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "fixtures" / "parity"

SEED = 20240229
VOCAB, POSITIONS, LAYERS, HIDDEN, HEADS = 97, 32, 2, 48, 3
SEQUENCES, LENGTH = 8, 24
STEPS, WARMUP = 30, 5
LEARNING_RATE, MIN_RATIO = 1.0e-2, 0.1
BETAS, EPSILON, WEIGHT_DECAY, CLIP = (0.9, 0.95), 1.0e-8, 0.1, 1.0


def learning_rate(step: int) -> float:
    """Learning rate of the step with this number, counted from 0."""
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return LEARNING_RATE * (MIN_RATIO + (1 - MIN_RATIO) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_tokens() -> np.ndarray:
    """A noisy walk over the vocabulary: learnable, yet no sequence repeats another."""
    rng = np.random.default_rng(SEED)
    successor = rng.permutation(VOCAB)
    tokens = np.empty(SEQUENCES * LENGTH + 1, dtype=np.uint16)
    tokens[0] = 11
    for i in range(1, len(tokens)):
        noisy = rng.random() < 0.15
        tokens[i] = rng.integers(VOCAB) if noisy else successor[tokens[i - 1]]
    return tokens


def make_model() -> transformers.GPT2LMHeadModel:
    torch.manual_seed(SEED)
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS,
        activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
        dtype="float32")
    model = transformers.GPT2LMHeadModel(config)
    # Biases and norms start at 0 and 1; moved a little, so that a wrong one cannot go unseen.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def probe(model, inputs) -> list:
    """The logits at the last position of the first two sequences."""
    with torch.no_grad():
        return model(inputs[:2]).logits[:, -1, :].double().tolist()


def train(model, inputs, targets) -> dict:
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, foreach=False)
    curve = {"loss": [], "gradientNorm": [], "learningRate": [], "logitsBefore": probe(model, inputs)}
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad(set_to_none=True)
        logits = model(inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=False)
        optimizer.step()
        curve["loss"].append(loss.item())
        curve["gradientNorm"].append(norm.item())
        curve["learningRate"].append(learning_rate(step))
    with torch.no_grad():
        logits = model(inputs).logits
        curve["finalLoss"] = torch.nn.functional.cross_entropy(
            logits.reshape(-1, VOCAB), targets.reshape(-1)).item()
    curve["logitsAfter"] = probe(model, inputs)
    return curve


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokens = make_tokens()
    stream = torch.tensor(tokens.astype(np.int64))
    inputs = stream[:-1].reshape(SEQUENCES, LENGTH)
    targets = stream[1:].reshape(SEQUENCES, LENGTH)

    model = make_model()
    (OUT / "hf").mkdir(parents=True, exist_ok=True)
    model.save_pretrained(OUT / "hf")
    (OUT / "hf" / "generation_config.json").unlink(missing_ok=True)
    (OUT / "hf" / "model.safetensors").chmod(0o644)
    single = train(model, inputs, targets)

    model = make_model().double()
    double = train(model, inputs, targets)

    drop = double["loss"][0] - double["loss"][-1]
    clipped = sum(n > CLIP for n in double["gradientNorm"])
    gap = max(abs(a - b) / abs(b) for a, b in zip(single["loss"], double["loss"]))
    norm_gap = max(abs(a - b) / abs(b) for a, b in zip(single["gradientNorm"], double["gradientNorm"]))
    print(f"loss {double['loss'][0]:.4f} -> {double['loss'][-1]:.4f}, {clipped} of {STEPS} steps clipped, "
          f"fp32 against float64: loss {gap:.1e}, gradient norm {norm_gap:.1e}")
    assert drop >= 1.0, "the loss must fall by at least one nat"
    assert 5 <= clipped, "clipping must be active"
    assert gap < 2e-5, "fp32 and float64 must agree well below the tolerance of the test"

    tokens.astype("<u2").tofile(OUT / "tokens.u16")
    expected = {
        "madeBy": "tools/oracle/make_training_fixture.py",
        "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "recipe": {
            "sequences": SEQUENCES, "sequenceLength": LENGTH, "steps": STEPS, "warmupSteps": WARMUP,
            "learningRate": LEARNING_RATE, "minRatio": MIN_RATIO, "betas": BETAS, "epsilon": EPSILON,
            "weightDecay": WEIGHT_DECAY, "gradientClip": CLIP},
        "tokens": tokens.tolist(),
        "fp32": single,
        "float64": double,
    }
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
