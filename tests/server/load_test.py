"""Many at once: living sandboxes that all answer, streams that lose nothing, cycles that leave nothing behind."""
import concurrent.futures
import glob
import os
import unittest

from island import FULL, Server, eventually

LIVE, STREAMS, CYCLES, IDLE = (1000, 200, 10000, 15000) if FULL else (40, 30, 150, 500)

server = None


def setUpModule():
    global server
    if not FULL:
        print(f"reduced: {LIVE} live sandboxes instead of 1000, {STREAMS} streams instead of 200, {CYCLES} cycles instead of "
              f"10000, {IDLE} idle connections instead of 15000 (tests/server/load_test.py)", flush=True)
    server = Server("--log-access", "false", "--pool", "4")


def tearDownModule():
    server.close()


def footprint():
    """Resident memory in KiB and open descriptors of every process of ours that serves this data directory."""
    pids = [server.process.pid, server.launcher_pid()]
    memory = descriptors = 0
    for pid in pids:
        with open(f"/proc/{pid}/status") as file:
            memory += next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        descriptors += len(os.listdir(f"/proc/{pid}/fd"))
    return memory, descriptors


class Load(unittest.TestCase):
    def test_all_that_live_answer(self):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            made = list(pool.map(lambda i: server.create(memory="64M", metadata={"n": str(i)})["id"], range(LIVE)))
            answers = list(pool.map(lambda i: server.run(made[i], f"echo {i}")["stdout"], range(LIVE)))
            self.assertEqual(answers, [f"{i}\n" for i in range(LIVE)])
            statuses = list(pool.map(lambda sandbox: server.delete(f"/v1/sandboxes/{sandbox}").status, made))
        self.assertEqual(set(statuses), {204})

    def test_streams_lose_nothing(self):
        sandbox = server.create(pids=2048, memory="1G")["id"]

        def follow(i):
            events = server.lines("POST", f"/v1/sandboxes/{sandbox}/commands",
                                  {"command": f"for n in $(seq 300); do echo {i} $n; done", "stream": True})
            return "".join(e["data"] for e in events if e["type"] == "stdout") == "".join(f"{i} {n}\n" for n in range(1, 301))

        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            self.assertTrue(all(pool.map(follow, range(STREAMS))))
        server.delete(f"/v1/sandboxes/{sandbox}")

    def test_cycles_leave_nothing_behind(self):
        def cycle(_):
            sandbox = server.create()["id"]
            self.assertEqual(server.run(sandbox, "echo x")["stdout"], "x\n")
            server.delete(f"/v1/sandboxes/{sandbox}")

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(cycle, range(CYCLES // 3)))  # caches and pools fill
            before = footprint()
            list(pool.map(cycle, range(CYCLES - CYCLES // 3)))
        after = eventually(lambda: (now := footprint()) and now[1] <= before[1] + 40 and now, what="the descriptors to be closed")
        self.assertLess(after[0], before[0] + 32 * 1024, "memory grew")

    def test_idle_connections_are_met_politely(self):
        import resource
        import socket
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(IDLE)]
        try:
            self.assertIn(server.get("/healthz", key="").status, (200, 503))
            half = len(idle) // 2
            for connection in idle[:half]:
                connection.close()
            eventually(lambda: server.get("/v1/sandboxes").status == 200, what="an answer")
        finally:
            for connection in idle:
                connection.close()


if __name__ == "__main__":
    unittest.main()
