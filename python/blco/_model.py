"""CP models."""

from __future__ import annotations

import html
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ._native import named

#: What a directory holds of how a model was found.
_TOLD = "model.json"


@dataclass(frozen=True)
class Iteration:
    """An iteration of a decomposition.

    Attributes
    ----------
    start : int
        The start that it belongs to, from 0.
    iteration : int
        Its number, from 1.
    fit : float
        ``1 - norm(X - model) / norm(X)``.
    change : float
        How much the fit has changed.
    fit_floor : float
        What rounding leaves of the residual of a perfect model: smaller ones mean nothing.
    condition : float or None
        The largest condition number of a matrix that was inverted; None if it is infinite.
    pseudo_inverses : int
        Updates in which columns depended on each other.
    vanished : int
        Components whose weight is nothing beside the largest.
    seconds : float
    """

    start: int
    iteration: int
    fit: float
    change: float
    fit_floor: float
    condition: float | None
    pseudo_inverses: int
    vanished: int
    seconds: float

    @classmethod
    def _of(cls, start: int, said: dict[str, Any]) -> Iteration:
        return cls(start, *(said[field.name] for field in fields(cls)[1:]))


class Model:
    """A CP model: the sum over components of a weight times the outer product of a column of each factor.

    Unpacks as ``weights, factors``, as TensorLy's ``CPTensor`` does.

    Parameters
    ----------
    weights : array_like of rank numbers, optional
        By default 1.
    factors : sequence of array_like, shape[m] x rank each

    Attributes
    ----------
    weights : ndarray
        The largest first, of a model that :meth:`Store.cp` has found.
    factors : list of ndarray
        Their columns have length one, of such a model.
    iterations : list of Iteration
        Of the start that was best; empty for a model from elsewhere.
    starts : list of dict
        How each start went.
    mode_names : tuple of str or None
        What the store calls its modes.
    labels : tuple of list of str or None
        The labels of each mode's rows; None for a mode without labels.
    """

    def __init__(
        self,
        weights: npt.ArrayLike | None,
        factors: Sequence[npt.ArrayLike],
        *,
        iterations: Sequence[Iteration] = (),
        starts: Sequence[dict[str, Any]] = (),
        mode_names: Sequence[str] | None = None,
        labels: Sequence[Sequence[str] | None] | None = None,
    ) -> None:
        self.factors = [np.asarray(factor) for factor in factors]
        if not self.factors or any(f.ndim != 2 or f.shape[1] != self.factors[0].shape[1] for f in self.factors):
            raise ValueError(
                f"factors of {[factor.shape for factor in self.factors]}: give matrices with the same number of columns"
            )
        rank = self.factors[0].shape[1]
        self.weights = np.ones(rank) if weights is None else np.asarray(weights)
        if self.weights.shape != (rank,):
            raise ValueError(f"weights of {self.weights.shape} for rank {rank}")
        self.iterations = list(iterations)
        self.starts = list(starts)
        self.mode_names = None if mode_names is None else tuple(mode_names)
        order = len(self.factors)
        self.labels = tuple(None if known is None else list(known) for known in labels or [None] * order)
        if len(self.labels) != order or (self.mode_names is not None and len(self.mode_names) != order):
            raise ValueError(f"names or labels of other than {order} modes")
        if any(known is not None and len(known) != len(f) for known, f in zip(self.labels, self.factors)):
            raise ValueError("labels and rows of a factor differ in number")

    @property
    def rank(self) -> int:
        """Components."""
        return len(self.weights)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of each factor."""
        return tuple(len(factor) for factor in self.factors)

    @property
    def fits(self) -> npt.NDArray[np.float64]:
        """The fit after each iteration of the best start."""
        return np.array([iteration.fit for iteration in self.iterations])

    @property
    def fit(self) -> float | None:
        """The last fit; None for a model from elsewhere."""
        return self.iterations[-1].fit if self.iterations else None

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Any]:
        return iter((self.weights, self.factors))

    def __getitem__(self, index: int) -> Any:
        return (self.weights, self.factors)[index]

    def __repr__(self) -> str:
        fit = "" if self.fit is None else f", fit {self.fit:.6f}"
        return f"<blco.Model of rank {self.rank}: {' x '.join(map(str, self.shape))}{fit}>"

    def _mode(self, mode: int | str) -> int:
        if not isinstance(mode, str):
            if not -len(self.factors) <= mode < len(self.factors):
                raise IndexError(f"mode {mode} of a model of order {len(self.factors)}")
            return mode
        if mode not in (self.mode_names or ()):
            raise ValueError(f"mode {mode!r}: {named(self.mode_names)}")
        return (self.mode_names or ()).index(mode)

    def top(self, component: int, mode: int | str, n: int = 10) -> list[tuple[int | str, float]]:
        """The rows of largest magnitude in a component's column.

        Parameters
        ----------
        component : int
            From 0.
        mode : int or str
            Its number, from 0, or its name.
        n : int
            Rows at most.

        Returns
        -------
        list of (label, number)
            The largest first; among equals the smaller index. An index, from 0, for the label of a mode without labels.
        """
        mode = self._mode(mode)
        if not -self.rank <= component < self.rank:
            raise IndexError(f"component {component} of a model of rank {self.rank}")
        labels = self.labels[mode]
        column = self.factors[mode][:, component]
        n = min(n, len(column))
        largest = np.argpartition(-np.abs(column), n - 1)[:n] if n else np.array([], int)
        order = np.lexsort((largest, -np.abs(column[largest])))
        return [(int(i) if labels is None else labels[i], float(column[i])) for i in largest[order]]

    def _name(self, mode: int) -> str:
        return f"mode {mode}" if self.mode_names is None else self.mode_names[mode]

    def full(self) -> npt.NDArray[np.float64]:
        """The model as a dense array, for small tensors."""
        order = len(self.factors)
        letters = "abcdefghijklmnopqrstuvwxy"[:order]
        terms = ",".join(f"{letter}z" for letter in letters)
        full: npt.NDArray[np.float64] = np.einsum(f"z,{terms}->{letters}", self.weights, *self.factors, optimize=True)
        return full

    def values_at(self, coords: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """What the model says at coordinates, nonzeros x order."""
        rows = np.asarray(coords)
        if rows.ndim != 2 or rows.shape[1] != len(self.factors):
            raise ValueError(f"coordinates of {' x '.join(map(str, rows.shape))}: give nonzeros x {len(self.factors)}")
        product: npt.NDArray[np.float64] = np.broadcast_to(self.weights, (len(rows), self.rank)).copy()
        for mode, factor in enumerate(self.factors):
            product *= factor[rows[:, mode]]
        return np.asarray(product.sum(axis=1))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model, which appears whole or not at all. :func:`blco.load` reads it.

        Parameters
        ----------
        path : path
            A NumPy archive if it ends in ``.npz``, which replaces one that is there. Otherwise a new directory with the files of
            ``blco-cpd``, which takes it for ``--factors`` and ``--score``.

        Raises
        ------
        FileExistsError
            If the directory is there.
        """
        path = os.fspath(path)
        partial = f"{path}.{os.getpid()}.partial"
        if not os.path.isdir(parent := os.path.dirname(path) or "."):
            raise FileNotFoundError(f"{path}: there is no directory {parent}; make it")
        said = [vars(iteration) for iteration in self.iterations]
        told = json.dumps({"iterations": said, "starts": self.starts, "mode_names": self.mode_names, "labels": self.labels})
        if path.endswith(".npz"):
            arrays = {f"mode_{mode}": factor for mode, factor in enumerate(self.factors)}
            with open(partial, "xb") as file:
                try:
                    np.savez(file, weights=self.weights, report=np.array(told), **arrays)  # type: ignore[arg-type]
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(partial, path)
                except BaseException:
                    os.unlink(partial)
                    raise
            return
        if os.path.lexists(path):
            raise FileExistsError(f"{path}: is there already; remove it, or name another")
        os.mkdir(partial)
        try:
            for mode, factor in enumerate(self.factors):
                np.save(os.path.join(partial, f"mode-{mode + 1}.npy"), factor)
            np.save(os.path.join(partial, "lambda.npy"), np.asarray(self.weights, np.float64))
            with open(os.path.join(partial, _TOLD), "w") as file:
                file.write(told)
            os.rename(partial, path)
        except BaseException:
            shutil.rmtree(partial)
            raise

    @classmethod
    def from_pyttb(cls, tensor: Any) -> Model:
        """The model of a ``pyttb.ktensor``."""
        return cls(np.array(tensor.weights), [np.array(factor, order="C") for factor in tensor.factor_matrices])

    def to_pyttb(self) -> Any:
        """The same as a ``pyttb.ktensor``."""
        import pyttb

        factors = [np.asfortranarray(factor, np.float64) for factor in self.factors]
        return pyttb.ktensor(factors, np.array(self.weights, np.float64))

    @classmethod
    def from_tensorly(cls, tensor: Any) -> Model:
        """The model of a ``CPTensor`` of TensorLy."""
        weights, factors = tensor
        return cls(None if weights is None else np.array(weights), [np.array(factor) for factor in factors])

    def to_tensorly(self) -> Any:
        """The same as a ``CPTensor`` of TensorLy."""
        from tensorly.cp_tensor import CPTensor

        return CPTensor((np.array(self.weights), [np.array(factor) for factor in self.factors]))

    def plot(self, components: Sequence[int] | None = None) -> Any:
        """Draws each component's column of each mode; needs matplotlib.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from matplotlib.figure import Figure

        wanted = range(min(self.rank, 8)) if components is None else components
        figure = Figure(figsize=(3 * len(self.factors), 1.2 * len(wanted) + 0.5), layout="constrained")
        axes = figure.subplots(len(wanted), len(self.factors), squeeze=False, sharex="col")
        for row, component in zip(axes, wanted):
            for mode, (at, factor) in enumerate(zip(row, self.factors)):
                at.plot(factor[:, component], ".", markersize=2) if len(factor) > 64 else at.bar(
                    range(len(factor)), factor[:, component]
                )
                at.set_ylabel(f"{self.weights[component]:.4g}" if mode == 0 else "")
        for mode, at in enumerate(axes[-1]):
            at.set_xlabel(self._name(mode))
        return figure

    def _repr_html_(self) -> str:
        largest = max(float(np.max(np.abs(self.weights), initial=0.0)), np.finfo(float).tiny)
        head = "".join(f"<th>{html.escape(self._name(mode))}</th>" for mode in range(len(self.factors)))
        rows = []
        for component in range(min(self.rank, 20)):
            weight = float(self.weights[component])
            bar = f'<div style="background:#0b62c4;height:.7em;width:{100 * abs(weight) / largest:.0f}px"></div>'
            tops = (
                ", ".join(f"{html.escape(str(label))} ({number:.3g})" for label, number in self.top(component, mode, 3))
                for mode in range(len(self.factors))
            )
            cells = "".join(f"<td>{top}</td>" for top in tops)
            rows.append(f"<tr><td>{component}</td><td>{weight:.5g}</td><td>{bar}</td>{cells}</tr>")
        more = f"<p>and {self.rank - 20} components more</p>" if self.rank > 20 else ""
        return (
            f"<p>{html.escape(repr(self)[1:-1])}</p><table><thead><tr><th></th><th>weight</th><th></th>{head}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table>{more}"
        )


def load(path: str | os.PathLike[str]) -> Model:
    """Reads a model that :meth:`Model.save` has written, or a directory of results of ``blco-cpd``.

    Raises
    ------
    FileNotFoundError
        If nothing is there.
    ValueError
        If something else is there.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        return _of_directory(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: no such file; check the path")
    try:
        with np.load(path, allow_pickle=False) as archive:
            order = sum(name.startswith("mode_") for name in archive)
            factors = [archive[f"mode_{mode}"] for mode in range(order)]
            return Model(archive["weights"], factors, **_told(str(archive["report"])))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: holds no model; give what `Model.save` or `blco-cpd` has written") from error


def _of_directory(path: str) -> Model:
    factors: list[npt.NDArray[Any]] = []
    while os.path.exists(at := os.path.join(path, f"mode-{len(factors) + 1}.npy")):
        factors.append(np.load(at, allow_pickle=False))
    if len(factors) < 2:
        raise ValueError(f"{path}: holds no model: mode-1.npy and mode-2.npy are to be there")
    weights = os.path.join(path, "lambda.npy")
    found = np.load(weights, allow_pickle=False) if os.path.exists(weights) else None
    told: dict[str, Any] = {}
    if os.path.exists(at := os.path.join(path, _TOLD)):
        with open(at) as file:
            told = _told(file.read())
    return Model(found, factors, **told)


def _told(said: str) -> dict[str, Any]:
    told = json.loads(said)
    return {
        "iterations": [Iteration(**iteration) for iteration in told["iterations"]],
        "starts": told["starts"],
        "mode_names": told.get("mode_names"),
        "labels": told.get("labels"),
    }
