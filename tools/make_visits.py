#!/usr/bin/env python3
"""Writes docs/visits.csv, the example of README and guide: visits to a web site by three made-up kinds of users."""

import random
from datetime import datetime, timedelta

START = datetime(2026, 3, 2)  # a Monday
KINDS = [
    # users, pages, hours, weekdays
    ([f"dev{i:02}" for i in range(1, 13)], ["/docs", "/api", "/status"], [9, 10, 11, 13, 14, 15, 16], range(5)),
    ([f"reader{i:02}" for i in range(1, 16)], ["/news", "/weather", "/sports"], [6, 7, 7, 8, 18, 19], range(7)),
    ([f"viewer{i:02}" for i in range(1, 11)], ["/films", "/series", "/live"], [20, 21, 21, 22, 23], [3, 4, 5, 6]),
]


def main():
    draw = random.Random(2026)
    rows = []
    for users, pages, hours, weekdays in KINDS:
        for _ in range(600):
            day = START + timedelta(days=draw.choice([d for d in range(28) if d % 7 in weekdays]))
            page = draw.choices(pages, weights=[5, 3, 2])[0]
            rows.append((draw.choice(users), page, day + timedelta(hours=draw.choice(hours), seconds=draw.randrange(3600))))
    everybody = [user for users, _, _, _ in KINDS for user in users]
    everything = [page for _, pages, _, _ in KINDS for page in pages]
    for _ in range(200):
        time = START + timedelta(seconds=draw.randrange(28 * 86400))
        rows.append((draw.choice(everybody), draw.choice(everything), time))
    rows.sort(key=lambda row: row[2])
    with open("docs/visits.csv", "w", encoding="utf-8") as out:
        out.write("user,page,time,seconds\n")
        for user, page, time in rows:
            out.write(f"{user},{page},{time:%Y-%m-%dT%H:%M:%SZ},{draw.randrange(5, 600)}\n")


main()
