#!/usr/bin/env bash
# Confirms the CUDA kernels on this machine's GPU and measures them; without a GPU, by the emulation. Needs no compiler
# and no network.
#
#   run.sh [--call kernels|engine] [--parts identity,products,...] [--deadline SECONDS] --out DIR
#
# A GPU does not do all parts within 400 s, so they belong to two calls. kernels, the default, has identity, products
# (cuBLASLt), tests (the emulated ones on the device), step (GPT-2 in several forms), torch (PyTorch's step), ladder (each
# kernel), counters (ncu), operations (PyTorch's) and sanitizer. engine has identity, engine (the engine in several
# layouts), worker (trainyard-worker and its layouts: one state), nccl, resume (killed, resumed), speed (tokens/s) and
# losses (beside PyTorch's). DIR gets results.jsonl, report.json and logs.tar.gz; status 1 where a part failed or ran out
# of time. The first call unpacks the programs beside this file.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -d "$here/bin" ] || python3 -m tarfile -e "$here/programs.tar.xz" "$here"
exec python3 "$here/run.py" "$@"
