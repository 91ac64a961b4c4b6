"""Engines as the extension has them, beneath :class:`blco.Engine`."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Sequence
from typing import Any, Protocol

from . import _blco
from ._ranks import Ranks

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


def named(names: Sequence[str] | None) -> str:
    """What is said of modes to whoever gives a wrong name."""
    return f"there are {', '.join(names)}" if names else "there are no names; give its number, from 0"


def whole(name: str, given: Any, least: int) -> int:
    """A whole number that is not less."""
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"`{name}` {given!r}: give an integer") from None
    if number < least:
        raise ValueError(f"`{name}` {number}: give {least} or more")
    return number


class Computes(Protocol):
    """A :class:`blco.Engine`."""

    _engine: _blco.Engine
    _ranks: Ranks | None


_default: tuple[int, _blco.Engine] | None = None


def native(engine: Computes | None) -> _blco.Engine:
    """The engine that is given, or this process's own with all defaults."""
    global _default
    if engine is not None:
        return engine._engine
    if _default is None or _default[0] != os.getpid():
        _default = (os.getpid(), _blco.Engine())
    return _default[1]
