"""What an operator does and sees: reloading, metrics, and a server that comes back after kill -9."""
import json
import os
import signal
import sqlite3
import subprocess
import tempfile
import threading
import unittest

from island import ISOLA, Server, eventually


class Pools(unittest.TestCase):
    def test_hits_and_misses_are_counted(self):
        server = Server("--pool", "1")
        self.addCleanup(server.close)

        def counted():
            lines = dict(line.rsplit(" ", 1) for line in server.get("/metrics", key="").body.decode().splitlines() if not line.startswith("#"))
            return int(lines["isola_pool_hits_total"]), int(lines["isola_pool_misses_total"])

        def change(**fields):
            hits, misses = counted()
            birth = server.create(**fields)["birth"]
            now = counted()
            return birth, now[0] - hits, now[1] - misses

        server.create()  # from here on one is wanted
        eventually(lambda: server.launcher_status()["parked"] > 0, what="a parked one")
        self.assertEqual(change(), ("pooled", 1, 0))
        self.assertEqual(change(cold=True), ("cold", 0, 0))


class Reload(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o755)  # the server reads it again when it is root no more
        self.file = os.path.join(self.folder.name, "isola.toml")
        self.write("")
        self.server = Server("--config", self.file)

    def tearDown(self):
        self.server.close()
        self.folder.cleanup()

    def write(self, text):
        with open(self.file, "w") as file:
            file.write(text)

    def reload(self):
        done = self.server.log().count("reloaded keys")
        self.server.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.server.log().count("reloaded keys") > done, what="the reload")

    def change(self, sql, *values):
        """As somebody with access to the store would, behind the server's back."""
        store = sqlite3.connect(os.path.join(self.server.data, "server/store.db"))
        with store:
            self.assertEqual(store.execute(sql, values).rowcount, 1)
        store.close()

    def test_keys(self):
        made = self.server.post("/v1/keys", {"name": "other"}).json
        self.assertEqual(self.server.get("/v1/sandboxes", key=made["secret"]).status, 200)
        self.change("UPDATE keys SET revoked = 1 WHERE id = ?", made["id"])
        self.assertEqual(self.server.get("/v1/sandboxes", key=made["secret"]).status, 200, "nobody has told it yet")
        self.reload()
        self.assertEqual(self.server.get("/v1/sandboxes", key=made["secret"]).status, 401)
        self.assertEqual(self.server.get("/v1/sandboxes").status, 200)

    def test_limits(self):
        first = self.server.create()
        self.change("UPDATE projects SET limit_live = 1 WHERE id = ?", "default")
        self.reload()
        full = self.server.post("/v1/sandboxes", {})
        self.assertEqual((full.status, full.json["error"]["code"]), (429, "exhausted"))
        self.assertEqual(self.server.get(f"/v1/sandboxes/{first['id']}").json["state"], "running")

    def test_settings(self):
        self.assertNotEqual(self.server.create()["memory"], 64 << 20)
        self.write('[defaults]\ntimeout = "0"\nmemory = "64M"\n')
        self.reload()
        made = self.server.create()
        self.assertEqual((made["memory"], made["deadline"]), (64 << 20, None))
        self.write("[defaults]\nmemory = 'lots'\n")
        self.server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "was not reloaded" in self.server.log(), what="the complaint")
        self.assertEqual(self.server.create()["memory"], 64 << 20, "what was in force stays")

    def test_keys_do_not_wait_for_a_file_to_be_mended(self):
        made = self.server.post("/v1/keys", {"name": "other"}).json
        self.change("UPDATE keys SET revoked = 1 WHERE id = ?", made["id"])
        self.write("[defaults]\nmemory = 'lots'\n")
        self.reload()
        self.assertIn("was not reloaded", self.server.log())
        self.assertEqual(self.server.get("/v1/sandboxes", key=made["secret"]).status, 401)
        self.assertEqual(self.server.get("/v1/sandboxes").status, 200)

    def test_how_long_the_past_is_kept(self):
        made = self.server.create()
        self.server.delete(f"/v1/sandboxes/{made['id']}")
        eventually(lambda: self.server.get(f"/v1/sandboxes/{made['id']}").json["state"] == "ended")
        self.change("UPDATE sandboxes SET ended = ended - 864000000 WHERE id = ?", made["id"])  # ten days
        self.reload()
        self.assertEqual(self.server.get(f"/v1/sandboxes/{made['id']}").status, 200)
        self.write("keep_ended_days = 5\n")
        self.reload()
        self.reload()  # it is tidied up before the file is read
        self.assertEqual(self.server.get(f"/v1/sandboxes/{made['id']}").status, 404)


class Projects(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.project = cls.server.post("/v1/projects", {"name": "changing"}).json["id"]
        cls.path = f"/v1/projects/{cls.project}"

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def shown(self):
        return next(p for p in self.server.get("/v1/projects").json["projects"] if p["id"] == self.project)

    def test_changes_do_not_undo_each_other(self):
        wrong = []

        def change(part, amount):
            for count in range(1, 151):  # connections of their own, which fall to all workers
                reply = self.server.request("PATCH", self.path, {part: {amount: count}})
                if reply.status != 200 or self.shown()[part].get(amount) != count:
                    wrong.append((part, count, reply))
        both = [threading.Thread(target=change, args=of) for of in (("limits", "live_sandboxes"), ("budget", "commands"))]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        self.assertEqual(wrong, [])


    def test_a_ceiling_is_in_force_though_the_ledger_fails(self):
        key = self.server.post("/v1/keys", {"project": self.project, "scope": "admin"}).json["secret"]
        made = self.server.post("/v1/sandboxes", {"network": "allow a.example"}, key=key).json

        kept = f"{self.server.data}/gate/{made['id']}"

        def told():
            with open(kept, "rb") as file:
                return file.read()
        eventually(lambda: os.path.exists(kept), what="the first policy")  # no create waits for the gate
        self.assertNotIn(b"allow b.example", told())
        self.server.get("/v1/ledger")  # what is queued is written
        ledger = sqlite3.connect(os.path.join(self.server.data, "server/ledger.db"), isolation_level=None)
        ledger.execute("BEGIN IMMEDIATE")  # nobody else writes to it
        try:
            reply = self.server.request("PATCH", self.path, {"ceiling": "allow b.example"})
        finally:
            ledger.execute("ROLLBACK")
            ledger.close()
        self.assertEqual(reply.status, 503, reply)
        self.assertIn("allow b.example", self.shown()["ceiling"])
        self.assertIn(b"allow b.example", told())
        self.assertIn("the project is changed", reply.json["error"]["message"])
        eventually(lambda: self.server.request("PATCH", self.path, {"ceiling": ""}).status == 200, what="a ledger that writes")
        self.server.delete(f"/v1/sandboxes/{made['id']}", key=key)


class Logs(unittest.TestCase):
    def test_lines_that_programs_read(self):
        server = Server("--log-format", "json")
        try:
            made = server.create()
            reply = server.get(f"/v1/sandboxes/{made['id']}", headers={"X-Request-Id": "find-me"})
            self.assertEqual(reply.headers["x-request-id"], "find-me")
            refused = server.delete("/v1/keys/" + server.key, key="e2b_" + "0" * 40)  # keys where none belong
            self.assertEqual(refused.status, 401)

            def lines_of(request):  # each is written when its answer is on the way
                with open(os.path.join(server.data, "test.log")) as file:
                    lines.extend(json.loads(line) for line in file.read().splitlines()[len(lines):])
                return [line for line in lines if line.get("request_id") == request]

            lines = []
            by_id = eventually(lambda: lines_of(refused.json["error"]["request_id"]), what="the line of the refusal")
            for line in lines:
                self.assertLessEqual({"time", "level", "room", "message"}, set(line), line)
            asked = eventually(lambda: lines_of("find-me"), what="the line of the other")  # another thread's, perhaps
            self.assertEqual([(line["room"], line["status"], line["message"]) for line in asked],
                             [("http", 200, f'GET "/v1/sandboxes/{made["id"]}"')])
            self.assertEqual((asked[0]["out"], asked[0]["peer"]), (len(reply.body), "127.0.0.1"))
            self.assertGreaterEqual(asked[0]["ms"], 0, "in tenths: an answer can take less")
            self.assertEqual([line["status"] for line in by_id], [401])
            self.assertNotIn(server.key, json.dumps(lines))
        finally:
            server.close()


class Metrics(unittest.TestCase):
    def test_whom_they_answer(self):
        server = Server()
        try:
            self.assertIn(b"isola_sandboxes_idle 0\n", server.get("/metrics", key="").body)
            self.assertIn(b"isola_sandboxes_idle 0\n", server.get("/v1/metrics").body)
            self.assertEqual(server.get("/v1/metrics", key="").status, 401)
            self.assertEqual(server.get("/metrics", key="", headers={"Host": "evil.example"}).status, 421)
            self.assertEqual(server.get("/metrics", key="", headers={"Origin": "http://evil.example"}).status, 403)
            self.assertEqual(server.get("/readyz", key="", headers={"Host": "balancer.example"}).status, 200)
        finally:
            server.close()

    def test_where_the_time_of_creates_went(self):
        server = Server()
        try:
            steps = {step for _ in range(2) for step in server.create(latency=True)["latency_ms"]} - {"server", "total"}
            self.assertTrue(steps)
            told = server.get("/metrics", key="").body.decode()
            for step in steps:
                self.assertRegex(told, rf'isola_sandbox_create_step_seconds_count{{step="{step}"}} [12]\n')
                self.assertRegex(told, rf'isola_sandbox_create_step_seconds_sum{{step="{step}"}} \S*[1-9]')
        finally:
            server.close()

    def test_idle_ones(self):
        server = Server()
        try:
            idle, busy = server.create(), server.create()
            server.stop(signal.SIGKILL)
            store = sqlite3.connect(os.path.join(server.data, "server/store.db"))
            with store:
                store.execute("UPDATE sandboxes SET last_active = last_active - 7200000, created = created - 7200000")
            store.close()
            server.start()
            server.run(busy["id"], "true")
            self.assertIn(b"isola_sandboxes_idle 1\n", server.get("/metrics", key="").body)
            shown = subprocess.run([ISOLA, "sandbox", "ls", "--data", server.data], capture_output=True, text=True).stdout
            lines = {line.split()[0]: line for line in shown.splitlines()}
            self.assertIn("running (idle 1h", lines[idle["id"]].replace("idle 2h", "idle 1h"))
            self.assertNotIn("idle", lines[busy["id"]])
            server.run(idle["id"], "true")
            eventually(lambda: b"isola_sandboxes_idle 0\n" in server.get("/metrics", key="").body, what="the next count")
        finally:
            server.close()


class Cores(unittest.TestCase):
    def test_every_worker_has_connections(self):
        """One worker for each core that this process may use; connections fall to all of them."""
        server = Server()
        self.addCleanup(server.close)

        def workers():
            switches = {}
            for task in os.listdir(f"/proc/{server.process.pid}/task"):
                with open(f"/proc/{server.process.pid}/task/{task}/status") as file:
                    lines = dict(line.split(":", 1) for line in file)
                if lines["Name"].strip().startswith("worker-"):
                    switches[task] = int(lines["voluntary_ctxt_switches"])
            return switches

        before = workers()
        self.assertEqual(len(before), len(os.sched_getaffinity(server.process.pid)))
        idle = set(before)
        connections = []

        def busy():
            # The kernel chooses by the client's port: a few dozen miss nobody for long.
            for _ in range(32):
                connections.append(server.connection())
                self.assertEqual(server.get("/v1/sandboxes", connection=connections[-1]).status, 200)
            now = workers()
            idle.difference_update(task for task in before if now[task] > before[task] + 2)
            return not idle

        eventually(busy, what="work for every worker")
        for connection in connections:
            connection.close()


class ComesBack(unittest.TestCase):
    def test_with_many_living(self):
        server = Server()
        try:
            made = [server.create(name=f"n{i}")["id"] for i in range(60)]
            gone = made.pop()
            server.delete(f"/v1/sandboxes/{gone}")
            server.stop(signal.SIGKILL)
            server.start()
            listed = server.get("/v1/sandboxes?state=running&limit=1000").json["sandboxes"]
            self.assertEqual({one["id"] for one in listed}, set(made))
            for one in made:
                self.assertEqual(server.run(one, "echo here")["stdout"], "here\n")
        finally:
            server.close()

    def test_a_long_task_does_not_hide_its_commands(self):
        """What a guest keeps for us is signed, and as long as what callers may say."""
        server = Server()
        try:
            made = server.create()
            words = {"task": "t" * 256, "actor": "a" * 256}
            path = f"/v1/sandboxes/{made['id']}/commands"
            started = server.post(path, {"command": "sleep 1000", "background": True, **words}).json["id"]
            for _ in range(2):
                listed = server.get(path).json["commands"]
                self.assertEqual([(c["id"], c["task"], c["actor"]) for c in listed], [(started, *words.values())])
                server.stop(signal.SIGKILL)
                server.start()
            server.delete(f"/v1/sandboxes/{made['id']}")
        finally:
            server.close()

    def test_starts_that_were_not_written_are_made_good(self):
        """The ledger gathers what happens for a moment: a server that is killed in it has started what nobody wrote."""
        server = Server()
        try:
            made = server.create(task="t")
            ids = []
            for _ in range(5):
                ids.append(server.post(f"/v1/sandboxes/{made['id']}/commands",
                                       {"command": "sleep 1000", "background": True, "actor": "ada"}).json["id"])
                server.stop(signal.SIGKILL)
                server.start()
            def starts():
                events = server.get(f"/v1/ledger?sandbox={made['id']}&kind=command.started").json["events"]
                return sorted(event["data"]["command_id"] for event in events)
            eventually(lambda: starts() == sorted(ids), what=f"each start of {ids} once, not {starts()}")
            events = server.get(f"/v1/ledger?sandbox={made['id']}&kind=command.started").json["events"]
            self.assertEqual({(event["task"], event["actor"]) for event in events}, {("t", "ada")})
        finally:
            server.close()


if __name__ == "__main__":
    unittest.main()
