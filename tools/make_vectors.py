#!/usr/bin/env python3
"""Write `formats-spec/vectors/`: small stores, valid and invalid, from `formats-spec/` alone.

The writer here shares no code with the packer or the second reader, so that a number that one of them has wrong is
seen: it packs numbers with Python's long integers, one lane after the other, and is slow.

    python3 tools/make_vectors.py                    # writes formats-spec/vectors
    python3 tools/make_vectors.py --check            # exit status 1 if the files there differ from what it would write
    python3 tools/make_vectors.py --programs DIR     # runs the blco-* programs in DIR on the vectors
    python3 tools/make_vectors.py --extra --output D # more vectors than are kept in the repository

An invalid store has one fault. Everything else is sealed again (checksums, the store id) unless the fault is the
seal itself, so that a reader meets exactly the rule in question.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

# container.md
PREAMBLE_BYTES, CHUNK_BYTES, PARTITION_BYTES, STATISTICS_BYTES = 64, 144, 64, 328
TENSOR_BYTES, MODE_BYTES = 56, 16
HEADER_BYTES, ENTRY_BYTES, SECTION_ALIGN, FILE_ALIGN = 128, 16, 128, 4096
BLCO, HOCFS, CSF, B_CSF, HB_CSF, MM_CSF, F_COO = range(1, 8)
SHAPE, BLOCKS, INDEX, TILES, COLUMNS, VALUES, LEVELS, SEGMENTS, COORDINATES = range(1, 10)
ROW_BUCKETS = 1 << 16
GROUP, GROUP_STEP, GROUP_SIZES = 1 << 16, 8, 8
CRITICAL = ("chunks", "parameters", "part", "partitions", "storage", "tensor")
# encodings.md
TILE = 512
RAW, TILED, TREE, SEGMENTED, LISTED = 1, 2, 3, 4, 5
INTEGER, F32, F64, DICTIONARY, DECIMAL = 1, 2, 3, 4, 5
MAX_INTEGER = 1 << 53
MAX_DICTIONARY = 1 << 16
MAX_DECIMAL, EXPONENTS, MAX_EXCEPTIONS = 1 << 50, 11, 64
# hocfs.md
CSR, ELL, AUTO = 1, 2, 3
LEAF_RULES = {CSR: "csr", ELL: "ell", AUTO: "auto"}

VECTORS = Path(__file__).resolve().parent.parent / "formats-spec" / "vectors"
MANIFEST = "manifest"
FROZEN = "version-1"
PROGRAM_SECONDS = 60

Nonzero = tuple[tuple[int, ...], float]
Item = TypeVar("Item")


# ---------------------------------------------------------------------------------------------------------------
# Arithmetic
# ---------------------------------------------------------------------------------------------------------------


def width(number: int) -> int:
    """The number of bits that a number needs."""
    bits = 0
    while number >> bits:
        bits += 1
    return bits


def round_up(number: int, unit: int) -> int:
    return (number + unit - 1) // unit * unit


def format_value(value: float) -> str:
    """The shortest text that reads back as the same f64; integers without a point."""
    return str(int(value)) if is_integer(value) else repr(value)


U64 = (1 << 64) - 1
PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
PRIME64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def words(data: bytes, at: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}Q", data, at)


def folded(pairs: Iterable[tuple[int, int]]) -> int:
    """The sum of the products of 64-bit numbers, the halves of each exclusively ored."""
    return sum(product & U64 ^ product >> 64 for product in (left * right for left, right in pairs))


def rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & U64


def avalanche(number: int) -> int:
    number &= U64
    number = (number ^ number >> 37) * 0x165667919E3779F9 & U64
    return number ^ number >> 32


def xxh3_64(data: bytes) -> int:
    """XXH3-64 with seed 0 of no bytes or of more than 3: nothing here has other lengths."""
    size = len(data)
    if not size:
        return 0x2D06800538D394C2
    assert size > 3
    if size <= 8:
        begin, end = int.from_bytes(data[:4], "little"), int.from_bytes(data[-4:], "little")
        keys = words(SECRET, 8, 2)
        number = (end + (begin << 32)) ^ keys[0] ^ keys[1]
        number ^= rotated(number, 49) ^ rotated(number, 24)
        number = number * 0x9FB21C651E98DF25 & U64
        number = (number ^ (number >> 35) + size) * 0x9FB21C651E98DF25 & U64
        return number ^ number >> 28
    if size <= 16:
        (begin,), (end,) = words(data, 0, 1), words(data, size - 8, 1)
        keys = words(SECRET, 24, 4)
        low, high = begin ^ keys[0] ^ keys[1], end ^ keys[2] ^ keys[3]
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return avalanche(size + swapped + high + folded([(low, high)]))

    def mixed(at: int, secret_at: int) -> int:
        (low, high), (key_low, key_high) = words(data, at, 2), words(SECRET, secret_at, 2)
        return folded([(low ^ key_low, high ^ key_high)])

    if size <= 240:
        if size <= 128:
            pairs = (size - 1) // 32 + 1
            ends = sum(mixed(16 * i, 32 * i) + mixed(size - 16 * (i + 1), 32 * i + 16) for i in range(pairs))
            return avalanche(size * PRIME64[0] + ends)
        first = avalanche(size * PRIME64[0] + sum(mixed(16 * i, 16 * i) for i in range(8)))
        rest = sum(mixed(16 * i, 16 * i - 125) for i in range(8, size // 16))
        return avalanche(first + rest + mixed(size - 16, 119))
    sums = [PRIME32[2], *PRIME64[:4], PRIME32[1], PRIME64[4], PRIME32[0]]

    def add(at: int, secret_at: int) -> None:
        for lane, (word, key) in enumerate(zip(words(data, at, 8), words(SECRET, secret_at, 8))):
            keyed = word ^ key
            sums[lane ^ 1] += word
            sums[lane] += (keyed & 0xFFFFFFFF) * (keyed >> 32)

    # Sixteen stripes of 64 bytes are a block. The last 64 bytes are a stripe of their own, with another key.
    for number, at in enumerate(range(0, size - 64, 64)):
        add(at, number % 16 * 8)
        if number % 16 == 15:
            for lane, key in enumerate(words(SECRET, 128, 8)):
                whole = sums[lane] & U64
                sums[lane] = (whole ^ whole >> 47 ^ key) * PRIME32[0] & U64
    add(size - 64, 121)
    keyed = [word & U64 ^ key for word, key in zip(sums, words(SECRET, 11, 8))]
    return avalanche(size * PRIME64[0] + folded(zip(keyed[::2], keyed[1::2])))


# ---------------------------------------------------------------------------------------------------------------
# Order and statistics
# ---------------------------------------------------------------------------------------------------------------


def bits_of(value: float) -> int:
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits


def total_order(value: float) -> int:
    """A number that compares as IEEE 754's totalOrder does."""
    bits = bits_of(value)
    return (1 << 63) - 1 - (bits & ((1 << 63) - 1)) if bits >> 63 else bits + (1 << 63)


def is_integer(value: float) -> bool:
    return abs(value) <= MAX_INTEGER and value.is_integer() and bits_of(value) != 1 << 63


def is_f32(value: float) -> bool:
    try:
        return bits_of(struct.unpack("<f", struct.pack("<f", value))[0]) == bits_of(value)
    except OverflowError:
        return False


@functools.cache
def decimals(bits: int) -> tuple[int | None, ...]:
    """For each exponent the integer that stands for the value with these bits, where the value is decimal there."""
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    out: list[int | None] = []
    for e in range(EXPONENTS):
        scaled = value * 10.0**e
        # The product is off by less than a quarter where it is in range, so no other integer comes into question.
        number = round(scaled) if abs(scaled) <= 2 * MAX_DECIMAL else MAX_DECIMAL + 1
        exact = abs(number) <= MAX_DECIMAL and bits_of(number / 10**e) == bits
        out.append(number if exact else None)
    return tuple(out)


def bit_modes(dims: Sequence[int]) -> list[int]:
    """For each bit of the linear index the mode that it belongs to."""
    left = {mode: width(dim - 1) for mode, dim in enumerate(dims)}
    out = []
    while any(left.values()):
        for mode in sorted(left, key=lambda m: (dims[m], m)):
            if left[mode]:
                left[mode] -= 1
                out.append(mode)
    return out


def linear_index(coordinates: Sequence[int], modes: Sequence[int]) -> int:
    used, linear = [0] * len(coordinates), 0
    for position, mode in enumerate(modes):
        linear |= (coordinates[mode] >> used[mode] & 1) << position
        used[mode] += 1
    return linear


def re_encode(coordinates: Sequence[int], modes: Sequence[int]) -> int:
    """The index inside the BLCO block: each mode's bits below position 64, contiguous, mode 0 lowest."""
    out = shift = 0
    for mode, coordinate in enumerate(coordinates):
        kept = sum(m == mode for m in modes[:64])
        out |= (coordinate & ((1 << kept) - 1)) << shift
        shift += kept
    return out


def sum_of_squares(partitions: Sequence[Sequence[float]]) -> float:
    """Of the values of some partitions, one after the other."""
    total = lost = 0.0
    for values in partitions:
        for first in range(0, len(values), TILE):
            x = 0.0
            for value in values[first : first + TILE]:
                x += value * value
            new = total + x
            lost += (total - new) + x if abs(total) >= abs(x) else (x - new) + total
            total = new
    return total + lost if math.isfinite(total) else math.inf


def longest_row_bound(indices: Iterable[int]) -> int:
    return max(Counter(index % ROW_BUCKETS for index in indices).values())


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & U64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & U64
    return z ^ z >> 31


GAMMA = 0x9E3779B97F4A7C15
KEYS_OF_HASH = [mix((j + 1) * GAMMA & U64) | 1 for j in range(9)]


def hash_of_nonzeros(nonzeros: Iterable[Nonzero]) -> int:
    total = 0
    for coordinates, value in nonzeros:
        z = GAMMA + sum(i * key for i, key in zip(coordinates, KEYS_OF_HASH)) + bits_of(value) * KEYS_OF_HASH[8]
        total += mix(z & U64)
    return total & U64


# ---------------------------------------------------------------------------------------------------------------
# Encodings
# ---------------------------------------------------------------------------------------------------------------


def pack(numbers: Sequence[int], bits: int) -> bytes:
    """512 numbers of some bits each as a packed column."""
    word = 4 if bits <= 32 else 8
    lanes = 64 // word
    streams = []
    for lane in range(lanes):
        stream = 0
        for position, number in enumerate(numbers[lane::lanes]):
            stream |= number << (position * bits)
        streams.append(stream.to_bytes(word * bits, "little"))
    return b"".join(streams[lane][word * k : word * (k + 1)] for k in range(bits) for lane in range(lanes))


def zstd_frame(data: bytes) -> bytes:
    """A zstd frame of raw and run-length blocks: the same bytes whichever zstd library is installed."""
    step = 64
    blocks: list[tuple[int, bytes]] = []
    for first in range(0, len(data), step):
        piece = data[first : first + step]
        if len(set(piece)) == 1:
            if blocks and blocks[-1][0] == 1 and blocks[-1][1][:1] == piece[:1]:
                blocks[-1] = (1, blocks[-1][1] + piece)
            else:
                blocks.append((1, piece))
        elif blocks and blocks[-1][0] == 0:
            blocks[-1] = (0, blocks[-1][1] + piece)
        else:
            blocks.append((0, piece))
    blocks = blocks or [(0, b"")]
    out = [b"\x28\xb5\x2f\xfd", bytes([0b10100000]), struct.pack("<I", len(data))]
    for number, (kind, content) in enumerate(blocks):
        last = number == len(blocks) - 1
        out.append((len(content) << 3 | kind << 1 | last).to_bytes(3, "little"))
        out.append(content[:1] if kind else content)
    return b"".join(out)

@dataclass(frozen=True)
class Options:
    """What a store is packed with."""

    layout: int = TILED
    main_mode: int = 0
    leaf: int = CSR
    zstd: int = 0
    duplicates: bool = False
    chunk_bytes: int = 65536


@dataclass(frozen=True)
class Kind:
    """What the manifest says of a partition besides its nonzeros."""

    form: int = BLCO
    layout: int = TILED
    order: tuple[int, ...] = ()  # of modes; none: interleaved
    parameters: bytes = b""
    targets: int | None = None  # none: all modes
    covers: int = 1
    cuts: tuple[int, ...] | None = None  # the first nonzero of each chunk, where no page says how to cut


# A value encoding and, of decimals, the exponent.
Choice = tuple[int, int]


class Twist:
    """Where a fault can be put in while a store is written; this one puts none."""

    sort = True

    def value_encoding(self, due: Choice) -> Choice:
        """The value encoding of a chunk."""
        return due

    def widths(self, tile: int, widths: list[int]) -> list[int]:
        """The widths of a tile's columns, the value column last."""
        return widths

    def numbers(self, tile: int, column: int, numbers: list[int]) -> list[int]:
        """The 512 numbers of a column."""
        return numbers

    def boundaries(self, boundaries: list[int]) -> list[int]:
        """The first nonzero of each chunk."""
        return boundaries

    def stride(self, begins: list[int], stride: int) -> int:
        """The stride of a tile of an inner level whose children begin there."""
        return stride

    def base(self, begins: list[int]) -> int:
        """The base of a tile of an inner level whose children begin there."""
        return begins[0]

    def divides(self, level: int, nonzero: int) -> bool:
        """Whether a node of a level ends before a nonzero of its own."""
        return False

    def decimal(self, value: float) -> bool:
        """Whether a value may be stored as a decimal where it is one."""
        return True

    def sections(self, sections: dict[int, bytes]) -> dict[int, bytes]:
        """The sections of a chunk."""
        return sections


# ---------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class ValueFacts:
    """What the value encodings take for a tile."""

    count: int
    f32: bool
    integer: int | None  # width
    decimal: list[tuple[int, int] | None]  # for each exponent exceptions and width


def value_facts(values: Sequence[float]) -> ValueFacts:
    span = int(max(values)) - int(min(values)) if all(map(is_integer, values)) else None
    by_exponent: list[tuple[int, int] | None] = []
    for numbers in zip(*(decimals(bits_of(v)) for v in values)):
        there = [n for n in numbers if n is not None]
        exceptions = len(values) - len(there)
        spread = width(max(there) - min(there)) if there else 0
        by_exponent.append((exceptions, spread) if exceptions <= MAX_EXCEPTIONS else None)
    return ValueFacts(len(values), all(map(is_f32, values)), None if span is None else width(span), by_exponent)


def tail_bytes(units: int, values: int) -> int:
    """What COLUMNS, in units of 64 bytes, and VALUES take."""
    return round_up(64 * units, SECTION_ALIGN) + round_up(values, SECTION_ALIGN)


def choices(tiles: Sequence[ValueFacts], units: int) -> list[tuple[int, int, Choice]]:
    """(bytes of COLUMNS and VALUES, rank, choice) without the dictionary; `units` are those of the index columns."""
    count = sum(t.count for t in tiles)
    out = [(tail_bytes(units, 8 * count), 4 + EXPONENTS, (F64, 0))]
    if all(t.f32 for t in tiles):
        out.append((tail_bytes(units, 4 * count), 2, (F32, 0)))
    integers = [t.integer for t in tiles if t.integer is not None]
    if len(integers) == len(tiles):
        out.append((tail_bytes(units + sum(integers), 0), 0, (INTEGER, 0)))
    for e in range(EXPONENTS):
        of_tiles = [d for d in (t.decimal[e] for t in tiles) if d is not None]
        if len(of_tiles) == len(tiles):
            exceptions, spread = (sum(x) for x in zip(*of_tiles))
            out.append((tail_bytes(units + spread, 8 + 12 * exceptions), 3 + e, (DECIMAL, e)))
    return out


def distinct_values(values: Iterable[float]) -> list[float]:
    return sorted({bits_of(v): v for v in values}.values(), key=total_order)


def best_choice(tiles: Sequence[Sequence[float]], units: int) -> Choice:
    """The value encoding that is due where the tiles' index columns take some units."""
    possible = choices([value_facts(t) for t in tiles], units)
    entries = len(distinct_values(v for t in tiles for v in t))
    if entries <= MAX_DICTIONARY:
        possible.append((tail_bytes(units + len(tiles) * width(entries - 1), 8 * entries), 1, (DICTIONARY, 0)))
    return min(possible)[2]


# Base, width and numbers of a tile's value column.
ValueColumn = tuple[int, int, list[int]]


def encode_values(
    tiles: Sequence[Sequence[float]], choice: Choice, twist: Twist
) -> tuple[list[ValueColumn], dict[int, bytes]]:
    """The value columns of some tiles and the VALUES section, if there is one."""
    encoding, e = choice
    values = [v for t in tiles for v in t]
    if encoding in (F32, F64):
        columns = [(0, 0, [0] * len(t)) for t in tiles]
        return columns, {VALUES: struct.pack(f"<{len(values)}{'f' if encoding == F32 else 'd'}", *values)}
    if encoding == DICTIONARY:
        entries = distinct_values(values)
        number_of = {bits_of(v): number for number, v in enumerate(entries)}
        columns = [(0, width(len(entries) - 1), [number_of[bits_of(v)] for v in t]) for t in tiles]
        return columns, {VALUES: struct.pack(f"<{len(entries)}d", *entries)}
    columns, exceptions, place = [], [], 0
    for tile in tiles:
        integers: list[int | None] = []
        for value in tile:
            number = int(value) if encoding == INTEGER else decimals(bits_of(value))[e]
            integers.append(number if encoding == INTEGER or twist.decimal(value) else None)
            if integers[-1] is None:
                exceptions.append((value, place))
            place += 1
        there = [i for i in integers if i is not None]
        base, top = min(there, default=0), max(there, default=0)
        columns.append((base, width(top - base), [0 if i is None else i - base for i in integers]))
    if encoding == INTEGER:
        return columns, {}
    count = len(exceptions)
    stored, places = [v for v, _ in exceptions], [p for _, p in exceptions]
    return columns, {VALUES: struct.pack(f"<II{count}d{count}I", e, count, *stored, *places)}


# ---------------------------------------------------------------------------------------------------------------
# Partitions
# ---------------------------------------------------------------------------------------------------------------


def tiles_of(items: Sequence[Item]) -> list[Sequence[Item]]:
    return [items[at : at + TILE] for at in range(0, len(items), TILE)]


@dataclass
class Ranges:
    """The smallest and largest index of some modes in a tile."""

    low: list[int]
    high: list[int]

    @property
    def widths(self) -> list[int]:
        return [width(high - low) for low, high in zip(self.low, self.high)]

    @property
    def fields(self) -> bytes:
        return b"".join(struct.pack("<II", low, high) for low, high in zip(self.low, self.high))


def ranges_of(indices: Sequence[Sequence[int]]) -> Ranges:
    by_mode = list(zip(*indices))
    return Ranges([min(i) for i in by_mode], [max(i) for i in by_mode])


class Partition:
    """A partition of layout `raw` or `tiled`, and what partitions of all layouts have in common."""

    def __init__(
        self, dims: Sequence[int], nonzeros: Sequence[Nonzero], kind: Kind, options: Options, twist: Twist
    ) -> None:
        self.dims, self.kind, self.options, self.twist = tuple(dims), kind, options, twist
        side_by_side = [mode for mode in reversed(kind.order) for _ in range(width(dims[mode] - 1))]
        self.modes = side_by_side if kind.order else bit_modes(dims)
        self.nonzeros = list(nonzeros)
        if twist.sort:
            self.nonzeros.sort(key=lambda n: (self.linear(n), total_order(n[1])))

    def linear(self, nonzero: Nonzero) -> int:
        return linear_index(nonzero[0], self.modes)

    # What the manifest says.

    def entry(self, chunks: int, parameters_at: int) -> bytes:
        kind = self.kind
        targets = (1 << len(self.dims)) - 1 if kind.targets is None else kind.targets
        return struct.pack(
            "<4I3Q8s2Q", kind.form, kind.layout, targets, kind.covers, chunks, len(self.nonzeros),
            hash_of_nonzeros(self.nonzeros), bytes(kind.order).ljust(8, b"\xff"), parameters_at, len(kind.parameters),
        )

    def nodes(self) -> list[int]:
        """Of trees: the nodes of each level of the partition as one tree."""
        return []

    def fiber_lengths(self) -> list[int]:
        """Of trees: the nonzeros of each fiber of the partition as one tree."""
        return []

    def statistics(self) -> bytes:
        step = GROUP * GROUP_STEP
        groups = [self.nonzeros[at : at + GROUP] for at in range(0, len(self.nonzeros), step)]
        lengths = Counter(width(length) - 1 for length in self.fiber_lengths())
        nodes = self.nodes() + [0] * (8 - len(self.nodes()))
        out = struct.pack("<41Q", sum(map(len, groups)), *nodes, *(lengths[k] for k in range(32)))
        for mode in range(len(self.dims)):
            for k in range(GROUP_SIZES):
                size = TILE << k
                parts = [g[at : at + size] for g in groups for at in range(0, len(g), size)]
                out += struct.pack("<Q", sum(len({c[mode] for c, _ in part}) for part in parts))
        return out

    # Chunks.

    def bounds(self) -> list[int]:
        """The first nonzero of each chunk, and behind the last one's how many there are."""
        cuts = self.cut() if self.kind.cuts is None else list(self.kind.cuts)
        return self.twist.boundaries(cuts) + [len(self.nonzeros)]

    def cut(self) -> list[int]:
        """The first nonzero of each chunk, by the cutting rule."""
        tiles = tiles_of(self.nonzeros)
        ranges = [ranges_of([c for c, _ in tile]) for tile in tiles]
        facts = [value_facts([v for _, v in tile]) for tile in tiles]
        out, n = [0], len(self.nonzeros)
        for tile in range(1, len(tiles)):
            first, end = out[-1] // TILE, tile + 1
            nnz = min(n, TILE * end) - out[-1]
            image = self.image_bytes(self.nonzeros[out[-1] : TILE * end], ranges[first:end], facts[first:end])
            if nnz > self.options.chunk_bytes // 4 // TILE * TILE or image > self.options.chunk_bytes:
                out.append(TILE * tile)
        return out

    def image_bytes(self, part: Sequence[Nonzero], ranges: Sequence[Ranges], facts: Sequence[ValueFacts]) -> int:
        """What the cutting rule counts for a chunk of some tiles."""
        head = header_bytes(4) + round_up(4 * len(self.dims), SECTION_ALIGN)
        if self.kind.layout == RAW:
            blocks = len({self.linear(n) >> 64 for n in part})
            return head + round_up(16 * blocks, SECTION_ALIGN) + 2 * round_up(8 * len(part), SECTION_ALIGN)
        table = round_up(len(ranges) * (16 + 8 * len(self.dims)), SECTION_ALIGN)
        return head + table + min(choices(facts, sum(sum(r.widths) for r in ranges)))[0]

    def sections(self, first: int, end: int) -> tuple[int, dict[int, bytes]]:
        """Value encoding and sections of the chunk of some nonzeros, but for SHAPE."""
        part = self.nonzeros[first:end]
        return self.raw_sections(part) if self.kind.layout == RAW else self.tiled_sections(part)

    def raw_sections(self, part: Sequence[Nonzero]) -> tuple[int, dict[int, bytes]]:
        blocks, previous = [], None
        for number, nonzero in enumerate(part):
            key = self.linear(nonzero) >> 64
            if key != previous:
                blocks.append(struct.pack("<QII", key, number, 0))
            previous = key
        index = [re_encode(c, self.modes) for c, _ in part]
        return F64, {
            BLOCKS: b"".join(blocks),
            INDEX: struct.pack(f"<{len(part)}Q", *index),
            VALUES: struct.pack(f"<{len(part)}d", *(v for _, v in part)),
        }

    def tiled_sections(self, part: Sequence[Nonzero]) -> tuple[int, dict[int, bytes]]:
        tiles = tiles_of(part)
        ranges = [ranges_of([c for c, _ in tile]) for tile in tiles]
        values = [[v for _, v in tile] for tile in tiles]
        choice = self.twist.value_encoding(best_choice(values, sum(sum(r.widths) for r in ranges)))
        of_values, section = encode_values(values, choice, self.twist)
        records, columns, at = [], [], 0
        for number, (tile, of_tile, (base, bits, numbers)) in enumerate(zip(tiles, ranges, of_values)):
            widths = self.twist.widths(number, [*of_tile.widths, bits])
            records.append(struct.pack("<IIq", at, widths[-1], base) + of_tile.fields)
            for mode, low in enumerate(of_tile.low):
                columns.append(self.column(number, mode, [c[mode] - low for c, _ in tile], widths[mode]))
            columns.append(self.column(number, len(self.dims), numbers, widths[-1]))
            at += sum(widths)
        return choice[0], {TILES: b"".join(records), COLUMNS: b"".join(columns)} | section

    def column(self, tile: int, column: int, numbers: list[int], bits: int) -> bytes:
        padded = numbers + [0] * (TILE - len(numbers))
        return pack(self.twist.numbers(tile, column, padded), bits)

    def chunk(self, number: int, partition: int, first: int, end: int) -> tuple[bytearray, bytes]:
        """A chunk's file, its checksums and store id still zero, and its entry in the manifest."""
        part, order = self.nonzeros[first:end], len(self.dims)
        encoding, sections = self.sections(first, end)
        sections = self.twist.sections({SHAPE: struct.pack(f"<{order}I", *self.dims)} | sections)
        h, table, body = header_bytes(len(sections)), b"", bytearray()
        for kind in sorted(sections):
            table += struct.pack("<4I", kind, h + len(body), len(sections[kind]), 0)
            body += sections[kind]
            body += bytes(-len(body) % SECTION_ALIGN)
        image, zstd = h + len(body), int(self.options.zstd > 0)
        stored = zstd_frame(bytes(body)) if zstd else bytes(body)
        header = struct.pack(
            "<8sIIQQIII4BQIIIIQ40sQ", b"BLCOCHNK", 2, number, 0, first, len(part), image, len(stored),
            order, self.kind.layout, encoding, zstd, 0, self.kind.form, partition, len(sections), 0, 0, b"", 0,
        )
        file = bytearray((header + table).ljust(h, b"\0") + stored)
        file += bytes(-len(file) % FILE_ALIGN)
        linear = [self.linear(part[at]) for at in (0, -1)]
        rows = ranges_of([c for c, _ in part])
        spare = [0] * (8 - order)
        entry = struct.pack(
            "<5Q4Q16III", first, len(part), len(file), image, 0, *(half for x in linear for half in (x & U64, x >> 64)),
            *rows.low, *spare, *rows.high, *spare, encoding, 0,
        )
        return file, entry


def header_bytes(sections: int) -> int:
    return HEADER_BYTES + round_up(ENTRY_BYTES * sections, SECTION_ALIGN)


@dataclass
class Node:
    """A node of a tree: its index, and its children or, of a fiber, its leaves (index, value)."""

    index: int
    children: list[Node] = field(default_factory=list)
    leaves: list[tuple[int, float]] = field(default_factory=list)


PAD = -1
# low, high, stride or before; base of the inner level; width and numbers of the first and of the second column.
TreeTile = tuple[tuple[int, int, int, int], tuple[int, list[int]], tuple[int, list[int]]]


class Tree(Partition):
    """A partition of trees, by formats-spec/hocfs.md."""

    @property
    def leaf_rule(self) -> int:
        return self.options.leaf if self.kind.form == HOCFS else CSR

    def path(self, nonzero: Nonzero) -> tuple[int, ...]:
        return tuple(nonzero[0][mode] for mode in self.kind.order)

    def starts_of(self, level: int) -> list[int]:
        """The first nonzero of each node of a level, of the partition as one tree."""
        paths = [self.path(n)[: level + 1] for n in self.nonzeros]
        return [at for at, path in enumerate(paths) if at == 0 or path != paths[at - 1]]

    def nodes(self) -> list[int]:
        return [len(self.starts_of(level)) for level in range(len(self.dims) - 1)] + [len(self.nonzeros)]

    def fiber_lengths(self) -> list[int]:
        starts = self.starts_of(len(self.dims) - 2)
        return [b - a for a, b in zip(starts, [*starts[1:], len(self.nonzeros)])]

    def cut(self) -> list[int]:
        bounds, n = [0], len(self.nonzeros)
        plain = copy.copy(self)
        plain.twist = Twist()
        while not plain.fits(bounds[-1], n):
            low, high = bounds[-1] + 1, n
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if plain.fits(bounds[-1], middle) else (low, middle)
            bounds.append(self.cut_before(bounds[-1], high - 1))
        return bounds

    def fits(self, first: int, end: int) -> bool:
        """Whether a chunk may hold some nonzeros."""
        bound = self.options.chunk_bytes
        most = {CSR: bound, AUTO: bound // 4 * 3, ELL: bound // 8 * 3}[self.leaf_rule]
        _, sections, nodes = self.image(first, end, CSR, by_dictionary=False)
        return end - first == 1 or self.length(sections) <= most and nodes <= bound // 2

    def length(self, sections: dict[int, bytes]) -> int:
        """The length of an image, with SHAPE."""
        lengths = [4 * len(self.dims), *map(len, sections.values())]
        return header_bytes(len(lengths)) + sum(round_up(x, SECTION_ALIGN) for x in lengths)

    def cut_before(self, first: int, last: int) -> int:
        """Where a chunk that has no room for nonzero `last` ends."""
        for depth in (1, len(self.dims) - 1):
            at = last
            while at > first and self.path(self.nonzeros[at - 1])[:depth] == self.path(self.nonzeros[last])[:depth]:
                at -= 1
            if at > first:
                return at
        return last

    def sections(self, first: int, end: int) -> tuple[int, dict[int, bytes]]:
        encoding, sections, _ = self.image(first, end, self.leaf_rule, by_dictionary=True)
        if self.length(sections) > self.options.chunk_bytes:
            encoding, sections, _ = self.image(first, end, CSR, by_dictionary=True)
        return encoding, sections

    def tree(self, first: int, end: int) -> list[Node]:
        """The slices."""
        slices: list[Node] = []
        for number, nonzero in enumerate(self.nonzeros[first:end], start=first):
            *above, leaf = self.path(nonzero)
            inside = slices
            for level, index in enumerate(above):
                if not inside or inside[-1].index != index or self.twist.divides(level, number):
                    inside.append(Node(index))
                node, inside = inside[-1], inside[-1].children
            node.leaves.append((leaf, nonzero[1]))
        return slices

    def image(self, first: int, end: int, rule: int, by_dictionary: bool) -> tuple[int, dict[int, bytes], int]:
        """Value encoding, sections and number of nodes of a chunk."""
        slices = self.tree(first, end)
        levels, codes = [slices], []
        for _ in self.dims[2:]:
            levels.append([child for node in levels[-1] for child in node.children])
        slots: list[tuple[int, float]] = []
        starts = [[0] for _ in levels]
        for piece in slices:
            fibers = [piece]
            for _ in self.dims[2:]:
                fibers = [child for node in fibers for child in node.children]
            nnz, longest = sum(len(f.leaves) for f in fibers), max(len(f.leaves) for f in fibers)
            padded = longest * len(fibers)
            codes.append({CSR: False, ELL: padded <= 2 * nnz, AUTO: 8 * padded <= 9 * nnz}[rule])
            for fiber in fibers:
                slots += fiber.leaves
                if codes[-1]:
                    slots += [(PAD, fiber.leaves[-1][1])] * (longest - len(fiber.leaves))
                starts[-1].append(len(slots))
        for level, nodes in enumerate(levels[:-1]):
            for node in nodes:
                starts[level].append(starts[level][-1] + len(node.children))
        indices = [[node.index for node in nodes] for nodes in levels]
        inner = [tile for i, s in zip(indices, starts) for tile in self.inner_tiles(i, s[:-1])]
        encoding, leaves, section = self.leaf_tiles(slots, inner, by_dictionary)
        records, packed, at = [], [], 0
        for number, tile in enumerate(inner + leaves):
            (low, high, stride, base), (bits, numbers), (second, others) = tile
            bits, second = self.twist.widths(number, [bits, second])
            records.append(struct.pack("<IIIIqII", at, low, high, stride, base, second, 0))
            packed += [self.column(number, 0, numbers, bits), self.column(number, 1, others, second)]
            at += bits + second
        counts = [len(i) for i in indices] + [len(slots)]
        head = bytes(self.kind.order).ljust(8, b"\0") + struct.pack("<II", self.leaf_rule, 0)
        head += struct.pack(f"<{len(counts)}I", *counts).ljust(32, b"\0") + bytes(16)
        bits_of_codes = sum(code << number for number, code in enumerate(codes))
        out = {
            COLUMNS: b"".join(packed),
            LEVELS: head + b"".join(records) + bits_of_codes.to_bytes(4 * -(-len(codes) // 32), "little"),
        }
        return encoding, out | section, sum(counts[:-1]) + end - first

    def inner_tiles(self, indices: list[int], starts: list[int]) -> list[TreeTile]:
        """The tiles of an inner level."""
        out: list[TreeTile] = []
        for part, begins in zip(tiles_of(indices), tiles_of(starts)):
            stride = self.twist.stride(list(begins), min((b - a for a, b in pairwise(begins)), default=0))
            base = self.twist.base(list(begins))
            numbers = [(start - base - stride * i) % 2**32 for i, start in enumerate(begins)]
            low, high = min(part), max(part)
            index = width(high - low), [i - low for i in part]
            out.append(((low, high, stride, base), index, (width(max(numbers)), numbers)))
        return out

    def leaf_tiles(
        self, slots: list[tuple[int, float]], inner: list[TreeTile], by_dictionary: bool
    ) -> tuple[int, list[TreeTile], dict[int, bytes]]:
        """Value encoding, the tiles of leaves, and the VALUES section, if there is one."""
        tiles, before = [], 0
        for part in tiles_of(slots):
            there = [i for i, _ in part if i != PAD]
            low, high = min(there, default=0), max(there, default=0)
            bits = width(high - low + (len(there) < len(part)))
            numbers = [high - low + 1 if i == PAD else i - low for i, _ in part]
            tiles.append((low, high, before, bits, numbers))
            before += len(there)
        values = [[v for _, v in part] for part in tiles_of(slots)]
        units = sum(index[0] + starts[0] for _, index, starts in inner) + sum(t[3] for t in tiles)
        if by_dictionary:
            due = best_choice(values, units)
        else:
            due = min(choices([value_facts(v) for v in values], units))[2]
        choice = self.twist.value_encoding(due)
        of_values, section = encode_values(values, choice, self.twist)
        out: list[TreeTile] = [
            ((low, high, before, base), (bits, numbers), (second, others))
            for (low, high, before, bits, numbers), (base, second, others) in zip(tiles, of_values)
        ]
        return choice[0], out, section


class Listed(Partition):
    """A partition of the layout `coordinates`, by formats-spec/formats.md."""

    def sections(self, first: int, end: int) -> tuple[int, dict[int, bytes]]:
        part = self.nonzeros[first:end]
        values = [v for _, v in part]
        encoding = self.twist.value_encoding((F32 if all(map(is_f32, values)) else F64, 0))
        _, section = encode_values([values], encoding, self.twist)
        lists = b"".join(struct.pack(f"<{len(part)}I", *indices) for indices in zip(*(c for c, _ in part)))
        return encoding[0], section | {COORDINATES: lists}


class Segmented(Partition):
    """A partition of the layout `segments`, by formats-spec/formats.md."""

    def sections(self, first: int, end: int) -> tuple[int, dict[int, bytes]]:
        part = self.nonzeros[first:end]
        products, _ = struct.unpack("<II", self.kind.parameters)
        product_modes = [m for m in range(len(self.dims)) if products >> m & 1]
        index_modes = [m for m in range(len(self.dims)) if not products >> m & 1]
        indices = [tuple(c[m] for m in index_modes) for c, _ in part]
        begins = [at == 0 or indices[at] != indices[at - 1] for at in range(len(part))]
        segments = [i for i, begin in zip(indices, begins) if begin]
        of_products = tiles_of([tuple(c[m] for m in product_modes) for c, _ in part])
        of_segments = tiles_of(segments)
        ranges = [ranges_of(tile) for tile in of_products]
        outer = [ranges_of(tile) for tile in of_segments]
        values = tiles_of([v for _, v in part])
        choice = self.twist.value_encoding(best_choice(values, sum(sum(r.widths) for r in ranges + outer)))
        of_values, section = encode_values(values, choice, self.twist)
        records, columns, at = b"", b"", 0
        for number, (tile, of_tile, (base, bits, numbers)) in enumerate(zip(of_products, ranges, of_values)):
            records += struct.pack("<IIq", at, bits, base) + of_tile.fields
            columns += self.index_columns(number, tile, of_tile) + self.column(number, len(product_modes), numbers, bits)
            at += sum(of_tile.widths) + bits
        for number, (tile, of_tile) in enumerate(zip(of_segments, outer), start=len(of_products)):
            records += struct.pack("<II", at, 0) + of_tile.fields
            columns += self.index_columns(number, tile, of_tile)
            at += sum(of_tile.widths)
        flags = sum(begin << number for number, begin in enumerate(begins)).to_bytes(4 * -(-len(part) // 32), "little")
        head = struct.pack("<II", len(segments), 0)
        return choice[0], {COLUMNS: columns, SEGMENTS: head + records + flags} | section

    def index_columns(self, number: int, tile: Sequence[Sequence[int]], ranges: Ranges) -> bytes:
        low = ranges.low
        return b"".join(
            self.column(number, column, [indices[column] - low[column] for indices in tile], bits)
            for column, bits in enumerate(ranges.widths)
        )


LAYOUTS: dict[int, type[Partition]] = {
    RAW: Partition, TILED: Partition, TREE: Tree, SEGMENTED: Segmented, LISTED: Listed,
}


# ---------------------------------------------------------------------------------------------------------------
# Stores
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class ManifestSection:
    """A section of the manifest's body."""

    name: str
    content: bytes
    flags: int


def manifest_body(sections: Sequence[ManifestSection]) -> bytes:
    table, body = struct.pack("<II", len(sections), 0), b""
    for section in sections:
        at = 8 + 32 * len(sections) + len(body)
        table += struct.pack("<12sIQQ", section.name.encode(), section.flags, at, len(section.content))
        body += section.content + bytes(-len(section.content) % 8)
    return table + body


@dataclass
class Draft:
    """A store's files, to be changed and sealed. `heads` are the lengths of the chunks' headers."""

    files: dict[str, bytearray]
    order: int
    heads: list[int]

    def manifest_sections(self) -> list[ManifestSection]:
        body = self.files[MANIFEST][PREAMBLE_BYTES:]
        out = []
        for number in range(struct.unpack_from("<I", body)[0]):
            name, flags, at, length = struct.unpack_from("<12sIQQ", body, 8 + 32 * number)
            out.append(ManifestSection(name.rstrip(b"\0").decode(), bytes(body[at : at + length]), flags))
        return out

    def set_manifest(self, body: bytes) -> None:
        """Another body, not sealed."""
        preamble = struct.pack("<8sIIQ", b"BLCOSTOR", 2, PREAMBLE_BYTES, len(body))
        self.files[MANIFEST] = bytearray(preamble.ljust(PREAMBLE_BYTES, b"\0") + body)

    def set_section(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Another content of one section of the manifest."""
        sections = self.manifest_sections()
        for section in sections:
            if section.name == name:
                section.content = change(section.content)
        self.set_manifest(manifest_body(sections))

    def entry_of(self, name: str) -> int:
        """Where the entry of a section in the body's table lies in the manifest's file."""
        names = [s.name for s in self.manifest_sections()]
        return PREAMBLE_BYTES + 8 + 32 * names.index(name)

    def at(self, name: str) -> int:
        """Where a section lies in the manifest's file."""
        return PREAMBLE_BYTES + int(struct.unpack_from("<Q", self.files[MANIFEST], self.entry_of(name) + 16)[0])

    def poke(self, name: str, at: int, layout: str, *values: object) -> None:
        """Overwrite some fields of a file."""
        struct.pack_into(layout, self.files[name], at, *values)

    def flip(self, name: str, at: int) -> None:
        """Change one bit of a file."""
        self.files[name][at] ^= 1

    def section(self, name: str, kind: int) -> int:
        """Where a section of a chunk without a codec begins in its file."""
        for slot in range(struct.unpack_from("<I", self.files[name], 64)[0]):
            found, offset = struct.unpack_from("<2I", self.files[name], HEADER_BYTES + ENTRY_BYTES * slot)
            if found == kind:
                return int(offset)
        raise KeyError(kind)

    def seal(self, keep: Sequence[str] = ()) -> None:
        """Compute all checksums again, but for those in `keep`: payload, body, preamble, table, header."""
        manifest = self.files[MANIFEST]
        for number, h in enumerate(self.heads):
            data = self.files.get(chunk_name(number))
            if data is None or "payload" in keep:
                continue
            stored = struct.unpack_from("<I", data, 40)[0]
            checksum = xxh3_64(bytes(data[h : h + stored]))
            struct.pack_into("<Q", data, 48, checksum)
            struct.pack_into("<Q", manifest, self.at("chunks") + CHUNK_BYTES * number + 32, checksum)
        if "body" not in keep:
            struct.pack_into("<Q", manifest, 24, xxh3_64(bytes(manifest[PREAMBLE_BYTES:])))
        if "preamble" not in keep:
            struct.pack_into("<Q", manifest, 56, xxh3_64(bytes(manifest[:56])))
        for number in range(len(self.heads)):
            data = self.files.get(chunk_name(number))
            if data is not None:
                data[16:24] = manifest[24:32]
                self.seal_header(number, keep)

    def seal_header(self, number: int, keep: Sequence[str] = ()) -> None:
        data = self.files[chunk_name(number)]
        if "table" not in keep:
            struct.pack_into("<Q", data, 72, xxh3_64(bytes(data[HEADER_BYTES : self.heads[number]])))
        if "header" not in keep:
            struct.pack_into("<Q", data, 120, xxh3_64(bytes(data[:120])))


def chunk_name(number: int) -> str:
    return f"chunk-{number:06d}.bin"


def label_name(mode: int) -> str:
    return f"labels-{mode}.bin"


def label_blocks(labels: Sequence[str], block: int) -> tuple[bytes, bytes]:
    """The blocks of a file of labels, so many in each, and their table."""
    blocks = table = b""
    for first in range(0, len(labels), block):
        texts = [label.encode() for label in labels[first : first + block]]
        raw = struct.pack(f"<{len(texts)}I", *map(len, texts)) + b"".join(texts)
        frame = zstd_frame(raw)
        blocks += frame
        table += struct.pack("<QIIIIQ", first, len(texts), len(frame), len(raw), 0, xxh3_64(frame))
    return blocks, table


@dataclass(frozen=True)
class ModeLabels:
    """What the section `modes` says of a mode, and its labels."""

    name: str = ""
    kind: int = 0
    steps: int = 0
    labels: Sequence[str] = ()


def modes_section(modes: Sequence[ModeLabels], value_name: str, block: int, files: dict[str, bytearray]) -> bytes:
    """The section, whose files of labels go to `files`."""
    section = struct.pack("<II", len(value_name.encode()), 0)
    for number, mode in enumerate(modes):
        blocks, table = label_blocks(mode.labels, block)
        if mode.kind:
            files[label_name(number)] = bytearray(blocks + table)
        facts = (len(blocks + table), xxh3_64(table), sum(len(t.encode()) for t in mode.labels)) if mode.kind else (0, 0, 0)
        section += struct.pack("<IIIIQQQ", mode.kind, mode.steps, len(mode.name.encode()), len(table) // 32, *facts)
    return section + value_name.encode() + b"".join(mode.name.encode() for mode in modes)


def build_store(
    partitions: Sequence[Partition],
    modes: Sequence[ModeLabels] = (),
    others: Sequence[ManifestSection] = (),
) -> Draft:
    """All files, sealed."""
    dims, options = partitions[0].dims, partitions[0].options
    files: dict[str, bytearray] = {}
    of_partitions = parameters = statistics = of_chunks = b""
    number = 0
    for at, partition in enumerate(partitions):
        bounds = partition.bounds()
        of_partitions += partition.entry(len(bounds) - 1, len(parameters))
        parameters += partition.kind.parameters
        statistics += partition.statistics()
        for first, end in pairwise(bounds):
            files[chunk_name(number)], entry = partition.chunk(number, at, first, end)
            of_chunks += entry
            number += 1
    cover = [p.nonzeros for p in partitions if p.kind.covers & 1]
    nonzeros = [n for part in cover for n in part]
    ranked = sorted((v for _, v in nonzeros), key=total_order)
    squares = sum_of_squares([[v for _, v in part] for part in cover])
    tensor = struct.pack(
        "<IIQQdddQ", len(dims), options.duplicates, len(nonzeros), hash_of_nonzeros(nonzeros), squares,
        ranked[0], ranked[-1], 0,
    )
    for dim, indices in zip(dims, zip(*(c for c, _ in nonzeros))):
        tensor += struct.pack("<IIQ", dim, 0, longest_row_bound(indices))
    storage = struct.pack("<IiQQ", options.zstd > 0, options.zstd, options.chunk_bytes, 0)
    contents = {
        "chunks": of_chunks, "parameters": parameters, "partitions": of_partitions, "statistics": statistics,
        "storage": storage, "tensor": tensor,
    }
    if modes:
        contents["modes"] = modes_section(modes, "Wert", 3, files)
    sections = [ManifestSection(name, content, int(name in CRITICAL)) for name, content in contents.items()]
    draft = Draft(files, len(dims), [header_bytes(struct.unpack_from("<I", files[chunk_name(n)], 64)[0])
                                     for n in range(number)])
    draft.set_manifest(manifest_body(sorted([*sections, *others], key=lambda s: s.name)))
    draft.seal()
    return draft


# ---------------------------------------------------------------------------------------------------------------
# Valid vectors
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Valid:
    """A valid store that a packer makes, and the tensor that it holds."""

    name: str
    dims: tuple[int, ...]
    nonzeros: Sequence[Nonzero]
    options: Options = field(default_factory=Options)
    about: str = ""

    def partition(self, twist: Twist) -> Partition:
        o, order = self.options, len(self.dims)
        if o.layout != TREE:
            return Partition(self.dims, self.nonzeros, Kind(BLCO, o.layout), o, twist)
        levels = tuple((o.main_mode + at) % order for at in range(order))
        kind = Kind(HOCFS, TREE, levels, struct.pack("<II", o.leaf, 0))
        return Tree(self.dims, self.nonzeros, kind, o, twist)

    def draft(self, twist: Twist | None = None) -> Draft:
        return build_store([self.partition(twist or Twist())])

    def ordered(self) -> list[Nonzero]:
        return self.partition(Twist()).nonzeros

    def pack_options(self) -> list[str] | None:
        """The command line that packs the text to this store."""
        o = self.options
        out = ["--dims", ",".join(map(str, self.dims))]
        if o.layout == TREE:
            out += ["--format", "hocfs", "--main-mode", str(o.main_mode + 1), "--slice", LEAF_RULES[o.leaf]]
        else:
            out += ["--encoding", "raw" if o.layout == RAW else "tiled"]
        out += ["--chunk-bytes", str(o.chunk_bytes), "--duplicates", "keep" if o.duplicates else "error"]
        return out + (["--zstd", str(o.zstd)] if o.zstd else [])


@dataclass
class HandMade:
    """A valid store that no program packs."""

    name: str
    partitions: Sequence[Partition]
    about: str
    modes: Sequence[ModeLabels] = ()
    others: Sequence[ManifestSection] = ()
    change: Callable[[Draft], None] | None = None

    def draft(self) -> Draft:
        draft = build_store(self.partitions, self.modes, self.others)
        if self.change:
            self.change(draft)
            draft.seal()
        return draft

    def ordered(self) -> list[Nonzero]:
        return [n for p in self.partitions if p.kind.covers & 1 for n in p.nonzeros]

    def pack_options(self) -> list[str] | None:
        return None


@dataclass
class Packed(HandMade):
    """A valid store of several partitions that a packer makes with these options."""

    options: Sequence[str] = ()

    def pack_options(self) -> list[str] | None:
        return [*self.options]


def text_of(nonzeros: Iterable[Nonzero]) -> str:
    lines = (" ".join(str(i + 1) for i in c) + " " + format_value(v) for c, v in nonzeros)
    return "\n".join(lines) + "\n"


def spread(dims: Sequence[int], count: int, step: int = 2654435761) -> Iterator[tuple[int, ...]]:
    """Distinct coordinates, scattered in a regular way."""
    seen: set[tuple[int, ...]] = set()
    number = 0
    while len(seen) < count:
        number += 1
        coordinates = tuple((number * step * (2 * mode + 1) >> (7 + 3 * mode)) % dim for mode, dim in enumerate(dims))
        if coordinates not in seen:
            seen.add(coordinates)
            yield coordinates


def with_values(dims: Sequence[int], count: int, value: Callable[[int], float]) -> list[Nonzero]:
    return [(c, float(value(i))) for i, c in enumerate(spread(dims, count))]


def in_order(dims: Sequence[int], count: int, value: Callable[[int], float]) -> list[Nonzero]:
    """Scattered coordinates, the values given by position in the interleaved order."""
    modes = bit_modes(dims)
    ordered = sorted(spread(dims, count), key=lambda c: linear_index(c, modes))
    return [(c, float(value(i))) for i, c in enumerate(ordered)]


EXAMPLE = [
    ((1, 1, 1), 1.0), ((1, 1, 2), 2.0), ((2, 1, 2), 4.0), ((4, 2, 1), 8.0), ((3, 1, 2), 6.0), ((4, 2, 2), 9.0),
    ((2, 1, 3), 5.0), ((1, 3, 3), 3.0), ((4, 3, 3), 10.0), ((4, 3, 4), 11.0), ((3, 4, 4), 7.0), ((4, 4, 4), 12.0),
]
SLICES: list[Nonzero] = [
    ((i - 1, j - 1, k - 1), float(v))
    for i, j, k, v in zip(
        (1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4),
        (1, 1, 2, 3, 3, 4, 4, 5, 1, 2, 3, 3, 4, 4, 1, 1, 2, 3, 3, 5, 5),
        (1, 2, 2, 2, 3, 3, 4, 1, 3, 4, 1, 4, 2, 3, 2, 4, 1, 3, 4, 3, 4),
        (3, 1, 9, 7, 3, 5, 8, 2, 4, 7, 5, 2, 1, 6, 7, 8, 3, 2, 1, 6, 5),
    )
]
LARGEST = 2**32 - 1
KEYS = (512,) * 8
MOST_ROWS = 2**24
SCATTER = 0x9E3779B1  # odd: its multiples modulo a power of two hit every number


def thousandths(i: int) -> float:
    """Decimals of three places, of both signs and many digits."""
    return (i * SCATTER % 2**20 - 2**19) / 1000


def third(i: int) -> float:
    """Values that are no decimals."""
    return (3 * i + 1) / 3


def with_some(plain: Callable[[int], float], some: dict[int, float]) -> Callable[[int], float]:
    return lambda i: some[i] if i in some else plain(i)


def packed_vectors() -> list[Valid]:
    example: list[Nonzero] = [((i - 1, j - 1, k - 1), v) for (i, j, k), v in EXAMPLE]
    raw, keep = Options(layout=RAW), Options(duplicates=True)
    top = LARGEST - 1
    corners: list[tuple[int, ...]] = [(0,) * 4, (top,) * 4, (top, 0, 0, 0), (0, 0, 0, top), (1, 2, 3, 4)]
    corners += list(spread((LARGEST,) * 4, 20))
    twice: list[Nonzero] = [((i % 3, i % 2), v) for i in range(40) for v in (0.0, -0.0, 0.5, -1.5, 0.5)]
    order8 = (3, 1, 70000, 2, 9, 16, 5, 33)
    mixed = (0.1, -0.0, 0.0, -3.5)
    extremes: list[Nonzero] = [((49, 39), 5e-324), ((48, 39), 2.0**1000)]
    fibers: list[Nonzero] = [((1, i // 250, i % 250), 0.1) for i in range(9000)]
    leaves: list[Nonzero] = [((1, 0, i), 0.1) for i in range(4000)]
    alone: list[Nonzero] = [((0, i // 1100, i % 1100), i % 6 * 1.0) for i in range(1200)]
    slices: list[Nonzero] = [((i // 81 % 90, i // 9 % 9, i % 9), 0.1) for i in range(7290)]

    def tree(leaf: int, main_mode: int = 0) -> Options:
        return Options(layout=TREE, leaf=leaf, main_mode=main_mode)

    zeros: list[Nonzero] = [((0, 2**31 * (i >= 3500), 0), 0.0) for i in range(3700)]
    return [
        Valid("example-tiled", (4, 4, 4), example, about="the worked example of blco.md"),
        Valid("example-raw", (4, 4, 4), example, raw, "the worked example of blco.md"),
        Valid("one-nonzero", (1000, 70000, 5), [((41, 65536, 4), -2.5)], about="f32 and dictionary tie: dictionary"),
        Valid("one-nonzero-raw", (1000, 70000, 5), [((41, 65536, 4), -2.5)], raw, "one nonzero"),
        Valid("dims-one", (1, 1), [((0, 0), 7.0)], about="no linear bits and an empty COLUMNS"),
        Valid("dims-one-raw", (1, 6, 1), [((0, i, 0), i / 3) for i in range(6)], raw, "modes of one index"),
        Valid("order-8", order8, with_values(order8, 90, lambda i: i % 7 - 3), about="order 8"),
        Valid("order-8-raw", order8, with_values(order8, 90, lambda i: i % 7 - 3), raw, "order 8"),
        Valid("keys-raw", KEYS, with_values(KEYS, 80, lambda i: i + 0.25), raw, "72 linear bits: several keys"),
        Valid("bits-128", (LARGEST,) * 4, [(c, 1.0 + i) for i, c in enumerate(corners)], about="128 linear bits"),
        Valid("bits-128-raw", (LARGEST,) * 4, [(c, 1.0 + i) for i, c in enumerate(corners)], raw, "128 linear bits"),
        Valid("integer-narrow", (50, 40), with_values((50, 40), 700, lambda i: i % 8 - 5), about="two tiles, integer"),
        Valid("integer-wide", (50, 40), with_values((50, 40), 450, lambda i: i * i * 262147 - 2**34),
              about="integer, a value column of 36 bits"),
        Valid("f32", (50, 40), with_values((50, 40), 200, lambda i: i / 4 - 7), about="f32"),
        Valid("f64", (50, 40), with_values((50, 40), 100, lambda i: (i - 5) / 10) + extremes,
              about="decimal with exceptions, the sum of squares overflows"),
        Valid("f64-third", (50, 40), with_values((50, 40), 100, third), about="f64"),
        Valid("dictionary", (50, 40), with_values((50, 40), 600, lambda i: mixed[i % 4]),
              about="dictionary, both zeros"),
        Valid("duplicates", (3, 2), twice, keep, "duplicates kept, in the order of their values"),
        Valid("duplicates-raw", (3, 2), twice, Options(layout=RAW, duplicates=True), "duplicates kept"),
        Valid("zstd", (50, 40), with_values((50, 40), 600, lambda i: mixed[i % 4]), Options(zstd=3), "codec 1"),
        Valid("zstd-raw", (LARGEST, LARGEST, 2), zeros, Options(layout=RAW, zstd=19, duplicates=True),
              "codec 1; explicit zeros"),
        Valid("zstd-raw-cut", (LARGEST, LARGEST, 2), zeros + zeros[:800], Options(layout=RAW, zstd=19, duplicates=True),
              "codec 1; explicit zeros; two chunks, cut by image bytes; an equal coordinate on both sides of the cut"),
        Valid("cut-nonzeros", (8, 8), [((i % 8, i // 8 % 8), 1.0) for i in range(16900)], keep,
              "two chunks, cut by nonzeros"),
        Valid("hocfs-example", (4, 5, 4), SLICES, tree(CSR), "the worked example of hocfs.md"),
        Valid("hocfs-example-ell", (4, 5, 4), SLICES, tree(ELL), "every slice padded"),
        Valid("hocfs-example-main-2", (4, 5, 4), SLICES, tree(AUTO, 1), "the second mode main"),
        Valid("hocfs-one", (1000, 70000, 5), [((41, 65536, 4), -2.5)], tree(AUTO, 2), "one nonzero"),
        Valid("hocfs-dims-one", (1, 1), [((0, 0), 7.0)], tree(CSR), "order 2, no linear bits, an empty COLUMNS"),
        Valid("hocfs-order-2", (600, 40), with_values((600, 40), 1100, lambda i: i / 4 - 7), tree(AUTO, 1),
              "order 2: slices are fibers; several tiles of a level"),
        Valid("hocfs-order-8", order8, with_values(order8, 90, lambda i: i % 7 - 3), tree(ELL, 3), "order 8"),
        Valid("hocfs-tiles", (700, 3, 50), with_values((700, 3, 50), 2500, lambda i: mixed[i % 4]), tree(ELL),
              "padding across tiles; dictionary, both zeros"),
        Valid("hocfs-padding-alone", (2, 2, 2000), alone, tree(ELL), "a tile of leaves that holds padding alone"),
        Valid("hocfs-duplicates", (3, 2), twice, Options(layout=TREE, duplicates=True), "duplicates kept"),
        Valid("hocfs-bits-128", (LARGEST,) * 4, [(c, 1.0 + i) for i, c in enumerate(corners)], tree(AUTO, 2),
              "128 linear bits"),
        Valid("hocfs-zstd", (50, 40), with_values((50, 40), 600, lambda i: mixed[i % 4]),
              Options(layout=TREE, zstd=3), "codec 1"),
        Valid("hocfs-cut-slice", (90, 90, 9), slices, tree(AUTO), "decimal: all slices fit one chunk"),
        Valid("hocfs-cut-fiber", (2, 60, 300), fibers, tree(CSR), "decimal: a slice of 36 fibers fits one chunk"),
        Valid("hocfs-cut-leaf", (2, 2, 20000), leaves, tree(ELL), "decimal: a fiber of 4000 leaves"),
        Valid("cut-dictionary", (9, 9), [((i % 9, i // 9 % 9), 0.1) for i in range(8000)], keep,
              "decimal: one chunk"),
        *decimal_vectors(),
        Valid("cut-dictionary-third", (9, 9), [((i % 9, i // 9 % 9), 1 / 3) for i in range(8000)], keep,
              "two chunks, cut by image bytes with f64, then stored as dictionary"),
        Valid("hocfs-cut-slice-third", (90, 90, 9), [(c, 1 / 3) for c, _ in slices], tree(AUTO),
              "chunks hold whole slices; a full last chunk of slices that are padded by nothing"),
        Valid("hocfs-cut-fiber-third", (2, 60, 300), [(c, 1 / 3) for c, _ in fibers], tree(CSR),
              "a slice that is cut between fibers"),
        Valid("hocfs-cut-leaf-third", (2, 2, 20000), [(c, 1 / 3) for c, _ in leaves], tree(ELL),
              "a fiber that is cut inside"),
        Valid("distinct", (3000, 60, 7), with_values((3000, 60, 7), 4000, lambda i: i % 3),
              about="statistics: groups of 512, 1024, 2048 and 4096 nonzeros differ"),
        Valid("hocfs-distinct", (40, 50, 500), [((i // 50, i % 50, j), 1.0) for i in range(30) for j in range(i)] +
              [((35, 7 * k % 50, j), 2.0) for k in range(9) for j in range(2**k)], tree(CSR, 0),
              "statistics: fibers of 1 to 256 nonzeros"),
    ]


def decimal_vectors() -> list[Valid]:
    """Values in value encoding 5 or nearly so."""
    odd = {3: 0.1 + 0.2, 50: -0.0, 51: 1e300, 300: -1e-300, 511: math.pi, 512: 5e-324, 698: 2.0**60, 699: -1e300}
    finite = {3: 0.1 + 0.2, 50: -0.0, 640: 1 / 3}
    flat, square, deep = (50, 40), (16, 16), (9, 30, 64)
    top = MAX_DECIMAL
    near = [top, -top, top - 1, 1 - top, top + 1, -top - 1]

    def tree(leaf: int, main_mode: int = 0) -> Options:
        return Options(layout=TREE, leaf=leaf, main_mode=main_mode)

    def exceptions(count: int) -> Callable[[int], float]:
        """In the second tile, spread over it."""
        at = {TILE + 512 * k // count: third(k) for k in range(count)}
        return with_some(thousandths, at)

    def uneven(value: Callable[[int], float]) -> list[Nonzero]:
        """Fibers of different lengths, for trees."""
        places = [(i, j, k) for i in range(7) for j in range(i % 3, 30, 3) for k in range(5 + (i + j) % 5)]
        return [((i, j, (7 * k + j) % 64), value(n)) for n, (i, j, k) in enumerate(places)]

    few = {100: 1 / 3, 200: 2 / 3, 300: -0.0, 550: 0.7}
    scattered = (LARGEST, LARGEST - 7, 2**31)
    return [
        Valid("decimal", flat, in_order(flat, 700, thousandths), about="decimal, three places, both signs"),
        Valid("decimal-exceptions", flat, in_order(flat, 700, with_some(thousandths, odd)),
              about="decimal with exceptions, -0.0 and 1e300 among them; the sum of squares overflows"),
        Valid("decimal-finite", flat, in_order(flat, 700, with_some(thousandths, finite)),
              about="decimal with exceptions, the sum of squares finite"),
        Valid("decimal-integers", flat, in_order(flat, 700, with_some(lambda i: i * 7919 % 4093, few)),
              about="decimal with exponent 0: integers, and a few others as exceptions"),
        Valid("decimal-negative", flat, in_order(flat, 600, lambda i: -(i * 37 % 1009 + 1) / 100),
              about="decimal, all values negative"),
        Valid("decimal-64", flat, in_order(flat, 1100, exceptions(64)), about="a tile with 64 exceptions: decimal"),
        Valid("decimal-65", flat, in_order(flat, 1100, exceptions(65)),
              about="a tile with 65 exceptions: no decimal"),
        Valid("decimal-all-exceptions", flat,
              in_order(flat, TILE + 20, lambda i: thousandths(i) if i < TILE else third(i)),
              about="a last tile of exceptions alone: base and width are 0"),
        Valid("decimal-exponents", flat, in_order(flat, 600, lambda i: (i * SCATTER % 3001) / 10 ** (i % 5 % 4)),
              about="decimals of 0 to 3 places: stored with three"),
        Valid("decimal-10", flat, in_order(flat, 600, lambda i: (i * SCATTER % 2**30 + 1) / 10**10),
              about="decimal with exponent 10"),
        Valid("decimal-large", flat,
              in_order(flat, 500, lambda i: near[i % 97] / 1000 if i % 97 < 6 else (i * SCATTER**2 % top) / 1000),
              about="decimal, integers from -2^50 to 2^50: a value column of 52 bits; those beyond are exceptions"),
        Valid("decimal-constant", flat, in_order(flat, 600, with_some(lambda i: 0.3, {i: third(i) for i in range(20)})),
              about="exponents 1 to 10 tie: 1"),
        Valid("decimal-zstd", flat, in_order(flat, 700, with_some(thousandths, odd)), Options(zstd=3),
              "decimal, codec 1"),
        Valid("decimal-duplicates", (3, 2), [((i % 3, i % 2), v / 1000) for i in range(200) for v in (17, 17, i, -i)],
              Options(duplicates=True), "decimal, duplicates kept; 0.0 of both signs"),
        Valid("tie-integer-dictionary", square, in_order(square, 100, lambda i: i % 4 * 5.0),
              about="integer and dictionary tie: integer"),
        Valid("tie-dictionary-decimal", square, in_order(square, 100, lambda i: (i % 10 + 1) / 10),
              about="dictionary and decimal tie: dictionary"),
        Valid("tie-f32-decimal", square, in_order(square, 160, lambda i: i % 51 / 2), about="f32 and decimal tie: f32"),
        Valid("tie-decimal-f64", square, in_order(square, 48, lambda i: (i % 4 + 1) / 10 if i % 3 else third(i)),
              about="decimal and f64 tie: decimal"),
        Valid("cut-decimal", scattered,
              [(c, (i * SCATTER**2 % 2**(20 + 4 * (i % 6))) / 1000 + (i % 50 == 7) / 3)
               for i, c in enumerate(spread(scattered, 3800))],
              about="two chunks, cut by image bytes with decimals"),
        Valid("integer-limits", flat,
              in_order(flat, 500, with_some(lambda i: i * SCATTER**2 % 2**54 - MAX_INTEGER, {
                  0: MAX_INTEGER, 1: -MAX_INTEGER, 2: MAX_INTEGER - 1, 3: 1 - MAX_INTEGER})),
              about="integer, from -2^53 to 2^53: a value column of 55 bits"),
        Valid("hocfs-decimal", deep, uneven(thousandths), tree(CSR), "decimal"),
        Valid("hocfs-decimal-ell", deep, uneven(with_some(thousandths, {4: 0.1 + 0.2, 17: -0.0, 300: 1e300})),
              tree(ELL), "decimal; padding repeats decimals and exceptions"),
        Valid("hocfs-decimal-auto", deep, uneven(with_some(thousandths, finite)), tree(AUTO, 2),
              "decimal, the last mode main"),
    ]


def valid_vectors() -> list[Valid | HandMade]:
    return [*packed_vectors(), *packed_partitions(), *hand_made()]


SPLIT = 128


def rooted(dims: Sequence[int], mode: int) -> tuple[int, ...]:
    """A mode, then the others by ascending dims."""
    return mode, *sorted((m for m in range(len(dims)) if m != mode), key=lambda m: (dims[m], m))


def packed_partitions() -> list[Packed]:
    """Stores of several partitions as the packer makes them."""
    dims = (12, 40, 600)
    sparse, plain = uneven_tensor(), Options()
    common = ["--dims", "12,40,600", "--chunk-bytes", str(plain.chunk_bytes), "--duplicates", "error"]

    def store(name: str, about: str, pieces: Iterable[tuple[Kind, Sequence[Nonzero]]], *options: str) -> Packed:
        partitions = [LAYOUTS[kind.layout](dims, part, replace(kind, cuts=(0,)), plain, Twist()) for kind, part in pieces]
        return Packed(name, partitions, about, options=[*common, *options])

    def tree(form: int, modes: Sequence[int], parameters: bytes = b"") -> Iterator[tuple[Kind, Sequence[Nonzero]]]:
        for cover, mode in enumerate(modes):
            targets = 7 if len(modes) == 1 else 1 << mode
            yield Kind(form, TREE, rooted(dims, mode), parameters, targets, 1 << cover), sparse

    def coordinates(product: Callable[[int], int], order: Callable[[int], tuple[int, ...]], modes: Sequence[int],
                    thread_nnz: int = 0) -> Iterator[tuple[Kind, Sequence[Nonzero]]]:
        for cover, mode in enumerate(modes):
            targets = 7 if len(modes) == 1 else 1 << mode
            yield Kind(F_COO, SEGMENTED, order(mode), struct.pack("<II", product(mode), thread_nnz), targets,
                       1 << cover), sparse

    def last(mode: int) -> tuple[int, ...]:
        return rooted(dims, mode)[1:] + (mode,)

    every = range(3)
    split = struct.pack("<II", SPLIT, 0)
    return [
        store("csf-all", "CSF: a tree for each mode", tree(CSF, every), "--format", "csf"),
        store("csf-one", "CSF: one tree, of the shortest mode", tree(CSF, [0]), "--format", "csf", "--trees", "one"),
        store("bcsf-one", "B-CSF: one tree, of mode 2 from 1", tree(B_CSF, [1], split), "--format", "bcsf", "--trees", "2"),
        store("hbcsf-all", "HB-CSF: every main mode",
              (piece for mode in every for piece in hybrid(mode, rooted(dims, mode), SPLIT)), "--format", "hbcsf"),
        store("mmcsf-dynamic", "MM-CSF: lengths of what is left of fibers", assigned(dims, sparse, True), "--format", "mmcsf"),
        store("mmcsf-static", "MM-CSF: lengths of whole fibers", assigned(dims, sparse, False),
              "--format", "mmcsf", "--assign", "static"),
        store("fcoo-mttkrp", "F-COO: one index mode", coordinates(lambda m: 7 & ~(1 << m), lambda m: rooted(dims, m), every),
              "--format", "fcoo"),
        store("fcoo-ttm", "F-COO: one product mode", coordinates(lambda m: 1 << m, last, [2], 16),
              "--format", "fcoo", "--for", "ttm", "--trees", "3", "--thread-nnz", "16"),
    ]


def assigned(dims: tuple[int, ...], nonzeros: Sequence[Nonzero], dynamic: bool
             ) -> Iterator[tuple[Kind, Sequence[Nonzero]]]:
    """The partitions of an MM-CSF store by the packer's rule."""
    modes = range(len(dims))
    in_linear_order = Partition(dims, nonzeros, Kind(), Options(), Twist()).nonzeros
    fibers = [Counter(c[:m] + c[m + 1 :] for c, _ in nonzeros) for m in modes]
    ranked = sorted(modes, key=lambda m: (len(fibers[m]), m))
    parts: dict[int, list[Nonzero]] = {m: [] for m in modes}
    for nonzero in in_linear_order:
        keys = [nonzero[0][:m] + nonzero[0][m + 1 :] for m in modes]
        chosen = max(ranked, key=lambda m: fibers[m][keys[m]])
        parts[chosen].append(nonzero)
        for m in modes:
            fibers[m][keys[m]] -= dynamic and m != chosen
    for leaf, part in parts.items():
        if part:
            yield Kind(MM_CSF, TREE, rooted(dims, leaf)[1:] + (leaf,), b"", 7, 1), part


def hand_made() -> list[HandMade]:
    """Stores of the drafts, of labels, of parts, and with sections that may be there or not."""
    dims = (12, 40, 600)
    sparse = uneven_tensor()
    plain = Options()

    def parts_of(pieces: Iterable[tuple[Kind, Sequence[Nonzero]]]) -> list[Partition]:
        return [LAYOUTS[kind.layout](dims, part, kind, plain, Twist()) for kind, part in pieces]

    def in_turn(mode: int) -> tuple[int, ...]:
        return tuple((mode + at) % 3 for at in range(3))

    def tree(form: int, mode: int, parameters: bytes = b"") -> tuple[Kind, Sequence[Nonzero]]:
        order = in_turn(mode)
        cuts = (0, inside_fiber(sparse, order)) if mode == 1 else (0,)
        return Kind(form, TREE, order, parameters, 1 << mode, 1 << mode, cuts), sparse

    def coordinates(mode: int) -> tuple[Kind, Sequence[Nonzero]]:
        parameters = struct.pack("<II", 7 & ~(1 << mode), 0)
        cuts = (0, TILE) if mode == 0 else (0,)
        return Kind(F_COO, SEGMENTED, in_turn(mode), parameters, 1 << mode, 1 << mode, cuts), sparse

    return [
        HandMade("draft-csf", parts_of(tree(CSF, m) for m in range(3)),
                 "CSF: a tree for each mode; that of mode 1 has two chunks, a slice and a fiber in both"),
        HandMade("draft-b-csf", parts_of(tree(B_CSF, m, struct.pack("<II", 4 << m, 0)) for m in range(3)),
                 "B-CSF: a tree for each mode, fiber splits 4, 8 and 16"),
        HandMade("draft-mmcsf", parts_of(mixed_mode(sparse)),
                 "MM-CSF: a tree for each leaf mode, each nonzero in one; that of leaf mode 2 has two chunks, "
                 "a slice and a fiber in both"),
        HandMade("draft-fcoo", parts_of(coordinates(m) for m in range(3)),
                 "F-COO: one partition for each mode; that of mode 0 has two chunks, a segment in both"),
        HandMade("draft-hbcsf", parts_of(piece for m in range(3) for piece in hybrid(m)),
                 "HB-CSF: for each main mode coordinates, CSL and B-CSF, one chunk for each partition"),
        labelled(),
        *split_in_parts(),
        *other_sections(),
    ]


def uneven_tensor() -> list[Nonzero]:
    """Nonzeros in 12 x 40 x 600: fibers of one and of several nonzeros in each mode, one of 600."""
    places = [(0, 0, k) for k in range(600)]
    pairs = [(i, j) for i in range(12) for j in range(1, 40) if (i + j) % 3]
    places += {(i, j, k) for i, j in pairs for k in (i * j, 560 - j, 11 * (i // 2))}
    return [(c, thousandths(n)) for n, c in enumerate(sorted(places))]


def inside_fiber(nonzeros: Sequence[Nonzero], order: Sequence[int]) -> int:
    """A place near the middle, in the order of modes, where a fiber goes on."""
    paths = sorted(tuple(c[m] for m in order) for c, _ in nonzeros)
    return next(at for at in range(len(paths) // 2, len(paths)) if paths[at - 1][:-1] == paths[at][:-1])


def mixed_mode(nonzeros: Sequence[Nonzero]) -> Iterator[tuple[Kind, Sequence[Nonzero]]]:
    """The partitions of an MM-CSF store, the nonzeros dealt out by the sum of their indices."""
    for leaf, order in enumerate(((1, 2, 0), (0, 2, 1), (0, 1, 2))):
        part = [n for n in nonzeros if min(sum(n[0]) % 4, 2) == leaf]
        yield Kind(MM_CSF, TREE, order, cuts=(0, inside_fiber(part, order)) if leaf == 2 else (0,)), part


def hybrid(mode: int, given: tuple[int, ...] | None = None, split: int = 4) -> Iterator[tuple[Kind, Sequence[Nonzero]]]:
    """The partitions of an HB-CSF store for one main mode, of a tensor that has all roles in each mode."""
    order = given or tuple((mode + at) % 3 for at in range(3))
    # A block has fibers of several nonzeros in every mode; lines have slices of several fibers in one mode each.
    block: list[Nonzero] = [((i, j, k), i - j / 4 + k / 8) for i in range(3) for j in range(4) for k in range(5)]
    lines: list[Nonzero] = [((5 + i % 2, 10 + 2 * i, 20 + i), 1 / (i + 1)) for i in range(8)]
    lines += [((3 + i, 30, 100 + i), i / 10) for i in range(2)]
    lines += [((8 + i, 32 + i, 200), float(i)) for i in range(3)]
    nonzeros = block + lines + [((11, 39, 599), -2.5), ((7, 5, 300), 0.1)]
    slices: dict[int, list[Nonzero]] = {}
    for nonzero in nonzeros:
        slices.setdefault(nonzero[0][mode], []).append(nonzero)
    roles: dict[int, list[Nonzero]] = {1: [], 2: [], 3: []}
    for part in slices.values():
        fibers = Counter(tuple(c[m] for m in order[:2]) for c, _ in part)
        roles[1 if len(part) == 1 else 2 if max(fibers.values()) == 1 else 3] += part
    for role, part in roles.items():
        assert part
        parameters = struct.pack("<II", role, split if role == 3 else 0)
        yield Kind(HB_CSF, LISTED if role == 1 else TREE, order, parameters, 1 << mode, 1 << mode, (0,)), part


def labelled() -> HandMade:
    dims = (5, 4, 3)
    nonzeros = with_values(dims, 30, lambda i: i % 6)
    modes = (
        ModeLabels("Ort", 1, 0, ["", "a", "b,\"c\"\n", "Zürich", "日本"]),
        ModeLabels(),
        ModeLabels("Monat", 3, 1, ["1969-12", "1970-01", "1970-02"]),
    )
    partition = Partition(dims, nonzeros, Kind(), Options(), Twist())
    about = "a BLCO store with names and labels of modes 0 and 2, one empty, some not ASCII, in blocks of three"
    return HandMade("labels", [partition], about, modes)


PART_DIMS = (30, 20, 50)
PARTS = 4


def part_section(number: int, parts: int, whole: Sequence[Nonzero], first: int, last: int) -> ManifestSection:
    content = struct.pack(
        "<IIQQ4Q", number, parts, len(whole), hash_of_nonzeros(whole),
        first & U64, first >> 64, last & U64, last >> 64,
    )
    return ManifestSection("part", content, 1)


def split_in_parts() -> Iterator[HandMade]:
    """One BLCO tensor in four stores, which share the range of the linear index."""
    whole = Partition(PART_DIMS, with_values(PART_DIMS, 1400, thousandths), Kind(), Options(), Twist())
    n = len(whole.nonzeros)
    bounds = [n * part // PARTS for part in range(PARTS)] + [n]
    edges = [whole.linear(whole.nonzeros[at]) for at in bounds[1:-1]]
    lows, highs = [0, *edges], [*(edge - 1 for edge in edges), (1 << len(whole.modes)) - 1]
    for part, (low, high) in enumerate(zip(lows, highs)):
        inside = whole.nonzeros[bounds[part] : bounds[part + 1]]
        partition = Partition(PART_DIMS, inside, Kind(), Options(), Twist())
        about = f"part {part} of {PARTS} of a BLCO tensor that is split by linear index"
        section = part_section(part, PARTS, whole.nonzeros, low, high)
        yield HandMade(f"part-{part}", [partition], about, others=[section])


def other_sections() -> Iterator[HandMade]:
    """Stores whose manifest has more or fewer sections than a packer writes."""

    def partition() -> Partition:
        return Partition((8, 8), with_values((8, 8), 30, lambda i: i % 6), Kind(), Options(), Twist())

    def without_statistics(draft: Draft) -> None:
        draft.set_manifest(manifest_body([s for s in draft.manifest_sections() if s.name != "statistics"]))

    unknown = [ManifestSection("x-note", b"nobody knows this", 0), ManifestSection("0", b"", 0)]
    unknown.append(ManifestSection("storage-hint", b"\1", 0))
    yield HandMade("section-unknown", [partition()], "sections of unknown names that are not critical", others=unknown)
    yield HandMade("section-statistics", [partition()], "no section `statistics`", change=without_statistics)


# ---------------------------------------------------------------------------------------------------------------
# Invalid vectors
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Invalid:
    """An invalid store: who refuses it, which file the error is about, the rule, and what is wrong."""

    name: str
    level: str
    file: str
    rule: str
    about: str
    draft: Draft


FIRST, SECOND = chunk_name(0), chunk_name(1)
READER, VERIFIER = "reader", "verifier"
Change = Callable[[Draft], None]


class Unsorted(Twist):
    """Leaves the nonzeros as they come."""

    sort = False


class Force(Twist):
    """Another value encoding than the one that is due."""

    def __init__(self, encoding: int, exponent: int = 0) -> None:
        self.choice = encoding, exponent

    def value_encoding(self, due: Choice) -> Choice:
        return self.choice


class Widen(Twist):
    """A column with one bit too many."""

    def __init__(self, column: int, tile: int = 0) -> None:
        self.at = tile, column

    def widths(self, tile: int, widths: list[int]) -> list[int]:
        return [w + ((tile, c) == self.at) for c, w in enumerate(widths)]


class Number(Twist):
    """Another number in one slot of a column of a tile."""

    def __init__(self, column: int, slot: int, number: int, tile: int = 0) -> None:
        self.at, self.slot, self.number = (tile, column), slot, number

    def numbers(self, tile: int, column: int, numbers: list[int]) -> list[int]:
        if (tile, column) == self.at:
            numbers[self.slot] = self.number
        return numbers


class Shift(Twist):
    """All numbers of a column larger by one, as if the base were smaller."""

    def __init__(self, column: int, count: int) -> None:
        self.column, self.count = column, count

    def numbers(self, tile: int, column: int, numbers: list[int]) -> list[int]:
        return [n + (column == self.column and at < self.count) for at, n in enumerate(numbers)]


class NoDecimal(Twist):
    """Some value is an exception although it is decimal."""

    def __init__(self, value: float) -> None:
        self.value = value

    def decimal(self, value: float) -> bool:
        return value != self.value


class Cut(Twist):
    """Chunks that begin at the nonzeros given."""

    def __init__(self, bounds: list[int]) -> None:
        self.bounds = bounds

    def boundaries(self, boundaries: list[int]) -> list[int]:
        return self.bounds


class Section(Twist):
    """Another content of one section."""

    def __init__(self, kind: int, change: Callable[[bytes], bytes]) -> None:
        self.kind, self.change = kind, change

    def sections(self, sections: dict[int, bytes]) -> dict[int, bytes]:
        return sections | {self.kind: self.change(sections[self.kind])}


class Added(Twist):
    """Empty sections that have no place there."""

    def __init__(self, *kinds: int) -> None:
        self.kinds = kinds

    def sections(self, sections: dict[int, bytes]) -> dict[int, bytes]:
        return sections | dict.fromkeys(self.kinds, b"")


class Removed(Twist):
    """A section is not there."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def sections(self, sections: dict[int, bytes]) -> dict[int, bytes]:
        return {kind: content for kind, content in sections.items() if kind != self.kind}


class Stride(Twist):
    """A stride that some distance of the starts is below, so that a number is as if it were below 0."""

    def stride(self, begins: list[int], stride: int) -> int:
        return stride + 1 if len(begins) == 3 else stride


class Lowered(Twist):
    """A base below where its tile begins, for which the numbers make up."""

    def base(self, begins: list[int]) -> int:
        return begins[0] - 1


class Divided(Twist):
    """The node of a level that has a nonzero begins anew there."""

    def __init__(self, level: int, nonzero: int) -> None:
        self.at = level, nonzero

    def base(self, begins: list[int]) -> int:
        """The base of a tile of an inner level whose children begin there."""
        return begins[0]

    def divides(self, level: int, nonzero: int) -> bool:
        return (level, nonzero) == self.at


def invalid_vectors() -> list[Invalid]:
    return [
        *invalid_preambles(), *invalid_tables(), *invalid_fields(), *invalid_covers(), *invalid_files(),
        *invalid_sections(), *invalid_frames(), *invalid_images(), *invalid_values(), *invalid_trees(),
        *invalid_draft_images(), *unverified(), *unverified_encodings(), *unverified_statistics(),
    ]


# The bases of the invalid vectors: small, and with room for the fault (spans that are no power of two less one).
_NARROW = Valid("narrow", (8, 8), [((i, j), i + j + 0.5) for i in range(1, 6) for j in range(1, 7)])
_RAW = Valid("raw", (6, 6), [((i, j), i - j / 8) for i in range(6) for j in range(6)], Options(layout=RAW))
_TWO = Valid("two", (2, 2), [((0, 0), 1.0)] * 16384 + [((1, 1), 1.0)] * 600, Options(duplicates=True))
_KEYS = Valid("keys", KEYS, with_values(KEYS, 20, lambda i: i), Options(layout=RAW))
_INTEGER = Valid("integer", (50, 40), with_values((50, 40), 300, lambda i: i % 6))
_INTEGER_TWO = Valid("integer", (50, 40), with_values((50, 40), 700, lambda i: i % 6))
_DICTIONARY = Valid("dictionary", (50, 40), with_values((50, 40), 300, lambda i: (i % 5) / 10))
_LARGE = Valid("large", (2, 2), [((0, 0), 0.0)] * 4200, Options(layout=RAW, zstd=3, duplicates=True))
_F64 = Valid("f64", (8, 8), [((i, i), i / 10) for i in range(8)])
_TREE = Valid("tree", (4, 5, 4), SLICES, Options(layout=TREE, leaf=CSR))
_PADDED = Valid("padded", (4, 5, 4), SLICES, Options(layout=TREE, leaf=ELL))
_SLICE = Valid("slice", (1, 5, 4), SLICES[:8], Options(layout=TREE, leaf=CSR))
_ROOMY = Valid("roomy", (8, 8, 8), [((i, i * j % 5, j), 1.5 * i) for i in range(5) for j in range(5)],
               Options(layout=TREE, leaf=CSR))
_ALONE = Valid("alone", (2, 2, 2000), [((0, i // 1100, i % 1100), i % 6 * 1.0) for i in range(1200)],
               Options(layout=TREE, leaf=ELL))
_ZSTD = Valid("zstd", (50, 40), with_values((50, 40), 300, lambda i: (i % 5) / 10), Options(zstd=3))
_SOME = {3: 1 / 3, 20: -0.0, 200: 0.1 + 0.2}
_DECIMAL = Valid("decimal", (50, 40), in_order((50, 40), 300, with_some(lambda i: i * 37 % 301 / 1000, _SOME)))
_DECIMAL_TREE = Valid("decimal-tree", (10, 60), [((i // 40, i % 40), v) for i, (_, v) in enumerate(_DECIMAL.nonzeros)],
                      Options(layout=TREE, leaf=CSR))
_CROWDED = Valid("crowded", (50, 40), in_order((50, 40), 300, lambda i: third(i) if i % 4 == 0 and i < 260
                                               else i * 37 % 301 / 1000))


def small_draft(form: int) -> HandMade:
    """A small store of a draft's format."""
    dims = (9, 8, 7)
    nonzeros: list[Nonzero] = [((i, j, (i * j + k) % 6), i - j / 4) for i in range(1, 6) for j in range(5) for k in range(2)]
    kinds = {
        CSF: Kind(CSF, TREE, (0, 1, 2)),
        B_CSF: Kind(B_CSF, TREE, (0, 1, 2), struct.pack("<II", 4, 0)),
        HB_CSF: Kind(HB_CSF, LISTED, (0, 1, 2), struct.pack("<II", 1, 0)),
        F_COO: Kind(F_COO, SEGMENTED, (0, 1, 2), struct.pack("<II", 0b100, 0)),
    }
    if form == HB_CSF:
        nonzeros = [((i, 7 - i, i % 5), i - 0.25) for i in range(1, 7)]
    kind = replace(kinds[form], cuts=(0,))
    return HandMade("small", [LAYOUTS[kind.layout](dims, nonzeros, kind, Options(), Twist())], "")


def two_parts(form: int) -> HandMade:
    """CSF with one tree for each mode, or MM-CSF with two trees."""
    dims = (4, 5, 4)
    pieces = [SLICES[:8], SLICES[8:]] if form == MM_CSF else [SLICES] * 3
    partitions = []
    for number, part in enumerate(pieces):
        order = tuple((number + at) % 3 for at in range(3))
        bits = (7, 1) if form == MM_CSF else (1 << number, 1 << number)
        partitions.append(Tree(dims, part, Kind(form, TREE, order, b"", *bits, cuts=(0,)), Options(), Twist()))
    return HandMade("two", partitions, "")


Base = Valid | HandMade


def without_chunks(draft: Draft) -> Draft:
    """Only the manifest: a reader that finds its fault does not come to the chunks."""
    draft.files = {MANIFEST: draft.files[MANIFEST]}
    return draft


def of_manifest(
    name: str, rule: str, about: str, base: Base, change: Change, keep: Sequence[str] = ()
) -> Invalid:
    """A fault of the manifest that every reader refuses."""
    draft = without_chunks(base.draft())
    change(draft)
    draft.seal(keep)
    return Invalid(f"manifest-{name}", READER, MANIFEST, rule, about, draft)


def poke(at: int, layout: str, *values: object) -> Change:
    return lambda d: d.poke(MANIFEST, at, layout, *values)


def poke_section(section: str, at: int, layout: str, *values: object) -> Change:
    return lambda d: d.poke(MANIFEST, d.at(section) + at, layout, *values)


def poke_entry(section: str, at: int, layout: str, *values: object) -> Change:
    """Another field in a section's entry of the body's table."""
    return lambda d: d.poke(MANIFEST, d.entry_of(section) + at, layout, *values)


def together(*changes: Change) -> Change:
    def change(draft: Draft) -> None:
        for one in changes:
            one(draft)

    return change


def invalid_preambles() -> Iterator[Invalid]:
    """Faults of the preamble, and of what it says of the body."""

    def shorten(d: Draft) -> None:
        del d.files[MANIFEST][-1]

    def keep_40(d: Draft) -> None:
        del d.files[MANIFEST][40:]

    draft = without_chunks(_NARROW.draft())
    keep_40(draft)
    yield Invalid("manifest-short", READER, MANIFEST, "manifest-short", "40 bytes", draft)
    yield of_manifest("magic", "manifest-magic", "another magic", _NARROW, poke(0, "<8s", b"BLCOSTOP"))
    for version in (0, 3, 2**32 - 1):
        yield of_manifest(f"version-{version}", "manifest-version", f"version {version}", _NARROW,
                          poke(8, "<I", version))
    yield of_manifest("preamble-checksum", "manifest-preamble", "another preamble checksum", _NARROW,
                      lambda d: d.flip(MANIFEST, 57), ["preamble"])
    yield of_manifest("preamble-damaged", "manifest-preamble", "a bit of the store id flipped", _NARROW,
                      lambda d: d.flip(MANIFEST, 24), ["preamble", "body"])
    yield of_manifest("preamble-damaged-version", "manifest-preamble", "a bit of the version flipped", _NARROW,
                      lambda d: d.flip(MANIFEST, 8), ["preamble", "body"])
    for at in (32, 55):
        yield of_manifest(f"preamble-reserved-{at}", "manifest-reserved", f"byte {at} is 1", _NARROW, poke(at, "<B", 1))
    yield of_manifest("body-offset", "manifest-reserved", "body offset 128", _NARROW, poke(12, "<I", 128))
    yield of_manifest("body-length", "manifest-length", "a body length one too small", _NARROW,
                      lambda d: d.poke(MANIFEST, 16, "<Q", len(d.files[MANIFEST]) - PREAMBLE_BYTES - 1))
    yield of_manifest("body-length-large", "manifest-length", "body length 2^31", _NARROW, poke(16, "<Q", 2**31))
    yield of_manifest("truncated", "manifest-length", "the last byte is not there", _NARROW, shorten)
    yield of_manifest("trailing", "manifest-length", "a byte behind the body", _NARROW,
                      lambda d: d.files[MANIFEST].append(0))
    yield of_manifest("checksum", "manifest-checksum", "another store id", _NARROW, lambda d: d.flip(MANIFEST, 30),
                      ["body"])
    yield of_manifest("damaged", "manifest-checksum", "a bit of the body flipped", _NARROW,
                      lambda d: d.flip(MANIFEST, d.at("tensor") + 30), ["body"])


NOTE = ManifestSection("x-note", b"abc", 0)


def invalid_tables() -> Iterator[Invalid]:
    """Faults of the body's table and of what lies between its sections."""

    def vector(name: str, about: str, change: Change, rule: str = "manifest-sections") -> Invalid:
        return of_manifest(name, rule, about, _NARROW, change)

    def listed(change: Callable[[list[ManifestSection]], list[ManifestSection]]) -> Change:
        return lambda d: d.set_manifest(manifest_body(change(d.manifest_sections())))

    def added(*sections: ManifestSection) -> Change:
        return listed(lambda old: sorted([*old, *sections], key=lambda s: s.name))

    def named(name: str) -> Change:
        return added(ManifestSection(name, b"", 0))

    def body(change: Callable[[bytes], bytes]) -> Change:
        return lambda d: d.set_manifest(change(bytes(d.files[MANIFEST][PREAMBLE_BYTES:])))

    def flagged(name: str, flags: int) -> Change:
        return poke_entry(name, 12, "<I", flags)

    def moved(d: Draft) -> None:
        """A hole of 8 bytes before the last section."""
        at = d.at("tensor")
        hole = bytes(d.files[MANIFEST][PREAMBLE_BYTES:at]) + bytes(8) + bytes(d.files[MANIFEST][at:])
        d.set_manifest(hole)
        d.poke(MANIFEST, d.entry_of("tensor") + 16, "<Q", at + 8 - PREAMBLE_BYTES)

    def first_moved(d: Draft) -> None:
        """A hole of 8 bytes behind the table."""
        start = 8 + 32 * len(d.manifest_sections())
        table = bytes(d.files[MANIFEST][PREAMBLE_BYTES : PREAMBLE_BYTES + start])
        d.set_manifest(table + bytes(8) + bytes(d.files[MANIFEST][PREAMBLE_BYTES + start :]))
        for section in d.manifest_sections():
            at = struct.unpack_from("<Q", d.files[MANIFEST], d.entry_of(section.name) + 16)[0]
            d.poke(MANIFEST, d.entry_of(section.name) + 16, "<Q", at + 8)

    def swap(sections: list[ManifestSection]) -> list[ManifestSection]:
        return [*sections[:-2], sections[-1], sections[-2]]

    def without(name: str) -> Change:
        return listed(lambda old: [s for s in old if s.name != name])

    def overlap(d: Draft) -> None:
        d.poke(MANIFEST, d.entry_of("storage") + 16, "<Q", d.at("statistics") - PREAMBLE_BYTES)

    yield vector("sections-none", "a table of no sections", body(lambda b: bytes(8)))
    yield vector("sections-many", "65537 sections, of which the table has no room", poke(PREAMBLE_BYTES, "<I", 65537))
    yield vector("sections-beyond", "a table that does not fit the body", poke(PREAMBLE_BYTES, "<I", 1000))
    yield vector("sections-no-table", "a body of 4 bytes", body(lambda b: b[:4]))
    yield vector("table-reserved", "the reserved field of the table is 1", poke(PREAMBLE_BYTES + 4, "<I", 1))
    yield vector("names-order", "`tensor` before `storage`", listed(swap))
    yield vector("names-equal", "two sections `x-note`", added(NOTE, NOTE))
    yield vector("name-upper", "a name with a capital letter", named("x-Note"))
    yield vector("name-underscore", "a name with an underscore", named("x_note"))
    yield vector("name-empty", "an empty name", named(""))
    yield vector("name-inside", "a name with a zero inside", named("x\0note"))
    yield vector("name-high", "a name with a byte above 127", named("xé"))
    yield vector("flag-tensor", "`tensor` is not critical", flagged("tensor", 0))
    yield vector("flag-chunks", "`chunks` is not critical", flagged("chunks", 0))
    yield vector("flag-statistics", "`statistics` is critical", flagged("statistics", 1))
    yield vector("flag-reserved", "a reserved flag of `storage` is set", flagged("storage", 3))
    yield vector("flag-reserved-unknown", "a reserved flag of an unknown section is set",
                 added(ManifestSection("x-note", b"", 2**31)))
    for name in ("chunks", "parameters", "partitions", "storage", "tensor"):
        yield vector(f"missing-{name}", f"no section `{name}`", without(name))
    yield vector("section-hole", "8 bytes that belong to no section", moved)
    yield vector("section-first", "the first section does not begin behind the table", first_moved)
    yield vector("section-overlap", "`storage` begins where `statistics` does", overlap)
    yield vector("section-outside", "`tensor` is longer than the body", poke_entry("tensor", 24, "<Q", 2**31))
    yield vector("section-overflow", "offset and length of `tensor` wrap around",
                 poke_entry("tensor", 24, "<Q", 2**64 - 8))
    yield vector("section-offset", "the offset of `tensor` is 2^63", poke_entry("tensor", 16, "<Q", 2**63))
    yield vector("section-gap", "a byte behind `x-note` is not zero",
                 together(added(NOTE), lambda d: d.poke(MANIFEST, d.at("x-note") + 5, "<B", 1)))
    yield vector("section-gap-inside", "a byte between sections is not zero",
                 together(added(ManifestSection("q", b"abc", 0)), lambda d: d.poke(MANIFEST, d.at("q") + 3, "<B", 1)))
    yield vector("body-not-rounded", "the body ends where its last section ends, 3 bytes behind a multiple of 8",
                 together(added(NOTE), body(lambda b: b[:-5])))
    yield vector("body-long", "8 zeros behind the last section", body(lambda b: b + bytes(8)))
    yield vector("critical", "a critical section `zz`", added(ManifestSection("zz", b"", 1)), "manifest-critical")
    yield vector("critical-private", "a critical section `x-secret`",
                 added(ManifestSection("x-secret", b"12345678", 1)), "manifest-critical")


def resized(section: str, length: int) -> Change:
    """A section cut or filled with zeros."""
    return lambda d: d.set_section(section, lambda content: content[:length].ljust(length, b"\0"))


def longer(section: str, by: int) -> Change:
    return lambda d: d.set_section(section, lambda content: content[:by] if by < 0 else content + bytes(by))


def invalid_fields() -> Iterator[Invalid]:
    """Fields and lengths of the manifest's sections outside their ranges."""

    def vector(name: str, about: str, base: Base, *changes: Change, rule: str = "manifest-field") -> Invalid:
        return of_manifest(name, rule, about, base, together(*changes))

    def field_of(
        section: str, base: Base, faults: Iterable[tuple[str, str, int, str, tuple[object, ...]]]
    ) -> Iterator[Invalid]:
        for name, about, at, layout, values in faults:
            yield vector(f"{section}-{name}", about, base, poke_section(section, at, layout, *values))

    for code in (0, 8, 2**31):
        yield vector(f"format-{code}", f"format {code}", _NARROW, poke_section("partitions", 0, "<I", code),
                     rule="manifest-format")
    for section in ("tensor", "storage", "partitions", "chunks", "statistics"):
        yield vector(f"{section}-long", f"`{section}` is 8 bytes too long", _NARROW, longer(section, 8))
        yield vector(f"{section}-short", f"`{section}` is 8 bytes too short", _NARROW, longer(section, -8))
        if section == "chunks":
            continue  # the number of chunks is another rule's
        yield vector(f"{section}-empty", f"`{section}` is empty", _NARROW, resized(section, 0))
    yield vector("parameters-long", "`parameters` has bytes of no partition", _NARROW, longer("parameters", 8))
    yield vector("parameters-short", "`parameters` is shorter than the partition's", _TREE, longer("parameters", -4))
    yield vector("part-long", "`part` has 64 bytes", part_base(), longer("part", 8))
    yield vector("part-short", "`part` has 48 bytes", part_base(), longer("part", -8))
    yield vector("modes-long", "`modes` has bytes behind its names", labelled(), longer("modes", 1))
    yield vector("modes-short", "`modes` ends inside of a name", labelled(), longer("modes", -1))
    yield vector("modes-empty", "`modes` is empty", labelled(), resized("modes", 0))

    for order in (0, 1, 9, 2**32 - 1):
        length = TENSOR_BYTES + MODE_BYTES * min(order, 9)
        yield vector(f"tensor-order-{order}", f"order {order}", _NARROW, resized("tensor", length),
                     poke_section("tensor", 0, "<I", order))
    yield from field_of("tensor", _NARROW, [
        ("duplicates", "duplicates is 2", 4, "<I", (2,)),
        ("nnz-zero", "no nonzeros", 8, "<Q", (0,)),
        ("squares-nan", "a sum of squares that is NaN", 24, "<d", (math.nan,)),
        ("value-min-infinite", "a value min that is not finite", 32, "<d", (-math.inf,)),
        ("value-max-infinite", "a value max that is not finite", 40, "<d", (math.inf,)),
        ("reserved", "a reserved field is 1", 48, "<Q", (1,)),
        ("dim-zero", "mode 0 has no index", 56, "<I", (0,)),
        ("dim-reserved", "a reserved field of mode 1 is 1", 60 + MODE_BYTES, "<I", (1,)),
    ])
    yield vector("tensor-bits", "152 linear bits", _KEYS,
                 *(poke_section("tensor", TENSOR_BYTES + MODE_BYTES * mode, "<I", 2**19) for mode in range(8)))

    yield from field_of("storage", _NARROW, [
        ("codec", "codec 2", 0, "<I", (2,)),
        ("level-none", "a level of 3 without a codec", 4, "<i", (3,)),
        ("chunk-bytes-small", "chunk bytes is 2^16 - 1", 8, "<Q", (2**16 - 1,)),
        ("chunk-bytes-large", "chunk bytes is 2^30 + 1", 8, "<Q", (2**30 + 1,)),
        ("reserved", "a reserved field is 1", 16, "<Q", (1,)),
    ])
    yield from field_of("storage", _ZSTD, [
        ("level-large", "level 23", 4, "<i", (23,)),
        ("level-zero", "level 0 with a codec", 4, "<i", (0,)),
        ("level-negative", "level -1", 4, "<i", (-1,)),
    ])

    yield from field_of("partitions", _NARROW, [
        ("layout-0", "layout 0", 4, "<I", (0,)),
        ("layout-6", "layout 6", 4, "<I", (6,)),
        ("layout-private", "a private layout of a format of these pages", 4, "<I", (128,)),
        ("layout-tree", "trees in a BLCO store", 4, "<I", (TREE,)),
        ("chunks-none", "no chunks", 16, "<Q", (0,)),
        ("order-blco", "a BLCO store in an order of modes", 40, "<2B", (0, 1)),
        ("parameters-at", "parameters at is 8", 48, "<Q", (8,)),
        ("parameters-outside", "parameters outside of their section", 56, "<Q", (8,)),
    ])
    yield vector("partitions-targets-beyond", "a target mode that is not there", _NARROW,
                 poke_section("partitions", 8, "<I", 0b111), rule="manifest-covers")
    yield vector("partitions-covers-none", "in no cover", _NARROW, poke_section("partitions", 12, "<I", 0),
                 rule="manifest-covers")
    for store, base in (("blco", _NARROW), ("hocfs", _TREE)):
        yield vector(f"partitions-covers-{store}", f"a {store.upper()} partition in two covers", base,
                     poke_section("partitions", 12, "<I", 3), rule="manifest-covers")
    yield vector("partitions-parameters-blco", "a BLCO store with parameters", _NARROW, resized("parameters", 8),
                 poke_section("partitions", 56, "<Q", 8))
    yield from field_of("partitions", _TREE, [
        ("layout-hocfs", "layout `tiled` in a HOCFS store", 4, "<I", (TILED,)),
        ("order-twice", "a mode stands twice in the order of modes", 40, "<3B", (0, 1, 1)),
        ("order-outside", "a mode in the order of modes that is not there", 40, "<3B", (0, 1, 3)),
        ("order-beyond", "0 in place of 255 behind the order of modes", 43, "<B", (0,)),
        ("order-short", "the order of modes leaves a mode out", 42, "<B", (255,)),
        ("order-hole", "255 before a mode in the order of modes", 40, "<4B", (0, 255, 1, 2)),
        ("order-interleaved", "a tree that is interleaved", 40, "<3B", (255, 255, 255)),
        ("parameters-overflow", "parameters at is 2^64 - 8", 48, "<Q", (2**64 - 8,)),
    ])
    yield from field_of("parameters", _TREE, [
        ("leaf-rule-0", "leaf rule 0", 0, "<I", (0,)),
        ("leaf-rule-4", "leaf rule 4", 0, "<I", (4,)),
        ("reserved", "a reserved field of a HOCFS partition is 1", 4, "<I", (1,)),
    ])
    yield from field_of("parameters", small_draft(B_CSF), [
        ("bcsf-split", "B-CSF: fiber split 0", 0, "<I", (0,)),
        ("bcsf-reserved", "B-CSF: a reserved field is 1", 4, "<I", (1,)),
    ])
    yield from field_of("parameters", small_draft(HB_CSF), [
        ("hbcsf-role-0", "HB-CSF: role 0", 0, "<I", (0,)),
        ("hbcsf-role-4", "HB-CSF: role 4", 0, "<I", (4,)),
        ("hbcsf-split", "HB-CSF: coordinates with a fiber split", 4, "<I", (1,)),
    ])
    yield from field_of("parameters", small_draft(F_COO), [
        ("fcoo-none", "F-COO: no product mode", 0, "<I", (0,)),
        ("fcoo-all", "F-COO: no index mode", 0, "<I", (0b111,)),
        ("fcoo-beyond", "F-COO: a product mode that is not there", 0, "<I", (0b1100,)),
        ("fcoo-order", "F-COO: a product mode before an index mode", 0, "<I", (0b001,)),
        ("fcoo-thread-nnz", "F-COO: 65,537 thread nonzeros", 4, "<I", (65537,)),
    ])

    yield from field_of("chunks", _NARROW, [
        ("row-order", "row low above row high", 72, "<I", (2**31,)),
        ("row-outside", "row high is the dim", 104, "<I", (_NARROW.dims[0],)),
        ("nnz-zero", "a chunk of no nonzeros", 8, "<Q", (0,)),
        ("file-bytes", "file bytes is above 2^30 + 2^26", 16, "<Q", (2**30 + 2**26 + FILE_ALIGN,)),
        ("row-low-beyond", "row low of a mode that is not there", 72 + 8, "<I", (1,)),
        ("row-high-beyond", "row high of a mode that is not there", 104 + 28, "<I", (1,)),
        ("value-encoding-0", "value encoding 0", 136, "<I", (0,)),
        ("value-encoding-6", "value encoding 6", 136, "<I", (6,)),
        ("reserved", "a reserved field is 1", 140, "<I", (1,)),
    ])
    yield from field_of("chunks", _RAW, [("value-encoding-raw", "a `raw` chunk with f32", 136, "<I", (F32,))])
    yield from field_of("chunks", small_draft(HB_CSF),
                        [("value-encoding-list", "coordinates with integers", 136, "<I", (INTEGER,))])
    yield vector("chunks-first-nonzero", "the first chunk begins at nonzero 512", _NARROW,
                 poke_section("chunks", 0, "<Q", 512), rule="manifest-covers")
    yield vector("chunks-first-nonzero-2", "the second chunk begins inside the first", _TWO,
                 poke_section("chunks", CHUNK_BYTES, "<Q", 15872), rule="manifest-covers")
    many = 2**28 + 512
    yield vector("chunks-nnz-large", "a chunk of 2^28 + 512 nonzeros", _NARROW, poke_section("chunks", 8, "<Q", many),
                 poke_section("partitions", 24, "<Q", many), poke_section("tensor", 8, "<Q", many))
    many = 2**29 + 1
    yield vector("chunks-nnz-large-tree", "a chunk of a tree with 2^29 + 1 nonzeros", _TREE,
                 poke_section("chunks", 8, "<Q", many), poke_section("partitions", 24, "<Q", many),
                 poke_section("tensor", 8, "<Q", many))
    yield vector("chunks-nnz-tiles", "a chunk that is not the last has 16284 nonzeros, no multiple of 512", _TWO,
                 poke_section("chunks", 8, "<Q", 16284), poke_section("chunks", CHUNK_BYTES, "<2Q", 16284, 700),
                 rule="manifest-covers")
    yield Invalid("manifest-chunks-image-bytes", READER, MANIFEST, "manifest-field", "image bytes is above chunk bytes",
                  _LARGE.draft(Cut([0])))

    yield from field_of("part", part_base(), [
        ("number", "part 4 of 4", 0, "<I", (4,)),
        ("none", "part 0 of 0", 0, "<2I", (0, 0)),
        ("nnz", "the whole tensor has fewer nonzeros than the part", 8, "<Q", (1,)),
    ])
    yield from field_of("modes", labelled(), [
        ("reserved", "a reserved field of `modes` is 1", 4, "<I", (1,)),
        ("kind", "labels of kind 5", 8, "<I", (5,)),
        ("steps", "steps is 2", 8 + 4, "<I", (2,)),
        ("name-length", "a name of 4097 bytes", 8 + 8, "<I", (4097,)),
        ("blocks-none", "labels in no blocks", 8 + 12, "<I", (0,)),
        ("blocks-many", "6 blocks of 5 labels", 8 + 12, "<I", (6,)),
        ("bytes", "a file of labels that is shorter than its table", 8 + 16, "<Q", (63,)),
        ("none-steps", "a mode without labels has steps", 48 + 4, "<I", (1,)),
        ("none-blocks", "a mode without labels has a block", 48 + 12, "<I", (1,)),
        ("none-bytes", "a mode without labels has bytes", 48 + 16, "<Q", (32,)),
        ("none-checksum", "a mode without labels has a checksum", 48 + 24, "<Q", (1,)),
        ("none-text", "a mode without labels has text", 48 + 32, "<Q", (1,)),
        ("name", "a name that is not UTF-8", 8 + 3 * 40, "<B", (255,)),
    ])


def part_base() -> HandMade:
    """The second part of a small tensor in four."""
    nonzeros = Partition((8, 8), _NARROW.nonzeros, Kind(), Options(), Twist())
    inside = nonzeros.nonzeros[8:15]
    low, high = nonzeros.linear(inside[0]), nonzeros.linear(inside[-1])
    partition = Partition((8, 8), inside, Kind(), Options(), Twist())
    return HandMade("part", [partition], "", others=[part_section(1, 4, nonzeros.nonzeros, low, high)])


def invalid_covers() -> Iterator[Invalid]:
    """Partitions, covers and chunks that do not go together."""

    def vector(name: str, about: str, base: Base, *changes: Change) -> Invalid:
        return of_manifest(name, "manifest-covers", about, base, together(*changes))

    def in_partition(number: int, at: int, layout: str, *values: object) -> Change:
        return poke_section("partitions", PARTITION_BYTES * number + at, layout, *values)

    def hash_off(section: str, at: int) -> Change:
        return lambda d: d.flip(MANIFEST, d.at(section) + at)

    csf, mixed = two_parts(CSF), two_parts(MM_CSF)
    yield vector("nnz", "the tensor has one nonzero more than its partition", _NARROW, poke_section("tensor", 8, "<Q", 31))
    yield vector("partition-nnz", "partition and tensor have one nonzero more than the chunk", _NARROW,
                 in_partition(0, 24, "<Q", 31), poke_section("tensor", 8, "<Q", 31))
    yield vector("hash", "the tensor has another hash than its partition", _NARROW, hash_off("tensor", 16))
    yield vector("partition-hash", "the partition has another hash than the tensor", _NARROW, hash_off("partitions", 32))
    yield vector("covers-hash", "the partition of cover 1 has another hash than the tensor", csf,
                 hash_off("partitions", PARTITION_BYTES + 32))
    yield vector("covers-sum", "the hashes of a cover's partitions do not add up", mixed, hash_off("partitions", 32))
    yield vector("covers-nnz", "a cover of two partitions has one nonzero less than the tensor", mixed,
                 poke_section("tensor", 8, "<Q", 22))
    yield vector("covers-left-out", "the only partition is in cover 1", _NARROW, in_partition(0, 12, "<I", 2))
    yield vector("covers-hole", "covers 0, 1 and 3", csf, in_partition(2, 12, "<I", 8))
    yield vector("covers-twice", "the nonzeros are in cover 0 twice", csf, in_partition(1, 12, "<I", 3))
    yield vector("targets-none", "no mode can be computed", _NARROW, in_partition(0, 8, "<I", 0))
    yield vector("targets-missing", "no cover serves mode 1", _NARROW, in_partition(0, 8, "<I", 1))
    yield vector("targets-cover", "no cover serves mode 1 with all its partitions", mixed, in_partition(1, 8, "<I", 5))
    yield vector("chunks-number", "the partition has two chunks, the manifest one", _NARROW,
                 in_partition(0, 16, "<Q", 2))
    yield vector("chunks-left", "the partition has one chunk, the manifest two", _TWO, in_partition(0, 16, "<Q", 1))
    yield vector("chunks-overflow", "the numbers of chunks wrap around", csf, in_partition(0, 16, "<Q", 2**63),
                 in_partition(1, 16, "<Q", 2**63 + 2))


def of_header(name: str, rule: str, about: str, at: int, layout: str, *values: object, base: Base = _NARROW) -> Invalid:
    """Another field in a chunk's header, whose checksums are sealed again."""
    draft = base.draft()
    draft.poke(FIRST, at, layout, *values)
    draft.seal_header(0)
    return Invalid(f"chunk-{name}", READER, FIRST, rule, about, draft)


def invalid_files() -> Iterator[Invalid]:
    """Faults of a chunk's file that every reader refuses."""

    def vector(name: str, rule: str, about: str, change: Change, base: Base = _NARROW) -> Invalid:
        draft = base.draft()
        change(draft)
        return Invalid(f"chunk-{name}", READER, FIRST, rule, about, draft)

    def identity(name: str, about: str, at: int, layout: str, *values: object, base: Base = _NARROW) -> Invalid:
        return of_header(f"identity-{name}", "chunk-identity", about, at, layout, *values, base=base)

    def by_manifest(name: str, about: str, at: int, layout: str, *values: object) -> Invalid:
        """The header as it was, the manifest's entry changed."""
        draft = _NARROW.draft()
        draft.poke(MANIFEST, draft.at("chunks") + at, layout, *values)
        draft.seal()
        return Invalid(f"chunk-identity-{name}", READER, FIRST, "chunk-identity", about, draft)

    def cut_file(d: Draft) -> None:
        del d.files[FIRST][4000:]

    def empty_file(d: Draft) -> None:
        d.files[FIRST].clear()

    def swap_files(d: Draft) -> None:
        d.files[FIRST], d.files[SECOND] = d.files[SECOND], d.files[FIRST]

    def lengthen(d: Draft) -> None:
        d.files[FIRST] += bytes(FILE_ALIGN)

    def other_payload_checksum(d: Draft) -> None:
        """Manifest and header agree."""
        checksum = struct.pack("<Q", 1)
        d.poke(FIRST, 48, "<8s", checksum)
        d.poke(MANIFEST, d.at("chunks") + 32, "<8s", checksum)
        d.seal(["payload"])

    draft = without_chunks(_NARROW.draft())
    yield Invalid("chunk-missing", READER, FIRST, "chunk-missing", "the chunk's file is not there", draft)
    yield vector("truncated", "chunk-length", "96 bytes are not there", cut_file)
    yield vector("empty", "chunk-length", "an empty file", empty_file)
    yield vector("trailing", "chunk-length", "4096 zeros behind the file's end", lengthen)
    yield of_header("magic", "chunk-magic", "another magic", 0, "<8s", b"BLCOCHNG")
    yield vector("header-checksum", "chunk-header", "a bit of the header flipped", lambda d: d.flip(FIRST, 24))
    yield vector("header-checksum-reserved", "chunk-header", "a reserved bit flipped", lambda d: d.flip(FIRST, 100))
    yield vector("table-damaged", "chunk-header", "a bit of the section table flipped",
                 lambda d: d.flip(FIRST, HEADER_BYTES + 8))
    draft = _NARROW.draft()
    draft.flip(FIRST, 72)
    draft.seal_header(0, ["table"])
    yield Invalid("chunk-table-checksum", READER, FIRST, "chunk-header", "another table checksum", draft)
    for version in (0, 1, 3):
        yield of_header(f"version-{version}", "chunk-version", f"version {version}", 8, "<I", version)

    yield identity("number", "chunk 1 in the header", 12, "<I", 1)
    yield identity("first-nonzero", "another first nonzero", 24, "<Q", 512)
    yield identity("nnz", "another nnz", 32, "<I", 29)
    yield identity("order", "order 3", 44, "<B", 3)
    yield identity("layout", "layout `raw` in the header alone", 45, "<B", RAW)
    yield identity("value-encoding", "f64 in the header, f32 in the manifest", 46, "<B", F64)
    yield identity("codec", "codec 1 in the header", 47, "<B", 1)
    yield identity("payload-checksum", "another payload checksum", 48, "<Q", 1)
    yield identity("format", "format 2 in the header", 56, "<I", HOCFS)
    yield identity("partition", "partition 1 in the header", 60, "<I", 1)
    yield by_manifest("entry-encoding", "f32 in the header, f64 in the manifest", 136, "<I", F64)
    yield by_manifest("entry-image", "another image bytes in the manifest", 24, "<Q", 1152)
    draft = _NARROW.draft()
    draft.flip(FIRST, 16)
    draft.seal_header(0)
    yield Invalid("chunk-identity-store", READER, FIRST, "chunk-identity", "another store id", draft)
    yield vector("swapped", "chunk-identity", "two chunks' files in each other's place", swap_files, _TWO)
    other = replace(_TWO, options=Options(duplicates=True, chunk_bytes=65537))
    draft = _TWO.draft()
    draft.files[SECOND] = other.draft().files[SECOND]
    yield Invalid("chunk-stale", READER, SECOND, "chunk-identity", "a chunk of another store", draft)

    yield of_header("stored-bytes", "chunk-stored", "stored bytes that give a longer file", 40, "<I", 1 << 16)
    yield of_header("stored-bytes-short", "chunk-stored", "stored bytes that are not the image's, without a codec",
                    40, "<I", 512)
    yield of_header("stored-bytes-huge", "chunk-stored", "stored bytes 2^32 - 1", 40, "<I", 2**32 - 1)
    yield of_header("stored-bytes-zstd", "chunk-stored", "stored bytes that give a longer file, with a codec",
                    40, "<I", 4096, base=_ZSTD)
    yield vector("payload-damaged", "chunk-payload", "a bit of the payload flipped", lambda d: d.flip(FIRST, 600))
    yield vector("payload-checksum", "chunk-payload", "another payload checksum in header and manifest",
                 other_payload_checksum)
    yield vector("padding", "chunk-padding", "the last byte of the file is 1", lambda d: d.flip(FIRST, FILE_ALIGN - 1))
    yield vector("padding-first", "chunk-padding", "the first byte behind the payload is 1",
                 lambda d: d.flip(FIRST, d.heads[0] + struct.unpack_from("<I", d.files[FIRST], 40)[0]))


def invalid_sections() -> Iterator[Invalid]:
    """Section tables of chunks against their rules."""
    rule, table = "chunk-sections", HEADER_BYTES
    tiles = table + ENTRY_BYTES

    def twist(name: str, about: str, base: Valid, how: Twist) -> Invalid:
        return Invalid(f"chunk-{name}", READER, FIRST, rule, about, base.draft(how))

    yield of_header("section-order", rule, "TILES behind COLUMNS", tiles, "<I", COLUMNS + 1)
    yield of_header("section-kind", rule, "two sections COLUMNS", tiles, "<I", COLUMNS)
    yield of_header("section-offset", rule, "TILES one unit too far", tiles + 4, "<I", 512)
    yield of_header("section-offset-unit", rule, "TILES at no multiple of 128", tiles + 4, "<I", 388)
    yield of_header("section-first", rule, "SHAPE does not begin behind the header", table + 4, "<I", 384)
    yield of_header("section-reserved", rule, "a reserved field of an entry is 1", table + 12, "<I", 1)
    yield of_header("section-unused", rule, "a byte between the table and the image is 1", table + 4 * ENTRY_BYTES,
                    "<B", 1)
    yield of_header("section-unused-last", rule, "the last byte of the header is 1", 255, "<B", 1)
    yield of_header("section-end", rule, "VALUES ends behind the image", table + 3 * ENTRY_BYTES + 8, "<I", 1 << 20)
    yield of_header("section-end-short", rule, "VALUES ends 128 bytes before the image does",
                    table + 3 * ENTRY_BYTES + 8, "<I", 0)
    yield of_header("section-overflow", rule, "VALUES has 2^32 - 1 bytes", table + 3 * ENTRY_BYTES + 8, "<I", 2**32 - 1)
    draft = _NARROW.draft()
    draft.poke(FIRST, 64, "<I", 0)
    draft.poke(FIRST, 72, "<Q", xxh3_64(b""))
    draft.seal_header(0, ["table"])
    yield Invalid("chunk-sections-none", READER, FIRST, rule, "no sections, so a header of 128 bytes", draft)
    yield of_header("sections-fewer", rule, "the table's last entry is not counted", 64, "<I", 3)
    yield of_header("sections-more", rule, "an entry of zeros is counted", 64, "<I", 5)
    yield of_header("reserved", rule, "the reserved field is 1", 68, "<I", 1)
    yield of_header("reserved-80", rule, "byte 80 is 1", 80, "<B", 1)
    yield of_header("reserved-119", rule, "byte 119 is 1", 119, "<B", 1)
    yield of_header("value-encoding", "chunk-identity", "integers in the header, f32 in the manifest", 46, "<B", INTEGER)
    yield twist("sections-many", "249 sections", _NARROW, Added(*range(100, 345)))
    yield twist("section-added", "LEVELS in a `tiled` chunk", _INTEGER, Added(LEVELS))
    yield twist("section-unknown", "a section of kind 10", _INTEGER, Added(10))
    yield twist("section-private", "a section of a private format", _INTEGER, Added(2**31))
    yield twist("section-values", "VALUES with integers", _INTEGER, Added(VALUES))
    for name, kind, base in (
        ("shape", SHAPE, _NARROW), ("tiles", TILES, _NARROW), ("columns", COLUMNS, _NARROW), ("values", VALUES, _NARROW),
        ("blocks", BLOCKS, _RAW), ("index", INDEX, _RAW), ("levels", LEVELS, _TREE),
    ):
        yield twist(f"section-no-{name}", f"no section {name.upper()}", base, Removed(kind))


def invalid_frames() -> Iterator[Invalid]:
    """Payloads that are not one zstd frame of the image's length."""

    def vector(name: str, about: str, change: Callable[[bytes], bytes]) -> Invalid:
        draft = _ZSTD.draft()
        data, h = draft.files[FIRST], draft.heads[0]
        stored = struct.unpack_from("<I", data, 40)[0]
        payload = change(bytes(data[h : h + stored]))
        length = len(data)
        data[h:] = payload.ljust(length - h, b"\0")
        assert len(data) == length
        draft.poke(FIRST, 40, "<I", len(payload))
        draft.seal()
        return Invalid(f"zstd-{name}", READER, FIRST, "chunk-frame", about, draft)

    draft = _ZSTD.draft()
    image = struct.unpack_from("<I", draft.files[FIRST], 36)[0] - draft.heads[0]
    yield vector("magic", "another magic", lambda p: b"\x29" + p[1:])
    yield vector("block", "a block of the reserved type", lambda p: p[:9] + bytes([p[9] | 6]) + p[10:])
    yield vector("truncated", "the last 5 bytes are not there", lambda p: p[:-5])
    yield vector("empty", "a payload of no bytes", lambda p: b"")
    yield vector("content-size", "the content size is not the content's",
                 lambda p: p[:5] + struct.pack("<I", image - 1) + p[9:])
    yield vector("short", "a frame 128 bytes shorter than the image", lambda p: zstd_frame(bytes(image - 128)))
    yield vector("long", "a frame 128 bytes longer than the image", lambda p: zstd_frame(bytes(image + 128)))
    yield vector("bomb", "a frame of 2^26 bytes", lambda p: zstd_frame_of_zeros(1 << 26))
    yield vector("trailing", "a byte behind the frame", lambda p: p + b"\0")
    yield vector("two-frames", "two frames, half of the image each", lambda p: halves(p, image))
    yield vector("empty-frame", "an empty frame behind the frame", lambda p: p + zstd_frame(b""))
    yield vector("empty-frame-first", "an empty frame before the frame", lambda p: zstd_frame(b"") + p)
    yield vector("skippable", "a skippable frame behind the frame", lambda p: p + SKIPPABLE)
    yield vector("skippable-first", "a skippable frame before the frame", lambda p: SKIPPABLE + p)
    yield vector("window", "a window larger than 2^27 bytes", windowed)
    yield vector("dictionary", "a frame with a dictionary", with_dictionary)


SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"lies"


def with_dictionary(payload: bytes) -> bytes:
    """The same frame, which names dictionary 7."""
    return payload[:4] + bytes([payload[4] | 1, 7]) + payload[5:]


def halves(payload: bytes, length: int) -> bytes:
    """The image's bytes as two frames."""
    image = unpacked(payload)
    return zstd_frame(image[: length // 2]) + zstd_frame(image[length // 2 :])


def windowed(payload: bytes) -> bytes:
    """The same frame, of several segments, with the least window that is too large."""
    return payload[:4] + bytes([payload[4] & ~32, 17 << 3 | 1]) + payload[5:]


def unpacked(payload: bytes) -> bytes:
    """The contents of a frame that `zstd_frame` has made."""
    out, at, last = b"", 9, False
    while not last:
        head = int.from_bytes(payload[at : at + 3], "little")
        last, run, length = bool(head & 1), bool(head >> 1 & 3), head >> 3
        out += payload[at + 3 : at + 4] * length if run else payload[at + 3 : at + 3 + length]
        at += 3 + (1 if run else length)
    return out


def zstd_frame_of_zeros(length: int) -> bytes:
    """A frame without a content size that grows to many zeros."""
    block, window = 1 << 17, 7 << 3
    count = length // block
    blocks = ((block << 3 | 1 << 1 | (n == count - 1)).to_bytes(3, "little") + b"\0" for n in range(count))
    return b"\x28\xb5\x2f\xfd" + bytes([0, window]) + b"".join(blocks)


def in_chunk(
    name: str, rule: str, about: str, base: Base, kind: int, at: int, layout: str, *values: object,
    level: str = READER,
) -> Invalid:
    """Another field in a section of a chunk; payload checksum and all above it sealed again."""
    draft = base.draft()
    draft.poke(FIRST, draft.section(FIRST, kind) + at, layout, *values)
    draft.seal()
    return Invalid(f"{'image' if level == READER else 'verify'}-{name}", level, FIRST, rule, about, draft)


def twisted(name: str, rule: str, about: str, base: Valid, how: Twist, level: str = READER) -> Invalid:
    """A chunk that is written with a fault."""
    return Invalid(f"{'image' if level == READER else 'verify'}-{name}", level, FIRST, rule, about, base.draft(how))


def with_nnz(name: str, rule: str, about: str, draft: Draft, nnz: int) -> Invalid:
    """Another number of nonzeros by header and manifest."""
    draft.poke(FIRST, 32, "<I", nnz)
    draft.poke(MANIFEST, draft.at("tensor") + 8, "<Q", nnz)
    draft.poke(MANIFEST, draft.at("partitions") + 24, "<Q", nnz)
    draft.poke(MANIFEST, draft.at("chunks") + 8, "<Q", nnz)
    draft.seal()
    return Invalid(f"image-{name}", READER, FIRST, rule, about, draft)


def invalid_images() -> Iterator[Invalid]:
    """Faults of `tiled` and `raw` images that every reader refuses."""
    rule = "image-section"
    yield in_chunk("shape", "image-shape", "a dim of 7 in place of 8", _NARROW, SHAPE, 0, "<I", 7)
    yield twisted("shape-length", "image-shape", "three dims in place of two", _NARROW,
                  Section(SHAPE, lambda s: s + s[:4]))
    yield in_chunk("gap", "image-gap", "a byte behind SHAPE is 1", _NARROW, SHAPE, 100, "<B", 1)
    yield in_chunk("gap-last", "image-gap", "the image's last byte is 1", _NARROW, VALUES, 127, "<B", 1)
    yield twisted("tiles-length", rule, "TILES has a record too many", _NARROW, Section(TILES, lambda s: s + s))
    yield in_chunk("tile-range", rule, "a tile's low is above its high", _NARROW, TILES, 16, "<I", 7)
    yield in_chunk("tile-high", rule, "a tile's high is the dim", _NARROW, TILES, 20, "<I", 8)
    yield in_chunk("columns-at", rule, "the first columns at is 1", _NARROW, TILES, 0, "<I", 1)
    yield twisted("columns-length", rule, "COLUMNS is 64 bytes short", _NARROW, Section(COLUMNS, lambda s: s[:-64]))
    yield twisted("index-above-high", "image-index", "an index of mode 0 above its tile's high", _NARROW,
                  Number(0, 3, 7))
    yield in_chunk("value-width", rule, "a value width that is not the dictionary's", _DICTIONARY, TILES, 4, "<I", 2)
    yield in_chunk("value-width-none", rule, "a value width with f32", _NARROW, TILES, 4, "<I", 1)
    yield in_chunk("value-width-large", rule, "value width 56", _INTEGER, TILES, 4, "<I", 56)
    yield in_chunk("value-base", rule, "a value base with f32", _NARROW, TILES, 8, "<q", -1)
    yield in_chunk("value-base-dictionary", rule, "a value base with a dictionary", _DICTIONARY, TILES, 8, "<q", 1)
    yield in_chunk("value-base-large", rule, "a value base of 2^53 + 1", _INTEGER, TILES, 8, "<q", MAX_INTEGER + 1)
    yield in_chunk("value-base-small", rule, "a value base of -2^53 - 1", _INTEGER, TILES, 8, "<q", -MAX_INTEGER - 1)
    yield in_chunk("blocks-order", rule, "keys that do not ascend", _KEYS, BLOCKS, 16, "<Q", 0)
    yield twisted("blocks-equal", rule, "two records of one key", _RAW,
                  Section(BLOCKS, lambda s: s + struct.pack("<QII", 0, 5, 0)))
    yield in_chunk("blocks-first", rule, "the first start is 1", _KEYS, BLOCKS, 8, "<I", 1)
    yield in_chunk("blocks-start-order", rule, "starts that do not ascend", _KEYS, BLOCKS, 24, "<I", 0)
    yield twisted("blocks-start", rule, "a start that is nnz", _KEYS,
                  Section(BLOCKS, lambda s: s[:-8] + struct.pack("<II", 20, 0)))
    yield in_chunk("blocks-reserved", rule, "a reserved field is 1", _KEYS, BLOCKS, 12, "<I", 1)
    yield twisted("blocks-key", rule, "a key of 2^(L - 64)", _KEYS,
                  Section(BLOCKS, lambda s: s[:-16] + struct.pack("<Q", 256) + s[-8:]))
    yield in_chunk("blocks-key-zero", rule, "key 1 with fewer than 64 linear bits", _RAW, BLOCKS, 0, "<Q", 1)
    yield twisted("blocks-empty", rule, "BLOCKS is empty", _RAW, Section(BLOCKS, lambda s: b""))
    yield twisted("blocks-length", rule, "BLOCKS has half a record more", _RAW, Section(BLOCKS, lambda s: s + bytes(8)))
    yield in_chunk("index-unused-bits", rule, "a bit that no mode uses is 1", _RAW, INDEX, 80, "<Q", 1 << 63 | 0o25)
    yield in_chunk("index-outside", "image-index", "an index of mode 0 that is its dim or more", _RAW, INDEX, 80,
                   "<Q", 7)
    yield twisted("index-length", rule, "INDEX has a nonzero too many", _RAW, Section(INDEX, lambda s: s + bytes(8)))


def invalid_values() -> Iterator[Invalid]:
    """Faults of values, dictionaries and exceptions that every reader refuses."""
    rule = "image-section"

    def exceptions_of(values: bytes) -> tuple[int, list[float], list[int]]:
        e, count = struct.unpack_from("<II", values)
        return e, [*struct.unpack_from(f"<{count}d", values, 8)], [*struct.unpack_from(f"<{count}I", values, 8 + 8 * count)]

    def values_of(e: int, values: Sequence[float], places: Sequence[int]) -> bytes:
        return struct.pack(f"<II{len(values)}d{len(places)}I", e, len(values), *values, *places)

    def places(change: Callable[[list[int]], list[int]]) -> Twist:
        def changed(section: bytes) -> bytes:
            e, values, old = exceptions_of(section)
            return values_of(e, values, change(old))

        return Section(VALUES, changed)

    yield in_chunk("dictionary-order", rule, "the dictionary does not ascend", _DICTIONARY, VALUES, 0, "<2d", 0.1, 0.0)
    yield in_chunk("dictionary-equal", rule, "two equal entries", _DICTIONARY, VALUES, 0, "<2d", 0.1, 0.1)
    yield in_chunk("dictionary-zeros", rule, "0.0 before -0.0", _DICTIONARY, VALUES, 0, "<2d", 0.0, -0.0)
    yield in_chunk("dictionary-nan", "image-value", "the last entry is NaN", _DICTIONARY, VALUES, 32, "<d", math.nan)
    yield twisted("dictionary-entry", rule, "the number of an entry that is not there", _DICTIONARY, Number(2, 9, 5))
    yield twisted("dictionary-length", rule, "half an entry more", _DICTIONARY, Section(VALUES, lambda s: s + bytes(4)))
    yield twisted("dictionary-empty", rule, "no entries", _DICTIONARY, Section(VALUES, lambda s: b""))
    yield in_chunk("f64-nan", "image-value", "a NaN", _F64, VALUES, 16, "<d", math.nan)
    yield in_chunk("f64-infinite", "image-value", "an infinity", _F64, VALUES, 16, "<d", -math.inf)
    yield in_chunk("f32-nan", "image-value", "a NaN", _NARROW, VALUES, 16, "<f", math.nan)
    yield in_chunk("f32-infinite", "image-value", "an infinity", _NARROW, VALUES, 16, "<f", math.inf)
    yield in_chunk("raw-nan", "image-value", "a NaN", _RAW, VALUES, 16, "<d", math.nan)
    yield twisted("values-length", rule, "VALUES has a value too many", _F64, Section(VALUES, lambda s: s + bytes(8)))
    yield twisted("values-length-f32", rule, "VALUES has a value too few", _NARROW, Section(VALUES, lambda s: s[:-4]))
    yield twisted("values-length-raw", rule, "VALUES has a value too many", _RAW, Section(VALUES, lambda s: s + bytes(8)))
    for base, name in ((_DECIMAL, "decimal"), (_DECIMAL_TREE, "decimal-tree")):
        yield in_chunk(f"{name}-exponent", rule, "exponent 11", base, VALUES, 0, "<I", 11)
        yield in_chunk(f"{name}-exponent-large", rule, "exponent 2^32 - 1", base, VALUES, 0, "<I", 2**32 - 1)
        yield in_chunk(f"{name}-fewer", rule, "two exceptions, VALUES has three", base, VALUES, 4, "<I", 2)
        yield in_chunk(f"{name}-many", rule, "2^32 - 1 exceptions", base, VALUES, 4, "<I", 2**32 - 1)
        yield twisted(f"{name}-order", rule, "places that do not ascend", base, places(lambda p: [p[1], p[0], p[2]]))
        yield twisted(f"{name}-equal", rule, "two exceptions at one place", base, places(lambda p: [p[0], p[0], p[2]]))
        yield twisted(f"{name}-beyond", rule, "a place that is the number of values", base,
                      places(lambda p: [*p[:2], 300]))
        yield twisted(f"{name}-length", rule, "VALUES is 4 bytes too long", base,
                      Section(VALUES, lambda s: s + bytes(4)))
        yield twisted(f"{name}-length-short", rule, "VALUES is 4 bytes too short", base,
                      Section(VALUES, lambda s: s[:-4]))
        yield twisted(f"{name}-length-none", rule, "VALUES has 4 bytes", base, Section(VALUES, lambda s: s[:4]))
        yield in_chunk(f"{name}-nan", "image-value", "an exception is NaN", base, VALUES, 8, "<d", math.nan)
    yield in_chunk("decimal-infinite", "image-value", "an exception is infinite", _DECIMAL, VALUES, 16, "<d", math.inf)
    yield in_chunk("decimal-width", rule, "value width 53", _DECIMAL, TILES, 4, "<I", 53)
    yield in_chunk("decimal-base", rule, "a value base of 2^50 + 1", _DECIMAL, TILES, 8, "<q", MAX_DECIMAL + 1)
    yield in_chunk("decimal-base-small", rule, "a value base of -2^50 - 1", _DECIMAL, TILES, 8, "<q", -MAX_DECIMAL - 1)
    yield twisted("decimal-65", rule, "65 exceptions in a tile", _CROWDED, Force(DECIMAL, 3))


def invalid_trees() -> Iterator[Invalid]:
    """Faults of trees that every reader refuses."""
    rule = "image-section"
    leaves = 64 + 2 * 32  # where LEVELS of _TREE has the record of its leaves

    def levels(name: str, about: str, at: int, layout: str, *values: object, base: Valid = _TREE) -> Invalid:
        return in_chunk(f"levels-{name}", rule, about, base, LEVELS, at, layout, *values)

    yield levels("modes", "other level modes than the manifest's", 1, "<2B", 2, 1)
    yield levels("modes-beyond", "255 in place of 0 behind the level modes", 3, "<B", 255)
    yield levels("rule", "another leaf rule than the manifest's", 8, "<I", AUTO)
    yield levels("reserved", "the reserved field is 1", 12, "<I", 1)
    yield levels("reserved-48", "byte 48 is 1", 48, "<B", 1)
    yield levels("reserved-record", "the reserved field of a record is 1", 64 + 28, "<I", 1)
    yield levels("nodes", "14 slices with 13 fibers", 16, "<I", 14)
    yield levels("nodes-none", "no slices", 16, "<I", 0)
    yield levels("nodes-beyond", "nodes of a level that is not there", 28, "<I", 30)
    yield levels("slots", "22 slots with rule `csr` and 21 nonzeros", 24, "<I", 22)
    yield twisted("levels-length", rule, "LEVELS is 4 bytes too long", _TREE, Section(LEVELS, lambda s: s + bytes(4)))
    yield twisted("levels-length-short", rule, "LEVELS has 60 bytes", _TREE, Section(LEVELS, lambda s: s[:60]))
    yield levels("leaf-code", "a leaf code of a slice that is not there", leaves + 32, "<I", 0b1111, base=_PADDED)
    yield levels("range", "a high that is the dim", 64 + 32 + 8, "<I", 5)
    yield levels("range-order", "a low above its high", 64 + 32 + 4, "<I", 5)
    yield levels("columns-at", "a columns at that is not the sum", 64 + 32, "<I", 2)
    yield levels("second-width", "a second width that moves the columns behind", 64 + 24, "<I", 2)
    yield levels("value-width", "value width 1 with f32", leaves + 24, "<I", 1)
    yield levels("value-base", "value base 1 with f32", leaves + 16, "<q", 1)
    yield levels("before", "the first tile of leaves has one nonzero before it", leaves + 12, "<I", 1)
    yield levels("base", "the first fiber's leaves begin at 1", 64 + 32 + 16, "<q", 1)
    yield levels("stride", "a stride that makes starts go past the leaves", 64 + 32 + 12, "<I", 2)
    yield twisted("starts-order", rule, "starts that do not ascend", _TREE, Number(1, 5, 0, tile=1))
    yield twisted("starts-beyond", rule, "a start below the one before it", _TREE, Stride())
    yield twisted("starts-base", rule, "a base below the first start of its tile", _TREE, Lowered())
    yield twisted("tree-index", "image-index", "an index of a fiber above its tile's high", _TREE,
                  Number(0, 3, 7, tile=1))
    yield in_chunk("padding-nan", "image-value", "padding is NaN", _PADDED, VALUES, 12, "<f", math.nan)
    yield twisted("padding-leaf", "image-tree", "a leaf where padding is due", _PADDED, Number(0, 3, 1, tile=2))
    yield twisted("padding-more", "image-tree", "padding in place of a fiber's second leaf", _PADDED,
                  Number(0, 1, 4, tile=2))
    yield with_nnz("padding-first", "image-tree", "a fiber begins with padding", _PADDED.draft(Number(0, 2, 4, tile=2)), 20)
    yield with_nnz("padding-record", "image-tree", "less padding than the record says", _PADDED.draft(), 20)
    yield twisted("padding-alone", "image-tree", "a leaf in a tile that is said to hold padding alone", _ALONE,
                  Number(0, 7, 0, tile=5))


def invalid_draft_images() -> Iterator[Invalid]:
    """Faults of the layouts of formats.md."""
    rule, segments, listed = "image-section", small_draft(F_COO), small_draft(HB_CSF)
    # SEGMENTS of the small store: one product mode, two index modes, one tile each.
    tile_of_segments = 8 + 16 + 8
    flags = tile_of_segments + 8 + 16

    def vector(name: str, about: str, at: int, layout: str, *values: object) -> Invalid:
        return in_chunk(f"segments-{name}", rule, about, segments, SEGMENTS, at, layout, *values)

    def equal_segments(d: Draft) -> None:
        """The first segment's index of mode 1 is that of the second."""
        at = d.section(FIRST, COLUMNS)
        widths = struct.unpack_from("<I", d.files[FIRST], d.section(FIRST, SEGMENTS) + tile_of_segments)[0]
        mode_1 = at + 64 * (widths + 3)
        d.files[FIRST][mode_1] |= 1
        d.seal()

    yield in_chunk("csf-rule", rule, "a leaf rule in a CSF store", small_draft(CSF), LEVELS, 8, "<I", ELL)
    yield vector("count", "a segment more than flags", 0, "<I", 26)
    yield vector("count-none", "no segments", 0, "<I", 0)
    yield vector("reserved", "the reserved field is 1", 4, "<I", 1)
    yield vector("columns-at", "the first columns at is 1", 8, "<I", 1)
    yield vector("value-base", "a value base where the encoding has none", 16, "<q", 1)
    yield vector("product-high", "a high of the product mode that is its dim", 8 + 20, "<I", 7)
    yield vector("index-columns-at", "columns at of the segments is 0", tile_of_segments, "<I", 0)
    yield vector("index-reserved", "the reserved field of a tile of segments is 1", tile_of_segments + 4, "<I", 1)
    yield vector("index-high", "a high of an index mode that is its dim", tile_of_segments + 12, "<I", 9)
    yield vector("flag-first", "nonzero 0 begins no segment, nonzero 1 does", flags, "<B", 0b10101010 ^ 0b11111100)
    yield vector("flag-beyond", "a flag of a nonzero that is not there", flags + 7, "<B", 0x80)
    draft = segments.draft()
    equal_segments(draft)
    yield Invalid("verify-segments-order", VERIFIER, FIRST, "order", "two equal segments", draft)
    yield in_chunk("coordinates-outside", "image-index", "an index that is its dim", listed, COORDINATES, 4, "<I", 9)
    yield in_chunk("coordinates-nan", "image-value", "a NaN", listed, VALUES, 4, "<f", math.nan)
    for name, kind, change in (
        ("coordinates-long", COORDINATES, 4), ("coordinates-short", COORDINATES, -4), ("coordinates-values", VALUES, 4),
    ):
        yield Invalid(f"image-{name}", READER, FIRST, rule, f"a section that is {change} bytes too long",
                      changed_draft(listed, kind, change))
    yield Invalid("image-segments-long", READER, FIRST, rule, "SEGMENTS is 4 bytes too long",
                  changed_draft(segments, SEGMENTS, 4))


def changed_draft(base: HandMade, kind: int, by: int) -> Draft:
    """A section of the only chunk longer or shorter."""
    partition = copy.copy(base.partitions[0])
    partition.twist = Section(kind, lambda s: s[:by] if by < 0 else s + bytes(by))
    return build_store([partition])


def entry(name: str, about: str, at: int, layout: str, *values: object) -> Invalid:
    """A range in the manifest's entry of a chunk that is not exact."""
    draft = _NARROW.draft()
    draft.poke(MANIFEST, draft.at("chunks") + at, layout, *values)
    draft.seal()
    return Invalid(f"verify-{name}", VERIFIER, MANIFEST, "ranges", about, draft)


def unverified() -> Iterator[Invalid]:
    """Orders, ranges, slots and cuts that only a verifier refuses."""

    def twist(name: str, rule: str, about: str, base: Valid, how: Twist) -> Invalid:
        return twisted(name, rule, about, base, how, VERIFIER)

    def again(base: Valid, change: Callable[[list[Nonzero]], None], options: Options | None = None) -> Valid:
        """The base with its nonzeros, in linear order, changed."""
        nonzeros = list(base.ordered())
        change(nonzeros)
        return Valid(base.name, base.dims, nonzeros, options or base.options)

    def swap(nonzeros: list[Nonzero]) -> None:
        nonzeros[3], nonzeros[4] = nonzeros[4], nonzeros[3]

    def repeat(nonzeros: list[Nonzero]) -> None:
        nonzeros[3] = (nonzeros[4][0], nonzeros[3][1])

    def unsort(nonzeros: list[Nonzero]) -> None:
        nonzeros[3] = (nonzeros[4][0], nonzeros[4][1] + 1)

    linear = linear_index((1, 1), bit_modes((8, 8)))
    yield twist("order", "order", "two nonzeros in each other's place", again(_NARROW, swap), Unsorted())
    yield twist("order-raw", "order", "two nonzeros in each other's place", again(_RAW, swap), Unsorted())
    yield twist("repeated", "order", "a coordinate twice", again(_NARROW, repeat), Twist())
    yield twist("repeated-raw", "order", "a coordinate twice", again(_RAW, repeat), Twist())
    yield twist("repeated-tree", "order", "a coordinate twice", again(_TREE, repeat), Twist())
    yield twist("order-values", "order", "equal coordinates not in the order of their values",
                again(_NARROW, unsort, Options(duplicates=True)), Unsorted())
    yield twist("tree-order", "order", "two leaves in each other's place", again(_TREE, swap), Unsorted())
    yield twist("fiber-twice", "order", "a fiber that stands in its slice twice", _TREE, Divided(1, 1))
    yield twist("slice-twice", "order", "a slice that stands there twice", _TREE, Divided(0, 4))

    yield in_chunk("tile-range", "ranges", "a tile's high is larger than its largest index", _NARROW, TILES, 20, "<I", 6,
                   level=VERIFIER)
    yield in_chunk("tree-range", "ranges", "a tile of fibers has a high above its largest index", _ROOMY, LEVELS,
                   64 + 32 + 8, "<I", 6, level=VERIFIER)
    yield entry("row-low", "row low of mode 0 is not exact", 72, "<I", 0)
    yield entry("row-high", "row high of mode 1 is not exact", 104 + 4, "<I", 7)
    yield entry("first-linear", "first linear is not the first nonzero's", 40, "<Q", linear - 1)
    yield entry("first-linear-high", "the high bits of first linear are not 0", 48, "<Q", 1)
    yield entry("last-linear", "last linear is not the last nonzero's", 56, "<Q", 63)
    for name, at, values in (("from", 24, (63, 0)), ("to", 40, (0, 0))):
        draft = part_base().draft()
        draft.poke(MANIFEST, draft.at("part") + at, "<2Q", *values)
        draft.seal()
        yield Invalid(f"verify-part-{name}", VERIFIER, MANIFEST, "ranges", f"nonzeros on the wrong side of `{name}`", draft)

    yield twist("slot", "slots", "a slot past the last nonzero is 1", _NARROW, Number(1, 511, 1))
    yield twist("slot-beyond", "slots", "a slot past the last nonzero is above high", _NARROW, Number(1, 511, 7))
    yield twist("slot-entry", "slots", "a slot past the last nonzero numbers no entry", _DICTIONARY, Number(2, 511, 7))
    yield twist("slot-value", "slots", "a slot past the last nonzero of a value column is 1", _INTEGER,
                Number(2, 300, 1))
    yield twist("slot-decimal", "slots", "a slot past the last nonzero of a value column is 1", _DECIMAL,
                Number(2, 300, 1))
    yield twist("slot-tree", "slots", "a slot past the last fiber is 1", _TREE, Number(0, 511, 1, tile=1))
    yield twist("slot-tree-starts", "slots", "a slot past the last start is 1", _TREE, Number(1, 13, 1, tile=1))
    yield twist("slot-tree-leaves", "slots", "a slot past the last leaf is 1", _TREE, Number(0, 21, 1, tile=2))
    yield twist("cut", "cut", "two chunks where one is due", _INTEGER_TWO, Cut([0, TILE]))
    yield twist("tree-cut", "cut", "two chunks where one is due", _TREE, Cut([0, 8]))
    lone: list[Nonzero] = [((i, 7 - i % 8, i % 5), i - 0.25) for i in range(600)]
    for name, kind in (
        ("csf", Kind(CSF, TREE, (0, 1, 2), cuts=(0, 8))),
        ("coordinates", Kind(HB_CSF, LISTED, (0, 1, 2), struct.pack("<II", 1, 0), cuts=(0, TILE))),
        ("fcoo", Kind(F_COO, SEGMENTED, (0, 1, 2), struct.pack("<II", 0b100, 0), cuts=(0, TILE))),
    ):
        store = HandMade("", [LAYOUTS[kind.layout]((600, 8, 7), lone, kind, Options(), Twist())], "")
        yield Invalid(f"verify-{name}-cut", VERIFIER, FIRST, "cut", "two chunks where one is due", store.draft())


def unverified_encodings() -> Iterator[Invalid]:
    """Encodings and widths other than those that are due."""

    def twist(name: str, about: str, base: Valid, how: Twist) -> Invalid:
        return twisted(name, "encoding", about, base, how, VERIFIER)

    def poked(name: str, about: str, base: Valid, kind: int, at: int, layout: str, *values: object) -> Invalid:
        return in_chunk(name, "encoding", about, base, kind, at, layout, *values, level=VERIFIER)

    def base_less(base: Valid, count: int) -> Draft:
        """The base of the first tile one less, its numbers one more."""
        draft = base.draft(Shift(2, count))
        at = draft.section(FIRST, TILES) + 8
        draft.poke(FIRST, at, "<q", struct.unpack_from("<q", draft.files[FIRST], at)[0] - 1)
        draft.seal()
        return draft

    def exponents(i: int) -> float:
        return i * 37 % 301 / 1000

    plain = Valid("plain", (50, 40), in_order((50, 40), 300, exponents))
    yield twist("encoding-f64", "f64 where f32 is due", _NARROW, Force(F64))
    yield twist("encoding-integer", "integers where f32 is due", packed_vectors()[0], Force(INTEGER))
    yield twist("encoding-dictionary", "a dictionary where integers are due", _INTEGER, Force(DICTIONARY))
    yield twist("encoding-decimal", "decimals of exponent 0 where integers are due", _INTEGER, Force(DECIMAL, 0))
    yield twist("encoding-decimal-tie", "decimals where a dictionary as long is due", _DICTIONARY, Force(DECIMAL, 1))
    yield twist("encoding-f64-decimal", "f64 where decimals are due", _DECIMAL, Force(F64))
    yield twist("encoding-exponent", "exponent 4 where 3 is due", plain, Force(DECIMAL, 4))
    yield twist("encoding-tree", "f64 where f32 is due", _TREE, Force(F64))
    yield twist("value-width", "a value column one bit wider than due", _INTEGER, Widen(2))
    yield twist("value-width-decimal", "a value column one bit wider than due", plain, Widen(2))
    yield poked("integer-large", "an integer above 2^53", _INTEGER, TILES, 8, "<q", MAX_INTEGER)
    yield poked("decimal-large", "an integer of a decimal above 2^50", _DECIMAL, TILES, 8, "<q", MAX_DECIMAL)
    for name, base in (("integer", _INTEGER), ("decimal", plain)):
        yield Invalid(f"verify-base-{name}", VERIFIER, FIRST, "encoding", "a base below the tile's smallest",
                      base_less(base, 300))
    yield twist("exception-number", "the number of an exception is 1", _DECIMAL, Number(2, 20, 1))
    yield twist("exception-decimal", "an exception that is decimal", _DECIMAL, NoDecimal(_DECIMAL.ordered()[100][1]))
    yield twist("dictionary-unused", "an entry that no value has", _DICTIONARY,
                Section(VALUES, lambda s: s + struct.pack("<d", 9.5)))
    yield poked("padding-value", "padding that does not repeat the value before it", _PADDED, VALUES, 12, "<f", 3.0)
    yield poked("leaf-code", "a slice that is `csr` is said to be `ell`", _TREE, LEVELS, 64 + 96, "<I", 1)
    yield poked("stride", "a stride in a tile of one node", _SLICE, LEVELS, 64 + 12, "<I", 1 << 16)
    yield twist("starts-width", "a column of starts one bit wider than due", _TREE, Widen(1, tile=1))


def unverified_statistics() -> Iterator[Invalid]:
    """Hashes, statistics and labels that are not the nonzeros'."""

    def vector(name: str, rule: str, about: str, change: Change, base: Base = _NARROW, file: str = MANIFEST) -> Invalid:
        draft = base.draft()
        change(draft)
        draft.seal()
        return Invalid(f"verify-{name}", VERIFIER, file, rule, about, draft)

    def field_of(name: str, about: str, section: str, at: int, layout: str, *values: object, base: Base = _NARROW) -> Invalid:
        return vector(name, "statistics", about, poke_section(section, at, layout, *values), base)

    def hashes(d: Draft) -> None:
        for section, at in (("tensor", 16), ("partitions", 32)):
            d.flip(MANIFEST, d.at(section) + at)

    def hashes_of_two(d: Draft) -> None:
        """Two partitions' hashes that are wrong but add up."""
        at = d.at("partitions") + 32
        for number, by in ((0, 1), (1, -1)):
            hashed = struct.unpack_from("<Q", d.files[MANIFEST], at + PARTITION_BYTES * number)[0]
            d.poke(MANIFEST, at + PARTITION_BYTES * number, "<Q", hashed + by & U64)

    squares = sum_of_squares([[v for _, v in _NARROW.ordered()]])
    yield vector("hash", "hash", "tensor and partition have another hash than the nonzeros", hashes)
    yield vector("hash-tree", "hash", "tensor and partition have another hash than the nonzeros", hashes, _TREE)
    yield vector("hash-partitions", "hash", "two partitions' hashes are wrong and add up", hashes_of_two,
                 two_parts(MM_CSF))
    yield field_of("squares", "the next f64 above the sum of squares", "tensor", 24, "<d",
                   math.nextafter(squares, math.inf))
    yield field_of("value-min", "another value min", "tensor", 32, "<d", 1.0)
    yield field_of("value-max", "another value max", "tensor", 40, "<d", 100.0)
    yield field_of("longest-row", "another longest row bound of mode 0", "tensor", 64, "<Q", 7)
    last = lambda d, file: len(d.files[file]) - 1  # noqa: E731
    yield vector("labels-block", "labels", "a bit of a block of labels", lambda d: d.flip("labels-0.bin", 9), labelled(), "labels-0.bin")
    yield vector("labels-table", "labels", "a bit of the table of blocks of labels",
                 lambda d: d.flip("labels-2.bin", last(d, "labels-2.bin")), labelled(), "labels-2.bin")
    yield field_of("sampled", "29 nonzeros sampled of 30", "statistics", 0, "<Q", 29)
    yield field_of("distinct", "another number of distinct indices of mode 0", "statistics", STATISTICS_BYTES, "<Q", 6)
    yield field_of("distinct-last", "another number of distinct indices of mode 1 in groups of 65536", "statistics",
                   STATISTICS_BYTES + 64 + 56, "<Q", 5)
    yield field_of("nodes-none", "nodes of a partition that is no tree", "statistics", 8, "<Q", 1)
    yield field_of("fibers-none", "fiber lengths of a partition that is no tree", "statistics", 72, "<Q", 1)
    yield field_of("nodes-beyond", "nodes of a level that is not there", "statistics", 8 + 24, "<Q", 1, base=_TREE)
    yield field_of("nodes", "14 fibers, there are 13", "statistics", 16, "<Q", 14, base=_TREE)
    yield field_of("nodes-leaves", "20 leaves, there are 21", "statistics", 24, "<Q", 20, base=_TREE)
    yield field_of("nodes-slots", "slots in place of leaves", "statistics", 24, "<Q", 26, base=_PADDED)
    yield field_of("fibers", "a fiber of one nonzero too many", "statistics", 72, "<Q", 13, base=_TREE)
    yield field_of("fibers-long", "a fiber of 2^31 nonzeros", "statistics", 72 + 8 * 31, "<Q", 1, base=_TREE)


# Not kept in the repository: near relatives of other vectors.
EXTRA = {"one-nonzero-raw", "order-8-raw"}


# ---------------------------------------------------------------------------------------------------------------
# The directory
# ---------------------------------------------------------------------------------------------------------------

README = """# Vectors

Small stores of version 2 to test a reader with. `index.json` lists them:

| field | meaning |
|---|---|
| `name`, `valid` | the store is `valid/NAME` or `invalid/NAME` |
| `level` | of an invalid one: `reader` = every reader refuses it, `verifier` = only a verifier does |
| `file` | of an invalid one: the file that the error is about |
| `rule` | of an invalid one: the rule that it breaks, by its name in the table at the end of `../container.md` |
| `pack` | of a valid one: the options with which `blco-pack` makes it from the text; null where no program packs it |
| `about` | why it is here; of an invalid one, what is wrong |

`valid/NAME.tns` holds the nonzeros of `valid/NAME` in store order, as FROSTT text with indices from 1; of a store of several
partitions those of cover 0, one partition after the other. Packed with the options, it gives the same bytes; with zstd
the same images, as frames differ with the release of the library.

Stores without options are made by hand: `draft-*` are of the formats of `../formats.md`, in other orders of modes than a packer
takes, with chunks that are cut as `about` says, where a verifier may find fault with the cut; `labels` has files of labels; `part-0` to `part-3` are one tensor in four stores; `section-*` have other
sections in their manifests than a packer writes.

An invalid store has one fault. Where the manifest alone shows it, most have no chunks. All checksums that are not the
fault are right, so a reader that reports a checksum where another rule is listed has not read on. Where a fault cannot but
break several rules, `rule` is the first in the order of the table.

`version-1/` holds the vectors of version 1 with an index of their own, whose `rule` is part of an error's text. They
do not change any more, and no program here writes them.

`python3 tools/make_vectors.py` writes all files here but those of `version-1/`, always the same bytes; `--check` tells
whether these are current; `--extra --output DIR` writes more of them.
`python3 tools/blco_reader.py --vectors formats-spec/vectors` reads or refuses them all.
"""


def contents(extra: bool) -> dict[str, bytes]:
    """Every file of the directory, by its path."""
    out: dict[str, bytes] = {"README.md": README.encode()}
    index: list[dict[str, object]] = []
    for valid in valid_vectors():
        if valid.name in EXTRA and not extra:
            continue
        for name, data in valid.draft().files.items():
            out[f"valid/{valid.name}/{name}"] = bytes(data)
        out[f"valid/{valid.name}.tns"] = text_of(valid.ordered()).encode()
        about = {"pack": valid.pack_options(), "about": valid.about}
        index.append({"name": valid.name, "valid": True, "level": None, "file": None, "rule": None} | about)
    for invalid in invalid_vectors():
        if invalid.name in EXTRA and not extra:
            continue
        for name, data in invalid.draft.files.items():
            out[f"invalid/{invalid.name}/{name}"] = bytes(data)
        refusal = {"level": invalid.level, "file": invalid.file, "rule": invalid.rule, "about": invalid.about}
        index.append({"name": invalid.name, "valid": False} | refusal)
    names = [(entry["valid"], entry["name"]) for entry in index]
    assert len(set(names)) == len(names), [name for name, count in Counter(names).items() if count > 1]
    out["index.json"] = ("[\n" + ",\n".join(json.dumps(entry) for entry in index) + "\n]\n").encode()
    return out


def write(directory: Path, extra: bool) -> None:
    """Replace the directory's files."""
    wanted = contents(extra)
    for name in ("valid", "invalid"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name, data in wanted.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def differences(directory: Path, extra: bool) -> list[str]:
    """What keeps the directory from being current; the frozen vectors are none of our business."""
    wanted = contents(extra)
    there = {p.relative_to(directory).as_posix(): p for p in directory.rglob("*") if p.is_file()}
    there = {name: path for name, path in there.items() if name.split("/")[0] != FROZEN}
    out = [f"{name}: missing" for name in sorted(set(wanted) - set(there))]
    out += [f"{name}: not wanted" for name in sorted(set(there) - set(wanted))]
    return out + [f"{n}: differs" for n in sorted(set(wanted) & set(there)) if there[n].read_bytes() != wanted[n]]


# ---------------------------------------------------------------------------------------------------------------
# The programs
# ---------------------------------------------------------------------------------------------------------------


def try_programs(programs: Path, directory: Path, verbose: bool) -> list[str]:
    """Pack the valid vectors' texts and compare; show the invalid ones to blco-run and blco-info."""
    out = []
    for entry in json.loads((directory / "index.json").read_text(encoding="utf-8")):
        if entry["valid"] and entry["pack"] is None:
            out += try_verifier(programs, directory / "valid" / entry["name"])
        elif entry["valid"]:
            out += try_packer(programs, directory / "valid", entry)
        else:
            out += try_readers(programs, directory / "invalid" / entry["name"], entry, verbose)
    return out


def run(command: Sequence[str | Path]) -> tuple[int, str]:
    """Exit status of a program and what it says."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROGRAM_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return -1, "does not end"
    said = (done.stdout + done.stderr).decode(errors="replace").split()
    return done.returncode, " ".join(said)


def try_verifier(programs: Path, store: Path) -> list[str]:
    """Whether `blco-info --verify` finds no fault in a store that no program packs but, of some, the cut."""
    status, said = run([programs / "blco-info", store, "--verify"])
    known = not status or store.name.startswith("draft-") and "(cut)" in said
    return [] if known else [f"{store.name}: blco-info: exit status {status}: {said}"]


def try_packer(programs: Path, valid: Path, entry: dict[str, object]) -> list[str]:
    """What differs between a valid vector and what the packer makes of its text."""
    name = str(entry["name"])
    options = [str(o) for o in entry["pack"]]  # type: ignore[attr-defined]
    out = []
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "packed.blco"
        status, said = run([programs / "blco-pack", valid / f"{name}.tns", "-o", store, "-q", *options])
        if status:
            return [f"{name}: blco-pack: exit status {status}: {said}"]
        if "--zstd" in options:
            # Compressed bytes depend on the release of zstd: headers and exported text do not.
            stores = [valid / name, store]
            headers = [[p.read_bytes()[32:48] for p in sorted(s.glob("chunk-*"))] for s in stores]
            facts = [[(h[:8], h[14]) for h in of_store] for of_store in headers]  # nnz, image bytes, value encoding
            texts = [run([programs / "blco-export", s, "-"]) for s in stores]
            return [] if facts[0] == facts[1] and texts[0] == texts[1] else [f"{name}: another store"]
        files = {p.name for p in (valid / name).iterdir()} | {p.name for p in store.iterdir()} - {"provenance.json"}
        for file in sorted(files):
            a, b = (d / file for d in (valid / name, store))
            if not a.exists() or not b.exists() or a.read_bytes() != b.read_bytes():
                out.append(f"{name}: {file} differs from the packer's")
    readers = [["blco-info", "--verify"]]
    if sum(map(int, options[1].split(","))) <= MOST_ROWS:
        readers.append(["blco-run", "-q", "--modes", "all", "--rank", "3"])
    for program in readers:
        status, said = run([programs / program[0], valid / name, *program[1:]])
        if status:
            out.append(f"{name}: {program[0]}: exit status {status}: {said}")
    return out


def try_readers(programs: Path, store: Path, entry: dict[str, object], verbose: bool) -> list[str]:
    """Where a program does not refuse an invalid vector with exit status 2 and the file's name."""
    out = []
    wanted: list[tuple[list[str], tuple[int, ...]]] = [(["blco-info", "--verify"], (1, 2))]
    if entry["level"] == "reader":
        wanted.append((["blco-run", "-q", "--modes", "all", "--rank", "3"], (2,)))
    for program, statuses in wanted:
        status, said = run([programs / program[0], store, *program[1:]])
        if status not in statuses:
            out.append(f"{entry['name']}: {program[0]}: exit status {status}, {said!r}; due is {entry['rule']!r}")
        elif f"/{entry['file']}:" not in said:
            out.append(f"{entry['name']}: {program[0]}: names another file than {entry['file']}: {said!r}")
        if verbose:
            print(f"{entry['name']}: {entry['rule']}\n    {program[0]} {status}: {said}")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the vectors of the format specification.")
    parser.add_argument("--output", type=Path, default=VECTORS, help="the directory (formats-spec/vectors)")
    parser.add_argument("--check", action="store_true", help="only tell whether the files are current")
    parser.add_argument("--programs", type=Path, metavar="DIR", help="run the programs in DIR on the vectors there")
    parser.add_argument("--verbose", action="store_true", help="print what the programs say of invalid vectors")
    parser.add_argument("--extra", action="store_true", help="with those that are not kept in the repository")
    options = parser.parse_args(arguments)
    if options.programs:
        problems = try_programs(options.programs, options.output, options.verbose)
    elif options.check:
        problems = differences(options.output, options.extra)
    else:
        write(options.output, options.extra)
        problems = []
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
