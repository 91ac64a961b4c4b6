#!/usr/bin/env bash
# Builds the mock CUDA driver (tests/mock) where it is older than its sources: target/mock/libcuda.so.1 and
# target/mock/selftest. Prints the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/target/mock
mkdir -p "$out"
compile() {
    local object=$out/$1.o
    shift
    local source=tests/mock/$(basename "$object" .o).cpp
    if [[ -e $object && -z $(find tests/mock kernels tools/make_mock.sh -newer "$object" \
        \( -name "$(basename "$source")" -o -name '*.h' -o -name '*.cuh' -o -name '*.cu' -o -name '*.sh' \)) ]]; then
        return
    fi
    "${CXX:-g++}" -std=c++17 -O2 -g1 -fPIC -pthread -fvisibility=hidden -ffp-contract=off -Wall -Wextra -Werror \
        -Wno-unknown-pragmas "$@" -c "$source" -o "$object.new"
    mv "$object.new" "$object"
    stale=1
}
stale=0
# Kernels trap on what a GPU would let pass or fault on: indices outside of arrays, misaligned access.
checks=(-fsanitize=bounds,shift,alignment,integer-divide-by-zero,signed-integer-overflow -fsanitize-undefined-trap-on-error)
compile kernels "${checks[@]}"
compile broken "${checks[@]}"
compile cuda_cpu
compile driver
compile selftest
compile nccl
if [[ $stale = 1 || ! -e $out/libcuda.so.1 || ! -e $out/selftest || ! -e $out/nccl/libnccl.so.2 ]]; then
    objects=("$out"/{driver,cuda_cpu,kernels}.o)
    echo '{ global: cu*; local: *; };' >"$out/exports"
    "${CXX:-g++}" -shared -pthread -Wl,-soname,libcuda.so.1 -Wl,--no-undefined -Wl,--version-script="$out/exports" \
        -o "$out/libcuda.so.1.new" "${objects[@]}"
    mv "$out/libcuda.so.1.new" "$out/libcuda.so.1"
    ln -sf libcuda.so.1 "$out/libcuda.so"
    "${CXX:-g++}" -pthread -o "$out/selftest.new" "$out"/{selftest,broken}.o "${objects[@]}"
    mv "$out/selftest.new" "$out/selftest"
    # In a folder of its own: most tests have none.
    mkdir -p "$out/nccl"
    "${CXX:-g++}" -shared -Wl,-soname,libnccl.so.2 -o "$out/nccl/libnccl.so.2.new" "$out/nccl.o" -ldl
    mv "$out/nccl/libnccl.so.2.new" "$out/nccl/libnccl.so.2"
fi
echo "$out"
