#!/usr/bin/env bash
# The packer's record: generated tensors at 10 million nonzeros (in memory) and at a billion (runs on disk) in 2 GiB, and text to
# store. Time, peak memory, temporary bytes, output; the machine's copy bandwidth before and after.
# usage: tools/bench_pack.sh DIR [TEXT...]    DIR gets pack.md (tables) and pack.jsonl (raw); everything else in it stays as it is
# NNZ (1000000000), WORK (a directory for stores and temporary files, about 15 GB; default: a new one) and RUNS (3) may be set.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath "$1") && shift
mkdir -p "$out"
cargo build --release --quiet
bin=$(realpath "${CARGO_TARGET_DIR:-target}")/release
work=$(mktemp -d -p "${WORK:-/tmp}")
trap 'rm -rf "$work"' EXIT
raw=$out/pack.jsonl
table=$out/pack.md
: >"$raw"

machine() { cargo bench --quiet --bench engine -- --machine 2>/dev/null; }

# measure LABEL COMMAND...: one run, as a line of $raw: what the program reports, with peak KiB, wall, user and system seconds.
measure() {
    local label=$1
    shift
    rm -rf "$work/store.blco"
    /usr/bin/time -o "$work/time" -f '{"peak_kib":%M,"wall":%e,"user":%U,"system":%S}' "$@" --json --quiet >"$work/report"
    python3 - "$label" "$work" >>"$raw" <<'PY'
import json, sys
label, work = sys.argv[1:]
report = json.load(open(f"{work}/report"))
del report["store"]
print(json.dumps({"run": label, **json.load(open(f"{work}/time")), **report}))
PY
    echo "$label: $(tail -n 1 "$work/time")" >&2
    rm -rf "$work/store.blco"
}

{ echo "Before:" && echo && machine; } >"$table"
tensors="order3:2902330,2143368,25495389 order4:6066,5699,244268,1176 bits79:319686,28153045,1607191,731"
for tensor in $tensors; do
    generate=("$bin/blco-gen" --dims "${tensor#*:}" --skew 2 --values 1..5 --memory 2GiB "$work/store.blco")
    for ((run = 0; run < ${RUNS:-3}; run++)); do measure "${tensor%:*}" "${generate[@]}" --nnz 10000000; done
    measure "${tensor%:*}" "${generate[@]}" --nnz "${NNZ:-1000000000}"
done
for text in "$@"; do
    cat "$text" >/dev/null
    for ((run = 0; run < ${RUNS:-3}; run++)); do
        measure "$(basename "$text")" "$bin/blco-pack" "$text" -o "$work/store.blco"
    done
done
python3 - "$raw" >>"$table" <<'PY'
import json, statistics, sys

groups = {}
for line in open(sys.argv[1]):
    run = json.loads(line)
    groups.setdefault((run["run"], run["input_nnz"]), []).append(run)
print("\n| tensor | nonzeros | wall s | CPU s | read, sort, write, publish s | peak MiB | temporary | store | ns a nonzero | M nonzeros/s | against the first |")
print("|---|---|---|---|---|---|---|---|---|---|---|")
first = {}
for (name, nnz), runs in groups.items():
    middle = sorted(runs, key=lambda r: r["wall"])[len(runs) // 2]
    spilled, ns = middle["spilled"], middle["wall"] / nnz * 1e9
    temporary = f'{spilled["runs"]} runs, {spilled["bytes_peak"] / 2**30:.2f} GiB' if spilled["runs"] else "none"
    phases = ", ".join(f'{middle["seconds"][p]:.2f}' for p in ("read", "sort", "write", "publish"))
    cpu = statistics.median(r["user"] + r["system"] for r in runs)
    peak = max(r["peak_kib"] for r in runs) / 1024
    print(f'| {name}, {middle["linear_bits"]} bits | {nnz} | {middle["wall"]:.2f} | {cpu:.2f} | {phases} | {peak:.0f} | {temporary} '
          f'| {middle["bytes"] / 2**30:.2f} GiB | {ns:.0f} | {1000 / ns:.1f} | {ns / first.setdefault(name, ns):.2f} |')
print("\nMedian run of each; the peak is the largest.")
PY
{ echo && echo "After:" && echo && machine; } >>"$table"
cat "$table"
