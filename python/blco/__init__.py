"""Sparse tensors that do not fit: pack once, then MTTKRP, TTV and CP decompositions, out of core.

A *store* is a directory of compressed chunks that serves all modes of a tensor. It may be larger than memory.

>>> import blco
>>> store = blco.pack(([[0, 0, 1], [2, 1, 0]], [5.0, 3.0]), "movies.blco")  # doctest: +SKIP
>>> model = store.cp(rank=1)                                                # doctest: +SKIP

Modes and indices count from 0; in messages of the engine, and in text, they count from 1.
"""

from ._blco import CorruptStoreError, DeviceError
from ._coo import COO, Fibers
from ._engine import Engine
from ._estimator import CP
from ._model import Iteration, Model, load
from ._pack import Packer, pack
from ._store import ArrowBatches, Store, open
from ._version import __version__

__all__ = [
    "COO",
    "CP",
    "ArrowBatches",
    "CorruptStoreError",
    "DeviceError",
    "Engine",
    "Fibers",
    "Iteration",
    "Model",
    "Packer",
    "Store",
    "__version__",
    "load",
    "open",
    "pack",
]
