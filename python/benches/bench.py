"""What the package costs beside the engine: a second call, packing arrays and frames, large factors; and what pyttb and TensorLy take.

``python bench.py [--pack PATH] [--nonzeros N] [--rows N] [--only NAME]...``; ``--pack`` names a program ``blco-pack`` of the same build profile, which
packs the same tensor from text and the same table from Parquet. Compare within one run.
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


def processor_seconds(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def frame(directory, rows, program, times=5):
    """A frame of pandas by the package, and the same table in Parquet by the program, in turns."""
    import pandas

    rng = np.random.default_rng(3)
    users, titles = rng.zipf(1.2, rows) % 200_000, rng.zipf(1.3, rows) % 30_000
    table = pandas.DataFrame(
        {
            "user": users,
            "title": pandas.Series(np.array([f"The {i}th title" for i in range(30_000)], dtype=object)[titles], dtype="str"),
            "at": pandas.to_datetime(rng.integers(1_400_000_000, 1_700_000_000, rows), unit="s"),
            "rating": rng.integers(1, 11, rows) / 2,
        }
    )
    path, modes = os.path.join(directory, "t.parquet"), ["user", "title", ("at", "month")]
    table.to_parquet(path, compression="zstd")
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    ours, theirs = os.path.join(directory, "frame.blco"), os.path.join(directory, "file.blco")
    arguments = [program, path, "--modes", "user,title,at:month", "--value", "rating", "-o", theirs, "--force", "--quiet"]
    ways = {
        "frame": lambda: blco.pack(table, ours, modes=modes, value="rating", replace=True),
        "blco_pack": lambda: subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL),
    }
    walls, processors = {way: [] for way in ways}, {way: [] for way in ways}
    for turn in range(times):
        for way in sorted(ways, reverse=bool(turn % 2)):
            who = resource.RUSAGE_SELF if way == "frame" else resource.RUSAGE_CHILDREN
            start, used = time.perf_counter(), processor_seconds(who)
            ways[way]()
            walls[way].append(time.perf_counter() - start)
            processors[way].append(processor_seconds(who) - used)
    assert blco.open(ours).stats["digest"] == blco.open(theirs).stats["digest"]
    found = {"rows": rows, "bytes": os.path.getsize(path)}
    for name, took in [("seconds", walls), ("processor_seconds", processors)]:
        middle = {way: statistics.median(took[way]) for way in ways}
        found |= {f"{way}_{name}": middle[way] for way in ways} | {
            f"frame_to_blco_pack_{name}": middle["frame"] / middle["blco_pack"]
        }
    return found


def others(directory):
    """Tensors of orders 3 to 5, which pyttb (sparse) and TensorLy (dense) take as well: seconds, and how far results are apart."""
    import pyttb
    from tensorly.cp_tensor import CPTensor, cp_to_tensor, unfolding_dot_khatri_rao
    from tensorly.decomposition import parafac

    rank, iterations, found = 8, 3, []
    for shape in [(200, 180, 160), (80, 60, 50, 40), (40, 30, 24, 20, 16)]:
        rng = np.random.default_rng(len(shape))
        places = rng.choice(np.prod(shape), 200_000, replace=False)
        coords, values = np.stack(np.unravel_index(places, shape), axis=1), rng.random(200_000)
        dense = np.zeros(shape)
        dense[tuple(coords.T)] = values
        theirs = pyttb.sptensor(coords, values[:, None], shape)
        target = os.path.join(directory, f"order-{len(shape)}.blco")
        store = blco.pack(theirs, target)
        factors = [rng.random((dim, rank)) for dim in shape]
        start = pyttb.ktensor([np.asfortranarray(factor) for factor in factors], np.ones(rank))
        begin = lambda f=factors: CPTensor((np.ones(rank), [factor.copy() for factor in f]))  # noqa: E731
        modes = range(len(shape))
        ways = {
            "mttkrp": {
                "blco": lambda s=store, f=factors: s.mttkrp(f),
                "pyttb": lambda t=theirs, f=factors, m=modes: [t.mttkrp(f, mode) for mode in m],
                "tensorly": lambda d=dense, f=factors, m=modes: [unfolding_dot_khatri_rao(d, (None, f), mode) for mode in m],
            },
            "cp": {
                "blco": lambda s=store, f=factors: s.cp(rank, init=f, tol=0, max_iters=iterations),
                "pyttb": lambda t=theirs, s=start: pyttb.cp_als(t, rank, init=s, stoptol=0, maxiters=iterations, printitn=0)[0],
                "tensorly": lambda d=dense, b=begin: parafac(d, rank, init=b(), n_iter_max=iterations, tol=0),
            },
            "conversion": {
                "pyttb to store": lambda t=theirs, at=target: blco.pack(t, at, replace=True),
                "store to pyttb": lambda s=store: s.to_coo().to_pyttb(),
                "dense to store": lambda d=dense, at=target: blco.pack(d, at, replace=True),
                "store to dense": lambda s=store: s.to_coo().to_dense(),
            },
        }
        as_arrays = {
            "blco": lambda model: [model.full()],
            "pyttb": lambda model: [model.full().data],
            "tensorly": lambda model: [cp_to_tensor(model)],
        }
        for work, by in ways.items():
            line = {"shape": shape, "work": work} | {name: seconds(way, 3)[0] for name, way in by.items()}
            if work != "conversion":
                results = {name: way() if work == "mttkrp" else as_arrays[name](way()) for name, way in by.items()}
                apart = [np.abs(a - b).max() / np.abs(a).max() for r in results.values() for a, b in zip(results["blco"], r)]
                line["apart"] = float(max(apart))
                assert line["apart"] < 1e-10, line
            found.append(line)
    return {"others": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack")
    parser.add_argument("--nonzeros", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--only", action="append", choices=["factors", "call", "arrays", "frame", "others"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        parts = {
            # First, because a peak stays.
            "factors": lambda: large_factors(directory, asked.rows),
            "call": lambda: second_call(directory),
            "arrays": lambda: packing(directory, asked.nonzeros, asked.pack),
            "frame": lambda: frame(directory, asked.nonzeros, asked.pack) if asked.pack else {},
            "others": lambda: others(directory),
        }
        found = {}
        for name in asked.only or parts:
            found |= parts[name]()
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
