"""The extension module: what the package is made of. Nothing of it is public but the exceptions."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_Show = Callable[[str, int, int | None], Any] | None
_Path = str | os.PathLike[str]

class CorruptStoreError(Exception): ...
class DeviceError(RuntimeError): ...

class Engine:
    def __new__(
        cls,
        *,
        device: str = "auto",
        device_number: int | None = None,
        device_memory: int | None = None,
        threads: int | None = None,
        memory: int | None = None,
        temp_dir: _Path | None = None,
        deterministic: bool = False,
        pin_threads: bool = False,
        ranks: Any = None,
    ) -> Engine: ...
    @property
    def threads(self) -> int: ...
    def open(self, path: _Path) -> Store: ...
    def pack_text(
        self,
        path: _Path,
        target: _Path,
        options: dict[str, Any],
        *,
        shape: list[int] | None = None,
        index_base: int = 1,
        progress: _Show = None,
    ) -> str: ...
    def pack_table(
        self,
        source: Any,
        name: str,
        target: _Path,
        options: dict[str, Any],
        *,
        modes: str,
        value: str | None = None,
        nulls: str = "error",
        timezone: str | None = None,
        labels_from: _Path | None = None,
        progress: _Show = None,
    ) -> str: ...
    def pack_arrays(
        self,
        columns: list[npt.NDArray[Any]],
        values: npt.NDArray[Any],
        target: _Path,
        options: dict[str, Any],
        *,
        name: str,
        shape: list[int] | None = None,
        index_base: int = 0,
        progress: _Show = None,
    ) -> str: ...
    def packer(
        self,
        target: _Path,
        options: dict[str, Any],
        *,
        name: str,
        shape: list[int] | None = None,
        index_base: int = 0,
    ) -> Packer: ...

class Packer:
    @property
    def nnz(self) -> int: ...
    def append(self, columns: list[npt.NDArray[Any]], values: npt.NDArray[Any], name: str) -> None: ...
    def finish(self, progress: _Show = None) -> str: ...
    def abort(self) -> None: ...

class Batches(Iterator[tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]]):
    def __next__(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]: ...
    def close(self) -> None: ...

class Store:
    @property
    def path(self) -> os.PathLike[str]: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def nnz(self) -> int: ...
    @property
    def mode_names(self) -> list[str] | None: ...
    def labels(self, mode: int) -> list[str] | None: ...
    def summary(self) -> str: ...
    def inspect(self, progress: _Show = None) -> str: ...
    def verify(self, progress: _Show = None) -> None: ...
    def arrow_stream(self, requested_schema: Any = None) -> Any: ...
    def read(self, ranges: list[tuple[int, int]] | None = None) -> Batches: ...
    def mttkrp(
        self,
        factors: list[Any],
        modes: list[int],
        *,
        single: bool,
        calls: int,
        out: list[tuple[int, int, int, int]] | None = None,
        progress: _Show = None,
    ) -> list[tuple[int, npt.NDArray[Any]]]: ...
    def ttmc(
        self, factors: list[npt.NDArray[Any]], modes: list[int], *, single: bool, progress: _Show = None
    ) -> list[tuple[int, npt.NDArray[Any]]]: ...
    def ttm(
        self, matrix: npt.NDArray[Any], mode: int, *, single: bool, progress: _Show = None
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[Any]]: ...
    def norm(self, progress: _Show = None) -> float: ...
    def inner(self, other: Store, progress: _Show = None) -> float: ...
    def united(self) -> Store | None: ...
    def serve(self) -> None: ...
    def end_serving(self) -> None: ...
    def plans(self) -> str: ...
    def release(self) -> None: ...
    def ttv(
        self, vectors: list[npt.NDArray[Any]], modes: list[int], *, single: bool, progress: _Show = None
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]: ...
    def cp(
        self,
        rank: int,
        *,
        single: bool,
        nonneg: bool,
        ridge: float,
        tol: float,
        max_iters: int,
        seed: int,
        starts: int,
        init: list[npt.NDArray[Any]] | None = None,
        callback: Callable[[int, str], Any] | None = None,
        progress: _Show = None,
    ) -> dict[str, Any]: ...
