"""Protects what is computed: against numpy's einsum, pyttb and TensorLy."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import DIMS, Tensor

import blco


def packed(tensor, tmp_path, **options):
    return blco.pack((tensor.coords, tensor.values), tmp_path / "t.blco", shape=tensor.shape, **options)


@pytest.mark.parametrize("order", range(2, 7))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_mttkrp_is_that_of_the_definition(order, dtype, tmp_path):
    tensor = Tensor(DIMS[:order], 250, seed=order)
    store, factors = packed(tensor, tmp_path), tensor.factors(4, dtype)
    found = store.mttkrp(factors)
    for mode, sums in enumerate(found):
        assert sums.dtype == dtype and sums.shape == (tensor.shape[mode], 4) and sums.flags.c_contiguous
        # Whole numbers: exact in both precisions.
        assert np.array_equal(sums, tensor.mttkrp(factors, mode))
        assert np.array_equal(store.mttkrp(factors, mode), sums)
    last, first = store.mttkrp(factors, [-1, 0])
    assert np.array_equal(last, found[-1]) and np.array_equal(first, found[0])
    assert np.array_equal(store.mttkrp(factors, 0, calls=1), first)


def test_large_matrices_begin_at_a_cache_line(tmp_path):
    tensor = Tensor((40_000, 5, 6), 250, seed=1)
    store = packed(tensor, tmp_path)
    sums = store.mttkrp(tensor.factors(32), 0)
    model = store.cp(32, max_iters=1)
    for matrix in (sums, model.factors[0]):
        assert matrix.nbytes > 1 << 20 and matrix.ctypes.data % 64 == 0


def test_results_are_the_callers(store, tensor):
    factors = tensor.factors(3)
    first = store.mttkrp(factors, 0)
    kept = first.copy()
    first += 1
    other = [factor * 2 for factor in factors]
    assert np.array_equal(store.mttkrp(other, 0), kept * 4)
    assert np.array_equal(first, kept + 1)
    assert factors[0].dtype == np.float64 and np.array_equal(store.mttkrp(factors, 0), kept)


def test_factors_in_other_forms(store, tensor):
    factors = tensor.factors(3)
    expected = store.mttkrp(factors, 1)
    for form in (np.asfortranarray, lambda f: f.astype(int), lambda f: f.tolist(), lambda f: np.repeat(f, 2, 1)[:, ::2]):
        assert np.array_equal(store.mttkrp([form(factor) for factor in factors], 1), expected)
    mixed = [factors[0].astype(np.float32), *factors[1:]]
    assert np.array_equal(store.mttkrp(mixed, 1), expected)
    assert np.array_equal(store.mttkrp(blco.Model(None, factors), 1), expected)
    for factor in factors:
        factor.flags.writeable = False
    assert np.array_equal(store.mttkrp(factors, 1), expected)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda f: f[:2], "2 factors"),
        (lambda f: [f[1], f[0], f[2]], "factor of mode 1 is 17 x 3"),
        (lambda f: [f[0], f[1], f[2][:, :2]], "factor of mode 3"),
        (lambda f: [], "0 factors"),
        (lambda f: [x[:, :0] for x in f], "rank 0"),
    ],
)
def test_factors_that_do_not_fit(store, tensor, change, said):
    with pytest.raises(ValueError, match=said):
        store.mttkrp(change(tensor.factors(3)))
    # What failed is in nobody's way.
    assert np.array_equal(store.mttkrp(tensor.factors(3), 0), tensor.mttkrp(tensor.factors(3), 0))


def test_modes_that_are_none(store, tensor):
    # Of a store without names, a name is none of a mode.
    for modes in (3, -4, [0, 0], [], [0, 7], "all", ["user"]):
        with pytest.raises(ValueError):
            store.mttkrp(tensor.factors(3), modes)
    with pytest.raises(TypeError):
        store.mttkrp(tensor.factors(3), 1.5)
    with pytest.raises(TypeError):
        store.mttkrp([np.ones(3)] * 3)


def test_sessions_are_kept_and_released(store, tensor):
    for rank in range(1, 8):
        for mode in range(3):
            factors = tensor.factors(rank)
            assert np.array_equal(store.mttkrp(factors, mode), tensor.mttkrp(factors, mode))
    assert len(store.plans()) == 4
    store.release()
    assert store.plans() == []
    bounded = blco.Engine(memory="300MiB", threads=1).open(store.path)
    for mode in range(3):
        bounded.mttkrp(tensor.factors(2), mode)
    assert len(bounded.plans()) == 1


def test_a_second_call_adds_little(store, tensor):
    """Beside its pass, which takes less than 0.1 ms here: well below a millisecond where nobody else computes."""
    factors = tensor.factors(4)
    store.mttkrp(factors)
    seconds = []
    # Others may compute for a while.
    end = time.monotonic() + 10
    while len(seconds) < 50 or (min(seconds) >= 2e-3 and time.monotonic() < end):
        start = time.perf_counter()
        store.mttkrp(factors)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 2e-3, seconds[:50]


def test_threads_share_a_store(tmp_path):
    tensor = Tensor((200, 150, 100), 30_000)
    store = packed(tensor, tmp_path)

    def work(number):
        factors = tensor.factors(4, seed=number % 5)
        mode = number % 3
        return np.array_equal(store.mttkrp(factors, mode), tensor.mttkrp(factors, mode))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(60)))


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("options", [{}, {"format": "hocfs", "main_mode": 0}])
def test_ttv(tensor, tmp_path, mode, options):
    store = packed(tensor, tmp_path, **options)
    vector = np.arange(tensor.shape[mode]) - 3
    expected = np.tensordot(tensor.dense, vector, (mode, 0))
    for given in (vector, vector.astype(np.float64), vector.astype(np.float32), vector.tolist()):
        found = store.ttv(given, mode)
        assert np.array_equal(found.to_dense(), expected)
    assert store.ttv(vector, mode - 3).shape == expected.shape
    with pytest.raises(ValueError, match="along mode"):
        store.ttv(vector[1:], mode)


def test_ttv_of_a_matrix(tmp_path):
    tensor = Tensor((9, 8), 30)
    found = packed(tensor, tmp_path).ttv(np.ones(8), 1)
    assert np.array_equal(found.to_dense(), tensor.dense.sum(axis=1))
    pytest.importorskip("scipy")
    assert np.array_equal(found.to_scipy().toarray()[0], tensor.dense.sum(axis=1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ttv_along_several_modes(tmp_path, dtype):
    tensor = Tensor(DIMS[:4], 300)
    store = packed(tensor, tmp_path)
    vectors = [np.arange(dim, dtype=dtype) - 2 for dim in tensor.shape]
    found = store.ttv([vectors[3], vectors[1]], [3, 1])
    assert found.shape == (tensor.shape[0], tensor.shape[2])
    assert np.array_equal(found.to_dense(), np.einsum("abcd,b,d->ac", tensor.dense, vectors[1], vectors[3]))
    everything = store.ttv(vectors, range(4))
    assert isinstance(everything, float) and everything == np.einsum("abcd,a,b,c,d->", tensor.dense, *vectors)
    for wrong, modes in [(vectors[:2], [0]), ([vectors[0]] * 2, [0, 0]), ([], []), ([vectors[0]], [1])]:
        with pytest.raises(ValueError):
            store.ttv(wrong, modes)


@pytest.mark.parametrize("options", [{}, {"format": "hocfs", "main_mode": 0}])
@pytest.mark.parametrize("mode", range(3))
def test_ttm(tensor, tmp_path, mode, options):
    store = packed(tensor, tmp_path, **options)
    rng = np.random.default_rng(2)
    matrix = rng.integers(-3, 4, (tensor.shape[mode], 5))
    expected = np.moveaxis(np.tensordot(tensor.dense, matrix, (mode, 0)), -1, mode)
    for given in (matrix, matrix.astype(np.float32), np.asfortranarray(matrix.astype(np.float64)), matrix.tolist()):
        found = store.ttm(given, mode)
        assert found.shape == expected.shape and np.array_equal(found.to_dense(), expected)
        assert np.array_equal(found.to_coo().to_dense(), expected)
    coords, values = found
    others = np.delete(tensor.coords, mode, axis=1)
    assert np.array_equal(coords, np.unique(others, axis=0)) and values.shape == (len(coords), 5)
    assert store.ttm(matrix.astype(np.float32), mode).values.dtype == np.float32
    with pytest.raises(ValueError, match="along mode"):
        store.ttm(matrix[1:], mode)
    with pytest.raises(TypeError):
        store.ttm(matrix[:, 0], mode)


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ttmc(tmp_path, order, dtype):
    tensor = Tensor(DIMS[:order], 250, seed=order)
    store = packed(tensor, tmp_path)
    rng = np.random.default_rng(3)
    factors = [rng.integers(-2, 3, (dim, m + 2)).astype(dtype) for m, dim in enumerate(tensor.shape)]
    found = store.ttmc(factors)
    letters, ranks = "abcd"[:order], "wxyz"[:order]
    for mode, result in enumerate(found):
        others = [m for m in range(order) if m != mode]
        terms = ",".join(letters[m] + ranks[m] for m in others)
        into = letters[mode] + "".join(ranks[m] for m in others)
        expected = np.einsum(f"{letters},{terms}->{into}", tensor.dense, *(factors[m].astype(float) for m in others))
        assert result.dtype == dtype and np.array_equal(result, expected.reshape(len(result), -1))
        assert np.array_equal(store.ttmc(factors, mode), result)
    with pytest.raises(ValueError):
        store.ttmc(factors[:2])


def test_norms_and_inner_products(store, tensor, tmp_path):
    assert store.norm() == pytest.approx(np.linalg.norm(tensor.values), rel=1e-15) == store.stats["norm"]
    other = Tensor(tensor.shape, 500, seed=9)
    tree = blco.pack((other.coords, other.values), tmp_path / "o.blco", shape=other.shape, format="hocfs", main_mode=1)
    expected = (tensor.dense * other.dense).sum()
    assert expected != 0 and store.inner(tree) == tree.inner(store) == expected
    smaller = blco.pack(([[0, 0, 0]], [1.0]), tmp_path / "s.blco")
    with pytest.raises(ValueError, match="same dims"):
        store.inner(smaller)


@pytest.mark.parametrize("order", [3, 4])
def test_pyttb_has_the_same_products(order, tmp_path):
    pytest.importorskip("pyttb")
    tensor = Tensor(DIMS[:order], 300, seed=order)
    store = packed(tensor, tmp_path)
    theirs = store.to_coo().to_pyttb()
    rng = np.random.default_rng(4)
    matrix, vectors = rng.random((tensor.shape[1], 3)), [rng.random(dim) for dim in tensor.shape[:2]]

    def near(found, expected):
        assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()

    near(store.ttm(matrix, 1).to_dense(), np.asarray(theirs.ttm(matrix.T, 1).full().data))
    near(store.ttv(vectors, [0, 1]).to_dense(), np.asarray(theirs.ttv(vectors, np.array([0, 1])).full().data))
    near(store.norm(), theirs.norm())
    near(store.inner(store), theirs.innerprod(theirs))


def low_rank(tmp_path, rank=3, seed=5):
    """A tensor of exactly this rank, all of whose elements are there."""
    rng = np.random.default_rng(seed)
    model = blco.Model(None, [rng.uniform(0.1, 1, (dim, rank)) for dim in (12, 10, 8)])
    return blco.pack(model.full(), tmp_path / "low.blco"), model.full()


def test_cp(tmp_path):
    store, dense = low_rank(tmp_path)
    model = store.cp(3, tol=1e-9, max_iters=500, starts=2, seed=3)
    assert model.fit > 1 - 1e-3 and model.rank == 3 and model.shape == dense.shape
    residual = np.linalg.norm(model.full() - dense) / np.linalg.norm(dense)
    assert model.fit == pytest.approx(1 - residual, abs=1e-8)
    assert np.all(np.diff(model.weights) <= 0)
    assert all(np.allclose(np.linalg.norm(factor, axis=0), 1) for factor in model.factors)
    assert [start["seed"] for start in model.starts] == [3, 4]
    assert np.all(np.diff(model.fits) > -1e-9) and model.fits[-1] == model.fit
    again = store.cp(3, tol=1e-9, max_iters=500, starts=2, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(model.factors, again.factors))
    single = store.cp(3, dtype=np.float32, max_iters=20)
    assert single.factors[0].dtype == np.float32 and single.fit > 0.9
    assert all(np.all(factor >= 0) for factor in store.cp(3, nonneg=True).factors)


def test_cp_goes_on_from_a_model(tmp_path):
    store, _ = low_rank(tmp_path)
    begun = store.cp(3, tol=0, max_iters=5)
    on = store.cp(3, tol=0, max_iters=5, init=begun)
    straight = store.cp(3, tol=0, max_iters=10)
    assert on.fit == pytest.approx(straight.fit, abs=1e-8)
    assert on.fits[0] > begun.fit
    from_lists = store.cp(3, tol=0, max_iters=5, init=[factor.tolist() for factor in begun.factors])
    assert from_lists.fit == pytest.approx(on.fit, abs=1e-8)


def test_callbacks(tmp_path):
    store, _ = low_rank(tmp_path)
    seen = []
    model = store.cp(2, tol=0, max_iters=4, starts=2, callback=seen.append)
    assert [(it.start, it.iteration) for it in seen] == [(s, i) for s in (0, 1) for i in (1, 2, 3, 4)]
    best = [it.fit for it in seen if it.start == model.iterations[0].start]
    assert best == model.fits.tolist()
    stopped = store.cp(2, tol=0, max_iters=50, starts=9, callback=lambda it: it.iteration < 3)
    assert len(stopped.fits) == 3 and [start["stop"] for start in stopped.starts] == ["caller"]

    def fails(iteration):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        store.cp(2, callback=fails)
    assert store.cp(2, tol=0, max_iters=2).fit


def test_progress(tmp_path):
    tensor = Tensor((300, 300, 300), 200_000)
    seen = []
    engine = blco.Engine(threads=1)
    store = blco.pack((tensor.coords, tensor.values), tmp_path / "t.blco", engine=engine)
    # Until something was seen: every 50 ms, whatever the machine's speed.
    store.cp(16, tol=0, max_iters=5000, progress=lambda *at: seen.append(at), callback=lambda it: not seen)
    assert seen and all(what == "decomposing" and 0 <= done <= total for what, done, total in seen if what)

    def fails(*at):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        store.cp(16, tol=0, max_iters=500, progress=fails)


def test_a_bar(tmp_path, capsys):
    pytest.importorskip("tqdm")
    tensor = Tensor((300, 300, 300), 200_000)
    store, shown = packed(tensor, tmp_path), []

    def goes_on(iteration):
        shown.append(capsys.readouterr().err)
        return "decomposing" not in shown[-1]

    store.cp(16, tol=0, max_iters=5000, progress=True, callback=goes_on)
    assert "decomposing" in "".join(shown)


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0},
        {"rank": 2, "tol": -1},
        {"rank": 2, "ridge": float("nan")},
        {"rank": 2, "max_iters": 0},
        {"rank": 2, "starts": 0},
        {"rank": 2, "dtype": int},
        {"rank": 2, "init": [np.ones((2, 2))] * 3},
        {"rank": 2, "init": [np.ones((dim, 2)) for dim in (23, 17, 11)], "starts": 2},
        {"rank": 2, "init": [-np.ones((dim, 2)) for dim in (23, 17, 11)], "nonneg": True},
    ],
)
def test_decompositions_that_are_none(store, options):
    with pytest.raises(ValueError):
        store.cp(**options)


@pytest.mark.parametrize("order", [3, 4, 5])
def test_pyttb_agrees(order, tmp_path):
    pyttb = pytest.importorskip("pyttb")
    tensor = Tensor(DIMS[:order], 300, seed=order)
    store = packed(tensor, tmp_path)
    theirs = pyttb.sptensor(tensor.coords, tensor.values[:, None], tensor.shape)
    rng = np.random.default_rng(0)
    factors = [rng.random((dim, 3)) for dim in tensor.shape]
    for mode, sums in enumerate(store.mttkrp(factors)):
        expected = theirs.mttkrp(factors, mode)
        assert np.abs(sums - expected).max() <= 1e-12 * np.abs(expected).max()
    start = pyttb.ktensor([np.asfortranarray(f) for f in factors], np.ones(3))
    model = store.cp(3, init=factors, tol=0, max_iters=10)
    found, _, _ = pyttb.cp_als(theirs, 3, init=start, stoptol=0, maxiters=10, printitn=0)
    difference = np.linalg.norm(model.full() - found.full().data)
    assert difference <= 1e-10 * np.linalg.norm(model.full())
    # There and back.
    assert blco.pack(store.to_coo().to_pyttb(), tmp_path / "back.blco").stats["digest"] == store.stats["digest"]
    assert np.array_equal(blco.Model.from_pyttb(model.to_pyttb()).full(), model.full())
    assert np.linalg.norm(blco.Model.from_pyttb(found).full() - found.full().data) <= 1e-10 * np.linalg.norm(model.full())


@pytest.mark.parametrize("order", [3, 4, 5])
def test_tensorly_agrees(order, tmp_path):
    pytest.importorskip("tensorly")
    from tensorly.cp_tensor import CPTensor, cp_to_tensor, unfolding_dot_khatri_rao
    from tensorly.decomposition import parafac

    tensor = Tensor(DIMS[:order], 300, seed=order)
    store = packed(tensor, tmp_path)
    rng = np.random.default_rng(0)
    factors = [rng.random((dim, 3)) for dim in tensor.shape]
    for mode, sums in enumerate(store.mttkrp(factors)):
        expected = unfolding_dot_khatri_rao(tensor.dense, (None, factors), mode)
        assert np.abs(sums - expected).max() <= 1e-12 * np.abs(expected).max()
    model = store.cp(3, init=factors, tol=0, max_iters=10)
    start = CPTensor((np.ones(3), [factor.copy() for factor in factors]))
    found = parafac(tensor.dense, 3, init=start, n_iter_max=10, tol=0)
    difference = np.linalg.norm(model.full() - cp_to_tensor(found))
    assert difference <= 1e-10 * np.linalg.norm(model.full())
    # There and back.
    assert blco.pack(store.to_coo().to_dense(), tmp_path / "back.blco").stats["digest"] == store.stats["digest"]
    assert np.array_equal(blco.Model.from_tensorly(model.to_tensorly()).full(), model.full())
    assert np.linalg.norm(blco.Model.from_tensorly(found).full() - cp_to_tensor(found)) <= 1e-10 * np.linalg.norm(model.full())
