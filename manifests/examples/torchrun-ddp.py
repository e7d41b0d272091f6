"""Trains a small network with DistributedDataParallel over gloo, and tries what it has trained against one process.

A plain PyTorch program: it knows of torchrun's environment and of nothing else. Every rank takes its share of each
batch; the gradients are averaged between the ranks. In the end rank 0 trains the same network alone on the whole
batches. Both must have seen the same losses and hold the same parameters, or the program fails: in double precision
what is left of a different order of sums is far below the bound.

    torchrun --standalone --nproc-per-node 2 torchrun-ddp.py --steps 200
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, INPUTS, HIDDEN = 48, 8, 32
BOUND = 1e-9


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step, the same on every rank."""
    x = torch.randn(BATCH, INPUTS, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return x, torch.sin(x).sum(dim=1, keepdim=True)


def train(model: nn.Module, steps: int, rank: int, world: int) -> list[float]:
    """The losses of whole batches; in a world of one nothing is communicated."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        loss = nn.functional.mse_loss(model(x[rank::world]), y[rank::world])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        if world > 1:
            dist.all_reduce(whole)
            whole /= world
        losses.append(whole.item())
        if rank == 0 and world > 1 and step % 100 == 0:
            print(f"step {step} loss {losses[-1]:.6f}", flush=True)
    return losses


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description="A small network under DistributedDataParallel.")
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if world < 2 or BATCH % world:
        raise SystemExit(f"found {world} ranks, wanted two or more that share {BATCH} samples")
    print(f"rank {rank} of {world}, local rank {os.environ['LOCAL_RANK']}", flush=True)

    model = DistributedDataParallel(network())
    losses = train(model, steps, rank, world)
    held = [torch.empty_like(flat(model)) for _ in range(world)]
    dist.all_gather(held, flat(model))
    if rank == 0:
        alone = network()
        wanted = train(alone, steps, 0, 1)
        apart = max((parameters - flat(alone)).abs().max().item() for parameters in held)
        loss_apart = max(abs(a - b) for a, b in zip(losses, wanted))
        print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f}; {world} ranks and one process are apart by {apart:.1e} in the "
              f"parameters, {loss_apart:.1e} in the loss", flush=True)
        if not (max(apart, loss_apart) < BOUND and losses[-1] < losses[0] / 2):
            raise SystemExit(f"wanted less than {BOUND:g} apart, and a loss that has fallen by half")
        print("ranks and one process agree", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
