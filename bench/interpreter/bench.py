#!/usr/bin/env python3
"""One run: a cell `1+1` in a warm context by our API, beside jupyter_client on a kernel of the same spec in the same sandbox;
create → first result; memory of a sandbox with a warm kernel.

    ISOLA_BINARY=build/dev/bin/isola bench/interpreter/bench.py [ROUNDS]
"""
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/server"))
os.environ.setdefault("ISOLA_BINARY", os.path.join(HERE, "../../build/dev/bin/isola"))
import island  # noqa: E402

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 300

# Inside the sandbox: the reference client, the same kernel spec, the time until the cell's idle message.
REFERENCE = """
import json, statistics, sys, time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name='python3')
def cell():
    begun = time.perf_counter()
    client.execute_interactive('1+1', output_hook=lambda message: None, allow_stdin=False)
    return time.perf_counter() - begun
for _ in range(20): cell()
times = [cell() for _ in range(int(sys.argv[1]))]
print(json.dumps({'p50': statistics.median(times), 'p95': sorted(times)[int(len(times) * 0.95)]}))
manager.shutdown_kernel(now=True)
"""


def main():
    server = island.Server()
    try:
        box = server.create(template="code-interpreter", memory="2G")["id"]
        connection = server.connection()

        def cell(where=box):
            begun = time.perf_counter()
            reply = server.post(f"/v1/sandboxes/{where}/code", {"code": "1+1"}, connection=connection)
            assert reply.status == 200, reply
            return time.perf_counter() - begun

        for _ in range(20):
            cell()
        ours, theirs = [], []
        for _ in range(3):  # by turns, so that both meet the same machine
            ours += [cell() for _ in range(ROUNDS // 3)]
            done = server.run(box, f"python3 - {ROUNDS // 3}", stdin=REFERENCE, user="user")
            theirs.append(json.loads(done["stdout"])["p50"])
        firsts, used = [], []
        for _ in range(5):
            begun = time.perf_counter()
            one = server.create(template="code-interpreter", memory="2G")["id"]
            cell(one)
            firsts.append(time.perf_counter() - begun)
            used.append(server.get(f"/v1/sandboxes/{one}/metrics").json["memory_bytes"])
            server.delete(f"/v1/sandboxes/{one}")
        mine, reference = statistics.median(ours), statistics.median(theirs)
        print(f"1+1, warm, over HTTP        p50 {mine * 1e3:7.2f} ms   p95 {sorted(ours)[int(len(ours) * 0.95)] * 1e3:7.2f} ms")
        print(f"1+1, jupyter_client inside  p50 {reference * 1e3:7.2f} ms")
        print(f"ratio                       {mine / reference:.2f}   (goal: 1.2 or less)")
        print(f"create to first result      p50 {statistics.median(firsts) * 1e3:7.0f} ms   {statistics.median(firsts) / mine:.0f}x the round trip (goal: 10 or less, pooled)")
        print(f"memory of a warm sandbox    {statistics.median(used) / (1 << 20):.0f} MiB")
    finally:
        server.close()


if __name__ == "__main__":
    main()
