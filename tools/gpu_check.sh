#!/usr/bin/env bash
# On a machine with a GPU: MTTKRP on it against the oracle, for every tensor that gpu_collect.sh took along, generated ones of
# order 2 to 8 and one above 64 linear bits, both encodings and precisions, ranks 1 to 128, 1 to 8 lanes, small and large
# chunks, resident, partly resident and streamed. Prints a line for what fails and a summary.
# usage: tools/gpu_check.sh DIR [WORK]
set -uo pipefail
bin=$1/bin data=$1/data
work=${2:-$(mktemp -d)}
mkdir -p "$work"
passed=0 failed=0
check() { # STORE TEXT OPTION...
    local store=$1 text=$2
    shift 2
    if out=$("$bin/blco-run" "$store" --backend cuda --check "$text" --quiet "$@" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s %s\n%s\n' "$store" "$*" "$(printf '%s' "$out" | tail -5)"
    fi
}
texts=("$data"/*.tns*)
generate() { # NAME OPTION...
    "$bin/blco-gen" "${@:2}" --quiet "$work/$1.tns" >/dev/null && texts+=("$work/$1.tns")
}
generate order2 --dims 300,70000 --nnz 40K --skew 2 --values 1..9
generate order3 --dims 50,40000,7 --nnz 60K --skew 2
generate order5 --dims 20,30,40,50,60 --nnz 60K --skew 1.5 --values 1..3
generate order6 --dims 9,8,7,60,50,40 --nnz 50K
generate order7 --dims 9,8,7,6,50,40,30 --nnz 50K --values 1..1000000
generate order8 --dims 9,8,7,6,5,40,30,20 --nnz 50K --values 1..2
generate bits93 --dims 4000000000,2000000,1000,900000 --nnz 3K
ranks=(1 7 16 32 33 64 128)
n=0
for text in "${texts[@]}"; do
    name=$(basename "$text")
    large=$(($(stat -c %s "$text") > 4000000))
    for encoding in tiled raw; do
        for chunk in 64KiB 16MiB; do
            store=$work/$name.$encoding.$chunk
            "$bin/blco-pack" "$text" -o "$store" --encoding $encoding --chunk-bytes $chunk --force --quiet >/dev/null || continue
            bytes=$(du -sb "$store" | cut -f 1)
            for rank in "${ranks[@]}"; do
                case $name in bits93*) [ "$rank" = 1 ] || continue ;; esac
                n=$((n + 1))
                # Every combination of the cheap axes comes up over the tensors; all of them on one would say no more.
                precision=$([ $((n % 2)) = 0 ] && echo f64 || echo f32)
                streams=$((n % 8 + 1))
                [ $large = 1 ] && [ $((rank % 16)) != 0 ] && continue
                check "$store" "$text" --rank "$rank" --precision $precision --streams $streams
                check "$store" "$text" --rank "$rank" --precision $precision --streams $streams --repeat 3
                need=$("$bin/blco-run" "$store" --backend cuda --plan --rank "$rank" --precision $precision --streams 1 --json |
                    sed -n 's/.*"memory_bytes": *\([0-9]*\).*/\1/p' | head -1)
                check "$store" "$text" --rank "$rank" --precision $precision --streams 2 --repeat 2 --device-memory $((need + bytes / 2))
            done
        done
    done
done
echo "$passed comparisons hold, $failed do not"
[ $failed = 0 ]
