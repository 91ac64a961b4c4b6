#!/usr/bin/env python3
"""Check SpTTM, SpTTMc, TTV along several modes, norms and inner products against the definitions: numpy, in long double,
straight from the text file.

It parses FROSTT text itself (frostt_text.py) and knows nothing of stores. Lines that repeat coordinates count each time. For a
line with value v at (i_1, ..., i_d), with U and A_k given, the definitions are

    ttm     Y[(i_1, ..., i_d) without i_m, :] += v * U[i_m, :]           coords.npy, values.npy: ascending, each fiber once
    ttmc    Y[i_m, :] += v * kron over k != m, ascending, of A_k[i_k, :]  mode-M.npy
    ttv     y[(i_1, ..., i_d) without the modes] += v * x_m[i_m] * ...    result.tns
    inner   a number: the sum over coordinates of the products of both sums; norm: the root of the sum of squares

and, beside each, the same over absolute values. With eps the unit roundoff of the precision (2^-53 or 2^-24), eps_l that of this
program's own sums, p the number of factors of a product and n lines, a number may be off by
((2 + 2 p) eps + (n + 2) (2^-53 + eps_l)) * (its sum over absolute values).

    python3 tools/products_oracle.py ttm INPUT --mode M --matrix U.npy --result DIR [--precision f32] [--index-base 0|1]
    python3 tools/products_oracle.py ttmc INPUT --factors DIR --result DIR
    python3 tools/products_oracle.py ttv INPUT --modes 1,3 --vector x.npy --vector z.npy --result FILE.tns
    python3 tools/products_oracle.py inner INPUT OTHER --result NUMBER
    python3 tools/products_oracle.py norm INPUT --result NUMBER
    python3 tools/products_oracle.py make DIR --dims 4,5,6 --ranks 3,2,4 [--seed S]     # mode-1.npy, mode-2.npy, ...

INPUT may end in .gz or .zst. Exit status: 0 all within the bound, 1 not, 2 usage, input or system.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from frostt_text import InputError, groups_of, read_lines, sort_by_coordinate

EPS = {"f64": 2.0**-53, "f32": 2.0**-24}
EPS_SUMS = EPS["f64"] + float(np.finfo(np.longdouble).eps) / 2


class Wrong(Exception):
    """A result is not what the definition gives."""


def hold(found: np.ndarray, sums: np.ndarray, absolute: np.ndarray, lines: np.ndarray, factors: int, eps: float) -> None:
    """All numbers within their bounds."""
    if found.shape != sums.shape:
        raise Wrong(f"shape {found.shape}, not {sums.shape}")
    bound = absolute * ((2 + 2 * factors) * eps + (lines + 2) * EPS_SUMS)
    error = np.abs(found - sums)
    if not (error <= bound).all():
        worst = np.unravel_index(np.argmax(np.where(error <= bound, 0, 1)), error.shape)
        raise Wrong(f"{found[worst]} at {worst}, not {sums[worst]}: off by {error[worst]}, bound {bound[worst]}")


def grouped(rest: list[np.ndarray], products: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates in ascending order with their sums, sums over absolute values and numbers of lines."""
    order = np.lexsort(rest[::-1])
    starts = groups_of(rest, order)
    coordinates = np.stack([column[order[starts]] for column in rest], axis=1)
    products = products[order]
    lines = np.diff(starts, append=len(order))
    return coordinates, np.add.reduceat(products, starts), np.add.reduceat(np.abs(products), starts), lines


def load(path: Path, rows: int) -> np.ndarray:
    matrix = np.load(path, allow_pickle=False)
    if matrix.dtype.kind != "f" or not np.isfinite(matrix).all() or len(matrix) < rows:
        raise InputError(f"{path} does not fit the tensor")
    return matrix.astype(np.longdouble)


def ttm(options: argparse.Namespace) -> None:
    indices, values, _ = read_lines(options.input, options.index_base)
    mode = options.mode - 1
    matrix = load(options.matrix, int(indices[mode].max()) + 1)
    rest = [column for m, column in enumerate(indices) if m != mode]
    found = np.load(options.result / "values.npy")
    coordinates = np.load(options.result / "coords.npy")
    kind = {"f64": "<f8", "f32": "<f4"}[options.precision]
    if (found.dtype.str, coordinates.dtype.str) != (kind, "<u4"):
        raise Wrong(f"types {found.dtype.str} and {coordinates.dtype.str}")
    # A column at a time: long doubles of all would not fit.
    for r in range(matrix.shape[1]):
        wanted, sums, absolute, lines = grouped(rest, values * matrix[indices[mode], r])
        if wanted.shape != coordinates.shape or not (wanted == coordinates).all():
            raise Wrong("other fibers, or in another order")
        hold(found[:, r], sums, absolute, lines, 1, EPS[options.precision])
    if found.shape[1] != matrix.shape[1]:
        raise Wrong(f"rows of {found.shape[1]} numbers")


def ttmc(options: argparse.Namespace) -> None:
    indices, values, _ = read_lines(options.input, options.index_base)
    factors = [load(options.factors / f"mode-{m + 1}.npy", int(c.max()) + 1) for m, c in enumerate(indices)]
    results = [m for m in range(len(indices)) if (options.result / f"mode-{m + 1}.npy").exists()]
    if not results:
        raise InputError(f"no mode-1.npy or other result in {options.result}")
    for mode in results:
        products = values[:, None].astype(np.longdouble)
        for m, factor in enumerate(factors):
            if m != mode:
                products = (products[:, :, None] * factor[indices[m]][:, None, :]).reshape(len(values), -1)
        shape = (len(factors[mode]), products.shape[1])
        sums, absolute = np.zeros(shape, np.longdouble), np.zeros(shape, np.longdouble)
        np.add.at(sums, indices[mode], products)
        np.add.at(absolute, indices[mode], np.abs(products))
        lines = np.bincount(indices[mode], minlength=shape[0])[:, None]
        found = np.load(options.result / f"mode-{mode + 1}.npy")
        hold(found, sums, absolute, lines, len(factors) - 1, EPS[options.precision])


def ttv(options: argparse.Namespace) -> None:
    indices, values, _ = read_lines(options.input, options.index_base)
    modes = [int(m) - 1 for m in options.modes.split(",")]
    products = values.astype(np.longdouble)
    for mode, path in zip(modes, options.vector, strict=True):
        products = products * load(path, int(indices[mode].max()) + 1)[indices[mode]]
    rest = [column for m, column in enumerate(indices) if m not in modes]
    if rest:
        wanted, sums, absolute, lines = grouped(rest, products)
        columns, found, _ = read_lines(options.result, index_base=1, order_min=1)
        if len(found) != len(sums) or not (np.stack(columns, axis=1) == wanted).all():
            raise Wrong("other elements, or in another order")
    else:
        found = np.array([float(options.result.read_text())])
        sums, absolute, lines = products.sum()[None], np.abs(products).sum()[None], np.array([len(values)])
    hold(found, sums, absolute, lines, len(modes), EPS[options.precision])


def summed(path: Path, index_base: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Coordinates, each once, with their sums."""
    indices, values, _ = read_lines(path, index_base)
    order = sort_by_coordinate(indices, [int(column.max()) + 1 for column in indices])
    starts = groups_of(indices, order)
    return [column[order[starts]] for column in indices], np.add.reduceat(values[order].astype(np.longdouble), starts)


def inner(options: argparse.Namespace) -> None:
    first, second = summed(options.input, options.index_base), summed(options.other, options.index_base)
    table = dict(zip(zip(*(column.tolist() for column in second[0])), second[1]))
    zero = np.longdouble(0)
    pairs = [value * table.get(at, zero) for at, value in zip(zip(*(c.tolist() for c in first[0])), first[1])]
    products = np.array(pairs, np.longdouble)
    n = np.array([np.count_nonzero(products)])
    hold(np.array([float(str(options.result))]), products.sum()[None], np.abs(products).sum()[None], n, 1, EPS["f64"])


def norm(options: argparse.Namespace) -> None:
    _, values = summed(options.input, options.index_base)
    wanted = np.sqrt((values * values).sum())[None]
    hold(np.array([float(str(options.result))]), wanted, wanted, np.array([len(values)]), 1, EPS["f64"])


def make(options: argparse.Namespace) -> None:
    options.input.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(options.seed)
    dims, ranks = ([int(n) for n in text.split(",")] for text in (options.dims, options.ranks))
    for mode, shape in enumerate(zip(dims, ranks, strict=True)):
        matrix = random.standard_normal(shape)
        np.save(options.input / f"mode-{mode + 1}.npy", matrix)
        np.save(options.input / f"vector-{mode + 1}.npy", matrix[:, 0].copy())


def main() -> int:
    parser = argparse.ArgumentParser(description="Check products of sparse tensors against the definitions, in long double.")
    operations = {"ttm": ttm, "ttmc": ttmc, "ttv": ttv, "inner": inner, "norm": norm, "make": make}
    parser.add_argument("operation", choices=operations)
    parser.add_argument("input", type=Path, help="FROSTT text, plain, .gz or .zst; of make, a directory")
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--index-base", type=int, choices=(0, 1), default=1)
    parser.add_argument("--precision", choices=EPS, default="f64")
    parser.add_argument("--mode", type=int)
    parser.add_argument("--modes")
    parser.add_argument("--matrix", type=Path)
    parser.add_argument("--factors", type=Path)
    parser.add_argument("--vector", type=Path, action="append", default=[])
    parser.add_argument("--result", type=Path)
    parser.add_argument("--dims")
    parser.add_argument("--ranks")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        operations[options.operation](options)
    except Wrong as wrong:
        print(f"{options.operation}: {wrong}")
        return 1
    except (InputError, OSError, ValueError) as error:
        print(f"products_oracle.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
