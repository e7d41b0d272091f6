#!/usr/bin/env bash
# Confirms the CUDA kernels on this machine's GPU and measures them; without a GPU, by the emulation. Needs no compiler
# and no network.
#
#   run.sh [--parts identity,products,...] [--deadline SECONDS] --out DIR
#
# Parts, in the order that teaches most: identity, products (cuBLASLt), tests (the emulated ones on the device), step
# (GPT-2 in several forms), torch (PyTorch's step), ladder (each kernel), counters (ncu), operations (PyTorch's),
# sanitizer. All end within 400 s. DIR gets results.jsonl, report.json and logs.tar.gz; status 1 where a part failed
# or ran out of time.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
