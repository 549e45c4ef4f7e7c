"""Budgets over real HTTP: five amounts, three scopes, and what happens when one is reached."""
import json
import signal
import socket
import subprocess
import threading
import time
import unittest

from island import Server, eventually

server = None
BUSY = "while :; do :; done"
# Of CPU time, not of the clock: a busy machine gives less of one than of the other.
BUSY_A_WHILE = "python3 -c 'import time\nwhile time.process_time() < 0.6: pass'"


def setUpModule():
    global server
    # A second of CPU costs 1.
    server = Server("--sample", "300ms", "--prices-cpu-hour", "3600")


def tearDownModule():
    server.close()


def host_address():
    """An address of this machine that a sandbox does not take for its own."""
    found = subprocess.run(["ip", "-4", "-o", "addr", "show", "scope", "global"], capture_output=True, text=True).stdout
    return found.split()[3].split("/")[0] if found else None


class Sink:
    """Takes what is sent to it, and closes."""

    def __init__(self, address):
        self.socket = socket.create_server((address, 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.take, daemon=True).start()

    def take(self):
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            while peer.recv(65536):
                pass
            peer.close()


def look(sandbox, key):
    return server.get(f"/v1/sandboxes/{sandbox}", key=key).json


def ended(sandbox, key=None):
    return eventually(lambda: (r := look(sandbox, key))["state"] == "ended" and r, what="the end")


class EveryAmountInEveryScope(unittest.TestCase):
    number = 0

    def make(self, scope, budget, network="none"):
        """A sandbox under that budget; gives its id and the key that reaches it."""
        EveryAmountInEveryScope.number += 1
        name = f"b{self.number}"
        if scope == "sandbox":
            return server.create(budget=budget, network=network)["id"], None
        if scope == "task":
            set_to = server.request("PUT", f"/v1/tasks/{name}", {"budget": budget})
            self.assertEqual(set_to.status, 200, set_to)
            return server.create(task=name, network=network)["id"], None
        project = server.post("/v1/projects", {"name": name, "budget": budget}).json
        if network != "none":
            server.request("PATCH", f"/v1/projects/{project['id']}", {"ceiling": network})
        key = server.post("/v1/keys", {"project": project["id"]}).json["secret"]
        made = server.post("/v1/sandboxes", {"network": network}, key=key)
        self.assertEqual(made.status, 201, made)
        return made.json["id"], key

    def each_scope(self, budget, spend, **more):
        for scope in ("sandbox", "task", "project"):
            with self.subTest(scope=scope, budget=budget):
                sandbox, key = self.make(scope, budget, **more)
                spend(sandbox, key)
                record = ended(sandbox, key)
                whose = {"sandbox": "its", "task": "its task's", "project": "its project's"}[scope]
                self.assertEqual((record["end_reason"], record["end_detail"]),
                                 ("limit", f"{whose} budget of {next(iter(budget))} is spent"))
                if scope == "project":
                    refused = server.post("/v1/sandboxes", {}, key=key)
                elif scope == "task":
                    refused = server.post("/v1/sandboxes", {"task": record["task"]})
                    used = server.get(f"/v1/tasks/{record['task']}").json
                    self.assertEqual(used["spent"], next(iter(budget)), used)
                else:
                    continue
                self.assertEqual((refused.status, refused.json["error"]["code"]), (429, "exhausted"))

    def work(self, sandbox, key, command=BUSY):
        reply = server.post(f"/v1/sandboxes/{sandbox}/commands", {"command": command, "background": True}, key=key)
        self.assertEqual(reply.status, 202, reply)

    def test_cpu_seconds(self):
        self.each_scope({"cpu_seconds": 0.3}, self.work)

    def test_wall_seconds(self):
        self.each_scope({"wall_seconds": 1}, lambda sandbox, key: None)

    def test_commands(self):
        def spend(sandbox, key):
            path = f"/v1/sandboxes/{sandbox}/commands"
            for _ in range(2):
                self.assertEqual(server.post(path, {"command": "true"}, key=key).status, 200)
            over = server.post(path, {"command": "true"}, key=key)
            self.assertEqual((over.status, over.json["error"]["code"]), (429, "exhausted"))
            self.assertIn("commands", over.json["error"]["message"])

        self.each_scope({"commands": 2}, spend)

    def test_bytes_out(self):
        address = host_address()
        if not address:
            self.skipTest("this machine has no address but loopback")
        sink = Sink(address)
        send = (f"import socket; s = socket.create_connection(('{address}', {sink.port})); s.sendall(b'x' * 200000); "
                "s.shutdown(1); s.recv(1)")
        self.each_scope({"bytes_out": 100000}, lambda sandbox, key: self.work(sandbox, key, f'python3 -c "{send}"'),
                        network=f"allow {address}/32:{sink.port}\ndefault deny\n")
        sink.socket.close()

    def test_money(self):
        self.each_scope({"money": 0.3}, self.work)


class AtTheLimit(unittest.TestCase):
    def test_a_frozen_one_can_be_thawed_once_there_is_more(self):
        made = server.create(budget={"cpu_seconds": 0.3, "at_limit": "freeze"})
        path = f"/v1/sandboxes/{made['id']}"
        server.post(path + "/commands", {"command": BUSY, "background": True})
        frozen = eventually(lambda: (r := server.get(path).json)["state"] == "frozen" and r, what="the freeze")
        self.assertEqual(frozen["frozen_reason"], "its budget of cpu_seconds is spent")
        held = server.post(path + "/thaw")
        self.assertEqual((held.status, held.json["error"]["code"]), (429, "exhausted"))
        more = server.request("PATCH", path, {"budget": {"cpu_seconds": 600}})
        self.assertEqual(more.json["budget"], {"cpu_seconds": 600, "at_limit": "end"})
        self.assertEqual(server.post(path + "/thaw").json["state"], "running")
        self.assertEqual(server.run(made["id"], "echo on")["stdout"], "on\n")
        server.delete(path)

    def test_a_paused_one_can_be_resumed_once_there_is_more(self):
        if not server.launcher_status().get("checkpointer"):
            self.skipTest("no criu here; `./dev criu` provides one")
        made = server.create(budget={"cpu_seconds": 0.3, "at_limit": "pause"})
        path = f"/v1/sandboxes/{made['id']}"
        server.post(path + "/commands", {"command": BUSY, "background": True})
        paused = eventually(lambda: (r := server.get(path).json)["state"] == "paused" and r, what="the pause")
        self.assertEqual(paused["paused_reason"], "its budget of cpu_seconds is spent")
        for refused in (server.post(path + "/resume"), server.post(path + "/commands", {"command": "true"})):
            self.assertEqual((refused.status, refused.json["error"]["code"]), (429, "exhausted"))
        server.stop(signal.SIGKILL)
        server.start(server.port)
        self.assertEqual(server.get(path).json["paused_reason"], "its budget of cpu_seconds is spent")
        server.request("PATCH", path, {"budget": {"cpu_seconds": 600}})
        self.assertEqual(server.run(made["id"], "pgrep -c yes || pgrep -c sh; echo on")["stdout"].split()[-1], "on")
        self.assertNotIn("paused_reason", server.get(path).json)
        server.delete(path)

    def test_commands_hold_what_they_paused(self):
        if not server.launcher_status().get("checkpointer"):
            self.skipTest("no criu here; `./dev criu` provides one")
        for action, state, back in (("pause", "paused", "/resume"), ("freeze", "frozen", "/thaw")):
            made = server.create(budget={"commands": 1, "at_limit": action})
            path = f"/v1/sandboxes/{made['id']}"
            self.assertEqual(server.run(made["id"], "echo one")["stdout"], "one\n")
            kept = server.post(path + "/snapshot")
            self.assertEqual(kept.status, 201, kept)
            self.assertEqual(server.post(path + "/commands", {"command": "true"}).status, 429)
            eventually(lambda: server.get(path).json["state"] == state, what=action)
            for refused in (server.post(path + back), server.post(path + "/commands", {"command": "true"})):
                self.assertIn(refused.status, (409, 429), refused)
                self.assertEqual(server.get(path).json["state"], state)
            if action == "freeze":  # nor is it freed by being put to sleep
                self.assertEqual(server.post(path + "/pause").status, 200)
                self.assertEqual(server.get(path).json["paused_reason"], "its budget of commands is spent")
                self.assertEqual(server.post(path + "/resume").status, 429)
                back = "/resume"
            if action == "pause":
                self.assertEqual(server.get(path + "/files/stat?path=/").status, 429, "a call does not resume it")
                self.assertEqual(server.post(path + "/rollback", {"snapshot": kept.json["id"]}).status, 429)
            server.delete("/v1/snapshots/" + kept.json["id"])
            server.request("PATCH", path, {"budget": {"commands": 5}})
            self.assertEqual(server.post(path + back).status, 200)
            self.assertEqual(server.run(made["id"], "echo on")["stdout"], "on\n")
            server.delete(path)

    def test_a_one_shot_run_says_which_limit_it_reached(self):
        spent = server.post("/v1/run", {"command": BUSY, "budget": {"cpu_seconds": 0.3}, "timeout": 60})
        self.assertEqual((spent.status, spent.json["error"]["code"]), (429, "exhausted"))
        self.assertEqual(spent.json["error"]["message"], "its budget of cpu_seconds is spent")
        for action in ("freeze", "pause"):
            self.assertEqual(server.post("/v1/run", {"command": "true", "budget": {"commands": 1, "at_limit": action}}).status, 400)

    def test_what_the_service_runs_itself_does_not_count(self):
        made = server.create(budget={"commands": 1}, on_create=["true", "true"], probe="true")
        path = f"/v1/sandboxes/{made['id']}"
        server.request("PUT", path + "/files?path=/tmp/x", b"x")
        self.assertEqual(server.get(path + "/files/tar?path=/tmp").status, 200)
        self.assertEqual(server.run(made["id"], "echo first")["stdout"], "first\n")
        self.assertEqual(server.post(path + "/commands", {"command": "true"}).status, 429)
        self.assertEqual(ended(made["id"])["end_detail"], "its budget of commands is spent")

    def test_wall_time_stands_still_in_the_ice(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}"
        server.post(path + "/freeze")
        time.sleep(2)
        server.post(path + "/thaw")
        server.delete(path)
        used = server.get(f"/v1/usage?sandbox={made['id']}").json["usage"][0]
        self.assertLess(used["wall_seconds"], 1.9, used)

    def test_a_task_that_visits_ends_its_own_commands_only(self):
        made = server.create(task="host")
        path = f"/v1/sandboxes/{made['id']}/commands"
        server.request("PUT", "/v1/tasks/visit-a", {"budget": {"commands": 1}})
        self.assertEqual(server.post(path, {"command": "true", "task": "visit-a"}).status, 200)
        self.assertEqual(server.post(path, {"command": "true", "task": "visit-a"}).status, 429)
        self.assertEqual(server.post(path, {"command": "true"}).status, 200)
        server.request("PUT", "/v1/tasks/visit-b", {"budget": {"cpu_seconds": 0.3}})
        command = server.post(path, {"command": BUSY, "task": "visit-b", "background": True}).json["id"]
        over = eventually(lambda: (r := server.get(f"{path}/{command}").json).get("ended") and r, what="its end")
        self.assertEqual((over["end_reason"], over["signal"]), ("limit", 9))
        self.assertEqual(server.run(made["id"], "echo alive")["stdout"], "alive\n")
        server.delete(f"/v1/sandboxes/{made['id']}")
        used = {u["group"]: u for u in server.get("/v1/usage?by=task").json["usage"]}
        self.assertGreaterEqual(used["visit-b"]["cpu_seconds"], 0.3)
        self.assertLess(used["host"]["cpu_seconds"], used["visit-b"]["cpu_seconds"])

    def test_what_was_used_before_counts(self):
        made = server.create(task="late")
        server.run(made["id"], BUSY_A_WHILE)
        said = server.request("PUT", "/v1/tasks/late", {"budget": {"cpu_seconds": 0.2}})
        self.assertEqual(said.status, 200, said)
        self.assertEqual(ended(made["id"])["end_detail"], "its task's budget of cpu_seconds is spent")
        self.assertGreater(server.get("/v1/tasks/late").json["used"]["cpu_seconds"], 0.4)
        freed = server.request("PUT", "/v1/tasks/late", {"budget": {}}).json
        self.assertEqual((freed["budget"], freed["spent"]), ({}, None))
        server.delete(f"/v1/sandboxes/{server.create(task='late')['id']}")

    def test_bad_input(self):
        for body, word in (({}, "budget"), ({"budget": {"cpus": 1}}, "cpus"), ({"budget": {"at_limit": "explode"}}, "at_limit"),
                           ({"budget": {"money": -1}}, "money")):
            refused = server.request("PUT", "/v1/tasks/x", body)
            self.assertEqual(refused.status, 400, refused)
            self.assertIn(word, refused.json["error"]["message"])
        reader = server.post("/v1/keys", {"scope": "read"}).json["secret"]
        self.assertEqual(server.request("PUT", "/v1/tasks/x", {"budget": {}}, key=reader).status, 403)
        self.assertEqual(server.get("/v1/tasks/x", key=reader).status, 200)


class AfterAKill(unittest.TestCase):
    def test_budgets_and_usage_go_on_where_they_were(self):
        own = Server("--sample", "300ms")
        try:
            own.request("PUT", "/v1/tasks/steady", {"budget": {"commands": 3}})
            made = own.create(task="steady")
            own.run(made["id"], BUSY_A_WHILE)
            eventually(lambda: own.get("/v1/usage?task=steady").json["usage"], what="a sample")
            for _ in range(2):
                own.stop(signal.SIGKILL)
                own.start()
                time.sleep(1)
            cpu = own.get(f"/v1/sandboxes/{made['id']}/metrics").json["cpu_usec"] / 1e6
            own.run(made["id"], "true")
            own.run(made["id"], "true")
            over = own.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "true"})
            self.assertEqual(over.status, 429, over)
            eventually(lambda: own.get(f"/v1/sandboxes/{made['id']}").json["state"] == "ended")
            used = own.get(f"/v1/usage?sandbox={made['id']}").json["usage"][0]
            self.assertLess(used["cpu_seconds"], cpu + 0.4, used)
            lived = eventually(lambda: [e for e in own.get(f"/v1/ledger?sandbox={made['id']}&kind=sandbox.ended").json["events"]])
            self.assertLess(used["wall_seconds"], lived[0]["data"]["lived_ms"] / 1000 + 0.5)
        finally:
            own.close()

    def test_every_command_is_counted_once(self):
        """Samples are half a minute apart, and no budget asks for more: each kill comes before the next."""
        own = Server("--sample", "30s")
        try:
            made = own.create(task="steady", on_create=["true"])
            path = f"/v1/sandboxes/{made['id']}"
            for count in range(1, 5):
                own.run(made["id"], "true")
                own.post(path + "/commands", {"command": "sleep 1000", "background": True})
                own.stop(signal.SIGKILL)
                own.start()
                # What the ledger did not come to be told of, the guest says.
                self.assertEqual(own.get(path + "/commands").status, 200)
                eventually(lambda: own.get(path + "/metrics").json["commands"] == 2 * count, what=f"{2 * count} commands")
            own.request("PUT", "/v1/tasks/steady", {"budget": {"commands": 9}})
            own.run(made["id"], "true")
            self.assertEqual(own.post(path + "/commands", {"command": "true"}).status, 429)
            eventually(lambda: own.get(path).json["state"] == "ended")
            self.assertEqual(own.get(f"/v1/usage?sandbox={made['id']}").json["usage"][0]["commands"], 9)
        finally:
            own.close()


if __name__ == "__main__":
    unittest.main()
