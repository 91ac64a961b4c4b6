"""Protects packing: the same tensor from anywhere gives the same store, and what is no tensor gives none."""

import os

import numpy as np
import pytest
from conftest import DIMS, Tensor, same

import blco


def pack(source, tmp_path, name="packed.blco", **options):
    return blco.pack(source, tmp_path / name, **options)


@pytest.mark.parametrize("order", range(2, 7))
def test_arrays_of_every_order(order, tmp_path):
    tensor = Tensor(DIMS[:order], 200, seed=order)
    assert same(pack((tensor.coords, tensor.values), tmp_path, shape=tensor.shape), tensor)
    columns = tuple(tensor.coords.T)
    assert same(pack((columns, tensor.values), tmp_path, "columns.blco", shape=tensor.shape), tensor)
    dims = tuple(int(dim) for dim in tensor.coords.max(axis=0) + 1)
    assert pack((columns, tensor.values), tmp_path, "met.blco").shape == dims


@pytest.mark.parametrize("indices", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4"])
@pytest.mark.parametrize("values", ["f8", "f4", "f2", "i8", "i4", "u8", "u2", "?", ">f8"])
def test_every_type(tensor, tmp_path, indices, values):
    expected = tensor.values.astype(values)
    store = pack((tensor.coords.astype(indices), expected), tmp_path, shape=tensor.shape)
    tensor.values = expected.astype(np.float64)
    assert same(store, tensor)


def test_arrays_need_not_be_contiguous(tensor, tmp_path):
    wide = np.zeros((len(tensor.coords) * 2, 9), np.int64)
    wide[::2, 1:7:2] = tensor.coords
    backwards = np.repeat(tensor.values, 3)[::-3][::-1]
    assert same(pack((wide[::2, 1:7:2], backwards), tmp_path, shape=tensor.shape), tensor)
    fortran = np.asfortranarray(tensor.coords)
    assert same(pack((fortran, tensor.values), tmp_path, "fortran.blco", shape=tensor.shape), tensor)
    ones = pack((tensor.coords, None), tmp_path, "ones.blco", shape=tensor.shape)
    assert ones.to_coo().values.tolist() == [1.0] * len(tensor.values)


def digests(tensor, tmp_path, sources):
    """All ways lead to the same bytes."""
    stores = [pack(source, tmp_path, f"{number}.blco", **options) for number, (source, options) in enumerate(sources)]
    assert all(same(store, tensor) for store in stores)
    assert len({store.stats["digest"] for store in stores}) == 1


def text_of(tensor, path, base=1):
    rows = (f"{' '.join(str(i + base) for i in row)} {value}\n" for row, value in zip(tensor.coords.tolist(), tensor.values))
    path.write_text("".join(rows))
    return path


def test_all_ways_give_the_same_bytes(tensor, tmp_path):
    shape, coords, values = tensor.shape, tensor.coords, tensor.values
    whole = {"shape": shape}
    batches = [(coords[i : i + 37], values[i : i + 37]) for i in range(0, len(values), 37)]
    store = pack((coords, values), tmp_path, **whole)
    digests(
        tensor,
        tmp_path,
        [
            ((coords, values), whole),
            (text_of(tensor, tmp_path / "t.tns"), whole),
            (str(text_of(tensor, tmp_path / "zero.tns", 0)), whole | {"index_base": 0}),
            ((coords + 1, values), whole | {"index_base": 1}),
            (iter(batches), whole),
            (batches, whole),
            ((batch for batch in batches), whole | {"memory": "64MiB"}),
            (tensor.dense, {}),
            (store, {}),
            (store.to_coo(), {}),
        ],
    )


def test_batches_without_a_shape(tensor, tmp_path):
    batches = [(tensor.coords[i::5], tensor.values[i::5]) for i in range(5)]
    dims = tuple(int(dim) for dim in tensor.coords.max(axis=0) + 1)
    store = pack(iter(batches), tmp_path)
    assert store.shape == dims and store.nnz == len(tensor.values)


def test_other_packages(tensor, tmp_path):
    scipy = pytest.importorskip("scipy.sparse")
    flat = Tensor(DIMS[:2], 60)
    matrix = scipy.coo_array((flat.values, tuple(flat.coords.T)), shape=flat.shape)
    old = scipy.coo_matrix((flat.values, tuple(flat.coords.T)), shape=flat.shape)
    digests(flat, tmp_path, [(way, {}) for way in (matrix, matrix.tocsr(), matrix.tocsc(), old, old.tolil())])
    assert np.array_equal(blco.open(tmp_path / "0.blco").to_coo().to_scipy().toarray(), flat.dense)


def test_pydata_sparse(tensor, tmp_path):
    sparse = pytest.importorskip("sparse")
    coo = sparse.COO(tensor.coords.T, tensor.values, shape=tensor.shape)
    digests(tensor, tmp_path, [(coo, {}), (sparse.GCXS(coo), {})])
    assert np.array_equal(blco.open(tmp_path / "0.blco").to_coo().to_sparse().todense(), tensor.dense)
    filled = sparse.COO(tensor.coords.T, tensor.values, shape=tensor.shape, fill_value=2.0)
    with pytest.raises(ValueError, match="fill value 2"):
        pack(filled, tmp_path, "filled.blco")


def test_pyttb(tensor, tmp_path):
    pyttb = pytest.importorskip("pyttb")
    theirs = pyttb.sptensor(tensor.coords, tensor.values[:, None], tensor.shape)
    store = pack(theirs, tmp_path)
    assert same(store, tensor)
    assert np.array_equal(store.to_coo().to_pyttb().full().data, tensor.dense)


def columns(tensor):
    return {"user": tensor.coords[:, 0], "item": tensor.coords[:, 1], "day": tensor.coords[:, 2], "rating": tensor.values}


def test_tables(tensor, tmp_path):
    named = {"modes": ["user", "item", "day"], "value": "rating", "shape": tensor.shape}
    tables = [(columns(tensor), named)]
    try:
        import pandas

        tables.append((pandas.DataFrame(columns(tensor)), named))
    except ImportError:
        pass
    try:
        import polars

        tables.append((polars.DataFrame(columns(tensor)), named))
    except ImportError:
        pass
    try:
        import pyarrow

        table = pyarrow.table(columns(tensor))
        tables += [(table, named), (table.to_reader(max_chunksize=50), named)]
    except ImportError:
        pass
    digests(tensor, tmp_path, tables)


def test_tables_that_do_not_serve(tensor, tmp_path):
    table = columns(tensor) | {"name": np.array(["x"] * len(tensor.values)), "half": tensor.values / 2}
    for modes, error, said in [
        (["user", "name"], TypeError, "labels are of tables with an Arrow C stream"),
        (["user", "half"], TypeError, "column 'half': float64 indices"),
        (["user", "none"], ValueError, "no column 'none'"),
        (["user", ("day", "month")], TypeError, "labels and bins are of tables"),
    ]:
        with pytest.raises(error, match=said):
            pack(table, tmp_path, modes=modes)
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="takes `modes`"):
        pack(pandas.DataFrame(columns(tensor)), tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_packer(tensor, tmp_path):
    with blco.Packer(tmp_path / "p.blco", shape=tensor.shape, memory="64MiB") as packer:
        for i in range(0, len(tensor.values), 7):
            packer.append(tensor.coords[i : i + 7], tensor.values[i : i + 7])
        packer.append(np.zeros((0, 3), int), [])
        assert packer.nnz == len(tensor.values) and packer.store is None
    assert same(packer.store, tensor)
    with pytest.raises(RuntimeError, match="closed"):
        packer.append([[0, 0, 0]], [1.0])


def test_a_packer_that_fails_leaves_nothing(tensor, tmp_path):
    class Mine(Exception):
        pass

    with pytest.raises(Mine), blco.Packer(tmp_path / "p.blco", shape=tensor.shape) as packer:
        packer.append(tensor.coords, tensor.values)
        raise Mine
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="indices up to"):
        with blco.Packer(tmp_path / "p.blco", shape=tensor.shape) as packer:
            packer.append(tensor.coords + 5, tensor.values)
    assert os.listdir(tmp_path) == []
    packer = blco.Packer(tmp_path / "p.blco")
    packer.append(tensor.coords, tensor.values)
    packer.abort()
    assert os.listdir(tmp_path) == [] and packer.store is None
    # One that is forgotten.
    packer = blco.Packer(tmp_path / "p.blco")
    del packer


def test_a_source_that_raises(tensor, tmp_path):
    def batches():
        yield tensor.coords, tensor.values
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        pack(batches(), tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_more_than_memory(tmp_path):
    """Ten times what is allowed for sorting, from a generator: it goes through temporary files."""
    rng = np.random.default_rng(3)
    shape, batches, total = (5000, 4000, 3000), 40, 0.0
    made = []

    def generate():
        nonlocal total
        for _ in range(batches):
            coords = np.stack([rng.integers(0, dim, 100_000, dtype=np.uint32) for dim in shape], axis=1)
            values = rng.integers(1, 5, 100_000).astype(np.float64)
            total += values.sum()
            made.append(len(values))
            yield coords, values

    store = pack(generate(), tmp_path, shape=shape, memory="64MiB")
    assert store.report["input_nnz"] == sum(made) and store.report["spilled"]["runs"] > 1
    assert sum(values.sum() for _, values in store.batches()) == total
    assert os.listdir(tmp_path) == ["packed.blco"]


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "raw"},
        {"zstd": 3, "chunk_bytes": "64KiB"},
        {"format": "hocfs", "main_mode": 1},
        {"format": "hocfs", "slices": "ell"},
        {"format": "csf"},
        {"format": "csf", "trees": "one"},
        {"format": "csf", "trees": 1},
        {"format": "bcsf", "fiber_split": 3},
        {"format": "hbcsf", "trees": "all"},
        {"format": "mmcsf", "assign": "static"},
        {"format": "fcoo"},
        {"format": "fcoo", "operation": "ttm", "trees": 2},
    ],
    ids=str,
)
def test_formats(tensor, tmp_path, options):
    store = pack((tensor.coords, tensor.values), tmp_path, shape=tensor.shape, **options)
    assert same(store, tensor)
    assert store.stats["format"] == options.get("format", "blco")
    store.verify()
    with blco.Packer(tmp_path / "appended.blco", shape=tensor.shape, **options) as packer:
        packer.append(tensor.coords, tensor.values)
    for name in sorted(os.listdir(store.path)):
        if name.startswith("chunk"):
            assert (tmp_path / "appended.blco" / name).read_bytes() == (tmp_path / "packed.blco" / name).read_bytes()
    if options.get("operation") != "ttm":
        factors = tensor.factors(4)
        for mode, sums in enumerate(store.mttkrp(factors)):
            assert np.array_equal(sums, tensor.mttkrp(factors, mode))


def test_duplicates(tmp_path):
    twice = ([[0, 1], [2, 0], [0, 1]], [1.0, 2.0, 4.0])
    assert pack(twice, tmp_path)[0, 1] == 5.0
    kept = pack(twice, tmp_path, "kept.blco", duplicates="keep")
    assert kept.nnz == 3 and kept[0, 1] == 5.0 and kept.stats["duplicates_may_occur"]
    with pytest.raises(ValueError):
        pack(twice, tmp_path, "none.blco", duplicates="error")
    with pytest.raises(ValueError, match="may repeat"):
        kept.cp(1)


@pytest.mark.parametrize(
    "source, error, said",
    [
        (([[0, 1]], [np.nan]), ValueError, "NaN"),
        (([[0, -1]], [1.0]), ValueError, "index -1 of mode 2"),
        (([[0, 2**32]], [1.0]), ValueError, "index 4294967296 of mode 2"),
        (([[0.0, 1.0]], [1.0]), TypeError, "float64 indices"),
        (([["a", "b"]], [1.0]), TypeError, "labels"),
        (([[0, 1]], [1j]), TypeError, "complex"),
        (([[0, 1]], [1.0, 2.0]), ValueError, "transpose"),
        (([[0, 1, 2], [0, 1, 2]], [1.0, 2.0, 3.0]), ValueError, "transpose"),
        (([0, 1], [1.0]), ValueError, "1 axes"),
        (((np.arange(3), np.arange(2)), np.ones(3)), ValueError, "2 indices of mode 2 and 3 values"),
        (([[0]], [1.0]), ValueError, "order 1"),
        (([[0] * 9], [1.0]), ValueError, "order 9"),
        ((np.zeros((0, 3), int), []), ValueError, "no nonzeros"),
        (([[0, 1]], [2**53 + 1]), ValueError, "9007199254740993"),
        (object(), TypeError, "object"),
        ([1, 2], TypeError, "batch 0"),
        ([([[0, 1]], [1.0]), ([[0, 1, 2]], [1.0])], ValueError, "order 3"),
    ],
)
def test_what_is_no_tensor(source, error, said, tmp_path):
    with pytest.raises(error, match=said):
        pack(source, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [
        {"format": "none"},
        {"encoding": "none"},
        {"main_mode": 1},
        {"format": "hocfs", "main_mode": 7},
        {"format": "hocfs", "encoding": "raw"},
        {"format": "csf", "fiber_split": 3},
        {"format": "csf", "trees": 3},
        {"format": "csf", "trees": "two"},
        {"format": "bcsf", "fiber_split": 0},
        {"format": "mmcsf", "assign": "none"},
        {"format": "fcoo", "operation": "ttv"},
        {"zstd": 99},
        {"chunk_bytes": 5},
        {"duplicates": "none"},
        {"memory": "1 parsec"},
        {"memory": "63MiB"},
        {"memory": 1000},
        {"shape": (1, 1, 1)},
        {"shape": (100, 100)},
        {"index_base": 2},
        {"resume": True},
        {"temp_dir": "/nowhere"},
    ],
)
def test_what_is_asked_wrongly(options, tensor, tmp_path):
    with pytest.raises(ValueError):
        if "memory" in options and options["memory"] == 1000:
            blco.Engine(memory=1000).pack((tensor.coords, tensor.values), tmp_path / "packed.blco")
        else:
            pack((tensor.coords, tensor.values), tmp_path, **options)
    assert os.listdir(tmp_path) == []


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.tns"):
        pack(tmp_path / "none.tns", tmp_path)
    with pytest.raises(FileNotFoundError, match="none.blco"):
        blco.open(tmp_path / "none.blco")
    (tmp_path / "text").write_text("1 1 1\n1 x 1\n")
    with pytest.raises(ValueError, match="a file, not a store"):
        blco.open(tmp_path / "text")
    with pytest.raises(ValueError, match="text:2"):
        pack(tmp_path / "text", tmp_path)


def test_a_store_is_not_replaced_unasked(store, tensor):
    with pytest.raises(ValueError, match="tensor.blco"):
        blco.pack((tensor.coords, tensor.values * 2), store.path)
    assert same(blco.open(store.path), tensor)
    other = blco.pack((tensor.coords, tensor.values * 2), store.path, shape=tensor.shape, replace=True)
    # Who has opened the old one reads on.
    assert same(store, tensor) and np.array_equal(other.to_coo().to_dense(), tensor.dense * 2)
