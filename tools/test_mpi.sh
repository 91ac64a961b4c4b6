#!/usr/bin/env bash
# Two to four processes on this machine against one process: MTTKRP and CP-ALS to the bit with --deterministic, and within the oracle's
# bound without, from one store, from parts, and on GPUs of the mock driver; and processes that are killed, hang, or have a store or part that is missing, damaged or another.
# Says "skipped" without Open MPI and libclang.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v mpirun >/dev/null || ! command -v mpicc >/dev/null; then
    echo "skipped: no Open MPI (Debian: libopenmpi-dev openmpi-bin libclang-dev)"
    exit 0
fi
# Not optimised, which takes a third of the time: what runs here is small.
CARGO_PROFILE_DEV_OPT_LEVEL=0 cargo build --quiet --bin blco-gen --bin blco-info --bin blco-pack --bin blco-run --bin blco-cpd --no-default-features --features cuda,mpi
mock=$(if command -v "${CXX:-g++}" >/dev/null; then tools/make_mock.sh; fi)
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
# A GPU for each process, on the mock driver.
if [ -n "$mock" ]; then
    on_gpus() { LD_LIBRARY_PATH=$mock:${LD_LIBRARY_PATH:-} BLCO_MOCK_DEVICES=3 processes "$@" --backend cuda; }
    on_gpus -n 3 "$bin/blco-run" t.blco --check t.tns --threads 1 -q
    on_gpus -n 2 "$bin/blco-run" t.blco --check t.tns --threads 1 -q --precision f32
    three=$(on_gpus -n 3 "${cpd[@]}" --max-iters 6 --output gpus | fit)
    [ "$one" = "$three" ] || { echo "one process: $one, three GPUs: $three"; exit 1; }
    fails "3 GPUs for 4 processes" on_gpus -n 4 "${cpd[@]}" --output never
fi
# With --deterministic, files are those of one process, to the bit.
same() { diff -r -x "*.json" -x "*.html" "$1" "$2" || { echo "differ: $*"; exit 1; }; }
"$bin/blco-gen" --dims 9000,30000,300,5 --nnz 40k --skew 2 --seed 3 v.tns
"$bin/blco-gen" --dims 90000,70000,80000 --nnz 50k --seed 4 w.tns # rows seldom meet
"$bin/blco-pack" v.tns -o v.blco --chunk-bytes 64KiB -q
"$bin/blco-pack" v.tns -o v.hocfs --chunk-bytes 64KiB -q
"$bin/blco-pack" w.tns -o w.blco -q # one chunk
n=2
for store in t.blco v.blco v.hocfs w.blco; do
    for precision in f64 f32; do
        run=("$bin/blco-run" "$store" --modes all --threads 1 --precision "$precision" -q)
        "${run[@]}" --output "one-$store-$precision" >/dev/null
        processes -n $n "${run[@]}" --deterministic --output "many-$store-$precision" >/dev/null
        same "one-$store-$precision" "many-$store-$precision"
        n=$((n % 3 + 2))
    done
done
for options in "" --nonneg "--precision f32"; do
    als=("$bin/blco-cpd" v.blco --rank 6 --tol 0 --threads 1 -q)
    # shellcheck disable=SC2206
    als+=($options)
    "${als[@]}" --max-iters 5 --output "cpd-one$options" >/dev/null
    processes -n 4 "${als[@]}" --max-iters 5 --deterministic --output "cpd-four$options" >/dev/null
    same "cpd-one$options" "cpd-four$options"
    # A checkpoint of three processes continues on two.
    processes -n 3 "${als[@]}" --max-iters 3 --deterministic --checkpoint "ck$options" --output "cpd-three$options" >/dev/null
    processes -n 2 "${als[@]}" --max-iters 5 --deterministic --checkpoint "ck$options" --resume --output "cpd-two$options" >/dev/null
    same "cpd-one$options" "cpd-two$options"
done
run=("$bin/blco-run" --threads 1 -q)
fails "setting of --deterministic" processes -n 1 "${run[@]}" t.blco : -n 1 "${run[@]}" t.blco --deterministic
fails "process 1: .*no store" processes -n 1 "${run[@]}" t.blco : -n 1 "${run[@]}" none.blco
fails "another store" processes -n 1 "${run[@]}" t.blco : -n 1 "${run[@]}" u.blco
cp -r t.blco bad.blco
printf 'damage' | dd of=bad.blco/chunk-000003.bin bs=1 seek=200 conv=notrunc status=none
fails "process 1: .*corrupt\|process 1: .*checksum" processes -n 1 "${run[@]}" t.blco : -n 1 "${run[@]}" bad.blco
# A tensor in parts: process k has part k alone, in a directory of its own. A launcher starts each there.
"$bin/blco-pack" t.tns -o parts.blco --chunk-bytes 64KiB --encoding raw --split 4 -q
"$bin/blco-pack" u.tns -o other.blco --chunk-bytes 64KiB --encoding raw --split 4 -q
processes -n 4 "$bin/blco-run" parts.blco --check t.tns --threads 1 -q
for k in 1 2 3 4; do
    mkdir -p "machine-$((k - 1))/t.blco"
    mv parts.blco/part-$k-of-4 "machine-$((k - 1))/t.blco"
    "$bin/blco-info" "machine-$((k - 1))/t.blco/part-$k-of-4" --verify -q | grep "part  *$k of 4" >/dev/null
done
rmdir parts.blco
cat >there <<'END'
#!/bin/sh
cd "machine-$OMPI_COMM_WORLD_RANK" && exec "$@"
END
chmod +x there
in_parts() { processes -n 4 ./there "$@"; }
in_parts "$bin/blco-run" t.blco --check "$dir/t.tns" --threads 1 -q
in_parts "$bin/blco-run" t.blco --check "$dir/t.tns" --threads 1 -q --precision f32
parted=$(in_parts "${cpd[@]}" --max-iters 6 --output parted | fit)
[ "$one" = "$parted" ] || { echo "one process: $one, parts: $parted"; exit 1; }
alone=$("$bin/blco-run" machine-1/t.blco/part-2-of-4 --threads 1 -q)
[[ $alone = *"part 2 of 4 of a tensor"* ]] || { echo "not said that it is a part: $alone"; exit 1; }
fails "part.*--deterministic" in_parts "${run[@]}" t.blco --deterministic
fails "4 parts, for as many processes; this run has 3" processes -n 3 ./there "${run[@]}" t.blco
fails "4 parts; start 4 processes\|name one" "${run[@]}" machine-1/t.blco
fails "needs part 2 of 4" processes -n 4 "${run[@]}" machine-0/t.blco/part-1-of-4
part=machine-2/t.blco/part-3-of-4
mv $part kept
fails "process 2: .*no store here, and of a tensor in parts not part-3-of-4" in_parts "${run[@]}" t.blco
cp -r machine-1/t.blco/part-2-of-4 machine-2/t.blco/
fails "process 2: .*part-3-of-4: missing" in_parts "${run[@]}" t.blco
cp -r other.blco/part-3-of-4 $part
fails "process 2 has a part of another tensor" in_parts "${run[@]}" t.blco
rm -r $part && cp -r kept $part
printf 'damage' | dd of=$part/chunk-000001.bin bs=1 seek=200 conv=notrunc status=none
fails "process 2: .*corrupt\|process 2: .*checksum" in_parts "${run[@]}" t.blco
"$bin/blco-info" $part --repair less -q >/dev/null || true
rm -r $part && mv less $part
fails "every nonzero of their tensor once" in_parts "${run[@]}" t.blco
rm -r $part && mv kept $part
in_parts "$bin/blco-run" t.blco --check "$dir/t.tns" --threads 1 -q
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
