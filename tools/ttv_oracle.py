#!/usr/bin/env python3
"""Check TTV results against the definition: numpy, in long double, straight from the text file.

It parses FROSTT text itself (frostt_text.py) and knows nothing of stores, so that it can tell whether packing, reading,
computing or writing went wrong. For mode m, the vector x and each line with value v at (i_1, ..., i_d) the definition is

    y[(i_1, ..., i_d) without i_m] += v * x[i_m]

and, beside it, the same over absolute values. A result has each coordinate that the definition gives, once, zeros
included, and no other. With eps the unit roundoff of the precision (2^-53 or 2^-24), an element of n lines may be off
by (4 eps + (n + 2) (2^-53 + eps_l)) * (its sum over absolute values): value, element of the vector, product and result
are rounded to the precision, sums to f64; eps_l is the roundoff of this program's own sums (2^-64 on x86-64).

    python3 tools/ttv_oracle.py INPUT --vectors DIR [--f64 DIR ...] [--f32 DIR ...] [--index-base 0|1]
    python3 tools/ttv_oracle.py --make-vectors DIR --dims a,b,c [--seed S]

The vectors are mode-1.npy, mode-2.npy, ... , f64. Results computed in f64 and in f32 are mode-1/result.tns,
mode-2/result.tns, ... in their directories, FROSTT text that counts from 1; all that are there are checked. INPUT may
end in .gz or .zst. Exit status: 0 all within the bound, 1 not, 2 usage, input or system.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frostt_text import InputError, groups_of, read_lines, sort_by_coordinate

EPS = {"f64": 2.0**-53, "f32": 2.0**-24}
EPS_SUMS = EPS["f64"] + float(np.finfo(np.longdouble).eps) / 2


@dataclass
class Elements:
    """What the definition gives along one mode, sorted: coordinates without that mode, sums, the same over absolute
    values, and how many lines were added."""

    indices: list[np.ndarray]
    sizes: list[int]
    sums: np.ndarray
    absolute: np.ndarray
    lines: np.ndarray


def ttv(indices: list[np.ndarray], values: np.ndarray, vector: np.ndarray, mode: int) -> Elements:
    """The definition: lines are brought together by their other coordinates and added up one after the other."""
    rest = [column for m, column in enumerate(indices) if m != mode]
    sizes = [int(column.max()) + 1 for column in rest]
    order = sort_by_coordinate(rest, sizes)
    starts = groups_of(rest, order)
    products = values[order].astype(np.longdouble) * vector[indices[mode][order]]
    return Elements(
        indices=[column[order[starts]] for column in rest],
        sizes=sizes,
        sums=np.add.reduceat(products, starts),
        absolute=np.add.reduceat(np.abs(products), starts),
        lines=np.diff(starts, append=len(order)),
    )


def compare(wanted: Elements, path: Path, precision: str) -> tuple[float, str]:
    """The largest error of a result as a part of its bound, infinite where elements are missing or too many, and where."""
    indices, values, _ = read_lines(path, index_base=1, order_min=1)
    if len(indices) != len(wanted.indices):
        return np.inf, f"order {len(indices)}, not {len(wanted.indices)}"
    if len(values) != len(wanted.sums):
        return np.inf, f"{len(values)} elements, not {len(wanted.sums)}"
    if any(int(column.max()) >= size for column, size in zip(indices, wanted.sizes)):
        return np.inf, "an element where there is none"
    order = sort_by_coordinate(indices, wanted.sizes)
    same = np.logical_and.reduce([column[order] == due for column, due in zip(indices, wanted.indices)])
    if not same.all():
        return np.inf, f"no element at {place(wanted, int(np.argmin(same)))}"
    error = np.abs(values[order] - wanted.sums)
    bound = wanted.absolute * (4 * EPS[precision] + (wanted.lines + 2) * EPS_SUMS)
    ratio = np.divide(error, bound, out=np.where(error == 0, 0.0, np.inf).astype(error.dtype), where=bound > 0)
    worst = int(ratio.argmax())
    return float(ratio[worst]), f"{place(wanted, worst)}, of {wanted.lines[worst]} lines"


def place(wanted: Elements, element: int) -> str:
    """The coordinates of an element, counted from 1."""
    return "(" + ", ".join(str(int(column[element]) + 1) for column in wanted.indices) + ")"


def load_vector(path: Path, indices: np.ndarray, dim: int | None) -> np.ndarray:
    """The vector of a mode, checked against the tensor."""
    vector = np.load(path, allow_pickle=False)
    if vector.ndim != 1 or vector.dtype != np.float64 or not np.isfinite(vector).all():
        raise InputError(f"{path} is no vector of finite f64")
    if len(vector) <= int(indices.max()) or (dim is not None and len(vector) != dim):
        raise InputError(f"{path} has {len(vector)} elements, which does not fit the tensor")
    return vector


def check(options: argparse.Namespace) -> int:
    """Compare every result that is there and print the table."""
    indices, values, dims = read_lines(options.input, options.index_base)
    named = [(directory, precision) for precision in EPS for directory in getattr(options, precision)]
    passed, lines = True, []
    for mode in range(len(indices)):
        results = [(directory / f"mode-{mode + 1}" / "result.tns", precision) for directory, precision in named]
        results = [(path, precision) for path, precision in results if path.exists()]
        if not results:
            continue
        vector = load_vector(options.vectors / f"mode-{mode + 1}.npy", indices[mode], dims and dims[mode])
        wanted = ttv(indices, values, vector, mode)
        for path, precision in results:
            worst, where = compare(wanted, path, precision)
            passed &= worst <= 1
            note = "" if worst <= 1 else "  FAILED"
            lines.append(f"{mode + 1:>4}  {worst:>17.6g}  {path} ({precision}), {where}{note}")
    if not lines:
        raise InputError("no mode-1/result.tns or other result in the directories of --f64 and --f32")
    print(f"{'mode':>4}  {'max error / bound':>17}  result, and where its largest error is", *lines, sep="\n")
    return 0 if passed else 1


def make_vectors(directory: Path, dims: Sequence[int], seed: int) -> None:
    """Write a normally distributed vector for each mode."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for mode, dim in enumerate(dims):
        np.save(directory / f"mode-{mode + 1}.npy", random.standard_normal(dim))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check TTV results against the definition, in long double.")
    parser.add_argument("input", type=Path, nargs="?", help="FROSTT text, plain, .gz or .zst")
    parser.add_argument("--vectors", type=Path, metavar="DIR")
    for precision in EPS:
        parser.add_argument(f"--{precision}", type=Path, nargs="+", default=[], metavar="DIR")
    parser.add_argument("--index-base", type=int, choices=(0, 1), default=1)
    parser.add_argument("--make-vectors", type=Path, metavar="DIR", help="write random vectors instead of checking")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dims", type=lambda text: [int(part) for part in text.split(",")], metavar="A,B,C")
    options = parser.parse_args(arguments)
    try:
        if options.make_vectors:
            if not options.dims:
                parser.error("--make-vectors needs --dims")
            make_vectors(options.make_vectors, options.dims, options.seed)
            return 0
        if not (options.input and options.vectors):
            parser.error("INPUT and --vectors are needed")
        return check(options)
    except (InputError, OSError, ValueError, MemoryError, ImportError) as error:
        print(f"ttv_oracle: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
