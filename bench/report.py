"""What was measured, as a table for people and as JSON for programs: the same as bench/report.h makes of C++ benchmarks."""
import json
import math
import os
import platform
import sys
import time


def percentile(values, p):
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered), max(1, math.ceil(p / 100 * len(ordered)))) - 1]


def time_text(us):
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1e3:.2f} ms" if us < 100_000 else f"{us / 1e6:.3f} s"


class Report:
    def __init__(self):
        self.rows, self.goals, self.notes = [], [], []

    def timing(self, group, name, seconds, note=""):
        us = [1e6 * one for one in seconds]
        row = {"group": group, "name": name, "unit": "us", "n": len(us), "note": note,
               **{f"p{p}": percentile(us, p) for p in (50, 95, 99)}}
        self.rows.append(row)
        self.progress(f"{name}: p50 {time_text(row['p50'])}, p95 {time_text(row['p95'])} (n={len(us)})")
        return row["p50"]

    def value(self, group, name, value, unit, note=""):
        self.rows.append({"group": group, "name": name, "unit": unit, "n": 1, "note": note, "value": value})
        self.progress(f"{name}: {value:.1f} {unit}")

    def goal(self, name, measured, limit, note=""):
        self.goals.append({"name": name, "measured": measured, "limit": limit, "met": measured <= limit, "note": note})

    def note(self, text):
        self.progress("note: " + text)
        self.notes.append(text)

    def progress(self, text):
        print("  " + text, file=sys.stderr, flush=True)

    def table(self):
        out, group = "", None
        for row in self.rows:
            if row["group"] != group:
                group = row["group"]
                out += f"\n### {group}\n\n| what | p50 | p95 | p99 | n | remark |\n| --- | ---: | ---: | ---: | ---: | --- |\n"
            if "p50" in row:
                times = " | ".join(time_text(row[p]) for p in ("p50", "p95", "p99"))
                out += f"| {row['name']} | {times} | {row['n']} | {row['note']} |\n"
            else:
                out += f"| {row['name']} | {row['value']:.1f} {row['unit']} | | | | {row['note']} |\n"
        out += "\n### Goals\n\n| goal | measured | limit | |\n| --- | ---: | ---: | --- |\n"
        for goal in self.goals:
            verdict = "met" if goal["met"] else "**missed**"
            out += f"| {goal['name']} | {goal['measured']:.2f} | {goal['limit']:.2f} | {verdict}{'; ' + goal['note'] if goal['note'] else ''} |\n"
        return out + "\n### Notes\n\n" + "".join(f"- {note}\n" for note in self.notes)

    def write_json(self, path, mode):
        with open(path, "w") as file:
            json.dump({"version": 1, "time": int(time.time()), "mode": mode, "boundary": "jail", "kernel": platform.release(),
                       "cores": os.cpu_count(), "rows": self.rows, "goals": self.goals, "notes": self.notes}, file,
                      indent=1, sort_keys=True, ensure_ascii=False)
            file.write("\n")
