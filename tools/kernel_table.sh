#!/usr/bin/env bash
# Compiles kernels/*.ptx.zst for each architecture of the table and records each kernel's resources in
# kernels/resources.txt.
# usage: tools/kernel_table.sh [--check | --spills]    --check: fails where the table is not true
#                                                      --spills: records kernels that spill registers, too
set -euo pipefail
cd "$(dirname "$0")/.."
tools/kernel_tools.sh
exec .venv/bin/python tools/kernels.py table "$@"
