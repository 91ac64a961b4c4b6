"""Compare models of blco-cpd with pyttb's, from the same initial factors.

    python tools/cpd_peer.py TENSOR.tns DIMS INITIAL RESULT1 RESULT2 …

TENSOR.tns is FROSTT text without duplicates, DIMS its dims (30,40,50), INITIAL and the RESULTs hold mode-1.npy …; RESULTk is
the model of k iterations (--tol 0 --max-iters k). Prints for each the squared distance relative to the square of pyttb's
model. Exit status: 0 all are at most 1e-10, 1 one is not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyttb

BOUND = 1e-10


def factors(folder: Path, order: int) -> list[np.ndarray]:
    """The factors in a folder."""
    return [np.load(folder / f"mode-{m + 1}.npy") for m in range(order)]


def inner(a: pyttb.ktensor, b: pyttb.ktensor) -> float:
    """The inner product of two models."""
    product = np.outer(a.weights, b.weights)
    for left, right in zip(a.factor_matrices, b.factor_matrices):
        product = product * (left.T @ right)
    return float(product.sum())


def main(tensor: str, dims: str, initial: str, *results: str) -> int:
    shape = tuple(map(int, dims.split(",")))
    rows = np.loadtxt(tensor, ndmin=2)
    subscripts, values = rows[:, :-1].astype(int) - 1, rows[:, -1:]
    sparse = pyttb.sptensor(subscripts, values, shape)
    start = factors(Path(initial), len(shape))
    rank = start[0].shape[1]
    right = True
    for k, folder in enumerate(results, 1):
        init = pyttb.ktensor([f.copy(order="F") for f in start])
        theirs, _, _ = pyttb.cp_als(sparse, rank, init=init, maxiters=k, stoptol=0, printitn=0, fixsigns=False)
        weights = np.load(Path(folder) / "lambda.npy").ravel()
        ours = pyttb.ktensor([f.copy(order="F") for f in factors(Path(folder), len(shape))], weights)
        distance = (inner(ours, ours) + inner(theirs, theirs) - 2 * inner(ours, theirs)) / inner(theirs, theirs)
        print(f"{folder}: {distance:.3e}")
        right &= distance <= BOUND
    return 0 if right else 1


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
