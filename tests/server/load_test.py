"""Many at once: living sandboxes that all answer, streams that lose nothing, cycles that leave nothing behind."""
import concurrent.futures
import glob
import os
import unittest

from island import FULL, Server, eventually

LIVE, STREAMS, CYCLES, IDLE = (1000, 200, 10000, 15000) if FULL else (40, 30, 150, 500)
LONG_STREAMS = 8 if FULL else 0
GROWTH = 8 * 1024  # KiB, of all processes together, over two thirds of the cycles: allocators round up

server = None


def setUpModule():
    global server
    if not FULL:
        print(f"reduced: {LIVE} live sandboxes instead of 1000, {STREAMS} streams instead of 200, {LONG_STREAMS} long ones instead of 8, {CYCLES} cycles instead of "
              f"10000, {IDLE} idle connections instead of 15000 (tests/server/load_test.py)", flush=True)
    # What the address sanitizer keeps back is not growth.
    # Nor are sandboxes that are parked because many were asked for: as many as before, whoever asks.
    server = Server("--log-access", "false", "--pool", "4", "--pool-most", "4",
                    env={"ASAN_OPTIONS": "quarantine_size_mb=16"})


def tearDownModule():
    server.close()


def status_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def ours():
    """Server, keeper, launcher and gate, by name: those two and what they started, but for what is inside sandboxes."""
    roots = {server.process.pid, server.launcher_pid()}
    found = {}
    for path in glob.glob("/proc/[0-9]*"):
        try:
            status, pid = status_of(path[6:]), int(path[6:])
        except (OSError, ValueError):
            continue
        if (pid in roots or int(status["PPid"]) in roots) and status["Name"].startswith("isola") and status["Name"] != "isola-guest":
            found[pid] = status
    return found


def footprint():
    """Resident memory in KiB and open descriptors of every process of ours that serves this data directory."""
    all_of_them = ours()
    memory = sum(int(status["VmRSS"].split()[0]) for status in all_of_them.values() if "VmRSS" in status)

    def descriptors(pid):
        try:
            return len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:  # gone meanwhile
            return 0
    return memory, sum(descriptors(pid) for pid in all_of_them)


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

        # More than the guest keeps of a command (16 MiB): what is lost on the way cannot be had again. Half of them with a
        # reader that holds its command up, the others as slowly as anybody reads.
        def follow_long(i):
            held, parts, lines = i % 2 == 0, 40, 50000
            pause = "" if held else "sleep 0.5; "
            text, gaps = [], 0
            for event in server.lines("POST", f"/v1/sandboxes/{sandbox}/commands", {
                    "command": f"for p in $(seq {parts}); do seq -f '{i} %.0f' {lines}; {pause}done", "stream": True,
                    "wait_for_reader": held}):
                gaps += event["type"] == "gap"
                if event["type"] == "stdout":
                    text.append(event["data"])
            return gaps == 0 and "".join(text) == "".join(f"{i} {n}\n" for n in range(1, lines + 1)) * parts

        with concurrent.futures.ThreadPoolExecutor(STREAMS + LONG_STREAMS) as pool:
            long = [pool.submit(follow_long, i) for i in range(LONG_STREAMS)]
            self.assertTrue(all(pool.map(follow, range(STREAMS))))
            self.assertEqual([one.result() for one in long], [True] * LONG_STREAMS)
        server.delete(f"/v1/sandboxes/{sandbox}")

    def test_cycles_leave_nothing_behind(self):
        def cycle(_):
            sandbox = server.create()["id"]
            self.assertEqual(server.run(sandbox, "echo x")["stdout"], "x\n")
            server.delete(f"/v1/sandboxes/{sandbox}")

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(cycle, range(CYCLES // 3)))  # caches and pools fill
            # At any moment the launcher may have a child that is just becoming a sandbox: the least is what stays.
            before = [min(of) for of in zip(*(footprint() for _ in range(50)))]
            list(pool.map(cycle, range(CYCLES - CYCLES // 3)))
        eventually(lambda: footprint()[1] <= before[1] + 40, what="the descriptors to be closed")
        most = before[0] + GROWTH * (8 if server.sanitized() else 1)
        eventually(lambda: footprint()[0] < most, what=f"memory not to have grown from {before[0]} KiB beyond {most}")

    def test_leaving_a_command_costs_nothing(self):
        sandbox = server.create()["id"]
        commands = f"/v1/sandboxes/{sandbox}/commands"
        endless = "while :; do echo x; sleep 0.02; done"
        command = server.post(commands, {"command": endless, "background": True}).json["id"]

        def look(_):  # attaches, and leaves while the command goes on
            lines = server.lines("GET", f"{commands}/{command}/output?from=now")
            first = next(lines)["type"]
            lines.close()
            return first

        # More often than a guest has channels.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(set(pool.map(look, range(1100))), {"start"})
        self.assertEqual(server.run(sandbox, "echo x")["stdout"], "x\n")
        server.delete(f"/v1/sandboxes/{sandbox}")

    def test_idle_connections_are_met_politely(self):
        import resource
        import socket
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(IDLE)]
        try:
            # Beyond what the server holds at once it says so; below, it answers.
            with open(f"/proc/{server.process.pid}/limits") as file:
                files = next(int(line.split()[3]) for line in file if line.startswith("Max open files"))
            full = IDLE >= files - max(64, files // 5)
            self.assertEqual(server.get("/healthz", key="").status, 503 if full else 200)
            half = len(idle) // 2
            for connection in idle[:half]:
                connection.close()
            eventually(lambda: server.get("/v1/sandboxes").status == 200, what="an answer")
        finally:
            for connection in idle:
                connection.close()


if __name__ == "__main__":
    unittest.main()
