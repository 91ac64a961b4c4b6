"""What the package costs beside the engine: a second call, packing arrays, large factors.

``python bench.py [--pack PATH] [--nonzeros N] [--rows N]``; ``--pack`` names a program ``blco-pack`` of the same build profile, which packs the same
tensor from text. Compare within one run.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import blco

SHAPE = (183, 24, 1140, 1717)


def seconds(work, times):
    """The median, and the least."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return statistics.median(took), min(took)


def second_call(directory):
    """All of a call over a tensor whose pass takes next to nothing."""
    rng = np.random.default_rng(0)
    shape = (20, 20, 20)
    coords = np.stack([rng.integers(0, dim, 500) for dim in shape], axis=1)
    store = blco.pack((coords, np.ones(500)), os.path.join(directory, "small.blco"), shape=shape)
    factors = [rng.random((dim, 8)) for dim in shape]
    store.mttkrp(factors)
    median, least = seconds(lambda: store.mttkrp(factors), 300)
    return {"second_call_seconds": median, "second_call_seconds_least": least}


def packing(directory, nonzeros, program):
    """The same tensor from int64 arrays, from a table's columns, batch by batch, and from text by the program."""
    rng = np.random.default_rng(1)
    columns = {f"mode {m}": rng.integers(0, dim, nonzeros) for m, dim in enumerate(SHAPE)}
    values = rng.integers(1, 6, nonzeros).astype(np.float64)
    coords = tuple(columns.values())
    found = {}

    def pack(name, source, **options):
        target = os.path.join(directory, "packed.blco")
        took = []
        for _ in range(3):
            start = time.perf_counter()
            digest = blco.pack(source(), target, replace=True, **options).stats["digest"]
            took.append(time.perf_counter() - start)
        found[name] = statistics.median(took)
        return digest

    step = 1 << 18

    def batches():
        for i in range(0, nonzeros, step):
            yield tuple(column[i : i + step] for column in coords), values[i : i + step]

    digests = {
        pack("arrays_seconds", lambda: (coords, values), shape=SHAPE),
        pack("table_seconds", lambda: columns | {"v": values}, modes=list(columns), value="v", shape=SHAPE),
        pack("batches_seconds", batches, shape=SHAPE),
    }
    if program:
        text = os.path.join(directory, "t.tns")
        with open(text, "wb") as file:
            for i in range(0, nonzeros, step):
                rows = np.column_stack([column[i : i + step] + 1 for column in coords] + [values[i : i + step].astype(int)])
                np.savetxt(file, rows, "%d")
        dims = ",".join(map(str, SHAPE))
        took = []
        for _ in range(3):
            start = time.perf_counter()
            arguments = [program, text, "--dims", dims, "-o", os.path.join(directory, "text.blco"), "--force", "--quiet"]
            subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - start)
        found["blco_pack_seconds"] = statistics.median(took)
        found["arrays_to_blco_pack"] = found["arrays_seconds"] / found["blco_pack_seconds"]
        digests.add(blco.open(os.path.join(directory, "text.blco")).stats["digest"])
    assert len(digests) == 1, digests
    return {"nonzeros": nonzeros} | found


def large_factors(directory, rows):
    """How much memory one mode's MTTKRP takes above its factors, in units of the result."""
    rank, shape = 32, (rows, 50, 20)
    coords = np.random.default_rng(2).integers(0, shape, (20_000, 3))
    store = blco.pack((coords, np.ones(20_000)), os.path.join(directory, "long.blco"), shape=shape)
    factors = [np.ones((dim, rank)) for dim in shape]
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # noqa: E731
    before = peak()
    result = store.mttkrp(factors, 0, calls=1)
    return {"factor_bytes": factors[0].nbytes, "peak_above_factors_to_result": (peak() - before) / result.nbytes}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack")
    parser.add_argument("--nonzeros", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=8_000_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        # First, because a peak stays.
        found = large_factors(directory, asked.rows)
        found |= second_call(directory)
        found |= packing(directory, asked.nonzeros, asked.pack)
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
