#!/usr/bin/env bash
# All tests: unit, integration, documentation, the second reader of the format and an independent CP-ALS (Python with numpy and
# pyttb, installed here into .venv on the first run). Where there is a C++ compiler, the CUDA path too, on a mock driver. Arguments go to
# `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! .venv/bin/python -c 'import numpy, zstandard' 2>/dev/null; then
    python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check numpy zstandard
fi
if ! .venv/bin/python -c 'import pyttb' 2>/dev/null; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check pyttb || echo "no pyttb: what compares with it is skipped" >&2
fi
export BLCO_PYTHON=$PWD/.venv/bin/python
if command -v "${CXX:-g++}" >/dev/null; then
    BLCO_MOCK_CUDA=$(tools/make_mock.sh)
    export BLCO_MOCK_CUDA
fi
# The pinned NVRTC, where tools/kernel_tools.sh has installed it: the tests that compile kernels use it.
nvrtc=$(echo "$PWD"/.venv/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib)
if [ -d "$nvrtc" ]; then export BLCO_NVRTC_PATH=$nvrtc; fi
# Programs are interrupted here: signals that whoever runs this ignores, as in the background, are not ignored there.
in_front=()
if env --default-signal=INT,HUP,TERM true 2>/dev/null; then in_front=(env --default-signal=INT,HUP,TERM); fi
"${in_front[@]}" cargo test "$@"
# Schedules of the engine's threads; BLCO_SCHEDULES says how many. Not optimised: its tensors are tiny.
if [ $# = 0 ]; then CARGO_PROFILE_DEV_OPT_LEVEL=0 cargo test --no-default-features --features model --test model; fi
