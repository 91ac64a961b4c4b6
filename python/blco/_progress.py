"""How progress is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ._log import log

#: ``True`` for a bar of tqdm, or a function of what is being done, nonzeros done, and of how many (or None).
Progress = bool | None | Callable[[str, int, int | None], Any]


@contextmanager
def shown(progress: Progress) -> Iterator[Callable[[str, int, int | None], Any] | None]:
    """The function that the engine calls some times a second."""
    if not progress:
        yield None
        return
    if progress is not True:
        yield progress
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        log.warning("no progress is shown: tqdm is not installed")
        yield None
        return
    bar = tqdm(unit="nnz", unit_scale=True)

    def show(what: str, done: int, total: int | None) -> None:
        # A new step, or a new pass, begins a new count.
        if bar.desc != f"{what}: " or done < bar.n:
            bar.reset(total)
            bar.set_description(what, refresh=False)
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        bar.close()
