#!/usr/bin/env bash
# Makes kernels/blco.ptx.zst and kernels/matrices.ptx.zst, the kernels for users who have nothing but a driver, from kernels/blco.cu and
# kernels/matrices.cu.
# usage: tools/make_ptx.sh [--check]    --check: fails where a file is not what the sources make
set -euo pipefail
cd "$(dirname "$0")/.."
tools/kernel_tools.sh
exec .venv/bin/python tools/kernels.py ptx "$@"
