#!/usr/bin/env bash
# Makes kernels/blco.ptx.zst, the kernels for users who have nothing but a driver, from kernels/blco.cu.
# usage: tools/make_ptx.sh [--check]    --check: fails where the file is not what the sources make
set -euo pipefail
cd "$(dirname "$0")/.."
tools/kernel_tools.sh
# What this NVRTC makes depends a little on where it lies in memory (a constant is copied or not): without random addresses it
# is always the same. Where those cannot be had, a check tries several times.
fixed=(setarch "$(uname -m)" -R)
tries=1
if ! "${fixed[@]}" true 2>/dev/null; then
    fixed=()
    tries=8
fi
for ((i = 1; i <= tries; ++i)); do
    if "${fixed[@]}" .venv/bin/python tools/kernels.py ptx "$@"; then exit 0; fi
done
exit 1
