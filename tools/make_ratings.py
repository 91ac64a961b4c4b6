#!/usr/bin/env python3
"""Writes a rating log as CSV, and as Parquet if pyarrow is installed: the table by which packing tables is measured.

    tools/make_ratings.py ROWS OUT [--shuffled]     # OUT.csv and OUT.parquet; needs numpy

Columns: user, title and tag, text of 4 to 40 bytes with as many labels in all as a quarter of the rows (5 million of 20 million rows),
of which some are frequent; at, seconds of eight years; rating, 0.5 to 5. Some 60 bytes a row. The same rows for the same ROWS;
--shuffled writes them in another order. A process for each core makes blocks of rows.
"""

import multiprocessing
import sys

import numpy as np

BLOCK = 1 << 17
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz 0123456789", np.uint8)
DIGITS = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", np.uint8)
# Characters of user, title and tag before the number that makes a label unique, at most, and how rare the longer ones are.
HEADS = ((6, 1.0), (36, 1.5), (6, 1.0))

# Primes.
TURNS = (1_000_003, 700_001, 300_007)


def mixed(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Random bits of each number (splitmix64)."""
    bits = numbers.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def uniform(numbers: np.ndarray, seed: int) -> np.ndarray:
    return (mixed(numbers, seed) >> np.uint64(11)) / 2.0**53


def label(numbers: np.ndarray, of: int, seed: int, longest: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """A label for each number: its characters, and which of them count."""
    digits = 4 if of <= 36**4 else 5
    lengths = (uniform(numbers, seed) ** power * (longest + 1)).astype(np.int64)
    head = LETTERS[mixed(numbers[:, None] * 64 + np.arange(longest), seed + 1) % np.uint64(len(LETTERS))]
    tail = DIGITS[numbers[:, None] // 36 ** np.arange(digits - 1, -1, -1) % 36]
    kept = np.concatenate([np.arange(longest) < lengths[:, None], np.ones_like(tail, bool)], axis=1)
    return np.concatenate([head, tail], axis=1), kept


def text(strings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ASCII strings as characters, and which of them count."""
    characters = np.ascontiguousarray(strings).view(np.uint8).reshape(len(strings), -1)
    return characters, characters != 0


def block(task: tuple[int, int, bool]) -> bytes:
    """CSV of some rows, from `first` on."""
    rows, first, is_shuffled = task
    numbers = np.arange(first, min(rows, first + BLOCK), dtype=np.int64)
    if is_shuffled:
        # A prime that does not divide `rows` makes this a permutation.
        numbers = (numbers * 7_368_787 + 12_345) % rows
    columns = []
    labels = (max(1, rows * 3 // 20), max(1, rows * 2 // 25), max(1, rows // 50))
    for seed, (of, (longest, power)) in enumerate(zip(labels, HEADS)):
        # Every other row takes the labels in turn, so that each comes; the rest take some labels often.
        often = (of * uniform(numbers, 10 + seed) ** 3).astype(np.int64)
        drawn = np.where(numbers % 2, numbers // 2 * TURNS[seed] % of, often)
        columns.append(label(drawn, of, 100 * (seed + 1), longest, power))
    seconds = (uniform(numbers, 30) * (8 * 365 * 86400)).astype(np.int64)
    stamps = np.datetime_as_string(np.datetime64("2016-01-01T00:00:00", "s") + seconds).astype("S19")
    halves = np.array([f"{half / 2:g}" for half in range(1, 11)], dtype="S3")
    columns += [text(stamps), text(halves[mixed(numbers, 40) % np.uint64(10)])]
    parts = []
    for at, (characters, kept) in enumerate(columns):
        end = np.full((len(numbers), 1), ord("\n" if at == len(columns) - 1 else ","), np.uint8)
        parts += [(characters, kept), (end, np.ones_like(end, bool))]
    characters, kept = (np.concatenate([part[which] for part in parts], axis=1) for which in (0, 1))
    return characters[kept].tobytes()


def main() -> None:
    rows, out, is_shuffled = int(sys.argv[1]), sys.argv[2], "--shuffled" in sys.argv[3:]
    with open(f"{out}.csv", "wb") as file, multiprocessing.Pool() as pool:
        file.write(b"user,title,tag,at,rating\n")
        for made in pool.imap(block, ((rows, first, is_shuffled) for first in range(0, rows, BLOCK))):
            file.write(made)
    try:
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        print("no pyarrow, so no Parquet", file=sys.stderr)
        return
    types = {"at": pyarrow.timestamp("ms"), "rating": pyarrow.float64()}
    convert = pyarrow.csv.ConvertOptions(column_types=types)
    with pyarrow.csv.open_csv(f"{out}.csv", convert_options=convert) as reader:
        with pyarrow.parquet.ParquetWriter(f"{out}.parquet", reader.schema) as writer:
            batches = []
            for batch in reader:
                batches.append(batch)
                if sum(len(batch) for batch in batches) >= 2 * BLOCK:
                    writer.write_table(pyarrow.Table.from_batches(batches))
                    batches = []
            if batches:
                writer.write_table(pyarrow.Table.from_batches(batches))


if __name__ == "__main__":
    main()
