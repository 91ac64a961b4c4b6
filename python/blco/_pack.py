"""Packing: tensors from anywhere into stores."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import _blco, _sources
from ._log import log
from ._native import Computes, native, size
from ._progress import Progress, shown
from ._store import Store
from ._store import open as open_store

#: The least that packing takes, in bytes.
MEMORY_MIN = 64 << 20


#: Of every pack, as the extension takes them.
_OPTIONS = (
    *("format", "encoding", "main_mode", "slices", "trees", "fiber_split", "assign", "operation"),
    *("zstd", "chunk_bytes", "duplicates", "memory", "temp_dir", "replace", "resume"),
)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a pack among the arguments of a function."""
    options = {name: given[name] for name in _OPTIONS if given.get(name) is not None}
    for name in {"memory", "chunk_bytes"} & options.keys():
        options[name] = size(name, options[name])
    if options.get("memory", MEMORY_MIN) < MEMORY_MIN:
        raise ValueError(f"`memory` {given['memory']!r}: packing takes at least 64 MiB")
    return options


def _packed(report: str, engine: Computes | None) -> Store:
    told = json.loads(report)
    log.info("packed %d nonzeros into %s in %.3f s", told["nnz"], told["store"], told["seconds"]["total"])
    store = open_store(told["store"], engine=engine)
    store.report = told
    return store


def pack(
    source: Any,
    store: str | os.PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    modes: Sequence[str | tuple[str, str]] | None = None,
    value: str | None = None,
    nulls: str = "error",
    timezone: str | None = None,
    labels_from: str | os.PathLike[str] | None = None,
    index_base: int | None = None,
    format: str = "blco",
    encoding: str | None = None,
    main_mode: int | None = None,
    slices: str | None = None,
    trees: str | int | None = None,
    fiber_split: int | None = None,
    assign: str | None = None,
    operation: str | None = None,
    zstd: int | None = None,
    chunk_bytes: int | str | None = None,
    duplicates: str = "sum",
    memory: int | str | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    replace: bool = False,
    resume: bool = False,
    progress: Progress = None,
    engine: Computes | None = None,
) -> Store:
    """Packs a tensor into a new store, within a bound on the memory.

    Parameters
    ----------
    source
        One of

        * the path of coordinate text (FROSTT; plain, gzip or zstd),
        * ``(coords, values)``: indices as an array of nonzeros x modes, or as a tuple of one array for each mode; ``None`` for values
          of 1,
        * a matrix of ``scipy.sparse``, a tensor of PyData's ``sparse``, ``pyttb.sptensor``, :class:`COO`, a dense array, another
          :class:`Store`,
        * a table with `modes` and `value`: pandas (which takes pyarrow for it), Polars, pyarrow, anything else with an Arrow C
          stream, or the path of a file (CSV, TSV, JSON Lines, Parquet, Arrow),
        * an iterator of batches ``(coords, values)``: the tensor may be larger than memory.
    store : path
        The directory to be made.
    shape : sequence of int, optional
        Indices of each mode; by default the largest that are met, plus one. Batches pack faster with it.
    modes : sequence of str or of pairs, optional
        Of a table, its columns that become modes: each label becomes an index, in natural order, and stays in the store. A pair such
        as ``("time", "month")`` puts a column into bins: ``year``, ``month``, ``week``, ``day``, ``hour``, ``minute``,
        ``hour-of-day``, ``day-of-week``, ``month-of-year``, ``bins=N``, ``quantiles=N``, ``log2``. With `shape` or `index_base`
        columns hold indices instead, and there are no labels.
    value : str, optional
        Of a table, its column of values; without it all are 1.
    nulls : {"error", "drop"}
        Of a table: rows without a label or value are an error that counts them, or are left out.
    timezone : str, optional
        Of a table: the time zone whose clock bins of time follow; by default UTC.
    labels_from : path, optional
        Of a table: number labels as this store does; new ones follow.
    index_base : {0, 1}, optional
        What indices count from; by default 1 in text and 0 elsewhere.
    format : {"blco", "hocfs", "csf", "bcsf", "hbcsf", "mmcsf", "fcoo"}
        How the store holds nonzeros; docs/formats.md says when which wins.
    encoding : {"tiled", "raw"}, optional
        Of "blco".
    main_mode : int, optional
        Of "hocfs", whose slices it holds; by default 0.
    slices : {"auto", "csr", "ell"}, optional
        Of "hocfs", how leaves are laid out.
    trees : {"all", "one"} or int, optional
        Of "csf", "bcsf", "hbcsf" and "fcoo": a tree (or partition) for each mode, one for all modes, or one rooted at this mode. With
        "all", every mode is fastest, and the store holds the tensor once per mode.
    fiber_split : int, optional
        Of "bcsf" and "hbcsf": split fibers after this many nonzeros; by default 128.
    assign : {"dynamic", "static"}, optional
        Of "mmcsf": assign nonzeros by the fibers that are left, one nonzero after the other, which takes memory for all
        fibers, or by those of the whole tensor, which takes no more than other formats.
    operation : {"mttkrp", "ttm"}, optional
        Of "fcoo", what it serves.
    zstd : int, optional
        Compress chunks by zstd at this level, 1 to 22.
    chunk_bytes : int or str, optional
        Bound on a chunk; by default 8 MiB.
    duplicates : {"sum", "mean", "min", "max", "count", "keep", "error"}
        What to do with nonzeros that have the same coordinates.
    memory : int or str, optional
        Bytes of memory to take, at least 64 MiB; by default half of what is available. What exceeds it goes to temporary files.
    temp_dir : path, optional
        Where these go; by default beside the store.
    replace : bool
        Replace a store that is there.
    resume : bool
        Of text, continue what a killed pack has left.
    progress : bool or callable, optional
        ``True`` for a bar of tqdm, or a function of what is being done, nonzeros done, and of how many (or None).
    engine : Engine, optional
        Whose threads and memory to take.

    Returns
    -------
    Store
        The new store, open. ``store.report`` says what was packed.

    Raises
    ------
    ValueError
        For what is no tensor, for options that no store can have, and if something has the store's name.
    OSError
        If files cannot be read or written. Nothing is left then.

    Notes
    -----
    A store's bytes depend on the tensor and the options alone, not on where it came from.
    """
    options = _options(locals())
    target = os.fspath(store)
    if index_base not in (None, 0, 1):
        raise ValueError(f"`index_base` {index_base}: give 0 or 1")
    indexed = shape is not None or index_base is not None
    found = _sources.read(source, modes, value, indexed)
    if not isinstance(found, _sources.Table) and (nulls != "error" or timezone is not None or labels_from is not None):
        raise ValueError("`nulls`, `timezone` and `labels_from` are for tables with labels")
    if resume and not isinstance(found, _sources.Text):
        raise ValueError("`resume` is for text, which can be read again")
    if isinstance(found, _sources.Table):
        if indexed:
            raise ValueError("`shape` and `index_base` are for indices, and a file of a table has labels")
        assert modes is not None
        with shown(progress) as show:
            report = native(engine).pack_table(
                found.source,
                found.name,
                target,
                options,
                modes=_sources.mode_list(modes),
                value=value,
                nulls=nulls,
                timezone=timezone,
                labels_from=labels_from,
                progress=show,
            )
        return _packed(report, engine)
    declared = None if shape is None else [int(dim) for dim in shape]
    if isinstance(found, _sources.Text):
        base = 1 if index_base is None else index_base
        with shown(progress) as show:
            report = native(engine).pack_text(found.path, target, options, shape=declared, index_base=base, progress=show)
        return _packed(report, engine)
    if declared is None and found.shape is not None:
        declared = [int(dim) for dim in found.shape]
    base = index_base or 0
    if isinstance(found, _sources.Arrays):
        with shown(progress) as show:
            report = native(engine).pack_arrays(
                found.columns,
                found.values,
                target,
                options,
                name=found.name,
                shape=declared,
                index_base=base,
                progress=show,
            )
        return _packed(report, engine)
    with Packer._with(engine, target, options, declared, base, found.name, progress) as packer:
        for columns, values in found.batches:
            packer._append(columns, values)
    assert packer.store is not None
    return packer.store


class Packer:
    """Writes a store batch by batch, within a bound on the memory: a tensor that memory could not hold.

    A context manager: the store appears, whole, at the end of the block, and not at all if the block raises.

    Parameters
    ----------
    store : path
        The directory to be made.
    shape : sequence of int, optional
        Indices of each mode. Without it nonzeros wait, on disk if need be, until the last one has come.
    index_base, format, encoding, main_mode, slices, trees, fiber_split, assign, operation
        As of :func:`pack`.
    zstd, chunk_bytes, duplicates, memory, temp_dir, replace, progress, engine
        As of :func:`pack`.

    Attributes
    ----------
    store : Store or None
        The store, once the block has ended.

    Examples
    --------
    >>> with blco.Packer("log.blco", shape=(24, 1000, 1000)) as packer:  # doctest: +SKIP
    ...     for coords, values in read_my_log():
    ...         packer.append(coords, values)
    >>> packer.store.nnz                                                 # doctest: +SKIP
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        shape: Sequence[int] | None = None,
        index_base: int = 0,
        format: str = "blco",
        encoding: str | None = None,
        main_mode: int | None = None,
        slices: str | None = None,
        trees: str | int | None = None,
        fiber_split: int | None = None,
        assign: str | None = None,
        operation: str | None = None,
        zstd: int | None = None,
        chunk_bytes: int | str | None = None,
        duplicates: str = "sum",
        memory: int | str | None = None,
        temp_dir: str | os.PathLike[str] | None = None,
        replace: bool = False,
        progress: Progress = None,
        engine: Computes | None = None,
    ) -> None:
        options = _options(locals())
        declared = None if shape is None else [int(dim) for dim in shape]
        self._begin(engine, os.fspath(store), options, declared, index_base, "appended", progress)

    @classmethod
    def _with(cls, *arguments: Any) -> Packer:
        packer = cls.__new__(cls)
        packer._begin(*arguments)
        return packer

    def _begin(
        self,
        engine: Computes | None,
        target: str,
        options: dict[str, Any],
        shape: list[int] | None,
        index_base: int,
        name: str,
        progress: Progress,
    ) -> None:
        self.store: Store | None = None
        self._engine = engine
        self._name = name
        self._progress = progress
        self._packer: _blco.Packer = native(engine).packer(target, options, name=name, shape=shape, index_base=index_base)

    @property
    def nnz(self) -> int:
        """Nonzeros appended so far, duplicates counted each time."""
        return self._packer.nnz

    def append(self, coords: Any, values: Any = None) -> None:
        """Appends nonzeros.

        Parameters
        ----------
        coords : array_like of int, nonzeros x modes, or tuple of one array for each mode
        values : array_like, optional
            One for each nonzero; by default 1.
        """
        self._append(*_sources.nonzeros(self._name, coords, values))

    def _append(self, columns: Any, values: Any) -> None:
        self._packer.append(columns, values, self._name)

    def close(self) -> Store:
        """Packs the rest and gives the store its name."""
        if self.store is None:
            with shown(self._progress) as show:
                self.store = _packed(self._packer.finish(show), self._engine)
        return self.store

    def abort(self) -> None:
        """Leaves nothing."""
        self._packer.abort()

    def __enter__(self) -> Packer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
