#!/usr/bin/env bash
# Everything that needs a GPU, on what gpu_collect.sh collected: agreement with the oracle, compute-sanitizer, measurements.
# usage: tools/gpu_run.sh DIR OUT [check] [sanitize] [bench JOB...]    default: all
set -uo pipefail
dir=$1 out=$2
shift 2
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/device.txt"
check() {
    echo "## agreement with the oracle"
    BLCO_DEVICE_FULL=1 BLCO_DATA=$dir/data "$dir/bin/device-test" --nocapture --test-threads 1 >"$out/check.txt" 2>&1
    grep -E '^test |^Tally|test result|bound' "$out/check.txt"
}
sanitize() {
    for tool in memcheck racecheck initcheck; do
        echo "## compute-sanitizer $tool"
        compute-sanitizer --tool $tool --error-exitcode 9 "$dir/bin/device-test" every_order --test-threads 1 >"$out/$tool.txt" 2>&1
        echo "status $?"
        grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|test result|=========.*(Invalid|Uninit|Race)' "$out/$tool.txt" | sort | uniq -c | sort -rn | head -5
    done
}
[ $# -gt 0 ] || set -- check sanitize bench
while [ $# -gt 0 ]; do
    job=$1
    shift
    case $job in
    check | sanitize) $job ;;
    bench)
        python3 "$(dirname "$0")/gpu_bench.py" "$dir/bin" "$work" "$out/bench.json" "$@"
        break
        ;;
    *) echo "unknown job $job" >&2; exit 2 ;;
    esac
done
