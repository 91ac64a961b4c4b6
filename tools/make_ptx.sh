#!/usr/bin/env bash
# Makes kernels/blco.ptx.zst, the kernels for users who have nothing but a driver, from kernels/blco.cu.
# usage: tools/make_ptx.sh [--check]    --check: fails where the file is not what the sources make
set -euo pipefail
cd "$(dirname "$0")/.."
tools/kernel_tools.sh
# What this NVRTC makes depends a little on where things lie in memory (in one kernel a constant is copied or not): a check tries again.
tries=1
if [[ ${1:-} == --check ]]; then tries=16; fi
for ((i = 1; i <= tries; ++i)); do
    if .venv/bin/python tools/kernels.py ptx "$@" 2>&1; then exit 0; fi
done
exit 1
