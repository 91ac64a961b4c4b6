"""Protects models: what they hold, files, other packages' models, the estimator."""

import os
import pickle

import numpy as np
import pytest
from conftest import Tensor

import blco


@pytest.fixture
def model(store):
    return store.cp(4, max_iters=5, tol=0)


def test_what_a_model_says(model):
    assert "rank 4" in repr(model) and "23 x 17 x 11" in repr(model)
    weights, factors = model
    assert weights is model.weights and factors is model[1] and len(model) == 2
    page = model._repr_html_()
    assert page.count("<tr>") == 5 and "mode 2" in page and "nan" not in page
    for mode, factor in enumerate(model.factors):
        top = model.top(1, mode, 5)
        order = np.argsort(-np.abs(factor[:, 1]), kind="stable")[:5]
        assert top == [(int(i), float(factor[i, 1])) for i in order]
    assert len(model.top(0, 2, 1000)) == 11 and model.top(0, 0, 0) == []
    coords = np.argwhere(np.ones((23, 17, 11)))
    assert np.allclose(model.values_at(coords).reshape(23, 17, 11), model.full())


def test_equals_come_by_index():
    model = blco.Model(None, [np.ones((9, 1)), np.array([[1.0], [-2.0], [2.0]])])
    assert model.top(0, 0, 3) == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert model.top(0, 1, 2) == [(1, -2.0), (2, 2.0)]


def test_plots(model):
    pytest.importorskip("matplotlib")
    figure = model.plot()
    assert len(figure.axes) == 12
    assert len(model.plot([2]).axes) == 3
    figure.canvas.draw()


def test_files(model, tmp_path):
    (tmp_path / "models").mkdir()
    for name in ("a.npz", "b", "a.npz"):
        model.save(tmp_path / "models" / name)
    assert sorted(os.listdir(tmp_path / "models")) == ["a.npz", "b"]
    for name in ("a.npz", "b"):
        found = blco.load(tmp_path / "models" / name)
        assert np.array_equal(found.weights, model.weights) and found.iterations == model.iterations
        assert all(np.array_equal(a, b) for a, b in zip(found.factors, model.factors))
        assert found.starts == model.starts and found.fit == model.fit
    with pytest.raises(FileExistsError):
        model.save(tmp_path / "models" / "b")
    assert sorted(os.listdir(tmp_path / "models")) == ["a.npz", "b"]
    assert sorted(os.listdir(tmp_path / "models" / "b")) == ["lambda.npy", "mode-1.npy", "mode-2.npy", "mode-3.npy", "model.json"]
    with pytest.raises(FileNotFoundError):
        blco.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(ValueError, match="holds no model"):
        blco.load(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="holds no model"):
        blco.load(tmp_path)


def test_a_directory_of_the_program(model, tmp_path):
    for mode, factor in enumerate(model.factors):
        np.save(tmp_path / f"mode-{mode + 1}.npy", factor)
    assert np.array_equal(blco.load(tmp_path).weights, np.ones(4))
    np.save(tmp_path / "lambda.npy", model.weights)
    found = blco.load(tmp_path)
    assert np.array_equal(found.full(), model.full()) and found.fit is None


def test_models_that_are_none():
    for weights, factors in [
        (None, []),
        (None, [np.ones(3)]),
        (None, [np.ones((2, 2)), np.ones((2, 3))]),
        ([1], [np.ones((2, 2))]),
    ]:
        with pytest.raises(ValueError):
            blco.Model(weights, factors)


def test_pyttb_and_back(model):
    pytest.importorskip("pyttb")
    theirs = model.to_pyttb()
    assert np.abs(theirs.full().data - model.full()).max() <= 1e-10 * np.abs(model.full()).max()
    back = blco.Model.from_pyttb(theirs)
    assert np.array_equal(back.weights, model.weights)
    assert all(np.array_equal(a, b) for a, b in zip(back.factors, model.factors))


def test_tensorly_and_back(model):
    pytest.importorskip("tensorly")
    from tensorly.cp_tensor import cp_norm, cp_normalize, cp_to_tensor, cp_to_unfolded

    theirs = model.to_tensorly()
    back = blco.Model.from_tensorly(theirs)
    assert np.array_equal(back.weights, model.weights)
    assert all(np.array_equal(a, b) for a, b in zip(back.factors, model.factors))
    # Their functions take ours as it is.
    full = model.full()
    assert np.allclose(cp_to_tensor(model), full, rtol=0, atol=1e-10 * np.abs(full).max())
    assert cp_norm(model) == pytest.approx(np.linalg.norm(full), rel=1e-10)
    assert np.allclose(cp_to_unfolded(model, 1), np.moveaxis(full, 1, 0).reshape(17, -1))
    assert np.allclose(cp_to_tensor(cp_normalize(model)), full)


def test_the_estimator(tmp_path):
    rng = np.random.default_rng(2)
    truth = blco.Model(None, [rng.uniform(0.1, 1, (dim, 3)) for dim in (12, 10, 8)])
    store = blco.pack(truth.full(), tmp_path / "low.blco")
    estimator = blco.CP(3, tol=1e-12, max_iters=1000)
    with pytest.raises(ValueError, match="fit it first"):
        estimator.transform(store)
    scores = estimator.fit_transform(store)
    model = estimator.model_
    assert estimator.fit_ > 0.999 and estimator.n_iter_ == len(model.fits)
    again = np.einsum("ar,br,cr->abc", scores, *estimator.components_)
    assert np.linalg.norm(again - truth.full()) <= 1e-2 * np.linalg.norm(truth.full())
    # Other samples of the same components.
    other = blco.Model(None, [rng.uniform(0.1, 1, (5, 3)), *truth.factors[1:]])
    scores = estimator.transform(blco.pack(other.full(), tmp_path / "other.blco"))
    again = np.einsum("ar,br,cr->abc", scores, *estimator.components_)
    assert scores.shape == (5, 3) and np.linalg.norm(again - other.full()) <= 1e-2 * np.linalg.norm(other.full())
    with pytest.raises(ValueError, match="features"):
        estimator.transform(blco.pack(np.ones((3, 4, 5)), tmp_path / "no.blco"))
    assert "rank=3" in repr(estimator)


def test_an_estimator_without_negative_numbers(tmp_path):
    scipy = pytest.importorskip("scipy.optimize")
    tensor = Tensor((9, 8, 7), 200)
    store = blco.pack((tensor.coords, tensor.values), tmp_path / "t.blco", shape=tensor.shape)
    estimator = blco.CP(3, nonneg=True).fit(store)
    scores = estimator.transform(store)
    design = np.einsum("br,cr->bcr", *estimator.components_).reshape(-1, 3)
    expected = [scipy.nnls(design, row)[0] for row in tensor.dense.reshape(9, -1)]
    assert np.allclose(scores, expected, atol=1e-8 * np.max(expected))


def test_an_estimator_keeps_scikit_learns_rules(store, tensor):
    """What ``check_estimator`` checks of estimators, which it cannot check here: it feeds them matrices."""
    base = pytest.importorskip("sklearn.base")
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    estimator = blco.CP(5, nonneg=True, seed=7, max_iters=3)
    assert set(vars(estimator)) == set(estimator.get_params()), "the constructor sets its parameters, and nothing else"
    copy = base.clone(estimator)
    assert copy.get_params() == estimator.get_params() and copy is not estimator
    assert copy.set_params(rank=2) is copy and copy.rank == 2 and copy.set_params().rank == 2
    with pytest.raises(ValueError, match="no parameter"):
        copy.set_params(color="red")
    for unfitted in (check_is_fitted, lambda e: e.transform(store), lambda e: e.get_feature_names_out()):
        with pytest.raises(NotFittedError):
            unfitted(estimator)
    before = estimator.get_params()
    assert estimator.fit(store, y=None) is estimator and estimator.get_params() == before
    check_is_fitted(estimator)
    scores = estimator.transform(store)
    assert scores.shape == (23, 5) and list(estimator.get_feature_names_out()) == [f"cp{i}" for i in range(5)]
    # Again, fitted to something else before, copied by pickle, in one step: always the same.
    assert np.array_equal(estimator.fit(store).transform(store), scores)
    assert np.array_equal(pickle.loads(pickle.dumps(estimator)).transform(store), scores)
    assert np.array_equal(base.clone(estimator).fit_transform(store), scores)
    assert not hasattr(base.clone(estimator), "model_")
    for wrong in (tensor.dense, None):
        with pytest.raises(TypeError, match="give a store"):
            estimator.fit(wrong)


def test_an_estimator_in_a_pipeline(store):
    sklearn = pytest.importorskip("sklearn")
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import FeatureUnion, make_pipeline
    from sklearn.preprocessing import StandardScaler

    cp = blco.CP(4, max_iters=5)
    groups = make_pipeline(cp, StandardScaler(), KMeans(3, n_init=1, random_state=0)).fit_predict(store)
    assert groups.shape == (23,) and set(groups) == {0, 1, 2}
    y = np.arange(23) % 2
    classify = make_pipeline(FeatureUnion([("four", cp), ("two", blco.CP(2, nonneg=True))]), StandardScaler(), LogisticRegression())
    classify.fit(store, y)
    assert classify.predict(store).shape == (23,) and 0.5 <= classify.score(store, y) <= 1
    assert list(classify[:-1].get_feature_names_out())[:2] == ["four__cp0", "four__cp1"]
    again = sklearn.base.clone(classify).set_params(featureunion__four__rank=3).fit(store, y)
    assert again[-1].coef_.shape == (1, 5) and "CP" in repr(again) and "CP" in again._repr_html_()
