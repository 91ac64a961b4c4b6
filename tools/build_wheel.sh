#!/usr/bin/env bash
# Builds the wheel of the Python package, one for CPython 3.10 and up, into target/wheels, and checks that it keeps to the stable ABI
# (abi3audit) and what it takes of the system (auditwheel): glibc 2.28, whatever this machine has, since zig links it. --quick builds
# in a part of the time and for this machine alone, as tests do, into target/wheels-quick. The last line is the wheel's path.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
tools=$target/python/tools
quick=
if [ "${1:-}" = --quick ]; then quick=1; shift; fi
need=(maturin abi3audit auditwheel)
if [ -z "$quick" ]; then need+=(ziglang); fi
if ! "$tools/bin/python" -c "import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))" "${need[@]}" 2>/dev/null; then
    python3 -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check "${need[@]}"
fi
export PATH=$tools/bin:$PATH
out=$target/wheels${quick:+-quick}
rm -rf "$out"
options=(--release --zig --compatibility manylinux_2_28)
if [ -n "$quick" ]; then options=(--profile dev --compatibility linux); fi
(cd python && maturin build --quiet --locked "${options[@]}" -o "$out")
wheel=$(echo "$out"/blco-*-cp310-abi3-*.whl)
abi3audit --strict --summary "$wheel" >&2
if [ -z "$quick" ]; then auditwheel show "$wheel" >&2; fi
echo "$wheel"
