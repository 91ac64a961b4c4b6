"""Where to compute."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from . import _blco

if TYPE_CHECKING:
    from ._store import Store


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size(name: str, given: int | str | None) -> int | None:
    """Bytes, as a number or like ``"2GiB"``."""
    if given is None:
        return None
    if isinstance(given, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", given.lower())
        if found is None:
            raise ValueError(f"`{name}` {given!r}: give bytes, as a number or like '2GiB'")
        given = int(float(found[1]) * _UNITS[found[2] or ""])
    if given < 0:
        raise ValueError(f"`{name}` {given}: give bytes, as a number or like '2GiB'")
    return int(given)


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
        Results with the same bits in every run on a GPU too. On the CPU they always have the same.
    pin_threads : bool
        Keep each compute thread on a processor.

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
    ) -> None:
        self._engine = _blco.Engine(
            device=device,
            device_number=device_number,
            device_memory=size("device_memory", device_memory),
            threads=threads,
            memory=size("memory", memory),
            temp_dir=temp_dir,
            deterministic=deterministic,
            pin_threads=pin_threads,
        )

    @property
    def threads(self) -> int:
        """Compute threads."""
        return self._engine.threads

    def open(self, path: str | os.PathLike[str]) -> Store:
        """Opens a store. See :func:`blco.open`."""
        from ._store import Store

        return Store(self._engine.open(os.fspath(path)), self)

    def pack(self, source: Any, store: str | os.PathLike[str], **options: Any) -> Store:
        """Packs a tensor into a store. See :func:`blco.pack`."""
        from ._pack import pack

        return pack(source, store, engine=self, **options)

    def __repr__(self) -> str:
        return f"<blco.Engine with {self.threads} threads>"


_default: tuple[int, Engine] | None = None


def default_engine() -> Engine:
    """This process's engine with all defaults."""
    global _default
    if _default is None or _default[0] != os.getpid():
        _default = (os.getpid(), Engine())
    return _default[1]


def open(path: str | os.PathLike[str], *, engine: Engine | None = None) -> Store:
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
    return (engine or default_engine()).open(path)
