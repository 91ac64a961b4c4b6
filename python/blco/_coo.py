"""Small tensors in coordinate form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


class COO:
    """A sparse tensor in coordinate form, in memory.

    Unpacks as ``coords, values``.

    Attributes
    ----------
    coords : ndarray of int, nonzeros x order
        Indices, from 0.
    values : ndarray of float64
    shape : tuple of int
    """

    def __init__(self, coords: npt.NDArray[Any], values: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        self.coords = coords
        self.values = values
        self.shape = tuple(int(dim) for dim in shape)

    @property
    def nnz(self) -> int:
        """Nonzeros."""
        return len(self.values)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return iter((self.coords, self.values))

    def __repr__(self) -> str:
        return f"<blco.COO {' x '.join(map(str, self.shape))}, {self.nnz} nonzeros>"

    def to_dense(self) -> npt.NDArray[np.float64]:
        """All of it as an array; nonzeros with the same coordinates are added up."""
        dense = np.zeros(self.shape)
        np.add.at(dense, tuple(self.coords.T.astype(np.intp)), self.values)
        return dense

    def to_scipy(self) -> Any:
        """As a ``scipy.sparse.coo_array``, for tensors of order 2 (of order 1, one row)."""
        from scipy.sparse import coo_array

        if len(self.shape) == 1:
            index = self.coords[:, 0].astype(np.int64)
            return coo_array((self.values, (np.zeros_like(index), index)), shape=(1, *self.shape))
        if len(self.shape) != 2:
            raise ValueError(f"order {len(self.shape)}: scipy.sparse has matrices; take to_sparse() or to_pyttb()")
        return coo_array((self.values, tuple(self.coords.T.astype(np.int64))), shape=self.shape)

    def to_sparse(self) -> Any:
        """As a ``sparse.COO`` of PyData's sparse."""
        import sparse

        return sparse.COO(self.coords.T.astype(np.int64), self.values, shape=self.shape)

    def to_pyttb(self) -> Any:
        """As a ``pyttb.sptensor``."""
        import pyttb

        return pyttb.sptensor(self.coords.astype(np.int64), self.values[:, None].copy(), self.shape)


class Fibers:
    """A semi-sparse tensor: dense along one mode, sparse along the others. What :meth:`blco.Store.ttm` gives.

    Unpacks as ``coords, values``.

    Attributes
    ----------
    coords : ndarray of int, fibers x (order - 1)
        Indices of the other modes, from 0, ascending.
    values : ndarray, fibers x shape[mode]
        A row for each fiber.
    shape : tuple of int
    mode : int
        The dense one.
    """

    def __init__(self, coords: npt.NDArray[Any], values: npt.NDArray[Any], shape: tuple[int, ...], mode: int) -> None:
        self.coords = coords
        self.values = values
        self.shape = tuple(int(dim) for dim in shape)
        self.mode = mode

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return iter((self.coords, self.values))

    def __repr__(self) -> str:
        return f"<blco.Fibers {' x '.join(map(str, self.shape))}, dense in mode {self.mode}: {len(self.values)} fibers>"

    def to_dense(self) -> npt.NDArray[Any]:
        """All of it as an array."""
        others = self.shape[: self.mode] + self.shape[self.mode + 1 :]
        dense = np.zeros((*others, self.shape[self.mode]), self.values.dtype)
        dense[tuple(self.coords.T.astype(np.intp))] = self.values
        return np.moveaxis(dense, -1, self.mode)

    def to_coo(self) -> COO:
        """Every number with its coordinates."""
        rank = self.shape[self.mode]
        rows = np.repeat(self.coords, rank, axis=0)
        column = np.tile(np.arange(rank, dtype=self.coords.dtype), len(self.coords))
        return COO(np.insert(rows, self.mode, column, axis=1), self.values.ravel().astype(np.float64), self.shape)
