#!/usr/bin/env python3
"""Soak: packs, runs, decomposes, exports, verifies, repairs, replaces under readers, kills, starves and fills disks in turn.

Runs on built programs in a folder, with the standard library alone, so that it can go on for hours on any Linux machine:

    python3 tools/soak.py --bin target/release --seconds 3600 --jobs 4 --json soak.json
    python3 tools/soak.py --bin target/release --seed 7 --round 1234      # again what a failure names

A round is one case of tools/soak_cases.py with its own random numbers, made from the seed and the round's number; workers share rounds
out. Every outcome is held against an oracle (tools/soak_tensor.py) or against what must not change: stores' and results' bytes for any
threads, memory and disturbance; old output or new after a kill, a fault, a full disk; exit status 0, 1 (a failed check), 2 with one line,
130; no panic and nothing left behind. Exit status: 0 no failure, 1 failures, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

from soak_cases import CASES
from soak_run import PROGRAMS, Case, Failed, Soak


def one_round(soak: Soak, seed: int, number: int, keep: bool) -> dict | None:
    """Does a round: the failure, if it is one."""
    rng = Random(f"{seed}/{number}")
    (body,) = rng.choices([body for body, _ in CASES], [weight for _, weight in CASES])
    case = Case(soak, body.__name__, rng, soak.scratch / f"round-{number}")
    soak.count("rounds", case.name)
    try:
        body(case)
    except Failed as failed:
        what = str(failed)
    except Exception:  # what a program wrote cannot even be read, or this script is wrong: both must be seen
        what = traceback.format_exc()
    else:
        what = None
    case.stop_all()
    if what is None or not keep:
        shutil.rmtree(case.dir)
    if what is None:
        return None
    return {"round": number, "case": case.name, "what": what, "commands": case.commands[-6:]}


def work(soak: Soak, options: argparse.Namespace, first: int, until: float, stop, results) -> None:
    """A worker: every n-th round until time is up, or somebody says so."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    number = first
    while time.monotonic() < until and not stop.is_set():
        failure = one_round(soak, options.seed, number, options.keep)
        results.put((Counter(soak.counts), failure))
        soak.counts.clear()
        number += options.jobs


def nested(counts: Counter) -> dict:
    """Counts by kind and outcome, as JSON has them."""
    tree: dict = {}
    for key, n in sorted(counts.items()):
        at = tree
        for part in key[:-1]:
            at = at.setdefault(part, {})
        at[key[-1]] = n
    return tree


def soak(options: argparse.Namespace, scratch: Path) -> dict:
    """Runs all workers and sums up."""
    shared = Soak(options.bin.resolve(), scratch)
    started, counts, failures = time.monotonic(), Counter(), []
    if options.round is not None:
        failure = one_round(shared, options.seed, options.round, options.keep)
        counts, failures = shared.counts, [failure] if failure else []
    else:
        results, stop = multiprocessing.Queue(), multiprocessing.Event()
        until = started + options.seconds
        workers = [multiprocessing.Process(target=work, args=(shared, options, n, until, stop, results)) for n in range(options.jobs)]
        for worker in workers:
            worker.start()
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: stop.set())
        while any(worker.is_alive() for worker in workers) or not results.empty():
            try:
                more, failure = results.get(timeout=1)
            except multiprocessing.queues.Empty:
                continue
            counts += more
            if failure:
                failures.append(failure)
                print(f"round {failure['round']}, {failure['case']}: {failure['what']}", file=sys.stderr, flush=True)
    again = f"python3 tools/soak.py --bin {options.bin} --seed {options.seed} --round"
    for failure in failures:
        failure["again"] = f"{again} {failure['round']}"
    return {
        "seed": options.seed,
        "jobs": options.jobs,
        "processors": os.cpu_count(),
        "load_average": os.getloadavg(),
        "seconds": round(time.monotonic() - started, 1),
        "counts": nested(counts),
        "failures": failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, metavar="DIR", help="the programs")
    parser.add_argument("--seconds", type=float, default=60, help="how long [default: 60]")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers [default: 0]")
    parser.add_argument("--jobs", type=int, default=1, help="workers, each in a directory of its own [default: 1]")
    parser.add_argument("--round", type=int, metavar="N", help="do this round alone")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where workers' directories go [default: the system's]")
    parser.add_argument("--keep", action="store_true", help="keep the directories of rounds that failed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary here too")
    options = parser.parse_args()
    if missing := [name for name in PROGRAMS if not (options.bin / name).is_file()]:
        parser.error(f"{options.bin} lacks {', '.join(missing)}")
    scratch = Path(tempfile.mkdtemp(prefix="soak-", dir=options.scratch))
    try:
        summary = soak(options, scratch)
    finally:
        if not options.keep:
            shutil.rmtree(scratch)
    text = json.dumps(summary, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    return 1 if summary["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
