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
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# container.md
PREAMBLE_BYTES, ROOT_BYTES, MODE_BYTES, CHUNK_BYTES = 64, 104, 16, 136
HEADER_BYTES, SECTION_ALIGN, FILE_ALIGN = 128, 128, 4096
BLCO, HOCFS = 1, 2
SHAPE, BLOCKS, INDEX, TILES, COLUMNS, VALUES, LEVELS = range(1, 8)
ROW_BUCKETS = 1 << 16
# encodings.md
TILE = 512
RAW, TILED, TREE = 1, 2, 3
INTEGER, F32, F64, DICTIONARY = 1, 2, 3, 4
MAX_INTEGER = 1 << 53
MAX_DICTIONARY = 1 << 16
# blco.md
BLOCK_BITS = 64
# hocfs.md
CSR, ELL, AUTO = 1, 2, 3
LEAF_RULES = {CSR: "csr", ELL: "ell", AUTO: "auto"}

VECTORS = Path(__file__).resolve().parent.parent / "formats-spec" / "vectors"
MANIFEST = "manifest"
PROGRAM_SECONDS = 60

Nonzero = tuple[tuple[int, ...], float]


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


def avalanche(number: int) -> int:
    number &= U64
    number = (number ^ number >> 37) * 0x165667919E3779F9 & U64
    return number ^ number >> 32


def xxh3_64(data: bytes) -> int:
    """XXH3-64 with seed 0 of more than 8 bytes: nothing here is shorter."""
    size = len(data)
    assert size > 8
    if size <= 16:
        begin, end = struct.unpack_from("<Q", data)[0], struct.unpack_from("<Q", data, size - 8)[0]
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
    return struct.unpack("<Q", struct.pack("<d", value))[0]


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


def sum_of_squares(values: Sequence[float]) -> float:
    total = lost = 0.0
    for first in range(0, len(values), TILE):
        x = 0.0
        for value in values[first : first + TILE]:
            x += value * value
        new = total + x
        lost += (total - new) + x if abs(total) >= abs(x) else (x - new) + total
        total = new
    return total + lost if math.isfinite(total) else math.inf


def longest_row_bound(indices: Sequence[int]) -> int:
    counts: dict[int, int] = {}
    for index in indices:
        counts[index % ROW_BUCKETS] = counts.get(index % ROW_BUCKETS, 0) + 1
    return max(counts.values())


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

    encoding: int = TILED
    main_mode: int = 0
    leaf: int = CSR
    zstd: int = 0
    duplicates: bool = False
    chunk_bytes: int = 65536


class Twist:
    """Where a fault can be put in while a store is written; this one puts none."""

    sort = True

    def value_encoding(self, due: int) -> int:
        """The value encoding of a chunk."""
        return due

    def widths(self, tile: int, widths: list[int]) -> list[int]:
        """The widths of a tile's columns, the value column last."""
        return widths

    def numbers(self, tile: int, column: int, numbers: list[int]) -> list[int]:
        """The 512 numbers of a column."""
        return numbers

    def boundaries(self, boundaries: list[int]) -> list[int]:
        """The first tile of each chunk."""
        return boundaries

    def stride(self, begins: list[int], stride: int) -> int:
        """The stride of a tile of an inner level whose children begin there."""
        return stride

    def divides(self, level: int, nonzero: int) -> bool:
        """Whether a node of a level ends before a nonzero of its own."""
        return False

    def sections(self, sections: dict[int, bytes]) -> dict[int, bytes]:
        """The sections of a chunk."""
        return sections


@dataclass
class TileFacts:
    """The widths of a tile's index columns and what its values allow."""

    low: list[int]
    high: list[int]
    integer_width: int | None
    f32: bool

    @property
    def index_width(self) -> int:
        return sum(width(high - low) for low, high in zip(self.low, self.high))


def tile_facts(part: Sequence[Nonzero]) -> TileFacts:
    by_mode = list(zip(*(c for c, _ in part)))
    values = [v for _, v in part]
    span = int(max(values)) - int(min(values)) if all(map(is_integer, values)) else None
    return TileFacts(
        low=[min(i) for i in by_mode],
        high=[max(i) for i in by_mode],
        integer_width=None if span is None else width(span),
        f32=all(map(is_f32, values)),
    )


def tail_bytes(units: int, values: int) -> int:
    return round_up(64 * units, SECTION_ALIGN) + round_up(values, SECTION_ALIGN)


def choices(tiles: Sequence[TileFacts], nnz: int) -> list[tuple[int, int, int]]:
    """(bytes of COLUMNS and VALUES, rank, encoding) without the dictionary."""
    units = sum(t.index_width for t in tiles)
    out = [(tail_bytes(units, 8 * nnz), 3, F64)]
    if all(t.f32 for t in tiles):
        out.append((tail_bytes(units, 4 * nnz), 2, F32))
    widths = [t.integer_width for t in tiles]
    if None not in widths:
        out.append((tail_bytes(units + sum(w or 0 for w in widths), 0), 0, INTEGER))
    return out


# ---------------------------------------------------------------------------------------------------------------
# Stores
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Draft:
    """A store's files, to be changed and sealed. `entries` is where the chunk list lies in the manifest's file."""

    files: dict[str, bytearray]
    order: int
    entries: int
    chunks: int

    @property
    def root(self) -> int:
        """Where the root struct lies in the manifest's file."""
        return len(self.files[MANIFEST]) - ROOT_BYTES

    def poke(self, name: str, at: int, layout: str, *values: object) -> None:
        """Overwrite some fields of a file."""
        struct.pack_into(layout, self.files[name], at, *values)

    def flip(self, name: str, at: int) -> None:
        """Change one bit of a file."""
        self.files[name][at] ^= 1

    def section(self, name: str, kind: int) -> int:
        """Where a section of a chunk without a codec begins in its file."""
        for slot in range(4):
            found, offset = struct.unpack_from("<2I", self.files[name], 56 + 16 * slot)
            if found == kind:
                return int(offset)
        raise KeyError(kind)

    def seal(self, keep: Sequence[str] = ()) -> None:
        """Compute all checksums again, but for those in `keep`: payload, archive, preamble, header."""
        manifest = self.files[MANIFEST]
        for number in range(self.chunks):
            data = self.files.get(chunk_name(number))
            if data is None or "payload" in keep:
                continue
            stored = struct.unpack_from("<I", data, 40)[0]
            checksum = xxh3_64(bytes(data[HEADER_BYTES : HEADER_BYTES + stored]))
            struct.pack_into("<Q", data, 48, checksum)
            struct.pack_into("<Q", manifest, self.entries + CHUNK_BYTES * number + 32, checksum)
        if "archive" not in keep:
            struct.pack_into("<Q", manifest, 24, xxh3_64(bytes(manifest[PREAMBLE_BYTES:])))
        if "preamble" not in keep:
            struct.pack_into("<Q", manifest, 56, xxh3_64(bytes(manifest[:56])))
        for number in range(self.chunks):
            data = self.files.get(chunk_name(number))
            if data is None:
                continue
            data[16:24] = manifest[24:32]
            self.seal_header(number, keep)

    def seal_header(self, number: int, keep: Sequence[str] = ()) -> None:
        if "header" not in keep:
            data = self.files[chunk_name(number)]
            struct.pack_into("<Q", data, 120, xxh3_64(bytes(data[:120])))


def chunk_name(number: int) -> str:
    return f"chunk-{number:06d}.bin"


class Writer:
    """Writes one store."""

    def __init__(self, dims: Sequence[int], nonzeros: Sequence[Nonzero], options: Options, twist: Twist) -> None:
        self.dims, self.options, self.twist = tuple(dims), options, twist
        self.modes = bit_modes(dims)
        self.nonzeros = list(nonzeros)
        if twist.sort:
            self.nonzeros.sort(key=lambda n: (linear_index(n[0], self.modes), total_order(n[1])))
        tiles = [self.nonzeros[at : at + TILE] for at in range(0, len(self.nonzeros), TILE)]
        self.tiles = [tile_facts(t) for t in tiles]

    def codes(self) -> tuple[int, int, int, bytes]:
        """Format, block bits, leaf rule and level modes, as the manifest has them."""
        return BLCO, BLOCK_BITS, 0, bytes(8)

    def bounds(self) -> list[int]:
        """The first nonzero of each chunk, and behind the last one's how many there are."""
        return [TILE * tile for tile in self.twist.boundaries(self.cut())] + [len(self.nonzeros)]

    def sections(self, first: int, end: int) -> tuple[int, dict[int, bytes]]:
        """Value encoding and sections of the chunk of some nonzeros."""
        part = self.nonzeros[first:end]
        if self.options.encoding == RAW:
            return self.raw_sections(part)
        return self.tiled_sections(first // TILE, -(-end // TILE), part)

    def cut(self) -> list[int]:
        """The first tile of each chunk."""
        out, count, n = [0], 0, len(self.nonzeros)
        for tile in range(len(self.tiles)):
            nnz = min(n, TILE * (tile + 1)) - TILE * out[-1]
            bound = self.options.chunk_bytes // 4 // TILE * TILE
            if count and (nnz > bound or self.image_bytes(out[-1], tile + 1) > self.options.chunk_bytes):
                out.append(tile)
                count = 0
            count += 1
        return out

    def image_bytes(self, first: int, end: int) -> int:
        """What the cutting rule counts for a chunk of some tiles."""
        part = self.nonzeros[TILE * first : TILE * end]
        head = HEADER_BYTES + round_up(4 * len(self.dims), SECTION_ALIGN)
        if self.options.encoding == RAW:
            blocks = len({linear_index(c, self.modes) >> 64 for c, _ in part})
            return head + round_up(16 * blocks, SECTION_ALIGN) + 2 * round_up(8 * len(part), SECTION_ALIGN)
        table = round_up((end - first) * (16 + 8 * len(self.dims)), SECTION_ALIGN)
        return head + table + min(choices(self.tiles[first:end], len(part)))[0]

    def raw_sections(self, part: Sequence[Nonzero]) -> tuple[int, dict[int, bytes]]:
        """Value encoding and sections of a `raw` chunk."""
        blocks, previous = [], None
        for number, (coordinates, _) in enumerate(part):
            key = linear_index(coordinates, self.modes) >> 64
            if key != previous:
                blocks.append(struct.pack("<QII", key, number, 0))
            previous = key
        index = [re_encode(c, self.modes) for c, _ in part]
        return F64, {
            SHAPE: struct.pack(f"<{len(self.dims)}I", *self.dims),
            BLOCKS: b"".join(blocks),
            INDEX: struct.pack(f"<{len(part)}Q", *index),
            VALUES: struct.pack(f"<{len(part)}d", *(v for _, v in part)),
        }

    def tiled_sections(self, first: int, end: int, part: Sequence[Nonzero]) -> tuple[int, dict[int, bytes]]:
        """Value encoding and sections of a `tiled` chunk."""
        facts, values = self.tiles[first:end], [v for _, v in part]
        dictionary = sorted({bits_of(v): v for v in values}.values(), key=total_order)
        possible = choices(facts, len(part))
        if len(dictionary) <= MAX_DICTIONARY:
            units = sum(t.index_width for t in facts) + len(facts) * width(len(dictionary) - 1)
            possible.append((tail_bytes(units, 8 * len(dictionary)), 1, DICTIONARY))
        encoding = self.twist.value_encoding(min(possible)[2])
        entry = {bits_of(v): number for number, v in enumerate(dictionary)}
        records, columns, at = [], [], 0
        for number, tile in enumerate(facts):
            inside = part[TILE * number : TILE * (number + 1)]
            base, numbers = 0, [0] * len(inside)
            widths = [width(high - low) for low, high in zip(tile.low, tile.high)] + [0]
            if encoding == INTEGER:
                base = int(min(v for _, v in inside))
                numbers = [int(v) - base for _, v in inside]
                widths[-1] = width(max(numbers))
            elif encoding == DICTIONARY:
                numbers = [entry[bits_of(v)] for _, v in inside]
                widths[-1] = width(len(dictionary) - 1)
            widths = self.twist.widths(number, widths)
            ranges = [x for pair in zip(tile.low, tile.high) for x in pair]
            records.append(struct.pack(f"<IIq{len(ranges)}I", at, widths[-1], base, *ranges))
            for mode, low in enumerate(tile.low):
                columns.append(self.column(number, mode, [c[mode] - low for c, _ in inside], widths[mode]))
            columns.append(self.column(number, len(self.dims), numbers, widths[-1]))
            at += sum(widths)
        out = {
            SHAPE: struct.pack(f"<{len(self.dims)}I", *self.dims),
            TILES: b"".join(records),
            COLUMNS: b"".join(columns),
        }
        if encoding == F32:
            out[VALUES] = struct.pack(f"<{len(values)}f", *values)
        elif encoding == F64:
            out[VALUES] = struct.pack(f"<{len(values)}d", *values)
        elif encoding == DICTIONARY:
            out[VALUES] = struct.pack(f"<{len(dictionary)}d", *dictionary)
        return encoding, out

    def column(self, tile: int, column: int, numbers: list[int], bits: int) -> bytes:
        padded = numbers + [0] * (TILE - len(numbers))
        return pack(self.twist.numbers(tile, column, padded), bits)

    def chunk(self, number: int, first: int, end: int) -> tuple[bytearray, bytes]:
        """A chunk's file, its checksums still zero, and its entry in the manifest."""
        part = self.nonzeros[first:end]
        encoding, sections = self.sections(first, end)
        sections = self.twist.sections(sections)
        table, body = [], bytearray()
        for kind in sorted(sections):
            table.append(struct.pack("<4I", kind, HEADER_BYTES + len(body), len(sections[kind]), 0))
            body += sections[kind]
            body += bytes(-len(body) % SECTION_ALIGN)
        stored = zstd_frame(bytes(body)) if self.options.zstd else bytes(body)
        header = b"BLCOCHNK" + struct.pack(
            "<IIQQIIIBBBBQ", 1, number, 0, first, len(part), HEADER_BYTES + len(body), len(stored),
            len(self.dims), self.options.encoding, encoding, int(self.options.zstd > 0), 0,
        )
        header += b"".join(table).ljust(64, b"\0") + bytes(8)
        file = bytearray(header + stored)
        file += bytes(-len(file) % FILE_ALIGN)
        mask = (1 << 64) - 1
        linear = [linear_index(part[at][0], self.modes) for at in (0, -1)]
        by_mode = list(zip(*(c for c, _ in part)))
        spare = [0] * (8 - len(self.dims))
        entry = struct.pack(
            "<5Q4Q16I", first, len(part), len(file), HEADER_BYTES + len(body), 0,
            *(half for x in linear for half in (x & mask, x >> 64)),
            *(min(i) for i in by_mode), *spare, *(max(i) for i in by_mode), *spare,
        )
        return file, entry

    def draft(self) -> Draft:
        """All files, sealed."""
        options, values = self.options, [v for _, v in self.nonzeros]
        files, entries = {}, []
        bounds = self.bounds()
        for number, (first, end) in enumerate(zip(bounds, bounds[1:])):
            files[chunk_name(number)], entry = self.chunk(number, first, end)
            entries.append(entry)
        by_mode = zip(*(c for c, _ in self.nonzeros))
        modes = b"".join(
            struct.pack("<IIQ", dim, width(dim - 1), longest_row_bound(indices))
            for dim, indices in zip(self.dims, by_mode)
        )
        lists = modes + bytes(self.modes) + b"".join(entries)
        root = len(lists)
        ranked = sorted(values, key=total_order)
        form, block_bits, leaf, levels = self.codes()
        archive = lists + struct.pack(
            "<IIIiIIIIQQddd8s", form, options.encoding, int(options.zstd > 0), options.zstd, options.duplicates, TILE,
            block_bits, leaf, options.chunk_bytes, len(values), sum_of_squares(values), ranked[0], ranked[-1], levels,
        )
        places = (0, len(self.dims)), (len(modes), len(self.modes)), (len(modes) + len(self.modes), len(entries))
        for slot, (at, count) in enumerate(places):
            archive += struct.pack("<iI", at - (root + 80 + 8 * slot), count)
        preamble = b"BLCOSTOR" + struct.pack("<IIQ", 1, PREAMBLE_BYTES, len(archive)) + bytes(40)
        files[MANIFEST] = bytearray(preamble + archive)
        draft = Draft(files, len(self.dims), PREAMBLE_BYTES + places[2][0], len(entries))
        draft.seal()
        return draft


# ---------------------------------------------------------------------------------------------------------------
# Trees
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A node of a tree: its index, and its children or, of a fiber, its leaves (index, value)."""

    index: int
    children: list["Node"] = field(default_factory=list)
    leaves: list[tuple[int, float]] = field(default_factory=list)


PAD = -1


class TreeWriter(Writer):
    """Writes a HOCFS store, by formats-spec/hocfs.md."""

    def __init__(self, dims: Sequence[int], nonzeros: Sequence[Nonzero], options: Options, twist: Twist) -> None:
        super().__init__(dims, [], options, twist)
        order = len(dims)
        self.levels = [(options.main_mode + at) % order for at in range(order)]
        self.modes = [mode for mode in reversed(self.levels) for _ in range(width(dims[mode] - 1))]
        self.nonzeros = list(nonzeros)
        if twist.sort:
            self.nonzeros.sort(key=lambda n: (self.path(n), total_order(n[1])))

    def path(self, nonzero: Nonzero) -> tuple[int, ...]:
        return tuple(nonzero[0][mode] for mode in self.levels)

    def codes(self) -> tuple[int, int, int, bytes]:
        return HOCFS, 0, self.options.leaf, bytes(self.levels).ljust(8, b"\0")

    def bounds(self) -> list[int]:
        bounds, n = [0], len(self.nonzeros)
        while not self.fits(bounds[-1], n):
            low, high = bounds[-1] + 1, n
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.fits(bounds[-1], middle) else (low, middle)
            bounds.append(self.cut_before(bounds[-1], high - 1))
        return self.twist.boundaries(bounds) + [n]

    def fits(self, first: int, end: int) -> bool:
        """Whether a chunk may hold some nonzeros."""
        bound = self.options.chunk_bytes
        most = {CSR: bound, AUTO: bound // 4 * 3, ELL: bound // 8 * 3}[self.options.leaf]
        plain = TreeWriter(self.dims, [], self.options, Twist())
        plain.nonzeros = self.nonzeros
        _, sections, nodes = plain.image(first, end, CSR, by_dictionary=False)
        return end - first == 1 or self.length(sections) <= most and nodes <= bound // 2

    def length(self, sections: dict[int, bytes]) -> int:
        return HEADER_BYTES + sum(round_up(len(s), SECTION_ALIGN) for s in sections.values())

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
        encoding, sections, _ = self.image(first, end, self.options.leaf, by_dictionary=True)
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

    def image(
        self, first: int, end: int, rule: int, by_dictionary: bool
    ) -> tuple[int, dict[int, bytes], int]:
        """Value encoding, sections and number of nodes of a chunk."""
        slices = self.tree(first, end)
        levels, codes = [slices], []
        for _ in self.levels[2:]:
            levels.append([child for node in levels[-1] for child in node.children])
        slots: list[tuple[int, float]] = []
        starts = [[0] for _ in levels]
        for piece in slices:
            fibers = [piece]
            for _ in self.levels[2:]:
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
        columns = [self.inner_tiles(i, s[:-1]) for i, s in zip(indices, starts)]
        encoding, tiles, section = self.leaf_tiles(slots, columns, by_dictionary)
        records, packed, at = [], [], 0
        for tile in [tile for level in columns for tile in level] + tiles:
            (low, high, stride, base), (bits, numbers), (second, others) = tile
            records.append(struct.pack("<IIIIqII", at, low, high, stride, base, second, 0))
            packed += [self.column(len(records) - 1, 0, numbers, bits), self.column(len(records) - 1, 1, others, second)]
            at += bits + second
        counts = [len(i) for i in indices] + [len(slots)]
        head = self.codes()[3] + struct.pack("<II", self.options.leaf, 0)
        head += struct.pack(f"<{len(counts)}I", *counts).ljust(32, b"\0") + bytes(16)
        bits_of_codes = sum(code << number for number, code in enumerate(codes))
        out = {
            SHAPE: struct.pack(f"<{len(self.dims)}I", *self.dims),
            COLUMNS: b"".join(packed),
            LEVELS: head + b"".join(records) + bits_of_codes.to_bytes(4 * -(-len(codes) // 32), "little"),
        }
        return encoding, out | section, sum(counts[:-1]) + end - first

    def inner_tiles(self, indices: list[int], starts: list[int]) -> list[tuple]:
        """(low, high, stride, base), (bits, indices), (bits, starts) of each tile of an inner level."""
        out = []
        for at in range(0, len(indices), TILE):
            part, begins = indices[at : at + TILE], starts[at : at + TILE]
            stride = self.twist.stride(begins, min((b - a for a, b in zip(begins, begins[1:])), default=0))
            numbers = [(start - begins[0] - stride * i) % 2**32 for i, start in enumerate(begins)]
            low, high = min(part), max(part)
            index = width(high - low), [i - low for i in part]
            out.append(((low, high, stride, begins[0]), index, (width(max(numbers)), numbers)))
        return out

    def leaf_tiles(
        self, slots: list[tuple[int, float]], inner: list[list[tuple]], by_dictionary: bool
    ) -> tuple[int, list[tuple], dict[int, bytes]]:
        """Value encoding, the tiles of leaves as `inner_tiles` has them, and the VALUES section, if there is one."""
        tiles, before = [], 0
        for at in range(0, len(slots), TILE):
            part = slots[at : at + TILE]
            there = [i for i, _ in part if i != PAD]
            low, high = min(there, default=0), max(there, default=0)
            bits = width(high - low + (len(there) < len(part)))
            numbers = [high - low + 1 if i == PAD else i - low for i, _ in part]
            tiles.append((low, high, before, bits, numbers, [v for _, v in part]))
            before += len(there)
        values = [v for _, v in slots]
        units = sum(t[1][0] + t[2][0] for level in inner for t in level) + sum(t[3] for t in tiles)
        possible = [(tail_bytes(units, 8 * len(values)), 3, F64)]
        if all(map(is_f32, values)):
            possible.append((tail_bytes(units, 4 * len(values)), 2, F32))
        if all(map(is_integer, values)):
            spans = [width(int(max(t[5])) - int(min(t[5]))) for t in tiles]
            possible.append((tail_bytes(units + sum(spans), 0), 0, INTEGER))
        dictionary = sorted({bits_of(v): v for v in values}.values(), key=total_order)
        if by_dictionary and len(dictionary) <= MAX_DICTIONARY:
            entries = units + len(tiles) * width(len(dictionary) - 1)
            possible.append((tail_bytes(entries, 8 * len(dictionary)), 1, DICTIONARY))
        encoding = self.twist.value_encoding(min(possible)[2])
        entry = {bits_of(v): number for number, v in enumerate(dictionary)}
        out = []
        for low, high, before, bits, numbers, inside in tiles:
            base, second, others = 0, 0, [0] * len(inside)
            if encoding == INTEGER:
                base = int(min(inside))
                others = [int(v) - base for v in inside]
                second = width(max(others))
            elif encoding == DICTIONARY:
                others = [entry[bits_of(v)] for v in inside]
                second = width(len(dictionary) - 1)
            out.append(((low, high, before, base), (bits, numbers), (second, others)))
        if encoding == INTEGER:
            return encoding, out, {}
        stored = dictionary if encoding == DICTIONARY else values
        kind = "f" if encoding == F32 else "d"
        return encoding, out, {VALUES: struct.pack(f"<{len(stored)}{kind}", *stored)}


# ---------------------------------------------------------------------------------------------------------------
# Valid vectors
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Valid:
    """A valid store and the tensor that it holds."""

    name: str
    dims: tuple[int, ...]
    nonzeros: Sequence[Nonzero]
    options: Options = field(default_factory=Options)
    about: str = ""

    def writer(self, twist: Twist) -> Writer:
        writer = TreeWriter if self.options.encoding == TREE else Writer
        return writer(self.dims, self.nonzeros, self.options, twist)

    def draft(self, twist: Twist | None = None) -> Draft:
        return self.writer(twist or Twist()).draft()

    def text(self) -> str:
        ordered = self.writer(Twist()).nonzeros
        lines = (" ".join(str(i + 1) for i in c) + " " + format_value(v) for c, v in ordered)
        return "\n".join(lines) + "\n"

    def pack_options(self) -> list[str]:
        """The command line that packs the text to this store."""
        o = self.options
        out = ["--dims", ",".join(map(str, self.dims))]
        if o.encoding == TREE:
            out += ["--format", "hocfs", "--main-mode", str(o.main_mode + 1), "--slice", LEAF_RULES[o.leaf]]
        else:
            out += ["--encoding", "raw" if o.encoding == RAW else "tiled"]
        out += ["--chunk-bytes", str(o.chunk_bytes), "--duplicates", "keep" if o.duplicates else "error"]
        return out + (["--zstd", str(o.zstd)] if o.zstd else [])


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


def valid_vectors() -> list[Valid]:
    example: list[Nonzero] = [((i - 1, j - 1, k - 1), v) for (i, j, k), v in EXAMPLE]
    raw, keep = Options(encoding=RAW), Options(duplicates=True)
    top = LARGEST - 1
    corners: list[tuple[int, ...]] = [(0,) * 4, (top,) * 4, (top, 0, 0, 0), (0, 0, 0, top), (1, 2, 3, 4)]
    corners += list(spread((LARGEST,) * 4, 20))
    twice: list[Nonzero] = [((i % 3, i % 2), v) for i in range(40) for v in (0.0, -0.0, 0.5, -1.5, 0.5)]
    order8 = (3, 1, 70000, 2, 9, 16, 5, 33)
    mixed = (0.1, -0.0, 0.0, -3.5)
    extremes: list[Nonzero] = [((49, 39), 5e-324), ((48, 39), 2.0**1000)]
    fibers: list[Nonzero] = [((1, i // 250, i % 250), 0.1) for i in range(9000)]
    leaves: list[Nonzero] = [((1, 0, i), 0.1) for i in range(4000)]

    def tree(leaf: int, main_mode: int = 0) -> Options:
        return Options(encoding=TREE, leaf=leaf, main_mode=main_mode)

    zeros: list[Nonzero] = [((0, 2**31 * (i >= 3500), 0), 0.0) for i in range(3700)]
    return [
        Valid("example-tiled", (4, 4, 4), example, about="the worked example of blco.md"),
        Valid("example-raw", (4, 4, 4), example, raw, "the worked example of blco.md"),
        Valid("one-nonzero", (1000, 70000, 5), [((41, 65536, 4), -2.5)], about="f32 and dictionary tie: dictionary"),
        Valid("one-nonzero-raw", (1000, 70000, 5), [((41, 65536, 4), -2.5)], raw, "one nonzero"),
        Valid("dims-one", (1, 1), [((0, 0), 7.0)], about="no linear bits, empty lists and an empty COLUMNS"),
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
              about="f64, the sum of squares overflows"),
        Valid("dictionary", (50, 40), with_values((50, 40), 600, lambda i: mixed[i % 4]),
              about="dictionary, both zeros"),
        Valid("duplicates", (3, 2), twice, keep, "duplicates kept, in the order of their values"),
        Valid("duplicates-raw", (3, 2), twice, Options(encoding=RAW, duplicates=True), "duplicates kept"),
        Valid("zstd", (50, 40), with_values((50, 40), 600, lambda i: mixed[i % 4]), Options(zstd=3), "codec 1"),
        Valid("zstd-raw", (LARGEST, LARGEST, 2), zeros, Options(encoding=RAW, zstd=19, duplicates=True),
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
        Valid("hocfs-duplicates", (3, 2), twice, Options(encoding=TREE, duplicates=True), "duplicates kept"),
        Valid("hocfs-bits-128", (LARGEST,) * 4, [(c, 1.0 + i) for i, c in enumerate(corners)], tree(AUTO, 2),
              "128 linear bits"),
        Valid("hocfs-zstd", (50, 40), with_values((50, 40), 600, lambda i: mixed[i % 4]),
              Options(encoding=TREE, zstd=3), "codec 1"),
        Valid("hocfs-cut-slice", (90, 90, 9), [((i // 81 % 90, i // 9 % 9, i % 9), 0.1) for i in range(7290)],
              tree(AUTO), "chunks hold whole slices; a full last chunk of slices that are padded by nothing"),
        Valid("hocfs-cut-fiber", (2, 60, 300), fibers, tree(CSR), "a slice that is cut between fibers"),
        Valid("hocfs-cut-leaf", (2, 2, 20000), leaves, tree(ELL), "a fiber that is cut inside"),
        Valid("cut-dictionary", (9, 9), [((i % 9, i // 9 % 9), 0.1) for i in range(8000)], keep,
              "two chunks, cut by image bytes with f64, then stored as dictionary"),
    ]


# ---------------------------------------------------------------------------------------------------------------
# Invalid vectors
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Invalid:
    """An invalid store: who refuses it, which file the error is about, and what the error says."""

    name: str
    level: str
    file: str
    rule: str
    draft: Draft


FIRST, SECOND = chunk_name(0), chunk_name(1)
READER, VERIFIER = "reader", "verifier"


class Unsorted(Twist):
    """Leaves the nonzeros as they come."""

    sort = False


class Force(Twist):
    """Another value encoding than the one that is due."""

    def __init__(self, encoding: int) -> None:
        self.encoding = encoding

    def value_encoding(self, due: int) -> int:
        return self.encoding


class Widen(Twist):
    """A column with one bit too many."""

    def __init__(self, column: int) -> None:
        self.column = column

    def widths(self, tile: int, widths: list[int]) -> list[int]:
        return [w + (tile == 0 and c == self.column) for c, w in enumerate(widths)]


class Number(Twist):
    """Another number in one slot of the first tile."""

    def __init__(self, column: int, slot: int, number: int) -> None:
        self.column, self.slot, self.number = column, slot, number

    def numbers(self, tile: int, column: int, numbers: list[int]) -> list[int]:
        if tile == 0 and column == self.column:
            numbers[self.slot] = self.number
        return numbers


class Second(Twist):
    """Another number in one slot of a column of a tile of a tree: its second one, unless told."""

    def __init__(self, tile: int, slot: int, number: int, column: int = 1) -> None:
        self.tile, self.slot, self.number, self.of = tile, slot, number, column

    def numbers(self, tile: int, column: int, numbers: list[int]) -> list[int]:
        if (tile, column) == (self.tile, self.of):
            numbers[self.slot] = self.number
        return numbers


class Cut(Twist):
    """Chunks of the tiles given."""

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
    """A section that has no place there."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def sections(self, sections: dict[int, bytes]) -> dict[int, bytes]:
        return sections | {self.kind: b""}


class Stride(Twist):
    """A stride that some distance of the starts is below, so that a number is as if it were below 0."""

    def stride(self, begins: list[int], stride: int) -> int:
        return stride + 1 if len(begins) == 3 else stride


class Divided(Twist):
    """The node of a level that has a nonzero begins anew there."""

    def __init__(self, level: int, nonzero: int) -> None:
        self.at = level, nonzero

    def divides(self, level: int, nonzero: int) -> bool:
        return (level, nonzero) == self.at


def invalid_vectors() -> list[Invalid]:
    return [*invalid_manifests(), *invalid_files(), *invalid_images(), *unverified()]


# The bases of the invalid vectors: small, and with room for the fault (spans that are no power of two less one).
_NARROW = Valid("narrow", (8, 8), [((i, j), i + j + 0.5) for i in range(1, 6) for j in range(1, 7)])
_RAW = Valid("raw", (6, 6), [((i, j), i - j / 8) for i in range(6) for j in range(6)], Options(encoding=RAW))
_TWO = Valid("two", (2, 2), [((0, 0), 1.0)] * 16384 + [((1, 1), 1.0)] * 600, Options(duplicates=True))
_KEYS = Valid("keys", KEYS, with_values(KEYS, 20, lambda i: i), Options(encoding=RAW))
_INTEGER = Valid("integer", (50, 40), with_values((50, 40), 300, lambda i: i % 6))
_DICTIONARY = Valid("dictionary", (50, 40), with_values((50, 40), 300, lambda i: (i % 5) / 10))
_LARGE = Valid("large", (2, 2), [((0, 0), 0.0)] * 4200, Options(encoding=RAW, zstd=3, duplicates=True))
_F64 = Valid("f64", (8, 8), [((i, i), i / 10) for i in range(8)])
_TREE = Valid("tree", (4, 5, 4), SLICES, Options(encoding=TREE, leaf=CSR))
_PADDED = Valid("padded", (4, 5, 4), SLICES, Options(encoding=TREE, leaf=ELL))
_SLICE = Valid("slice", (1, 5, 4), SLICES[:8], Options(encoding=TREE, leaf=CSR))
_TILES = Valid("tiles", (50, 40), with_values((50, 40), 600, lambda i: i % 6), Options(encoding=TREE, leaf=ELL))
_ZSTD = Valid("zstd", (50, 40), with_values((50, 40), 300, lambda i: (i % 5) / 10), Options(zstd=3))


def invalid_manifests() -> Iterator[Invalid]:
    """Faults of the manifest that every reader refuses."""

    def vector(name: str, rule: str, base: Valid, change: Callable[[Draft], None], keep: Sequence[str] = ()) -> Invalid:
        draft = base.draft()
        change(draft)
        draft.seal(keep)
        return Invalid(f"manifest-{name}", READER, MANIFEST, rule, without_chunks(draft))

    def preamble(at: int, layout: str, *values: object) -> Callable[[Draft], None]:
        return lambda d: d.poke(MANIFEST, at, layout, *values)

    def root(at: int, layout: str, *values: object) -> Callable[[Draft], None]:
        return lambda d: d.poke(MANIFEST, d.root + at, layout, *values)

    def entry(number: int, at: int, layout: str, *values: object) -> Callable[[Draft], None]:
        return lambda d: d.poke(MANIFEST, d.entries + CHUNK_BYTES * number + at, layout, *values)

    def move_modes(d: Draft) -> None:
        """Modes and bit modes swapped: lists inside the archive, but in another order."""
        m, at = d.files[MANIFEST], PREAMBLE_BYTES
        modes = MODE_BYTES * d.order
        bits = d.entries - at - modes
        m[at : d.entries] = m[at + modes : d.entries] + m[at : at + modes]
        d.poke(MANIFEST, d.root + 80, "<i", at + bits - (d.root + 80))
        d.poke(MANIFEST, d.root + 88, "<i", at - (d.root + 88))

    def shorten(d: Draft) -> None:
        del d.files[MANIFEST][-1]

    def short_tile(d: Draft) -> None:
        d.poke(MANIFEST, d.entries + 8, "<Q", 16384 - 100)
        d.poke(MANIFEST, d.entries + CHUNK_BYTES, "<2Q", 16384 - 100, 700)

    draft = without_chunks(_NARROW.draft())
    del draft.files[MANIFEST][40:]
    yield Invalid("manifest-short", READER, MANIFEST, "shorter than its preamble", draft)
    yield vector("magic", "wrong magic", _NARROW, preamble(0, "<8s", b"BLCOSTOP"))
    yield vector("version", "unknown version", _NARROW, preamble(8, "<I", 2))
    yield vector("preamble-checksum", "the preamble checksum does not match", _NARROW, lambda d: d.flip(MANIFEST, 57),
                 ["preamble"])
    yield vector("preamble-damaged", "the preamble checksum does not match", _NARROW, lambda d: d.flip(MANIFEST, 24),
                 ["preamble", "archive"])
    yield vector("preamble-reserved", "a reserved field is not zero", _NARROW, preamble(40, "<B", 1))
    yield vector("archive-offset", "the archive offset is not 64", _NARROW, preamble(12, "<I", 128))
    yield vector("archive-length", "the file does not end where the archive ends", _NARROW,
                 lambda d: d.poke(MANIFEST, 16, "<Q", len(d.files[MANIFEST]) - PREAMBLE_BYTES - 1))
    yield vector("truncated", "the file does not end where the archive ends", _NARROW,
                 shorten)
    yield vector("trailing", "the file does not end where the archive ends", _NARROW,
                 lambda d: d.files[MANIFEST].append(0))
    yield vector("archive-checksum", "the archive does not match the store id", _NARROW, root(48, "<d", 1.0),
                 ["archive"])
    yield vector("root-reserved", "a reserved field is not zero", _NARROW, root(28, "<I", 1))
    yield vector("root-reserved-2", "a reserved field is not zero", _NARROW, root(72, "<Q", 1 << 63))
    yield vector("list-outside", "a list does not lie inside the archive", _NARROW, root(100, "<I", 1000))
    yield vector("list-before", "a list does not lie inside the archive", _NARROW, root(80, "<i", -(2**31)))
    yield vector("list-order", "a list does not begin where the one before ends", _NARROW, move_modes)
    yield vector("format", "unknown format", _NARROW, root(0, "<I", 3))
    yield vector("index-encoding", "unknown index encoding", _NARROW, root(4, "<I", 3))
    yield vector("codec", "unknown codec", _NARROW, root(8, "<I", 2))
    yield vector("codec-level", "the codec level is outside its range", _ZSTD, root(12, "<i", 23))
    yield vector("codec-level-none", "the codec level is outside its range", _NARROW, root(12, "<i", 3))
    yield vector("duplicates", "duplicates is neither 0 nor 1", _NARROW, root(16, "<I", 2))
    yield vector("tile-nnz", "tile nnz is not 512", _NARROW, root(20, "<I", 1024))
    yield vector("block-bits", "block bits is not 64", _NARROW, root(24, "<I", 32))
    yield vector("chunk-bytes", "chunk bytes is outside its range", _NARROW, root(32, "<Q", 65535))
    yield vector("chunk-bytes-large", "chunk bytes is outside its range", _NARROW, root(32, "<Q", 2**30 + 1))
    yield vector("nnz", "the chunks' nonzeros do not add up to nnz", _NARROW, root(40, "<Q", 31))
    yield vector("one-mode", "1 modes", _NARROW, drop_modes)
    yield vector("dim-zero", "has no index", _NARROW, preamble(PREAMBLE_BYTES, "<I", 0))
    yield vector("mode-bits", "bits is not width(dim - 1)", _NARROW, preamble(PREAMBLE_BYTES + 4, "<I", 4))
    yield vector("bit-modes", "bit modes is not the interleaving", _NARROW, swap_bit_modes)
    yield vector("first-nonzero", "first nonzero is not where the chunk before ended", _TWO, entry(1, 0, "<Q", 15872))
    yield vector("chunk-nnz-zero", "nnz is outside its range", _NARROW, entry(0, 8, "<Q", 0))
    yield vector("chunk-nnz", "nnz is not a multiple of 512", _TWO, short_tile)
    yield vector("leaf-rule", "unknown leaf rule", _TREE, root(28, "<I", 4))
    yield vector("level-modes", "level modes does not name each mode once", _TREE, root(72, "<3B", 0, 1, 1))
    yield vector("level-modes-beyond", "level modes does not name each mode once", _TREE, root(75, "<B", 1))
    yield vector("tree-block-bits", "block bits is not 0", _TREE, root(24, "<I", 64))
    yield vector("tree-index-encoding", "unknown index encoding", _TREE, root(4, "<I", TILED))
    yield vector("tree-bit-modes", "bit modes is not the levels' modes side by side", _TREE,
                 preamble(PREAMBLE_BYTES + 3 * MODE_BYTES + 1, "<2B", 1, 2))
    yield Invalid("manifest-image-bytes", READER, MANIFEST, "image bytes is larger than chunk bytes",
                  _LARGE.draft(Cut([0])))


def without_chunks(draft: Draft) -> Draft:
    """Only the manifest: a reader that finds its fault does not come to the chunks."""
    draft.files = {MANIFEST: draft.files[MANIFEST]}
    return draft


def drop_modes(d: Draft) -> None:
    """Only the first mode is left."""
    m = d.files[MANIFEST]
    entries = bytes(m[d.entries : d.root])
    end = bytes(m[d.root :])
    dim, bits, bound = struct.unpack_from("<IIQ", m, PREAMBLE_BYTES)
    lists = struct.pack("<IIQ", dim, bits, bound) + bytes(bits)
    m[PREAMBLE_BYTES:] = lists + entries + end
    d.entries = PREAMBLE_BYTES + len(lists)
    d.poke(MANIFEST, 16, "<Q", len(m) - PREAMBLE_BYTES)
    for slot, (at, count) in enumerate(((0, 1), (MODE_BYTES, bits), (len(lists), d.chunks))):
        at_field = d.root + 80 + 8 * slot
        d.poke(MANIFEST, at_field, "<iI", PREAMBLE_BYTES + at - at_field, count)


def swap_bit_modes(d: Draft) -> None:
    """The first two bits of the linear index swapped."""
    m, at = d.files[MANIFEST], PREAMBLE_BYTES + MODE_BYTES * d.order
    m[at], m[at + 1] = m[at + 1], m[at]


def invalid_files() -> Iterator[Invalid]:
    """Faults of a chunk's file that every reader refuses."""

    def header(name: str, rule: str, at: int, layout: str, *values: object, base: Valid = _NARROW) -> Invalid:
        """Another field in the header, whose checksum is sealed again."""
        draft = base.draft()
        draft.poke(FIRST, at, layout, *values)
        draft.seal_header(0)
        return Invalid(f"chunk-{name}", READER, FIRST, rule, draft)

    draft = without_chunks(_NARROW.draft())
    yield Invalid("chunk-missing", READER, FIRST, "the manifest names a chunk whose file is not there", draft)
    draft = _NARROW.draft()
    del draft.files[FIRST][4000:]
    yield Invalid("chunk-truncated", READER, FIRST, "of file bytes", draft)
    draft = _NARROW.draft()
    draft.files[FIRST] += bytes(FILE_ALIGN)
    yield Invalid("chunk-trailing", READER, FIRST, "of file bytes", draft)
    yield header("magic", "wrong magic", 0, "<8s", b"BLCOCHNG")
    yield header("version", "unknown version", 8, "<I", 2)
    draft = _NARROW.draft()
    draft.flip(FIRST, 24)
    yield Invalid("chunk-header-checksum", READER, FIRST, "the header checksum does not match", draft)
    yield header("value-encoding", "unknown value encoding", 46, "<B", 5)
    yield header("value-encoding-raw", "a raw chunk has another value encoding than f64", 46, "<B", F32, base=_RAW)
    yield header("section-kind", "section table: kind", 72, "<I", COLUMNS)
    yield header("section-offset", "section table: TILES does not start", 76, "<I", 384)
    yield header("section-reserved", "section table: a reserved field", 68, "<I", 1)
    yield header("section-unused", "section table: an unused entry", 104, "<I", VALUES, base=_INTEGER)
    yield header("section-end", "section table: the image does not end", 112, "<I", 1 << 20)
    yield header("section-overflow", "section table: the image does not end", 112, "<I", 2**32 - 1)
    yield header("number", "disagrees with the manifest: number", 12, "<I", 1)
    yield header("first-nonzero", "disagrees with the manifest: first nonzero", 24, "<Q", 512)
    yield header("nnz", "disagrees with the manifest: nnz", 32, "<I", 29)
    yield header("order", "disagrees with the manifest: order", 44, "<B", 3)
    yield header("codec", "disagrees with the manifest: codec", 47, "<B", 1)
    yield header("stored-bytes", "disagrees with the manifest: stored bytes", 40, "<I", 1 << 16)
    yield header("stored-bytes-short", "stored bytes is not the image's without a codec", 40, "<I", 512)
    yield header("payload-checksum-header", "disagrees with the manifest: payload checksum", 48, "<Q", 1)
    draft = _TWO.draft()
    files = draft.files
    files[FIRST], files[SECOND] = files[SECOND], files[FIRST]
    yield Invalid("chunk-swapped", READER, FIRST, "disagrees with the manifest: number", draft)
    other = Valid(_TWO.name, _TWO.dims, _TWO.nonzeros, Options(duplicates=True, chunk_bytes=65537))
    draft = _TWO.draft()
    draft.files[SECOND] = other.draft().files[SECOND]
    yield Invalid("chunk-stale", READER, SECOND, "disagrees with the manifest: store id", draft)
    draft = _NARROW.draft()
    draft.flip(FIRST, 600)
    yield Invalid("chunk-payload-checksum", READER, FIRST, "the payload checksum does not match", draft)
    draft = _NARROW.draft()
    draft.flip(FIRST, FILE_ALIGN - 1)
    yield Invalid("chunk-padding", READER, FIRST, "the padding is not zero", draft)
    yield from invalid_frames()


def invalid_frames() -> Iterator[Invalid]:
    """Payloads that are not one zstd frame of the image's length."""

    def vector(name: str, rule: str, change: Callable[[bytes], bytes]) -> Invalid:
        draft = _ZSTD.draft()
        data = draft.files[FIRST]
        stored = struct.unpack_from("<I", data, 40)[0]
        payload = change(bytes(data[HEADER_BYTES : HEADER_BYTES + stored]))
        data[HEADER_BYTES:] = payload.ljust(len(data) - HEADER_BYTES, b"\0")
        draft.poke(FIRST, 40, "<I", len(payload))
        draft.seal()
        return Invalid(f"zstd-{name}", READER, FIRST, rule, draft)

    image = struct.unpack_from("<I", _ZSTD.draft().files[FIRST], 36)[0] - HEADER_BYTES
    yield vector("magic", "zstd frame", lambda p: b"\x29" + p[1:])
    yield vector("block", "the zstd frame is damaged", lambda p: p[:9] + bytes([p[9] | 6]) + p[10:])
    yield vector("truncated", "the zstd frame is shorter than the image", lambda p: p[:-5])
    yield vector("short", "the zstd frame is shorter than the image", lambda p: zstd_frame(bytes(image - 128)))
    yield vector("long", "the zstd frame is longer than the image", lambda p: zstd_frame(bytes(image + 128)))
    yield vector("bomb", "the zstd frame is longer than the image", lambda p: zstd_frame_of_zeros(1 << 26))
    yield vector("trailing", "bytes after the zstd frame", lambda p: p + b"\0")
    yield vector("two-frames", "the zstd frame is shorter than the image", lambda p: halves(p, image))
    yield vector("empty-frame", "bytes after the zstd frame", lambda p: p + zstd_frame(b""))
    yield vector("empty-frame-first", "the zstd frame is shorter than the image", lambda p: zstd_frame(b"") + p)
    yield vector("skippable", "bytes after the zstd frame", lambda p: p + SKIPPABLE)
    yield vector("skippable-first", "the payload is not a zstd frame", lambda p: SKIPPABLE + p)
    yield vector("window", "the zstd frame's window is larger than 2^27", windowed)


SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"lies"


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


def invalid_images() -> Iterator[Invalid]:
    """Faults of an image that every reader refuses."""

    def poke(name: str, rule: str, base: Valid, kind: int, at: int, layout: str, *values: object) -> Invalid:
        """Another field in a section; payload checksum and all above it sealed again."""
        draft = base.draft()
        draft.poke(FIRST, draft.section(FIRST, kind) + at, layout, *values)
        draft.seal()
        return Invalid(f"image-{name}", READER, FIRST, rule, draft)

    def twist(name: str, rule: str, base: Valid, how: Twist) -> Invalid:
        return Invalid(f"image-{name}", READER, FIRST, rule, base.draft(how))

    def fewer(name: str, rule: str, draft: Draft, nnz: int) -> Invalid:
        """Fewer nonzeros by header and manifest."""
        draft.poke(FIRST, 32, "<I", nnz)
        draft.poke(MANIFEST, draft.root + 40, "<Q", nnz)
        draft.poke(MANIFEST, draft.entries + 8, "<Q", nnz)
        draft.seal()
        return Invalid(f"image-{name}", READER, FIRST, rule, draft)

    yield poke("shape", "SHAPE disagrees with the manifest's dims", _NARROW, SHAPE, 0, "<I", 7)
    yield twist("shape-length", "SHAPE has 12 bytes", _NARROW, Section(SHAPE, lambda s: s + s[:4]))
    yield poke("gap", "the gap after SHAPE is not zero", _NARROW, SHAPE, 100, "<B", 1)
    yield twist("tiles-length", "TILES has", _NARROW, Section(TILES, lambda s: s + s))
    yield poke("tile-range", "a tile's low is above its high", _NARROW, TILES, 16, "<I", 7)
    yield poke("tile-high", "a tile's high is not below the dim", _NARROW, TILES, 20, "<I", 8)
    yield poke("columns-at", "columns at is not the sum", _NARROW, TILES, 0, "<I", 1)
    yield twist("columns-length", "COLUMNS has", _NARROW, Section(COLUMNS, lambda s: s[:-64]))
    yield twist("index-above-high", "an index of mode 0 is above its tile's high", _NARROW, Number(0, 3, 7))
    yield poke("value-width", "a value width is not", _DICTIONARY, TILES, 4, "<I", 2)
    yield poke("value-width-none", "a value width is not", _NARROW, TILES, 4, "<I", 1)
    yield poke("value-width-large", "a value width is above 55", _INTEGER, TILES, 4, "<I", 56)
    yield poke("value-base", "a value base is not 0", _NARROW, TILES, 8, "<q", -1)
    yield poke("dictionary-order", "the dictionary does not ascend", _DICTIONARY, VALUES, 0, "<2d", 0.1, 0.0)
    yield poke("dictionary-equal", "the dictionary does not ascend", _DICTIONARY, VALUES, 0, "<2d", 0.1, 0.1)
    yield poke("dictionary-nan", "a value is not finite", _DICTIONARY, VALUES, 32, "<d", math.nan)
    yield twist("dictionary-entry", "the number of a dictionary entry that is not there", _DICTIONARY, Number(2, 9, 5))
    yield twist("dictionary-length", "VALUES is no dictionary", _DICTIONARY, Section(VALUES, lambda s: s + b"\0" * 4))
    yield twist("dictionary-empty", "VALUES is no dictionary", _DICTIONARY, Section(VALUES, lambda s: b""))
    yield poke("f64-nan", "a value is not finite", _F64, VALUES, 16, "<d", math.nan)
    yield poke("f64-infinite", "a value is not finite", _F64, VALUES, 16, "<d", -math.inf)
    yield poke("f32-nan", "a value is not finite", _NARROW, VALUES, 16, "<f", math.nan)
    yield twist("values-length", "VALUES has", _F64, Section(VALUES, lambda s: s + b"\0" * 8))
    yield poke("levels-modes", "LEVELS disagrees with the manifest", _TREE, LEVELS, 1, "<2B", 2, 1)
    yield poke("levels-rule", "LEVELS disagrees with the manifest", _TREE, LEVELS, 8, "<I", AUTO)
    yield poke("levels-reserved", "LEVELS: a reserved field is not zero", _TREE, LEVELS, 12, "<I", 1)
    yield poke("levels-nodes", "a level has fewer nodes than the one above", _TREE, LEVELS, 16, "<I", 14)
    yield poke("levels-nodes-beyond", "a level has fewer nodes than the one above", _TREE, LEVELS, 28, "<I", 30)
    yield twist("levels-length", "LEVELS has", _TREE, Section(LEVELS, lambda s: s + b"\0" * 4))
    yield poke("levels-leaf-code", "a leaf code of no slice", _PADDED, LEVELS, 64 + 96, "<I", 0b1111)
    yield poke("levels-range", "a range of level 1 is outside the dim", _TREE, LEVELS, 64 + 32 + 8, "<I", 5)
    yield poke("levels-columns-at", "columns at is not the sum", _TREE, LEVELS, 64 + 32, "<I", 2)
    yield poke("levels-before", "before does not count the nonzeros", _TREE, LEVELS, 64 + 64 + 12, "<I", 1)
    yield poke("levels-base", "starts of level 1 do not ascend", _TREE, LEVELS, 64 + 32 + 16, "<q", 1)
    yield twist("starts-order", "starts of level 1 do not ascend", _TREE, Second(1, 5, 0))
    yield poke("levels-stride", "starts of level 1 do not ascend", _TREE, LEVELS, 64 + 32 + 12, "<I", 2)
    yield twist("starts-beyond", "starts of level 0 do not ascend", _TREE, Stride())
    yield twist("section-added", "section table: an unused entry", _INTEGER, Added(LEVELS))
    yield twist("levels-padding", "before does not count the nonzeros", _PADDED, Second(2, 3, 1, 0))
    yield fewer("fiber-padding", "a fiber begins with padding", _PADDED.draft(Second(2, 2, 4, 0)), 20)
    yield fewer("tile-padding", "before does not count the nonzeros", _TILES.draft(), TILE)
    yield poke("blocks-order", "the keys do not ascend", _KEYS, BLOCKS, 16, "<Q", 0)
    yield twist("blocks-equal", "the keys do not ascend", _RAW,
                Section(BLOCKS, lambda s: s + struct.pack("<QII", 0, 5, 0)))
    yield poke("blocks-first", "start does not ascend from 0", _KEYS, BLOCKS, 8, "<I", 1)
    yield poke("blocks-start-order", "start does not ascend from 0", _KEYS, BLOCKS, 24, "<I", 0)
    yield twist("blocks-start", "a start is not below nnz", _KEYS,
                Section(BLOCKS, lambda s: s[:-8] + struct.pack("<II", 20, 0)))
    yield poke("blocks-reserved", "BLOCKS: a reserved field is not zero", _KEYS, BLOCKS, 12, "<I", 1)
    yield twist("blocks-key", "a key is outside the linear index", _KEYS,
                Section(BLOCKS, lambda s: s[:-16] + struct.pack("<Q", 256) + s[-8:]))
    yield poke("blocks-key-zero", "a key is outside the linear index", _RAW, BLOCKS, 0, "<Q", 1)
    yield twist("blocks-empty", "BLOCKS is no list of records", _RAW, Section(BLOCKS, lambda s: b""))
    yield twist("blocks-length", "BLOCKS is no list of records", _RAW, Section(BLOCKS, lambda s: s + b"\0" * 8))
    yield poke("index-unused-bits", "a bit that no mode uses is not 0", _RAW, INDEX, 80, "<Q", 1 << 63 | 0o25)
    yield poke("index-outside", "an index of mode 0 is outside its dim", _RAW, INDEX, 80, "<Q", 7)
    yield twist("index-length", "INDEX has", _RAW, Section(INDEX, lambda s: s + b"\0" * 8))


def unverified() -> Iterator[Invalid]:
    """Stores that a reader can use and only a verifier refuses."""

    def root(name: str, rule: str, at: int, layout: str, *values: object) -> Invalid:
        draft = _NARROW.draft()
        draft.poke(MANIFEST, draft.root + at, layout, *values)
        draft.seal()
        return Invalid(f"verify-{name}", VERIFIER, MANIFEST, rule, draft)

    def entry(name: str, rule: str, at: int, layout: str, *values: object) -> Invalid:
        draft = _NARROW.draft()
        draft.poke(MANIFEST, draft.entries + at, layout, *values)
        draft.seal()
        return Invalid(f"verify-{name}", VERIFIER, MANIFEST, rule, draft)

    def twist(name: str, rule: str, base: Valid, how: Twist) -> Invalid:
        return Invalid(f"verify-{name}", VERIFIER, FIRST, rule, base.draft(how))

    def again(base: Valid, change: Callable[[list[Nonzero]], None], options: Options | None = None) -> Valid:
        """The base with its nonzeros, in linear order, changed."""
        nonzeros = list(base.writer(Twist()).nonzeros)
        change(nonzeros)
        return Valid(base.name, base.dims, nonzeros, options or base.options)

    def swap(nonzeros: list[Nonzero]) -> None:
        nonzeros[3], nonzeros[4] = nonzeros[4], nonzeros[3]

    def repeat(nonzeros: list[Nonzero]) -> None:
        nonzeros[3] = (nonzeros[4][0], nonzeros[3][1])

    def unsort(nonzeros: list[Nonzero]) -> None:
        nonzeros[3] = (nonzeros[4][0], nonzeros[4][1] + 1)

    linear = linear_index((1, 1), bit_modes((8, 8)))
    yield twist("order", "the nonzeros are not sorted by linear index", again(_NARROW, swap), Unsorted())
    yield twist("order-raw", "the nonzeros are not sorted by linear index", again(_RAW, swap), Unsorted())
    yield twist("repeated", "a coordinate occurs twice", again(_NARROW, repeat), Twist())
    yield twist("repeated-raw", "a coordinate occurs twice", again(_RAW, repeat), Twist())
    yield twist("order-values", "equal coordinates are not sorted by value",
                again(_NARROW, unsort, Options(duplicates=True)), Unsorted())
    draft = _NARROW.draft()
    draft.poke(FIRST, draft.section(FIRST, TILES) + 20, "<I", 6)
    draft.seal()
    yield Invalid("verify-tile-range", VERIFIER, FIRST, "a high of mode 0 is not the tile's largest index", draft)
    yield entry("row-low", "row low or high of mode 0 is not exact", 72, "<I", 0)
    yield entry("row-high", "row low or high of mode 1 is not exact", 104 + 4, "<I", 7)
    yield entry("first-linear", "first linear is not the first nonzero's", 40, "<Q", linear - 1)
    yield entry("last-linear", "last linear is not the last nonzero's", 56, "<Q", 63)
    yield twist("slot", "a slot beyond the last nonzero is not 0", _NARROW, Number(1, 511, 1))
    yield twist("slot-beyond", "a slot beyond the last nonzero is not 0", _NARROW, Number(1, 511, 7))
    yield twist("slot-entry", "a slot beyond the last nonzero is not 0", _DICTIONARY, Number(2, 511, 7))
    yield twist("slot-value", "a slot beyond the last nonzero is not 0", _INTEGER, Number(2, 300, 1))
    yield twist("encoding-f64", "the values are stored as f64 where f32 is due", _NARROW, Force(F64))
    yield twist("encoding-integer", "the values are stored as integer where f32 is due", valid_vectors()[0],
                Force(INTEGER))
    yield twist("encoding-dictionary", "the values are stored as dictionary where integer is due", _INTEGER,
                Force(DICTIONARY))
    yield twist("value-width", "a value width is not the least", _INTEGER, Widen(2))
    draft = _INTEGER.draft()
    draft.poke(FIRST, draft.section(FIRST, TILES) + 8, "<q", MAX_INTEGER)
    draft.seal()
    yield Invalid("verify-integer-large", VERIFIER, FIRST, "an integer value is larger than 2^53", draft)
    yield twist("dictionary-unused", "the dictionary holds a value that does not occur", _DICTIONARY,
                Section(VALUES, lambda s: s + struct.pack("<d", 9.5)))
    yield twist("cut", "the cutting rule says", _INTEGER_TWO, Cut([0, 1]))
    yield twist("tree-order", "the nonzeros are not sorted by linear index", again(_TREE, swap), Unsorted())
    yield twist("tree-cut", "the cutting rule says", _TREE, Cut([0, 8]))
    yield twist("fiber-twice", "an index of level 1 is not above the one before it in its node", _TREE, Divided(1, 1))
    yield twist("slice-twice", "an index of level 0 is not above the one before it in its node", _TREE, Divided(0, 4))
    draft = _PADDED.draft()
    draft.poke(FIRST, draft.section(FIRST, VALUES) + 12, "<f", 3.0)
    draft.seal()
    yield Invalid("verify-padding-value", VERIFIER, FIRST, "padding does not repeat the value before it", draft)
    draft = _TREE.draft()
    draft.poke(FIRST, draft.section(FIRST, LEVELS) + 64 + 96, "<I", 1)
    draft.seal()
    yield Invalid("verify-leaf-code", VERIFIER, FIRST, "a fiber has other slots", draft)
    draft = _SLICE.draft()
    draft.poke(FIRST, draft.section(FIRST, LEVELS) + 64 + 12, "<I", 1 << 16)
    draft.seal()
    yield Invalid("verify-stride", VERIFIER, FIRST, "a stride or width of level 0 is not the one that is due", draft)
    squares = sum_of_squares([v for _, v in Writer(_NARROW.dims, _NARROW.nonzeros, Options(), Twist()).nonzeros])
    yield root("squares", "the sum of squares is", 48, "<d", math.nextafter(squares, math.inf))
    yield root("value-min", "value min or max is not the nonzeros'", 56, "<d", 1.0)
    yield root("value-max", "value min or max is not the nonzeros'", 64, "<d", 100.0)
    draft = _NARROW.draft()
    draft.poke(MANIFEST, PREAMBLE_BYTES + 8, "<Q", 7)
    draft.seal()
    yield Invalid("verify-longest-row", VERIFIER, MANIFEST, "the longest row bound is", draft)


_INTEGER_TWO = Valid("integer", (50, 40), with_values((50, 40), 700, lambda i: i % 6))


# ---------------------------------------------------------------------------------------------------------------
# The directory
# ---------------------------------------------------------------------------------------------------------------

# Not kept in the repository: near relatives of other vectors.
EXTRA = set(
    """
    one-nonzero-raw order-8-raw
    chunk-trailing chunk-section-kind chunk-section-reserved chunk-section-overflow chunk-section-unused
    chunk-value-encoding-raw chunk-number chunk-first-nonzero chunk-order chunk-codec
    chunk-payload-checksum-header chunk-stored-bytes
    zstd-magic zstd-short zstd-truncated zstd-empty-frame-first zstd-skippable-first
    image-shape-length image-tiles-length image-columns-length image-value-width-large image-value-width-none
    image-value-base image-dictionary-equal image-dictionary-nan image-dictionary-length image-dictionary-empty
    image-f64-infinite image-f32-nan image-values-length image-blocks-equal image-blocks-first image-blocks-start-order
    image-blocks-reserved image-blocks-key-zero image-blocks-empty image-blocks-length image-index-length
    verify-order-raw verify-repeated-raw verify-first-linear verify-row-high verify-slot-value verify-encoding-f64
    verify-integer-large verify-encoding-dictionary verify-dictionary-unused verify-slice-twice
    """.split()
)

README = """# Vectors

Small stores to test a reader with. `index.json` lists them:

| field | meaning |
|---|---|
| `name`, `valid` | the store is `valid/NAME` or `invalid/NAME` |
| `level` | of an invalid one: `reader` = every reader refuses it, `verifier` = only a verifier does |
| `file` | the file that the error is about |
| `rule` | what the error says; part of the message of `tools/blco_reader.py` |
| `pack` | of a valid one: the options with which `blco-pack` makes it from the text |
| `about` | of a valid one: why it is here |

`valid/NAME.tns` holds the nonzeros of `valid/NAME` in store order, as FROSTT text with indices from 1. Packed with
the options, it gives the same bytes; with zstd the same images, as frames differ with the release of the library.

An invalid store has one fault. Where the manifest alone shows it, most have no chunks. All checksums that are not the
fault are right, so a reader that reports a checksum where another rule is listed has not read on.

`python3 tools/make_vectors.py` writes all files here, always the same bytes; `--check` tells whether these are current;
`--extra --output DIR` writes more of them.
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
        out[f"valid/{valid.name}.tns"] = valid.text().encode()
        about = {"pack": valid.pack_options(), "about": valid.about}
        index.append({"name": valid.name, "valid": True, "level": None, "file": None, "rule": None} | about)
    for invalid in invalid_vectors():
        if invalid.name in EXTRA and not extra:
            continue
        for name, data in invalid.draft.files.items():
            out[f"invalid/{invalid.name}/{name}"] = bytes(data)
        refusal = {"level": invalid.level, "file": invalid.file, "rule": invalid.rule}
        index.append({"name": invalid.name, "valid": False} | refusal)
    names = [(entry["valid"], entry["name"]) for entry in index]
    assert len(set(names)) == len(names)
    out["index.json"] = ("[\n" + ",\n".join(json.dumps(entry) for entry in index) + "\n]\n").encode()
    return out


def write(directory: Path, extra: bool) -> None:
    """Replace the directory's files."""
    for name in ("valid", "invalid"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name, data in contents(extra).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def differences(directory: Path, extra: bool) -> list[str]:
    """What keeps the directory from being current."""
    wanted = contents(extra)
    there = {p.relative_to(directory).as_posix(): p for p in directory.rglob("*") if p.is_file()}
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
        if entry["valid"]:
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
            facts = [[(h[:8], h[14]) for h in of_store] for of_store in headers]
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
