"""kill -9 of the server, and of the launcher, at random moments while clients work: nothing acknowledged is lost, and
nothing is left behind that nobody knows."""
import glob
import os
import random
import signal
import threading
import time
import unittest

from island import FULL, Server, eventually

ROUNDS = 200 if FULL else 6


def guests_of(data):
    """Living processes whose pid-1 program is ours, whatever launcher made them."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(path) as file:
                if file.read().strip() == "isola-guest":
                    found.add(int(path.split("/")[2]))
        except OSError:
            pass
    return found


def left_behind():
    groups = set()
    for folder, folders, _ in os.walk("/sys/fs/cgroup"):
        groups.update(os.path.join(folder, f) for f in folders if f.startswith("i") and len(f) == 21)
    with open("/proc/mounts") as file:
        mounts = sum("isola-server-" in line for line in file)
    return {"guests": guests_of(None), "groups": groups, "mounts": mounts}


class Client(threading.Thread):
    """Creates, runs, kills; remembers what it was told."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stopping = server, False
        self.acknowledged, self.deleted = set(), set()
        self.wrong = []

    def run(self):
        while not self.stopping:
            try:
                reply = self.server.post("/v1/sandboxes", {"timeout": 3600})
                if reply.status == 201:
                    made = reply.json["id"]
                    self.acknowledged.add(made)
                    done = self.server.post(f"/v1/sandboxes/{made}/commands", {"command": "echo $((6*7))"})
                    if done.status == 200 and done.json["stdout"] != "42\n":
                        self.wrong.append(done.body)
                    if random.random() < 0.7:
                        if self.server.delete(f"/v1/sandboxes/{made}").status == 204:
                            self.deleted.add(made)
                elif reply.status not in (503, 500):
                    self.wrong.append(reply.body)
            except (OSError, ValueError, AssertionError, Exception) as error:  # the server is being killed
                if "HTTP" not in type(error).__name__ and not isinstance(error, OSError):
                    if not isinstance(error, (ValueError,)):
                        self.wrong.append(repr(error))
                time.sleep(0.02)


class Crash(unittest.TestCase):
    def crash(self, victim):
        before = left_behind()
        server = Server("--pool", "1", "--log-access", "false")
        port = server.port
        clients = [Client(server) for _ in range(3)]
        try:
            [c.start() for c in clients]
            for _ in range(ROUNDS):
                time.sleep(random.uniform(0.05, 0.5))
                if victim == "server":
                    server.process.send_signal(signal.SIGKILL)
                    server.process.wait()
                    server.start(port)
                else:
                    try:
                        os.kill(server.launcher_pid(), signal.SIGKILL)
                    except (KeyError, ValueError, ProcessLookupError):
                        pass  # it is just being restarted
            for client in clients:
                client.stopping = True
            [c.join(60) for c in clients]
            eventually(lambda: server.get("/readyz", key="").status == 200)
            for client in clients:
                self.assertEqual(client.wrong, [])
                self.assertGreater(len(client.acknowledged), 0)
                for sandbox in client.acknowledged:
                    reply = server.get(f"/v1/sandboxes/{sandbox}")
                    self.assertEqual(reply.status, 200, sandbox)
                    record = reply.json
                    if sandbox in client.deleted:
                        self.assertEqual(record["state"], "ended")
                    elif record["state"] == "running":
                        eventually(lambda: server.post(f"/v1/sandboxes/{sandbox}/commands", {"command": "true"}).status == 200)
                    else:
                        self.assertIn("end_reason", record)
            # What the launcher has and what the store says are the same set, once both have settled.
            alive = {s["id"] for s in server.get("/v1/sandboxes?state=running&limit=1000").json["sandboxes"]}
            for sandbox in alive:
                self.assertEqual(server.delete(f"/v1/sandboxes/{sandbox}").status, 204)
        finally:
            for client in clients:
                client.stopping = True
            server.close()
        after = eventually(lambda: (now := left_behind()) and now["guests"] <= before["guests"] and
                           now["groups"] <= before["groups"] and now["mounts"] <= before["mounts"] and now or None,
                           what="a clean machine")
        self.assertLessEqual(after["mounts"], before["mounts"])

    def test_killing_the_server(self):
        self.crash("server")

    def test_killing_the_launcher(self):
        self.crash("launcher")


if __name__ == "__main__":
    if not FULL:
        print(f"reduced: {ROUNDS} kills of each kind instead of 200 (tests/server/crash_test.py)")
    unittest.main()
