#!/usr/bin/env python3
"""Read and check a `.blco` store: a second reader, written from `formats-spec/` alone.

It shares no code with the packer, so the two can only agree where the pages say enough. It needs Python 3.11
and numpy; `zstandard` is imported when the first chunk with codec zstd turns up. It favours a complete check
over speed and holds the whole tensor in memory.

    python3 tools/blco_reader.py STORE [--npz OUT.npz] [--tns OUT.tns] [--json] [--quiet]
    python3 tools/blco_reader.py --vectors formats-spec/vectors

Exit status: 0 the store is valid (with `--vectors`: every vector is read or refused as its index says), 1 it
breaks the specification (one line on standard error), 2 the command line is wrong or the system refused (a
file that cannot be opened, no memory).

From other tools: `read_store(path)` returns a `Store` or raises `StoreError`, whose `level` tells whether every
reader refuses ("reader") or only a verifier ("verifier").
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TILE = 512
BLOCK_BITS = 64
FILE_ALIGN = 4096
SECTION_ALIGN = 128
HEADER_BYTES = 128
ROOT_BYTES = 104
MODE_BYTES = 16
CHUNK_BYTES = 136
ROW_BUCKETS = 65536
MAX_INTEGER = 2**53
MAX_DICTIONARY = 65536
MAX_VALUE_WIDTH = 55
MAX_WINDOW_BYTES = 2**27
MAX_ARCHIVE = 2**31 - 1
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 65536, 2**30

BLCO, HOCFS = 1, 2
FORMATS = {BLCO: "blco", HOCFS: "hocfs"}
RAW, TILED, TREE = 1, 2, 3
CSR, ELL, AUTO = 1, 2, 3
LEAF_RULES = {CSR: "csr", ELL: "ell", AUTO: "auto"}
INTEGER, F32, F64, DICTIONARY = 1, 2, 3, 4
VALUE_ENCODINGS = {INTEGER: "integer", F32: "f32", F64: "f64", DICTIONARY: "dictionary"}
INDEX_ENCODINGS = {RAW: "raw", TILED: "tiled", TREE: "tree"}
CODECS = {0: "none", 1: "zstd"}
SHAPE, BLOCKS, INDEX, TILES, COLUMNS, VALUES, LEVELS = 1, 2, 3, 4, 5, 6, 7
SECTIONS = {
    SHAPE: "SHAPE",
    BLOCKS: "BLOCKS",
    INDEX: "INDEX",
    TILES: "TILES",
    COLUMNS: "COLUMNS",
    VALUES: "VALUES",
    LEVELS: "LEVELS",
}


class StoreError(Exception):
    """The store breaks the specification: which file, where in it, which rule, and who refuses it.

    `level` is "reader" for what every reader must refuse and "verifier" for what only a verifier does.
    """

    def __init__(self, file: str, rule: str, offset: int | None = None, level: str = "reader") -> None:
        self.file, self.rule, self.offset, self.level = file, rule, offset, level
        where = file if offset is None else f"{file}: offset {offset}"
        super().__init__(f"{where}: {rule}")


def require(holds: object, file: str, rule: str, offset: int | None = None) -> None:
    """A rule for every reader: raise a `StoreError` unless `holds`."""
    if not holds:
        raise StoreError(file, rule, offset)


# Verifiers' rules that the store breaks, in the order in which they were met.
_unverified: list[StoreError] = []


def verify(holds: object, file: str, rule: str, offset: int | None = None) -> None:
    """A rule for verifiers: unless it `holds`, `read_store` raises its `StoreError` when no reader's rule is broken."""
    if not holds:
        _unverified.append(StoreError(file, rule, offset, "verifier"))


# ---------------------------------------------------------------------------------------------------------------
# XXH3-64, seed 0
# ---------------------------------------------------------------------------------------------------------------

_M64 = 2**64 - 1
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE, _STRIPES_PER_BLOCK = 64, 16
_BLOCK = _STRIPE * _STRIPES_PER_BLOCK
_SLAB_BLOCKS = 512


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fold(a: int, b: int) -> int:
    """Both halves of the 128-bit product, xored."""
    product = a * b
    return (product & _M64) ^ (product >> 64)


def _avalanche(h: int) -> int:
    h ^= h >> 37
    h = h * _MX1 & _M64
    return h ^ (h >> 32)


def _avalanche_xxh64(h: int) -> int:
    h ^= h >> 33
    h = h * _P64_2 & _M64
    h ^= h >> 29
    h = h * _P64_3 & _M64
    return h ^ (h >> 32)


def _mix16(data: bytes, at: int, secret_at: int) -> int:
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8))


def _hash_to_16(data: bytes) -> int:
    n = len(data)
    if n == 0:
        return _avalanche_xxh64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))
    if n < 4:
        word = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        return _avalanche_xxh64(word ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    if n <= 8:
        h = (_u32(data, n - 4) + (_u32(data, 0) << 32)) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        h ^= ((h << 49 | h >> 15) ^ (h << 24 | h >> 40)) & _M64
        h = h * _MX2 & _M64
        h ^= (h >> 35) + n
        h = h * _MX2 & _M64
        return h ^ (h >> 28)
    low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
    high = _u64(data, n - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return _avalanche((n + swapped + high + _fold(low, high)) & _M64)


def _hash_to_240(data: bytes) -> int:
    n = len(data)
    acc = n * _P64_1
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            acc += _mix16(data, 16 * i, 32 * i) + _mix16(data, n - 16 * (i + 1), 32 * i + 16)
        return _avalanche(acc & _M64)
    acc += sum(_mix16(data, 16 * i, 16 * i) for i in range(8))
    acc = _avalanche(acc & _M64)
    acc += sum(_mix16(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, n // 16))
    acc += _mix16(data, n - 16, 136 - 17)
    return _avalanche(acc & _M64)


def _accumulate(stripes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """What the stripes, u64[..., s, 8] with keys u64[s, 8], add to the eight accumulators: u64[..., 8].

    Within a block the accumulators are only ever added to, so the stripes' parts may be summed first.
    """
    keyed = stripes ^ keys
    products = (keyed & np.uint64(0xFFFFFFFF)) * (keyed >> np.uint64(32))
    swapped = stripes.sum(axis=-2, dtype=np.uint64).reshape(*stripes.shape[:-2], 4, 2)[..., ::-1]
    return products.sum(axis=-2, dtype=np.uint64) + swapped.reshape(*stripes.shape[:-2], 8)


def _hash_long(data: np.ndarray) -> int:
    """More than 240 bytes: the blocks' sums with numpy, a slab at a time; only the scrambling is sequential."""
    n = len(data)
    keys = np.stack([np.frombuffer(_SECRET, "<u8", 8, 8 * s) for s in range(_STRIPES_PER_BLOCK)])
    scramble = np.frombuffer(_SECRET, "<u8", 8, len(_SECRET) - 64)
    prime, shift = np.uint64(_P32_1), np.uint64(47)
    acc = np.array([_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1], np.uint64)
    shifted = np.empty_like(acc)
    blocks = (n - 1) // _BLOCK
    for first in range(0, blocks, _SLAB_BLOCKS):
        last = min(first + _SLAB_BLOCKS, blocks)
        slab = data[first * _BLOCK : last * _BLOCK].view("<u8").reshape(-1, _STRIPES_PER_BLOCK, 8)
        for added in _accumulate(slab, keys):
            np.add(acc, added, out=acc)
            np.right_shift(acc, shift, out=shifted)
            np.bitwise_xor(acc, shifted, out=acc)
            np.bitwise_xor(acc, scramble, out=acc)
            np.multiply(acc, prime, out=acc)
    rest = (n - 1 - blocks * _BLOCK) // _STRIPE
    tail = data[blocks * _BLOCK : blocks * _BLOCK + rest * _STRIPE].view("<u8").reshape(-1, 8)
    acc += _accumulate(tail, keys[:rest])
    end = np.frombuffer(data[n - _STRIPE :].tobytes(), "<u8").reshape(1, 8)
    acc += _accumulate(end, np.frombuffer(_SECRET, "<u8", 8, len(_SECRET) - 64 - 7).reshape(1, 8))
    lanes = [int(a) for a in acc]
    h = n * _P64_1
    for i in range(4):
        h += _fold(lanes[2 * i] ^ _u64(_SECRET, 11 + 16 * i), lanes[2 * i + 1] ^ _u64(_SECRET, 19 + 16 * i))
    return _avalanche(h & _M64)


def xxh3_64(data: bytes | memoryview | np.ndarray) -> int:
    """XXH3-64 with seed 0 of some bytes (or of an array of u8)."""
    flat = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    if len(flat) <= 16:
        return _hash_to_16(flat.tobytes())
    if len(flat) <= 240:
        return _hash_to_240(flat.tobytes())
    return _hash_long(flat)


# ---------------------------------------------------------------------------------------------------------------
# What a store holds
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class ChunkEntry:
    """A chunk's entry in the manifest, and the value encoding found in its header."""

    first_nonzero: int
    nnz: int
    file_bytes: int
    image_bytes: int
    payload_checksum: int
    first_linear: int
    last_linear: int
    row_low: tuple[int, ...]
    row_high: tuple[int, ...]
    value_encoding: int = 0


@dataclass
class Manifest:
    """The manifest, checked as far as that goes without the chunks."""

    store_id: int
    format: int
    index_encoding: int
    leaf_rule: int
    level_modes: tuple[int, ...]
    codec: int
    codec_level: int
    duplicates: int
    chunk_bytes: int
    nnz: int
    sum_of_squares: float
    value_min: float
    value_max: float
    dims: tuple[int, ...]
    bits: tuple[int, ...]
    longest_row_bound: tuple[int, ...]
    bit_modes: tuple[int, ...]
    chunks: list[ChunkEntry]

    @property
    def order(self) -> int:
        return len(self.dims)

    def bit_positions(self) -> list[list[int]]:
        """For each mode, the positions of its bits in the linear index, lowest first."""
        return [[p for p, m in enumerate(self.bit_modes) if m == mode] for mode in range(self.order)]


@dataclass
class Store:
    """A store, read and checked: `columns[m]` are the indices (from 0) of mode m, u32, `values` f64, in store order.

    `unverified` are the verifiers' rules that it breaks.
    """

    path: Path
    manifest: Manifest
    columns: list[np.ndarray]
    values: np.ndarray
    unverified: list[StoreError] = field(default_factory=list)

    @property
    def dims(self) -> tuple[int, ...]:
        return self.manifest.dims

    @property
    def nnz(self) -> int:
        return self.manifest.nnz

    @property
    def digest(self) -> str:
        """The store id as 16 hexadecimal digits."""
        return f"{self.manifest.store_id:016x}"

    @property
    def indices(self) -> np.ndarray:
        """The indices as one array, u32, nnz x order (a copy)."""
        return np.stack(self.columns, axis=1)


# ---------------------------------------------------------------------------------------------------------------
# Small arithmetic
# ---------------------------------------------------------------------------------------------------------------


def width(x: int) -> int:
    """The number of bits that x needs."""
    return x.bit_length()


def widths_of(x: np.ndarray) -> np.ndarray:
    """`width` of each element of an array of unsigned numbers below 2^64."""
    rest = x.astype(np.uint64)
    out = np.zeros(rest.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >= np.uint64(1 << step)
        out[big] += step
        rest[big] >>= np.uint64(step)
    return out + (rest > 0)


def round_up(x: int, to: int) -> int:
    return -(-x // to) * to


def total_order(values: np.ndarray) -> np.ndarray:
    """An i64 for each f64 that compares as IEEE 754's totalOrder does."""
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def interleaving(dims: Sequence[int]) -> list[int]:
    """The `bit modes` that the dims call for."""
    bits = [width(d - 1) for d in dims]
    by_length = sorted(range(len(dims)), key=lambda m: (dims[m], m))
    return [m for turn in range(max(bits)) for m in by_length if turn < bits[m]]


# ---------------------------------------------------------------------------------------------------------------
# Manifest
# ---------------------------------------------------------------------------------------------------------------

_NAME = "manifest"


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest` and check everything that can be checked without the chunks."""
    try:
        data = (directory / _NAME).read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        if not directory.is_dir():
            raise
        raise StoreError(str(directory), "a directory without the file `manifest` is not a store") from error
    store_id = check_preamble(data)
    return parse_archive(data[64:], store_id)


def check_preamble(data: bytes) -> int:
    """Check the first 64 bytes and the archive's checksum; return the store id."""
    require(data[:8] == b"BLCOSTOR", _NAME, "wrong magic", 0)
    require(len(data) >= 64, _NAME, "shorter than its preamble", len(data))
    version, archive_at, length, store_id = struct.unpack_from("<IIQQ", data, 8)
    require(_u64(data, 56) == xxh3_64(data[:56]), _NAME, "the preamble checksum does not match", 56)
    require(version == 1, _NAME, f"unknown version {version}", 8)
    require(not any(data[32:56]), _NAME, "a reserved field is not zero", 32)
    require(archive_at == 64, _NAME, "the archive offset is not 64", 12)
    require(length <= MAX_ARCHIVE, _NAME, "the archive is longer than 2^31 - 1", 16)
    require(len(data) == 64 + length, _NAME, "the file does not end where the archive ends", 16)
    require(xxh3_64(data[64:]) == store_id, _NAME, "the archive does not match the store id", 24)
    return store_id


def parse_archive(archive: bytes, store_id: int) -> Manifest:
    """Parse the archive's root and lists and check each field's range."""
    require(len(archive) >= ROOT_BYTES, _NAME, "the archive is shorter than its root", 64)
    root = len(archive) - ROOT_BYTES
    fields = struct.unpack_from("<IIIiIIIIQQdddQ", archive, root)
    lists = archive_lists(archive, root)
    modes = list(struct.iter_unpack("<IIQ", archive[lists[0][0] : lists[0][1]]))
    bit_modes = tuple(archive[lists[1][0] : lists[1][1]])
    order = len(modes)
    require(2 <= order <= 8, _NAME, f"{order} modes", 64 + root + 80)
    chunks = [parse_chunk_entry(archive, at, order) for at in range(lists[2][0], lists[2][1], CHUNK_BYTES)]
    manifest = Manifest(
        store_id=store_id,
        format=fields[0],
        index_encoding=fields[1],
        leaf_rule=fields[7],
        level_modes=tuple(archive[root + 72 : root + 80]),
        codec=fields[2],
        codec_level=fields[3],
        duplicates=fields[4],
        chunk_bytes=fields[8],
        nnz=fields[9],
        sum_of_squares=fields[10],
        value_min=fields[11],
        value_max=fields[12],
        dims=tuple(m[0] for m in modes),
        bits=tuple(m[1] for m in modes),
        longest_row_bound=tuple(m[2] for m in modes),
        bit_modes=bit_modes,
        chunks=chunks,
    )
    at = 64 + root
    require(fields[0] in FORMATS, _NAME, f"unknown format {fields[0]}", at)
    require(fields[5] == TILE, _NAME, "tile nnz is not 512", at + 20)
    check_format(manifest, fields[6], at)
    check_root(manifest, at)
    check_modes(manifest)
    check_entries(manifest)
    return manifest


def check_format(m: Manifest, block_bits: int, at: int) -> None:
    """The fields that say what chunks hold; `at` is the root's offset in the file."""
    if m.format == BLCO:
        require(m.leaf_rule == 0, _NAME, "a reserved field is not zero", at + 28)
        require(not any(m.level_modes), _NAME, "a reserved field is not zero", at + 72)
        require(block_bits == BLOCK_BITS, _NAME, "block bits is not 64", at + 24)
        known = m.index_encoding in (RAW, TILED)
    else:
        require(m.leaf_rule in LEAF_RULES, _NAME, f"unknown leaf rule {m.leaf_rule}", at + 28)
        permutes = sorted(m.level_modes[: m.order]) == list(range(m.order)) and not any(m.level_modes[m.order :])
        require(permutes, _NAME, "level modes does not name each mode once", at + 72)
        require(block_bits == 0, _NAME, "block bits is not 0", at + 24)
        known = m.index_encoding == TREE
    require(known, _NAME, f"unknown index encoding {m.index_encoding}", at + 4)


def archive_lists(archive: bytes, root: int) -> list[tuple[int, int]]:
    """Begin and end of the root's three lists; they must fill the archive up to the root, in their order."""
    out, cursor = [], 0
    for position, size in ((root + 80, MODE_BYTES), (root + 88, 1), (root + 96, CHUNK_BYTES)):
        relative, count = struct.unpack_from("<iI", archive, position)
        begin = position + relative if count else cursor
        end = begin + count * size
        require(0 <= begin and end <= root, _NAME, "a list does not lie inside the archive", 64 + position)
        require(begin == cursor, _NAME, "a list does not begin where the one before ends", 64 + position)
        out.append((begin, end))
        cursor = end
    require(cursor == root, _NAME, "the archive's lists leave a gap before the root", 64 + cursor)
    return out


def parse_chunk_entry(archive: bytes, at: int, order: int) -> ChunkEntry:
    first, nnz, file_bytes, image_bytes, checksum = struct.unpack_from("<5Q", archive, at)
    linear = struct.unpack_from("<4Q", archive, at + 40)
    low = struct.unpack_from("<8I", archive, at + 72)
    high = struct.unpack_from("<8I", archive, at + 104)
    require(not any(low[order:] + high[order:]), _NAME, "a row range of a mode that is not there", 64 + at + 72)
    return ChunkEntry(
        first_nonzero=first,
        nnz=nnz,
        file_bytes=file_bytes,
        image_bytes=image_bytes,
        payload_checksum=checksum,
        first_linear=linear[0] | linear[1] << 64,
        last_linear=linear[2] | linear[3] << 64,
        row_low=low[:order],
        row_high=high[:order],
    )


def check_root(m: Manifest, at: int) -> None:
    """The ranges of the root's fields; `at` is the root's offset in the file."""
    require(m.codec in CODECS, _NAME, f"unknown codec {m.codec}", at + 8)
    inside = 1 <= m.codec_level <= 22 if m.codec else m.codec_level == 0
    require(inside, _NAME, "the codec level is outside its range", at + 12)
    require(m.duplicates in (0, 1), _NAME, "duplicates is neither 0 nor 1", at + 16)
    require(MIN_CHUNK_BYTES <= m.chunk_bytes <= MAX_CHUNK_BYTES, _NAME, "chunk bytes is outside its range", at + 32)
    require(m.nnz >= 1, _NAME, "the store has no nonzeros", at + 40)
    require(not math.isnan(m.sum_of_squares), _NAME, "the sum of squares is no number", at + 48)
    require(math.isfinite(m.value_min), _NAME, "value min is not finite", at + 56)
    require(math.isfinite(m.value_max), _NAME, "value max is not finite", at + 64)


def check_modes(m: Manifest) -> None:
    """The list of modes and the interleaving."""
    for number, (dim, bits, longest) in enumerate(zip(m.dims, m.bits, m.longest_row_bound)):
        require(dim >= 1, _NAME, f"mode {number} has no index")
        require(bits == width(dim - 1), _NAME, f"mode {number}: bits is not width(dim - 1)")
        verify(1 <= longest <= m.nnz, _NAME, f"mode {number}: the longest row bound is outside 1 to nnz")
    require(sum(m.bits) <= 128, _NAME, "the linear index has more than 128 bits")
    rule = "bit modes is not the interleaving of the dims"
    wanted = interleaving(m.dims)
    if m.format == HOCFS:
        rule = "bit modes is not the levels' modes side by side"
        wanted = [mode for mode in reversed(m.level_modes[: m.order]) for _ in range(m.bits[mode])]
    require(list(m.bit_modes) == wanted, _NAME, rule)


def check_entries(m: Manifest) -> None:
    """The list of chunks: positions, sizes, linear and row ranges, each within its bounds."""
    position, linear = 0, -1
    for number, c in enumerate(m.chunks):
        name = f"chunk {number}: "
        require(c.first_nonzero == position, _NAME, name + "first nonzero is not where the chunk before ended")
        require(1 <= c.nnz <= MAX_CHUNK_BYTES // (4 if m.format == BLCO else 2), _NAME, name + "nnz is outside its range")
        position += c.nnz
        last = number == len(m.chunks) - 1
        whole = c.nnz % TILE == 0 or last or m.format == HOCFS
        require(whole, _NAME, name + "nnz is not a multiple of 512 and the chunk is not the last")
        require(c.image_bytes % SECTION_ALIGN == 0, _NAME, name + "image bytes is not a multiple of 128")
        inside = HEADER_BYTES < c.image_bytes <= m.chunk_bytes
        require(inside, _NAME, name + "image bytes is larger than chunk bytes or smaller than any image")
        require(c.file_bytes % FILE_ALIGN == 0 and c.file_bytes, _NAME, name + "file bytes is not a multiple of 4096")
        verify(c.last_linear < 1 << sum(m.bits), _NAME, name + "last linear is outside the linear index")
        verify(c.first_linear <= c.last_linear, _NAME, name + "first linear is larger than last linear")
        ascends = linear < c.first_linear or (m.duplicates and linear == c.first_linear)
        verify(ascends, _NAME, name + "first linear does not follow the chunk before")
        linear = c.last_linear
        for mode, (low, high, dim) in enumerate(zip(c.row_low, c.row_high, m.dims)):
            require(low <= high < dim, _NAME, name + f"the row range of mode {mode} is outside the dim")
    require(position == m.nnz, _NAME, "the chunks' nonzeros do not add up to nnz")


# ---------------------------------------------------------------------------------------------------------------
# Chunk file: header, payload, sections
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Chunk:
    """A chunk's image, cut into its sections, each an array of u8; `at` are their offsets."""

    name: str
    nnz: int
    order: int
    index_encoding: int
    value_encoding: int
    sections: dict[int, np.ndarray]
    at: dict[int, int]


def load_chunk(directory: Path, number: int, m: Manifest) -> Chunk:
    """Read one chunk's file and check all but the nonzeros themselves."""
    name, entry = f"chunk-{number:06d}.bin", m.chunks[number]
    try:
        data = (directory / name).read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise StoreError(name, "the manifest names a chunk whose file is not there") from error
    rule = f"the file has {len(data)} bytes, not the {entry.file_bytes} of file bytes"
    require(len(data) == entry.file_bytes, name, rule, min(len(data), entry.file_bytes))
    require(data[:8] == b"BLCOCHNK", name, "wrong magic", 0)
    h = struct.unpack_from("<IIQQIIIBBBBQ", data, 8)
    version, chunk, store_id, first, nnz, image_bytes, stored, order, index_code, value_code, codec, checksum = h
    require(_u64(data, 120) == xxh3_64(data[:120]), name, "the header checksum does not match", 120)
    require(version == 1, name, f"unknown version {version}", 8)
    table = section_table(name, data)
    for found, wanted, what, at in (
        (store_id, m.store_id, "store id", 16),
        (chunk, number, "number", 12),
        (first, entry.first_nonzero, "first nonzero", 24),
        (nnz, entry.nnz, "nnz", 32),
        (image_bytes, entry.image_bytes, "image bytes", 36),
        (checksum, entry.payload_checksum, "payload checksum", 48),
        (order, m.order, "order", 44),
        (index_code, m.index_encoding, "index encoding", 45),
        (codec, m.codec, "codec", 47),
        (round_up(HEADER_BYTES + stored, FILE_ALIGN), entry.file_bytes, "stored bytes", 40),
    ):
        require(found == wanted, name, f"the header disagrees with the manifest: {what}", at)
    require(codec or stored == image_bytes - HEADER_BYTES, name, "stored bytes is not the image's without a codec", 40)
    payload = memoryview(data)[HEADER_BYTES : HEADER_BYTES + stored]
    require(xxh3_64(payload) == checksum, name, "the payload checksum does not match", 48)
    require(not any(data[HEADER_BYTES + stored :]), name, "the padding is not zero", HEADER_BYTES + stored)
    entry.value_encoding = value_code
    image = decompress(name, payload, image_bytes - HEADER_BYTES) if codec else payload
    result = Chunk(name, nnz, order, index_code, value_code, {}, {})
    cut_sections(result, table, np.frombuffer(image, np.uint8))
    check_shape(result, m.dims)
    check_gaps(result, np.frombuffer(image, np.uint8))
    return result


def decompress(name: str, payload: memoryview, length: int) -> bytes:
    """The payload as one zstd frame of `length` bytes; a longer one is noticed before it fills the memory."""
    import zstandard

    starts = len(payload) > 5 and payload[:4] == b"\x28\xb5\x2f\xfd"
    require(starts, name, "the payload is not a zstd frame", HEADER_BYTES)
    single_segment, window = payload[4] >> 5 & 1, (8 + (payload[5] & 7)) << (7 + (payload[5] >> 3))
    fits = single_segment or window <= MAX_WINDOW_BYTES
    require(fits, name, "the zstd frame's window is larger than 2^27", HEADER_BYTES + 5)
    try:
        declared = zstandard.get_frame_parameters(payload[:32]).content_size
        step = len(payload) if declared == length else FILE_ALIGN
        frame, out, done, at = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj(), [], 0, 0
        while at < len(payload) and not frame.eof:
            out.append(frame.decompress(payload[at : at + step]))
            at += step
            done += len(out[-1])
            require(done <= length, name, "the zstd frame is longer than the image", HEADER_BYTES)
    except zstandard.ZstdError as error:
        raise StoreError(name, f"the zstd frame is damaged: {error}", HEADER_BYTES) from error
    require(frame.eof and done == length, name, "the zstd frame is shorter than the image", HEADER_BYTES)
    require(not frame.unused_data and at >= len(payload), name, "bytes after the zstd frame", HEADER_BYTES)
    return b"".join(out)


def section_table(name: str, header: bytes) -> list[tuple[int, int, int]]:
    """The header's section table, checked: kind, offset and length of each section that is there."""
    image_bytes, index_code, value_code = _u32(header, 36), header[45], header[46]
    require(index_code in INDEX_ENCODINGS, name, f"unknown index encoding {index_code}", 45)
    require(value_code in VALUE_ENCODINGS, name, f"unknown value encoding {value_code}", 46)
    require(index_code != RAW or value_code == F64, name, "a raw chunk has another value encoding than f64", 46)
    wanted = {RAW: [SHAPE, BLOCKS, INDEX], TILED: [SHAPE, TILES, COLUMNS], TREE: [SHAPE, COLUMNS, LEVELS]}[index_code]
    if value_code != INTEGER:
        wanted = sorted([*wanted, VALUES])
    out, next_at = [], HEADER_BYTES
    for slot in range(4):
        at = 56 + 16 * slot
        kind, offset, length, reserved = struct.unpack_from("<4I", header, at)
        if slot >= len(wanted):
            unused = not (kind or offset or length or reserved)
            require(unused, name, "section table: an unused entry is not zero", at)
            continue
        what = SECTIONS[wanted[slot]]
        require(kind == wanted[slot], name, f"section table: kind {kind} where {what} has its place", at)
        require(reserved == 0, name, "section table: a reserved field is not zero", at + 12)
        follows = offset == next_at
        require(follows, name, f"section table: {what} does not start where the section before ended", at + 4)
        out.append((kind, offset, length))
        next_at = round_up(offset + length, SECTION_ALIGN)
    require(next_at == image_bytes, name, "section table: the image does not end with its last section", 36)
    return out


def cut_sections(chunk: Chunk, table: list[tuple[int, int, int]], payload: np.ndarray) -> None:
    """Fill in `chunk.sections`. `payload` is the image from 128 on."""
    for kind, offset, length in table:
        chunk.sections[kind] = payload[offset - HEADER_BYTES : offset - HEADER_BYTES + length]
        chunk.at[kind] = offset


def check_gaps(chunk: Chunk, payload: np.ndarray) -> None:
    """The bytes between the sections are zero."""
    for kind, data in chunk.sections.items():
        end = chunk.at[kind] + len(data)
        gap = payload[end - HEADER_BYTES : round_up(end, SECTION_ALIGN) - HEADER_BYTES]
        require(not gap.any(), chunk.name, f"the gap after {SECTIONS[kind]} is not zero (offset in the image)", end)


def section(chunk: Chunk, kind: int, length: int) -> np.ndarray:
    """A section that must be `length` bytes long."""
    data = chunk.sections[kind]
    rule = f"{SECTIONS[kind]} has {len(data)} bytes, not {length} (offset in the image)"
    require(len(data) == length, chunk.name, rule, chunk.at[kind])
    return data


def check_shape(chunk: Chunk, dims: Sequence[int]) -> None:
    shape = section(chunk, SHAPE, 4 * chunk.order).view("<u4")
    same = [int(d) for d in shape] == list(dims)
    require(same, chunk.name, "SHAPE disagrees with the manifest's dims (offset in the image)", chunk.at[SHAPE])


# ---------------------------------------------------------------------------------------------------------------
# Packed columns
# ---------------------------------------------------------------------------------------------------------------


def unpack_columns(units: np.ndarray, starts: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Unpack one column of each tile: COLUMNS as u8[n, 64], where each starts (in units), how wide it is.

    Returns T x 512: u32, or u64 if a width is above 32. Columns of equal width are unpacked together.
    """
    wide = bool(len(widths)) and int(widths.max()) > 32
    out = np.zeros((len(starts), TILE), np.uint64 if wide else np.uint32)
    for w in np.unique(widths):
        bits = int(w)
        if bits == 0:
            continue
        (tiles,) = np.nonzero(widths == w)
        words = units[starts[tiles, None] + np.arange(bits)].reshape(len(tiles), bits * 64)
        out[tiles] = unpack_words(words.view("<u4" if bits <= 32 else "<u8"), bits)
    return out


def unpack_words(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpack columns of one width: words u32 or u64, tiles x (bits * lanes); returns tiles x 512."""
    size = words.dtype.itemsize * 8
    lanes = TILE // size
    kind = np.uint32 if size == 32 else np.uint64
    streams = words.reshape(len(words), bits, lanes)
    out = np.empty((len(words), size, lanes), kind)
    mask = kind((1 << bits) - 1)
    for position in range(size):
        k, s = divmod(position * bits, size)
        number = streams[:, k] >> kind(s)
        if s + bits > size:
            number |= streams[:, k + 1] << kind(size - s)
        out[:, position] = number & mask
    return out.reshape(len(words), TILE)


# ---------------------------------------------------------------------------------------------------------------
# Nonzeros
# ---------------------------------------------------------------------------------------------------------------


def tile_sizes(nnz: int) -> np.ndarray:
    """How many nonzeros each tile holds."""
    sizes = np.full(-(-nnz // TILE), TILE, np.int64)
    sizes[-1] = nnz - TILE * (len(sizes) - 1)
    return sizes


def per_tile(values: np.ndarray, function: np.ufunc) -> np.ndarray:
    """`function`'s reduction (minimum, maximum, logical_and) over each tile of 512."""
    return function.reduceat(values, np.arange(0, len(values), TILE))


def decode_tiled(chunk: Chunk, dims: Sequence[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Indices and values of a `tiled` chunk; TILES and COLUMNS checked on the way."""
    tiles = -(-chunk.nnz // TILE)
    record = np.dtype([("at", "<u4"), ("width", "<u4"), ("base", "<i8"), ("range", "<u4", (chunk.order, 2))])
    table = section(chunk, TILES, tiles * record.itemsize).view(record)
    dictionary = read_dictionary(chunk)
    low, high = table["range"][:, :, 0], table["range"][:, :, 1]
    name, offset = chunk.name, chunk.at[TILES]
    require((low <= high).all(), name, "TILES: a tile's low is above its high (offset in the image)", offset)
    require((high < np.array(dims, np.uint64)).all(), name, "TILES: a tile's high is not below the dim", offset)
    check_value_columns(chunk, table, dictionary)
    widths = np.concatenate([widths_of(high - low), table["width"][:, None].astype(np.int64)], axis=1)
    starts = np.cumsum(widths.ravel()).reshape(widths.shape) - widths
    require((table["at"] == starts[:, 0]).all(), name, "TILES: columns at is not the sum of the widths before", offset)
    columns = section(chunk, COLUMNS, 64 * int(widths.sum())).reshape(-1, 64)
    out = []
    for mode in range(chunk.order):
        numbers = unpack_columns(columns, starts[:, mode], widths[:, mode])
        check_slots(chunk, numbers)
        flat = numbers.ravel()[: chunk.nnz]
        span = high[:, mode] - low[:, mode]
        top = per_tile(flat, np.maximum)
        require((top <= span).all(), name, f"COLUMNS: an index of mode {mode} is above its tile's high")
        verify((top == span).all(), name, f"TILES: a high of mode {mode} is not the tile's largest index")
        verify((per_tile(flat, np.minimum) == 0).all(), name, f"TILES: a low of mode {mode} is not the smallest index")
        numbers += low[:, mode, None]
        out.append(flat)
    numbers = unpack_columns(columns, starts[:, -1], widths[:, -1])
    check_slots(chunk, numbers)
    return out, decode_values(chunk, table, numbers.ravel()[: chunk.nnz], dictionary)


def check_slots(chunk: Chunk, numbers: np.ndarray, count: int | None = None) -> None:
    """The slots beyond the nonzeros (or `count` numbers) of the last tile must be zero."""
    beyond = numbers.ravel()[chunk.nnz if count is None else count :]
    verify(not beyond.any(), chunk.name, "COLUMNS: a slot beyond the last nonzero is not 0")


def read_dictionary(chunk: Chunk) -> np.ndarray | None:
    """The dictionary of value encoding 4: finite, strictly ascending by total order."""
    if chunk.value_encoding != DICTIONARY:
        return None
    data = chunk.sections[VALUES]
    fits = len(data) % 8 == 0 and 1 <= len(data) // 8 <= MAX_DICTIONARY
    require(fits, chunk.name, "VALUES is no dictionary of 1 to 65536 f64 (offset in the image)", chunk.at[VALUES])
    entries = data.view("<f8")
    require(np.isfinite(entries).all(), chunk.name, "a value is not finite (offset in the image)", chunk.at[VALUES])
    keys = total_order(entries)
    ascends = (keys[1:] > keys[:-1]).all()
    require(ascends, chunk.name, "the dictionary does not ascend (offset in the image)", chunk.at[VALUES])
    return entries


def check_value_columns(chunk: Chunk, table: np.ndarray, dictionary: np.ndarray | None) -> None:
    """Width and base of each tile's value column, as far as the value encoding tells."""
    name, at = chunk.name, chunk.at[LEVELS if chunk.index_encoding == TREE else TILES]
    widths, base = table["width"], table["base"]
    if chunk.value_encoding == INTEGER:
        inside = (base >= -MAX_INTEGER) & (base <= MAX_INTEGER)
        require(inside.all(), name, "TILES: a value base is outside the integers (offset in the image)", at)
        require((widths <= MAX_VALUE_WIDTH).all(), name, "TILES: a value width is above 55 (offset in the image)", at)
        return
    wanted = 0 if dictionary is None else width(len(dictionary) - 1)
    require((widths == wanted).all(), name, f"TILES: a value width is not {wanted} (offset in the image)", at)
    require((base == 0).all(), name, "TILES: a value base is not 0 (offset in the image)", at)


def decode_values(chunk: Chunk, table: np.ndarray, numbers: np.ndarray, dictionary: np.ndarray | None) -> np.ndarray:
    """The values of a `tiled` chunk, or of a tree's slots, as f64, from the value columns' numbers or from VALUES."""
    name = chunk.name
    if chunk.value_encoding == INTEGER:
        verify((numbers <= 2 * MAX_INTEGER).all(), name, "an integer value is larger than 2^53")
        whole = np.repeat(table["base"], tile_sizes(len(numbers))) + numbers.astype(np.int64)
        low, high = per_tile(whole, np.minimum), per_tile(whole, np.maximum)
        verify((high <= MAX_INTEGER).all(), name, "an integer value is larger than 2^53")
        verify((low == table["base"]).all(), name, "TILES: a value base is not the tile's smallest value")
        minimal = (widths_of((high - low).astype(np.uint64)) == table["width"]).all()
        verify(minimal, name, "TILES: a value width is not the least that holds the tile's values")
        return whole.astype(np.float64)
    if dictionary is not None:
        require((numbers < len(dictionary)).all(), name, "COLUMNS: the number of a dictionary entry that is not there")
        used = np.bincount(numbers, minlength=len(dictionary))
        verify(used.all(), name, "the dictionary holds a value that does not occur in the chunk")
        return dictionary[numbers].astype(np.float64)
    kind = np.dtype("<f4" if chunk.value_encoding == F32 else "<f8")
    values = section(chunk, VALUES, kind.itemsize * len(numbers)).view(kind).astype(np.float64)
    require(np.isfinite(values).all(), name, "a value is not finite")
    return values


def decode_raw(chunk: Chunk, m: Manifest) -> tuple[list[np.ndarray], np.ndarray]:
    """Indices and values of a `raw` chunk; BLOCKS and INDEX checked on the way."""
    name, at = chunk.name, chunk.at[BLOCKS]
    size = len(chunk.sections[BLOCKS])
    require(size and size % 16 == 0, name, "BLOCKS is no list of records (offset in the image)", at)
    record = np.dtype([("key", "<u8"), ("start", "<u4"), ("reserved", "<u4")])
    blocks = chunk.sections[BLOCKS].view(record)
    require(not blocks["reserved"].any(), name, "BLOCKS: a reserved field is not zero (offset in the image)", at)
    keys, starts = blocks["key"], blocks["start"].astype(np.int64)
    require((keys[1:] > keys[:-1]).all(), name, "BLOCKS: the keys do not ascend (offset in the image)", at)
    require(starts[0] == 0 and (np.diff(starts) > 0).all(), name, "BLOCKS: start does not ascend from 0", at)
    require(starts[-1] < chunk.nnz, name, "BLOCKS: a start is not below nnz (offset in the image)", at)
    key_bits = max(len(m.bit_modes) - BLOCK_BITS, 0)
    require(int(keys[-1]) < 1 << key_bits, name, "BLOCKS: a key is outside the linear index", at)
    lengths = np.diff(np.append(starts, chunk.nnz))
    index = section(chunk, INDEX, 8 * chunk.nnz).view("<u8")
    inside = min(len(m.bit_modes), BLOCK_BITS)
    if inside < BLOCK_BITS:
        unused = index >> np.uint64(inside)
        rule = "INDEX: a bit that no mode uses is not 0 (offset in the image)"
        require(not unused.any(), name, rule, chunk.at[INDEX])
    out, shift = [], 0
    for mode, positions in enumerate(m.bit_positions()):
        k = sum(p < BLOCK_BITS for p in positions)
        upper = np.zeros(len(keys), np.uint64)
        for j, p in enumerate(positions[k:], start=k):
            upper |= (keys >> np.uint64(p - BLOCK_BITS) & np.uint64(1)) << np.uint64(j)
        column = np.repeat(upper, lengths)
        if k:
            column |= index >> np.uint64(shift) & np.uint64((1 << k) - 1)
        shift += k
        require((column < m.dims[mode]).all(), name, f"INDEX: an index of mode {mode} is outside its dim")
        out.append(column.astype(np.uint32))
    values = section(chunk, VALUES, 8 * chunk.nnz).view("<f8").astype(np.float64)
    require(np.isfinite(values).all(), name, "a value is not finite")
    return out, values


# ---------------------------------------------------------------------------------------------------------------
# Trees (hocfs.md)
# ---------------------------------------------------------------------------------------------------------------

_RECORD = np.dtype(
    [("at", "<u4"), ("low", "<u4"), ("high", "<u4"), ("stride", "<u4"), ("base", "<i8"), ("width", "<u4"), ("reserved", "<u4")]
)


@dataclass
class Levels:
    """The LEVELS section: nodes of each level, the records of each level's tiles, the slices' leaf codes."""

    nodes: list[int]
    records: list[np.ndarray]
    codes: np.ndarray


def read_levels(chunk: Chunk, m: Manifest) -> Levels:
    """Cut the LEVELS section and check all that does not need COLUMNS."""
    name, at, data = chunk.name, chunk.at[LEVELS], chunk.sections[LEVELS]
    require(len(data) >= 64, name, "LEVELS is shorter than its head (offset in the image)", at)
    head = data[:64].tobytes()
    same = tuple(head[:8]) == m.level_modes and _u32(head, 8) == m.leaf_rule
    require(same, name, "LEVELS disagrees with the manifest (offset in the image)", at)
    reserved = any(head[12:16]) or any(head[48:])
    require(not reserved, name, "LEVELS: a reserved field is not zero (offset in the image)", at)
    counts = struct.unpack_from("<8I", head, 16)
    nodes = list(counts[: m.order])
    ascends = nodes[0] >= 1 and nodes == sorted(nodes) and not any(counts[m.order :])
    require(ascends, name, "LEVELS: a level has fewer nodes than the one above (offset in the image)", at + 16)
    require(nodes[-2] <= chunk.nnz, name, "LEVELS: more fibers than nonzeros (offset in the image)", at + 16)
    slots_max = {CSR: chunk.nnz, ELL: 2 * chunk.nnz, AUTO: 9 * chunk.nnz // 8}[m.leaf_rule]
    held = chunk.nnz <= nodes[-1] <= slots_max
    require(held, name, "LEVELS: other slots than the leaf rule allows (offset in the image)", at + 16)
    tiles = [-(-n // TILE) for n in nodes]
    words = -(-nodes[0] // 32)
    section(chunk, LEVELS, 64 + 32 * sum(tiles) + 4 * words)
    table = data[64 : 64 + 32 * sum(tiles)].view(_RECORD)
    require(not table["reserved"].any(), name, "LEVELS: a reserved field is not zero (offset in the image)", at)
    bits = np.unpackbits(data[64 + 32 * sum(tiles) :], bitorder="little")
    require(not bits[nodes[0] :].any(), name, "LEVELS: a leaf code of no slice (offset in the image)", at)
    records = np.split(table, np.cumsum(tiles)[:-1])
    for level, part in enumerate(records):
        dim = m.dims[m.level_modes[level]]
        inside = (part["low"] <= part["high"]).all() and (part["high"] < dim).all()
        require(inside, name, f"LEVELS: a range of level {level} is outside the dim (offset in the image)", at)
    return Levels(nodes, records, bits[: nodes[0]].astype(bool))


def pads_of(chunk: Chunk, levels: Levels) -> np.ndarray:
    """How many slots of each tile of leaves are padding."""
    before = np.append(levels.records[-1]["stride"].astype(np.int64), chunk.nnz)
    pads = tile_sizes(levels.nodes[-1]) - np.diff(before)
    fits = before[0] == 0 and (np.diff(before) >= 0).all() and (pads >= 0).all()
    require(fits, chunk.name, "LEVELS: before does not count the nonzeros (offset in the image)", chunk.at[LEVELS])
    return pads


def decode_tree(chunk: Chunk, m: Manifest) -> tuple[list[np.ndarray], np.ndarray]:
    """Indices and values of the nonzeros of a tree, mode by mode."""
    name, at = chunk.name, chunk.at[LEVELS]
    levels = read_levels(chunk, m)
    dictionary = read_dictionary(chunk)
    check_value_columns(chunk, levels.records[-1], dictionary)
    pads = pads_of(chunk, levels)
    padded = [np.zeros(len(r), np.int64) for r in levels.records[:-1]] + [(pads > 0).astype(np.int64)]
    first = [widths_of(r["high"].astype(np.int64) - r["low"] + p) for r, p in zip(levels.records, padded)]
    second = [r["width"].astype(np.int64) for r in levels.records]
    pairs = np.stack([np.concatenate(first), np.concatenate(second)], axis=1)
    starts = np.cumsum(pairs.ravel()).reshape(pairs.shape) - pairs
    placed = (np.concatenate(levels.records)["at"] == starts[:, 0]).all()
    require(placed, name, "LEVELS: columns at is not the sum of the widths before (offset in the image)", at)
    columns = section(chunk, COLUMNS, 64 * int(pairs.sum())).reshape(-1, 64)
    places = np.split(starts, np.cumsum([len(r) for r in levels.records])[:-1])
    indices, children = [], []
    for level, record in enumerate(levels.records[:-1]):
        indices.append(node_indices(chunk, levels, level, columns, places[level][:, 0], padded[level]))
        children.append(node_starts(chunk, levels, level, columns, places[level][:, 1]))
    slots = node_indices(chunk, levels, m.order - 1, columns, places[-1][:, 0], padded[-1])
    numbers = unpack_columns(columns, places[-1][:, 1], second[-1])
    check_slots(chunk, numbers, levels.nodes[-1])
    values = decode_values(chunk, levels.records[-1], numbers.ravel()[: levels.nodes[-1]], dictionary)
    for level, index in enumerate(indices):
        rises = np.append(True, index[1:] > index[:-1])
        # A node's first child is above nothing.
        rises[children[level - 1] if level else 0] = True
        verify(rises.all(), name, f"an index of level {level} is not above the one before it in its node")
    check_leaves(chunk, m, levels, children, slots, values)
    there = slots >= 0
    out: list[np.ndarray] = [np.empty(0, np.uint32)] * m.order
    out[m.level_modes[m.order - 1]] = slots[there].astype(np.uint32)
    node = np.flatnonzero(there)
    for level in range(m.order - 2, -1, -1):
        node = np.searchsorted(children[level], node, side="right") - 1
        out[m.level_modes[level]] = indices[level][node].astype(np.uint32)
    return out, values[there]


def node_indices(
    chunk: Chunk, levels: Levels, level: int, columns: np.ndarray, places: np.ndarray, padded: np.ndarray
) -> np.ndarray:
    """The index of each node of a level, -1 for padding."""
    name, record, count = chunk.name, levels.records[level], levels.nodes[level]
    span = record["high"].astype(np.int64) - record["low"]
    numbers = unpack_columns(columns, places, widths_of(span + padded)).astype(np.int64)
    check_slots(chunk, numbers, count)
    flat = numbers.ravel()[:count]
    spans = np.repeat(span, tile_sizes(count))
    pad = (flat == spans + 1) & np.repeat(padded > 0, tile_sizes(count))
    require(((flat <= spans) | pad).all(), name, f"COLUMNS: an index of level {level} is above its tile's high")
    if level == len(levels.nodes) - 1:
        right = (np.add.reduceat(pad.astype(np.int64), np.arange(0, count, TILE)) == pads_of(chunk, levels)).all()
        require(right, name, "LEVELS: before does not count the nonzeros (offset in the image)", chunk.at[LEVELS])
    largest = per_tile(np.where(pad, -1, flat), np.maximum)
    alone = largest < 0
    exact = (np.where(alone, 0, largest) == span) & (per_tile(np.where(pad, 1 << 40, flat), np.minimum) * ~alone == 0)
    exact &= ~alone | (record["low"] == 0)
    verify(exact.all(), name, f"LEVELS: a low or high of level {level} is not exact")
    return np.where(pad, -1, flat + np.repeat(record["low"].astype(np.int64), tile_sizes(count)))


def node_starts(chunk: Chunk, levels: Levels, level: int, columns: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Where the children of each node of an inner level begin."""
    name, record, count = chunk.name, levels.records[level], levels.nodes[level]
    rule = f"LEVELS: starts of level {level} do not ascend from 0 to the next level's end"
    require((record["width"] <= 32).all(), name, f"LEVELS: a width of level {level} is above 32", chunk.at[LEVELS])
    below = levels.nodes[level + 1]
    require((record["base"] >= 0).all() and (record["base"] < below).all(), name, rule)
    numbers = unpack_columns(columns, places, record["width"].astype(np.int64)).astype(np.int64)
    check_slots(chunk, numbers, count)
    starts = record["base"][:, None] + record["stride"].astype(np.int64)[:, None] * np.arange(TILE) + numbers
    flat = starts.ravel()[:count]
    require(flat[0] == 0 and (np.diff(flat) > 0).all() and flat[-1] < below, name, rule)
    begins = (flat[::TILE] == record["base"]).all()
    require(begins, name, f"LEVELS: a base of level {level} is not where the tile's children begin")
    for tile, first in enumerate(range(0, count, TILE)):
        part = flat[first : first + TILE]
        stride = int(np.diff(part).min()) if len(part) > 1 else 0
        bits = width(int(part[-1] - part[0]) - stride * (len(part) - 1))
        least = stride == record["stride"][tile] and bits == record["width"][tile]
        verify(least, name, f"LEVELS: a stride or width of level {level} is not the one that is due")
    return flat


def check_leaves(
    chunk: Chunk, m: Manifest, levels: Levels, children: list[np.ndarray], slots: np.ndarray, values: np.ndarray
) -> None:
    """Padding stands behind a fiber's leaves, repeats the value before it, and is there where the leaf rule says."""
    name, there = chunk.name, slots >= 0
    fibers = children[-1]
    require(there[fibers].all(), name, "a fiber begins with padding")
    pad = np.flatnonzero(~there)
    follows = (values.view(np.int64)[pad] == values.view(np.int64)[pad - 1]).all()
    verify(follows, name, "padding does not repeat the value before it")
    inside = np.setdiff1d(np.arange(1, len(slots)), fibers)
    verify((there[inside - 1] | ~there[inside]).all(), name, "a leaf stands behind padding")
    slots_of = np.diff(np.append(fibers, len(slots)))
    leaves_of = np.add.reduceat(there.astype(np.int64), fibers)
    firsts = np.arange(levels.nodes[0])
    for starts in children[:-1]:
        firsts = starts[firsts]
    nnz, longest = np.add.reduceat(leaves_of, firsts), np.maximum.reduceat(leaves_of, firsts)
    count = np.diff(np.append(firsts, len(fibers)))
    ell = np.repeat(levels.codes, count)
    due = np.where(ell, np.repeat(longest, count), leaves_of)
    verify((slots_of == due).all(), name, "a fiber has other slots than its slice's leaf code says")
    wanted = leaf_codes(m.leaf_rule, nnz, longest * count)
    if (levels.codes != wanted).any():
        # All csr, where the image by the rule would be too long: nothing is padded then.
        verify(not levels.codes.any(), name, "a leaf code is not the one that is due")
    check_tree_values(chunk, levels, slots, values)


def leaf_codes(rule: int, nnz: np.ndarray, padded: np.ndarray) -> np.ndarray:
    """Which slices of so many nonzeros and padded slots are `ell`."""
    if rule == CSR:
        return np.zeros(len(nnz), bool)
    return padded <= 2 * nnz if rule == ELL else 8 * padded <= 9 * nnz


def check_tree_values(chunk: Chunk, levels: Levels, slots: np.ndarray, values: np.ndarray) -> None:
    """The value encoding is the one that is due."""
    is_integer, integer_width, is_f32 = value_facts(values)
    index_units = len(chunk.sections[COLUMNS]) // 64 - int(levels.records[-1]["width"].sum())
    choices = value_costs(
        len(values), index_units, int(integer_width.sum()), bool(is_integer.all()), bool(is_f32.all())
    )
    distinct = len(np.unique(values.view(np.uint64)))
    if distinct <= MAX_DICTIONARY:
        units = index_units + len(integer_width) * width(distinct - 1)
        choices.append((tail_bytes(units, 8 * distinct), 1, DICTIONARY))
    best = min(choices)[2]
    rule = f"the values are stored as {VALUE_ENCODINGS[chunk.value_encoding]} where {VALUE_ENCODINGS[best]} is due"
    verify(best == chunk.value_encoding, chunk.name, rule, 46)


def csr_bytes(m: Manifest, store: Store, first: int, end: int) -> tuple[int, int]:
    """The length of the image of nonzeros `first` to `end` as a tree without padding, and its nodes."""
    by_level = [store.columns[mode][first:end] for mode in m.level_modes[: m.order]]
    values = store.values[first:end]
    new = np.zeros(end - first, bool)
    new[0] = True
    nodes, positions = [], []
    for column in by_level[:-1]:
        new[1:] |= column[1:] != column[:-1]
        positions.append(np.flatnonzero(new))
        nodes.append(column[positions[-1]])
    units, tiles = 0, 0
    for level, indices in enumerate([*nodes, by_level[-1]]):
        span = per_tile(indices, np.maximum).astype(np.int64) - per_tile(indices, np.minimum)
        units += int(widths_of(span).sum())
        tiles += len(span)
        if level < m.order - 1:
            below = positions[level + 1] if level + 1 < len(positions) else np.arange(end - first)
            units += start_units(np.searchsorted(below, positions[level]))
    is_integer, integer_width, is_f32 = value_facts(values)
    size = min(value_costs(len(values), units, int(integer_width.sum()), bool(is_integer.all()), bool(is_f32.all())))[0]
    levels = 64 + 32 * tiles + 4 * -(-len(nodes[0]) // 32)
    total = HEADER_BYTES + round_up(4 * m.order, SECTION_ALIGN) + round_up(levels, SECTION_ALIGN) + size
    return total, sum(len(n) for n in nodes) + end - first


def start_units(starts: np.ndarray) -> int:
    """The widths of the columns that hold these starts."""
    first = starts[::TILE]
    last = starts[np.minimum(np.arange(TILE - 1, len(first) * TILE, TILE), len(starts) - 1)]
    sizes = tile_sizes(len(starts))
    steps = np.diff(starts, append=starts[-1] + (1 << 40))
    steps[TILE - 1 :: TILE] = 1 << 40
    stride = np.where(sizes > 1, per_tile(steps, np.minimum), 0)
    return int(widths_of(last - first - stride * (sizes - 1)).sum())


def check_tree_cutting(store: Store) -> None:
    """Derive each chunk's end from where it begins, and compare with the manifest."""
    m = store.manifest
    most = {CSR: m.chunk_bytes, ELL: m.chunk_bytes // 8 * 3, AUTO: m.chunk_bytes // 4 * 3}[m.leaf_rule]

    def fits(first: int, end: int) -> bool:
        size, nodes = csr_bytes(m, store, first, end)
        return end - first == 1 or size <= most and nodes <= m.chunk_bytes // 2

    for number, entry in enumerate(m.chunks):
        first, end = entry.first_nonzero, entry.first_nonzero + entry.nnz
        # The least `over` so that the nonzeros to `over` are too many; every beginning of what fits, fits.
        low, step = end, 1
        rule = "the chunk holds more than it may"
        verify(fits(first, end), f"chunk-{number:06d}.bin", rule)
        while low < m.nnz and fits(first, min(low + step, m.nnz)):
            low, step = min(low + step, m.nnz), 2 * step
        if low == m.nnz:
            wanted = m.nnz
        else:
            high = min(low + step, m.nnz)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(first, middle) else (low, middle)
            wanted = cut_before(store, first, high - 1)
        rule = f"the chunk ends before nonzero {end}, the cutting rule says {wanted}"
        verify(end == wanted, f"chunk-{number:06d}.bin", rule)


def cut_before(store: Store, first: int, last: int) -> int:
    """Where the chunk that begins with `first` and has no room for `last` is closed."""
    m = store.manifest
    for depth in (1, m.order - 1):
        columns = [store.columns[mode][first : last + 1] for mode in m.level_modes[:depth]]
        other = np.zeros(last + 1 - first, bool)
        for column in columns:
            other |= column != column[-1]
        if other.any():
            return first + int(np.flatnonzero(other)[-1]) + 1
    return last


def linearize(columns: list[np.ndarray], positions: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Low and high 64 bits of the linear index of each nonzero; each 12 bits of an index through a table."""
    digit = 12
    total = len(columns[0])
    low, high = np.zeros(total, np.uint64), np.zeros(total, np.uint64)
    for column, places in zip(columns, positions):
        for first in range(0, len(places), digit):
            bits = places[first : first + digit]
            tables = np.zeros((2, 1 << len(bits)), np.uint64)
            numbers = np.arange(1 << len(bits), dtype=np.uint64)
            for j, place in enumerate(bits):
                tables[place // 64] |= (numbers >> np.uint64(j) & np.uint64(1)) << np.uint64(place % 64)
            looked_up = column >> np.uint32(first) & np.uint32((1 << len(bits)) - 1)
            for table, out in zip(tables, (low, high)):
                if table.any():
                    out |= table[looked_up]
    return low, high


# ---------------------------------------------------------------------------------------------------------------
# Checks over the whole store
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class TileFacts:
    """What the cutting rule needs to know of each tile of the store (lists of one array for each chunk).

    Widths are sums over the tile's columns: the bytes in units of 64.
    """

    index_width: list[np.ndarray] = field(default_factory=list)
    is_integer: list[np.ndarray] = field(default_factory=list)
    integer_width: list[np.ndarray] = field(default_factory=list)
    is_f32: list[np.ndarray] = field(default_factory=list)
    keys_inside: list[np.ndarray] = field(default_factory=list)
    key_before: list[np.ndarray] = field(default_factory=list)

    def columns(self, index_encoding: int) -> Iterator[tuple[int, ...]]:
        """The facts of one tile after the other."""
        parts = [self.keys_inside, self.key_before]
        if index_encoding == TILED:
            parts = [self.index_width, self.is_integer, self.integer_width, self.is_f32]
        return zip(*(np.concatenate(p).tolist() for p in parts))


@dataclass
class Running:
    """What is carried from chunk to chunk."""

    facts: TileFacts = field(default_factory=TileFacts)
    rows: list[np.ndarray] = field(default_factory=list)
    tile_squares: list[np.ndarray] = field(default_factory=list)
    least: int | None = None
    largest: int | None = None
    last_linear: int = -1
    last_value: int = 0


def check_order(m: Manifest, number: int, low: np.ndarray, high: np.ndarray, values: np.ndarray, run: Running) -> None:
    """Linear indices ascend, equal ones by value, within the chunk and from the one before; first and last match."""
    name, entry = f"chunk-{number:06d}.bin", m.chunks[number]
    first = int(low[0]) | int(high[0]) << 64
    last = int(low[-1]) | int(high[-1]) << 64
    verify(first == entry.first_linear, _NAME, f"chunk {number}: first linear is not the first nonzero's")
    verify(last == entry.last_linear, _NAME, f"chunk {number}: last linear is not the last nonzero's")
    keys = total_order(values)
    equal = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
    above = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    verify((above | equal).all(), name, "the nonzeros are not sorted by linear index")
    repeated = bool(equal.any()) or first == run.last_linear
    verify(m.duplicates or not repeated, name, "a coordinate occurs twice in a store without duplicates")
    sorted_values = not (equal & (keys[1:] < keys[:-1])).any()
    sorted_values &= first != run.last_linear or int(keys[0]) >= run.last_value
    verify(sorted_values, name, "equal coordinates are not sorted by value")
    verify(first >= run.last_linear, name, "the chunk's nonzeros do not follow the chunk before")
    run.last_linear, run.last_value = last, int(keys[-1])


def check_rows(m: Manifest, number: int, columns: list[np.ndarray], run: Running) -> None:
    """The chunk's row ranges are exact; count the rows for the longest row bound."""
    entry = m.chunks[number]
    for mode, column in enumerate(columns):
        exact = (int(column.min()), int(column.max())) == (entry.row_low[mode], entry.row_high[mode])
        verify(exact, _NAME, f"chunk {number}: row low or high of mode {mode} is not exact")
        run.rows[mode] += np.bincount(column & np.uint32(ROW_BUCKETS - 1), minlength=ROW_BUCKETS)


def check_values(m: Manifest, number: int, columns: list[np.ndarray], values: np.ndarray, run: Running) -> None:
    """Note each tile's facts and, for `tiled`, check that the value encoding is the one that is due."""
    name, entry = f"chunk-{number:06d}.bin", m.chunks[number]
    keys = total_order(values)
    low, high = int(keys.min()), int(keys.max())
    run.least = low if run.least is None else min(run.least, low)
    run.largest = high if run.largest is None else max(run.largest, high)
    if m.format == HOCFS:
        return
    run.tile_squares.append(squares_by_tile(values))
    if m.index_encoding == RAW:
        return
    bits = values.view(np.uint64)
    is_integer, integer_width, is_f32 = value_facts(values)
    facts = run.facts
    facts.is_integer.append(is_integer)
    facts.integer_width.append(integer_width)
    facts.is_f32.append(is_f32)
    spans = [per_tile(c, np.maximum) - per_tile(c, np.minimum) for c in columns]
    index_width = np.sum([widths_of(s) for s in spans], axis=0)
    facts.index_width.append(index_width)
    index_units, integer_units = int(index_width.sum()), int(integer_width.sum())
    choices = value_costs(len(values), index_units, integer_units, bool(is_integer.all()), bool(is_f32.all()))
    ranked = np.sort(bits)
    distinct = 1 + int(np.count_nonzero(ranked[1:] != ranked[:-1]))
    if distinct <= MAX_DICTIONARY:
        units = index_units + len(integer_width) * width(distinct - 1)
        choices.append((tail_bytes(units, 8 * distinct), 1, DICTIONARY))
    best = min(choices)[2]
    rule = f"the values are stored as {VALUE_ENCODINGS[entry.value_encoding]} where {VALUE_ENCODINGS[best]} is due"
    verify(best == entry.value_encoding, name, rule, 46)


def value_facts(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each tile: whether all values are integers, the width that those take, whether f32 holds all exactly."""
    bits = values.view(np.uint64)
    integer = (np.abs(values) <= MAX_INTEGER) & (np.trunc(values) == values) & (bits != np.uint64(1 << 63))
    whole = np.where(integer, values, 0.0).astype(np.int64)
    span = per_tile(whole, np.maximum) - per_tile(whole, np.minimum)
    with np.errstate(over="ignore", under="ignore"):
        is_f32 = per_tile(values.astype(np.float32).astype(np.float64).view(np.uint64) == bits, np.logical_and)
    return per_tile(integer, np.logical_and), widths_of(span.astype(np.uint64)), is_f32


def tail_bytes(units: int, values: int) -> int:
    """The bytes of COLUMNS (in units of 64) and VALUES in the image: what the value encoding has a say in."""
    return round_up(64 * units, SECTION_ALIGN) + round_up(values, SECTION_ALIGN)


def value_costs(
    nnz: int, index_units: int, integer_units: int, is_integer: bool, is_f32: bool
) -> list[tuple[int, int, int]]:
    """(bytes, rank among equals, encoding) of the value encodings other than the dictionary that can be used."""
    costs = [(tail_bytes(index_units, 8 * nnz), 3, F64)]
    if is_f32:
        costs.append((tail_bytes(index_units, 4 * nnz), 2, F32))
    if is_integer:
        costs.append((tail_bytes(index_units + integer_units, 0), 0, INTEGER))
    return costs


def note_keys(low: np.ndarray, high: np.ndarray, run: Running) -> None:
    """For the cutting of `raw` chunks: BLCO block changes inside each tile, and at its start."""
    before = run.last_linear >> BLOCK_BITS
    changes = np.empty(len(low), np.int64)
    changes[0] = int(high[0]) != before
    changes[1:] = high[1:] != high[:-1]
    at_start = changes[::TILE].copy()
    changes[::TILE] = 0
    run.facts.keys_inside.append(per_tile(changes, np.add))
    run.facts.key_before.append(at_start)


def squares_by_tile(values: np.ndarray) -> np.ndarray:
    """The sum of squares of each tile, added one after the other."""
    tiles = -(-len(values) // TILE)
    padded = np.zeros(tiles * TILE)
    padded[: len(values)] = values
    by_position = np.ascontiguousarray(padded.reshape(tiles, TILE).T)
    total = np.zeros(tiles)
    with np.errstate(over="ignore", under="ignore"):
        for position in by_position:
            total += position * position
    return total


def neumaier(parts: np.ndarray) -> float:
    """The compensated sum, or infinity where the plain sum is not finite."""
    total = lost = 0.0
    for x in parts.tolist():
        new = total + x
        lost += (total - new) + x if abs(total) >= abs(x) else (x - new) + total
        total = new
    return total + lost if math.isfinite(total) else math.inf


def check_statistics(m: Manifest, run: Running) -> None:
    """Sum of squares, smallest and largest value, longest row bounds."""
    found = neumaier(np.concatenate(run.tile_squares))
    wanted = m.sum_of_squares
    verify(found == wanted, _NAME, f"the sum of squares is {found!r}, not {wanted!r}")
    stated = total_order(np.array([m.value_min, m.value_max])).tolist()
    verify(stated == [run.least, run.largest], _NAME, "value min or max is not the nonzeros'")
    for mode, counts in enumerate(run.rows):
        exact = int(counts.max()) == m.longest_row_bound[mode]
        verify(exact, _NAME, f"mode {mode}: the longest row bound is {counts.max()}, not {m.longest_row_bound[mode]}")


def check_cutting(m: Manifest, run: Running) -> None:
    """Derive again where the chunks begin, from the tiles alone, and compare with the manifest."""
    sizes = (min(TILE, m.nnz - at) for at in range(0, m.nnz, TILE))
    most = m.chunk_bytes // 4 // TILE * TILE
    bounds, state, count = [0], None, 0
    for size, facts in zip(sizes, run.facts.columns(m.index_encoding)):
        grown = grow(m, state, facts)
        if count and (count + size > most or image_bytes(m, grown, count + size) > m.chunk_bytes):
            bounds.append(bounds[-1] + count)
            grown, count = grow(m, None, facts), 0
        state, count = grown, count + size
    for number, (entry, wanted) in enumerate(zip(m.chunks, bounds[1:] + [m.nnz])):
        found = entry.first_nonzero + entry.nnz
        rule = f"the chunk ends before nonzero {found}, the cutting rule says {wanted}"
        verify(found == wanted, f"chunk-{number:06d}.bin", rule)


def grow(m: Manifest, state: tuple[int, ...] | None, facts: tuple[int, ...]) -> tuple[int, ...]:
    """The facts of a chunk with one more tile."""
    if m.index_encoding == RAW:
        inside, before = facts
        return (1 + inside,) if state is None else (state[0] + inside + before,)
    units, is_integer, integer_width, is_f32 = facts
    if state is None:
        return 1, units, is_integer, integer_width, is_f32
    return state[0] + 1, state[1] + units, state[2] & is_integer, state[3] + integer_width, state[4] & is_f32


def image_bytes(m: Manifest, state: tuple[int, ...], nnz: int) -> int:
    """The size that the cutting rule gives an image."""
    if m.index_encoding == RAW:
        sections = [4 * m.order, 16 * state[0], 8 * nnz, 8 * nnz]
    else:
        tiles, index_units, is_integer, integer_units, is_f32 = state
        size = min(value_costs(nnz, index_units, integer_units, bool(is_integer), bool(is_f32)))[0]
        sections = [4 * m.order, tiles * (16 + 8 * m.order), size]
    return HEADER_BYTES + sum(round_up(s, SECTION_ALIGN) for s in sections)


# ---------------------------------------------------------------------------------------------------------------
# The whole store
# ---------------------------------------------------------------------------------------------------------------


def read_store(path: str | Path, verifying: bool = True) -> Store:
    """Read and check a store. Raises `StoreError` if it breaks the specification, `OSError` if it cannot be read.

    Unless `verifying`, verifiers' rules that it breaks are only noted.
    """
    _unverified.clear()
    directory = Path(path)
    m = read_manifest(directory)
    run = Running(rows=[np.zeros(ROW_BUCKETS, np.int64) for _ in m.dims])
    positions = m.bit_positions()
    columns: list[list[np.ndarray]] = [[] for _ in m.dims]
    values: list[np.ndarray] = []
    for number in range(len(m.chunks)):
        chunk = load_chunk(directory, number, m)
        if m.format == HOCFS:
            found, numbers = decode_tree(chunk, m)
        elif m.index_encoding == RAW:
            found, numbers = decode_raw(chunk, m)
        else:
            found, numbers = decode_tiled(chunk, m.dims)
        check_values(m, number, found, numbers, run)
        check_rows(m, number, found, run)
        low, high = linearize(found, positions)
        if m.index_encoding == RAW:
            note_keys(low, high, run)
        check_order(m, number, low, high, numbers, run)
        for mode, column in enumerate(found):
            columns[mode].append(column)
        values.append(numbers)
    store = Store(directory, m, [np.concatenate(c) for c in columns], np.concatenate(values))
    if m.format == HOCFS:
        run.tile_squares.append(squares_by_tile(store.values))
    check_statistics(m, run)
    if m.format == HOCFS:
        check_tree_cutting(store)
    else:
        check_cutting(m, run)
    store.unverified = list(_unverified)
    if verifying and _unverified:
        raise _unverified[0]
    return store


def format_value(value: float) -> str:
    """The shortest text that reads back as the same f64; integers up to 2^53 without a point."""
    whole = value.is_integer() and abs(value) <= MAX_INTEGER and (value != 0 or math.copysign(1, value) > 0)
    return str(int(value)) if whole else repr(value)


def write_tns(store: Store, out: Path) -> None:
    """Write the store as FROSTT text, indices from 1, in store order."""
    block = 1 << 18
    with out.open("w", encoding="ascii", newline="\n") as file:
        for first in range(0, store.nnz, block):
            part = slice(first, first + block)
            texts = [map(str, (c[part].astype(np.int64) + 1).tolist()) for c in store.columns]
            texts.append(map(format_value, store.values[part].tolist()))
            file.writelines(" ".join(line) + "\n" for line in zip(*texts))


def summary(store: Store) -> dict[str, object]:
    """What `--json` prints."""
    m = store.manifest
    return {
        "path": str(store.path),
        "dims": list(m.dims),
        "nnz": m.nnz,
        "chunks": len(m.chunks),
        "digest": store.digest,
        "format": FORMATS[m.format],
        "index_encoding": INDEX_ENCODINGS[m.index_encoding],
        "value_encodings": [VALUE_ENCODINGS[c.value_encoding] for c in m.chunks],
        "codec": CODECS[m.codec],
        "codec_level": m.codec_level,
        "duplicates": bool(m.duplicates),
        "chunk_bytes": m.chunk_bytes,
        "image_bytes": sum(c.image_bytes for c in m.chunks),
        "file_bytes": sum(c.file_bytes for c in m.chunks),
        "sum_of_squares": m.sum_of_squares if math.isfinite(m.sum_of_squares) else "inf",
        "value_min": m.value_min,
        "value_max": m.value_max,
        "longest_row_bound": list(m.longest_row_bound),
    }


# ---------------------------------------------------------------------------------------------------------------
# Vectors
# ---------------------------------------------------------------------------------------------------------------


def read_tns(path: Path) -> tuple[list[list[int]], np.ndarray]:
    """Indices (from 0) and values of FROSTT text."""
    rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    return [[int(x) - 1 for x in row[:-1]] for row in rows], np.array([float(row[-1]) for row in rows])


def vector_fault(directory: Path, vector: dict[str, object]) -> str | None:
    """What is wrong with how one vector is read or refused."""
    name = str(vector["name"])
    path = directory / ("valid" if vector["valid"] else "invalid") / name
    try:
        store = read_store(path)
    except StoreError as error:
        if vector["valid"]:
            return f"{name}: refused: {error}"
        same = (error.level, error.file) == (vector["level"], vector["file"]) and str(vector["rule"]) in error.rule
        due = f"{vector['file']}: {vector['rule']} ({vector['level']})"
        return None if same else f"{name}: refused with `{error}` ({error.level}), due is `{due}`"
    if not vector["valid"]:
        return f"{name}: not refused, due is `{vector['file']}: {vector['rule']}`"
    indices, values = read_tns(path.with_name(name + ".tns"))
    same = store.indices.tolist() == indices and store.values.tobytes() == values.tobytes()
    return None if same else f"{name}: other nonzeros than its text"


def check_vectors(directory: Path) -> int:
    """Read or refuse all vectors of a directory; return the exit status."""
    vectors = json.loads((directory / "index.json").read_text(encoding="utf-8"))
    faults = [fault for vector in vectors if (fault := vector_fault(directory, vector))]
    listed = {("valid" if v["valid"] else "invalid", v["name"]) for v in vectors}
    kinds = "valid", "invalid"
    there = {(kind, path.name) for kind in kinds for path in (directory / kind).iterdir() if path.is_dir()}
    faults += [f"{kind}/{name}: not in both the index and the directory" for kind, name in sorted(listed ^ there)]
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        print(f"{len(vectors)} vectors, all as they should be")
    return 1 if faults else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Read and check a .blco store.")
    parser.add_argument("store", type=Path, nargs="?", help="the store's directory")
    parser.add_argument("--vectors", type=Path, metavar="DIR", help="check the vectors there instead of a store")
    parser.add_argument("--npz", type=Path, metavar="OUT", help="write indices (from 0), values and dims")
    parser.add_argument("--tns", type=Path, metavar="OUT", help="write FROSTT text (indices from 1)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="print no summary")
    options = parser.parse_args(arguments)
    if (options.store is None) == (options.vectors is None):
        parser.error("give a store or --vectors, one of the two")
    try:
        if options.vectors:
            return check_vectors(options.vectors)
        store = read_store(options.store)
        if options.npz:
            dims = np.array(store.dims, np.uint64)
            with options.npz.open("wb") as file:
                np.savez(file, indices=store.indices, values=store.values, dims=dims)
        if options.tns:
            write_tns(store, options.tns)
    except StoreError as error:
        print(f"{options.store}: {error}", file=sys.stderr)
        return 1
    except (OSError, MemoryError, ImportError) as error:
        print(f"{options.store or options.vectors}: {error}", file=sys.stderr)
        return 2
    if not options.quiet:
        shape = " x ".join(str(d) for d in store.dims)
        line = f"{shape}, {store.nnz} nonzeros, {len(store.manifest.chunks)} chunks, digest {store.digest}"
        print(json.dumps(summary(store)) if options.json else line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
