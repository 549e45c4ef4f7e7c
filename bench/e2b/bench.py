#!/usr/bin/env python3
"""create → commands.run('echo hi') → kill through E2B's own JavaScript SDK, beside the same SDK against a server that does
nothing; commands that stream at the same time, every line counted; a large file up and down, beside nginx with the same
client.

    ISOLA_BINARY=build/bin/isola bench/e2b/bench.py [--quick|--full] [--json FILE] [--table FILE] [--keep-log FILE]

On the template `base`, which the SDK asks for, where that is built. A goal that is missed is listed, with what was
measured, and stated in docs/performance.md; what fails is a measurement that could not be made.
Needs the package of the SDK once (the registry of this machine; it is kept in the machine's cache).
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "bench"), os.path.join(ROOT, "tests/server"), os.path.join(ROOT, "tests/conformance/e2b")]
os.environ.setdefault("ISOLA_BINARY", os.path.join(ROOT, "build/bin/isola"))
from island import Server  # noqa: E402
import provide  # noqa: E402
from report import Report  # noqa: E402

def templates():
    listed = subprocess.run([os.environ["ISOLA_BINARY"], "template", "ls", "--json"], capture_output=True, text=True)
    return [one["name"] for one in json.loads(listed.stdout or "[]")] if listed.returncode == 0 else []


LIFE, STREAMS, FILES = ("E2B's SDK: create → `echo hi` → kill", "E2B's SDK: commands that stream at the same time",
                        "E2B's SDK: a large file")


def lives(report, line):
    ours, floor = line["isola"], line["floor"]
    for whose, one in (("the SDK's floor", floor), ("isola", ours)):
        wanted = len(one["times"]) + len(one["failures"])
        note = f"{100 * len(one['times']) / wanted:.1f} % of {wanted} succeeded; {sum(one['totals']) / 1000:.2f} s in all"
        if one["times"]:
            report.timing(LIFE, f"{line['name']}, {whose}", [ms / 1000 for ms in one["times"]], note)
    for why in sorted(set(ours["failures"]))[:3]:
        report.note(f"{line['name']}: {why}")
    report.goal(f"{line['name']}: lives that failed", len(ours["failures"]), 0)
    if not ours["times"] or not floor["times"]:
        return
    if line["atOnce"] == 1:
        report.goal("one by one: our part, p50, ms", statistics.median(ours["times"]) - statistics.median(floor["times"]), 5)
    if line["name"] == "100 at once":
        report.goal("100 at once: total against the floor's",
                    statistics.median(a / b for a, b in zip(ours["totals"], floor["totals"])), 3)


def streams(report, line):
    report.value(STREAMS, f"{line['streams']} commands of {line['lines']} lines", line["streams"] * line["lines"] / line["seconds"],
                 "lines/s", f"{line['wrong']} with a line lost or out of order")
    report.goal("streams with a line lost or out of order", line["wrong"], 0)


def files(report, line):
    size = f"{line['mebibytes']} MiB"
    for way in ("up", "down"):
        mine = [one["isola"][way] for one in line["rounds"]]
        report.value(FILES, f"{size} {way}, isola", statistics.median(mine), "MiB/s")
        theirs = [one["nginx"][way] for one in line["rounds"] if one["nginx"]]
        if not theirs:
            report.note("there is no nginx to compare with")
            continue
        report.value(FILES, f"{size} {way}, nginx with the same client", statistics.median(theirs), "MiB/s")
        # As times: more is worse, as with every goal.
        report.goal(f"{size} {way}: our time against nginx's (1 / 0.7)", statistics.median(b / a for a, b in zip(mine, theirs)), 1 / 0.7)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--quick", action="store_const", const="quick", dest="mode", default="normal")
    parser.add_argument("--full", action="store_const", const="full", dest="mode")
    for name in ("--json", "--table", "--keep-log"):
        parser.add_argument(name)
    asked = parser.parse_args()
    report = Report()
    try:
        folder, node = provide.provide("js", provide.versions()["js"][0]), provide.node()
    except provide.Unreachable as why:
        print(f"the SDK cannot be had here: {why}", file=sys.stderr)
        return 1
    template = os.environ.get("E2B_TEMPLATE") or ("base" if "base" in templates() else "minimal")
    report.note(f"boundary: jail (a shared kernel); template {template}")
    if os.getloadavg()[0] > 0.5:
        report.note(f"the machine was busy when this began (load {os.getloadavg()[0]:.2f})")
    server = Server("--pool", os.environ.get("ISOLA_BENCH_POOL", "8"))
    try:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        env = {**kept, "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": server.key,
               "E2B_PACKAGE": folder, "E2B_TEMPLATE": template}
        words = [node, os.path.join(HERE, "bench.mjs"), *(["--quick"] if asked.mode == "quick" else [])]
        process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
        for text in process.stdout:
            line = json.loads(text)
            if line["kind"] == "about":
                report.note(f"e2b {line['sdk']} on npm, node {line['node']}")
            elif line["kind"] == "failed":
                report.note(f"failed: {line['name']}: {line['why']}")
            else:
                {"lives": lives, "streams": streams, "files": files}[line["kind"]](report, line)
        failed = process.wait()
    finally:
        if asked.keep_log:
            shutil.copy(os.path.join(server.data, "test.log"), asked.keep_log)
        server.close()
    table = report.table()
    if asked.table:
        with open(asked.table, "w") as file:
            file.write(table)
    else:
        print(table)
    if asked.json:
        report.write_json(asked.json, asked.mode)
    # A goal that is missed stands in the table, as in the other benchmarks: it is no measurement that failed.
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
