"""Engines as the extension has them, beneath :class:`blco.Engine`."""

from __future__ import annotations

import os
import re
from typing import Protocol

from . import _blco

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


class Computes(Protocol):
    """A :class:`blco.Engine`."""

    @property
    def _engine(self) -> _blco.Engine: ...


_default: tuple[int, _blco.Engine] | None = None


def native(engine: Computes | None) -> _blco.Engine:
    """The engine that is given, or this process's own with all defaults."""
    global _default
    if engine is not None:
        return engine._engine
    if _default is None or _default[0] != os.getpid():
        _default = (os.getpid(), _blco.Engine())
    return _default[1]
