#!/usr/bin/env python3
"""Read and verify stores of sparse tensors: a second reader, written from the pages in formats-spec alone.

It reads containers of version 2 and of version 1, of every format that the pages name, checks every rule, the reader's
and the verifier's, and says which one a store breaks. It shares no code with the engine, so that each can be held
against the other.

    python3 tools/blco_reader.py STORE [--npz OUT.npz] [--tns OUT.tns] [--json] [--quiet]
    python3 tools/blco_reader.py --vectors DIR

Exit status: 0 the store is valid (or: all vectors are read or refused as their index says), 1 it is not, with one line
on standard error, 2 wrong command line or a system error. Needs numpy; `zstandard` only where a chunk is compressed.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import math
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
F64: TypeAlias = npt.NDArray[np.float64]
BOOL: TypeAlias = npt.NDArray[np.bool_]

TILE = 512
MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1

# The rules of container.md in their order: where several are broken, the first one is named.
READER_RULES = (
    "manifest-magic", "manifest-short", "manifest-preamble", "manifest-version", "manifest-reserved",
    "manifest-length", "manifest-checksum", "manifest-sections", "manifest-critical", "manifest-format",
    "manifest-field", "manifest-covers", "chunk-missing", "chunk-length", "chunk-magic", "chunk-header",
    "chunk-version", "chunk-sections", "chunk-identity", "chunk-stored", "chunk-payload", "chunk-padding",
    "chunk-frame", "image-shape", "image-gap", "image-section", "image-index", "image-value", "image-tree",
)  # fmt: skip
VERIFIER_RULES = ("order", "ranges", "slots", "encoding", "cut", "hash", "statistics", "labels")
RANK = {rule: rank for rank, rule in enumerate(READER_RULES + VERIFIER_RULES)}

BLCO, HOCFS, CSF, B_CSF, HB_CSF, MM_CSF, F_COO = range(1, 8)
FORMATS = {BLCO: "BLCO", HOCFS: "HOCFS", CSF: "CSF", B_CSF: "B-CSF", HB_CSF: "HB-CSF", MM_CSF: "MM-CSF", F_COO: "F-COO"}
RAW, TILED, TREE, SEGMENTS, COORDINATES = range(1, 6)
LAYOUTS = {RAW: "raw", TILED: "tiled", TREE: "tree", SEGMENTS: "segments", COORDINATES: "coordinates"}
INTEGER, F32, FLOAT64, DICTIONARY, DECIMAL = range(1, 6)
ENCODINGS = {INTEGER: "integer", F32: "f32", FLOAT64: "f64", DICTIONARY: "dictionary", DECIMAL: "decimal"}
CODECS = {0: "none", 1: "zstd"}
CSR, ELL, AUTO = range(1, 4)

# Kinds of sections in a chunk, and those that each layout has beside SHAPE and VALUES.
K_SHAPE, K_BLOCKS, K_INDEX, K_TILES, K_COLUMNS, K_VALUES, K_LEVELS, K_SEGMENTS, K_COORDINATES = range(1, 10)
LAYOUT_KINDS = {
    RAW: (K_BLOCKS, K_INDEX),
    TILED: (K_TILES, K_COLUMNS),
    TREE: (K_COLUMNS, K_LEVELS),
    SEGMENTS: (K_COLUMNS, K_SEGMENTS),
    COORDINATES: (K_COORDINATES,),
}
KIND_NAMES = {
    K_SHAPE: "SHAPE", K_BLOCKS: "BLOCKS", K_INDEX: "INDEX", K_TILES: "TILES", K_COLUMNS: "COLUMNS",
    K_VALUES: "VALUES", K_LEVELS: "LEVELS", K_SEGMENTS: "SEGMENTS", K_COORDINATES: "COORDINATES",
}  # fmt: skip

LARGEST_INTEGER = 1 << 53
LARGEST_DECIMAL = 1 << 50
POWERS = tuple(float(10**e) for e in range(11))
TILE_EXCEPTIONS = 64


class StoreError(Exception):
    """A store that breaks the specification: which rule, whose (a reader's or a verifier's), in which file."""

    def __init__(self, rule: str, file: str, text: str) -> None:
        super().__init__(rule, file, text)
        self.level = "reader" if RANK[rule] < len(READER_RULES) else "verifier"
        self.rank = RANK[rule]
        self.rule = rule
        self.file = file
        self.text = text

    def __str__(self) -> str:
        if self.rule == self.text:
            return f"{self.file}: {self.text}"
        return f"{self.file}: {self.rule}: {self.text}"


def fail(rule: str, file: str, text: str) -> NoReturn:
    raise StoreError(rule, file, text)


# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic
# ---------------------------------------------------------------------------------------------------------------------

PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PRIME_MX1, PRIME_MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _secret(at: int) -> int:
    return int.from_bytes(SECRET[at : at + 8], "little")


def _secret_lanes(at: int) -> U64:
    return np.frombuffer(SECRET[at : at + 64], "<u8").astype(np.uint64)


STRIPE_SECRETS = np.stack([_secret_lanes(8 * stripe) for stripe in range(16)])
SCRAMBLE_SECRET = _secret_lanes(128)
LAST_SECRET = _secret_lanes(121)
MERGE_SECRETS = tuple(_secret(11 + 8 * lane) for lane in range(8))
MIX_SECRETS = tuple((_secret(16 * step), _secret(16 * step + 8)) for step in range(8))
LATE_SECRETS = tuple((_secret(16 * step + 3), _secret(16 * step + 11)) for step in range(7))
END_SECRET = (_secret(119), _secret(127))
NEIGHBOUR = np.array([1, 0, 3, 2, 5, 4, 7, 6])
BLOCK_RUN = 4096


def _avalanche(x: int) -> int:
    x = (x ^ (x >> 37)) * PRIME_MX1 & MASK64
    return x ^ (x >> 32)


def _avalanche_64(x: int) -> int:
    x = (x ^ (x >> 33)) * PRIME64_2 & MASK64
    x = (x ^ (x >> 29)) * PRIME64_3 & MASK64
    return x ^ (x >> 32)


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & MASK64) ^ (product >> 64)


def _mix_step(data: bytes, at: int, secret: tuple[int, int]) -> int:
    low, high = struct.unpack_from("<QQ", data, at)
    return _fold(low ^ secret[0], high ^ secret[1])


def xxh3_64(data: bytes) -> int:
    """XXH3-64 of `data` with seed 0."""
    n = len(data)
    if n > 240:
        return _xxh3_long(data)
    if n > 16:
        acc = n * PRIME64_1
        if n <= 128:
            for i in range((n - 1) // 32 + 1):
                acc += _mix_step(data, 16 * i, MIX_SECRETS[2 * i])
                acc += _mix_step(data, n - 16 * i - 16, MIX_SECRETS[2 * i + 1])
            return _avalanche(acc & MASK64)
        for i in range(8):
            acc += _mix_step(data, 16 * i, MIX_SECRETS[i])
        acc = _avalanche(acc & MASK64)
        for i in range(8, n // 16):
            acc += _mix_step(data, 16 * i, LATE_SECRETS[i - 8])
        return _avalanche((acc + _mix_step(data, n - 16, END_SECRET)) & MASK64)
    if n > 8:
        first, last = struct.unpack_from("<Q", data)[0], struct.unpack_from("<Q", data, n - 8)[0]
        low = _secret(24) ^ _secret(32) ^ first
        high = _secret(40) ^ _secret(48) ^ last
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((n + swapped + high + _fold(low, high)) & MASK64)
    if n >= 4:
        first, last = struct.unpack_from("<I", data)[0], struct.unpack_from("<I", data, n - 4)[0]
        x = _secret(8) ^ _secret(16) ^ (last | first << 32)
        x ^= (x << 49 | x >> 15) & MASK64 ^ (x << 24 | x >> 40) & MASK64
        x = x * PRIME_MX2 & MASK64
        x = (x ^ ((x >> 35) + n)) * PRIME_MX2 & MASK64
        return int(x ^ (x >> 28))
    if n:
        combined = data[-1] | n << 8 | data[0] << 16 | data[n >> 1] << 24
        word = struct.unpack_from("<II", SECRET)
        return _avalanche_64(word[0] ^ word[1] ^ combined)
    return _avalanche_64(_secret(56) ^ _secret(64))


def _stripes(words: U64, secrets: U64) -> U64:
    """What stripes (..., 8 words) add to the eight accumulators."""
    keyed = words ^ secrets
    products = (keyed & np.uint64(MASK32)) * (keyed >> np.uint64(32))
    products += words[..., NEIGHBOUR]
    return products


def _xxh3_long(data: bytes) -> int:
    n = len(data)
    acc = np.array(
        [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1], dtype=np.uint64
    )
    blocks = (n - 1) // 1024
    shift, prime, scratch = np.uint64(47), np.uint64(PRIME32_1), np.empty(8, np.uint64)
    for start in range(0, blocks, BLOCK_RUN):
        run = min(BLOCK_RUN, blocks - start)
        block = np.frombuffer(data, "<u8", run * 128, start * 1024).reshape(run, 16, 8)
        for total in _stripes(block, STRIPE_SECRETS).sum(axis=1, dtype=np.uint64):
            np.add(acc, total, out=acc)
            np.right_shift(acc, shift, out=scratch)
            np.bitwise_xor(acc, scratch, out=acc)
            np.bitwise_xor(acc, SCRAMBLE_SECRET, out=acc)
            np.multiply(acc, prime, out=acc)
    stripes = (n - 1024 * blocks - 1) // 64
    if stripes:
        words = np.frombuffer(data, "<u8", stripes * 8, blocks * 1024).reshape(stripes, 8)
        acc += _stripes(words, STRIPE_SECRETS[:stripes]).sum(axis=0, dtype=np.uint64)
    acc += _stripes(np.frombuffer(data, "<u8", 8, n - 64), LAST_SECRET)
    lanes = acc.tolist()
    result = n * PRIME64_1
    for i in range(0, 8, 2):
        result += _fold(lanes[i] ^ MERGE_SECRETS[i], lanes[i + 1] ^ MERGE_SECRETS[i + 1])
    return _avalanche(result & MASK64)


def mix64(z: int) -> int:
    """The finalizer of SplitMix64."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK64
    return z ^ z >> 31


GOLDEN = 0x9E3779B97F4A7C15
HASH_FACTORS = tuple(np.uint64(mix64((j + 1) * GOLDEN & MASK64) | 1) for j in range(9))


def hash_of_nonzeros(columns: Sequence[U32], values: F64) -> int:
    """The sum of the nonzeros' hashes modulo 2^64."""
    z = values.view(np.uint64) * HASH_FACTORS[8]
    z += np.uint64(GOLDEN)
    for column, factor in zip(columns, HASH_FACTORS, strict=False):
        z += column.astype(np.uint64) * factor
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return int(z.sum(dtype=np.uint64))


def up_to(n: int, unit: int) -> int:
    """n rounded up to a multiple of unit."""
    return -(-n // unit) * unit


def widths_of(x: I64) -> I64:
    """The number of bits that each number (from 0 to 2^63 - 1) needs."""
    # A float tells the width exactly up to 2^53; the top 32 bits and the others are looked at apart where there is more.
    if x.size == 0 or int(x.max()) <= LARGEST_INTEGER:
        return np.frexp(x.astype(np.float64))[1].astype(np.int64)
    top = np.frexp((x >> 32).astype(np.float64))[1]
    low = np.frexp((x & MASK32).astype(np.float64))[1]
    return np.where(top > 0, top + 32, low).astype(np.int64)


def total_order(values: F64) -> I64:
    """Integers in the order of IEEE 754's totalOrder of the values."""
    bits = values.view(np.int64)
    return bits ^ ((bits >> 63) & np.int64((1 << 63) - 1))


def total_order_of(value: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits ^ ((bits >> 63) & ((1 << 63) - 1))


def same_bits(a: float, b: float) -> bool:
    return struct.pack("<d", a) == struct.pack("<d", b)


def in_tiles(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The numbers (at least one) in rows of 512, the last row filled up with the last number."""
    rest = -len(numbers) % TILE
    if rest:
        numbers = np.concatenate([numbers, np.repeat(numbers[-1:], rest)])
    return numbers.reshape(-1, TILE)


def ranges_of(numbers: npt.NDArray[Any]) -> tuple[I64, I64]:
    """Smallest and largest of each tile's numbers."""
    starts = np.arange(0, len(numbers), TILE)
    low, high = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    return low.astype(np.int64), high.astype(np.int64)


UNPACK_RUN = 8192


def unpack(words: U32, at: I64, widths: I64) -> U64 | U32:
    """The numbers of packed columns, 512 in a row: u32 where no width is above 32, otherwise u64.

    `words` is COLUMNS in units of 64 bytes, `at` where each column begins in it.
    """
    wide = bool(widths.size) and int(widths.max()) > 32
    numbers: npt.NDArray[Any] = np.zeros((len(widths), TILE), np.uint64 if wide else np.uint32)
    for width in np.flatnonzero(np.bincount(widths)).tolist():
        if width == 0:
            continue
        rows = np.flatnonzero(widths == width)
        for i in range(0, len(rows), UNPACK_RUN):
            run = rows[i : i + UNPACK_RUN]
            columns = words[at[run][:, None] + np.arange(width)]
            numbers[run] = _unpack_narrow(columns, width) if width <= 32 else _unpack_wide(columns, width)
    return numbers


def _unpack_narrow(columns: U32, width: int) -> U32:
    """Columns of at most 32 bits: (columns, width, 16 lanes) to (columns, 512)."""
    bit = np.arange(32) * width
    word, shift = bit >> 5, (bit & 31).astype(np.uint32)[:, None]
    above = np.minimum(word + 1, width - 1)
    # Two shifts in place of one by 32 - shift, which can be 32; what they bring needlessly is masked away.
    low = columns[:, word] >> shift
    low |= columns[:, above] << (np.uint32(31) - shift) << np.uint32(1)
    low &= np.uint32((1 << width) - 1)
    return low.reshape(-1, TILE)


def _unpack_wide(columns: U32, width: int) -> U64:
    """Columns of 33 to 64 bits, of eight lanes."""
    lanes = np.ascontiguousarray(columns).view(np.uint64).reshape(-1, width, 8)
    bit = np.arange(64) * width
    word, shift = bit >> 6, (bit & 63).astype(np.uint64)[:, None]
    above = np.minimum(word + 1, width - 1)
    low = lanes[:, word] >> shift
    low |= lanes[:, above] << (np.uint64(63) - shift) << np.uint64(1)
    low &= np.uint64((1 << width) - 1)
    return low.reshape(-1, TILE)


# ---------------------------------------------------------------------------------------------------------------------
# Manifest
# ---------------------------------------------------------------------------------------------------------------------

MANIFEST = "manifest"
STORE_MAGIC = b"BLCOSTOR"


@dataclass
class Chunk:
    """What the manifest says of a chunk."""

    number: int
    first: int
    nnz: int
    file_bytes: int
    image_bytes: int
    checksum: int
    first_linear: int
    last_linear: int
    low: tuple[int, ...]
    high: tuple[int, ...]
    encoding: int | None  # None: version 1, where the chunk's header alone says it

    @property
    def file(self) -> str:
        return f"chunk-{self.number:06}.bin"


@dataclass
class Partition:
    """Nonzeros in one sort order and one layout. `modes` is None where the order is interleaved."""

    number: int
    format: int
    layout: int
    targets: int
    covers: int
    nnz: int
    hash: int
    modes: tuple[int, ...] | None
    leaf_rule: int = CSR
    role: int = 0
    fiber_split: int = 0
    product_modes: int = 0
    chunks: list[Chunk] = field(default_factory=list)


@dataclass
class ModeInfo:
    kind: int
    steps: int
    blocks: int
    bytes: int
    checksum: int
    text_bytes: int
    name: str = ""


@dataclass
class Part:
    part: int
    parts: int
    nnz: int
    hash: int
    low: int
    high: int


@dataclass
class Manifest:
    """A manifest of either version."""

    version: int
    digest: int
    dims: tuple[int, ...]
    row_bounds: tuple[int, ...]
    duplicates: int
    nnz: int
    hash: int | None
    sum_of_squares: float
    value_min: float
    value_max: float
    codec: int
    codec_level: int
    chunk_bytes: int
    partitions: list[Partition]
    statistics: bytes | None = None
    modes: list[ModeInfo] | None = None
    value_name: str = ""
    part: Part | None = None

    @property
    def order(self) -> int:
        return len(self.dims)

    @cached_property
    def bits(self) -> tuple[int, ...]:
        return tuple((dim - 1).bit_length() for dim in self.dims)

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for partition in self.partitions for chunk in partition.chunks]

    def cover(self, number: int) -> list[Partition]:
        return [partition for partition in self.partitions if partition.covers >> number & 1]

    @property
    def covers(self) -> int:
        return max(partition.covers.bit_length() for partition in self.partitions)


def bit_modes_of(dims: Sequence[int], modes: Sequence[int] | None) -> list[int]:
    """The mode that each bit of the linear index belongs to, from bit 0 up; no modes: the interleaved order."""
    left = [(dim - 1).bit_length() for dim in dims]
    if modes is not None:
        return [mode for mode in reversed(modes) for _ in range(left[mode])]
    result: list[int] = []
    turns = sorted(range(len(dims)), key=lambda mode: (dims[mode], mode))
    while any(left):
        for mode in turns:
            if left[mode]:
                result.append(mode)
                left[mode] -= 1
    return result


def bit_places_of(dims: Sequence[int], modes: Sequence[int] | None) -> list[list[int]]:
    """Where each mode's bits, from its lowest up, stand in the linear index."""
    places: list[list[int]] = [[] for _ in dims]
    for place, mode in enumerate(bit_modes_of(dims, modes)):
        places[mode].append(place)
    return places


def linear_of(indices: Sequence[int], places: Sequence[Sequence[int]]) -> int:
    """The linear index of one nonzero."""
    linear = 0
    for index, mode_places in zip(indices, places, strict=True):
        for bit, place in enumerate(mode_places):
            linear |= (index >> bit & 1) << place
    return linear


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest of either version, checking all that the file alone shows."""
    if data[:8] != STORE_MAGIC:
        fail("manifest-magic", MANIFEST, "wrong magic")
    if len(data) < 64:
        fail("manifest-short", MANIFEST, "shorter than its preamble")
    version, offset, length, digest = struct.unpack_from("<IIQQ", data, 8)
    if xxh3_64(data[:56]) != struct.unpack_from("<Q", data, 56)[0]:
        fail("manifest-preamble", MANIFEST, "the preamble checksum does not match")
    if version not in (1, 2):
        fail("manifest-version", MANIFEST, f"unknown version {version}")
    try:
        if offset != 64:
            fail("manifest-reserved", MANIFEST, f"the body begins at {offset}, not at 64")
        if any(data[32:56]):
            fail("manifest-reserved", MANIFEST, "a reserved byte of the preamble is not zero")
        if length > (1 << 31) - 1 or len(data) != 64 + length:
            fail("manifest-length", MANIFEST, "the file does not end where the body ends")
        body = data[64:]
        if xxh3_64(body) != digest:
            fail("manifest-checksum", MANIFEST, "the body does not match the store id")
        return parse_body(body, digest) if version == 2 else parse_archive(body, digest)
    except StoreError as error:
        if version == 1:
            error.rule = error.text
        raise


# name: whether it is critical, whether it is always there
SECTIONS = {
    b"chunks": (1, True),
    b"modes": (0, False),
    b"parameters": (1, True),
    b"part": (1, False),
    b"partitions": (1, True),
    b"statistics": (0, False),
    b"storage": (1, True),
    b"tensor": (1, True),
}
NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-")


def parse_sections(body: bytes) -> dict[bytes, bytes]:
    """The body's sections by name."""
    rule = "manifest-sections"
    if len(body) < 8:
        fail(rule, MANIFEST, "the body is shorter than a table of sections")
    count, reserved = struct.unpack_from("<II", body)
    if not 1 <= count <= 65536 or 8 + 32 * count > len(body):
        fail(rule, MANIFEST, f"a table of {count} sections")
    if reserved:
        fail(rule, MANIFEST, "a reserved field of the table is not zero")
    sections: dict[bytes, bytes] = {}
    unknown: bytes | None = None
    before, end = b"", 8 + 32 * count
    for k in range(count):
        padded, flags, offset, length = struct.unpack_from("<12sIQQ", body, 8 + 32 * k)
        name = padded.rstrip(b"\0")
        if not name or not NAME_BYTES.issuperset(name):
            fail(rule, MANIFEST, f"section {k} has no proper name")
        if name <= before:
            fail(rule, MANIFEST, f"the name {name.decode()} is not above the one before")
        if flags > 1:
            fail(rule, MANIFEST, f"section {name.decode()}: a reserved flag is not zero")
        start = up_to(end, 8)
        if offset != start:
            fail(rule, MANIFEST, f"section {name.decode()} does not begin where the one before ends")
        if offset + length > len(body):
            fail(rule, MANIFEST, f"section {name.decode()} does not lie inside the body")
        if any(body[end:start]):
            fail(rule, MANIFEST, f"bytes before section {name.decode()} are not zero")
        if name in SECTIONS and SECTIONS[name][0] != flags:
            fail(rule, MANIFEST, f"section {name.decode()} has a flag that is not its own")
        if name not in SECTIONS and flags and unknown is None:
            unknown = name
        sections[name] = body[offset : offset + length]
        before, end = name, offset + length
    if up_to(end, 8) != len(body) or any(body[end:]):
        fail(rule, MANIFEST, "the body does not end where its last section ends")
    for name, (_, needed) in SECTIONS.items():
        if needed and name not in sections:
            fail(rule, MANIFEST, f"there is no section {name.decode()}")
    if unknown is not None:
        fail("manifest-critical", MANIFEST, f"unknown critical section {unknown.decode()}")
    return sections


def require(good: bool, text: str) -> None:
    if not good:
        fail("manifest-field", MANIFEST, text)


def parse_body(body: bytes, digest: int) -> Manifest:
    """The body of a manifest of version 2."""
    sections = parse_sections(body)
    records = sections[b"partitions"]
    for k in range(len(records) // 64):
        form = struct.unpack_from("<I", records, 64 * k)[0]
        if form not in FORMATS:
            fail("manifest-format", MANIFEST, f"partition {k}: unknown format {form}")
    manifest = parse_tensor(sections[b"tensor"], sections[b"storage"], digest)
    order = manifest.order
    require(len(records) > 0 and len(records) % 64 == 0, f"section partitions has {len(records)} bytes")
    counts = parse_partitions(records, sections[b"parameters"], manifest)
    chunks = parse_chunks(sections[b"chunks"], manifest, counts)
    if b"part" in sections:
        manifest.part = parse_part(sections[b"part"], manifest)
    if b"statistics" in sections:
        manifest.statistics = sections[b"statistics"]
        require(
            len(manifest.statistics) == (328 + 64 * order) * len(manifest.partitions),
            f"section statistics has {len(manifest.statistics)} bytes",
        )
    if b"modes" in sections:
        manifest.value_name, manifest.modes = parse_modes_section(sections[b"modes"], manifest.dims)
    check_covers(manifest, chunks, counts)
    return manifest


def parse_tensor(tensor: bytes, storage: bytes, digest: int) -> Manifest:
    """The sections `tensor` and `storage`: a manifest that has no partitions yet."""
    require(len(tensor) >= 56, f"section tensor has {len(tensor)} bytes")
    order, duplicates, nnz, total, squares, low, high, reserved = struct.unpack_from("<IIQQdddQ", tensor)
    require(2 <= order <= 8, f"{order} modes")
    require(len(tensor) == 56 + 16 * order, f"section tensor has {len(tensor)} bytes")
    require(duplicates <= 1, "duplicates is neither 0 nor 1")
    require(nnz >= 1, "there are no nonzeros")
    require(reserved == 0, "tensor: a reserved field is not zero")
    dims, bounds = [], []
    for mode in range(order):
        dim, reserved, bound = struct.unpack_from("<IIQ", tensor, 56 + 16 * mode)
        require(dim >= 1, f"mode {mode} has no index")
        require(reserved == 0, "tensor: a reserved field is not zero")
        dims.append(dim)
        bounds.append(bound)
    require(sum((dim - 1).bit_length() for dim in dims) <= 128, "the linear index has more than 128 bits")
    require(len(storage) == 24, f"section storage has {len(storage)} bytes")
    codec, level, chunk_bytes, reserved = struct.unpack("<IiQQ", storage)
    require(codec in CODECS, f"unknown codec {codec}")
    require(1 <= level <= 22 if codec else level == 0, f"the codec level is {level}")
    require(1 << 16 <= chunk_bytes <= 1 << 30, f"chunk bytes is {chunk_bytes}")
    require(reserved == 0, "storage: a reserved field is not zero")
    return Manifest(
        2, digest, tuple(dims), tuple(bounds), duplicates, nnz, total, squares, low, high, codec, level, chunk_bytes, []
    )


def parse_partitions(records: bytes, parameters: bytes, manifest: Manifest) -> list[int]:
    """The partitions, without their chunks; how many chunks each has."""
    counts, end = [], 0
    for number, record in enumerate(struct.iter_unpack("<IIIIQQQ8sQQ", records)):
        form, layout, targets, covers, count, nnz, total, mode_bytes, at, length = record
        what = f"partition {number}"
        modes = parse_modes(mode_bytes, manifest.order, what)
        require(count >= 1, f"{what} has no chunk")
        require(at == end and at + length <= len(parameters), f"{what}: its parameters do not follow the ones before")
        end = at + length
        partition = Partition(number, form, layout, targets, covers, nnz, total, modes)
        parse_parameters(partition, parameters[at:end], manifest.order)
        manifest.partitions.append(partition)
        counts.append(count)
    require(end == len(parameters), "parameters that belong to no partition")
    return counts


def parse_modes(mode_bytes: bytes, order: int, what: str) -> tuple[int, ...] | None:
    """The modes of a sort order; None for the interleaved one."""
    if mode_bytes == b"\xff" * 8:
        return None
    modes = tuple(mode_bytes[:order])
    good = sorted(modes) == list(range(order)) and mode_bytes[order:] == b"\xff" * (8 - order)
    require(good, f"{what}: the order of modes does not name each mode once")
    return modes


def parse_parameters(partition: Partition, parameters: bytes, order: int) -> None:
    """Check layout, order of modes and parameters of a partition against its format; take the parameters."""
    what, form = f"partition {partition.number}", partition.format
    layouts = {BLCO: (RAW, TILED), HB_CSF: (TREE, COORDINATES), F_COO: (SEGMENTS,)}.get(form, (TREE,))
    require(partition.layout in layouts, f"{what}: {FORMATS[form]} has no layout {partition.layout}")
    if form == BLCO:
        require(partition.modes is None, f"{what}: BLCO is sorted in interleaved order")
    elif partition.layout in (TREE, SEGMENTS):
        require(partition.modes is not None, f"{what}: the layout needs an order of modes")
    length = 0 if form in (BLCO, CSF, MM_CSF) else 8
    require(len(parameters) == length, f"{what}: {len(parameters)} bytes of parameters")
    if not length:
        return
    first, second = struct.unpack("<II", parameters)
    if form == HB_CSF:
        partition.role, partition.fiber_split = first, second
        require(1 <= first <= 3, f"{what}: unknown role {first}")
        require((first == 1) == (partition.layout == COORDINATES), f"{what}: a layout that is not the role's")
        require(second >= 1 if first == 3 else second == 0, f"{what}: the fiber split is {second}")
        return
    if form == F_COO:
        require(second <= 65536, f"{what}: {second} thread nonzeros")
    else:
        require(second == 0, f"{what}: a reserved field of the parameters is not zero")
    if form == HOCFS:
        partition.leaf_rule = first
        require(CSR <= first <= AUTO, f"{what}: unknown leaf rule {first}")
    elif form == B_CSF:
        partition.fiber_split = first
        require(first >= 1, f"{what}: the fiber split is 0")
    else:
        partition.product_modes = first
        require(0 < first < (1 << order) - 1, f"{what}: product modes are {first:#x}")
        assert partition.modes is not None
        index_modes = order - first.bit_count()
        good = all(not first >> mode & 1 for mode in partition.modes[:index_modes])
        require(good, f"{what}: an index mode comes after a product mode")


def parse_chunk(record: bytes, number: int) -> Chunk:
    """The first 136 bytes of a chunk's record, which both versions share."""
    first, nnz, file_bytes, image_bytes, checksum, f0, f1, l0, l1 = struct.unpack_from("<9Q", record)
    low, high = struct.unpack_from("<8I", record, 72), struct.unpack_from("<8I", record, 104)
    return Chunk(number, first, nnz, file_bytes, image_bytes, checksum, f0 | f1 << 64, l0 | l1 << 64, low, high, None)


def check_chunk(chunk: Chunk, manifest: Manifest, layout: int) -> None:
    what = f"chunk {chunk.number}"
    require(1 <= chunk.nnz <= 1 << (29 if layout == TREE else 28), f"{what}: nnz is {chunk.nnz}, outside its range")
    require(chunk.image_bytes <= manifest.chunk_bytes, f"{what}: image bytes is larger than chunk bytes")
    beyond = chunk.low[manifest.order :] + chunk.high[manifest.order :]
    require(not any(beyond), f"{what}: a row range of a mode that is not there")
    inside = all(low <= high < dim for low, high, dim in zip(chunk.low, chunk.high, manifest.dims))
    require(inside, f"{what}: a row range outside of its mode")


def parse_chunks(records: bytes, manifest: Manifest, counts: list[int]) -> list[Chunk]:
    """The chunks of all partitions."""
    require(len(records) > 0 and len(records) % 144 == 0, f"section chunks has {len(records)} bytes")
    chunks: list[Chunk] = []
    owner, left = 0, counts[0]
    for number in range(len(records) // 144):
        # Where there are more chunks than partitions count, which is refused later, the last partition's layout.
        if not left and owner < len(counts) - 1:
            owner += 1
            left = counts[owner]
        left -= 1
        chunk = parse_chunk(records[144 * number : 144 * number + 136], number)
        chunk.encoding, reserved = struct.unpack_from("<II", records, 144 * number + 136)
        layout = manifest.partitions[owner].layout
        check_chunk(chunk, manifest, layout)
        what = f"chunk {number}"
        require(chunk.file_bytes <= (1 << 30) + (1 << 26), f"{what}: file bytes is {chunk.file_bytes}")
        encodings = {RAW: (FLOAT64,), COORDINATES: (F32, FLOAT64)}.get(layout, tuple(ENCODINGS))
        require(chunk.encoding in encodings, f"{what}: a value encoding {chunk.encoding} that its layout does not have")
        require(reserved == 0, f"{what}: a reserved field is not zero")
        chunks.append(chunk)
    return chunks


def parse_part(section: bytes, manifest: Manifest) -> Part:
    require(len(section) == 56, f"section part has {len(section)} bytes")
    number, parts, nnz, total, low0, low1, high0, high1 = struct.unpack("<IIQQQQQQ", section)
    require(number < parts, f"part {number} of {parts}")
    require(nnz >= manifest.nnz, "the whole tensor has fewer nonzeros than this part")
    return Part(number, parts, nnz, total, low0 | low1 << 64, high0 | high1 << 64)


def parse_modes_section(section: bytes, dims: Sequence[int]) -> tuple[str, list[ModeInfo]]:
    """The values' name, and what the store says of each mode."""
    names_at = 8 + 40 * len(dims)
    require(len(section) >= names_at, f"section modes has {len(section)} bytes")
    value_length, reserved = struct.unpack_from("<II", section)
    require(not reserved, "modes: a reserved field is not zero")
    modes: list[ModeInfo] = []
    lengths = [value_length]
    for mode, dim in enumerate(dims):
        kind, steps, length, blocks, size, checksum, text = struct.unpack_from("<IIIIQQQ", section, 8 + 40 * mode)
        require(kind <= 4 and steps <= 1, f"modes: mode {mode} has kind {kind}, steps {steps}")
        if kind == 0:
            require(not any((steps, blocks, size, checksum, text)), f"modes: mode {mode} has no labels, and fields that are not 0")
        else:
            require(1 <= blocks <= dim and size >= 32 * blocks, f"modes: mode {mode} has {blocks} blocks in {size} bytes")
        lengths.append(length)
        modes.append(ModeInfo(kind, steps, blocks, size, checksum, text))
    names: list[str] = []
    for length in lengths:
        require(length <= 4096 and names_at + length <= len(section), "modes: a name is too long")
        try:
            names.append(section[names_at : names_at + length].decode())
        except UnicodeDecodeError:
            require(False, "modes: a name is not UTF-8")
        names_at += length
    require(names_at == len(section), f"section modes has {len(section)} bytes")
    for mode_info, name in zip(modes, names[1:], strict=True):
        mode_info.name = name
    return names[0], modes


def read_labels(directory: Directory, info: ModeInfo, mode: int, dim: int) -> list[str]:
    """The labels of a mode."""
    file = f"labels-{mode}.bin"

    def refuse(text: str) -> NoReturn:
        fail("labels", file, text)

    import zstandard

    try:
        data = directory.read(file, info.bytes)
    except (FileNotFoundError, IsADirectoryError):
        refuse("the manifest names labels whose file is not there")
    if isinstance(data, int):
        refuse(f"{data} bytes where the manifest says {info.bytes}")
    table = data[info.bytes - 32 * info.blocks :]
    if xxh3_64(table) != info.checksum:
        refuse("checksum of the table")
    labels: list[str] = []
    at = 0
    for first, count, stored, raw_bytes, reserved, checksum in struct.iter_unpack("<QIIIIQ", table):
        if first != len(labels) or not 1 <= count <= 4096 or reserved or raw_bytes > 2**20 + 2**16 + 2**14:
            refuse("the table of blocks")
        frame = data[at : at + stored]
        if at + stored > info.bytes - len(table) or xxh3_64(frame) != checksum:
            refuse(f"checksum of the block at byte {at}")
        try:
            raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=raw_bytes)
        except zstandard.ZstdError:
            refuse(f"zstd frame at byte {at}")
        if len(raw) != raw_bytes or raw_bytes < 4 * count:
            refuse(f"lengths of the block at byte {at}")
        end = 4 * count
        for length in struct.unpack_from(f"<{count}I", raw):
            try:
                labels.append(raw[end : end + length].decode())
            except UnicodeDecodeError:
                refuse(f"a label of the block at byte {at} is not UTF-8")
            if length > 2**20:
                refuse(f"a label of the block at byte {at} is too long")
            end += length
        if end != raw_bytes:
            refuse(f"lengths of the block at byte {at}")
        at += stored
    if at != info.bytes - len(table) or len(labels) != dim:
        refuse("the table of blocks")
    if sum(len(label.encode()) for label in labels) != info.text_bytes:
        refuse("text bytes")
    return labels


def check_covers(manifest: Manifest, chunks: list[Chunk], counts: list[int]) -> None:
    """What partitions and chunks say together; deal the chunks to their partitions."""
    rule, all_modes = "manifest-covers", (1 << manifest.order) - 1
    require(not math.isnan(manifest.sum_of_squares), "the sum of squares is no number")
    finite = math.isfinite(manifest.value_min) and math.isfinite(manifest.value_max)
    require(finite, "value min or max is not finite")
    union = 0
    for partition in manifest.partitions:
        if partition.covers == 0:
            fail(rule, MANIFEST, f"partition {partition.number} belongs to no cover")
        if partition.targets & ~all_modes:
            fail(rule, MANIFEST, f"partition {partition.number} serves a mode that is not there")
        union |= partition.covers
    if union & (union + 1):
        fail(rule, MANIFEST, "a cover is left out")
    check_format_covers(manifest, all_modes)
    served = 0
    for number in range(manifest.covers):
        partitions = manifest.cover(number)
        if sum(partition.nnz for partition in partitions) != manifest.nnz:
            fail(rule, MANIFEST, f"the nonzeros of cover {number} do not add up to nnz")
        if manifest.hash is not None and sum(partition.hash for partition in partitions) & MASK64 != manifest.hash:
            fail(rule, MANIFEST, f"the hashes of cover {number} do not add up to the tensor's")
        modes = all_modes
        for partition in partitions:
            modes &= partition.targets
        served |= modes
    if served != all_modes:
        fail(rule, MANIFEST, "a mode that no cover serves")
    if sum(counts) != len(chunks):
        fail(rule, MANIFEST, f"{len(chunks)} chunks, of partitions that have {sum(counts)}")
    at = 0
    for partition, count in zip(manifest.partitions, counts, strict=True):
        partition.chunks = chunks[at : at + count]
        at += count
        check_positions(partition, rule)


def check_positions(partition: Partition, rule: str) -> None:
    """First nonzeros and nnz of a partition's chunks."""
    first = 0
    for chunk in partition.chunks:
        if chunk.first != first:
            fail(rule, MANIFEST, f"chunk {chunk.number}: first nonzero is not where the chunk before ended")
        first += chunk.nnz
        if partition.layout in (RAW, TILED) and chunk is not partition.chunks[-1] and chunk.nnz % TILE:
            fail(rule, MANIFEST, f"chunk {chunk.number}: nnz is not a multiple of 512")
    if first != partition.nnz:
        fail(rule, MANIFEST, "the chunks' nonzeros do not add up to nnz")


def check_format_covers(manifest: Manifest, all_modes: int) -> None:
    """The covers that formats make, as far as formats.md says which."""

    def refuse(text: str) -> NoReturn:
        fail("manifest-covers", MANIFEST, text)

    partitions = manifest.partitions
    for partition in partitions:
        form, what = partition.format, f"partition {partition.number}"
        others = [other for other in partitions if other is not partition]
        sharing = [other for other in others if other.covers & partition.covers]
        if form in (BLCO, HOCFS):
            if others:
                refuse(f"a {FORMATS[form]} store has one partition")
            if partition.covers != 1 or partition.targets != all_modes:
                refuse(f"a {FORMATS[form]} partition serves all modes, in cover 0")
        elif form in (CSF, B_CSF, F_COO):
            if partition.covers.bit_count() != 1 or sharing:
                refuse(f"{what}: {FORMATS[form]} has a cover for each partition")
        elif form == HB_CSF:
            if partition.covers.bit_count() != 1:
                refuse(f"{what}: HB-CSF has a cover for each main mode")
            for other in others:
                if other.format == HB_CSF and other.modes is not None and partition.modes is not None:
                    alike = other.modes[0] == partition.modes[0]
                    if alike != (other.covers == partition.covers):
                        refuse(f"{what}: HB-CSF has a cover for each main mode")
                    if alike and other.role == partition.role:
                        refuse(f"{what}: a main mode has a role twice")
        elif form == MM_CSF:
            if partition.covers != 1:
                refuse(f"{what}: MM-CSF has one cover")
            for other in others:
                if other.modes and partition.modes and other.modes[-1] == partition.modes[-1]:
                    refuse(f"{what}: a leaf mode has two trees")


def parse_archive(archive: bytes, digest: int) -> Manifest:
    """The archive of a manifest of version 1."""
    root = len(archive) - 104
    require(root >= 0, "a list does not lie inside the archive")
    head = struct.unpack_from("<IIIiIIIIQQddd8s", archive, root)
    form, layout, codec, level, duplicates, tile, block, leaf_rule, chunk_bytes, nnz, squares, low, high, levels = head
    lists = []
    end = 0
    for at, size in ((80, 16), (88, 1), (96, 136)):
        where, count = struct.unpack_from("<iI", archive, root + at)
        start = root + at + where if count else end
        require(start >= 0 and start + count * size <= root, "a list does not lie inside the archive")
        require(start == end, "a list does not begin where the one before ends")
        lists.append((start, count))
        end = start + count * size
    require(end == root, "the root does not follow the lists")
    require(form in (BLCO, HOCFS), f"unknown format {form}")
    require(layout in ((RAW, TILED) if form == BLCO else (TREE,)), f"unknown index encoding {layout}")
    require(codec in CODECS, f"unknown codec {codec}")
    require(1 <= level <= 22 if codec else level == 0, "the codec level is outside its range")
    require(duplicates <= 1, "duplicates is neither 0 nor 1")
    require(tile == TILE, "tile nnz is not 512")
    require(block == (64 if form == BLCO else 0), "block bits is not the format's")
    require(1 << 16 <= chunk_bytes <= 1 << 30, "chunk bytes is outside its range")
    require(nnz >= 1, "there are no nonzeros")
    (modes_at, order), (bits_at, bits), (chunks_at, chunk_count) = lists
    require(2 <= order <= 8, f"{order} modes")
    dims, bounds = [], []
    for mode, (dim, mode_bits, bound) in enumerate(
        struct.iter_unpack("<IIQ", archive[modes_at : modes_at + 16 * order])
    ):
        require(dim >= 1, f"mode {mode} has no index")
        require(mode_bits == (dim - 1).bit_length(), f"mode {mode}: bits is not width(dim - 1)")
        dims.append(dim)
        bounds.append(bound)
    require(sum((dim - 1).bit_length() for dim in dims) <= 128, "the linear index has more than 128 bits")
    modes = None
    if form == BLCO:
        require(leaf_rule == 0 and not any(levels), "a reserved field is not zero")
    else:
        require(CSR <= leaf_rule <= AUTO, f"unknown leaf rule {leaf_rule}")
        modes = tuple(levels[:order])
        good = sorted(modes) == list(range(order)) and not any(levels[order:])
        require(good, "level modes does not name each mode once")
    good = archive[bits_at : bits_at + bits] == bytes(bit_modes_of(dims, modes))
    require(good, "bit modes is not " + ("the interleaving" if modes is None else "the levels' modes side by side"))
    partition = Partition(0, form, layout, (1 << order) - 1, 1, nnz, 0, modes, leaf_rule or CSR)
    manifest = Manifest(
        1, digest, tuple(dims), tuple(bounds), duplicates, nnz, None, squares, low, high, codec, level, chunk_bytes, [partition]
    )  # fmt: skip
    require(chunk_count >= 1, "there is no chunk")
    for number in range(chunk_count):
        at = chunks_at + 136 * number
        chunk = parse_chunk(archive[at : at + 136], number)
        check_chunk(chunk, manifest, layout)
        partition.chunks.append(chunk)
    check_positions(partition, "manifest-covers")
    return manifest


# ---------------------------------------------------------------------------------------------------------------------
# Chunk
# ---------------------------------------------------------------------------------------------------------------------

CHUNK_MAGIC = b"BLCOCHNK"
PAGE = 4096


class Directory:
    """A store's directory, held open, so that all files are those of one store, whatever its name comes to name."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass  # A file system without locks, or somebody who is about to remove the store.

    def close(self) -> None:
        os.close(self.fd)

    def read(self, name: str, length: int | None = None) -> bytes | int:
        """The file's bytes; where it is not `length` long, how long it is. Not a regular file: IsADirectoryError."""
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=self.fd)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "not a regular file", name)
            if length is not None and status.st_size != length:
                return status.st_size
            parts, left = [], status.st_size
            while left > 0 and (part := os.read(fd, left)):
                parts.append(part)
                left -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(fd)


@dataclass
class Image:
    """A chunk's sections, whole and in their places."""

    manifest: Manifest
    partition: Partition
    chunk: Chunk
    encoding: int
    sections: dict[int, bytes]

    def refuse(self, rule: str, text: str) -> NoReturn:
        fail(rule, self.chunk.file, text)

    def wrong(self, text: str) -> NoReturn:
        fail("image-section", self.chunk.file, text)

    def length(self, kind: int, length: int) -> None:
        """Refuse a section of another length."""
        if len(self.sections[kind]) != length:
            self.wrong(f"{KIND_NAMES[kind]} has {len(self.sections[kind])} bytes, not {length}")

    def columns(self, units: int) -> U32:
        """COLUMNS in units of 64 bytes, of which there must be so many."""
        self.length(K_COLUMNS, 64 * units)
        return np.frombuffer(self.sections[K_COLUMNS], "<u4").reshape(-1, 16)


def read_image(directory: Directory, manifest: Manifest, partition: Partition, chunk: Chunk) -> Image:
    """Read a chunk's file and check all of it but what is in its sections."""
    try:
        data = directory.read(chunk.file, chunk.file_bytes)
    except (FileNotFoundError, IsADirectoryError):
        fail("chunk-missing", chunk.file, "the manifest names a chunk whose file is not there")
    if isinstance(data, int):
        fail("chunk-length", chunk.file, f"{data} bytes of file bytes {chunk.file_bytes}")
    if data[:8] != CHUNK_MAGIC:
        fail("chunk-magic", chunk.file, "wrong magic")
    if len(data) < 128 or xxh3_64(data[:120]) != struct.unpack_from("<Q", data, 120)[0]:
        fail("chunk-header", chunk.file, "the header checksum does not match")
    if manifest.version == 2:
        h, encoding, places = read_header(data, manifest, partition, chunk)
    else:
        h, encoding, places = read_header_1(data, manifest, partition, chunk)
    stored_bytes: int = struct.unpack_from("<I", data, 40)[0]
    if up_to(h + stored_bytes, PAGE) != chunk.file_bytes:
        fail("chunk-stored", chunk.file, "stored bytes does not give file bytes")
    if not manifest.codec and stored_bytes != chunk.image_bytes - h:
        fail("chunk-stored", chunk.file, "stored bytes is not the image's without a codec")
    payload = data[h : h + stored_bytes]
    if xxh3_64(payload) != chunk.checksum:
        fail("chunk-payload", chunk.file, "the payload checksum does not match")
    if any(data[h + stored_bytes :]):
        fail("chunk-padding", chunk.file, "the padding is not zero")
    if manifest.codec:
        payload = decompress(payload, chunk.image_bytes - h, chunk)
    end, sections, gap = 0, {}, 0
    for kind, offset, length in places:
        if not gap and any(payload[end : offset - h]):
            gap = kind
        end = offset - h + length
        sections[kind] = payload[offset - h : end]
    if sections[K_SHAPE] != struct.pack(f"<{manifest.order}I", *manifest.dims):
        fail("image-shape", chunk.file, "SHAPE disagrees with the manifest's dims")
    if gap or any(payload[end:]):
        fail("image-gap", chunk.file, "a byte between sections is not zero")
    return Image(manifest, partition, chunk, encoding, sections)


Places: TypeAlias = list[tuple[int, int, int]]


def check_places(places: Places, h: int, image_bytes: int, layout: int, encoding: int, file: str) -> None:
    """Kinds and places of a chunk's sections."""
    kinds = [K_SHAPE, *LAYOUT_KINDS[layout]] + [K_VALUES] * (encoding != INTEGER)
    if [kind for kind, _, _ in places] != sorted(kinds):
        fail("chunk-sections", file, "section table: other kinds than those of its layout and value encoding")
    end = h
    for kind, offset, length in places:
        if offset != up_to(end, 128):
            fail("chunk-sections", file, f"section table: {KIND_NAMES[kind]} does not start where it should")
        end = offset + length
    if up_to(end, 128) != image_bytes:
        fail("chunk-sections", file, "section table: the image does not end where its last section ends")


def read_header(data: bytes, manifest: Manifest, partition: Partition, chunk: Chunk) -> tuple[int, int, Places]:
    """A header of version 2, of which the checksum is right: its length, the value encoding, the sections."""
    file = chunk.file
    fields = struct.unpack_from("<IIQQIIIBBBBQIIIIQ", data, 8)
    version, number, digest, first, nnz, image_bytes, _, order, layout, encoding, codec = fields[:11]
    checksum, form, part, count, reserved, table = fields[11:]
    h = 128 + up_to(16 * count, 128)
    if 1 <= count <= 248 and (len(data) < h or xxh3_64(data[128:h]) != table):
        fail("chunk-header", file, "the table checksum does not match")
    if version != 2:
        fail("chunk-version", file, f"unknown version {version}")
    if not 1 <= count <= 248:
        fail("chunk-sections", file, f"a table of {count} sections")
    if reserved or any(data[80:120]):
        fail("chunk-sections", file, "a reserved field of the header is not zero")
    if any(data[128 + 16 * count : h]):
        fail("chunk-sections", file, "section table: bytes behind it are not zero")
    places = []
    for kind, offset, length, zero in struct.iter_unpack("<IIII", data[128 : 128 + 16 * count]):
        if zero:
            fail("chunk-sections", file, "section table: a reserved field is not zero")
        places.append((kind, offset, length))
    assert chunk.encoding is not None
    check_places(places, h, image_bytes, partition.layout, chunk.encoding, file)
    for what, here, there in (
        ("store id", digest, manifest.digest),
        ("number", number, chunk.number),
        ("first nonzero", first, chunk.first),
        ("nnz", nnz, chunk.nnz),
        ("image bytes", image_bytes, chunk.image_bytes),
        ("payload checksum", checksum, chunk.checksum),
        ("order", order, manifest.order),
        ("layout", layout, partition.layout),
        ("value encoding", encoding, chunk.encoding),
        ("codec", codec, manifest.codec),
        ("format", form, partition.format),
        ("partition", part, partition.number),
    ):
        if here != there:
            fail("chunk-identity", file, f"the header disagrees with the manifest: {what}")
    return h, encoding, places


def read_header_1(data: bytes, manifest: Manifest, partition: Partition, chunk: Chunk) -> tuple[int, int, Places]:
    """The same of version 1, where four entries of the section table are in the header."""
    file = chunk.file
    fields = struct.unpack_from("<IIQQIIIBBBBQ", data, 8)
    version, number, digest, first, nnz, image_bytes, _, order, layout, encoding, codec, checksum = fields
    if version != 1:
        fail("chunk-version", file, f"unknown version {version}")
    if encoding not in ((FLOAT64,) if partition.layout == RAW else (INTEGER, F32, FLOAT64, DICTIONARY)):
        fail("chunk-sections", file, f"unknown value encoding {encoding}")
    places = []
    used = len(LAYOUT_KINDS[partition.layout]) + 1 + (encoding != INTEGER)
    for k, (kind, offset, length, zero) in enumerate(struct.iter_unpack("<IIII", data[56:120])):
        if k < used:
            places.append((kind, offset, length))
        elif kind or offset or length:
            fail("chunk-sections", file, "section table: an unused entry is not zero")
        if zero:
            fail("chunk-sections", file, "section table: a reserved field is not zero")
    check_places(places, 128, image_bytes, partition.layout, encoding, file)
    for what, here, there in (
        ("store id", digest, manifest.digest),
        ("number", number, chunk.number),
        ("first nonzero", first, chunk.first),
        ("nnz", nnz, chunk.nnz),
        ("image bytes", image_bytes, chunk.image_bytes),
        ("payload checksum", checksum, chunk.checksum),
        ("order", order, manifest.order),
        ("index encoding", layout, partition.layout),
        ("codec", codec, manifest.codec),
    ):
        if here != there:
            fail("chunk-identity", file, f"the header disagrees with the manifest: {what}")
    return 128, encoding, places


ZSTD_MAGIC = 0xFD2FB528
LARGEST_WINDOW = 1 << 27


def decompress(frame: bytes, length: int, chunk: Chunk) -> bytes:
    """The content, `length` bytes, of a payload that is one zstd frame."""

    def refuse(text: str) -> NoReturn:
        fail("chunk-frame", chunk.file, text)

    stated, end = zstd_frame(frame, refuse)
    if stated is not None and stated != length:
        refuse(f"the zstd frame is {'longer' if stated > length else 'shorter'} than the image")
    if end != len(frame):
        refuse("bytes after the zstd frame")
    if length > len(frame) << 15:
        refuse("the zstd frame is shorter than the image")
    import zstandard

    try:
        # Into memory of the image's length: a frame that states no size and holds more does not fit.
        content = zstandard.ZstdDecompressor().decompress(frame, max_output_size=length)
    except zstandard.ZstdError as error:
        refuse(f"the zstd frame is damaged, or longer than the image: {error}")
    if len(content) != length:
        refuse("the zstd frame is shorter than the image")
    return content


def zstd_frame(frame: bytes, refuse: Callable[[str], NoReturn]) -> tuple[int | None, int]:
    """The content size that a frame states and where it ends, by RFC 8878; refuses what no store has."""
    if len(frame) < 6 or struct.unpack_from("<I", frame)[0] != ZSTD_MAGIC:
        refuse("the payload is no zstd frame")
    descriptor = frame[4]
    single, size_flag = descriptor >> 5 & 1, descriptor >> 6
    at = 5
    if descriptor & 8:
        refuse("the zstd frame has a reserved bit")
    if not single:
        exponent, mantissa = frame[at] >> 3, frame[at] & 7
        at += 1
        if (1 << (10 + exponent)) // 8 * (8 + mantissa) > LARGEST_WINDOW:
            refuse("the zstd frame's window is larger than 2^27")
    id_bytes = (0, 1, 2, 4)[descriptor & 3]
    if any(frame[at : at + id_bytes]):
        refuse("the zstd frame has a dictionary")
    at += id_bytes
    size_bytes = (single, 2, 4, 8)[size_flag]
    stated = int.from_bytes(frame[at : at + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    at += size_bytes
    last = 0
    while not last:
        if at + 3 > len(frame):
            refuse("the zstd frame is damaged: it ends early")
        header = int.from_bytes(frame[at : at + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == 3:
            refuse("the zstd frame is damaged: a block of no known kind")
        at += 3 + (1 if kind == 1 else size)
    at += 4 * (descriptor >> 2 & 1)
    if at > len(frame):
        refuse("the zstd frame is damaged: it ends early")
    return stated if size_bytes else None, at


# ---------------------------------------------------------------------------------------------------------------------
# Sections: values
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Values:
    """The values of a chunk (of trees: of its slots) as they are stored."""

    encoding: int
    count: int
    base: I64
    width: I64
    numbers: U64 | U32 | None  # of the value columns, 512 in a row
    entries: F64  # of VALUES: the values, the dictionary's entries, or the exceptions
    exponent: int = 0
    places: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def flat(self) -> npt.NDArray[Any]:
        assert self.numbers is not None
        return self.numbers.reshape(-1)[: self.count]


def check_value_records(image: Image, count: int, base: I64, width: I64) -> Values:
    """Check width and base of value columns and the section VALUES, as far as they can be before COLUMNS is looked at."""
    code = image.encoding
    values = Values(code, count, base, width, None, np.empty(0))
    if code == INTEGER:
        if int(width.max()) > 55:
            image.wrong("a value width is larger than 55")
        if int(base.min()) < -LARGEST_INTEGER or int(base.max()) > LARGEST_INTEGER:
            image.wrong("a value base is outside its range")
        return values
    section = image.sections[K_VALUES]
    if code in (F32, FLOAT64):
        image.length(K_VALUES, count * (4 if code == F32 else 8))
        values.entries = np.frombuffer(section, "<f4" if code == F32 else "<f8").astype(np.float64)
        if width.any():
            image.wrong("a value width is not 0")
    elif code == DICTIONARY:
        entries = len(section) // 8
        if len(section) % 8 or not 1 <= entries <= 65536:
            image.wrong(f"VALUES has {len(section)} bytes, which is no dictionary")
        values.entries = np.frombuffer(section, "<f8").astype(np.float64)
        keys = total_order(values.entries)
        if (keys[1:] <= keys[:-1]).any():
            image.wrong("the dictionary does not ascend")
        if (width != (entries - 1).bit_length()).any():
            image.wrong("a value width is not the dictionary's")
    else:
        if int(width.max()) > 52:
            image.wrong("a value width is larger than 52")
        if int(base.min()) < -LARGEST_DECIMAL or int(base.max()) > LARGEST_DECIMAL:
            image.wrong("a value base is outside its range")
        check_exceptions(image, values, section)
    if code != DECIMAL and base.any():
        image.wrong("a value base is not 0")
    return values


def check_exceptions(image: Image, values: Values, section: bytes) -> None:
    """The section VALUES of value encoding 5."""
    if len(section) < 8:
        image.wrong("VALUES is too short for exceptions")
    values.exponent, count = struct.unpack_from("<II", section)
    if values.exponent > 10:
        image.wrong(f"values are divided by 10^{values.exponent}")
    if len(section) != 8 + 12 * count:
        image.wrong(f"VALUES has {len(section)} bytes for {count} exceptions")
    values.entries = np.frombuffer(section, "<f8", count, 8).astype(np.float64)
    places = np.frombuffer(section, "<u4", count, 8 + 8 * count).astype(np.int64)
    values.places = places
    if count:
        if (places[1:] <= places[:-1]).any():
            image.wrong("the places of exceptions do not ascend")
        if int(places[-1]) >= values.count:
            image.wrong("an exception is at no value's place")
        if int(np.bincount(places >> 9).max()) > TILE_EXCEPTIONS:
            image.wrong("a tile has more than 64 exceptions")


def unpack_values(image: Image, values: Values, words: U32, at: I64) -> None:
    """Unpack the value columns, which begin at `at`, and check their numbers."""
    if values.encoding in (F32, FLOAT64):
        return
    values.numbers = unpack(words, at, values.width)
    if values.encoding == DICTIONARY and int(values.flat().max()) >= len(values.entries):
        image.wrong("the number of a dictionary entry that is not there")


def decode_values(image: Image, values: Values) -> F64:
    """The values, which must be finite."""
    if not np.isfinite(values.entries).all():
        image.refuse("image-value", "a value is not finite")
    if values.encoding in (F32, FLOAT64):
        return values.entries
    if values.encoding == DICTIONARY:
        chosen: F64 = values.entries[values.flat()]
        return chosen
    result = integers_of(values).astype(np.float64)
    if values.encoding == DECIMAL:
        result /= POWERS[values.exponent]
        result[values.places] = values.entries
    return result


def integers_of(values: Values) -> I64:
    """Base + number of value encodings 1 and 5."""
    assert values.numbers is not None
    numbers = values.numbers.astype(np.int64)
    numbers += values.base[:, None]
    return numbers.reshape(-1)[: values.count]


# ---------------------------------------------------------------------------------------------------------------------
# Layouts
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Body:
    """A chunk's nonzeros. Layouts add what a verifier looks at."""

    image: Image
    columns: list[U32]
    values: F64


@dataclass
class TiledBody(Body):
    low: I64  # (order, tiles)
    high: I64
    numbers: U32  # (order, tiles, 512)
    stored: Values


@dataclass
class SegmentsBody(Body):
    low: list[I64]  # of product modes by tile of nonzeros, then of index modes by tile of segments
    high: list[I64]
    numbers: list[U32]
    indices: list[U32]  # of product modes by nonzero, then of index modes by segment
    begins: I64  # first nonzero of each segment
    stored: Values


@dataclass
class TreeBody(Body):
    nodes: list[int]
    low: I64
    high: I64
    stride: I64
    base: I64
    second: I64
    indices: U32  # (records, 512) numbers
    starts: list[I64]  # of the inner levels
    start_numbers: U64 | U32
    padding: BOOL  # by slot
    codes: BOOL  # by slice
    slot_values: F64
    stored: Values


def check_starts_of_columns(image: Image, at: I64, widths: I64) -> int:
    """`columns at` is the sum of the widths before; how many units all columns have."""
    ends = np.cumsum(widths)
    if int(at[0]) or (at[1:] != ends[:-1]).any():
        image.wrong("columns at is not the sum of the widths before")
    return int(ends[-1])


def starts_within(at: I64, widths: I64) -> I64:
    """Where each column begins, of records (rows) that begin at `at` and have columns of these widths."""
    ends = np.cumsum(widths, axis=1)
    ends -= widths
    ends += at[:, None]
    return ends


def check_range(image: Image, low: I64, high: I64, dims: npt.NDArray[Any] | int, what: str) -> None:
    if (low > high).any():
        image.wrong(f"{what}'s low is above its high")
    if (high >= dims).any():
        image.wrong(f"{what}'s high is not below the dim")


def check_numbers(image: Image, numbers: U32, span: I64, count: int) -> None:
    """Numbers of nonzeros (tiles in rows) must not be above their tile's span."""
    above = numbers > span[:, None]
    if above.any() and above.reshape(-1)[:count].any():
        image.refuse("image-index", "an index is above its tile's high")


def read_body(image: Image) -> Body:
    """Decode a chunk's sections."""
    return READERS[image.partition.layout](image)


def read_tiled(image: Image) -> Body:
    order, nnz = image.manifest.order, image.chunk.nnz
    tiles = -(-nnz // TILE)
    image.length(K_TILES, tiles * (16 + 8 * order))
    words = np.frombuffer(image.sections[K_TILES], "<u4").reshape(tiles, 4 + 2 * order)
    records = words.astype(np.int64)
    base = np.ascontiguousarray(words[:, 2:4]).view("<i8")[:, 0].astype(np.int64)
    value_width = records[:, 1]
    low, high = records[:, 4::2], records[:, 5::2]
    check_range(image, low, high, np.array(image.manifest.dims), "a tile")
    stored = check_value_records(image, nnz, base, value_width)
    widths = np.concatenate([widths_of(high - low), value_width[:, None]], axis=1)
    columns = image.columns(check_starts_of_columns(image, records[:, 0], widths.sum(axis=1)))
    at = starts_within(records[:, 0], widths)
    unpack_values(image, stored, columns, at[:, order])
    numbers = unpack(columns, at[:, :order].T.reshape(-1), widths[:, :order].T.reshape(-1))
    numbers = numbers.astype(np.uint32, copy=False).reshape(order, tiles, TILE)
    result = []
    for mode in range(order):
        check_numbers(image, numbers[mode], high[:, mode] - low[:, mode], nnz)
        index = numbers[mode] + low[:, mode].astype(np.uint32)[:, None]
        result.append(index.reshape(-1)[:nnz])
    return TiledBody(image, result, decode_values(image, stored), low.T, high.T, numbers, stored)


def read_raw(image: Image) -> Body:
    manifest, nnz = image.manifest, image.chunk.nnz
    bit_modes = bit_modes_of(manifest.dims, None)
    section = image.sections[K_BLOCKS]
    if len(section) % 16 or not section:
        image.wrong(f"BLOCKS has {len(section)} bytes")
    blocks = np.frombuffer(section, "<u8").reshape(-1, 2)
    keys, ends = blocks[:, 0].astype(np.uint64), blocks[:, 1].astype(np.uint64)
    starts = (ends & np.uint64(MASK32)).astype(np.int64)
    if (ends >> np.uint64(32)).any():
        image.wrong("BLOCKS: a reserved field is not zero")
    if (keys[1:] <= keys[:-1]).any():
        image.wrong("BLOCKS: the keys do not ascend")
    if int(keys[-1]) >> max(len(bit_modes) - 64, 0):
        image.wrong("BLOCKS: a key is outside the linear index")
    if int(starts[0]) or (starts[1:] <= starts[:-1]).any():
        image.wrong("BLOCKS: the starts do not ascend from 0")
    if int(starts[-1]) >= nnz:
        image.wrong("BLOCKS: a start is not below nnz")
    image.length(K_INDEX, 8 * nnz)
    image.length(K_VALUES, 8 * nnz)
    index = np.frombuffer(image.sections[K_INDEX], "<u8").astype(np.uint64)
    low_modes = bit_modes[:64]
    if len(low_modes) < 64 and int(index.max()) >> len(low_modes):
        image.wrong("INDEX: a bit that no mode uses is not 0")
    lengths = np.diff(starts, append=nnz)
    columns, at = [], 0
    for mode, dim in enumerate(manifest.dims):
        bits = low_modes.count(mode)
        column = np.zeros(nnz, np.uint64)
        if bits:
            column = index >> np.uint64(at) & np.uint64((1 << bits) - 1)
            at += bits
        upper = [place for place, owner in enumerate(bit_modes[64:]) if owner == mode]
        if upper:
            above = np.zeros(len(keys), np.uint64)
            for bit, place in enumerate(upper):
                above |= (keys >> np.uint64(place) & np.uint64(1)) << np.uint64(bits + bit)
            column |= np.repeat(above, lengths)
        if int(column.max()) >= dim:
            image.refuse("image-index", f"an index of mode {mode} is outside its dim")
        columns.append(column.astype(np.uint32))
    values = np.frombuffer(image.sections[K_VALUES], "<f8").astype(np.float64)
    if not np.isfinite(values).all():
        image.refuse("image-value", "a value is not finite")
    return Body(image, columns, values)


def read_coordinates(image: Image) -> Body:
    manifest, nnz = image.manifest, image.chunk.nnz
    image.length(K_COORDINATES, 4 * nnz * manifest.order)
    stored = check_value_records(image, nnz, np.zeros(1, np.int64), np.zeros(1, np.int64))
    flat = np.frombuffer(image.sections[K_COORDINATES], "<u4").astype(np.uint32).reshape(manifest.order, nnz)
    for mode, dim in enumerate(manifest.dims):
        if int(flat[mode].max()) >= dim:
            image.refuse("image-index", f"an index of mode {mode} is outside its dim")
    return Body(image, list(flat), decode_values(image, stored))


def bits_of(words: U32, count: int) -> BOOL:
    """The first `count` bits of words, and whether any bit beyond them is set: the array is one longer where so."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)
    return bits[: count + 1] if bits[count:].any() else bits[:count]


def read_segments(image: Image) -> Body:
    manifest, nnz = image.manifest, image.chunk.nnz
    order, product = manifest.order, image.partition.product_modes
    product_modes = [mode for mode in range(order) if product >> mode & 1]
    index_modes = [mode for mode in range(order) if not product >> mode & 1]
    section = image.sections[K_SEGMENTS]
    if len(section) < 8:
        image.wrong("SEGMENTS is too short")
    segments, reserved = struct.unpack_from("<II", section)
    if reserved:
        image.wrong("SEGMENTS: a reserved field is not zero")
    if not 1 <= segments <= nnz:
        image.wrong(f"{segments} segments")
    p, q = len(product_modes), len(index_modes)
    tiles, segment_tiles = -(-nnz // TILE), -(-segments // TILE)
    flags_at = 8 + tiles * (16 + 8 * p) + segment_tiles * (8 + 8 * q)
    image.length(K_SEGMENTS, flags_at + 4 * -(-nnz // 32))
    words = np.frombuffer(section, "<u4")
    leaf_words = words[2 : 2 + tiles * (4 + 2 * p)].reshape(tiles, 4 + 2 * p)
    leaves = leaf_words.astype(np.int64)
    upper = words[2 + leaf_words.size : flags_at // 4].reshape(segment_tiles, 2 + 2 * q).astype(np.int64)
    flags = bits_of(words[flags_at // 4 :], nnz)
    if upper[:, 1].any():
        image.wrong("SEGMENTS: a reserved field is not zero")
    if len(flags) > nnz:
        image.wrong("SEGMENTS: a flag of no nonzero")
    if not flags[0] or np.count_nonzero(flags) != segments:
        image.wrong("SEGMENTS: the flags do not count the segments")
    base = np.ascontiguousarray(leaf_words[:, 2:4]).view("<i8")[:, 0].astype(np.int64)
    dims = np.array(manifest.dims)
    check_range(image, leaves[:, 4::2], leaves[:, 5::2], dims[product_modes], "a tile")
    check_range(image, upper[:, 2::2], upper[:, 3::2], dims[index_modes], "a tile of segments")
    stored = check_value_records(image, nnz, base, leaves[:, 1])
    leaf_widths = np.concatenate([widths_of(leaves[:, 5::2] - leaves[:, 4::2]), leaves[:, 1:2]], axis=1)
    upper_widths = widths_of(upper[:, 3::2] - upper[:, 2::2])
    record_at = np.concatenate([leaves[:, 0], upper[:, 0]])
    totals = np.concatenate([leaf_widths.sum(axis=1), upper_widths.sum(axis=1)])
    columns = image.columns(check_starts_of_columns(image, record_at, totals))
    leaf_at, upper_at = starts_within(leaves[:, 0], leaf_widths), starts_within(upper[:, 0], upper_widths)
    unpack_values(image, stored, columns, leaf_at[:, p])
    result: list[U32] = [np.empty(0, np.uint32)] * order
    body = SegmentsBody(image, result, np.empty(0), [], [], [], [], np.flatnonzero(flags), stored)
    segment_of = np.cumsum(flags) - 1
    for k, mode in enumerate(product_modes + index_modes):
        records, at, widths, count = (leaves[:, 4:], leaf_at, leaf_widths, nnz)
        if k >= p:
            k -= p
            records, at, widths, count = (upper[:, 2:], upper_at, upper_widths, segments)
        low, high = records[:, 2 * k], records[:, 2 * k + 1]
        numbers = unpack(columns, at[:, k], widths[:, k]).astype(np.uint32, copy=False)
        check_numbers(image, numbers, high - low, count)
        index = (numbers + low.astype(np.uint32)[:, None]).reshape(-1)[:count]
        body.low.append(low)
        body.high.append(high)
        body.numbers.append(numbers)
        body.indices.append(index)
        result[mode] = index if count == nnz and mode in product_modes else index[segment_of]
    body.values = decode_values(image, stored)
    return body


def read_tree(image: Image) -> Body:
    manifest, partition, nnz = image.manifest, image.partition, image.chunk.nnz
    order, modes = manifest.order, partition.modes
    assert modes is not None
    section = image.sections[K_LEVELS]
    if len(section) < 64:
        image.wrong("LEVELS is too short")
    if section[:8] != bytes(modes).ljust(8, b"\0"):
        image.wrong("LEVELS disagrees with the manifest: level modes")
    leaf_rule, reserved = struct.unpack_from("<II", section, 8)
    if leaf_rule != partition.leaf_rule:
        image.wrong("LEVELS disagrees with the manifest: leaf rule")
    if reserved or any(section[48:64]):
        image.wrong("LEVELS: a reserved field is not zero")
    all_nodes = struct.unpack_from("<8I", section, 16)
    nodes = list(all_nodes[:order])
    if any(all_nodes[order:]) or nodes[0] < 1 or nodes != sorted(nodes) or nodes[-2] > nnz:
        image.wrong("LEVELS: a level has no nodes, or fewer than the one above, or more fibers than nonzeros")
    slots = nodes[-1]
    most = {CSR: nnz, ELL: 2 * nnz, AUTO: 9 * nnz // 8}[leaf_rule]
    if not nnz <= slots <= most:
        image.wrong(f"LEVELS: {slots} slots for {nnz} nonzeros, which the leaf rule does not allow")
    tiles = [-(-count // TILE) for count in nodes]
    records, leaf_tiles = sum(tiles), tiles[-1]
    inner = records - leaf_tiles
    code_words = -(-nodes[0] // 32)
    image.length(K_LEVELS, 64 + 32 * records + 4 * code_words)
    words = np.frombuffer(section, "<u4", 8 * records, 64).reshape(records, 8)
    fields = words.astype(np.int64)
    base = np.ascontiguousarray(words[:, 4:6]).view("<i8")[:, 0].astype(np.int64)
    at, low, high, stride, second = fields[:, 0], fields[:, 1], fields[:, 2], fields[:, 3], fields[:, 6]
    if fields[:, 7].any():
        image.wrong("LEVELS: a reserved field is not zero")
    codes = bits_of(np.frombuffer(section, "<u4", code_words, 64 + 32 * records), nodes[0])
    if len(codes) > nodes[0]:
        image.wrong("LEVELS: a leaf code of no slice")
    level_dims = np.array([manifest.dims[mode] for mode in modes])
    check_range(image, low, high, np.repeat(level_dims, tiles), "a record")
    # How much padding each tile of leaves has, which the nonzeros before it tell.
    sizes = np.full(leaf_tiles, TILE)
    sizes[-1] = slots - TILE * (leaf_tiles - 1)
    before = stride[inner:]
    padding_of = sizes - np.diff(before, append=nnz)
    if int(before[0]) or (padding_of < 0).any() or (padding_of > sizes).any():
        image.wrong("LEVELS: before does not count the nonzeros")
    padded = np.zeros(records, np.int64)
    padded[inner:] = padding_of > 0
    span = high - low + padded
    stored = check_value_records(image, slots, base[inner:], second[inner:])
    if inner and int(second[:inner].max()) > 64:
        image.wrong("LEVELS: a second width is larger than 64")
    widths = np.stack([widths_of(span), second], axis=1)
    columns = image.columns(check_starts_of_columns(image, at, widths.sum(axis=1)))
    columns_at = starts_within(at, widths)
    start_numbers = unpack(columns, columns_at[:inner, 1], second[:inner])
    starts = read_starts(image, nodes, tiles, base, stride, start_numbers)
    unpack_values(image, stored, columns, columns_at[inner:, 1])
    numbers = unpack(columns, columns_at[:, 0], widths[:, 0]).astype(np.uint32, copy=False)

    ends = np.cumsum(tiles)
    for level in range(order):
        part = slice(int(ends[level]) - tiles[level], int(ends[level]))
        check_numbers(image, numbers[part], span[part], nodes[level])
    slot_values = decode_values(image, stored)
    is_padding = (numbers[inner:] == span[inner:, None]) & (padded[inner:] > 0)[:, None]
    padding = is_padding.reshape(-1)[:slots]
    if padding_of.any() or padding.any():
        is_padding[-1, int(sizes[-1]) :] = False
        if (np.count_nonzero(is_padding, axis=1) != padding_of).any():
            image.refuse("image-tree", "a tile of leaves has more or less padding than its record says")
        if padding[starts[-1]].any():
            image.refuse("image-tree", "a fiber begins with padding")

    # Each level's indices, drawn down to the slots, and then without the padding.
    drawn: list[U32] = []
    for level in range(order):
        part = slice(int(ends[level]) - tiles[level], int(ends[level]))
        index = numbers[part] + low[part].astype(np.uint32)[:, None]
        if level:
            lengths = np.diff(starts[level - 1], append=nodes[level])
            drawn = [np.repeat(above, lengths) for above in drawn]
        drawn.append(index.reshape(-1)[: nodes[level]])
    values = slot_values
    if padding_of.any():
        keep = ~padding
        drawn = [column[keep] for column in drawn]
        values = slot_values[keep]
    result: list[U32] = [drawn[0]] * order
    for level, mode in enumerate(modes):
        result[mode] = drawn[level]
    return TreeBody(
        image, result, values, nodes, low, high, stride, base, second, numbers, starts, start_numbers,
        padding, codes, slot_values, stored,
    )  # fmt: skip


def read_starts(
    image: Image, nodes: list[int], tiles: list[int], base: I64, stride: I64, numbers: U64 | U32
) -> list[I64]:
    """Where the children of each inner level's nodes begin."""
    result, record = [], 0
    for level, count in enumerate(nodes[:-1]):
        part = slice(record, record + tiles[level])
        record += tiles[level]
        # Modulo 2^64 first; a float tells whether the sum was elsewhere and only came round.
        line = base[part, None] + stride[part, None] * np.arange(TILE)
        start = (line.view(np.uint64) + numbers[part]).view(np.int64).reshape(-1)[:count]
        rough = (line.astype(np.float64) + numbers[part]).reshape(-1)[:count]
        good = bool((np.abs(rough) < 2.0**60).all()) and int(start[0]) == 0 and int(start[-1]) < nodes[level + 1]
        good = good and not numbers[part][:, 0].any()
        if not good or (start[1:] <= start[:-1]).any():
            image.wrong(f"LEVELS: starts of level {level} do not ascend from 0 below the next level's nodes")
        result.append(start)
    return result


READERS: dict[int, Callable[[Image], Body]] = {
    RAW: read_raw,
    TILED: read_tiled,
    TREE: read_tree,
    SEGMENTS: read_segments,
    COORDINATES: read_coordinates,
}


# ---------------------------------------------------------------------------------------------------------------------
# Verification
# ---------------------------------------------------------------------------------------------------------------------


class Findings:
    """What only a verifier refuses; of several, the first in the order of the rules counts."""

    def __init__(self) -> None:
        self.first: StoreError | None = None

    def note(self, rule: str, file: str, text: str) -> None:
        if self.first is None or RANK[rule] < self.first.rank:
            self.first = StoreError(rule, file, text)


@dataclass
class Nonzeros:
    """All nonzeros of a partition, and its chunks."""

    partition: Partition
    bodies: list[Body]
    columns: list[U32]
    values: F64


@dataclass
class ValueTiles:
    """What each tile of values would take in each encoding."""

    count: int
    integer: BOOL
    integer_base: I64
    integer_width: I64
    f32: BOOL
    exceptions: I64  # (exponents, tiles); no exponents in version 1
    decimal_base: I64
    decimal_width: I64

    def part(self, first: int, last: int, count: int) -> ValueTiles:
        """Tiles [first, last), which hold `count` values."""
        part = slice(first, last)
        return ValueTiles(
            count, self.integer[part], self.integer_base[part], self.integer_width[part], self.f32[part],
            self.exceptions[:, part], self.decimal_base[:, part], self.decimal_width[:, part],
        )  # fmt: skip


DECIMAL_RUN = 16


def decimals_at(values: F64, power: float | F64) -> tuple[BOOL, F64]:
    """Which values are decimal, divided by `power`, and the integers (0 for those that are not)."""
    integers = np.rint(values * power)
    good = (integers / power == values) & (np.abs(integers) <= LARGEST_DECIMAL)
    good &= ~((values == 0) & np.signbit(values))
    integers[~good] = 0
    return good, integers


def value_tiles(values: F64, version: int) -> ValueTiles:
    count = len(values)
    rows = in_tiles(values)
    with np.errstate(over="ignore", invalid="ignore"):
        f32 = (rows.astype(np.float32).astype(np.float64) == rows).all(axis=1)
        good = (np.rint(rows) == rows) & (np.abs(rows) <= LARGEST_INTEGER) & ~((rows == 0) & np.signbit(rows))
        integer = good.all(axis=1)
        numbers = np.where(good, rows, 0.0).astype(np.int64)
        low, high = numbers.min(axis=1), numbers.max(axis=1)
        exponents = len(POWERS) if version == 2 else 0
        exceptions, base, top = (np.zeros((exponents, len(rows)), np.int64) for _ in range(3))
        powers = np.array(POWERS)[:, None, None]
        for first in range(0, len(rows) if exponents else 0, DECIMAL_RUN):
            run = slice(first, first + DECIMAL_RUN)
            good, found = decimals_at(rows[run], powers)
            base[:, run] = np.where(good, found, np.inf).min(axis=2, initial=2.0**62)
            top[:, run] = np.where(good, found, -np.inf).max(axis=2, initial=-(2.0**62))
            if first + DECIMAL_RUN >= len(rows) and count % TILE:
                good[:, -1, count % TILE :] = True  # What fills the last row is no exception.
            exceptions[:, run] = np.count_nonzero(~good, axis=2)
    alone = base > top
    base[alone], top[alone] = 0, 0
    return ValueTiles(count, integer, low, widths_of(high - low), f32, exceptions, base, widths_of(top - base))


@dataclass
class Choice:
    """The encoding that takes the fewest bytes for index columns, value columns and VALUES together."""

    bytes: int
    encoding: int
    exponent: int


def choose(index_bytes: int, tiles: ValueTiles, distinct: int | None) -> Choice:
    """The encoding that is due; `distinct` None: the dictionary is left aside."""
    plain = up_to(index_bytes, 128)
    best = Choice(plain + up_to(8 * tiles.count, 128), FLOAT64, 0)
    # From the last one in the order of preference to the first, so that ties go to the earlier.
    for exponent in range(len(tiles.exceptions) - 1, -1, -1):
        exceptions = tiles.exceptions[exponent]
        if int(exceptions.max()) <= TILE_EXCEPTIONS:
            width = int(tiles.decimal_width[exponent].sum())
            size = up_to(index_bytes + 64 * width, 128) + up_to(8 + 12 * int(exceptions.sum()), 128)
            if size <= best.bytes:
                best = Choice(size, DECIMAL, exponent)
    if tiles.f32.all() and plain + up_to(4 * tiles.count, 128) <= best.bytes:
        best = Choice(plain + up_to(4 * tiles.count, 128), F32, 0)
    if distinct is not None and distinct <= 65536:
        width = (distinct - 1).bit_length() * len(tiles.integer)
        size = up_to(index_bytes + 64 * width, 128) + up_to(8 * distinct, 128)
        if size <= best.bytes:
            best = Choice(size, DICTIONARY, 0)
    if tiles.integer.all():
        size = up_to(index_bytes + 64 * int(tiles.integer_width.sum()), 128)
        if size <= best.bytes:
            best = Choice(size, INTEGER, 0)
    return best


def distinct_of(values: F64) -> int:
    bits = np.sort(values.view(np.uint64))
    return 1 + int(np.count_nonzero(bits[1:] != bits[:-1]))


def verify_values(
    findings: Findings, file: str, stored: Values, values: F64, tiles: ValueTiles, due: Choice | None
) -> None:
    """Encoding, widths, bases and entries of a chunk's values; the slots beyond the last one."""
    rest = stored.count % TILE
    if stored.numbers is not None and rest and stored.numbers[-1, rest:].any():
        findings.note("slots", file, "a slot beyond the last value is not 0")

    def wrong(text: str) -> None:
        findings.note("encoding", file, text)

    if due is not None and (stored.encoding, stored.exponent) != (due.encoding, due.exponent):
        here, there = ENCODINGS[stored.encoding], ENCODINGS[due.encoding]
        if due.encoding == DECIMAL:
            there += f" (e = {due.exponent})"
        wrong(f"the values are stored as {here} where {there} is due")
    if stored.encoding == INTEGER:
        if int(np.abs(integers_of(stored)).max()) > LARGEST_INTEGER:
            wrong("a value is larger than 2^53")
        elif (stored.base != tiles.integer_base).any() or (stored.width != tiles.integer_width).any():
            wrong("a value base or value width is not the least")
    elif stored.encoding == DICTIONARY:
        if len(stored.entries) != distinct_of(values):
            wrong("a dictionary entry that no value has")
    elif stored.encoding == DECIMAL:
        e = stored.exponent
        with np.errstate(over="ignore"):
            good = decimals_at(values, POWERS[e])[0]
        if not np.array_equal(np.flatnonzero(~good), stored.places):
            wrong("an exception that is decimal, or a value that should be one")
        elif stored.flat()[stored.places].any():
            wrong("the number of an exception is not 0")
        elif (stored.base != tiles.decimal_base[e]).any() or (stored.width != tiles.decimal_width[e]).any():
            wrong("a value base or value width is not the least")


def verify_order(findings: Findings, nonzeros: Nonzeros, manifest: Manifest) -> bool:
    """Neighbours must ascend in linear index, equal ones in total order of values. Tells whether they do."""
    columns, values = nonzeros.columns, nonzeros.values
    places = bit_places_of(manifest.dims, nonzeros.partition.modes)
    # The highest linear bit in which two neighbours differ decides; up and down are where it stands, from 1.
    up = down = np.zeros(len(values) - 1, np.int64)
    for column, mode_places in zip(columns, places, strict=True):
        if not mode_places:
            continue
        table = np.array([0, *(place + 1 for place in mode_places)])
        a, b = column[:-1], column[1:]
        place = table[np.frexp((a ^ b).astype(np.float64))[1]]
        less = a < b
        up = np.maximum(up, np.where(less, place, 0))
        down = np.maximum(down, np.where(less, 0, place))
    bad, text = down > up, "the nonzeros are not sorted by linear index"
    if not bad.any():
        equal = up == down
        if not equal.any():
            return True
        if manifest.duplicates:
            keys = total_order(values)
            bad, text = equal & (keys[1:] < keys[:-1]), "equal coordinates are not sorted by value"
        else:
            bad, text = equal, "a coordinate occurs twice"
        if not bad.any():
            return True
    place_of = int(np.argmax(bad)) + 1
    chunk = next(chunk for chunk in reversed(nonzeros.partition.chunks) if chunk.first <= place_of)
    findings.note("order", chunk.file, text)
    return False


def verify_repeats(findings: Findings, manifest: Manifest, parts: list[Nonzeros]) -> None:
    """Across the partitions of a cover, no coordinate may occur twice without duplicates."""
    for number in range(manifest.covers):
        members = [part for part in parts if part.partition.covers >> number & 1]
        if len(members) < 2:
            continue
        columns = [np.concatenate([part.columns[mode] for part in members]) for mode in range(manifest.order)]
        order = np.lexsort(columns)  # stable, so of equal ones the later partition's comes later
        same = np.ones(len(order) - 1, np.bool_)
        for column in columns:
            ordered = column[order]
            same &= ordered[1:] == ordered[:-1]
        if same.any():
            at = int(order[1:][same].min())
            for part in members:
                if at < part.partition.nnz:
                    chunk = next(chunk for chunk in reversed(part.partition.chunks) if chunk.first <= at)
                    findings.note("order", chunk.file, "a coordinate occurs twice in a cover")
                    return
                at -= part.partition.nnz


def verify_ranges(findings: Findings, nonzeros: Nonzeros, manifest: Manifest) -> None:
    """What the manifest says of chunks' ranges."""
    partition, columns = nonzeros.partition, nonzeros.columns
    places = bit_places_of(manifest.dims, partition.modes)
    firsts = np.array([chunk.first for chunk in partition.chunks])
    lows = [np.minimum.reduceat(column, firsts).tolist() for column in columns]
    highs = [np.maximum.reduceat(column, firsts).tolist() for column in columns]
    for k, chunk in enumerate(partition.chunks):
        for mode in range(manifest.order):
            if (chunk.low[mode], chunk.high[mode]) != (lows[mode][k], highs[mode][k]):
                findings.note("ranges", MANIFEST, f"chunk {chunk.number}: row low or high of mode {mode} is not exact")
        for at, stated, text in (
            (chunk.first, chunk.first_linear, "first"),
            (chunk.first + chunk.nnz - 1, chunk.last_linear, "last"),
        ):
            if linear_of([int(column[at]) for column in columns], places) != stated:
                findings.note("ranges", MANIFEST, f"chunk {chunk.number}: {text} linear is not the {text} nonzero's")
    if manifest.part is not None and partition.number == 0:
        first = linear_of([int(column[0]) for column in columns], places)
        last = linear_of([int(column[-1]) for column in columns], places)
        if first < manifest.part.low or last > manifest.part.high:
            findings.note("ranges", MANIFEST, "part: a nonzero is outside from and to")


def verify_tiled(findings: Findings, nonzeros: Nonzeros, manifest: Manifest) -> None:
    """Tile ranges, slots, encodings and the cut of a partition of layout `tiled`."""
    partition, order = nonzeros.partition, manifest.order
    exact = [ranges_of(column) for column in nonzeros.columns]
    tiles = value_tiles(nonzeros.values, manifest.version)
    units = np.zeros(len(tiles.integer), np.int64)
    for low, high in exact:
        units += widths_of(high - low)
    for body in nonzeros.bodies:
        assert isinstance(body, TiledBody)
        chunk, file = body.image.chunk, body.image.chunk.file
        first, last = chunk.first // TILE, -(-(chunk.first + chunk.nnz) // TILE)
        for mode, (low, high) in enumerate(exact):
            if (body.low[mode] != low[first:last]).any() or (body.high[mode] != high[first:last]).any():
                findings.note("ranges", file, f"a low or high of mode {mode} is not the tile's")
        rest = chunk.nnz % TILE
        if rest and body.numbers[:, -1, rest:].any():
            findings.note("slots", file, "a slot beyond the last nonzero is not 0")
        part = tiles.part(first, last, chunk.nnz)
        due = choose(64 * int(units[first:last].sum()), part, distinct_of(body.values))
        verify_values(findings, file, body.stored, body.values, part, due)

    def image_bytes(first: int, last: int) -> int:
        count = min(last * TILE, partition.nnz) - first * TILE
        choice = choose(64 * int(units[first:last].sum()), tiles.part(first, last, count), None)
        header = 256 if manifest.version == 2 else 128
        return header + up_to(4 * order, 128) + up_to((16 + 8 * order) * (last - first), 128) + choice.bytes

    verify_tile_cuts(findings, nonzeros, manifest, image_bytes)


def verify_raw(findings: Findings, nonzeros: Nonzeros, manifest: Manifest) -> None:
    """The cut of a partition of layout `raw`, all else of which a reader sees."""
    partition, order = nonzeros.partition, manifest.order
    places = bit_places_of(manifest.dims, None)
    new_block = np.zeros(partition.nnz, np.bool_)
    for column, mode_places in zip(nonzeros.columns, places, strict=True):
        kept = sum(place < 64 for place in mode_places)
        if kept < len(mode_places):
            upper = column >> np.uint32(kept)
            new_block[1:] |= upper[1:] != upper[:-1]
    blocks_before = np.cumsum(new_block)

    def image_bytes(first: int, last: int) -> int:
        start, end = first * TILE, min(last * TILE, partition.nnz)
        blocks = 1 + int(blocks_before[end - 1] - blocks_before[start])
        header = 256 if manifest.version == 2 else 128
        return header + up_to(4 * order, 128) + up_to(16 * blocks, 128) + 2 * up_to(8 * (end - start), 128)

    verify_tile_cuts(findings, nonzeros, manifest, image_bytes)


def verify_tile_cuts(
    findings: Findings,
    nonzeros: Nonzeros,
    manifest: Manifest,
    image_bytes: Callable[[int, int], int],
) -> None:
    """A chunk is closed before the tile that would take it past a bound, and nowhere else."""
    partition = nonzeros.partition
    most = manifest.chunk_bytes // 4 // TILE

    def fits(first: int, last: int) -> bool:
        return last - first <= most and image_bytes(first, last) <= manifest.chunk_bytes

    for chunk in partition.chunks:
        first, last = chunk.first // TILE, -(-(chunk.first + chunk.nnz) // TILE)
        if not fits(first, last):
            findings.note("cut", chunk.file, "the cutting rule says that the chunk ends earlier")
        elif chunk is not partition.chunks[-1] and fits(first, last + 1):
            findings.note("cut", chunk.file, "the cutting rule says that the chunk ends later")


def verify_coordinates(findings: Findings, nonzeros: Nonzeros, manifest: Manifest) -> None:
    for body in nonzeros.bodies:
        with np.errstate(over="ignore"):
            exact = bool((body.values.astype(np.float32).astype(np.float64) == body.values).all())
        if (body.image.encoding == F32) != exact:
            file = body.image.chunk.file
            findings.note("encoding", file, f"the values are not stored as {'f32' if exact else 'f64'}, which is due")
    tiles = (manifest.chunk_bytes - 384) // (TILE * (4 * manifest.order + 8))
    *closed, last = nonzeros.partition.chunks
    for chunk in closed:
        if chunk.nnz != TILE * tiles:
            ends = "earlier" if chunk.nnz > TILE * tiles else "later"
            findings.note("cut", chunk.file, f"the cutting rule says that the chunk ends {ends}")
    if last.nnz > TILE * tiles:
        findings.note("cut", last.file, "the cutting rule says that the chunk ends earlier")


def verify_segments(findings: Findings, nonzeros: Nonzeros, manifest: Manifest) -> None:
    product = nonzeros.partition.product_modes
    index_modes = [mode for mode in range(manifest.order) if not product >> mode & 1]
    for body in nonzeros.bodies:
        assert isinstance(body, SegmentsBody)
        file = body.image.chunk.file
        begins = body.begins[1:]
        new = np.zeros(len(begins), np.bool_)
        for mode in index_modes:
            new |= body.columns[mode][begins] != body.columns[mode][begins - 1]
        if not new.all():
            findings.note("order", file, "a segment has the same indices as the one before")
        for index, low, high, numbers in zip(body.indices, body.low, body.high, body.numbers, strict=True):
            exact_low, exact_high = ranges_of(index)
            if (low != exact_low).any() or (high != exact_high).any():
                findings.note("ranges", file, "a low or high is not the tile's")
            rest = len(index) % TILE
            if rest and numbers[-1, rest:].any():
                findings.note("slots", file, "a slot beyond the last one is not 0")
        tiles = value_tiles(body.values, manifest.version)
        verify_values(findings, file, body.stored, body.values, tiles, None)
    verify_segments_cuts(findings, nonzeros, manifest, index_modes)


def verify_segments_cuts(findings: Findings, nonzeros: Nonzeros, manifest: Manifest, index_modes: list[int]) -> None:
    partition, order = nonzeros.partition, manifest.order
    tiles = value_tiles(nonzeros.values, manifest.version)
    units = np.zeros(len(tiles.integer), np.int64)
    new = np.zeros(partition.nnz, np.bool_)
    for mode, column in enumerate(nonzeros.columns):
        if mode in index_modes:
            new[1:] |= column[1:] != column[:-1]
        else:
            low, high = ranges_of(column)
            units += widths_of(high - low)
    at_nonzero, at_segment = 16 + 8 * (order - len(index_modes)), 8 + 8 * len(index_modes)

    def image_bytes(first: int, last: int) -> int:
        start, end = first * TILE, min(last * TILE, partition.nnz)
        begins = start + np.flatnonzero(new[start:end])
        if not new[start]:
            begins = np.append(start, begins)
        width = int(units[first:last].sum())
        for mode in index_modes:
            low, high = ranges_of(nonzeros.columns[mode][begins])
            width += int(widths_of(high - low).sum())
        choice = choose(64 * width, tiles.part(first, last, end - start), None)
        records = (last - first) * at_nonzero + -(-len(begins) // TILE) * at_segment
        section = 8 + records + 4 * -(-(end - start) // 32)
        return 256 + up_to(4 * order, 128) + up_to(section, 128) + choice.bytes

    verify_tile_cuts(findings, nonzeros, manifest, image_bytes)


@dataclass
class Tree:
    """The tree of a run of nonzeros, as a packer makes it."""

    firsts: list[I64]  # of each inner level: the first nonzero of each node
    starts: list[I64]  # of each inner level: where its nodes' children begin
    slot_of: I64  # of each nonzero
    slots: int


def tree_firsts(columns: Sequence[U32]) -> list[I64]:
    """The first nonzero of each node of the inner levels; columns in the order of levels."""
    new = np.zeros(len(columns[0]), np.bool_)
    new[0] = True
    firsts = []
    for column in columns[:-1]:
        new[1:] |= column[1:] != column[:-1]
        firsts.append(np.flatnonzero(new))
    return firsts


def leaf_counts(firsts: list[I64], count: int) -> tuple[I64, I64, I64]:
    """The leaves of each fiber, the slice of each fiber, and the leaves of each slice's longest fiber."""
    leaves = np.diff(firsts[-1], append=count)
    first_fibers = np.searchsorted(firsts[-1], firsts[0])
    slice_of = np.repeat(np.arange(len(first_fibers)), np.diff(first_fibers, append=len(leaves)))
    return leaves, slice_of, np.maximum.reduceat(leaves, first_fibers)


def due_codes(firsts: list[I64], count: int, leaf_rule: int) -> BOOL:
    """The slices that the leaf rule pads."""
    _, slice_of, longest = leaf_counts(firsts, count)
    nonzeros = np.diff(firsts[0], append=count)
    padded = longest * np.bincount(slice_of)
    if leaf_rule == ELL:
        return padded <= 2 * nonzeros
    if leaf_rule == AUTO:
        return 8 * padded <= 9 * nonzeros
    return np.zeros(len(nonzeros), np.bool_)


def make_tree(columns: Sequence[U32], codes: BOOL | None, firsts: list[I64] | None = None) -> Tree:
    """The tree of nonzeros, columns in the order of levels; codes None: no slice is padded."""
    count = len(columns[0])
    firsts = tree_firsts(columns) if firsts is None else firsts
    starts = [np.searchsorted(below, above) for above, below in pairwise(firsts)]
    if codes is None or not codes.any():
        return Tree(firsts, [*starts, firsts[-1]], np.arange(count), count)
    leaves, slice_of, longest = leaf_counts(firsts, count)
    sizes = np.where(codes[slice_of], longest[slice_of], leaves)
    ends = np.cumsum(sizes)
    first_slots = ends - sizes
    slot_of = np.arange(count) + np.repeat(first_slots - firsts[-1], leaves)
    return Tree(firsts, [*starts, first_slots], slot_of, int(ends[-1]))


def start_records(starts: I64) -> tuple[I64, I64, I64]:
    """Base, stride and second width of an inner level's tiles."""
    count = len(starts)
    at = np.arange(0, count, TILE)
    last = np.append(at[1:], count) - 1
    steps = np.empty(count, np.int64)
    steps[:-1] = starts[1:] - starts[:-1]
    steps[last] = np.iinfo(np.int64).max
    stride = np.minimum.reduceat(steps, at)
    stride[last == at] = 0
    return starts[at], stride, widths_of(starts[last] - starts[at] - stride * (last - at))


def leaf_records(column: U32, tree: Tree) -> tuple[I64, I64, I64]:
    """Low, high and before of the tiles of leaves."""
    if tree.slots == len(column):
        low, high = ranges_of(column)
        return low, high, np.arange(len(low)) * TILE
    tiles = -(-tree.slots // TILE)
    before = np.searchsorted(tree.slot_of, np.arange(tiles) * TILE)
    low, high = np.zeros(tiles, np.int64), np.zeros(tiles, np.int64)
    some = np.flatnonzero(np.diff(before, append=len(column)))
    low[some] = np.minimum.reduceat(column, before[some])
    high[some] = np.maximum.reduceat(column, before[some])
    return low, high, before


def slot_values_of(values: F64, tree: Tree) -> F64:
    """The values by slots: padding has the value of the slot before it."""
    if tree.slots == len(values):
        return values
    return values[np.searchsorted(tree.slot_of, np.arange(tree.slots), side="right") - 1]


def leaf_span(low: I64, high: I64, before: I64, tree: Tree, count: int) -> I64:
    """high - low of tiles of leaves, one more where there is padding."""
    sizes = np.diff(np.arange(len(low)) * TILE, append=tree.slots)
    return high - low + (sizes > np.diff(before, append=count))


def tree_units(columns: Sequence[U32], tree: Tree) -> int:
    """The widths of all index and starts columns together."""
    units = 0
    for column, firsts, starts in zip(columns, tree.firsts, tree.starts, strict=False):
        low, high = ranges_of(column[firsts])
        units += int(widths_of(high - low).sum()) + int(start_records(starts)[2].sum())
    low, high, before = leaf_records(columns[-1], tree)
    return units + int(widths_of(leaf_span(low, high, before, tree, len(columns[0]))).sum())


def tree_bytes(columns: Sequence[U32], values: F64, tree: Tree, version: int, dictionary: bool) -> int:
    """The length of the image of a chunk of these nonzeros."""
    by_slots = slot_values_of(values, tree)
    distinct = distinct_of(by_slots) if dictionary else None
    choice = choose(64 * tree_units(columns, tree), value_tiles(by_slots, version), distinct)
    nodes = [len(firsts) for firsts in tree.firsts] + [tree.slots]
    levels = 64 + 32 * sum(-(-count // TILE) for count in nodes) + 4 * -(-nodes[0] // 32)
    return (256 if version == 2 else 128) + up_to(4 * len(columns), 128) + choice.bytes + up_to(levels, 128)


def verify_tree(findings: Findings, nonzeros: Nonzeros, manifest: Manifest) -> None:
    """Nodes, slots, ranges, encodings and the cut of trees."""
    for body in nonzeros.bodies:
        assert isinstance(body, TreeBody)
        verify_tree_chunk(findings, body, manifest)
    verify_tree_cuts(findings, nonzeros, manifest)


def verify_tree_chunk(findings: Findings, body: TreeBody, manifest: Manifest) -> None:
    image, partition = body.image, body.image.partition
    file, order = image.chunk.file, manifest.order
    assert partition.modes is not None
    columns = [body.columns[mode] for mode in partition.modes]
    count = len(body.values)
    firsts = tree_firsts(columns)
    for level, level_firsts in enumerate(firsts):
        if len(level_firsts) != body.nodes[level]:
            findings.note("order", file, f"an index of level {level} is not above the one before it in its node")
            return
    codes = due_codes(firsts, count, partition.leaf_rule)
    if not np.array_equal(codes, body.codes):
        padded = make_tree(columns, codes, firsts)
        if body.codes.any() or (
            tree_bytes(columns, body.values, padded, manifest.version, True) <= manifest.chunk_bytes
        ):
            findings.note("encoding", file, "a leaf code is not the one that is due")
    tree = make_tree(columns, body.codes, firsts)
    if tree.slots != body.nodes[-1] or not np.array_equal(tree.starts[-1], body.starts[-1]):
        findings.note("encoding", file, "a fiber has other slots than its slice's leaf code says")
        return
    padding = np.ones(tree.slots, np.bool_)
    padding[tree.slot_of] = False
    if not np.array_equal(padding, body.padding):
        findings.note("encoding", file, "a leaf stands behind its fiber's padding")
        return
    if tree.slots > count:
        due_values = slot_values_of(body.values, tree)
        if not np.array_equal(due_values.view(np.uint64), body.slot_values.view(np.uint64)):
            findings.note("encoding", file, "padding does not repeat the value before it")

    record = units = 0
    for level in range(order):
        part = slice(record, record + -(-body.nodes[level] // TILE))
        record = part.stop
        rest = body.nodes[level] % TILE
        if level < order - 1:
            low, high = ranges_of(columns[level][firsts[level]])
            span = high - low
            base, stride, width = start_records(tree.starts[level])
            stored = (body.base[part], body.stride[part], body.second[part])
            if any((a != b).any() for a, b in zip(stored, (base, stride, width), strict=True)):
                findings.note("encoding", file, f"a base, stride or width of level {level} is not the one that is due")
            units += int(width.sum())
            if rest and body.start_numbers[part.stop - 1, rest:].any():
                findings.note("slots", file, f"a slot beyond the last node of level {level} is not 0")
        else:
            low, high, before = leaf_records(columns[level], tree)
            span = leaf_span(low, high, before, tree, count)
        units += int(widths_of(span).sum())
        if (body.low[part] != low).any() or (body.high[part] != high).any():
            findings.note("ranges", file, f"a low or high of level {level} is not the tile's")
        if rest and body.indices[part.stop - 1, rest:].any():
            findings.note("slots", file, f"a slot beyond the last node of level {level} is not 0")
    tiles = value_tiles(body.slot_values, manifest.version)
    due = choose(64 * units, tiles, distinct_of(body.slot_values))
    verify_values(findings, file, body.stored, body.slot_values, tiles, due)


def verify_tree_cuts(findings: Findings, nonzeros: Nonzeros, manifest: Manifest) -> None:
    """Each chunk ends where filling it nonzero by nonzero would have ended it.

    The most nonzeros that fit, F, are not looked for. Where a chunk of n nonzeros is closed before a slice (or a
    fiber), F is from n to less than that slice's (fiber's) end, so it is enough that n nonzeros fit and that those up
    to that end do not.
    """
    partition = nonzeros.partition
    assert partition.modes is not None
    columns = [nonzeros.columns[mode] for mode in partition.modes]
    whole, half = manifest.chunk_bytes, manifest.chunk_bytes // 2
    limit = {CSR: whole, AUTO: whole // 4 * 3, ELL: whole // 8 * 3}[partition.leaf_rule]

    def fits(first: int, count: int) -> bool:
        if count > half:
            return False
        part = [column[first : first + count] for column in columns]
        tree = make_tree(part, None)
        if count + sum(len(firsts) for firsts in tree.firsts) > half:
            return False
        values = nonzeros.values[first : first + count]
        return tree_bytes(part, values, tree, manifest.version, False) <= limit

    slices_and_fibers = itemgetter(0, -1)(tree_firsts(columns))

    def due_end(first: int, stop: int) -> int | None:
        """Up to where the most that fit can lie if the cut at `stop` is right; None: it is not."""
        for firsts in slices_and_fibers:
            after = int(np.searchsorted(firsts, stop, side="right"))
            start = int(firsts[after - 1])
            if start > first:  # The chunk holds another slice (fiber) and is cut before this one.
                if start < stop:
                    return None
                return int(firsts[after]) if after < len(firsts) else partition.nnz
        return stop + 1

    for chunk in partition.chunks:
        first, stop = chunk.first, chunk.first + chunk.nnz
        last = chunk is partition.chunks[-1]
        end = stop if last else due_end(first, stop)
        if end is None:
            findings.note("cut", chunk.file, "the cutting rule says that the chunk ends before a slice or fiber")
        elif not fits(first, chunk.nnz):
            findings.note("cut", chunk.file, "the cutting rule says that the chunk ends earlier")
        elif not last and fits(first, min(end - first, half + 1)):
            findings.note("cut", chunk.file, "the cutting rule says that the chunk ends later")


VERIFIERS: dict[int, Callable[[Findings, Nonzeros, Manifest], None]] = {
    RAW: verify_raw,
    TILED: verify_tiled,
    TREE: verify_tree,
    SEGMENTS: verify_segments,
    COORDINATES: verify_coordinates,
}


def sum_of_squares(parts: Sequence[F64]) -> float:
    """Over tiles in order, then Neumaier's compensated sum over their sums."""
    total = lost = 0.0
    with np.errstate(over="ignore"):
        for values in parts:
            squares = np.zeros(up_to(len(values), TILE))
            np.multiply(values, values, out=squares[: len(values)])
            # A cumulative sum adds in order; a plain one would add pairwise.
            for x in np.cumsum(squares.reshape(-1, TILE), axis=1)[:, -1].tolist():
                t = total + x
                lost += (total - t) + x if abs(total) >= abs(x) else (x - t) + total
                total = t
    return total + lost if math.isfinite(total) else math.inf


def verify_statistics(findings: Findings, manifest: Manifest, parts: list[Nonzeros]) -> None:
    """What the manifest says of the values and rows, by the partitions of cover 0."""
    members = [part for part in parts if part.partition.covers & 1]
    squares = sum_of_squares([part.values for part in members])
    if not same_bits(squares, manifest.sum_of_squares):
        findings.note("statistics", MANIFEST, f"the sum of squares is {squares!r}, not {manifest.sum_of_squares!r}")
    keys = [total_order(part.values) for part in members]
    low, high = min(int(key.min()) for key in keys), max(int(key.max()) for key in keys)
    if total_order_of(manifest.value_min) != low or total_order_of(manifest.value_max) != high:
        findings.note("statistics", MANIFEST, "value min or max is not the nonzeros'")
    for mode in range(manifest.order):
        counts = sum(
            np.bincount(part.columns[mode] & 0xFFFF, minlength=min(manifest.dims[mode], 65536)) for part in members
        )
        bound = int(np.max(counts))
        if bound != manifest.row_bounds[mode]:
            findings.note("statistics", MANIFEST, f"mode {mode}: the longest row bound is {bound}")
    if manifest.statistics is not None:
        size = 328 + 64 * manifest.order
        for part in parts:
            number = part.partition.number
            if statistics_of(part, manifest.order) != manifest.statistics[size * number : size * (number + 1)]:
                findings.note("statistics", MANIFEST, f"the statistics of partition {number} differ")


GROUP = 65536


def statistics_of(nonzeros: Nonzeros, order: int) -> bytes:
    """The section `statistics` of one partition."""
    count = len(nonzeros.values)
    nodes, lengths = [0] * 8, [0] * 32
    if nonzeros.partition.layout == TREE:
        assert nonzeros.partition.modes is not None
        firsts = tree_firsts([nonzeros.columns[mode] for mode in nonzeros.partition.modes])
        nodes[: order - 1] = [len(level) for level in firsts]
        nodes[order - 1] = count
        widths = widths_of(np.diff(firsts[-1], append=count))
        lengths = np.bincount(widths - 1, minlength=32).tolist()
    sampled = 0
    distinct = [[0] * 8 for _ in range(order)]
    for start in range(0, count, 8 * GROUP):
        end = min(start + GROUP, count)
        sampled += end - start
        positions = np.arange(end - start, dtype=np.uint64)
        for mode in range(order):
            # Sorted by index, then by position: a nonzero is the first of its index in a group where the one before
            # it has another index or stands in another group.
            keys = np.sort(nonzeros.columns[mode][start:end].astype(np.uint64) << np.uint64(16) | positions)
            for k in range(8):
                keys_of_groups = keys >> np.uint64(9 + k) if k < 7 else keys >> np.uint64(16)
                distinct[mode][k] += 1 + int(np.count_nonzero(keys_of_groups[1:] != keys_of_groups[:-1]))
    flat = [number for row in distinct for number in row]
    return struct.pack(f"<41Q{8 * order}Q", sampled, *nodes, *lengths, *flat)


def verify_labels(findings: Findings, directory: Directory, manifest: Manifest) -> None:
    for mode, (info, dim) in enumerate(zip(manifest.modes or [], manifest.dims, strict=False)):
        if info.kind:
            try:
                read_labels(directory, info, mode, dim)
            except StoreError as error:
                findings.note(error.rule, error.file, error.text)


# ---------------------------------------------------------------------------------------------------------------------
# Stores
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Store:
    """A store that was read: the nonzeros of cover 0 in its order."""

    path: str
    manifest: Manifest
    columns: list[U32]
    values: F64
    encodings: list[int]  # of each chunk
    unverified: StoreError | None = None  # the first thing that only a verifier refuses

    @property
    def dims(self) -> tuple[int, ...]:
        return self.manifest.dims

    @property
    def nnz(self) -> int:
        return self.manifest.nnz

    @property
    def digest(self) -> str:
        return f"{self.manifest.digest:016x}"

    @property
    def wrong(self) -> str:
        """What only a verifier refuses, in a line; empty where nothing is wrong."""
        return str(self.unverified) if self.unverified is not None else ""

    @cached_property
    def indices(self) -> U32:
        return np.stack(self.columns, axis=1)


def joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def read_nonzeros(directory: Directory, manifest: Manifest) -> list[Nonzeros]:
    """All partitions; of the rules that chunks break the first is raised."""
    error: StoreError | None = None
    result = []
    for partition in manifest.partitions:
        bodies = []
        for chunk in partition.chunks:
            try:
                body = read_body(read_image(directory, manifest, partition, chunk))
                if error is None:
                    bodies.append(body)
            except StoreError as found:
                if error is None or found.rank < error.rank:
                    error = found
        if error is None:
            columns = [joined([body.columns[mode] for body in bodies]) for mode in range(manifest.order)]
            result.append(Nonzeros(partition, bodies, columns, joined([body.values for body in bodies])))
    if error is not None:
        raise error
    return result


def verify(directory: Directory, manifest: Manifest, parts: list[Nonzeros]) -> StoreError | None:
    """The first thing that only a verifier refuses."""
    findings = Findings()
    for nonzeros in parts:
        # Out of order there is no telling what else a packer would have written.
        if verify_order(findings, nonzeros, manifest):
            VERIFIERS[nonzeros.partition.layout](findings, nonzeros, manifest)
        verify_ranges(findings, nonzeros, manifest)
        partition = nonzeros.partition
        if manifest.version == 2 and hash_of_nonzeros(nonzeros.columns, nonzeros.values) != partition.hash:
            findings.note("hash", MANIFEST, f"partition {partition.number} has another hash than its nonzeros")
    if not manifest.duplicates and len(parts) > 1:
        verify_repeats(findings, manifest, parts)
    part = manifest.part
    if part is not None and part.parts == 1 and (part.nnz, part.hash) != (manifest.nnz, manifest.hash):
        findings.note("hash", MANIFEST, "part: the only part is not the whole tensor")
    verify_statistics(findings, manifest, parts)
    verify_labels(findings, directory, manifest)
    return findings.first


def read_store(path: str | os.PathLike[str], verifying: bool = True) -> Store:
    """Read a store. Raises StoreError for what a reader refuses and, where `verifying`, for what a verifier does.

    Otherwise that is left in the store's `unverified`.
    """
    directory = Directory(os.fspath(path))
    version = 2
    try:
        try:
            data = directory.read(MANIFEST)
        except IsADirectoryError:
            fail("manifest-magic", MANIFEST, "not a regular file")
        assert isinstance(data, bytes)
        manifest = parse_manifest(data)
        version = manifest.version
        parts = read_nonzeros(directory, manifest)
        members = [part for part in parts if part.partition.covers & 1]
        columns = [joined([part.columns[mode] for part in members]) for mode in range(manifest.order)]
        encodings = [body.image.encoding for part in parts for body in part.bodies]
        store = Store(os.fspath(path), manifest, columns, joined([part.values for part in members]), encodings)
        store.unverified = verify(directory, manifest, parts)
        if store.unverified is not None:
            if version == 1:
                store.unverified.rule = store.unverified.text
            if verifying:
                raise store.unverified
        return store
    except StoreError as error:
        if version == 1:
            error.rule = error.text
        raise
    finally:
        directory.close()


# ---------------------------------------------------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------------------------------------------------


def value_text(value: float) -> str:
    """The shortest text that reads back; integers up to 2^53 without a point."""
    if value == int(value) and abs(value) <= LARGEST_INTEGER and not (value == 0 and math.copysign(1.0, value) < 0):
        return str(int(value))
    return repr(value)


def frostt_lines(store: Store) -> Iterator[str]:
    """FROSTT text in the order of the store, indices from 1."""
    columns = [(column.astype(np.int64) + 1).tolist() for column in store.columns]
    for row in zip(*columns, store.values.tolist(), strict=True):
        yield " ".join(map(str, row[:-1])) + " " + value_text(row[-1]) + "\n"


def number_or_text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def described(store: Store) -> dict[str, Any]:
    """What --json prints."""
    manifest = store.manifest
    chunks = manifest.chunks
    total = hash_of_nonzeros(store.columns, store.values) if manifest.hash is None else manifest.hash
    partitions = [
        {
            "format": FORMATS[partition.format],
            "layout": LAYOUTS[partition.layout],
            "order_of_modes": None if partition.modes is None else list(partition.modes),
            "target_modes": [mode for mode in range(manifest.order) if partition.targets >> mode & 1],
            "covers": [number for number in range(manifest.covers) if partition.covers >> number & 1],
            "chunks": len(partition.chunks),
            "nnz": partition.nnz,
            "hash": f"{partition.hash if manifest.version == 2 else total:016x}",
        }
        for partition in manifest.partitions
    ]
    return {
        "path": store.path,
        "dims": list(manifest.dims),
        "nnz": manifest.nnz,
        "chunks": len(chunks),
        "digest": store.digest,
        "version": manifest.version,
        "formats": sorted({FORMATS[partition.format] for partition in manifest.partitions}),
        "layouts": sorted({LAYOUTS[partition.layout] for partition in manifest.partitions}),
        "value_encodings": [ENCODINGS[code] for code in sorted(set(store.encodings))],
        "codec": CODECS[manifest.codec],
        "codec_level": manifest.codec_level,
        "duplicates": manifest.duplicates,
        "chunk_bytes": manifest.chunk_bytes,
        "image_bytes": sum(chunk.image_bytes for chunk in chunks),
        "file_bytes": sum(chunk.file_bytes for chunk in chunks),
        "sum_of_squares": number_or_text(manifest.sum_of_squares),
        "value_min": number_or_text(manifest.value_min),
        "value_max": number_or_text(manifest.value_max),
        "longest_row_bound": list(manifest.row_bounds),
        "hash": f"{total:016x}",
        "partitions": partitions,
    }


def check_vector(directory: Path, entry: dict[str, Any], names_rules: bool) -> str:
    """What is wrong with one vector; empty where nothing is."""
    name = entry["name"]
    path = directory / ("valid" if entry["valid"] else "invalid") / name
    try:
        # Of stores that are made by hand, a verifier may find fault with the cut.
        store = read_store(path, verifying=not (entry["valid"] and name.startswith("draft-")))
        if store.unverified is not None and store.unverified.rule != "cut":
            return f"not verified: {store.unverified}"
    except StoreError as error:
        if entry["valid"]:
            return f"refused: {error}"
        good = (error.level, error.file) == (entry["level"], entry["file"])
        good = good and (not names_rules or error.rule == entry["rule"])
        return "" if good else f"expected {entry['level']} {entry['file']} {entry['rule']}, got {error.level} {error}"
    except OSError as error:
        return f"cannot be read: {error}"
    if not entry["valid"]:
        return f"expected {entry['level']} {entry['file']} {entry['rule']}, but it was read"
    text = directory / "valid" / f"{name}.tns"
    if text.exists() and text.read_text() != "".join(frostt_lines(store)):
        return "its nonzeros are not those of the text"
    return ""


def check_vectors(directory: Path) -> int:
    """Read or refuse all vectors of a directory; the exit status."""
    entries = json.loads((directory / "index.json").read_text())
    rules = {entry["rule"] for entry in entries if not entry["valid"]}
    names_rules = bool(rules & RANK.keys())
    bad = 0
    for entry in entries:
        problem = check_vector(directory, entry, names_rules)
        if problem:
            print(f"{entry['name']}: {problem}", file=sys.stderr)
            bad += 1
    print(f"{len(entries) - bad} of {len(entries)} vectors are as {directory / 'index.json'} says")
    return 1 if bad else 0


def run(arguments: argparse.Namespace) -> int:
    if arguments.vectors is not None:
        return check_vectors(Path(arguments.vectors))
    try:
        store = read_store(arguments.store)
    except StoreError as error:
        print(f"{arguments.store}: {error}", file=sys.stderr)
        return 1
    if arguments.npz:
        np.savez(arguments.npz, dims=np.array(store.dims), indices=store.indices, values=store.values)
    if arguments.tns:
        with open(arguments.tns, "w", encoding="ascii") as output:
            output.writelines(frostt_lines(store))
    if arguments.json:
        print(json.dumps(described(store)))
    elif not arguments.quiet:
        dims = " x ".join(map(str, store.dims))
        print(f"{arguments.store}: valid, {dims}, {store.nnz} nonzeros, {len(store.encodings)} chunks, {store.digest}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Read and verify a store, from its specification alone.")
    parser.add_argument("store", nargs="?", help="the store's directory")
    parser.add_argument("--vectors", metavar="DIR", help="read or refuse all vectors that DIR/index.json lists")
    parser.add_argument("--npz", metavar="OUT", help="write dims, indices and values for numpy")
    parser.add_argument("--tns", metavar="OUT", help="write FROSTT text in store order")
    parser.add_argument("--json", action="store_true", help="describe the store on standard output")
    parser.add_argument("--quiet", action="store_true", help="say nothing of a valid store")
    arguments = parser.parse_args()
    if (arguments.store is None) == (arguments.vectors is None):
        parser.error("name a store, or vectors")
    try:
        return run(arguments)
    except (OSError, MemoryError, ImportError, json.JSONDecodeError) as error:
        print(f"blco_reader: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
