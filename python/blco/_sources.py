"""Tensors in other packages' clothes: what :func:`blco.pack` takes, as columns of indices and values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Columns = list[npt.NDArray[Any]]

#: How names of tables end.
_TABLES = tuple(
    end + packed
    for end in (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq", ".arrow", ".arrows", ".feather")
    for packed in ("", ".gz", ".zst")
)


@dataclass
class Text:
    """A file of coordinate text."""

    path: str


@dataclass
class Table:
    """Columns of labels: the path of a file, or what has an Arrow C stream."""

    source: Any
    name: str


@dataclass
class Arrays:
    """A tensor in memory."""

    name: str
    columns: Columns
    values: npt.NDArray[Any]
    shape: tuple[int, ...] | None = None


@dataclass
class Stream:
    """Batches, each of columns and values."""

    name: str
    batches: Iterator[tuple[Columns, npt.NDArray[Any]]]
    shape: tuple[int, ...] | None = None


def indices(name: str, array: Any) -> npt.NDArray[Any]:
    """An array of one axis and integers, as the extension takes it."""
    column = np.asarray(array)
    if column.ndim != 1:
        raise ValueError(f"{name}: {column.ndim} axes; the indices of a mode have one")
    if column.dtype.kind not in "iu":
        if column.size == 0:
            return column.astype(np.int64)
        what = "labels are of tables with an Arrow C stream, such as a DataFrame" if column.dtype.kind in "OSUT" else "convert them"
        raise TypeError(f"{name}: {column.dtype} indices; they are integers: {what}")
    native = column.dtype.newbyteorder("=")
    return column if column.dtype == native and column.flags.aligned else column.astype(native)


def numbers(name: str, values: Any, nnz: int) -> npt.NDArray[Any]:
    """Values as the extension takes them; ones for None."""
    if values is None:
        return np.broadcast_to(np.float64(1), (nnz,))
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name}: {array.ndim} axes; values have one")
    if array.dtype.kind == "u" and array.itemsize == 8:
        if array.size and array.max() > 2**53:
            raise ValueError(f"{name}: values above 2**53 have no float64; give floats")
        array = array.astype(np.float64)
    kinds = {"b": np.float64, "f": np.float32 if array.itemsize <= 4 else np.float64, "u": np.int64, "i": np.int64}
    if array.dtype.kind not in kinds:
        raise TypeError(f"{name}: {array.dtype} values; they are real numbers")
    native = array.dtype.newbyteorder("=") in (np.float64, np.float32, np.int64, np.int32)
    wanted = array.dtype.newbyteorder("=") if native else np.dtype(kinds[array.dtype.kind])
    return array if array.dtype == wanted and array.flags.aligned else array.astype(wanted)


def columns_of(name: str, coords: Any) -> Columns:
    """The columns of coordinates: a tuple has one array for each mode, anything else is nonzeros x modes."""
    if isinstance(coords, tuple):
        return [indices(f"{name}: mode {mode}", column) for mode, column in enumerate(coords)]
    rows = np.asarray(coords)
    if rows.ndim != 2:
        raise ValueError(f"{name}: coordinates have {rows.ndim} axes; give nonzeros x modes, or a tuple of one array for each mode")
    return [indices(name, rows[:, mode]) for mode in range(rows.shape[1])]


def nonzeros(name: str, coords: Any, values: Any) -> tuple[Columns, npt.NDArray[Any]]:
    """Columns and values that belong together."""
    columns = columns_of(name, coords)
    nnz = len(columns[0]) if columns else 0
    found = numbers(name, values, nnz)
    if len(found) != nnz:
        turned = not isinstance(coords, tuple) and len(found) == len(columns)
        hint = "; coordinates are nonzeros x modes: transpose them" if turned else ""
        raise ValueError(f"{name}: coordinates of {nnz} nonzeros and {len(found)} values{hint}")
    return columns, found


def _column(table: Any, name: Any) -> npt.NDArray[Any]:
    try:
        column = table[name]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"the table has no column {name!r}") from error
    return column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)


def _record_batches(table: Any, modes: Sequence[Any], value: Any) -> Iterator[tuple[Columns, npt.NDArray[Any]]]:
    try:
        import pyarrow
    except ImportError as error:
        raise TypeError("an Arrow stream is read by pyarrow, which is not installed") from error
    reader = pyarrow.RecordBatchReader.from_stream(table)
    for batch in reader:
        columns = []
        for name in modes:
            column = batch.column(name)
            if column.null_count:
                raise ValueError(f"column {name!r} has nulls; indices must be there")
            columns.append(indices(f"column {name!r}", column.to_numpy(zero_copy_only=False)))
        values = None if value is None else batch.column(value).to_numpy(zero_copy_only=False)
        yield columns, numbers(f"column {value!r}", values, batch.num_rows)


def _of_table(table: Any, modes: Sequence[Any] | None, value: Any) -> Arrays | Stream:
    if modes is None:
        raise ValueError("a table takes `modes`, the names of its columns of indices, and `value`, that of its values")
    if not all(isinstance(mode, (str, int)) for mode in modes):
        raise ValueError(f"`modes` {list(modes)!r}: bins are for tables with labels; give names of columns of integers")
    if not hasattr(table, "__getitem__"):
        return Stream("the table", _record_batches(table, modes, value))
    columns = [indices(f"column {name!r}", _column(table, name)) for name in modes]
    values = None if value is None else _column(table, value)
    return Arrays("the table", columns, numbers(f"column {value!r}", values, len(columns[0])))


def _of_batches(batches: Iterable[Any]) -> Iterator[tuple[Columns, npt.NDArray[Any]]]:
    for number, batch in enumerate(batches):
        try:
            coords, values = batch
        except (TypeError, ValueError) as error:
            raise TypeError(f"batch {number} is no pair of coordinates and values") from error
        yield nonzeros(f"batch {number}", coords, values)


def mode_list(modes: Sequence[Any]) -> str:
    """Modes as ``blco-pack --modes`` takes them."""

    def escaped(name: Any) -> str:
        if not isinstance(name, str):
            raise ValueError(
                f'`modes` {list(modes)!r}: give names of columns, or pairs of a name and bins, such as ("time", "month")'
            )
        return name.replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")

    def one(mode: Any) -> str:
        if isinstance(mode, tuple) and len(mode) == 2 and isinstance(mode[1], str):
            return f"{escaped(mode[0])}:{mode[1]}"
        return escaped(mode)

    return ",".join(one(mode) for mode in modes)


def read(source: Any, modes: Sequence[Any] | None, value: Any, indexed: bool) -> Text | Table | Arrays | Stream:
    """What `source` is. `indexed`: columns of a table hold indices, not labels."""
    from ._coo import COO

    if isinstance(modes, str):
        raise TypeError(f"`modes` {modes!r}: give a list of names of columns")
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if modes is None and path.lower().endswith(_TABLES) and os.path.exists(path):
            raise ValueError(f"{path}: a table; name its columns with `modes`, and that of its values with `value`")
        return Text(path) if modes is None else Table(path, path)
    if modes is not None and not indexed:
        if hasattr(source, "__arrow_c_stream__"):
            return Table(source, "the table")
        if any(isinstance(mode, tuple) for mode in modes):
            raise TypeError(
                f"{type(source).__name__}: labels and bins are of tables with an Arrow C stream; make a DataFrame of it"
            )
    if modes is not None or value is not None:
        return _of_table(source, modes, value)
    if hasattr(source, "batches") and hasattr(source, "nnz"):
        return Stream(source.path, _of_batches(source.batches()), source.shape)
    if isinstance(source, COO):
        return Arrays("the tensor", *nonzeros("the tensor", source.coords, source.values), source.shape)
    if isinstance(source, tuple) and len(source) == 2:
        return Arrays("the arrays", *nonzeros("the arrays", *source))
    if isinstance(source, np.ndarray):
        found = np.nonzero(source)
        return Arrays("the array", *nonzeros("the array", tuple(found), source[found]), source.shape)
    if hasattr(source, "subs") and hasattr(source, "vals"):
        return Arrays("the tensor", *nonzeros("the tensor", source.subs, source.vals), tuple(source.shape))
    if hasattr(source, "tocoo"):
        source = source.tocoo()
        if getattr(source, "fill_value", 0) != 0:
            raise ValueError(f"the tensor: fill value {source.fill_value}; what is not stored must be 0")
        coords = getattr(source, "coords", None)
        coords = (source.row, source.col) if coords is None else tuple(coords)
        return Arrays("the tensor", *nonzeros("the tensor", coords, source.data), tuple(source.shape))
    if hasattr(source, "coords") and hasattr(source, "data") and hasattr(source, "fill_value"):
        if source.fill_value != 0:
            raise ValueError(f"the tensor: fill value {source.fill_value}; what is not stored must be 0")
        return Arrays("the tensor", *nonzeros("the tensor", tuple(source.coords), source.data), tuple(source.shape))
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "columns"):
        return _of_table(source, modes, value)
    if isinstance(source, Iterable):
        return Stream("the batches", _of_batches(source))
    raise TypeError(
        f"{type(source).__name__}: give a path of text, (coords, values), a sparse tensor, a table with `modes`, or an iterator of batches"
    )
