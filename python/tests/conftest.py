"""What tests share: small tensors, and their definition by numpy."""

from __future__ import annotations

import numpy as np
import pytest

import blco

DIMS = [23, 17, 11, 7, 5, 3]


class Tensor:
    """A sparse tensor with whole numbers, which every order of additions gives alike."""

    def __init__(self, dims, nnz, seed=0):
        rng = np.random.default_rng(seed)
        places = rng.choice(int(np.prod(dims)), size=nnz, replace=False)
        self.shape = tuple(dims)
        self.coords = np.stack(np.unravel_index(places, dims), axis=1)
        self.values = rng.integers(1, 9, nnz).astype(np.float64)

    @property
    def dense(self):
        dense = np.zeros(self.shape)
        dense[tuple(self.coords.T)] = self.values
        return dense

    def factors(self, rank, dtype=np.float64, seed=1):
        rng = np.random.default_rng(seed)
        return [rng.integers(-4, 5, (dim, rank)).astype(dtype) for dim in self.shape]

    def mttkrp(self, factors, mode):
        """The definition, by einsum."""
        letters = "abcdefgh"[: len(self.shape)]
        others = [m for m in range(len(self.shape)) if m != mode]
        terms = ",".join(f"{letters[m]}z" for m in others)
        wide = [factors[m].astype(np.float64) for m in others]
        return np.einsum(f"{letters},{terms}->{letters[mode]}z", self.dense, *wide, optimize=True)


@pytest.fixture
def tensor():
    return Tensor(DIMS[:3], 400)


@pytest.fixture
def store(tensor, tmp_path):
    return blco.pack((tensor.coords, tensor.values), tmp_path / "tensor.blco", shape=tensor.shape)


def same(store, tensor):
    """Whether a store holds exactly this tensor."""
    return store.shape == tensor.shape and np.array_equal(store.to_coo().to_dense(), tensor.dense)
