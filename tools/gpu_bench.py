#!/usr/bin/env python3
"""Measures passes on a GPU: resident, half resident and streamed, against the link and the same kernels resident; from a
cold disk against direct reads of the same files; a billion nonzeros in a fraction of the device's memory; and iterations of CP-ALS
against their passes.

usage: tools/gpu_bench.py BIN WORK REPORT.json [modes|all|ranks|tune|passes|streamed|tensors|cold|billion|cpd|start|ttv|trees|ttmc ...]

TENSORS="uber nell2" takes some of the tensors only, PRECISIONS="f64" one of the precisions, PASSES=5 a median of fewer passes.
BIN holds blco-gen and blco-run; WORK is a directory with room for the stores. Prints a line for each measurement.
"""
import json
import math
import mmap
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

# The tensors of the recorded runs: dims, nonzeros and skew are those of FROSTT's by the same names.
TENSORS = {
    "uber": (["--dims", "183,24,1140,1717", "--nnz", "3.3M", "--skew", "1,1,2,2"], 32),
    "nell2": (["--dims", "12092,9184,28818", "--nnz", "76.9M", "--skew", "2"], 32),
    "enron": (["--dims", "6066,5699,244268,1176", "--nnz", "54.2M", "--skew", "2,2,2.5,1.5"], 32),
    "darpa": (["--dims", "22476,22476,23776223", "--nnz", "28.4M", "--skew", "3,3,1"], 32),
    "fbm": (["--dims", "23344784,23344784,166", "--nnz", "99.6M", "--skew", "1.5,1.5,2"], 32),
    "nell1s": (["--dims", "2000000,2000000,4000000", "--nnz", "143.6M", "--skew", "2,2,1.5"], 32),
    "patents": (["--dims", "46,239172,239172", "--nnz", "300M", "--skew", "1,1.5,1.5"], 32),
}

# Smaller ones, as given for another program.
PARTS = {
    "nell2-20M": (["--dims", "12092,9184,28818", "--nnz", "20M", "--skew", "2"], 32),
    "fbm-20M": (["--dims", "23344784,23344784,166", "--nnz", "20M", "--skew", "1.5,1.5,2"], 32),
}

# What binds changes with the order: tensors whose rows lie in an L2 cache, and do not.
ORDERS = {
    "cached-3": (["--dims", "20000,20000,20000", "--nnz", "30M", "--skew", "2"], 32),
    "cached-4": (["--dims", "20000,20000,20000,2000", "--nnz", "30M", "--skew", "2"], 32),
    "cached-5": (["--dims", "20000,20000,20000,2000,2000", "--nnz", "30M", "--skew", "2"], 32),
    "large-3": (["--dims", "4000000,4000000,4000000", "--nnz", "30M", "--skew", "1.5"], 32),
    "large-4": (["--dims", "4000000,4000000,4000000,4000000", "--nnz", "30M", "--skew", "1.5"], 32),
    "large-5": (["--dims", "4000000,4000000,4000000,4000000,4000000", "--nnz", "30M", "--skew", "1.5"], 32),
}

# Fibers along the last mode, of about 50, 4 and 40 nonzeros, and the ranks of SpTTMc.
PRODUCTS = {
    "fibers-50": (["--dims", "1000,400,2000000", "--nnz", "20M"], (8, 16)),
    "fibers-4": (["--dims", "2500,2000,200000", "--nnz", "20M"], (8, 16)),
    "fibers-40": (["--dims", "80,80,80,200000", "--nnz", "20M"], (4, 8)),
}

# Variants of the kernels that are worth a try; the tensors, of 20 million nonzeros, that they are tried on.
VARIANTS = ["t4l4c2b4", "t4l8c1b4", "t4l8c2b4", "t4l16c1b4", "t4l16c1b4s", "t4l16c2b4", "t2l16c2b4", "t4l16c4b2"]
TUNED = {
    "nell2-20M": PARTS["nell2-20M"],
    "enron-20M": (["--dims", "6066,5699,244268,1176", "--nnz", "20M", "--skew", "2,2,2.5,1.5"], 32),
    "nell1s-20M": (["--dims", "2000000,2000000,4000000", "--nnz", "20M", "--skew", "2,2,1.5"], 32),
}

# What an H100 moves in rows, as tools/device_limits.cu measured it: bytes a second by a row's bytes and a table's; of reads from L1 caches (128
# bytes a cycle of 132 multiprocessors); of streams.
with open(os.path.join(os.path.dirname(__file__), "../benches/runs/2026-11-22-h100-whole/limits.json"), encoding="utf-8") as file:
    ROWS = json.load(file)
L1_READS, STREAMS = 29.6e12, 2.8e12


def rate(what, row_bytes, table_bytes):
    """Bytes a second of the longest measured rows that are not longer, between the measured sizes of tables by their logarithm. The smallest
    measured table is left out: it lies in an L1 cache."""
    by_row = ROWS[what]
    measured = by_row[max((length for length in by_row if int(length) <= row_bytes), key=int)]
    points = [(math.log(int(size)), bytes_per_second) for size, bytes_per_second in measured.items()][1:]
    at = min(max(math.log(table_bytes), points[0][0]), points[-1][0])
    above = next(i for i in range(1, len(points)) if at <= points[i][0] + 1e-9)
    (low, slow), (high, fast) = points[above - 1], points[above]
    return slow + (fast - slow) * (at - low) / (high - low)


def limit_seconds(dims, nnz, rank, real_bytes, rows_per_nonzero, target):
    """What the device's limits leave of a pass over all modes, one by one: every row comes out of an L1 cache; each that a group of tiles has
    comes there once, and is updated once (sorted: other modes' rows come for each nonzero, each row is written once)."""
    seconds, row_bytes, sum_bytes = 0.0, rank * real_bytes, rank * 8
    for mode, rows in enumerate(dims):
        others = [m for m in range(len(dims)) if m != mode]
        cached = len(others) * nnz * row_bytes / L1_READS
        moved = sum((1.0 if target else rows_per_nonzero[m]) * nnz * row_bytes / rate("reads", row_bytes, dims[m] * row_bytes)
                    for m in others)
        if target:
            moved += rows * row_bytes / STREAMS
        else:
            moved += rows_per_nonzero[mode] * nnz * sum_bytes / rate("updates", sum_bytes, rows * sum_bytes)
        seconds += max(cached, moved)
    return seconds


# For TTV along the last mode: fibers of hardly more than a nonzero, as many bytes in as out; fibers of some hundred; slices and
# fibers of very different lengths.
FIBERS = {
    "short": ["--dims", "4000,2000000,16000000", "--nnz", "50M", "--values", "1..200000", "--slice", "csr", "--chunk-bytes", "16MiB"],
    "long": ["--dims", "400,500,4000000", "--nnz", "50M", "--values", "1..5"],
    "skewed": ["--dims", "20000,20000,4000000", "--nnz", "50M", "--skew", "3,3,1.5", "--values", "1..5"],
}


# Passes that a median is taken of.
PASSES = int(os.environ.get("PASSES", "25"))
PRECISIONS = os.environ.get("PRECISIONS", "f64 f32").split()


def copies(report, place=None):
    """The modes that are computed from mode-sorted copies, which lie in `place`."""
    there = [(s["images"]["sorted-by"], s["residence"][0]["place"]) for s in report["device"]["sets"][1:]]
    return [mode for mode, where in there if place in (None, where)]


class Bench:
    """Programs, a place for stores, and what was measured."""

    def __init__(self, binaries, work):
        self.binaries, self.work, self.rows = binaries, work, []
        os.makedirs(work, exist_ok=True)

    def tool(self, name, *arguments):
        command = [os.path.join(self.binaries, name), *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def store(self, name, options):
        path = os.path.join(self.work, name + ".blco")
        if not os.path.exists(path):
            self.tool("blco-gen", *options, "--values", "1..5", "-q", path)
        return path

    def run(self, path, *options):
        return self.tool("blco-run", path, "--backend", "cuda", "-q", *options)

    def note(self, **row):
        self.rows.append(row)
        print(" ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)

    def passes(self, names):
        """A pass against max(streamed bytes / link, the same kernels resident), with nothing, half and all kept."""
        for name in names:
            options, rank = TENSORS[name]
            path = self.store(name, options)
            for precision in ("f64", "f32"):
                common = ["--rank", str(rank), "--precision", precision, "--repeat", "12", "--device-order", "store"]
                resident = None
                images = self.run(path, *common, "--plan")["device"]["first_pass"]["bytes"]
                least = self.run(path, *common[:4], "--plan")["device"]["memory_bytes"]
                for part in (1.0, 0.5, 0.0):
                    limit = [] if part == 1.0 else ["--device-memory", str(int(least + part * images))]
                    if part == 0.0 and images < least - self.operation(path, common):
                        continue  # the lanes alone hold it: nothing is streamed
                    report = self.run(path, *common, *limit)
                    later = report["passes"][1:]
                    seconds = statistics.median(p["seconds"] for p in later)
                    one = min(later, key=lambda p: abs(p["seconds"] - seconds))["device"]
                    link = report["device"]["link_bytes_per_second"]
                    if part == 1.0:
                        resident = seconds
                    bound = max(one["copied_bytes"] / link, resident)
                    self.note(tensor=name, precision=precision, kept=part, chunks_resident=one["resident_chunks"],
                              pass_ms=seconds * 1e3, copied_mb=one["copied_bytes"] / 1e6, link_gbs=link / 1e9,
                              copy_ms=one["copy_seconds"] * 1e3, kernel_ms=one["kernel_seconds"] * 1e3,
                              overlap_ms=one["overlap_seconds"] * 1e3, bound_ms=bound * 1e3, of_bound=bound / seconds,
                              memory_share=one["memory_share"], first_ms=report["passes"][0]["seconds"] * 1e3)

    def streamed(self, names):
        """All modes from one pass with nothing kept on the device: in the store's order, sorted in host memory (derived with half the
        store's bytes of device memory, and with 2 GB), and what `auto` takes with the former."""
        for name in names:
            options, rank = TENSORS[name]
            path = self.store(name, options)
            for precision in PRECISIONS:
                common = ["--rank", str(rank), "--precision", precision, "--repeat", str(PASSES + 2)]
                plan = self.run(path, *common, "--plan", "--device-order", "store")["device"]
                held, images = plan["operation_bytes"], plan["first_pass"]["bytes"]
                row = {"tensor": name, "precision": precision, "megabytes": images / 1e6}
                half = held + 200_000_000 + images // 2
                least = self.run(path, *common[:4], "--plan")["device"]["memory_bytes"]
                for label, order, memory in (("store", "store", least), ("host_half", "host", half),
                                             ("host_2gb", "host", held + 2_000_000_000), ("auto", "auto", half)):
                    report = self.run(path, *common, "--device-order", order, "--device-memory", str(memory))
                    later = report["passes"][2:]
                    row[label + "_ms"] = statistics.median(p["seconds"] for p in later) * 1e3
                    last, kept = later[-1]["device"], copies(report, "host")
                    row[label + "_kernel_ms"], row[label + "_copy_ms"] = last["kernel_seconds"] * 1e3, last["copy_seconds"] * 1e3
                    row[label + "_resident"] = last["resident_chunks"]
                    row[label + "_first_ms"] = report["passes"][0]["seconds"] * 1e3
                    if kept:
                        row[label + "_groups"], row[label + "_copied_mb"] = len(report["device"]["build"]["groups"]), last["copied_bytes"] / 1e6
                        row[label + "_build_ms"] = report["passes"][0]["device"]["build_seconds"] * 1e3
                        row[label + "_modes"] = "".join(map(str, kept))
                        row[label + "_why"] = report["device"]["modes"][0]["why"]
                self.note(**row)

    def modes(self, names):
        """Resident, one mode at a time, in the store's order and sorted by row; what `auto` expects of the latter."""
        for name in names:
            options, rank = TENSORS[name]
            path = self.store(name, options)
            for precision in PRECISIONS:
                for mode in range(1, options[1].count(",") + 2):
                    common = ["--rank", str(rank), "--precision", precision, "--modes", str(mode), "--repeat", str(PASSES + 2)]
                    row = {"tensor": name, "precision": precision, "mode": mode}
                    for order in ("store", "target"):
                        report = self.run(path, *common, "--device-order", order)
                        later = report["passes"][2:]
                        row[order + "_ms"] = statistics.median(p["seconds"] for p in later) * 1e3
                        for part in ("device", "kernel"):
                            median = statistics.median(p["device"][part + "_seconds"] for p in later)
                            row[f"{order}_{part}_ms"] = median * 1e3
                    choice = report["device"]["modes"][0]
                    if choice["set"] == 0:
                        raise RuntimeError(f"{name}, mode {mode}: {choice['why']}")
                    row["build_ms"] = report["passes"][1]["device"]["build_seconds"] * 1e3
                    row["rows_per_nonzero"] = choice["rows_per_nonzero"]
                    row["expected_saved_ms"] = choice["saved_seconds"] * 1e3
                    row["expected_build_ms"] = choice["build_seconds"] * 1e3
                    self.note(**row)

    def all(self, names):
        """Resident, all modes from one pass: in the store's order, as `auto` has it, deterministic."""
        for name in names:
            options, rank = {**TENSORS, **PARTS}[name]
            path = self.store(name, options)
            for precision in PRECISIONS:
                row = {"tensor": name, "precision": precision}
                for label, flags in (("store", ["--device-order", "store"]), ("auto", []), ("deterministic", ["--deterministic"])):
                    self.resident(row, label, path, "--rank", str(rank), "--precision", precision, *flags)
                self.note(**row)

    def resident(self, row, label, path, *flags):
        """Medians of later passes, as the host and the device see them."""
        report = self.run(path, *flags, "--repeat", str(PASSES + 2))
        later = report["passes"][2:]
        row[label + "_ms"] = statistics.median(p["seconds"] for p in later) * 1e3
        row[label + "_device_ms"] = statistics.median(p["device"]["device_seconds"] for p in later) * 1e3
        if len(report["device"]["sets"]) > 1:
            row[label + "_sorted"] = "".join(map(str, copies(report)))
            row[label + "_build_ms"] = sum(p["device"]["build_seconds"] for p in report["passes"]) * 1e3
        if "kernels" in report:
            row["kernel"] = report["kernels"]["name"]
        return report

    def ranks(self, _):
        """Resident, all modes from one pass, the store's order and sorted, for several orders and ranks."""
        for name, (options, _) in ORDERS.items():
            path = self.store(name, options)
            for rank in (8, 16, 32, 64):
                for precision in PRECISIONS:
                    row = {"tensor": name, "rank": rank, "precision": precision}
                    for label in ("store", "target"):
                        flags = ["--rank", str(rank), "--precision", precision, "--device-order", label]
                        report = self.resident(row, label, path, *flags)
                    met = [mode["rows_per_nonzero"] for mode in report["device"]["modes"]]
                    dims, real = report["dims"], {"f64": 8, "f32": 4}[precision]
                    for label in ("store", "target"):
                        limit = limit_seconds(dims, report["nnz"], rank, real, met, label == "target")
                        row[label + "_of_limit"] = limit * 1e3 / row[label + "_device_ms"]
                    self.note(rows_per_nonzero=met, **row)
            subprocess.run(["rm", "-rf", path], check=True)

    def tune(self, _):
        """All modes from one pass with each variant, compiled, against the one that is taken; in both orders."""
        for name, (options, _) in TUNED.items():
            path = self.store(name, options)
            for rank in (8, 16, 32, 64):
                for precision in PRECISIONS:
                    flags = ["--rank", str(rank), "--precision", precision, "--kernels", "compiled"]
                    # Compiling takes a core a few seconds.
                    with ThreadPoolExecutor(len(VARIANTS)) as pool:
                        suits = list(pool.map(lambda variant: self.compiles(path, variant, *flags), VARIANTS))
                    variants = [variant for variant, fits in zip(VARIANTS, suits) if fits]
                    for order in ("store", "target"):
                        row = {"tensor": name, "rank": rank, "precision": precision, "order": order}
                        report = self.resident(row, "taken", path, *flags, "--device-order", order)
                        times = {}
                        for variant in variants:
                            other = {}
                            self.resident(other, "it", path, *flags, "--device-order", order, "--kernel", variant)
                            times[variant] = other["it_device_ms"]
                        best = min(times, key=times.get)
                        self.note(kernel=report["kernels"]["name"].split()[0], **{k: row[k] for k in row if k != "kernel"}, best=best,
                                  best_ms=times[best], taken_to_best=row["taken_device_ms"] / times[best],
                                  variants={k: round(v, 3) for k, v in times.items()})

    def compiles(self, path, variant, *flags):
        """Compiles a variant, into the cache; whether it suits."""
        try:
            self.run(path, *flags, "--kernel", variant)
        except RuntimeError as why:
            if f"kernel {variant}: " in str(why):
                return False
            raise
        return True

    def operation(self, path, common):
        return self.run(path, *common, "--plan")["device"]["operation_bytes"]

    def cold(self, names):
        """A pass from the disk against direct reads of the same files, whole files, as many readers; alternating."""
        for name in names:
            options, rank = TENSORS[name]
            path = self.store(name, options)
            bytes_ = sum(entry.stat().st_size for entry in os.scandir(path))
            for workers in (1, 4):
                ours, theirs = [], []
                for _ in range(3):
                    theirs.append(read_directly(path, workers))
                    report = self.run(path, "--rank", str(rank), "--direct", "--workers", str(workers))
                    ours.append(report["passes"][0]["seconds"])
                a, b = statistics.median(ours), statistics.median(theirs)
                self.note(tensor=name, workers=workers, megabytes=bytes_ / 1e6, cold_pass_s=a, direct_read_s=b, ratio=a / b,
                          read_gbs=bytes_ / b / 1e9)
            subprocess.run(["rm", "-rf", path], check=True)

    def billion(self):
        """A billion nonzeros, generated, packed and run in a fraction of the device's memory."""
        start = time.time()
        path = os.path.join(self.work, "billion.blco")
        self.tool("blco-gen", "--dims", "2902330,2143368,25495389", "--nnz", "1G", "--skew", "2", "--values", "1..5",
                  "--memory", "16GiB", "-q", path)
        packed = time.time() - start
        bytes_ = sum(entry.stat().st_size for entry in os.scandir(path))
        for rank, memory in ((4, "2GB"), (8, "5GB"), (16, "9GB")):
            report = self.run(path, "--rank", str(rank), "--precision", "f32", "--device-memory", memory, "--repeat", "3")
            for i, p in enumerate(report["passes"]):
                self.note(nnz=report["nnz"], rank=rank, store_gb=bytes_ / 1e9, device_memory=memory, packed_s=packed, number=i,
                          pass_s=p["seconds"], gnnz_s=p["nnz_per_second"] / 1e9,
                          copied_gb=p["device"]["copied_bytes"] / 1e9, link_share=p["device"]["link_share"])
        subprocess.run(["rm", "-rf", path], check=True)

    def ttv(self):
        """TTV along the last mode, results consumed in memory: the steps one after the other (T_s), overlapped (T_p, as section 6.2
        of the paper has it, and measured), and with one lane, where nothing overlaps."""
        for name, options in FIBERS.items():
            path = os.path.join(self.work, name + "-fibers.blco")
            if not os.path.exists(path):
                self.tool("blco-gen", *options, "--format", "hocfs", "-q", path)
            for precision in PRECISIONS:
                for kernel, lanes in (("balanced", 4), ("two-level", 4), ("balanced", 1), ("balanced", 3), ("balanced", 5)):
                    report = self.run(path, "--op", "ttv", "--modes", "3", "--precision", precision, "--kernel", kernel,
                                      "--streams", str(lanes), "--repeat", "9")
                    last, steps = report["passes"][-1], report["pipeline"]
                    device, measured = last["device"], report["pipeline_measured_seconds"]
                    later = statistics.median(p["device"]["device_seconds"] for p in report["passes"][2:])
                    self.note(tensor=name, precision=precision, kernel=kernel, lanes=lanes, chunks=last["chunks"],
                              nnz_of_fiber=last["nnz"] / report["elements"], in_mb=device["copied_bytes"] / 1e6,
                              out_mb=device["returned_bytes"] / 1e6, copy_ms=device["copy_seconds"] * 1e3,
                              kernel_ms=device["kernel_seconds"] * 1e3, return_ms=device["return_seconds"] * 1e3,
                              t_s_ms=steps["sequential_seconds"] * 1e3, t_p_ms=steps["pipelined_seconds"] * 1e3,
                              measured_ms=measured * 1e3, measured_of_t_s=measured / steps["sequential_seconds"],
                              median_ms=later * 1e3, pass_ms=last["seconds"] * 1e3)
            subprocess.run(["rm", "-rf", path], check=True)

    def trees(self):
        """MTTKRP of the same nonzeros as trees and as BLCO tiles, resident and streamed."""
        options, rank = PARTS["nell2-20M"]
        for form in ("blco", "hocfs"):
            path = os.path.join(self.work, f"trees-{form}.blco")
            if not os.path.exists(path):
                self.tool("blco-gen", *options, "--values", "1..5", "--format", form, "-q", path)
            for precision in PRECISIONS:
                row = {"format": form, "precision": precision}
                common = [path, "--rank", str(rank), "--precision", precision, "--device-order", "store"]
                self.resident(row, "resident", *common)
                least = self.run(*common, "--plan")["device"]["memory_bytes"]
                report = self.run(*common, "--repeat", "9", "--device-memory", str(least))
                last = report["passes"][-1]
                row.update(streamed_ms=last["seconds"] * 1e3, copied_mb=last["device"]["copied_bytes"] / 1e6,
                           copy_ms=last["device"]["copy_seconds"] * 1e3, kernel_ms=last["device"]["kernel_seconds"] * 1e3)
                self.note(**row)
            subprocess.run(["rm", "-rf", path], check=True)

    def ttmc(self):
        """SpTTMc of the same nonzeros as tiles, trees and segments: in the store's order, each mode alone, and as planned."""
        for name, (options, ranks) in PRODUCTS.items():
            for form in ("blco", "csf", "mmcsf", "fcoo"):
                path = os.path.join(self.work, f"{name}-{form}.blco")
                self.tool("blco-gen", *options, "--values", "1..5", "--format", form, "-q", path)
                for rank in ranks:
                    order = len(options[1].split(","))
                    for precision in PRECISIONS:
                        row = {"tensor": name, "format": form, "rank": rank, "precision": precision}
                        common = ["--op", "ttmc", "--ranks", ",".join([str(rank)] * order), "--precision", precision]
                        self.resident(row, "auto", path, *common, "--modes", "all")
                        report = self.resident(row, "store", path, *common, "--modes", "all", "--device-order", "store")
                        for mode in map(str, range(1, order + 1)):
                            self.resident(row, "mode" + mode, path, *common, "--modes", mode, "--device-order", "store")
                        self.note(as_they_lie=report["device"]["as_they_lie"], **row)
                subprocess.run(["rm", "-rf", path], check=True)

    def cpd(self):
        """An iteration of CP-ALS against the passes of its modes, each by itself, taking turns; updates against passes where factors
        are larger than the tensor."""
        options, rank = TENSORS["nell2"]
        path, iterations = self.store("nell2", options), 22
        for _ in range(3):
            steps = self.decompose(path, rank, iterations)
            row = {"tensor": "nell2", "rank": rank, "iteration_ms": 1e3 * statistics.median(i["seconds"] for i in steps)}
            for part in ("mttkrp", "update", "solve"):
                row[part + "_ms"] = 1e3 * statistics.median(i[part + "_seconds"] for i in steps)
            row["modes_ms"] = 0.0
            for mode in "123":
                report = self.run(path, "--rank", str(rank), "--modes", mode, "--repeat", str(iterations))
                row["modes_ms"] += 1e3 * statistics.median(p["seconds"] for p in report["passes"][2:])
            self.note(**row, ratio=row["iteration_ms"] / row["modes_ms"])
        rows = ["--dims", "532924,17262471,2480308", "--nnz", "10M", "--skew", "2"]
        for order in ("store", "auto"):
            steps = self.decompose(self.store("rows", rows), 16, 6, "--device-order", order)
            passes, updates = (statistics.median(i[part + "_seconds"] for i in steps) for part in ("mttkrp", "update"))
            self.note(tensor="20.3M rows", rank=16, order=order, mttkrp_ms=1e3 * passes, update_ms=1e3 * updates, ratio=updates / passes)

    def decompose(self, path, rank, iterations, *flags):
        """The iterations of a decomposition, without the first two, which copy and sort."""
        common = ["--rank", str(rank), "--tol", "0", "--max-iters", str(iterations), "--backend", "cuda", "--no-output", "-q"]
        return self.tool("blco-cpd", path, *common, *flags)["iterations"][2:]

    def start(self):
        """What a program's start costs with each kind of kernels, first and again."""
        path = self.store("uber", TENSORS["uber"][0])
        for kernels in ("embedded", "compiled"):
            for again in (False, True):
                begin = time.time()
                report = self.run(path, "--kernels", kernels, "--rank", "32", "--repeat", "9")
                seconds = statistics.median(p["seconds"] for p in report["passes"][1:])
                self.note(kernels=kernels, again=again, program_s=time.time() - begin, pass_ms=seconds * 1e3,
                          origin=report["kernels"]["origin"])


def read_directly(path, readers):
    """Seconds in which `readers` threads read the chunks of a store past the page cache, a request a file."""
    names = sorted(e.path for e in os.scandir(path) if e.name.startswith("chunk-"))
    largest = max(os.path.getsize(name) for name in names)

    def read(mine):
        buffer = mmap.mmap(-1, largest)
        for name in mine:
            file = os.open(name, os.O_RDONLY | os.O_DIRECT)
            size, at = os.fstat(file).st_size, 0
            while at < size:
                at += os.preadv(file, [memoryview(buffer)[at:size]], at)
            os.close(file)

    threads = [threading.Thread(target=read, args=(names[i::readers],)) for i in range(readers)]
    begin = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.time() - begin


def main(arguments):
    if len(arguments) < 3:
        sys.exit(__doc__.strip())
    binaries, work, report, *what = arguments
    # What was measured is written also where time is up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(binaries, work)
    chosen = os.environ.get("TENSORS", " ".join(TENSORS)).split()
    jobs = {"start": bench.start, "modes": lambda: bench.modes(chosen), "all": lambda: bench.all(chosen),
            "ranks": lambda: bench.ranks(chosen), "tune": lambda: bench.tune(chosen), "passes": lambda: bench.passes(["nell2", "enron", "nell1s"]),
            "streamed": lambda: bench.streamed(chosen), "tensors": lambda: bench.passes(chosen), "cold": lambda: bench.cold(["nell1s"]),
            "billion": bench.billion, "cpd": bench.cpd, "ttv": bench.ttv, "trees": bench.trees,
            "ttmc": bench.ttmc}
    try:
        for job in what or ["start", "passes", "cold", "billion"]:
            print(f"## {job}", flush=True)
            jobs[job]()
    finally:
        with open(report, "w", encoding="utf-8") as file:
            json.dump(bench.rows, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
