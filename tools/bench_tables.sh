#!/usr/bin/env bash
# Times packing a table: tools/bench_tables.sh DIR [ROWS] makes ROWS rows (20 million) in DIR unless they are there, packs them as CSV
# and as Parquet on two cores in 512 MiB, with release programs, and does the same in pandas with a script as people write it. Prints
# seconds, CPU seconds, the peak of memory, and CPU microseconds a row. BLCO_PYTHON has numpy, pandas and pyarrow; GNU time is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1 rows=${2:-20000000} python=${BLCO_PYTHON:-python3}
bin=${BLCO_BIN:-target/release}
table=$dir/ratings-$rows
if [ ! -e "$table.parquet" ]; then "$python" tools/make_ratings.py "$rows" "$table"; fi
timed() {
    name=$1; shift
    /usr/bin/time -f "%e %U %S %M" -o "$dir/time" taskset -c 0,1 "$@" >/dev/null
    awk -v name="$name" -v rows="$rows" '{ printf "%-10s %8.2f s  %8.2f CPU s  %8.0f MiB  %6.3f CPU us a row  %6.2f M rows a second\n", name, $1, $2 + $3, $4 / 1024, 1e6 * ($2 + $3) / rows, rows / $1 / 1e6 }' "$dir/time"
}
modes=(--modes user,title,tag,at:month --value rating --memory 512MiB --force --quiet)
timed csv "$bin/blco-pack" "$table.csv" -o "$dir/csv.blco" "${modes[@]}"
timed parquet "$bin/blco-pack" "$table.parquet" -o "$dir/parquet.blco" "${modes[@]}"
for name in $(cd "$dir/csv.blco" && ls | grep -v provenance); do cmp "$dir/csv.blco/$name" "$dir/parquet.blco/$name"; done
cat >"$dir/script.py" <<'PY'
import sys

import numpy as np
import pandas as pd

frame = pd.read_csv(sys.argv[1])
frame["at"] = pd.to_datetime(frame["at"]).dt.strftime("%Y-%m")
columns, labels = [], {}
for mode in ["user", "title", "tag", "at"]:
    codes, uniques = pd.factorize(frame[mode], sort=True)
    columns.append(codes + 1)
    labels[mode] = uniques
frame = pd.DataFrame({**{str(at): codes for at, codes in enumerate(columns)}, "rating": frame["rating"]})
frame = frame.groupby(["0", "1", "2", "3"], as_index=False)["rating"].sum()
frame.to_csv(sys.argv[2], sep=" ", header=False, index=False)
for mode, uniques in labels.items():
    np.savetxt(f"{sys.argv[2]}.{mode}", uniques.to_numpy(), fmt="%s")
PY
timed pandas "$python" "$dir/script.py" "$table.csv" "$dir/script.tns"
timed "and pack" "$bin/blco-pack" "$dir/script.tns" -o "$dir/script.blco" --memory 512MiB --force --quiet
