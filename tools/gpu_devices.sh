#!/usr/bin/env bash
# Several GPUs of one machine, on what gpu_collect.sh collected: agreement with the oracle and the CPU first, then MTTKRP of all modes and
# CP-ALS iterations on one GPU and on all, divided by chunks, by rows and as the engine chooses, then streamed. Writes OUT/devices.txt and a
# report of each run. DIR needs bin/ alone.
# usage: tools/gpu_devices.sh DIR OUT [SECONDS]    no new measurement begins after SECONDS (360 by default)
set -uo pipefail
dir=$1 out=$2 limit=${3:-360}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
# NVLink multicast is not to be had on every machine that is lent.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
exec > >(tee "$out/devices.txt") 2>&1
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader
nvidia-smi topo -m
count=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
ldconfig -p | grep -m 1 libnccl.so.2 || echo "no libnccl.so.2: sums are added up by copies between devices"
failed=0
gen() { # NAME DIMS SKEW NNZ
    [ $SECONDS -lt "$limit" ] || return 1
    "$dir/bin/blco-gen" --dims "$2" --skew "$3" --nnz "$4" --values 1..5 --seed 7 -q "$work/$1.blco" >/dev/null
}
echo "## agreement ($SECONDS s)"
"$dir/bin/blco-gen" --dims 900,7010,3 --skew 2,2,1 --nnz 300K --values 1..5 --seed 3 --chunk-bytes 256KiB -q "$work/small.blco" >/dev/null
"$dir/bin/blco-export" "$work/small.blco" "$work/small.tns" -q
"$dir/bin/blco-gen" --dims 50,70,333,61 --planted-rank 3 --support 20 --chunk-bytes 256KiB -q "$work/planted.blco" >/dev/null
for precision in f64 f32; do
    for how in "--repeat 1" "--repeat 3 --device-order store" "--repeat 3 --device-order target" "--repeat 3 --device-order host"; do
        if "$dir/bin/blco-run" "$work/small.blco" --rank 16 --precision $precision --devices all --backend cuda $how \
            --check "$work/small.tns" -q >"$work/check.txt" 2>&1; then
            echo "ok: mttkrp $precision $how"
        else
            failed=1
            echo "FAILED: mttkrp $precision $how"
            cat "$work/check.txt"
        fi
    done
    for how in 0 "all" "all --repeat 2"; do
        # shellcheck disable=SC2086
        "$dir/bin/blco-run" "$work/small.blco" --rank 16 --precision $precision --backend cuda --deterministic --devices $how \
            --output "$work/bits" --force -q >/dev/null 2>"$work/check.txt" || { failed=1; cat "$work/check.txt"; }
        bits=$(cat "$work"/bits/mode-*.npy | sha256sum)
        [ "$how" = 0 ] && wanted=$bits
        if [ "$bits" = "$wanted" ]; then echo "ok: bits $precision --devices $how"; else failed=1; echo "FAILED: bits $precision $how"; fi
    done
    if "$dir/bin/blco-run" "$work/small.blco" --rank 16 --precision $precision --devices all --backend cuda --divide rows --repeat 3 \
        --check "$work/small.tns" -q >"$work/check.txt" 2>&1; then
        echo "ok: mttkrp $precision by rows"
    else
        failed=1
        cat "$work/check.txt"
    fi
    for where in cpu "cuda --devices all"; do
        "$dir/bin/blco-cpd" "$work/planted.blco" --rank 4 --precision $precision --tol 0 --max-iters 8 --no-output --json -q \
            --backend $where >"$work/cpd-${where%% *}.json" || failed=1
    done
    python3 - "$work" $precision <<'P' || failed=1
import json, sys
fits = [[i["fit"] for i in json.load(open(f"{sys.argv[1]}/cpd-{at}.json"))["iterations"]] for at in ("cpu", "cuda")]
worst = max(abs(a - b) for a, b in zip(*fits))
ok = len(fits[0]) == len(fits[1]) == 8 and worst <= {"f64": 1e-8, "f32": 1e-3}[sys.argv[2]]
print("ok" if ok else "FAILED", f"cpd {sys.argv[2]}: fits differ by {worst:.1e} at most")
sys.exit(not ok)
P
done
echo "agreement ends after $SECONDS s, $([ $failed = 0 ] && echo all ok || echo WITH FAILURES)"
[ $failed = 0 ] || exit 1
# One line of a report: the median of all but the first pass, or the mean of all but the first iteration.
line() { # LABEL FILE
    python3 - "$1" "$2" <<'P'
import json, statistics, sys
r = json.load(open(sys.argv[2]))
several = r.get("devices")
# A letter for each mode: r by rows, c by chunks.
by = several["exchange"]["by"] + " " + "".join(m["by"][0] for m in several["modes"]) if several else "-"
if "passes" in r:
    times = [p["seconds"] for p in (r["passes"][2:] or r["passes"])]
    last = r["passes"][-1]["device"]
    more = f'device {1e3 * last["device_seconds"]:.2f} ms, kernels {1e3 * last["kernel_seconds"]:.2f}, copied {last["copied_bytes"] / 1e9:.2f} GB'
    if several:
        own = r["devices_pass"]
        parts = ", ".join(f'{1e3 * p["seconds"]:.2f}' for p in own["parts"])
        more += f'; parts {parts} ms, sums {1e3 * own["exchange_seconds"]:.2f} ms'
    print(f'{sys.argv[1]:44} {1e3 * statistics.median(times):9.2f} ms a pass    {by}; {more}')
else:
    its = r["iterations"][1:]
    mean = lambda of: 1e3 * statistics.mean(i[of] for i in its)
    print(f'{sys.argv[1]:44} {mean("seconds"):9.2f} ms an iteration    {by}; passes {mean("mttkrp_seconds"):.2f}, updates {mean("update_seconds"):.2f}')
P
}
timed() { # LABEL PROGRAM ARGS...
    local label=$1 program=$2
    shift 2
    [ $SECONDS -lt "$limit" ] || { echo "$label: no time left"; return; }
    local file=$out/${label// /-}.json
    if "$dir/bin/$program" "$@" --backend cuda --json -q >"$file" 2>"$file.err"; then line "$label" "$file"; else echo "$label: $(cat "$file.err")"; fi
    rm -f "$file.err"
}
divided() { # NAME: one and all devices, resident
    local store=$work/$1.blco devices precision
    for precision in f64 f32; do
        for devices in 0 "all --divide chunks" "all --divide rows" all; do
            # shellcheck disable=SC2086
            timed "$1 $precision resident ${devices/--divide /}" blco-run "$store" --rank 32 --precision $precision --repeat 8 --devices $devices
            # shellcheck disable=SC2086
            timed "$1 $precision cpd ${devices/--divide /}" blco-cpd "$store" --rank 16 --precision $precision --tol 0 --max-iters 6 --no-output --devices $devices
        done
    done
}
streamed() { # NAME: one and all devices
    local name=$1 store=$work/$1.blco devices memory
    for devices in 0 all; do
        # With what one pass takes, nothing stays on a device from pass to pass; chunks stay in pinned host memory.
        memory=$("$dir/bin/blco-run" "$store" --rank 32 --plan --json -q --backend cuda --devices $devices | python3 -c '
import json, sys
r = json.load(sys.stdin)
parts = [p["device"] for p in r["devices"]["parts"]] if r.get("devices") else [r["device"]]
print(max(p["memory_bytes"] for p in parts))')
        timed "$name f64 streamed devices $devices" blco-run "$store" --rank 32 --repeat 6 --device-order store --device-memory "$memory" --devices $devices
        timed "$name f64 kept devices $devices" blco-run "$store" --rank 32 --repeat 4 --device-order host --devices $devices
    done
}
echo "## one and $count devices, rank 32 (decompositions 16)"
gen nell2 12092,9184,28818 2 76.9M && divided nell2
gen darpa 22476,22476,23776223 3,3,1 28.4M && { divided darpa; rm -r "$work/darpa.blco"; }
gen enron 6066,5699,244268,1176 2,2,2.5,1.5 54.2M && { divided enron; rm -r "$work/enron.blco"; }
gen patents 46,239172,239172 1,1.5,1.5 150M && { divided patents; rm -r "$work/patents.blco"; }
gen nell1s 2000000,2000000,4000000 2,2,1.5 143.6M && { divided nell1s; rm -r "$work/nell1s.blco"; }
gen fbm 23344784,23344784,166 1.5,1.5,2 60M && { divided fbm; rm -r "$work/fbm.blco"; }
[ -e "$work/nell2.blco" ] && streamed nell2
echo "done after $SECONDS s"
# What is written goes through another process.
sleep 1
