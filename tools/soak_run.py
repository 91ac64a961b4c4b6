"""Running programs for tools/soak.py: limits, signals, what they leave behind, and what is counted."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

PROGRAMS = ("blco-pack", "blco-run", "blco-cpd", "blco-export", "blco-info", "blco-gen")
HANG_SECONDS = 300
LIMITS = {"as": resource.RLIMIT_AS, "fsize": resource.RLIMIT_FSIZE, "nofile": resource.RLIMIT_NOFILE}


class Failed(Exception):
    """A program did what it must not do."""


@dataclass
class Ended:
    """How a program ended. A negative status is the signal that ended it."""

    status: int
    out: str
    err: str


@dataclass
class Running:
    """A program at work."""

    program: str
    command: str
    process: subprocess.Popen
    started: float


@dataclass
class Soak:
    """What all cases of a worker share."""

    bin: Path
    scratch: Path
    counts: Counter = field(default_factory=Counter)

    def count(self, *key: str, n: int = 1) -> None:
        self.counts[key] += n


class Case:
    """A directory of its own with inputs (`in`), outputs (`out`) and two directories for temporary files: `tmp`, which is the
    system's as far as programs can tell, and `spill` for --temp-dir."""

    def __init__(self, soak: Soak, name: str, rng: Random, directory: Path) -> None:
        self.soak, self.name, self.rng, self.dir = soak, name, rng, directory
        self.commands: list[str] = []
        self.running: list[Running] = []
        for place in ("in", "out", "tmp", "spill"):
            (directory / place).mkdir(parents=True)

    def path(self, *parts: str) -> Path:
        return self.dir.joinpath(*parts)

    def fail(self, what: str) -> None:
        raise Failed(what)

    # -- running ------------------------------------------------------------------------------------------------

    def start(
        self,
        program: str,
        *args: str,
        env: dict[str, str] | None = None,
        limits: dict[str, int] | None = None,
        ignored: int | None = None,
    ) -> Running:
        """Starts a program; `limits` as in setrlimit, `ignored`: a signal that it inherits as ignored."""
        env, limits = env or {}, limits or {}

        def prepare() -> None:
            for name, most in limits.items():
                resource.setrlimit(LIMITS[name], (most, most))
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)

        words = [*(f"{k}={v}" for k, v in env.items()), program, *args, *(f"[{k} {v}]" for k, v in limits.items())]
        command = " ".join(words)
        self.commands.append(command)
        everything = {**os.environ, "TMPDIR": str(self.path("tmp")), "BLCO_MEMORY_MIN": "0", "CUDA_VISIBLE_DEVICES": "", **env}
        process = subprocess.Popen(
            [self.soak.bin / program, *args],
            cwd=self.dir,
            env=everything,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=prepare,
            start_new_session=True,  # an interrupt of this script is not theirs
        )
        running = Running(program, command, process, time.monotonic())
        self.running.append(running)
        return running

    def finish(self, running: Running, allowed: tuple[int, ...]) -> Ended:
        """Waits for a program and holds how it ended against what all programs promise."""
        try:
            out, err = running.process.communicate(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.fail(f"{running.command}: still running after {HANG_SECONDS} s")
        self.running.remove(running)
        ended = Ended(running.process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
        self.soak.count("operations", running.program, str(ended.status))
        lines = ended.err.splitlines()
        said = f"{running.command}: status {ended.status}: {ended.err.strip()[:600]}"
        if "panicked" in ended.err or "RUST_BACKTRACE" in ended.err:
            self.fail(f"a panic: {said}")
        if ended.status not in allowed:
            self.fail(f"an exit status that is not among {allowed}: {said}")
        if ended.status in (2, 130) and not (len(lines) == 1 and lines[0].startswith(f"{running.program}: ")):
            self.fail(f"not one line that says what went wrong: {said}")
        return ended

    def run(self, program: str, *args: str, allowed: tuple[int, ...] = (0,), **how) -> Ended:
        """Runs a program to its end."""
        return self.finish(self.start(program, *args, **how), allowed)

    def stop_all(self) -> None:
        """Ends what a failed case has left running."""
        for running in self.running:
            running.process.kill()
            running.process.communicate()

    # -- looking ------------------------------------------------------------------------------------------------

    def clear(self, *places: str) -> None:
        for place in places:
            for path in self.path(place).iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def names(self) -> set[str]:
        """What is in the directories where programs write, results' own contents included."""
        tops = {f"{place}/{path.name}" for place in ("out", "tmp", "spill") for path in self.path(place).iterdir()}
        inner = {str(p.relative_to(self.dir)) for p in self.path("out").glob("*/*")}
        return tops | {name for name in inner if ".partial" in name or "blco-spill" in name}

    def check_names(self, wanted: set[str], when: str) -> None:
        """Nothing but `wanted` is there."""
        found = self.names()
        if found != wanted:
            self.fail(f"{when}: left {sorted(found - wanted)}, lacks {sorted(wanted - found)}")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fingerprint(path: Path) -> object:
    """What must not change of an output: a file's bytes; of a store all files but the provenance; of a directory of results
    the matrices and text. `None` if there is none."""
    if not path.is_dir():
        return digest(path) if path.exists() else None
    is_store = (path / "manifest").exists()
    wanted = (lambda p: p.name != "provenance.json") if is_store else (lambda p: p.suffix in (".npy", ".tns"))
    return {p.name: digest(p) for p in path.iterdir() if p.is_file() and wanted(p) and not p.name.startswith(".")}
