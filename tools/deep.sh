#!/usr/bin/env bash
# What takes longer than CI does: every harness of docs/reliability.md at its full length, on all cores. Its summaries are kept under
# benches/runs.
# usage: tools/deep.sh collect DIR              programs, tests and fuzz targets, for a machine without cargo (needs cargo-fuzz)
#        tools/deep.sh run DIR OUT [JOB...]     on that machine, or here; each job writes OUT/JOB.txt
# jobs: kills mutants power exhaustion sweep memory models soak fuzz, by default all in turn; SECONDS_EACH bounds soak and each fuzz target
# (default 900), MUTANTS, KILLS, POWER and SCHEDULES set what the tests try. SEED draws other mutants and soak rounds.
set -euo pipefail
cd "$(dirname "$0")/.."
tests="kills differential power_loss exhaustion sweep memory"
targets="text manifest chunk npy store journal spill checkpoint score"
collect() {
    local dir=$1 test built target
    mkdir -p "$dir/bin" "$dir/fuzz"
    cargo build --bins --quiet
    for test in $tests model; do
        local features=()
        [ $test != model ] || features=(--no-default-features --features model)
        built=$(cargo test "${features[@]}" --test $test --no-run --message-format json --quiet |
            sed -n 's/.*"name":"'$test'".*"executable":"\([^"]*\)".*/\1/p')
        strip -o "$dir/bin/$test-test" "$built"
    done
    cargo build --bins --quiet
    for program in pack run cpd gen export info; do
        strip -o "$dir/bin/blco-$program" "${CARGO_TARGET_DIR:-target}/debug/blco-$program"
    done
    # Stable compilers take nightly's flags so.
    RUSTC_BOOTSTRAP=1 cargo fuzz build --sanitizer none
    for target in $targets; do
        strip -o "$dir/fuzz/$target" "fuzz/target/$(uname -m)-unknown-linux-gnu/release/$target"
    done
}
[ "${1:-}" != collect ] || { collect "${2:?}"; exit; }
[ "${1:-}" = run ] || { sed -n '4,9s/^# //p' "$0" >&2; exit 2; }
dir=$(realpath "${2:?}") out=${3:?}
shift 3
mkdir -p "$out"
seed=${SEED:-1} each=${SECONDS_EACH:-900} failed=0
of_test() { "$dir/bin/$1-test" --nocapture "${@:2}"; }
kills() { BLCO_KILLS=${KILLS:-1000} of_test kills; }
# A process for each core, pinned to it, with mutants of its own: threads of one process wait for each other's mappings.
mutants() {
    local cores of_each one
    cores=$(nproc) of_each=$(((${MUTANTS:-250000} + cores - 1) / cores))
    one='BLCO_SEED=$((100 * $4 + $1)) taskset -c $(($1 - 1)) "$2/bin/differential-test" --nocapture every_reader >"$3/mutants-$1.txt" 2>&1'
    seq "$cores" | BLCO_MUTANTS=$of_each xargs -P "$cores" -I {} bash -c "$one" mutants {} "$dir" "$out" "$seed"
    local status=$?
    grep -h '[0-9] by verifiers alone,\|^mutant' "$out"/mutants-*.txt
    return $status
}
power() { BLCO_POWER=${POWER:-2000} of_test power_loss; }
exhaustion() { BLCO_SWEEP=all of_test exhaustion; }
sweep() { BLCO_SWEEP=all of_test sweep; }
memory() { BLCO_LARGE=1 of_test memory; }
models() { BLCO_SCHEDULES=${SCHEDULES:-100000} of_test model; }
soak() { python3 tools/soak.py --bin "$dir/bin" --seconds "$each" --seed "$seed" --jobs "${JOBS:-$(nproc)}" --json "$out/soak.json"; }
# One target of several processes at once; inputs found are merged with those kept.
fuzz_one() {
    local corpus
    corpus=$(mktemp -d)
    "$2/fuzz/$1" "$corpus" "fuzz/corpus/$1" -max_total_time="$3" -malloc_limit_mb=512 -timeout=20 -max_len=4096 \
        -artifact_prefix="$4/$1-" -print_final_stats=1 >"$4/fuzz-$1.txt" 2>&1
    echo "status $? of $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$4/fuzz-$1.txt") inputs"
    rm -r "$corpus"
}
export -f fuzz_one
fuzz() {
    # shellcheck disable=SC2086
    printf '%s\n' $targets | xargs -P "$(nproc)" -I {} bash -c "fuzz_one {} '$dir' $each '$(realpath "$out")'" | tee "$out/fuzz-statuses"
    ! grep -qv '^status 0' "$out/fuzz-statuses"
}
[ $# -gt 0 ] || set -- kills mutants power exhaustion sweep memory models soak fuzz
for job in "$@"; do
    begin=$SECONDS
    if "$job" >"$out/$job.txt" 2>&1; then status=passed; else status=FAILED failed=1; fi
    echo "$job: $status, $((SECONDS - begin)) s" | tee -a "$out/jobs.txt"
done
exit $failed
