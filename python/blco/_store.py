"""Open stores."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from . import _blco
from ._coo import COO, Fibers
from ._dlpack import DeviceArray, is_on_gpu, on_gpu
from ._log import log
from ._native import Computes, named, native, whole
from ._progress import Progress, shown
from ._ranks import Ranks, together

if TYPE_CHECKING:
    from ._model import Iteration, Model

#: Calls that a prepared session is planned for, unless somebody says.
CALLS = 16


class Store:
    """An open store. :func:`blco.open` and :func:`blco.pack` make it; it pickles as its path.

    Every computation gives the interpreter's lock back and may be called from any thread; in the main thread Ctrl-C ends it within
    a second.

    Attributes
    ----------
    report : dict or None
        What packing reported, if this program has packed it.
    """

    def __init__(self, store: _blco.Store, ranks: Ranks | None = None) -> None:
        self._store, self._ranks = store, ranks
        self._path = os.fspath(store.path)
        self._shape, self._nnz = tuple(store.shape), store.nnz
        names = store.mode_names
        self._names = None if names is None else tuple(names)
        self._labels: dict[int, list[str] | None] = {}
        self._places: dict[int, dict[str, int]] = {}
        self.report: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        """The directory."""
        return self._path

    @property
    def shape(self) -> tuple[int, ...]:
        """Indices of each mode."""
        return self._shape

    @property
    def order(self) -> int:
        """Modes."""
        return len(self._shape)

    @property
    def mode_names(self) -> tuple[str, ...] | None:
        """What each mode is called; None if the store does not say."""
        return self._names

    @property
    def labels(self) -> tuple[list[str] | None, ...]:
        """The labels of each mode, in the order of its indices; None for a mode without labels. Read once, then kept."""
        return tuple(self._labels_of(mode) for mode in range(self.order))

    def _labels_of(self, mode: int) -> list[str] | None:
        if mode not in self._labels:
            self._labels[mode] = self._store.labels(mode)
        return self._labels[mode]

    def _place(self, mode: int, label: str) -> int:
        """The index of a label."""
        labels = self._labels_of(mode)
        if labels is None:
            raise IndexError(f"{label!r} in mode {mode}, which has no labels; give an integer or a slice")
        if mode not in self._places:
            self._places[mode] = {known: index for index, known in enumerate(labels)}
        try:
            return self._places[mode][label]
        except KeyError:
            raise KeyError(f"{label!r} is no label of mode {mode}") from None

    @property
    def nnz(self) -> int:
        """Nonzeros, explicit zeros included."""
        return self._nnz

    @property
    def stats(self) -> dict[str, Any]:
        """What the manifest says: digest, format, bytes, norm, range of the values, a bound on the longest row of each mode."""
        return _told(self._store.summary())

    def inspect(self, *, progress: Progress = None) -> dict[str, Any]:
        """What takes a pass over all nonzeros to count: rows that are used and the longest row of each mode, explicit zeros.

        Parameters
        ----------
        progress : bool or callable, optional
            See :func:`blco.pack`.
        """
        with shown(progress) as show:
            return _told(self._store.inspect(show))

    def verify(self, *, progress: Progress = None) -> None:
        """Checks every byte of the store.

        Raises
        ------
        CorruptStoreError
            With the first difference from what packing makes.
        """
        with shown(progress) as show:
            self._store.verify(show)

    def __repr__(self) -> str:
        return f"<blco.Store {self._path!r}: {' x '.join(map(str, self._shape))}, {self._nnz} nonzeros>"

    def __reduce__(self) -> Any:
        return open, (os.path.abspath(self._path),)

    @overload
    def batches(self, *, arrow: Literal[False] = False) -> Iterator[tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]]: ...
    @overload
    def batches(self, *, arrow: Literal[True]) -> ArrowBatches: ...
    def batches(self, *, arrow: bool = False) -> Any:
        """All nonzeros, in the store's order, in batches.

        Parameters
        ----------
        arrow : bool
            As Arrow record batches: an :class:`ArrowBatches`, which ``polars.DataFrame``, ``pyarrow.table``, DuckDB and whatever else
            reads an Arrow C stream takes as a table.

        Yields
        ------
        coords : ndarray of uint32, nonzeros x order
        values : ndarray of float64

        Notes
        -----
        Another thread reads ahead; a batch has some 65,000 nonzeros. An iterator that is not used up stops reading when it is
        dropped.
        """
        return ArrowBatches(self) if arrow else self._store.read()

    def to_coo(self) -> COO:
        """All nonzeros in memory."""
        return self._part([(0, dim) for dim in self._shape], list(range(self.order)))

    def __getitem__(self, key: Any) -> COO | float:
        """A part of the tensor, by indices, labels and slices, in memory. Chunks that hold nothing of it are not read.

        An index or a label takes its mode away; one for each mode gives a number. A slice of labels includes both ends.
        """
        ranges, kept = self._ranges(key)
        part = self._part(ranges, kept)
        return part if kept else float(part.values.sum())

    def _part(self, ranges: list[tuple[int, int]], kept: list[int]) -> COO:
        """What lies within ranges, by the modes that stay."""
        if any(start == stop for start, stop in ranges):
            # Nothing is there to be read.
            found: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        else:
            found = list(self._store.read(ranges))
        values = np.concatenate([values for _, values in found]) if found else np.zeros(0)
        coords = np.concatenate([coords for coords, _ in found]) if found else np.zeros((0, self.order), np.uint32)
        coords = coords[:, kept] - np.array([ranges[mode][0] for mode in kept], np.uint32)
        shape = tuple(ranges[mode][1] - ranges[mode][0] for mode in kept)
        return COO(np.ascontiguousarray(coords), values, shape)

    def _ranges(self, key: Any) -> tuple[list[tuple[int, int]], list[int]]:
        """Where each mode begins and ends, and the modes that stay."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if sum(part is Ellipsis for part in keys) > 1:
            raise IndexError("one ... at most")
        at = next((i for i, part in enumerate(keys) if part is Ellipsis), len(keys))
        missing = self.order - sum(part is not Ellipsis for part in keys)
        if missing < 0:
            raise IndexError(f"{len(keys)} indices of a tensor of order {self.order}")
        keys[at : at + 1] = [slice(None)] * missing
        ranges, kept = [], []
        for mode, (part, dim) in enumerate(zip(keys, self._shape)):
            if isinstance(part, str):
                part = self._place(mode, part)
            if isinstance(part, slice):
                first, last = part.start, part.stop
                if isinstance(first, str):
                    first = self._place(mode, first)
                if isinstance(last, str):
                    last = self._place(mode, last) + 1
                start, stop, step = slice(first, last, part.step).indices(dim)
                if step != 1:
                    raise IndexError(f"step {step} in mode {mode}: slices take every index")
                ranges.append((start, max(start, stop)))
                kept.append(mode)
                continue
            try:
                index = operator.index(part)
            except TypeError:
                what = repr(part) if isinstance(part, float) else type(part).__name__
                raise IndexError(f"{what} in mode {mode}: give an integer, a label or a slice") from None
            if not -dim <= index < dim:
                raise IndexError(f"index {index} of mode {mode}, which has {dim}")
            ranges.append((index % dim, index % dim + 1))
        return ranges, kept

    @together
    def mttkrp(
        self,
        factors: Sequence[Any] | Model,
        modes: int | str | Sequence[int | str] | None = None,
        *,
        out: Any = None,
        calls: int = CALLS,
        progress: Progress = None,
    ) -> Any:
        """Matricized tensor times Khatri-Rao product, of any set of modes from one pass.

        Row ``i`` of the result of a mode is the sum, over the nonzeros with index ``i`` in that mode, of their values times the product
        of the rows of the other modes' factors.

        Parameters
        ----------
        factors : sequence of array, shape[m] x rank each, or Model
            Not copied if they are C-contiguous and all float64 or all float32; otherwise float64 copies are taken. Do not change
            them meanwhile from another thread. Of a model its factors, without the weights. Arrays of PyTorch, CuPy and others in a
            GPU's memory are read there, through DLPack; all factors must then have one precision.
        modes : int, str or sequence of these, optional
            Which results, by number from 0 or by name; by default all.
        out : array in a GPU's memory, or list of these, optional
            Where results go, one for each of `modes`: shape[mode] x rank, C-contiguous, in the precision of the factors.
        calls : int
            How many calls for these modes and this rank are to come, about. The first one prepares for them: it keeps the store in
            memory if there is room, the GPU's included, maybe in another order. Give 1 if this is the only one.
        progress : bool or callable, optional
            See :func:`blco.pack`.

        Returns
        -------
        array or list of array
            For one mode its array, shape[mode] x rank; otherwise a list of arrays, in the order of `modes`. NumPy arrays own the
            engine's memory: nothing is copied in float64. If a factor is in a GPU's memory, results are new arrays of its library
            on that GPU, or `out`, and do not pass through the host.

        Notes
        -----
        Results have the same bits for any number of threads on the CPU. What was prepared is kept with the open store, for as many
        combinations of modes and ranks as the tensor has modes, and one more; :meth:`release` lets go of it.
        """
        given, wanted, one = _factors(factors), *self._wanted(modes)
        targets = None if out is None else [out] if one else list(out)
        there = next((factor for factor in given if is_on_gpu(factor)), None)
        if there is None and targets is None:
            arrays, single = _matrices(given)
            # Ranks prepare for one call.
            calls = 1 if self._ranks else whole("calls", calls, 1)
            with shown(progress) as show:
                results = self._store.mttkrp(arrays, wanted, single=single, calls=calls, progress=show)
            found = [sums for _, sums in results]
            return found[0] if one else found
        if self._ranks:
            raise ValueError("several ranks exchange host memory; give NumPy arrays")
        held = [on_gpu(f"factor {mode}", factor) if is_on_gpu(factor) else np.asarray(factor) for mode, factor in enumerate(given)]
        precisions = {np.dtype(factor.dtype) for factor in held}
        if len(precisions) != 1:
            raise TypeError(f"factors of {', '.join(sorted(map(str, precisions)))}; beside GPU arrays all have one precision")
        if targets is None:
            (model,) = [factor for factor in held if isinstance(factor, DeviceArray)][:1]
            targets = [model.empty(self._shape[mode], model.at[3]) for mode in wanted]
        to = [on_gpu("`out`", target) for target in targets]
        if any(np.dtype(target.dtype) not in precisions for target in to):
            raise TypeError(f"`out` has another precision than the factors, {precisions.pop()}")
        single = precisions == {np.dtype(np.float32)}
        mixed = [
            f.at if isinstance(f, DeviceArray) else np.ascontiguousarray(f, np.float32 if single else np.float64) for f in held
        ]
        with shown(progress) as show:
            self._store.mttkrp(mixed, wanted, single=single, calls=int(calls), out=[t.at for t in to], progress=show)
        return targets[0] if one else targets

    def _wanted(self, modes: int | str | Sequence[int | str] | None) -> tuple[list[int], bool]:
        """Numbers of modes, and whether it is one that was given as such."""
        one = isinstance(modes, (int, np.integer, str))
        given: Any = range(self.order) if modes is None else [modes] if one else modes
        if not isinstance(given, Iterable):
            raise TypeError(f"mode {modes!r}: give a number from 0, a name, or a sequence of these")
        return [self._mode(mode) for mode in given], one

    def _mode(self, mode: int | str) -> int:
        if isinstance(mode, str):
            if mode not in (self._names or ()):
                raise ValueError(f"mode {mode!r}: {named(self._names)}")
            return (self._names or ()).index(mode)
        index = operator.index(mode)
        if not -self.order <= index < self.order:
            raise ValueError(f"mode {mode} of a tensor of order {self.order}: modes are 0 to {self.order - 1}")
        return index % self.order

    def plans(self) -> list[dict[str, Any]]:
        """What each prepared session uses of the machine, and why."""
        plans: list[dict[str, Any]] = json.loads(self._store.plans())
        return plans

    def release(self) -> None:
        """Lets go of the sessions that :meth:`mttkrp` has prepared, and of their memory."""
        self._store.release()

    def ttv(self, vector: Any, mode: int | str | Sequence[int | str], *, progress: Progress = None) -> COO | float:
        """The tensor times a vector along a mode, or vectors along several modes: a sparse tensor of the other modes.

        Parameters
        ----------
        vector : array_like of shape[mode] numbers, or sequence of one for each of several modes
        mode : int, str or sequence of these
            By number, from 0, or by name.
        progress : bool or callable, optional
            See :func:`blco.pack`.

        Returns
        -------
        COO or float
            An element for every fiber that is not empty, all in memory. A number if vectors go along all modes.
        """
        modes, one = self._wanted(mode)
        given = [vector] if one else list(vector)
        if one and np.ndim(vector) != 1:
            raise TypeError(f"a vector along one mode has one axis, not {np.ndim(vector)}; name several modes for several vectors")
        if len(given) != len(modes):
            raise ValueError(f"{len(given)} vectors along {len(modes)} modes")
        arrays, single = _matrices(given)
        ascending = sorted(range(len(modes)), key=modes.__getitem__)
        along = [modes[i] for i in ascending]
        with shown(progress) as show:
            coords, values = self._store.ttv([arrays[i] for i in ascending], along, single=single, progress=show)
        if len(along) == self.order:
            return float(values[0])
        return COO(coords, values, tuple(dim for m, dim in enumerate(self._shape) if m not in along))

    def ttm(self, matrix: npt.ArrayLike, mode: int | str, *, progress: Progress = None) -> Fibers:
        """The tensor times a matrix along a mode (SpTTM): every fiber along it becomes a row of numbers.

        Parameters
        ----------
        matrix : array_like, shape[mode] x rank
            Not copied if it is C-contiguous and float64 or float32. (pyttb's ``ttm`` takes its transpose.)
        mode : int or str
            Its number, from 0, or its name.
        progress : bool or callable, optional
            See :func:`blco.pack`.

        Returns
        -------
        Fibers
            A row for every fiber that is not empty, in ascending order of the other modes, all in memory.

        Notes
        -----
        On a GPU with the same bits as on the CPU, unless coordinates repeat; in several passes if it does not hold all nonzeros.
        """
        number = self._mode(mode)
        (array,), single = _matrices([matrix])
        with shown(progress) as show:
            coords, values = self._store.ttm(array, number, single=single, progress=show)
        return Fibers(coords, values, self._shape[:number] + (values.shape[1],) + self._shape[number + 1 :], number)

    def ttmc(
        self,
        factors: Sequence[Any],
        modes: int | str | Sequence[int | str] | None = None,
        *,
        progress: Progress = None,
    ) -> Any:
        """The tensor times the factors of all modes but one (SpTTMc), of any set of modes from one pass: what Tucker decompositions take.

        Row ``i`` of the result of a mode is the sum, over the nonzeros with index ``i`` in that mode, of their values times the Kronecker
        product of the rows of the other modes' factors; the last mode's rank goes fastest.

        Parameters
        ----------
        factors : sequence of array, shape[m] x ranks[m] each
            Not copied if they are C-contiguous and all float64 or all float32.
        modes : int, str or sequence of these, optional
            Which results; by default all.
        progress : bool or callable, optional
            See :func:`blco.pack`.

        Returns
        -------
        ndarray or list of ndarray
            As of :meth:`mttkrp`: shape[mode] x the product of the other modes' ranks.
        """
        wanted, one = self._wanted(modes)
        arrays, single = _matrices(_factors(factors))
        with shown(progress) as show:
            results = self._store.ttmc(arrays, wanted, single=single, progress=show)
        found = [result for _, result in results]
        return found[0] if one else found

    def norm(self, *, progress: Progress = None) -> float:
        """The Frobenius norm, from one pass over the values. ``stats["norm"]`` is what packing has found, without a pass.

        Parameters
        ----------
        progress : bool or callable, optional
            See :func:`blco.pack`.
        """
        with shown(progress) as show:
            return self._store.norm(show)

    def inner(self, other: Store, *, progress: Progress = None) -> float:
        """The inner product with another store of the same shape, in any format.

        Parameters
        ----------
        other : Store
        progress : bool or callable, optional
            See :func:`blco.pack`.
        """
        with shown(progress) as show:
            if not isinstance(other, Store):
                raise TypeError(f"{type(other).__name__}: give a store of the same shape, as blco.open and blco.pack do")
            return self._store.inner(other._store, show)

    @together
    def cp(
        self,
        rank: int,
        *,
        nonneg: bool = False,
        init: Sequence[npt.ArrayLike] | Model | None = None,
        seed: int = 0,
        starts: int = 1,
        tol: float = 1e-5,
        max_iters: int = 50,
        ridge: float = 0.0,
        dtype: npt.DTypeLike = np.float64,
        callback: Callable[[Iteration], Any] | None = None,
        progress: Progress = None,
    ) -> Model:
        """Decomposes the tensor into `rank` components by alternating least squares (CP, PARAFAC).

        Parameters
        ----------
        rank : int
            Components.
        nonneg : bool
            Factors hold no negative numbers (HALS).
        init : sequence of array or Model, optional
            Factors to start from, shape[m] x rank each; by default random ones in [0, 1).
        seed : int
            Of the first start; the others have the next ones.
        starts : int
            Starts, of which the best fit is kept.
        tol : float
            Stop when the fit changes by less; 0 makes `max_iters` iterations.
        max_iters : int
            Iterations of each start, at most.
        ridge : float
            Added to the diagonal of the matrix that is inverted, in which the other modes' columns have length one.
        dtype : float64 or float32
            Precision of the factors.
        callback : callable, optional
            Gets an :class:`Iteration` after each one; ``False`` ends the decomposition with the best so far.
        progress : bool or callable, optional
            See :func:`blco.pack`.

        Returns
        -------
        Model

        Raises
        ------
        ValueError
            Also for a store in which coordinates may repeat, whose norm is not known.
        """
        from ._model import Iteration, Model

        single = np.dtype(dtype) == np.float32
        if not single and np.dtype(dtype) != np.float64:
            raise ValueError(f"`dtype` {np.dtype(dtype)}: give float64 or float32")
        given = None
        if init is not None:
            if starts != 1:
                raise ValueError("`starts` is for random factors; `init` gives them")
            given = [np.ascontiguousarray(factor, dtype) for factor in _arrays(_initial(init))]
        tell = None
        if callback is not None:

            def tell(start: int, said: str) -> Any:
                return callback(Iteration._of(start, json.loads(said)))

        # Before the work: what is damaged is found now.
        labels = self.labels
        with shown(progress) as show:
            found = self._store.cp(
                whole("rank", rank, 1),
                single=single,
                nonneg=nonneg,
                ridge=ridge,
                tol=tol,
                max_iters=whole("max_iters", max_iters, 1),
                seed=whole("seed", seed, 0),
                starts=whole("starts", starts, 1),
                init=given,
                callback=tell,
                progress=show,
            )
        iterations = [Iteration._of(found["best"], said) for said in json.loads(found["iterations"])]
        model = Model(
            found["weights"],
            found["factors"],
            iterations=iterations,
            starts=json.loads(found["starts"]),
            mode_names=self._names,
            labels=labels,
        )
        log.info("CP of rank %d: fit %.6f after %d iterations", rank, model.fit or 0.0, len(iterations))
        return model


class ArrowBatches:
    """The nonzeros of a store as a table, read while it is consumed. What ``store.batches(arrow=True)`` gives.

    A column for each mode, and one of values. Modes with labels are dictionary columns, whose dictionary holds all labels of the
    mode in the order of its indices; the others are columns of indices, from 0. Columns are called what the packed table's were, or
    ``"mode 0"``, ..., ``"value"``.

    Each consumer reads all of it again. What goes wrong meanwhile is an exception of the consumer's, with the engine's text.

    Examples
    --------
    >>> polars.DataFrame(store.batches(arrow=True))                     # doctest: +SKIP
    >>> for batch in pyarrow.RecordBatchReader.from_stream(store.batches(arrow=True)): ...  # doctest: +SKIP
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """An Arrow C stream, in a capsule."""
        return self.store._store.arrow_stream(requested_schema)

    def __repr__(self) -> str:
        return f"<blco.ArrowBatches of {self.store!r}>"


def open(path: str | os.PathLike[str], *, engine: Computes | None = None) -> Store:
    """Opens a store.

    Parameters
    ----------
    path : path
        The store's directory.
    engine : Engine, optional
        Where to compute; by default on whatever there is.

    Returns
    -------
    Store

    Raises
    ------
    FileNotFoundError
        If nothing is there.
    ValueError
        If something is there that is no store.
    CorruptStoreError
        If its manifest is damaged. Chunks are checked when they are read.
    """
    return Store(native(engine).open(os.fspath(path)), engine._ranks if engine else None)


def _matrices(given: Sequence[Any]) -> tuple[list[npt.NDArray[Any]], bool]:
    """Arrays as the extension takes them, C-contiguous and of one precision, and whether that is float32."""
    arrays = _arrays(given)
    single = bool(arrays) and all(array.dtype == np.float32 for array in arrays)
    dtype = np.float32 if single else np.float64
    return [np.ascontiguousarray(array, dtype) if array.ndim else array for array in arrays], single


def _factors(given: Any) -> list[Any]:
    """Factors in a sequence, or of a model."""
    held = getattr(given, "factors", given)
    if isinstance(held, str) or not isinstance(held, Iterable) or getattr(held, "ndim", 3) < 3:
        raise TypeError(
            f"{type(given).__name__} for factors: give a list of arrays, one of shape[m] x rank for each mode, or a model"
        )
    return list(held)


def _arrays(given: Iterable[Any]) -> list[npt.NDArray[Any]]:
    """Arrays of real numbers."""
    arrays = [np.asarray(array) for array in given]
    for array in arrays:
        if array.dtype.kind not in "biuf":
            raise TypeError(f"an array of {array.dtype}: give real numbers, as float64 or float32")
    return arrays


def _told(report: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(report)
    return told


def _initial(init: Any) -> Sequence[Any]:
    """Factors to start from; those of a model with its weights in the first."""
    if not hasattr(init, "factors"):
        return _factors(init)
    first, *others = init.factors
    return [first if init.weights is None else np.asarray(first) * init.weights, *others]
