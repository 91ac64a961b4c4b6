#!/usr/bin/env bash
# Installs the pinned compilers of tools/kernel_tools.txt into .venv, unless they are there. Needs the network once.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "kernel_tools: the pinned compilers exist for Linux on x86-64 only" >&2
    exit 1
fi
[ -x .venv/bin/python ] || python3 -m venv .venv
# Not bin/pip: in a copied .venv that one installs into the original.
pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
.venv/bin/python -c 'import zstandard' 2>/dev/null || "${pip[@]}" zstandard
if ! cmp -s tools/kernel_tools.txt .venv/kernel_tools.txt; then
    "${pip[@]}" --no-deps --require-hashes -r tools/kernel_tools.txt
    cp tools/kernel_tools.txt .venv/kernel_tools.txt
fi
