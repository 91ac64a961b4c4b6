#!/usr/bin/env bash
# The long check: every real tensor under DATA, every rank, encoding and precision, against the independent numpy oracle.
# usage: tools/sweep.sh [DATA [REPORT]]    DATA defaults to ../shared/data; needs .venv (tools/test.sh makes it)
set -euo pipefail
cd "$(dirname "$0")/.."
data=${1:-../shared/data}
report=${2:-/dev/stdout}
ranks=${RANKS:-"1 7 16 32 33"}
cargo build --release --quiet
bin=${CARGO_TARGET_DIR:-target}/release
python=.venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
for input in "$data"/*.tns.zst "$data"/small/*.tns; do
    case $input in *zero*) continue ;; esac # refused without --index-base 0: tests/results/real_tensors.rs
    name=$(basename "$input")
    dims=$("$bin/blco-pack" "$input" -o "$work/tiled" --force --json | "$python" -c 'import json,sys; print(*json.load(sys.stdin)["dims"], sep=",")')
    "$bin/blco-pack" "$input" -o "$work/raw" --encoding raw --force --quiet >/dev/null
    for rank in $ranks; do
        for precision in f64 f32; do
            rm -rf "$work/factors"
            "$python" tools/blco_oracle.py --make-factors "$work/factors" --rank "$rank" --seed 1 --dims "$dims" --precision $precision
            for encoding in tiled raw; do
                rm -rf "$work/$encoding.out"
                "$bin/blco-run" "$work/$encoding" --factors "$work/factors" --precision $precision --output "$work/$encoding.out" --quiet >/dev/null
            done
            # Both encodings hold the same nonzeros in the same order: one comparison with the oracle serves both.
            for result in "$work"/tiled.out/*; do cmp "$result" "$work/raw.out/$(basename "$result")"; done
            if line=$("$python" tools/blco_oracle.py "$input" --factors "$work/factors" --result "$work/tiled.out" --precision $precision); then
                passed=$((passed + 1)) verdict=ok
            else
                failed=$((failed + 1)) verdict=DIFFERS
            fi
            worst=$(printf '%s\n' "$line" | awk 'NR > 1 && $2 + 0 > worst { worst = $2 + 0 } END { print worst + 0 }')
            printf '%-40s rank %-3s %s tiled = raw, oracle: %s (largest error / bound %s)\n' "$name" "$rank" "$precision" "$verdict" "$worst" >>"$report"
        done
    done
done
printf '%s comparisons hold, %s do not\n' "$passed" "$failed" >>"$report"
[ "$failed" = 0 ]
