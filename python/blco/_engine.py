"""Where to compute."""

from __future__ import annotations

import os
from typing import Any

from . import _blco
from ._native import size, whole
from ._pack import pack
from ._ranks import Ranks
from ._store import Store
from ._store import open as open_store


class Engine:
    """Where to compute: a device, threads and memory, shared by all stores that it opens.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        With "auto" a GPU is used if there is one with room.
    device_number : int, optional
        Which GPU, from 0.
    device_memory : int or str, optional
        Bytes of the GPU's memory to take at most, as a number or like ``"4GiB"``.
    threads : int, optional
        Compute threads; by default one for each processor.
    memory : int or str, optional
        Bytes of memory that each operation, and each session that a store keeps, takes at most; by default what is available.
    temp_dir : path, optional
        Where temporary files go.
    deterministic : bool
        Results with the same bits in every run on a GPU too, and with `comm` those of one process. On the CPU they always have the same.
    pin_threads : bool
        Keep each compute thread on a processor.

    comm : mpi4py.MPI.Intracomm, optional
        Processes that compute together, on CPUs or a GPU each: all of them make an engine with it, open the same store, and make the same calls
        of :meth:`Store.mttkrp` and :meth:`Store.cp`, whose results all of them get. Arguments, callbacks and progress are those of
        rank 0. All else each process does by itself. Of a store that ``blco-pack --split`` divided, each opens its part, and does by
        itself what it does from that.

    Notes
    -----
    The functions of this package use an engine of their own with all defaults, made when it is first needed. After a fork the child
    process makes a new one; stores that the parent has opened refuse to work there.
    """

    def __init__(
        self,
        *,
        device: str = "auto",
        device_number: int | None = None,
        device_memory: int | str | None = None,
        threads: int | None = None,
        memory: int | str | None = None,
        temp_dir: str | os.PathLike[str] | None = None,
        deterministic: bool = False,
        pin_threads: bool = False,
        comm: Any = None,
    ) -> None:
        ranks = None if comm is None else Ranks(comm)
        self._ranks = ranks if ranks and ranks.count > 1 else None
        self._engine = _blco.Engine(
            device=device,
            device_number=device_number,
            device_memory=size("device_memory", device_memory),
            threads=None if threads is None else whole("threads", threads, 0),
            memory=size("memory", memory),
            temp_dir=temp_dir,
            deterministic=deterministic,
            pin_threads=pin_threads,
            ranks=self._ranks,
        )

    @property
    def threads(self) -> int:
        """Compute threads."""
        return self._engine.threads

    def open(self, path: str | os.PathLike[str]) -> Store:
        """Opens a store. See :func:`blco.open`."""
        return open_store(path, engine=self)

    def pack(self, source: Any, store: str | os.PathLike[str], **options: Any) -> Store:
        """Packs a tensor into a store. See :func:`blco.pack`."""
        return pack(source, store, engine=self, **options)

    def __repr__(self) -> str:
        return f"<blco.Engine with {self.threads} threads>"
