"""FROSTT text for the oracles: numpy, without a line of the engine's.

One nonzero to a line: indices, then the value, separated by blanks; `#` begins a comment. Files may end in .gz or .zst.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

TEXT_BLOCK = 1 << 24


class InputError(Exception):
    """The input, or what is held against it, cannot be used."""


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a text file, unpacked by the ending of its name."""
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as file:
            yield file
    elif path.suffix == ".zst" and shutil.which("zstd"):
        with subprocess.Popen(["zstd", "-dcq", "--", str(path)], stdout=subprocess.PIPE) as process:
            yield process.stdout
            if process.wait() != 0:
                raise InputError(f"zstd could not unpack {path}")
    elif path.suffix == ".zst":
        import zstandard

        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as text:
            yield text
    else:
        with path.open("rb") as file:
            yield file


def blocks_of_lines(file: BinaryIO) -> Iterator[bytes]:
    """The text in blocks of whole lines, without comments, blank lines and carriage returns."""
    rest = b""
    while data := file.read(TEXT_BLOCK):
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            rest += data
            continue
        yield tidy(rest + head + newline)
        rest = tail
    if rest:
        yield tidy(rest + b"\n")


def tidy(text: bytes) -> bytes:
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)
    if b"\r" in text:
        text = text.replace(b"\r", b"")
    text = re.sub(rb"\n[ \t]*(?=\n)", b"", b"\n" + text)
    return text[1:] if text != b"\n" else b""


def take_header(lines: list[bytes]) -> tuple[int, list[int] | None]:
    """How many lines at the start are header, and the dims that they tell: `sptensor`, order and dims, or none."""
    words = [line.split() for line in lines]
    if words and words[0] and words[0][0].lower() == b"sptensor":
        if len(words) < 4 or len(words[1]) != 1 or len(words[2]) != int(words[1][0]) or len(words[3]) != 1:
            raise InputError("a damaged sptensor header")
        return 4, [int(w) for w in words[2]]
    if len(words) >= 2 and len(words[0]) == 1 and len(words[1]) == int(words[0][0]):
        return 2, [int(w) for w in words[1]]
    return 0, None


def numbers_of(text: bytes, fields: int) -> np.ndarray:
    """The block's numbers, one line to a row."""
    lines = text.count(b"\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            flat = np.fromstring(text.decode("ascii"), dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError) as error:
            raise InputError(f"a line that is not made of numbers: {error}") from error
    if len(flat) != lines * fields:
        raise InputError(f"{lines} lines of {fields} fields each were expected, {len(flat)} numbers found")
    return flat.reshape(lines, fields)


def read_lines(path: Path, index_base: int, order_min: int = 2) -> tuple[list[np.ndarray], np.ndarray, list[int] | None]:
    """The columns of indices, counted from 0, the values, and the dims of a header; a line of text to a row."""
    parts: list[list[np.ndarray]] = []
    dims, fields, begun = None, 0, False
    with open_text(path) as file:
        for text in blocks_of_lines(file):
            if text and not begun:
                begun = True
                skip, dims = take_header(text.split(b"\n", 4)[:4])
                text = text.split(b"\n", skip)[skip] if skip else text
            if text:
                fields = fields or len(text.split(b"\n", 1)[0].split())
                parts.append(columns_of(numbers_of(text, fields), index_base))
    if not parts:
        raise InputError(f"{path} has no nonzeros")
    if fields <= order_min:
        raise InputError(f"lines of {fields} fields: at least {order_min + 1} are needed, the last one the value")
    if dims is not None and len(dims) != fields - 1:
        raise InputError(f"the header tells {len(dims)} modes, the lines have {fields - 1}")
    *indices, values = (np.concatenate(c) for c in zip(*parts))
    if dims is not None and any(int(column.max()) >= dim for column, dim in zip(indices, dims)):
        raise InputError("an index is larger than the header's dim")
    return indices, values, dims


def columns_of(rows: np.ndarray, index_base: int) -> list[np.ndarray]:
    """The columns of a block of lines: u32 indices from 0, and the values."""
    indices = rows[:, :-1] - index_base
    if not ((indices >= 0) & (indices < 2**32 - 1) & (np.trunc(indices) == indices)).all():
        raise InputError("an index is no whole number or outside its range (see --index-base)")
    if not np.isfinite(rows[:, -1]).all():
        raise InputError("a value is not finite")
    return [*indices.astype(np.uint32).T.copy(), rows[:, -1].copy()]


def sort_by_coordinate(indices: list[np.ndarray], sizes: list[int]) -> np.ndarray:
    """A stable order that brings equal coordinates together."""
    keys: list[np.ndarray] = []
    room = 0
    for column, size in zip(indices, sizes):
        if size > room:
            keys.append(np.zeros(len(column), np.uint64))
            room = 2**64
        keys[-1] *= np.uint64(min(size, 2**64 - 1))
        keys[-1] += column
        room //= size
    return np.argsort(keys[0], kind="stable") if len(keys) == 1 else np.lexsort(keys)


def groups_of(indices: list[np.ndarray], order: np.ndarray) -> np.ndarray:
    """Where, in that order, coordinates differ from those before: the first place of each group of equal ones."""
    differs = np.zeros(len(order), bool)
    differs[0] = True
    for column in indices:
        differs[1:] |= column[order[1:]] != column[order[:-1]]
    return np.flatnonzero(differs)
