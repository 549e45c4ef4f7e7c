#!/usr/bin/env python3
"""A cell `1+1` in a warm context through our API, beside jupyter_client and a Jupyter server on kernels of the same spec in
the same sandbox; create → first result; a create with a started kernel beside a plain one, both from the pool; memory of one
more sandbox with a started kernel.

    ISOLA_BINARY=build/bin/isola bench/interpreter/bench.py [--quick|--full] [--json FILE] [--table FILE]

Needs the template code-interpreter, and the package index of this machine once (the two of Jupyter are installed into
build/bench/, and brought into the sandbox).
"""
import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "bench"), os.path.join(ROOT, "tests/server")]
os.environ.setdefault("ISOLA_BINARY", os.path.join(ROOT, "build/bin/isola"))
import island  # noqa: E402
from report import Report  # noqa: E402

ROUNDTRIP, FIRST, MEMORY = "Interpreter: `1+1` in a warm context", "Interpreter: create → first result", "Interpreter: memory"
BESIDE = "Interpreter: a pooled create with a started kernel, and one with nothing started"
PLAIN = "minimal"
PACKAGES = ["jupyter_server", "jupyter_client", "websocket-client"]


def provide(version):
    """The packages for that Python, in a folder that the next run finds."""
    folder = os.path.join(ROOT, "build/bench", "jupyter-" + version)
    if not os.path.exists(folder + "/done"):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:", "--implementation", "cp",
                   "--python-version", version, "--upgrade", "--target", folder, *PACKAGES]
        subprocess.run(command, check=True, stdout=sys.stderr)
        open(folder + "/done", "w").close()
    return folder


def packed(*entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, name in entries:
            tar.add(path, name)
    return out.getvalue()


def available():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


class Bench:
    def __init__(self, mode, report):
        self.report = report
        self.rounds, self.rounds_each, self.creates, self.many = {
            "quick": (3, 60, 8, 4), "normal": (6, 150, 30, 8), "full": (12, 250, 100, 20)}[mode]
        self.server = island.Server("--pool", "4")
        self.connection = self.server.connection()

    def cell(self, where):
        begun = time.perf_counter()
        reply = self.server.post(f"/v1/sandboxes/{where}/code", {"code": "1+1"}, connection=self.connection, check=False)
        taken = time.perf_counter() - begun
        assert reply.json["results"][0]["data"]["text/plain"] == "2", reply
        return taken

    def create(self, **fields):
        """Without a look at whether the answer keeps the contract: that takes longer than the create itself."""
        reply = self.server.post("/v1/sandboxes", {"template": "code-interpreter", "memory": "2G", **fields}, check=False)
        assert reply.status == 201, reply
        return reply.json

    def drop(self, where):
        self.server.delete(f"/v1/sandboxes/{where}")

    def settled(self):
        """Until the pool is as full as it gets, and nothing is left to clear away: every round begins like the first."""
        last, since = None, time.monotonic()
        while time.monotonic() - since < 0.5:
            state = self.server.launcher_status()
            now = (state["parked"], state["cleaning"])
            if now != last or state["cleaning"]:
                last, since = now, time.monotonic()
            time.sleep(0.05)

    def inside(self, where, which):
        rounds = self.rounds_each // 5 if which == "server" else self.rounds_each
        done = self.server.run(where, f"PYTHONPATH=/opt/jupyter python3 /opt/inside.py {which} {rounds}", user="user")
        if done["exit_code"] != 0:
            raise RuntimeError(f"{which}: {done['stderr'][-2000:]}")
        return json.loads(done["stdout"].splitlines()[-1])

    def roundtrips(self):
        box = self.create()["id"]
        version = self.server.run(box, "python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'")["stdout"].strip()
        tar = packed((provide(version), "opt/jupyter"), (os.path.join(HERE, "inside.py"), "opt/inside.py"))
        reply = self.server.request("PUT", f"/v1/sandboxes/{box}/files?path=/tmp/jupyter.tar&user=root", tar,
                                    headers={"Content-Type": "application/octet-stream"})
        assert reply.status in (200, 201, 204), reply
        self.server.run(box, "tar -x --no-same-owner -f /tmp/jupyter.tar -C /", user="root")
        for _ in range(30):
            self.cell(box)
        ours, theirs = [], {"client": [], "server": [], "prompt": []}
        for turn in range(self.rounds):  # by turns, so that all meet the same machine
            order = ["ours", *theirs]
            for which in order[turn % 4:] + order[:turn % 4]:
                if which == "ours":
                    ours.append([self.cell(box) for _ in range(self.rounds_each)])
                else:
                    theirs[which].append(self.inside(box, which))
        self.drop(box)
        flat = lambda rounds: [one for round in rounds for one in round]  # noqa: E731
        middle = self.report.timing(ROUNDTRIP, "isola, over HTTP from outside", flat(ours), "one kept connection")
        self.report.timing(ROUNDTRIP, "jupyter_client, inside the sandbox", flat(theirs["client"]), "over the kernel's sockets")
        self.report.timing(ROUNDTRIP, "Jupyter server, inside the sandbox", flat(theirs["server"]), "one WebSocket that stays open")
        self.report.timing(ROUNDTRIP, "the same, acknowledged at once", flat(theirs["prompt"]), "a client with TCP_QUICKACK")
        # The median of the rounds' ratios: what slowed one turn down slowed its neighbours.
        ratio = lambda other: statistics.median(statistics.median(a) / statistics.median(b) for a, b in zip(ours, theirs[other]))  # noqa: E731
        self.report.goal("`1+1` against jupyter_client", ratio("client"), 1.2)
        self.report.goal("`1+1` against a Jupyter server's WebSocket", ratio("server"), 0.5)
        self.report.note(f"against a Jupyter server whose client acknowledges every packet at once: {ratio('prompt'):.2f}")
        return middle / 1e6

    def firsts(self, middle):
        pooled, other = [], []
        for _ in range(self.creates):
            self.settled()
            begun = time.perf_counter()
            made = self.create()
            self.cell(made["id"])
            (pooled if made["birth"] == "pooled" else other).append(time.perf_counter() - begun)
            self.drop(made["id"])
        if not pooled:
            raise RuntimeError("no sandbox came from the pool")
        first = self.report.timing(FIRST, "pooled, with a started kernel", pooled)
        self.report.goal("create → first result, pooled, against the round trip", first / 1e6 / middle, 10)
        if other:
            self.report.note(f"{len(other)} of {self.creates} creates did not come from the pool and are left out")
        cold = []
        for _ in range(max(2, self.creates // 10)):
            begun = time.perf_counter()
            made = self.create(cold=True)
            self.cell(made["id"])
            cold.append(time.perf_counter() - begun)
            self.drop(made["id"])
        self.report.timing(FIRST, "cold: the kernel starts with the first cell", cold)

    def command(self, template):
        """Seconds of a create, and of it with a first command; None: it did not come from the pool."""
        self.settled()
        begun = time.perf_counter()
        reply = self.server.post("/v1/sandboxes", {"template": template, "memory": "2G"}, connection=self.connection, check=False)
        created = time.perf_counter() - begun
        made = reply.json
        assert reply.status == 201, reply
        reply = self.server.post(f"/v1/sandboxes/{made['id']}/commands", {"argv": ["echo", "hello"]}, connection=self.connection,
                                 check=False)
        taken = time.perf_counter() - begun
        assert reply.json["stdout"] == "hello\n", reply
        self.drop(made["id"])
        return (created, taken) if made["birth"] == "pooled" else None

    def beside_plain(self):
        """The same create and the same command, by turns: what is started in the one of them is all that differs."""
        pairs = []
        for turn in range(-2, self.creates):
            order = ("code-interpreter", PLAIN) if turn % 2 else (PLAIN, "code-interpreter")
            times = {template: self.command(template) for template in order}
            if turn >= 0 and all(times.values()):
                pairs.append((times["code-interpreter"], times[PLAIN]))
        if not pairs:
            raise RuntimeError("no two sandboxes came from the pool")
        if len(pairs) < self.creates:
            self.report.note(f"{self.creates - len(pairs)} of {self.creates} pairs of creates did not come from the pool and are left out")
        for which, name in enumerate(("with a started kernel", f"plain ({PLAIN})")):
            for part, what in enumerate(("create", "create → first output of a command")):
                self.report.timing(BESIDE, f"pooled, {name}: {what}", [pair[which][part] for pair in pairs])
        ratio = lambda part: statistics.median(started[part] / plain[part] for started, plain in pairs)  # noqa: E731
        self.report.goal("pooled create with a started kernel, against a plain one", ratio(0), 1.5)
        self.report.goal("the same, until the first output of a command", ratio(1), 1.5)

    def memory(self):
        self.settled()
        before, made = available(), []
        for _ in range(self.many):
            made.append(self.create()["id"])
            self.cell(made[-1])
            self.settled()
        used = (before - available()) / self.many
        counted = [self.server.get(f"/v1/sandboxes/{one}/metrics").json["memory_bytes"] for one in made]
        for one in made:
            self.drop(one)
        self.report.value(MEMORY, "one more sandbox with a started kernel", used / (1 << 20), "MiB",
                          f"MemAvailable, over {self.many}; numpy, pandas and matplotlib are imported")
        self.report.value(MEMORY, "the same, as its control group counts", statistics.median(counted) / (1 << 20), "MiB")

    def run(self):
        # The first sandbox makes the server bring up the image that the others come from.
        until = time.monotonic() + 120
        while time.monotonic() < until:
            made = self.create()
            begun = self.server.get(f"/v1/sandboxes/{made['id']}/contexts").json["contexts"]
            self.drop(made["id"])
            if made["birth"] == "pooled" and begun:
                break
            self.settled()
        self.settled()
        middle = self.roundtrips()
        self.firsts(middle)
        self.beside_plain()
        self.memory()


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--quick", action="store_const", const="quick", dest="mode", default="normal")
    parser.add_argument("--full", action="store_const", const="full", dest="mode")
    parser.add_argument("--json")
    parser.add_argument("--table")
    asked = parser.parse_args()
    report = Report()
    report.note("boundary: jail (a shared kernel); template code-interpreter")
    if os.getloadavg()[0] > 0.5:
        report.note(f"the machine was busy when this began (load {os.getloadavg()[0]:.2f})")
    bench = Bench(asked.mode, report)
    failed = 0
    try:
        bench.run()
    except Exception as error:  # what was measured before it is still worth its row
        report.note(f"failed: {error}")
        failed = 1
    finally:
        bench.server.close()
    table = report.table()
    if asked.table:
        with open(asked.table, "w") as file:
            file.write(table)
    if asked.json:
        report.write_json(asked.json, asked.mode)
    print(table, end="")
    return failed


if __name__ == "__main__":
    sys.exit(main())
