"""Make and measure what is generated from kernels/: the embedded PTX and the table of resources.

    python tools/kernels.py ptx [--check]
    python tools/kernels.py table [--check | --spills]

Called by tools/make_ptx.sh and tools/kernel_table.sh, which install what it needs. Exit status: 0 done, 1 not as
it should be, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import re
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import zstandard

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
TABLE = KERNELS / "resources.txt"
NVIDIA = Path(sysconfig.get_paths()["purelib"]) / "nvidia"

# What is embedded: a source and the architecture that its PTX is for at least.
EMBEDDED = {"blco.cu": "compute_70", "matrices.cu": "compute_80"}
NVRTC_VERSION = (12, 0)
ARCHITECTURES = ["sm_80", "sm_90"]


class Wrong(Exception):
    """Something is not as it should be; printed as it is."""


# ---------------------------------------------------------------------------------------------------------------
# PTX
# ---------------------------------------------------------------------------------------------------------------


def included(name: str) -> list[str]:
    """The files that `name` includes, directly or not, each once."""
    found: list[str] = []
    for header in re.findall(r'^#include "([^"]+)"', (KERNELS / name).read_text(), re.MULTILINE):
        found += [h for h in [header, *included(header)] if h not in found]
    return found


class Nvrtc:
    """The pinned NVRTC."""

    def __init__(self) -> None:
        folder = NVIDIA / "cuda_nvrtc" / "lib"
        dotted = ".".join(map(str, NVRTC_VERSION))
        # Loaded first: NVRTC looks it up by name alone.
        ctypes.CDLL(str(folder / f"libnvrtc-builtins.so.{dotted}"), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(folder / f"libnvrtc.so.{NVRTC_VERSION[0]}"))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        if (major.value, minor.value) != NVRTC_VERSION:
            raise Wrong(f"NVRTC {major.value}.{minor.value} is installed, not {dotted}")

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a status."""
        status = getattr(self.library, function)(*arguments)
        if status != 0:
            raise Wrong(f"{function} failed with status {status}")

    def text(self, what: str, program: ctypes.c_void_p) -> str:
        """The program's `ProgramLog` or `PTX`."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode()

    def ptx(self, source: str, options: list[str]) -> str:
        """The PTX of a file of kernels/. Headers are handed over by name: nothing is read from the disk."""

        def strings(items: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
            return (ctypes.c_char_p * len(items))(*items)

        headers = included(source)
        texts = strings([(KERNELS / header).read_bytes() for header in headers])
        names = strings([header.encode() for header in headers])
        program = ctypes.c_void_p()
        text = (KERNELS / source).read_bytes()
        self.call("nvrtcCreateProgram", ctypes.byref(program), text, source.encode(), len(headers), texts, names)
        try:
            self.call("nvrtcCompileProgram", program, len(options), strings([o.encode() for o in options]))
        except Wrong as wrong:
            raise Wrong(f"{source} does not compile:\n{self.text('ProgramLog', program)}") from wrong
        if log := self.text("ProgramLog", program).strip("\0\n "):
            raise Wrong(f"{source} compiles with warnings:\n{log}")
        return self.text("PTX", program)


def ptx_of(source: str) -> Path:
    """The file of a source's embedded PTX."""
    return KERNELS / f"{Path(source).stem}.ptx.zst"


def made(source: str) -> str:
    """The PTX that a source makes, without comments: they name builds and say nothing else."""
    options = [f"--gpu-architecture={EMBEDDED[source]}", "--std=c++17"]
    lines = Nvrtc().ptx(source, options).splitlines()
    return "".join(f"{line}\n" for line in lines if line.strip() and not line.lstrip().startswith("//"))


def embedded(source: str) -> str:
    """A source's PTX as it lies in the repository, or nothing."""
    path = ptx_of(source)
    return zstandard.ZstdDecompressor().decompress(path.read_bytes()).decode() if path.exists() else ""


def ptx(check: bool) -> None:
    """Write the embedded PTX where it is not what the sources make, or refuse it."""
    for source in EMBEDDED:
        new, old, path = made(source), embedded(source), ptx_of(source)
        name = path.relative_to(KERNELS.parent)
        # Compared uncompressed: other versions of zstd compress to other bytes.
        if new == old:
            print(f"{name} is current: {entries(new)} kernels, {len(new)} bytes, {path.stat().st_size} compressed")
        elif check:
            raise Wrong(f"{name} is not what kernels/ makes: run tools/make_ptx.sh and tools/kernel_table.sh, commit both")
        else:
            path.write_bytes(zstandard.ZstdCompressor(level=19).compress(new.encode()))
            print(f"{name}: {entries(new)} kernels, {len(new)} bytes, {path.stat().st_size} compressed")


def entries(text: str) -> int:
    """The number of kernels."""
    return len(re.findall(r"^\.visible \.entry ", text, re.MULTILINE))


# ---------------------------------------------------------------------------------------------------------------
# Resources
# ---------------------------------------------------------------------------------------------------------------


class Resources(NamedTuple):
    """What a kernel takes: registers of a thread, bytes of a thread block, bytes of a thread."""

    registers: int
    shared: int
    spilled: int
    stack: int


Table = dict[tuple[str, str], Resources]

PROPERTIES = re.compile(
    r"Function properties for (\w+)\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (\d+) registers([^\n]*)"
)


def assembled(text: str, architecture: str) -> Table:
    """The resources of each kernel of the PTX on an architecture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "blco.ptx"
        path.write_text(text)
        ptxas = NVIDIA / "cu13" / "bin" / "ptxas"
        command = [ptxas, "--verbose", "--warn-on-spills", f"--gpu-name={architecture}", "-o", "/dev/null", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    log = done.stdout + done.stderr
    if done.returncode != 0:
        raise Wrong(f"the kernels do not assemble for {architecture}:\n{log}")
    table = {}
    for name, stack, stores, loads, registers, rest in PROPERTIES.findall(log):
        shared = re.search(r"(\d+) bytes smem", rest)
        spilled = int(stores) + int(loads)
        table[name, architecture] = Resources(int(registers), int(shared[1]) if shared else 0, spilled, int(stack))
    if len(table) != entries(text):
        raise Wrong(f"{architecture}: {entries(text)} kernels, but ptxas tells of {len(table)}")
    return table


def recorded() -> Table:
    """The table as it lies in the repository."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {(name, architecture): Resources(*map(int, rest)) for name, architecture, *rest in rows}


def written(table: Table) -> str:
    """The table as text."""
    version = next((NVIDIA.parent).glob("nvidia_cuda_nvcc-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    lines = [
        "# Resources of each embedded kernel, as ptxas assembles it: registers of a thread, shared memory of a thread",
        "# block, spilled and stack bytes of a thread. Written by tools/kernel_table.sh, which CI runs with --check.",
        f"# ptxas {version}",
        f"# {'kernel':30} {'target':8} {'registers':>9} {'shared':>7} {'spilled':>7} {'stack':>5}",
    ]
    for (name, architecture), r in sorted(table.items()):
        lines.append(f"{name:32} {architecture:8} {r.registers:9} {r.shared:7} {r.spilled:7} {r.stack:5}")
    return "\n".join(lines) + "\n"


def difference(old: Table, new: Table) -> list[str]:
    """What has changed, a line for each kernel and target; what takes more is marked."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        if was is None or now is None:
            changes = ["new" if was is None else "gone"]
        else:
            pairs = zip(Resources._fields, was, now, strict=True)
            changes = [f"{f} {a} -> {b}{' (more)' if b > a else ''}" for f, a, b in pairs if a != b]
        lines.append(f"  {key[0]:32} {key[1]:6} {', '.join(changes)}")
    return lines


def table(check: bool, spills: bool) -> None:
    """Record the resources, or refuse a table that is not true."""
    texts = [embedded(source) for source in EMBEDDED]
    if not all(texts):
        raise Wrong("embedded PTX is missing: run tools/make_ptx.sh")
    new: Table = {}
    with ThreadPoolExecutor(len(ARCHITECTURES)) as pool:
        for part in pool.map(lambda of: assembled(*of), itertools.product(texts, ARCHITECTURES)):
            new |= part
    old, name = recorded(), TABLE.relative_to(KERNELS.parent)
    changes = "\n".join(difference(old, new))
    if changes and old:
        print(f"{name}, recorded -> now:\n{changes}", file=sys.stderr if check else sys.stdout)
    if check:
        if changes:
            raise Wrong(f"{name} is not true: mend the kernels, or record what they take with tools/kernel_table.sh")
    else:
        spilling = [key[0] for key, r in new.items() if r.spilled > (old[key].spilled if key in old else 0)]
        if spilling and not spills:
            raise Wrong(f"spills more than recorded: {', '.join(sorted(set(spilling)))}; --spills records it all the same")
        TABLE.write_text(written(new))
    most = {a: max(r.registers for key, r in new.items() if key[1] == a) for a in ARCHITECTURES}
    spilled = sum(r.spilled for r in new.values())
    print(f"{name}: {len(new)} rows, most registers {most}, spilled bytes {spilled}")


def main() -> int:
    """Parse, do, report."""
    parser = argparse.ArgumentParser(prog="kernels.py", description="Make and measure what is generated from kernels/.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ptx").add_argument("--check", action="store_true")
    how = commands.add_parser("table").add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true")
    how.add_argument("--spills", action="store_true")
    options = parser.parse_args()
    try:
        if options.command == "ptx":
            ptx(options.check)
        else:
            table(options.check, options.spills)
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
