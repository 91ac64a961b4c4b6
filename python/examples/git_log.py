"""What a repository's history is made of: its git log as a tensor of folders, kinds of change and hours.

Takes the log of the git repository in the working directory (this project's, up to a commit of its own, so that the page stays as it
is), and decomposes it into components without negative numbers: what was worked on together, and when.
"""

# %% Every file that a commit touched: its folder, its kind, the hour since the first commit.
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import blco

END = "d071e8b"
command = ["git", "log", "--no-merges", "--no-renames", "--numstat", "--format=commit %at", END]
lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
rows, time = [], 0
for line in lines:
    if line.startswith("commit "):
        time = int(line.split()[1])
    elif line:
        added, removed, path = line.split("\t")
        if added != "-":
            folder = "/".join(path.split("/")[:2]) if "/" in path else "top"
            rows.append((folder, Path(path).suffix or "none", time, int(added) + int(removed)))
print(len(rows), "changed files")

# %% Labels become indices in natural order. Each change counts by the logarithm of its lines.
folders, kinds = (sorted({row[mode] for row in rows}) for mode in (0, 1))
first = min(row[2] for row in rows)
hours = np.array([(row[2] - first) // 3600 for row in rows])
coords = np.stack([[folders.index(r[0]) for r in rows], [kinds.index(r[1]) for r in rows], hours], axis=1)
directory = Path(tempfile.mkdtemp())
store = blco.pack((coords, np.log2([2 + row[3] for row in rows])), directory / "log.blco")
print(" x ".join(map(str, store.shape)), f"with {store.nnz} nonzeros, {store.report['duplicates_summed']} added up")

# %% Four components, none of which may be negative.
model = store.cp(rank=4, nonneg=True, starts=5, max_iters=200)
print(f"fit {model.fit:.3f}")
for component in range(model.rank):
    where = [folders[index] for index, _ in model.top(component, 0, 4)]
    what = [kinds[index] for index, _ in model.top(component, 1, 2)]
    when = [hour for hour, _ in model.top(component, 2, 3)]
    print(f"{model.weights[component]:7.1f}: {', '.join(where)}; {', '.join(what)}; hours {', '.join(map(str, sorted(when)))}")

# %% The same as a picture: folders, kinds, hours.
model.plot()
