#!/usr/bin/env python3
"""Writes a rating log as CSV and Parquet: the table by which packing tables is measured.

    tools/make_ratings.py ROWS OUT     # OUT.csv and OUT.parquet; needs numpy and pyarrow

Columns: user, title and tag, text of 4 to 40 bytes with as many labels in all as a quarter of the rows (5 million of 20 million
rows), drawn with a skew; at, seconds of eight years; rating, 0.5 to 5. Some 60 bytes a row. The same rows for the same ROWS.
"""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

BATCH = 1 << 18
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz 0123456789", np.uint8)


def labels(numbers: np.ndarray, seed: int, shortest: int, longest: int) -> pa.Array:
    """A text for each number, always the same one: letters by a hash, the number in base 36 at the end so that no two are equal."""
    mixed = (numbers.astype(np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    lengths = (shortest + (mixed >> np.uint64(40)) % np.uint64(longest - shortest + 1)).astype(np.int64)
    digits = np.array(list("0123456789abcdefghijklmnopqrstuvwxyz"))
    tails = np.full(len(numbers), "", dtype="U5")
    rest = numbers.copy()
    for _ in range(5):
        tails = np.char.add(digits[rest % 36], tails)
        rest //= 36
    width = longest
    steps = np.arange(width, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    body = LETTERS[((mixed[:, None] + steps) >> np.uint64(33)) % np.uint64(len(LETTERS))]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    kept = np.arange(width)[None, :] < lengths[:, None]
    heads = pa.Array.from_buffers(
        pa.large_string(), len(numbers), [None, pa.py_buffer(ends.astype(np.int64).tobytes()), pa.py_buffer(body[kept].tobytes())]
    )
    return pa.compute.binary_join_element_wise(heads, pa.array(tails, pa.large_string()), pa.scalar("", pa.large_string()))


def batch(rows: int, first: int, seed: int) -> pa.Table:
    rng = np.random.default_rng([seed, first])
    users, titles, tags = (max(1, first_of) for first_of in (rows * 3 // 20, rows * 2 // 25, rows // 50))
    count = min(BATCH, rows - first)

    def drawn(of: int) -> np.ndarray:
        # Each label comes at least about once, some often.
        skewed = (of * rng.random(count) ** 3).astype(np.int64)
        return np.where(rng.random(count) < 0.5, (first + np.arange(count)) % of, skewed)

    stamps = np.datetime64("2016-01-01T00:00:00", "s") + rng.integers(0, 8 * 365 * 86400, count)
    return pa.table(
        {
            "user": labels(drawn(users), 1, 1, 9),
            "title": labels(drawn(titles), 2, 3, 28),
            "tag": labels(drawn(tags), 3, 1, 7),
            "at": pa.array(stamps, pa.timestamp("s")).cast(pa.timestamp("ms")),
            "rating": pa.array(rng.integers(1, 11, count) / 2),
        }
    )


def main() -> None:
    rows, out = int(sys.argv[1]), sys.argv[2]
    text = parquet = None
    for first in range(0, rows, BATCH):
        table = batch(rows, first, 7)
        stamps = pa.compute.strftime(table["at"].cast(pa.timestamp("s")), "%Y-%m-%dT%H:%M:%S")
        stamped = table.set_column(3, "at", stamps)
        text = text or pa.csv.CSVWriter(f"{out}.csv", stamped.schema, write_options=pa.csv.WriteOptions(quoting_style="none"))
        parquet = parquet or pa.parquet.ParquetWriter(f"{out}.parquet", table.schema)
        text.write_table(stamped)
        parquet.write_table(table)
    text.close()
    parquet.close()


if __name__ == "__main__":
    main()
