#!/usr/bin/env bash
# Confirms the CUDA kernels on this machine's GPU and measures them; without a GPU, by the emulation. Needs no compiler
# and no network.
#
#   run.sh [--parts a,b,c] --out DIR
#
# Parts, most important first: a the emulated tests on the device, b the speed of each kernel, c a step of GPT-2
# 124M, d compute-sanitizer.
# Each has its own limit of time and writes DIR/PART.json when it ends; status 1 where one failed or ran out of time.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
