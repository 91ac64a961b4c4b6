"""Protects open stores: what they say, how they are read, how damage is found."""

import gc
import os
import pickle
import time

import numpy as np
import pytest
from conftest import same

import blco


def test_what_a_store_says(store, tensor):
    assert (store.shape, store.order, store.nnz) == (tensor.shape, 3, 400)
    assert "23 x 17 x 11, 400 nonzeros" in repr(store) and store.path in repr(store)
    stats = store.stats
    assert stats["dims"] == list(tensor.shape) and stats["nnz"] == 400 and stats["bytes"] > 0
    assert stats["norm"] == pytest.approx(np.linalg.norm(tensor.values), rel=1e-15)
    assert (stats["value_min"], stats["value_max"]) == (tensor.values.min(), tensor.values.max())
    found = store.inspect()
    for mode in range(3):
        rows = np.bincount(tensor.coords[:, mode])
        assert found["modes"][mode]["longest_row"] == rows.max()
        assert found["modes"][mode]["rows"] == np.count_nonzero(rows)
    assert store.report["input_nnz"] == 400


def test_batches(store, tensor):
    coords, values = next(iter(store.batches()))
    assert coords.dtype == np.uint32 and values.dtype == np.float64 and coords.shape == (400, 3)
    assert same(store, tensor)
    # One that is not used up.
    batches = store.batches()
    next(batches)
    batches.close()
    assert list(batches) == []


def test_arrow_batches(tmp_path, tensor):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"user": ["bo", "al", "bo"], "day": [3, 1, 2], "stars": [1.5, 2.0, 4.0]})
    store = blco.pack(table, tmp_path / "t.blco", modes=["user", "day"], value="stars")
    batches = store.batches(arrow=True)
    found = pa.table(batches)
    assert found.schema.names == ["user", "day", "stars"]
    assert [str(kind) for kind in found.schema.types] == ["dictionary<values=large_string, indices=uint32, ordered=0>"] * 2 + [
        "double"
    ]
    assert found["user"].chunk(0).dictionary.to_pylist() == store.labels[0]
    rows = lambda table: sorted(zip(*(map(str, table[name].to_pylist()) for name in table.schema.names)))  # noqa: E731
    assert rows(found) == rows(table)
    # Each consumer reads it again: there and back is the same tensor.
    again = blco.pack(batches, tmp_path / "again.blco", modes=["user", "day"], value="stars")
    assert again.stats["digest"] == store.stats["digest"] and again.labels == store.labels
    # Without labels, columns are indices.
    plain = blco.pack((tensor.coords, tensor.values), tmp_path / "plain.blco", shape=tensor.shape)
    found = pa.table(plain.batches(arrow=True))
    assert found.schema.names == ["mode 0", "mode 1", "mode 2", "value"] and found.schema.field(0).type == pa.uint32()
    dense = np.zeros(tensor.shape)
    dense[tuple(found[m].to_numpy() for m in range(3))] = found["value"].to_numpy()
    assert np.array_equal(dense, tensor.dense)
    wanted = pa.schema([("mode 0", pa.int64()), ("mode 1", pa.int32()), ("mode 2", pa.uint32()), ("value", pa.float32())])
    assert pa.RecordBatchReader.from_stream(plain.batches(arrow=True), wanted).read_all().schema.equals(wanted)


def test_arrow_batches_of_other_packages(tmp_path):
    pl, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    frame = pl.DataFrame({"user": ["bo", "al", "bo"] * 60_000, "item": list(range(180_000)), "stars": [1.5, 2.0, 4.0] * 60_000})
    store = blco.pack(frame, tmp_path / "t.blco", modes=["user", "item"], value="stars")
    found = pl.DataFrame(store.batches(arrow=True))
    assert found.height == 180_000 and found["user"].cast(pl.String).value_counts().sort("user").rows() == [
        ("al", 60_000),
        ("bo", 120_000),
    ]
    assert found["stars"].sum() == frame["stars"].sum()
    categories = pandas.DataFrame.from_arrow(store.batches(arrow=True)) if hasattr(pandas.DataFrame, "from_arrow") else None
    assert categories is None or categories.groupby("user", observed=True)["stars"].sum()["al"] == 120_000.0


def test_arrow_batches_that_go_wrong(tmp_path, tensor):
    pa = pytest.importorskip("pyarrow")
    n = 300_000
    coords = np.stack([np.arange(n) // 100, np.arange(n) % 100], axis=1)
    store = blco.pack((coords, np.arange(n) + 1.0), tmp_path / "s.blco", chunk_bytes="64KiB")
    # One that is not used up stops reading, and no thread is left.
    pa.table(store.batches(arrow=True))  # pyarrow starts threads of its own
    threads = lambda: len(os.listdir("/proc/self/task"))  # noqa: E731
    before, end = threads(), time.monotonic() + 10
    reader = pa.RecordBatchReader.from_stream(store.batches(arrow=True))
    assert reader.read_next_batch().num_rows > 0
    del reader
    gc.collect()
    while threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() <= before
    last = sorted(name for name in os.listdir(store.path) if name.startswith("chunk"))[-1]
    with open(os.path.join(store.path, last), "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    with pytest.raises(Exception, match=last):
        pa.table(store.batches(arrow=True))


KEYS = [
    (..., ...),
    (3,),
    (slice(4, 9),),
    (slice(None), 2),
    (slice(None), slice(None), -1),
    (..., slice(2, 5)),
    (1, ..., slice(-4, None)),
    (slice(4, 4),),
    (slice(9, 2),),
    (slice(0, 100), np.int64(3), slice(None, -1)),
]


@pytest.mark.parametrize("key", KEYS)
def test_slices(store, tensor, key):
    key = key if key != (..., ...) else (...,)
    part = store[key]
    assert isinstance(part, blco.COO)
    assert np.array_equal(part.to_dense(), tensor.dense[key])
    assert part.shape == tensor.dense[key].shape


def test_elements(store, tensor):
    row = tuple(tensor.coords[7])
    assert store[row] == tensor.values[7]
    empty = tuple(np.argwhere(tensor.dense == 0)[0])
    assert store[empty] == 0.0


@pytest.mark.parametrize("key", [(23,), (0, 0, 0, 0), (slice(0, 9, 2),), ("a",), (..., 1, ...), (1.5,), (-24,)])
def test_slices_that_are_none(store, key):
    with pytest.raises(IndexError):
        store[key]


def test_a_slice_reads_its_chunks_alone(tmp_path):
    n = 300_000
    coords = np.stack([np.arange(n) // 100, np.arange(n) % 100], axis=1)
    store = blco.pack((coords, np.arange(n) + 1.0), tmp_path / "s.blco", chunk_bytes="64KiB")
    assert store.stats["chunks"] > 5
    expected = store[5].to_dense()
    # Damage elsewhere is not met.
    last = sorted(name for name in os.listdir(store.path) if name.startswith("chunk"))[-1]
    with open(os.path.join(store.path, last), "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    assert np.array_equal(store[5].to_dense(), expected) and np.array_equal(expected, np.arange(500, 600) + 1)
    with pytest.raises(blco.CorruptStoreError, match=last):
        store.to_coo()
    with pytest.raises(blco.CorruptStoreError, match=last):
        store.verify()
    with pytest.raises(blco.CorruptStoreError, match=last):
        store.mttkrp([np.ones((dim, 2)) for dim in store.shape])


def test_damage_is_found(store):
    with open(os.path.join(store.path, "manifest"), "r+b") as file:
        file.seek(100)
        file.write(b"damage")
    with pytest.raises(blco.CorruptStoreError, match="manifest"):
        blco.open(store.path)


def test_a_store_pickles_as_its_path(store, tensor, monkeypatch):
    monkeypatch.chdir(os.path.dirname(store.path))
    near = blco.open("tensor.blco")
    said = pickle.dumps(near)
    assert len(said) < 300
    monkeypatch.chdir("/")
    assert same(pickle.loads(said), tensor)


def test_engines(store, tensor, tmp_path):
    engine = blco.Engine(threads=1, memory="200MiB", device="cpu")
    assert engine.threads == 1 and "1 threads" in repr(engine)
    assert same(engine.open(store.path), tensor)
    assert same(engine.pack((tensor.coords, tensor.values), tmp_path / "e.blco", shape=tensor.shape), tensor)
    with pytest.raises(ValueError, match="at least"):
        blco.Engine(memory="1MiB").open(store.path).mttkrp(tensor.factors(4))
    with pytest.raises(ValueError, match="device"):
        blco.Engine(device="abacus")
