#!/usr/bin/env python3
"""What the search for bound values costs a stream: the output of a command, a file and a port, of a sandbox with a
binding and of one without, in turns within one run.

    ISOLA_BINARY=build/bin/isola python3 bench/scan/stream.py [--quick|--full] [--json FILE] [--table FILE]

Must be root; needs the template `minimal`. `./dev bench --gate` runs it."""
import argparse
import os
import secrets
import socket
import statistics
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
os.environ.setdefault("ISOLA_BINARY", os.path.join(ROOT, "build/bin/isola"))
sys.path[:0] = [os.path.join(ROOT, "tests/server"), os.path.join(ROOT, "bench")]
from island import Server  # noqa: E402
from report import Report  # noqa: E402

GOAL = 0.10
# A sample is so many connections, in turn to each of so many sandboxes: which of the server's threads takes a connection
# is chance, which has a sandbox is settled at its birth, and whether they are the same one matters more than the search.
PARTS, BOXES = 8, 2
ROADS = ("output of a command", "a file", "a port")
MIB = 1 << 20
# Text as programs print it, with beginnings of the value among it, as any text has.
WRITER = """
import os, random, sys
random.seed(1)
words = ['alpha', 'beta', 'compile', 'warning:', 'src/main.cc:12', 'k', 'ok', '0x7f3a', 'done']
block = (' '.join(random.choice(words) for _ in range(20000)) + '\\n').encode()[:65536]
left = int(sys.argv[1])
while left > 0: left -= os.write(1, block[:left])
"""
PORT = """
import socket, subprocess, sys
listener = socket.create_server(('127.0.0.1', 8000))
print('listening', flush=True)
while True:
    peer, _ = listener.accept()
    while b'\\r\\n\\r\\n' not in peer.recv(65536): pass
    size = int(sys.argv[1])
    peer.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n' % size)
    peer.sendfile(open('/tmp/file', 'rb'))
    peer.close()
"""


def drain(server, method, path, body=b""):
    """Bytes that came, and seconds; nothing of them is looked at."""
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\nConnection: close\r\n"
        begin = time.perf_counter()
        plain.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        buffer, total = bytearray(1 << 20), 0
        while n := plain.recv_into(buffer):
            total += n
        return total, time.perf_counter() - begin


def make(server, size, secret=None):
    box = server.create(timeout=3600, network="allow api.example.org:443", disk="4G")["id"]
    if secret:
        made = server.post("/v1/secrets", {"name": secret, "value": "k3y-" + secrets.token_hex(20)})
        assert made.status == 201, made
        made = server.post(f"/v1/sandboxes/{box}/bindings", {"secret": secret, "names": ["api.example.org"]})
        assert made.status == 201, made
    for path, program in (("/tmp/writer.py", WRITER), ("/tmp/port.py", PORT)):
        server.request("PUT", f"/v1/sandboxes/{box}/files?path={path}", program.encode())
    made = server.run(box, f"python3 /tmp/writer.py {size} > /tmp/file")
    assert made["exit_code"] == 0, made
    lines = server.lines("POST", f"/v1/sandboxes/{box}/commands", {"command": f"python3 /tmp/port.py {size}", "stream": True})
    while next(lines)["type"] != "stdout":
        pass
    return box, lines


def sample(server, road, boxes, size):
    """MiB a second, over all connections of one sample."""
    total, time_taken = 0, 0.0
    for part in range(PARTS):
        at = f"/v1/sandboxes/{boxes[part % BOXES][0]}"
        run = b'{"command": "python3 /tmp/writer.py %d", "stream": true}' % size
        asked = {ROADS[0]: ("POST", f"{at}/commands", run), ROADS[1]: ("GET", f"{at}/files?path=/tmp/file", b""),
                 ROADS[2]: ("GET", f"{at}/ports/8000/", b"")}[road]
        got, seconds = drain(server, *asked)
        # A command does not wait for whoever reads: what came too fast is left out, and is not counted.
        assert got >= size or road == ROADS[0], (road, got)
        total, time_taken = total + got, time_taken + seconds
    return total / time_taken / MIB


def measure(size, rounds, report):
    server = Server()
    part = size // PARTS
    try:
        boxes = {"without": [], "with": []}
        for i in range(BOXES):
            boxes["without"].append(make(server, part))
            boxes["with"].append(make(server, part, f"bench-{i}"))
        rates = {}
        for turn in range(rounds + 1):
            for road in ROADS:
                for which in list(boxes) if turn % 2 else list(boxes)[::-1]:
                    rate = sample(server, road, boxes[which], part)
                    if turn:  # the first one warms up
                        rates.setdefault((road, which), []).append(rate)
    finally:
        server.close()
    group = f"Streams out of a sandbox, read over HTTP, {PARTS} of {part // MIB} MiB in a sample"
    for road in ROADS:
        # What slowed one round down slowed both.
        kept = statistics.median(b / a for a, b in zip(rates[road, "without"], rates[road, "with"]))
        for which, name in (("without", "nothing bound"), ("with", "searched for a value")):
            all_of = rates[road, which]
            report.value(group, f"{road}, {name}", statistics.median(all_of), "MiB/s",
                         f"{min(all_of):.0f} to {max(all_of):.0f}" + (f"; loses {1 - kept:.1%}" if which == "with" else ""))
        report.goal(f"{road}, not searched / searched (it loses ≤ {GOAL:.0%})", 1 / kept, 1 / (1 - GOAL),
                    f"it loses {1 - kept:.1%}")


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--quick", action="store_const", const="quick", dest="mode", default="normal")
    parser.add_argument("--full", action="store_const", const="full", dest="mode")
    parser.add_argument("--json")
    parser.add_argument("--table")
    asked = parser.parse_args()
    size, rounds = {"quick": (64 * MIB, 3), "normal": (256 * MIB, 9), "full": (256 * MIB, 25)}[asked.mode]
    report = Report()
    report.note("boundary: jail (a shared kernel); template minimal; one binding with a value of 44 bytes")
    if os.getloadavg()[0] > 0.5:
        report.note(f"the machine was busy when this began (load {os.getloadavg()[0]:.2f})")
    failed = 0
    try:
        measure(size, rounds, report)
    except Exception as error:
        report.note(f"failed: {error}")
        failed = 1
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
