#!/usr/bin/env python3
"""Compares two records of `cargo bench --bench host -- ... --json FILE`: tools/compare_runs.py OLD NEW

Prints median and least of both and how many times less the new takes; a rate (its name ends in /s) that differs
says that the machine did. Exits with 1 where a median of seconds has grown by more than a tenth beyond what the machine's
rates explain.
"""
import json
import statistics
import sys


def main(old_path: str, new_path: str) -> int:
    with open(old_path) as old_file, open(new_path) as new_file:
        old, new = json.load(old_file), json.load(new_file)
    rates = [statistics.median(old[k]) / statistics.median(new[k]) for k in old if k in new and "/s, " in k]
    slower = max([1.0, *rates])
    worse = False
    if not any(name in new and "/s, " not in name for name in old):
        sys.exit("the records have no seconds in common: stores are compared by their names")
    print("| | old median | least | new median | least | times less |\n|---|---|---|---|---|---|")
    for name in old:
        if name not in new:
            print(f"| {name} | only in the old record |")
            continue
        a, b = statistics.median(old[name]), statistics.median(new[name])
        is_rate = "/s, " in name
        ratio = b / a if is_rate else a / b
        print(f"| {name} | {a:.4f} | {min(old[name]):.4f} | {b:.4f} | {min(new[name]):.4f} | {ratio:.2f} |")
        worse |= not is_rate and b > 1.1 * slower * a
    for name in sorted(new.keys() - old.keys()):
        print(f"| {name} | only in the new record |")
    return int(worse)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
