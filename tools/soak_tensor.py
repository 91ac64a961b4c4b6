"""Tensors for tools/soak.py: random ones, their text, and what the programs should make of them.

Standard library alone, so that it runs wherever the programs do. It knows nothing of stores.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random

EPS = {"f64": 2.0**-53, "f32": 2.0**-24}
ELEMENTS_MAX = 1 << 16  # rows of all factors of a tensor that operations run on

VALUES = {
    "ones": lambda rng: 1.0,
    "integers": lambda rng: float(rng.randint(-8, 8)),
    "wide integers": lambda rng: float(rng.choice((-1, 1)) * (2**53 - rng.randrange(10**6))),
    "single": lambda rng: rng.randrange(-(1 << 22), 1 << 22) / (1 << 22),
    "double": lambda rng: rng.uniform(-1, 1),
    "few": lambda rng: rng.choice((0.1, -0.3, 1 / 3, -0.0, 1e-9)),
    "extreme": lambda rng: math.ldexp(rng.uniform(0.5, 1), rng.randint(-900, 900)),
}
EXACT = ("ones", "integers")  # sums of these are exact in any order


def bits(value: float) -> int:
    """Tells -0.0 from 0.0."""
    return struct.unpack("<Q", struct.pack("<d", value))[0]


@dataclass
class Tensor:
    """Rows count from 0; several may have the same coordinates."""

    dims: list[int]
    rows: list[tuple[int, ...]]
    values: list[float]
    kind: str
    declared: bool

    @property
    def order(self) -> int:
        return len(self.dims)

    @property
    def repeats(self) -> bool:
        return len(set(self.rows)) < len(self.rows)

    @property
    def is_dense_enough(self) -> bool:
        """Whether factors of its dims are small."""
        return sum(self.dims) <= ELEMENTS_MAX and self.kind != "extreme"

    def nonzeros(self, duplicates: str) -> Counter:
        """Coordinates and the values' bits, as a store holds them."""
        if duplicates == "keep" or not self.repeats:
            return Counter(zip(self.rows, map(bits, self.values)))
        sums: dict[tuple[int, ...], float] = {}
        for row, value in zip(self.rows, self.values):
            sums[row] = sums[row] + value if row in sums else value
        return Counter((row, bits(value)) for row, value in sums.items())


def random_tensor(rng: Random) -> Tensor:
    """Of order 2 to 8, with 1 to some thousand nonzeros, a few of which may repeat."""
    order = rng.randint(2, 8)
    nnz = int(math.exp(rng.uniform(0, math.log(6000))))
    huge = rng.random() < 0.25
    dims, left = [], 120
    for modes_left in range(order, 0, -1):
        most = min(32 if huge else 12, left - 4 * (modes_left - 1))
        bits_of = rng.randint(1, max(1, most))
        left -= bits_of
        dims.append(min(rng.randint(1, 1 << bits_of), (1 << 32) - 1))
    skew = rng.choice((1, 1, 2, 4))
    kind = rng.choice(list(VALUES))
    rows = [tuple(int(dim * rng.random() ** skew) for dim in dims) for _ in range(nnz)]
    if kind not in EXACT:
        rows = list(dict.fromkeys(rows))
    declared = rng.random() < 0.5
    if not declared:
        dims = [max(row[mode] for row in rows) + 1 for mode in range(order)]
    return Tensor(dims, rows, [VALUES[kind](rng) for _ in rows], kind, declared)


def write_text(tensor: Tensor, path: Path, rng: Random, plain: bool = False) -> list[str]:
    """Writes FROSTT text in one of its forms and gives the options that reading it takes."""
    base = 1 if plain else rng.choice((1, 1, 0))
    end = "\n" if plain else rng.choice(("\n", "\n", "\r\n"))
    gap = " " if plain else rng.choice((" ", "\t", "  "))
    lines = [gap.join([*(str(i + base) for i in row), repr(value)]) for row, value in zip(tensor.rows, tensor.values)]
    if not plain and rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines) + 1), "# a comment")
    data = (end.join(lines) + end).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    options = ["--index-base", "0"] if base == 0 else []
    return options + (["--dims", ",".join(map(str, tensor.dims))] if tensor.declared else [])


def read_text(text: str) -> Counter:
    """Coordinates, from 0, and the values' bits."""
    found = Counter()
    for line in text.splitlines():
        *row, value = line.split()
        found[tuple(int(i) - 1 for i in row), bits(float(value))] += 1
    return found


def read_npy(data: bytes) -> tuple[tuple[int, ...], list]:
    """Shape and numbers of a NumPy file of version 1."""
    (length,) = struct.unpack_from("<H", data, 8)
    header = eval(data[10 : 10 + length], {"__builtins__": {}})  # a literal, by the format
    assert not header["fortran_order"]
    code = {"<f8": "d", "<f4": "f", "<u4": "I", "<u8": "Q"}[header["descr"]]
    count = math.prod(header["shape"])
    return header["shape"], list(struct.unpack_from(f"<{count}{code}", data, 10 + length))


def write_npy(path: Path, shape: tuple[int, ...], numbers: list[float]) -> None:
    header = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(numbers)}d", *numbers))


def read_npz(path: Path) -> tuple[Counter, list[int]]:
    """The nonzeros and dims of an exported archive."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        arrays = {name: read_npy(archive.read(name)) for name in archive.namelist()}
    (nnz, order), indices = arrays["indices.npy"]
    _, values = arrays["values.npy"]
    rows = (tuple(indices[i * order : (i + 1) * order]) for i in range(nnz))
    return Counter(zip(rows, map(bits, values))), arrays["dims.npy"][1]


def random_factors(tensor: Tensor, rank: int, rng: Random, directory: Path) -> list[list[float]]:
    """Writes a factor for each mode, of numbers that f32 holds."""
    directory.mkdir()
    factors = [[VALUES["single"](rng) for _ in range(dim * rank)] for dim in tensor.dims]
    for mode, factor in enumerate(factors):
        write_npy(directory / f"mode-{mode + 1}.npy", (tensor.dims[mode], rank), factor)
    return factors


def mttkrp_problem(tensor: Tensor, factors: list[list[float]], rank: int, mode: int, result: bytes, precision: str) -> str | None:
    """What is wrong with a mode's result. The bound is that of tools/blco_oracle.py, and this loop's own roundoff."""
    shape, numbers = read_npy(result)
    if shape != (tensor.dims[mode], rank):
        return f"mode {mode + 1}: shape {shape}"
    terms: dict[int, list[list[float]]] = defaultdict(lambda: [[] for _ in range(rank)])
    for row, value in zip(tensor.rows, tensor.values):
        for r in range(rank):
            product = value
            for k, index in enumerate(row):
                if k != mode:
                    product *= factors[k][index * rank + r]
            terms[row[mode]][r].append(product)
    for index in range(tensor.dims[mode]):
        for r in range(rank):
            column = terms[index][r] if index in terms else []
            chain = len(column) if precision == "f64" else 1 + len(column) * 2.0**-29
            eps = EPS[precision] * (tensor.order + 2 + chain) + EPS["f64"] * (tensor.order + 2)
            found = numbers[index * rank + r]
            if not abs(found - math.fsum(column)) <= eps * math.fsum(map(abs, column)):
                return f"mode {mode + 1}, row {index + 1}, column {r + 1}: {found}, not {math.fsum(column)}"
    return None


def ttv_problem(tensor: Tensor, vector: list[float], mode: int, result: str) -> str | None:
    """What is wrong with TTV's result in f64. The bound is that of tools/ttv_oracle.py."""
    terms = defaultdict(list)
    for row, value in zip(tensor.rows, tensor.values):
        terms[row[:mode] + row[mode + 1 :]].append(value * vector[row[mode]])
    found = {}
    for line in result.splitlines():
        *row, value = line.split()
        found[tuple(int(i) - 1 for i in row)] = float(value)
    if found.keys() != terms.keys() or len(found) != len(result.splitlines()):
        return f"{len(result.splitlines())} elements, {len(terms)} expected, or other coordinates"
    for row, products in terms.items():
        bound = (len(products) + 8) * EPS["f64"] * math.fsum(map(abs, products))
        if not abs(found[row] - math.fsum(products)) <= bound:
            return f"element {row}: {found[row]}, not {math.fsum(products)}"
    return None
