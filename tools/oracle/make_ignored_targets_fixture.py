#!/usr/bin/env python3
"""Makes tests/fixtures/ignored_targets: steps of the model of tests/fixtures/parity, as PyTorch does them
when cross_entropy ignores some of the targets.

Run by hand when the fixture has to change, never by the tests, in the environment that
make_training_fixture.py names. Weights, tokens and the optimizer are those of that script.

Written:
    expected.json   recipe, ignored targets per step, loss, gradient norm and clip factor per step in fp32 and
                    float64
    gradients/      the float64 gradients of the first step before clipping, rounded to fp32, as the weights of a
                    Hugging Face folder: a reader of models brings them into the engine's layout

A step ignores 58 of its 192 targets, other ones than the step before. The first step ignores all targets of
the last sequence, so that a micro-batch of one sequence has none that counts.
"""

import json

import numpy as np
import torch
import transformers

import make_training_fixture as training

OUT = training.ROOT / "tests" / "fixtures" / "ignored_targets"

SEED = 20240301
STEPS, IGNORED, IGNORE_INDEX = 8, 58, -100
CLIP = 0.9
TARGETS = training.SEQUENCES * training.LENGTH


def draw_ignored() -> list:
    """The numbers of the targets that a step ignores, per step, ascending."""
    rng = np.random.default_rng(SEED)
    steps = [sorted(rng.choice(TARGETS, IGNORED, replace=False).tolist()) for _ in range(STEPS)]
    last = range(TARGETS - training.LENGTH, TARGETS)
    rest = rng.choice(last.start, IGNORED - len(last), replace=False).tolist()
    steps[0] = sorted(rest) + list(last)
    return steps


def train(model, inputs, targets, ignored) -> tuple:
    """The curve of all steps, and the gradients of the first by name."""
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": training.WEIGHT_DECAY},
         {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}],
        lr=training.LEARNING_RATE, betas=training.BETAS, eps=training.EPSILON, foreach=False)
    curve = {"loss": [], "gradientNorm": [], "clipFactor": []}
    gradients = {}
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate(step)
        optimizer.zero_grad(set_to_none=True)
        counted = targets.reshape(-1).clone()
        counted[ignored[step]] = IGNORE_INDEX
        loss = torch.nn.functional.cross_entropy(
            model(inputs).logits.reshape(-1, training.VOCAB), counted, ignore_index=IGNORE_INDEX)
        loss.backward()
        before = {name: p.grad.clone() for name, p in model.named_parameters()}
        gradients = gradients or before
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=False)
        after = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        optimizer.step()
        curve["loss"].append(loss.item())
        curve["gradientNorm"].append(norm.item())
        curve["clipFactor"].append((after / norm).item())
    return curve, gradients


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    stream = torch.tensor(training.make_tokens().astype(np.int64))
    inputs = stream[:-1].reshape(training.SEQUENCES, training.LENGTH)
    targets = stream[1:].reshape(training.SEQUENCES, training.LENGTH)
    ignored = draw_ignored()

    saved = transformers.GPT2LMHeadModel.from_pretrained(
        training.OUT / "hf", attn_implementation="eager", dtype="float32")
    made = training.make_model()
    for (name, a), b in zip(saved.named_parameters(), made.parameters()):
        assert torch.equal(a, b), f"{name} is not that of tests/fixtures/parity"
    single, single_gradients = train(saved, inputs, targets, ignored)
    model = made.double()
    double, gradients = train(model, inputs, targets, ignored)

    errors = {name: ((single_gradients[name].double() - g).norm() / g.norm()).item() for name, g in gradients.items()}
    single["gradientErrorMax"] = max(errors.values())
    print("float64: norms", [f"{n:.3f}" for n in double["gradientNorm"]],
          "clip factors", [f"{c:.3f}" for c in double["clipFactor"]])
    print("fp32 against float64, largest relative error: gradient of", max(errors, key=errors.get),
          f"{single['gradientErrorMax']:.1e}")
    assert double["clipFactor"][0] < 0.99, "the first step must be clipped"
    assert max(double["clipFactor"]) > 1 - 1e-12, "a step must not be clipped"
    assert all(len(step) == IGNORED for step in ignored)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(gradients[name])
    OUT.mkdir(parents=True, exist_ok=True)
    model.float().save_pretrained(OUT / "gradients")
    (OUT / "gradients" / "generation_config.json").unlink(missing_ok=True)
    (OUT / "gradients" / "model.safetensors").chmod(0o644)
    expected = {
        "madeBy": "tools/oracle/make_ignored_targets_fixture.py",
        "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "gradientClip": CLIP,
        "fp32": single,
        "float64": double,
    }
    lines = json.dumps(expected, indent=1)[:-2] + ',\n "ignored": [\n'
    lines += ",\n".join("  " + json.dumps(step) for step in ignored) + "\n ]\n}\n"
    (OUT / "expected.json").write_text(lines)


if __name__ == "__main__":
    main()
