"""PyTorch's own operations at the shapes of gpu_kernel_ladder, as lines of JSON: what the kernels are held against."""
import argparse
import json

import numpy
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

parser = argparse.ArgumentParser()
for name, default in (("tokens", 65536), ("width", 768), ("heads", 12), ("vocab", 50304), ("sequence", 1024), ("runs", 20)):
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--step", action="store_true", help="a whole step of GPT-2 instead, compiled, with cuDNN attention")
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--by-block", action="store_true", help="compile one block and the head, not the whole: many layers take minutes")
parser.add_argument("--weights", help="weights, tokens and targets as gpu_gpt2_step --export wrote them; losses are those of its steps then")
parser.add_argument("--train", help="weights and token stream as gpu_engine --export wrote them: losses of whole steps from there")
parser.add_argument("--recipe", help="with --train: the line that gpu_engine printed, whose optimizer and learning rates are used")
parser.add_argument("--global", type=int, default=8, dest="sequences", help="with --train: sequences per step")
a = parser.parse_args()
device, bf16 = "cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        c = a.width
        self.ln1, self.ln2 = torch.nn.LayerNorm(c), torch.nn.LayerNorm(c)
        self.qkv, self.out = torch.nn.Linear(c, 3 * c), torch.nn.Linear(c, c)
        self.up, self.down = torch.nn.Linear(c, 4 * c), torch.nn.Linear(4 * c, c)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (a.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt2(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(a.vocab, a.width), torch.nn.Embedding(a.sequence, a.width)
        self.blocks, self.ln = torch.nn.ModuleList(Block() for _ in range(layers)), torch.nn.LayerNorm(a.width)

    def head(self, x, targets):
        return F.cross_entropy(F.linear(self.ln(x), self.wte.weight).flatten(0, 1).float(), targets.flatten())

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        return self.head(x, targets)


def weights_of(model, path):
    """Fills the model in the order of tests/gpu/gpt2_step.cc; tokens and targets."""
    values = torch.from_numpy(numpy.fromfile(path, dtype=numpy.float32))
    at = 0
    layers = ([p for m in (b.ln1, b.qkv, b.out, b.ln2, b.up, b.down) for p in (m.weight, m.bias)] for b in model.blocks)
    with torch.no_grad():
        for p in [model.wte.weight, model.wpe.weight, *(p for layer in layers for p in layer), model.ln.weight, model.ln.bias]:
            p.copy_(values[at:at + p.numel()].view_as(p))
            at += p.numel()
    rows = (-1, a.sequence)
    tokens, targets = values[at:].view(torch.int32).long().to(device).chunk(2)
    return tokens.view(rows), targets.view(rows)


def tensors_of(path):
    """Arrays of a safetensors file by name."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    kinds = {"F32": numpy.float32, "I32": numpy.int32}
    return {name: torch.from_numpy(numpy.frombuffer(data[slice(*of["data_offsets"])], kinds[of["dtype"]]).reshape(of["shape"]).copy())
            for name, of in header.items()}


def trained():
    """Losses of the engine's steps: its initial weights, batches, learning rates and optimizer, without dropout."""
    with open(a.recipe) as file:
        recipe = json.load(file)
    tensors = tensors_of(a.train)
    model = Gpt2(a.layers)
    modules = {"ln_f": model.ln}
    for i, b in enumerate(model.blocks):
        of_block = {"ln_1": b.ln1, "attn.c_attn": b.qkv, "attn.c_proj": b.out, "ln_2": b.ln2, "mlp.c_fc": b.up, "mlp.c_proj": b.down}
        modules |= {f"h.{i}.{name}": module for name, module in of_block.items()}
    parameters = {f"{name}.{part}": getattr(module, part) for name, module in modules.items() for part in ("weight", "bias")}
    with torch.no_grad():
        for name, parameter in {"wte": model.wte.weight, "wpe": model.wpe.weight, **parameters}.items():
            parameter.copy_(tensors[name][:parameter.shape[0]])  # the engine pads the vocabulary
    model.to(device)
    decayed, plain = [p for p in model.parameters() if p.dim() == 2], [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": recipe["decay"]}, {"params": plain, "weight_decay": 0.0}],
                                  betas=tuple(recipe["betas"]), eps=recipe["epsilon"])
    losses, size = [], a.sequences * a.sequence
    for step, rate in enumerate(recipe["learning_rates"]):
        window = tensors["stream"][step * size:(step + 1) * size + 1].long().to(device)
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device, bf16):
            loss = model(window[:-1].view(a.sequences, -1), window[1:].view(a.sequences, -1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["clip"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(json.dumps({"losses": losses, "torch": torch.__version__, "device": device}), flush=True)


def whole_step():
    model = Gpt2(a.layers).to(device)
    if a.weights:
        tokens, targets = weights_of(model, a.weights)
    else:
        tokens, targets = (torch.randint(a.vocab, (a.tokens // a.sequence, a.sequence), device=device) for _ in range(2))
    decayed, plain = [p for p in model.parameters() if p.dim() == 2], [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    compiled = model
    if a.by_block:
        for block in model.blocks:
            block.compile()
        model.head = torch.compile(model.head)
    else:
        compiled = torch.compile(model)

    def step():
        with torch.autocast(device, bf16), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            loss = compiled(tokens, targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), norm

    found = [step() for _ in range(10)]
    times = []
    for _ in range(a.runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    ms = sorted(times)[len(times) // 2]
    print(json.dumps({"step_ms": round(ms, 3), "tokens_s": round(tokens.numel() / ms * 1000), "losses": [x.item() for x, _ in found],
                      "norms": [x.item() for _, x in found], "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
                      "torch": torch.__version__}), flush=True)


def measure(name, run):
    try:
        for _ in range(3):
            run()
        times = []
        for _ in range(a.runs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        print(json.dumps({"kernel": name, "ms": round(sorted(times)[len(times) // 2], 5)}), flush=True)
    except Exception as error:  # one that does not run here says so; the others go on
        print(json.dumps({"kernel": name, "error": str(error)[:200]}), flush=True)


def both(name, forward, inputs):
    """`name`_forward, and `name`_backward alone."""
    measure(f"{name}_forward", lambda: forward(*inputs))
    out = forward(*inputs)
    gradient = torch.randn_like(out)
    measure(f"{name}_backward", lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True))


def random(*shape, dtype=bf16):
    return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)


if a.train:
    trained()
    raise SystemExit
if a.step:
    whole_step()
    raise SystemExit
x, residual = random(a.tokens, a.width), random(a.tokens, a.width)
gamma, beta = random(a.width), random(a.width)
both("layer_norm", torch.compile(lambda x, r, g, b: F.layer_norm(x + r, (a.width,), g, b)), (x, residual, gamma, beta))
wide, bias = random(a.tokens, 4 * a.width), random(4 * a.width)
both("gelu", torch.compile(lambda x, b: F.gelu(x + b, approximate="tanh")), (wide, bias))
qkv = [random(a.tokens // a.sequence, a.heads, a.sequence, a.width // a.heads) for _ in range(3)]
for label, backend in (("attention_flash", SDPBackend.FLASH_ATTENTION), ("attention_cudnn", SDPBackend.CUDNN_ATTENTION)):
    with sdpa_kernel(backend):
        try:
            both(label, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), qkv)
        except Exception as error:
            print(json.dumps({"kernel": label, "error": str(error)[:200]}), flush=True)
rows = max(a.tokens // 4, 1)
logits = random(rows, a.vocab)
targets = torch.randint(a.vocab, (rows,), device=device)
loss = torch.compile(lambda x: F.cross_entropy(x.float(), targets, reduction="sum"))
measure("cross_entropy", lambda: torch.autograd.grad(loss(logits), logits))
parameter = torch.nn.Parameter(torch.randn(a.vocab * a.width, device=device))
parameter.grad = torch.randn_like(parameter)
optimizer = torch.optim.AdamW([parameter], fused=True)
measure("adamw", optimizer.step)
source, target = torch.randn(a.tokens, a.width, device=device, dtype=bf16), torch.empty(a.tokens, a.width, device=device, dtype=bf16)
measure("copy", lambda: target.copy_(source))
