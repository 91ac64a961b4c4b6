#!/usr/bin/env bash
# Collects what a machine with a GPU but without cargo or network needs to test and measure this checkout: stripped
# programs, the tests on a GPU and small tensors. Then, there: tools/gpu_run.sh DIR OUT.
# usage: tools/gpu_collect.sh [DIR [DATA]]    DIR defaults to .gpu, DATA (tensors) to ../shared/data
# LARGE=1 collects the larger tensors instead of the others, for `gpu_run.sh DIR OUT large`: all would be too much for a machine
# that takes 64 MiB at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-.gpu}
data=${2:-../shared/data}
profile=${PROFILE:-quick}
cargo build --profile "$profile" --bins --quiet
mkdir -p "$dir/bin" "$dir/data"
for test in gpu programs cpd_ends; do
    built=$(cargo test --profile "$profile" --test $test --no-run --message-format json --quiet |
        sed -n 's/.*"name":"'$test'".*"executable":"\([^"]*\)".*/\1/p')
    strip -o "$dir/bin/$test-test" "$built"
done
for program in pack run cpd gen export; do
    strip -o "$dir/bin/blco-$program" "${CARGO_TARGET_DIR:-target}/$profile/blco-$program"
done
rm -f "$dir"/data/*
tensors="uber-aprjun2014-4d darpa-midas-src-dst-minute kg-icews14-subj-rel-obj-time kg-fb15k237-head-rel-tail"
if [ -n "${LARGE:-}" ]; then
    tensors="gitlog-author-file-token-month uber-aprjun2014-4d-rawdup"
    rm "$dir"/bin/{blco-*,programs-test,cpd_ends-test}
elif [ -d "$data/small" ]; then
    cp -f "$data"/small/{mttkrp_b,small,small4,med4,plain_4d_3_16}.tns "$dir/data/"
fi
for tensor in $tensors; do
    [ ! -f "$data/$tensor.tns.zst" ] || cp -f "$data/$tensor.tns.zst" "$dir/data/"
done
du -sh "$dir"
