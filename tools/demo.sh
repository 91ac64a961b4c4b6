#!/usr/bin/env bash
# The main job on a generated tensor: build, generate, pack, MTTKRP on every mode, comparison with the oracle.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet
bin=${CARGO_TARGET_DIR:-target}/release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$bin/blco-gen" --dims 183,24,1140,1717 --nnz 1M --skew 1,1,2,2 --values 1..5 "$work/demo.tns"
"$bin/blco-pack" "$work/demo.tns" -o "$work/demo.blco"
"$bin/blco-info" "$work/demo.blco" --verify
"$bin/blco-run" "$work/demo.blco" --modes all --rank 32 --repeat 5 --check "$work/demo.tns"
