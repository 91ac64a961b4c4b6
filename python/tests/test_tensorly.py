"""Protects models and decompositions beside TensorLy: its own tests of CP pass with ours in the place of its objects."""

import functools
import importlib

import numpy as np
import pytest

import blco

pytest.importorskip("tensorly")

#: Tests of TensorLy's that need what only its class has; python/README.md says why.
NO_COUNTERPART = {
    "test_cptensor_normalize_inplace": "CPTensor.normalize",
    "test_cp_copy": "CPTensor.cp_copy",
    "test_cp_permute_factors": "CPTensor.cp_copy",
    "testvalidate_cp_rank": "no CP tensor in it",
}


def their_tests(name):
    """A module of TensorLy's tests and the names of its tests; none where the package comes without them."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None, []
    return module, [test for test in vars(module) if test.startswith("test")]


TENSORS, OF_TENSORS = their_tests("tensorly.tests.test_cp_tensor")
DECOMPOSITIONS, _ = their_tests("tensorly.decomposition.tests.test_cp")


def as_model(tensor):
    return blco.Model.from_tensorly(tensor)


@pytest.mark.parametrize("name", [name for name in OF_TENSORS if name not in NO_COUNTERPART])
def test_functions_of_cp_tensors_take_models(name, monkeypatch):
    made = []
    random_cp = TENSORS.random_cp

    def random_model(*arguments, full=False, **options):
        found = random_cp(*arguments, full=full, **options)
        return found if full else made.append(as_model(found)) or made[-1]

    monkeypatch.setattr(TENSORS, "random_cp", random_model)
    monkeypatch.setattr(TENSORS, "CPTensor", lambda tensor: made.append(as_model(tensor)) or made[-1])
    np.random.seed(0)
    getattr(TENSORS, name)()
    assert made or name in {"test_cp_to_tensor", "test_cp_to_tensor_with_weights"}


def test_the_table_of_no_counterparts_is_true():
    assert not OF_TENSORS or set(NO_COUNTERPART) <= set(OF_TENSORS)
    model = as_model(importlib.import_module("tensorly.random").random_cp((3, 4, 5), 2))
    assert not hasattr(model, "normalize") and not hasattr(model, "cp_copy")


#: Arguments of TensorLy's functions that :meth:`blco.Store.cp` has under some name.
KNOWN = {"n_iter_max", "init", "tol", "random_state", "normalize_factors", "callback", "return_errors"}


def decomposed(name, monkeypatch, directory, **ours):
    """Puts a stand-in for a function of TensorLy's: on a store what blco has, by the function itself what it has not. Counts the former."""
    if DECOMPOSITIONS is None:
        pytest.skip("TensorLy comes without its tests")
    theirs = getattr(DECOMPOSITIONS, name)
    calls = []

    @functools.wraps(theirs)
    def function(tensor, rank, **options):
        init, rest = options.get("init", "random"), {k for k, v in options.items() if v is not False} - KNOWN
        if rest or isinstance(init, str) and init == "svd":
            given = init.to_tensorly() if isinstance(init, blco.Model) else init
            return theirs(tensor, rank, **options | {"init": given})
        errors = []

        def follow(iteration):
            errors.append(1 - iteration.fit)
            if options.get("callback"):
                options["callback"](None, errors[-1])

        store = blco.pack(np.asarray(tensor), directory / f"{len(calls)}.blco", shape=tensor.shape)
        state = options.get("random_state")
        model = store.cp(
            rank,
            init=None if isinstance(init, str) else init,
            seed=state.randint(2**31) if hasattr(state, "randint") else state or 0,
            tol=options.get("tol", 1e-8),
            max_iters=options.get("n_iter_max", 100),
            callback=follow,
            **ours,
        )
        calls.append(model)
        return (model, errors) if options.get("return_errors") else model

    monkeypatch.setattr(DECOMPOSITIONS, name, function)
    # Of TensorLy's classes around its functions.
    monkeypatch.setattr(DECOMPOSITIONS, "assert_class_wrapper_correctly_passes_arguments", lambda *_, **__: None)
    return calls


@pytest.mark.parametrize("true_rank, rank", [(1, 1), (3, 4)])
@pytest.mark.parametrize("seed", [1, 1234])
def test_parafac(true_rank, rank, seed, monkeypatch, tmp_path):
    ours = decomposed("parafac", monkeypatch, tmp_path)
    DECOMPOSITIONS.test_parafac(False, False, true_rank, rank, "random", False, seed, False, monkeypatch)
    assert len(ours) == 2


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_non_negative_parafac(rank, seed, monkeypatch, tmp_path):
    ours = decomposed("non_negative_parafac_hals", monkeypatch, tmp_path, nonneg=True)
    DECOMPOSITIONS.test_non_negative_parafac(monkeypatch, rank, rank, "random", False, seed, True)
    assert len(ours) == 1


def test_an_init_is_not_modified(monkeypatch, tmp_path):
    ours = decomposed("parafac", monkeypatch, tmp_path)
    DECOMPOSITIONS.test_parafac_does_not_modify_init()
    assert len(ours) == 1
