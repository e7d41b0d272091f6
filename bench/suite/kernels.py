"""GEMM against the peak of the same run, and collectives: the C++ benches' own tables."""

import subprocess

GEMM_FORMULAS = """* GF/s = 2 m n k / seconds, by the processor's clock with one thread, by the wall's with more. peak: as many FMA (fp32, and bf16 without an
  instruction of its own), VDPBF16PS or, on amx, TDPBF16PS (bf16) a second as a loop over registers does, measured in turn with the products. OpenBLAS (fp32, told its processor) and oneDNN (bf16) where they are installed."""
COMM_FORMULAS = """* algbw = bytes of the buffer / time; busbw = algbw x 2 (P-1)/P, what each link carries in an all-reduce (nccl-tests, PERFORMANCE.md)."""


def _output(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.rstrip()


def _block(command, output):
    shown = " ".join([command[0].name, *map(str, command[1:])])
    return f"`{shown}`\n\n```\n{output}\n```\n"


def gemm(context):
    parts = [GEMM_FORMULAS, ""]
    for threads in [1] if context.quick or context.cores == 1 else [1, context.cores]:
        command = [context.benches / "gemm_bench", "--threads", str(threads), "--repeats", "3" if context.quick else "7"]
        parts.append(_block(command, _output(command)))
    return "\n".join(parts)


def communication(context):
    """All-reduce of two processes against a bare socket pair and, where torch is, gloo; every other collective beside it."""
    common = ["--rounds", str(context.rounds)]
    peer = ["--peer-python", str(context.torch.python)] if context.torch.available else []
    largest = "16M" if context.quick else "128M"
    commands = [
        ["--dtype", "I64", "--min-bytes", "8", "--max-bytes", largest, "--raw", *peer],
        ["--ops", "all", "--min-bytes", "1K", "--max-bytes", "16M", "--factor", "128", *peer],
    ]
    parts = [COMM_FORMULAS, ""]
    for arguments in commands:
        command = [context.binaries / "trainyard", "bench", "comm", *arguments, *common]
        parts.append(_block(command, _output(command)))
    return "\n".join(parts)
