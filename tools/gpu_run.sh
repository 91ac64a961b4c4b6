#!/usr/bin/env bash
# Everything that needs a GPU, on what gpu_collect.sh collected: agreement with the oracle, compute-sanitizer, orderly ends,
# a timeline, measurements.
# usage: tools/gpu_run.sh DIR OUT [check] [sanitize] [mutants] [ends] [bench JOB...]    default: all
set -uo pipefail
dir=$1 out=$2
shift 2
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/device.txt"
# Runs a command beside others, its output and status in FILE: beside FILE COMMAND...; `wait` waits for all.
beside() {
    local file=$1
    shift
    {
        "$@" >"$file" 2>&1
        echo "status $?" >>"$file"
    } &
}
check() {
    echo "## agreement with the oracle"
    # There even if the time does not suffice.
    local log=$out/check
    mkdir -p "$log"
    beside "$log/mttkrp" env BLCO_DEVICE_FULL=1 BLCO_DATA="$dir/data" "$dir/bin/gpu-test" --nocapture mttkrp::
    beside "$log/mode-sorted" "$dir/bin/gpu-test" --nocapture --test-threads 1 mode_sorted::
    beside "$log/cpd" "$dir/bin/gpu-test" --nocapture cpd::
    beside "$log/ttm" "$dir/bin/gpu-test" --nocapture ttm
    beside "$log/ttv" env BLCO_DEVICE_FULL=1 BLCO_DATA="$dir/data" "$dir/bin/gpu-test" --nocapture ttv::
    # Where the programs are is told by where the tests are. OUT/peer.tar.gz is for tools/cpd_peer.py, where pyttb is.
    beside "$log/cpd_programs" env BLCO_REAL_CUDA=1 BLCO_PEER="$work/peer" "$dir/bin/programs-test" --nocapture cpd::
    beside "$log/cpd_ends" env BLCO_REAL_CUDA=1 BLCO_KILLS=8 "$dir/bin/cpd_ends-test" --nocapture killed interrupted
    wait
    [ ! -d "$work/peer" ] || tar -czf "$out/peer.tar.gz" -C "$work" peer
    tail -n +1 "$log"/* >"$out/check.txt"
    rm -r "$log"
    grep -E '^==>|^status|^test |^Tally|test result|bound' "$out/check.txt"
}
# The larger tensors, whose runs take too long for every combination.
large() {
    echo "## agreement with the oracle, the larger tensors"
    local test log=$work/large
    mkdir -p "$log"
    for test in mttkrp ttv; do
        beside "$log/$test" env BLCO_LARGE=1 BLCO_DATA="$dir/data" "$dir/bin/gpu-test" --nocapture --exact $test::real_tensors_agree_with_the_oracle
    done
    wait
    tail -n +1 "$log"/* | tee "$out/large.txt"
}
# One test under one tool: sanitize_one DIR LOG TOOL TEST [RESIDENCY]. Status 255: nothing of it runs on a device here.
sanitize_one() {
    local name=$3-$4${5:+-$5} begin=$SECONDS
    [ $# -lt 5 ] || export BLCO_RESIDENCY=$5
    compute-sanitizer --tool "$3" --error-exitcode 9 "$1/bin/gpu-test" --exact "$4" >"$2/$name" 2>&1
    echo "status $? of $name: $((SECONDS - begin)) s, $(grep -cE '^=========.*(Invalid|Uninit|Race)' "$2/$name") reports," \
        "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$2/$name" | tail -1), $(grep 'test result' "$2/$name")" | tee -a "$2/$name"
}
export -f sanitize_one
# What sanitize_one takes after its folders, for a tool and each test; the longest in parts.
sanitized() {
    "$dir/bin/gpu-test" --list --skip mutants:: 2>/dev/null | sed -n "s/^\(.*\): test\$/$1 \1/p" |
        awk '/every_order_and_value_encoding_agrees/ { for (i = split("Streamed Half All Deterministic Kept Sorted", r); i; --i) print $0, r[i]; next } 1'
}
# Each in a process of its own, so that all cores are busy: the tools take most of the time on the CPU. Of initcheck's processes four at a
# time: with many it fails by itself (benches/runs/2026-11-21-h100-initcheck).
sanitize() {
    echo "## compute-sanitizer"
    local log=$out/sanitize one="sanitize_one $dir $out/sanitize"
    mkdir -p "$log"
    { sanitized racecheck; sanitized memcheck; } | xargs -P "$(nproc)" -I {} bash -c "$one {}"
    sanitized initcheck | xargs -P 4 -I {} bash -c "$one {}"
    tail -n +1 "$log"/* >"$out/sanitize.txt"
    rm -r "$log"
}
# Stores that lie: as they are, then under memcheck, other ones in a process for each core; at least 300 are accepted.
mutants() {
    echo "## stores that lie"
    local log=$out/mutants one='BLCO_SEED=$1 BLCO_MUTANTS=${MUTANTS:-80} compute-sanitizer --tool memcheck --error-exitcode 9 \
        "$2/bin/gpu-test" --nocapture mutants:: >"$3/memcheck-$1" 2>&1; echo "status $?" >>"$3/memcheck-$1"'
    mkdir -p "$log"
    BLCO_SEED=1000 BLCO_MUTANTS=1000 "$dir/bin/gpu-test" --nocapture mutants:: >"$log/plain" 2>&1
    echo "status $?" >>"$log/plain"
    seq "$(nproc)" | xargs -P "$(nproc)" -I {} bash -c "$one" mutants {} "$dir" "$log"
    tail -n +1 "$log"/* >"$out/mutants.txt"
    rm -r "$log"
    grep -E '^==>|^status|accepted and|ERROR SUMMARY|panicked|^mutant' "$out/mutants.txt"
    sed -n '/plain <==/,/^status/d; s/^\([0-9]*\) accepted and.*/\1/p' "$out/mutants.txt" |
        awk '{ sum += $1 } END { print "accepted under memcheck: " sum+0 " (at least 300)" }'
}
ends() {
    echo "## orderly ends (the last needs root, to mount a small disk)"
    local run=$dir/bin/blco-run store=$work/ends.blco
    "$dir/bin/blco-gen" --dims 20000,30000,40000 --nnz 20M -q "$store" >/dev/null
    timeout --preserve-status --signal INT 3 "$run" "$store" --backend cuda --repeat 1000000 --output "$work/results" -q 2>"$out/interrupt.txt"
    echo "interrupted: status $? (130), $(ls -d "$work"/results* 2>/dev/null | wc -l) results left (0): $(cat "$out/interrupt.txt")"
    mkdir -p "$work/disk"
    if mount -t tmpfs -o size=1M none "$work/disk" 2>/dev/null; then
        "$run" "$store" --backend cuda --output "$work/disk/results" -q 2>"$out/full.txt"
        echo "full disk: status $? (2), $(ls -A "$work/disk" | wc -l) files left (0): $(cat "$out/full.txt")"
        umount "$work/disk"
    fi
    "$run" "$store" --backend cuda --repeat 3 --streams 3 --device-memory 90MB --trace "$out/trace.json" --force -q
    python3 "$(dirname "$0")/timeline.py" "$out/trace.json" "$out/timeline.svg"
}
[ $# -gt 0 ] || set -- check sanitize mutants ends bench
while [ $# -gt 0 ]; do
    job=$1
    shift
    case $job in
    check | large | sanitize | mutants | ends) $job ;;
    bench)
        python3 "$(dirname "$0")/gpu_bench.py" "$dir/bin" "$work" "$out/bench.json" "$@"
        break
        ;;
    *) echo "unknown job $job" >&2; exit 2 ;;
    esac
done
