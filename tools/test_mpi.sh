#!/usr/bin/env bash
# Four processes on this machine against one process: MTTKRP within the oracle's bound, CP-ALS, and processes that are killed,
# hang, or have a store that is missing or another. Says "skipped" without Open MPI and libclang.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v mpirun >/dev/null || ! command -v mpicc >/dev/null; then
    echo "skipped: no Open MPI (Debian: libopenmpi-dev openmpi-bin libclang-dev)"
    exit 0
fi
cargo build --quiet --bins --features mpi
bin=$(realpath "${CARGO_TARGET_DIR:-target}")/debug
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
processes() { timeout 60 mpirun --oversubscribe "$@"; }
fails() { # WORDS COMMAND...: it ends with an error that says so.
    local words=$1
    shift
    if "$@" >out 2>&1; then echo "succeeded: $*"; exit 1; fi
    grep -q "$words" out || { cat out; echo "not told: $words"; exit 1; }
}
"$bin/blco-gen" --dims 300,200,2000 --nnz 60k --skew 2 --values 1..5 t.tns
"$bin/blco-pack" t.tns -o t.blco --chunk-bytes 64KiB -q
"$bin/blco-gen" --dims 300,200,2000 --nnz 60k --seed 9 u.tns
"$bin/blco-pack" u.tns -o u.blco --chunk-bytes 64KiB -q
processes -n 4 "$bin/blco-run" t.blco --check t.tns --threads 1 -q
processes -n 4 "$bin/blco-run" t.blco --check t.tns --threads 1 -q --precision f32
cpd=("$bin/blco-cpd" t.blco --rank 6 --tol 0 --threads 1 -q)
fit() { grep -o 'fit 0\.[0-9]*' | tail -1; }
one=$("${cpd[@]}" --max-iters 6 --output one | fit)
four=$(processes -n 4 "${cpd[@]}" --max-iters 6 --output four | fit)
[ -n "$one" ] && [ "$one" = "$four" ] || { echo "one process: $one, four processes: $four"; exit 1; }
# A checkpoint of four processes continues on two.
processes -n 4 "${cpd[@]}" --max-iters 3 --checkpoint c --output three >/dev/null
two=$(processes -n 2 "${cpd[@]}" --max-iters 6 --checkpoint c --resume --output two | fit)
[ "$one" = "$two" ] || { echo "one process: $one, resumed: $two"; exit 1; }
run=("$bin/blco-run" --threads 1 -q)
fails "process 1: .*no store" processes -n 1 "${run[@]}" t.blco : -n 1 "${run[@]}" none.blco
fails "another store" processes -n 1 "${run[@]}" t.blco : -n 1 "${run[@]}" u.blco
cp -r t.blco bad.blco
printf 'damage' | dd of=bad.blco/chunk-000003.bin bs=1 seek=200 conv=notrunc status=none
fails "process 1: .*corrupt\|process 1: .*checksum" processes -n 1 "${run[@]}" t.blco : -n 1 "${run[@]}" bad.blco
# One that is killed, and one that hangs.
for signal in KILL STOP; do
    BLCO_PROCESS_TIMEOUT=5 processes -n 4 "${cpd[@]}" --max-iters 1000000 --output "$signal" >out 2>&1 &
    run=$!
    sleep 4
    victim=$(pgrep -f "^$bin/blco-cpd .*--output $signal\$" | tail -1)
    kill -"$signal" "$victim"
    begun=$SECONDS
    if wait "$run"; then echo "$signal: succeeded"; exit 1; fi
    [ $((SECONDS - begun)) -lt 15 ] || { echo "$signal: ended late"; exit 1; }
done
grep -q "no sign of life" out || { cat out; exit 1; }
echo "four processes: ok"
