#!/usr/bin/env python3
"""Check MTTKRP results against a plain coordinate loop: numpy, float64, straight from the text file.

It parses FROSTT text itself (frostt_text.py) and knows nothing of stores, so that it can tell whether packing, reading or computing
went wrong. For each mode m and each nonzero with value v at (i_1, ..., i_d) the loop is

    M[i_m, :] += v * (product over k != m of A_k[i_k, :])

and, beside it, the same over absolute values. With eps the unit roundoff of the precision (2^-53 or 2^-24), an
element may be off by eps * (order + 2 + L) * (its sum over absolute values), where L stands for the chain of
additions: the row's nonzeros for f64, 1 + 2^-29 times that for f32 (sums are expected in f64 there).

    python3 tools/blco_oracle.py INPUT --factors DIR --result DIR --precision f64|f32 [--index-base 0|1]
    python3 tools/blco_oracle.py --make-factors DIR --rank R --seed S --dims a,b,c [--precision f64|f32]

The directories hold mode-1.npy, mode-2.npy, ... , each dims[m] x rank, row-major; every mode that the result
directory has is checked. INPUT may end in .gz or .zst. Exit status: 0 all within the bound, 1 not, 2 usage,
input or system.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frostt_text import InputError, groups_of, read_lines, sort_by_coordinate

EPS = {"f64": 2.0**-53, "f32": 2.0**-24}
KINDS = {"f64": np.float64, "f32": np.float32}
LOOP_ELEMENTS = 1 << 18
THREADS = 4


@dataclass
class Coordinates:
    """The tensor, each coordinate once.

    `weights` holds, for each, the sum of the absolute values of its lines (the absolute value where it had one
    line), `lines[m]` the number of lines of each row of mode m: rounding depends on what was added, not on the sum.
    """

    indices: list[np.ndarray]
    values: np.ndarray
    weights: np.ndarray
    lines: list[np.ndarray]
    dims: list[int] | None

    @property
    def order(self) -> int:
        return len(self.indices)


def read_text(path: Path, index_base: int) -> Coordinates:
    """Read FROSTT text and sum the values of equal coordinates, in the order of their lines."""
    indices, values, dims = read_lines(path, index_base)
    sizes = [int(column.max()) + 1 for column in indices]
    lines = [np.bincount(column, minlength=size) for column, size in zip(indices, sizes)]
    order = sort_by_coordinate(indices, sizes)
    starts = groups_of(indices, order)
    if len(starts) == len(values):
        return Coordinates(indices, values, np.abs(values), lines, dims)
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    sums = np.bincount(group, values[order], len(starts))
    weights = np.bincount(group, np.abs(values[order]), len(starts))
    return Coordinates([column[order[starts]] for column in indices], sums, weights, lines, dims)


# ---------------------------------------------------------------------------------------------------------------
# The loop
# ---------------------------------------------------------------------------------------------------------------


def mttkrp(tensor: Coordinates, factors: list[np.ndarray], mode: int) -> tuple[np.ndarray, np.ndarray]:
    """The MTTKRP of one mode and the same over absolute values, both f64.

    The nonzeros are taken by row of the mode, in blocks small enough for the caches; a block's rows are summed with
    `reduceat` and added to the whole.
    """
    rank = factors[mode].shape[1]
    out = np.zeros(factors[mode].shape)
    absolute = np.zeros(factors[mode].shape)
    by_row = np.argsort(tensor.indices[mode], kind="stable")
    block = max(LOOP_ELEMENTS // rank, 1)
    lock = threading.Lock()

    def add_block(first: int) -> None:
        chosen = by_row[first : first + block]
        rows = tensor.indices[mode][chosen]
        product = None
        for k, factor in enumerate(factors):
            if k != mode:
                part = factor[tensor.indices[k][chosen]]
                product = part if product is None else np.multiply(product, part, out=product)
        starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        values, weights = tensor.values[chosen, None], tensor.weights[chosen, None]
        signed = np.add.reduceat(product * values, starts, axis=0)
        np.abs(product, out=product)
        positive = np.add.reduceat(np.multiply(product, weights, out=product), starts, axis=0)
        with lock:
            out[rows[starts]] += signed
            absolute[rows[starts]] += positive

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(add_block, range(0, len(by_row), block)):
            pass
    return out, absolute


# ---------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What is to say about one mode's result."""

    mode: int
    worst: float
    where: str
    passed: bool


def load_factors(directory: Path, tensor: Coordinates) -> list[np.ndarray]:
    """The factors as f64, checked against the tensor."""
    factors = []
    for mode in range(tensor.order):
        path = directory / f"mode-{mode + 1}.npy"
        factor = np.load(path, allow_pickle=False)
        if factor.ndim != 2 or factor.dtype not in (np.float32, np.float64):
            raise InputError(f"{path} is no matrix of f32 or f64")
        if not np.isfinite(factor).all():
            raise InputError(f"{path} holds an element that is not finite")
        smallest = len(tensor.lines[mode])
        if len(factor) < smallest or (tensor.dims is not None and len(factor) != tensor.dims[mode]):
            raise InputError(f"{path} has {len(factor)} rows, which does not fit the tensor")
        factors.append(np.ascontiguousarray(factor, np.float64))
    if len({factor.shape[1] for factor in factors}) != 1 or factors[0].shape[1] == 0:
        raise InputError("the factors differ in rank")
    return factors


def compare(tensor: Coordinates, factors: list[np.ndarray], mode: int, path: Path, precision: str) -> Verdict:
    """Hold one mode's result against the loop's."""
    result = np.load(path, allow_pickle=False)
    if result.shape != factors[mode].shape:
        wanted = "x".join(map(str, factors[mode].shape))
        return Verdict(mode, np.inf, f"shape {'x'.join(map(str, result.shape))}, not {wanted}", False)
    if result.dtype not in (np.float32, np.float64):
        return Verdict(mode, np.inf, f"type {result.dtype}", False)
    exact, absolute = mttkrp(tensor, factors, mode)
    lines = np.zeros(len(exact))
    lines[: len(tensor.lines[mode])] = tensor.lines[mode]
    chain = lines if precision == "f64" else 1 + lines * 2.0**-29
    bound = absolute
    bound *= (EPS[precision] * (tensor.order + 2 + chain))[:, None]
    error = np.abs(np.subtract(result, exact, out=exact), out=exact)
    ratio = np.divide(error, bound, out=np.where(error == 0, 0.0, np.inf), where=bound > 0)
    ratio[np.isnan(ratio)] = np.inf
    at = np.unravel_index(int(ratio.argmax()), ratio.shape)
    worst = float(ratio[at])
    note = f"row {at[0] + 1}, column {at[1] + 1}" + (", NaN" if np.isnan(result).any() else "")
    return Verdict(mode, worst, note, worst <= 1)


def check(options: argparse.Namespace) -> int:
    """Compare every result that is there and print the table."""
    tensor = read_text(options.input, options.index_base)
    factors = load_factors(options.factors, tensor)
    paths = [options.result / f"mode-{mode + 1}.npy" for mode in range(tensor.order)]
    if not any(path.exists() for path in paths):
        raise InputError(f"{options.result} holds no mode-1.npy or other result")
    print(f"{'mode':>4}  {'max error / bound':>17}  at")
    passed = True
    for mode, path in enumerate(paths):
        if path.exists():
            verdict = compare(tensor, factors, mode, path, options.precision)
            passed &= verdict.passed
            print(f"{mode + 1:>4}  {verdict.worst:>17.6g}  {verdict.where}{'' if verdict.passed else '  FAILED'}")
    return 0 if passed else 1


def make_factors(directory: Path, dims: Sequence[int], rank: int, seed: int, precision: str) -> None:
    """Write a normally distributed factor for each mode."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for mode, dim in enumerate(dims):
        factor = random.standard_normal((dim, rank))
        np.save(directory / f"mode-{mode + 1}.npy", factor.astype(KINDS[precision]))


def parse_dims(text: str) -> list[int]:
    dims = [int(part) for part in text.split(",")]
    if len(dims) < 2 or min(dims) < 1:
        raise ValueError
    return dims


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check MTTKRP results against a plain float64 loop.")
    parser.add_argument("input", type=Path, nargs="?", help="FROSTT text, plain, .gz or .zst")
    parser.add_argument("--factors", type=Path, metavar="DIR")
    parser.add_argument("--result", type=Path, metavar="DIR")
    parser.add_argument("--precision", choices=sorted(EPS), help="of the computation (factors: f64)")
    parser.add_argument("--index-base", type=int, choices=(0, 1), default=1)
    parser.add_argument("--make-factors", type=Path, metavar="DIR", help="write random factors instead of checking")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dims", type=parse_dims, metavar="A,B,C")
    options = parser.parse_args(arguments)
    try:
        if options.make_factors:
            if not options.dims or not options.rank or options.rank < 1:
                parser.error("--make-factors needs --dims and --rank")
            precision = options.precision or "f64"
            make_factors(options.make_factors, options.dims, options.rank, options.seed, precision)
            return 0
        if not (options.input and options.factors and options.result and options.precision):
            parser.error("INPUT, --factors, --result and --precision are needed")
        return check(options)
    except (InputError, OSError, ValueError, MemoryError, ImportError) as error:
        print(f"blco_oracle: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
