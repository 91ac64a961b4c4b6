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
