"""CP as scikit-learn has its decompositions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import numpy.typing as npt

from ._model import Model
from ._store import Store


class CP:
    """CP decomposition as an estimator of scikit-learn: mode 0 holds the samples, the other modes the features.

    Parameters
    ----------
    rank : int
        Components.
    nonneg, seed, starts, tol, max_iters, ridge
        As of :meth:`Store.cp`.

    Attributes
    ----------
    model_ : Model
        What was found.
    components_ : list of ndarray
        The factors of all modes but mode 0.
    weights_ : ndarray
    fit_ : float
    n_iter_ : int

    Notes
    -----
    Works as the first step of scikit-learn's pipelines, whose other steps get a row of numbers for each sample. What takes rows of a
    matrix apart, such as cross-validation, cannot do so with a store.
    """

    def __init__(
        self,
        rank: int = 16,
        *,
        nonneg: bool = False,
        seed: int = 0,
        starts: int = 1,
        tol: float = 1e-5,
        max_iters: int = 50,
        ridge: float = 0.0,
    ) -> None:
        self.rank = rank
        self.nonneg = nonneg
        self.seed = seed
        self.starts = starts
        self.tol = tol
        self.max_iters = max_iters
        self.ridge = ridge

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> CP:
        """Changes parameters."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"no parameter {name!r}; there are {', '.join(known)}")
            setattr(self, name, value)
        return self

    def fit(self, X: Store, y: Any = None) -> CP:
        """Decomposes a store."""
        options = self.get_params()
        self.model_: Model = _store(X).cp(options.pop("rank"), **options)
        self.components_ = self.model_.factors[1:]
        self.weights_ = self.model_.weights
        self.fit_ = self.model_.fit
        self.n_iter_ = len(self.model_.iterations)
        return self

    def transform(self, X: Store) -> npt.NDArray[np.float64]:
        """What each sample of a store, which may have other samples, has of each component: the least squares for mode 0.

        Returns
        -------
        ndarray, samples x rank
            Weights included; without negative numbers if the model has none.
        """
        self._check_is_fitted()
        features = tuple(len(factor) for factor in self.components_)
        if _store(X).shape[1:] != features:
            raise ValueError(f"{X!r} has features {X.shape[1:]}, the model has {features}")
        # The factor of mode 0 has no part in its own result.
        dtype = np.result_type(*self.components_)
        unused = np.zeros((X.shape[0], self.rank), dtype)
        sums = X.mttkrp([unused, *self.components_], 0, calls=1).astype(np.float64)
        gram = np.ones((self.rank, self.rank))
        for factor in self.components_:
            wide = factor.astype(np.float64, copy=False)
            gram *= wide.T @ wide
        scores = sums @ np.linalg.pinv(gram, hermitian=True)
        return _non_negative(scores, sums, gram) if self.nonneg else scores

    def fit_transform(self, X: Store, y: Any = None) -> npt.NDArray[np.float64]:
        """Decomposes a store, and its samples."""
        return self.fit(X).transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """What the columns that :meth:`transform` gives are called: ``cp0``, ``cp1``, ..."""
        self._check_is_fitted()
        return np.array([f"cp{component}" for component in range(len(self.weights_))], object)

    def _check_is_fitted(self) -> None:
        if self.__sklearn_is_fitted__():
            return
        try:
            from sklearn.exceptions import NotFittedError
        except ImportError:
            NotFittedError = ValueError
        raise NotFittedError("fit it first")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        takes, gives = InputTags(two_d_array=False, sparse=True), TransformerTags()
        return Tags(None, TargetTags(required=False), transformer_tags=gives, no_validation=True, input_tags=takes)

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"CP({params})"


def _store(X: Any) -> Store:
    if not isinstance(X, Store):
        raise TypeError(f"{type(X).__name__}: give a store, as blco.open and blco.pack do")
    return X


def _non_negative(
    scores: npt.NDArray[np.float64], sums: npt.NDArray[np.float64], gram: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Least squares without negative numbers, column by column (HALS), from the least squares with them."""
    scores = np.maximum(scores, 0.0)
    diagonal = np.maximum(np.diag(gram), np.finfo(float).tiny)
    for _ in range(500):
        before = scores.copy()
        for r in range(scores.shape[1]):
            scores[:, r] = np.maximum(scores[:, r] + (sums[:, r] - scores @ gram[:, r]) / diagonal[r], 0.0)
        if np.abs(scores - before).max(initial=0.0) <= 1e-12 * np.abs(scores).max(initial=0.0):
            break
    return scores
