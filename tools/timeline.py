#!/usr/bin/env python3
"""Draws what `blco-run --trace FILE` wrote as SVG: a row for what each worker reads, what it checks, each lane and compute stream (on the CPU one for all compute threads);
time goes right.

usage: tools/timeline.py TRACE.json TIMELINE.svg [FROM TO]      FROM and TO in milliseconds
"""
import json
import math
import sys
from html import escape

ROWS = [("read", "worker {}", "read"), ("verify", "checks {}", "verify"), ("compute", "CPU", "compute"), ("copy", "lane {}", "copy"),
        ("kernel", "kernels {}", "kernel"), ("return", "results {}", "return")]
COLOURS = {"read": "#4e79a7", "verify": "#a0cbe8", "compute": "#59a14f", "copy": "#f28e2b", "kernel": "#59a14f", "return": "#b07aa1"}
LEFT, WIDTH, HEIGHT, GAP, TOP = 110, 1200, 18, 4, 44


def round_step(length):
    """1, 2 or 5 times a power of ten, which `length` holds about ten times."""
    power = 10.0 ** math.floor(math.log10(max(length, 1e-6) / 10))
    return next(power * f for f in (1, 2, 5, 10) if power * f * 13 >= length)


def draw(spans, start, end):
    """The SVG's text. Spans outside start to end (seconds) are left out."""
    rows = {}
    for stage, label, _ in ROWS:
        for lane in sorted({s["lane"] for s in spans if s["stage"] == stage}):
            rows.setdefault(label.format(lane + 1), len(rows))
    labels = {stage: label for stage, label, _ in ROWS}
    scale = WIDTH / max(end - start, 1e-9)
    height = TOP + len(rows) * (HEIGHT + GAP) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 40}" height="{height}" '
           'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    present = {s["stage"] for s in spans}
    for i, stage in enumerate(stage for stage in COLOURS if stage in present):
        out.append(f'<rect x="{LEFT + 90 * i}" y="12" width="12" height="12" fill="{COLOURS[stage]}"/>'
                   f'<text x="{LEFT + 90 * i + 17}" y="22">{stage}</text>')
    for label, row in rows.items():
        y = TOP + row * (HEIGHT + GAP)
        out.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>'
                   f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="#f4f4f4"/>')
    for s in spans:
        a, b = max(s["start"], start), min(s["end"], end)
        if b <= a:
            continue
        y = TOP + rows[labels[s["stage"]].format(s["lane"] + 1)] * (HEIGHT + GAP)
        chunk = "all resident chunks" if s["chunk"] is None else f'chunk {s["chunk"]}'
        title = f'{s["stage"]} {chunk}: {1e3 * s["start"]:.3f} to {1e3 * s["end"]:.3f} ms'
        out.append(f'<rect x="{LEFT + (a - start) * scale:.2f}" y="{y}" width="{max((b - a) * scale, 0.3):.2f}" '
                   f'height="{HEIGHT}" fill="{COLOURS[s["stage"]]}" stroke="white" stroke-width="0.3">'
                   f'<title>{escape(title)}</title></rect>')
    bottom = TOP + len(rows) * (HEIGHT + GAP)
    step = round_step(1e3 * (end - start))
    first = math.ceil(1e3 * start / step - 1e-9)
    for i in range(first, math.floor(1e3 * end / step + 1e-9) + 1):
        x = round(LEFT + (i * step / 1e3 - start) * scale, 2)
        out.append(f'<line x1="{x}" y1="{TOP - 4}" x2="{x}" y2="{bottom}" stroke="#bbb" stroke-width="0.5"/>'
                   f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">'
                   f'{i * step:.6g} ms</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main(arguments):
    if len(arguments) not in (2, 4):
        sys.exit(__doc__.strip())
    with open(arguments[0], encoding="utf-8") as file:
        spans = json.load(file)
    if not spans:
        sys.exit(f"{arguments[0]}: holds no spans")
    start, end = (0.0, max(s["end"] for s in spans))
    if len(arguments) == 4:
        start, end = (float(x) / 1e3 for x in arguments[2:])
    with open(arguments[1], "w", encoding="utf-8") as file:
        file.write(draw(spans, start, end))


if __name__ == "__main__":
    main(sys.argv[1:])
