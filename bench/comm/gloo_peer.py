"""A rank of PyTorch's gloo that answers the cases of `trainyard bench comm`, as member.cc does for ours."""

import sys
import time

import torch
import torch.distributed as dist

DTYPES = {
    "F32": torch.float32,
    "F64": torch.float64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
}


def call_of(op, count, dtype, reduction):
    """The call to time and whether its iterations must be kept apart."""
    rank, size = dist.get_rank(), dist.get_world_size()
    data = torch.zeros(count, dtype=dtype)
    share = count // size
    if op == "all_reduce":
        return lambda: dist.all_reduce(data, op=reduction), False
    if op == "broadcast":
        return lambda: dist.broadcast(data, 0), True
    if op == "reduce":
        return lambda: dist.reduce(data, 0, op=reduction), True
    if op == "barrier":
        return dist.barrier, False
    if op == "all_gather":
        own = data[rank * share : (rank + 1) * share].clone()
        parts = [torch.zeros(share, dtype=dtype) for _ in range(size)]
        return lambda: dist.all_gather(parts, own), False
    if op in ("scatter", "gather"):
        own = torch.zeros(share, dtype=dtype)
        parts = [torch.zeros(share, dtype=dtype) for _ in range(size)] if rank == 0 else None
        call = dist.scatter if op == "scatter" else dist.gather
        return lambda: call(own, parts, 0), True
    if op == "all_to_all":
        received = torch.zeros(share * size, dtype=dtype)
        return lambda: dist.all_to_all_single(received, data[: share * size]), False
    if op == "point_to_point":
        received = torch.zeros(count, dtype=dtype)

        def exchange():
            sent = dist.isend(data, (rank + 1) % size)
            got = dist.irecv(received, (rank + size - 1) % size)
            sent.wait()
            got.wait()

        return exchange, False
    raise ValueError(f"gloo has no {op}")


def answer(line):
    """Measures one case; the words of a sample."""
    op, size_bytes, dtype_name, reduce_name, warm_up, iterations, _ = line.split()
    dtype = DTYPES[dtype_name]
    count = int(size_bytes) // torch.empty(0, dtype=dtype).element_size()
    call, apart = call_of(op, count, dtype, REDUCTIONS[reduce_name])
    dist.barrier()
    times_us = []
    for iteration in range(int(warm_up) + int(iterations)):
        if apart:
            dist.barrier()
        begin = time.perf_counter_ns()
        call()
        if iteration >= int(warm_up):
            times_us.append((time.perf_counter_ns() - begin) / 1e3)
    times_us.sort()
    n = len(times_us)
    return f"sample {times_us[n // 2]:.3f} {times_us[min(n - 1, n * 99 // 100)]:.3f} 0 0 0"


def main():
    """Arguments: rank, size, path of the store through which ranks meet."""
    rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            print(answer(line), flush=True)
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            print("error " + " ".join(str(error).split()), flush=True)


main()
