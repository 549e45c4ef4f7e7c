"""What is written down: the ledger, usage, events as they come, what the network was asked for."""
import json
import socket
import threading
import unittest

from island import Server, eventually

server = None


def setUpModule():
    global server
    server = Server("--sample", "300ms", "--domain", "isola.test")


def tearDownModule():
    server.close()


class LedgerAndUsage(unittest.TestCase):
    def test_everything_is_written_down(self):
        made = server.create(task="audit", actor="agent-7")
        server.run(made["id"], "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done", task="audit")
        server.delete(f"/v1/sandboxes/{made['id']}")
        events = server.get(f"/v1/ledger?sandbox={made['id']}").json["events"]
        kinds = [e["kind"] for e in events]
        for kind in ("sandbox.created", "command.started", "command.ended", "sandbox.ended", "usage.sample"):
            self.assertIn(kind, kinds)
        self.assertTrue(all(e["task"] == "audit" for e in events))
        usage = server.get("/v1/usage?task=audit&by=task").json["usage"]
        self.assertEqual((usage[0]["group"], usage[0]["commands"]), ("audit", 1))
        self.assertGreater(usage[0]["cpu_seconds"], 0)
        whole, pages = server.get("/v1/usage?by=sandbox").json, []
        self.assertIsNone(whole["next"])
        after = ""
        while after is not None:
            page = server.get(f"/v1/usage?by=sandbox&limit=1&after={after}").json
            pages += page["usage"]
            after = page["next"]
        self.assertEqual([one["group"] for one in pages], [one["group"] for one in whole["usage"]])
        self.assertEqual(server.get("/v1/ledger?kind=zzz").json, {"events": [], "next": None})
        for time in ("2026-01-31T12:00:00Zzz", "2026-02-30", "2026-01-31T12:00:00%2B01:00"):
            self.assertEqual(server.get(f"/v1/ledger?from={time}").status, 400, time)

    def test_who_has_only_ended_its_side_is_answered(self):
        made = server.create()
        for path in ("/v1/ledger", "/v1/usage", f"/sandboxes/{made['id']}/logs"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.key}\r\n"
                               f"X-API-Key: {server.key}\r\n\r\n".encode())
                client.shutdown(socket.SHUT_WR)
                self.assertEqual(client.makefile("rb").readline(), b"HTTP/1.1 200 OK\r\n", path)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_the_ledger_names_who_asked(self):
        other = server.post("/v1/keys", {"name": "other"}).json
        made = server.create(actor="agent-7")
        path = f"/v1/sandboxes/{made['id']}"
        asked = {"idle_timeout": 900, "metadata": {"a": "b"}}
        self.assertEqual(server.request("PATCH", path, asked, key=other["secret"]).status, 200)
        # Whatever a caller says of itself, the key is the one that it came with.
        server.post(path + "/commands", {"command": "true", "actor": made["actor"]}, key=other["secret"])
        server.request("PUT", path + "/files?path=/tmp/x", "x", key=other["secret"])
        self.assertEqual(server.delete(path, key=other["secret"]).status, 204)
        events = {e["kind"]: e for e in server.get(f"/v1/ledger?sandbox={made['id']}").json["events"]}
        self.assertEqual(events["sandbox.created"]["actor"], "agent-7")
        self.assertNotEqual(events["sandbox.created"]["key"], other["id"])
        for kind in ("sandbox.updated", "command.started", "command.ended", "file.written", "sandbox.ended"):
            self.assertEqual(events[kind]["key"], other["id"], kind)
        self.assertEqual(events["command.started"]["actor"], "agent-7")
        self.assertEqual(events["sandbox.ended"]["actor"], other["id"])
        self.assertEqual(events["sandbox.updated"]["data"]["changed"], ["idle_timeout", "metadata"])

    def test_events_stream(self):
        events = server.events("/v1/events")
        seen = []
        thread = threading.Thread(target=lambda: seen.extend(next(events) for _ in range(2)), daemon=True)
        thread.start()
        eventually(lambda: server.delete(f"/v1/sandboxes/{server.create()['id']}") and len(seen) == 2)
        self.assertEqual(seen[0][0].split(".")[0], "sandbox")


class Kills(unittest.TestCase):
    """Whoever is ended by a limit learns which: in the answer, in the stream, in events, and in the ledger."""

    HOG = "exec python3 -c 'x = bytearray(400 << 20)'"

    def follow(self, path):
        """Events from now on, in a list that grows."""
        stream, seen, heard = server.events(path), [], threading.Event()

        def read():
            for event in stream:
                seen.append(event)
                heard.set()

        threading.Thread(target=read, daemon=True).start()
        # The stream is open when it says something.
        sandbox = path.split("/")[3]
        eventually(lambda: server.run(sandbox, "true") and heard.is_set(), what="the stream")
        return seen

    def ends(self, sandbox, kind="command.ended"):
        return [e["data"] for e in server.get(f"/v1/ledger?sandbox={sandbox}&kind={kind}").json["events"]]

    def test_a_command_without_memory(self):
        made = server.create(memory="64M")
        path = f"/v1/sandboxes/{made['id']}"
        seen = self.follow(path + "/events")
        done = server.run(made["id"], self.HOG)
        self.assertEqual((done["exit_code"], done["signal"], done["killed_by_memory_limit"]), (137, 9, True))
        last = list(server.lines("POST", path + "/commands", {"command": self.HOG, "stream": True}))[-1]
        self.assertEqual((last["type"], last["exit_code"], last["killed_by_memory_limit"]), ("exit", 137, True))
        alone = server.post(path + "/commands", {"command": self.HOG, "background": True}).json["id"]
        shown = eventually(lambda: (r := server.get(f"{path}/commands/{alone}").json) and not r["running"] and r)
        self.assertTrue(shown["killed_by_memory_limit"], shown)
        for command in (done["command_id"], alone):
            written = [d for d in self.ends(made["id"]) if d["command_id"] == command]
            self.assertEqual([(d["signal"], d["reason"]) for d in written], [(9, "oom")])
            eventually(lambda: [d for kind, d in seen if kind == "command.ended" and d["data"]["command_id"] == command
                                and d["data"]["reason"] == "oom"], what="the event")
        self.assertGreaterEqual(server.get(path + "/metrics").json["oom_kills"], 3)
        self.assertEqual(server.run(made["id"], "echo alive")["stdout"], "alive\n")
        once = server.post("/v1/run", {"command": self.HOG, "memory": "64M"}).json
        self.assertEqual((once["exit_code"], once["killed_by_memory_limit"]), (137, True))
        server.delete(path)

    def test_a_kill_from_inside_is_not_the_limits(self):
        made = server.create()
        done = server.run(made["id"], "kill -9 $$")
        self.assertEqual((done["exit_code"], done["signal"]), (137, 9))
        self.assertNotIn("killed_by_memory_limit", done)
        self.assertNotIn("reason", self.ends(made["id"])[0])
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_kill_after_the_limits_is_not_the_limits(self):
        made = server.create(memory="64M")
        for hog in (self.HOG, self.HOG.replace("exec ", "") + "; exit $?"):  # by itself, and below a shell
            self.assertEqual(server.run(made["id"], hog)["exit_code"], 137)
            done = server.run(made["id"], "kill -9 $$")
            self.assertEqual((done["signal"], "killed_by_memory_limit" in done), (9, False))
        alone = server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "kill -9 $$", "background": True}).json["id"]
        shown = eventually(lambda: (r := server.get(f"/v1/sandboxes/{made['id']}/commands/{alone}").json) and not r["running"] and r)
        self.assertNotIn("killed_by_memory_limit", shown)
        self.assertTrue(server.run(made["id"], self.HOG)["killed_by_memory_limit"], "the limit's again")
        self.assertEqual([d.get("reason") for d in self.ends(made["id"])], ["oom", None, None, None, None, "oom"])
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_kill_from_inside_of_what_e2b_and_hooks_ran(self):
        made = server.post("/sandboxes", {"templateID": "minimal", "timeout": 60}, headers={"X-API-Key": server.key}, key="").json
        body = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", "kill -9 $$"]}}).encode()
        reply = server.post("/process.Process/Start", b"\0" + len(body).to_bytes(4, "big") + body, key="", headers={
            "E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"],
            "Content-Type": "application/connect+json", "Authorization": "Basic cm9vdDo="})
        self.assertIn(b"signal: killed", reply.body)
        end = eventually(lambda: self.ends(made["sandboxID"]))[0]
        self.assertEqual((end["signal"], "reason" in end), (9, False), end)
        server.delete(f"/v1/sandboxes/{made['sandboxID']}")
        failed = server.post("/v1/sandboxes", {"on_create": ["kill -9 $$"], "task": "killed-hook"})
        self.assertIn("signal 9", failed.json["error"]["message"])
        events = server.get("/v1/ledger?kind=command.ended&limit=1000&order=newest").json["events"]
        self.assertEqual([e["data"].get("reason") for e in events if e.get("task") == "killed-hook"], [None])

    def test_a_command_without_time(self):
        made = server.create()
        done = server.run(made["id"], "sleep 60", timeout="200ms")
        self.assertTrue(done["timed_out"])
        self.assertEqual(self.ends(made["id"])[0]["reason"], "deadline")
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_sandbox_without_memory(self):
        made = server.create(memory="32M")
        path = f"/v1/sandboxes/{made['id']}"
        watcher = server.create()  # events of all: those of this one alone end with it
        events = server.events("/v1/events")
        seen = []
        threading.Thread(target=lambda: seen.extend(events), daemon=True).start()
        eventually(lambda: server.run(watcher["id"], "true") and seen, what="the stream")
        # Process 1 itself writes what does not fit, and there is nobody else to kill.
        try:
            reply = server.request("PUT", path + "/files?path=/dev/shm/x", bytes(64 << 20))
            self.assertGreaterEqual(reply.status, 400, reply)
        except ConnectionError:
            pass  # the answer came while we were still sending
        ended = eventually(lambda: (r := server.get(path).json)["state"] == "ended" and r)
        self.assertEqual(ended["end_reason"], "oom")
        self.assertIn("memory limit", ended["end_detail"])
        late = server.post(path + "/commands", {"command": "true"})
        self.assertEqual(late.status, 404)
        self.assertIn("oom", late.json["error"]["message"])
        written = self.ends(made["id"], "sandbox.ended")
        self.assertEqual([(d["reason"], d["detail"]) for d in written], [("oom", "the memory limit was reached")])
        self.assertGreater(written[0]["oom_kills"], 0)
        eventually(lambda: [d for kind, d in seen if kind == "sandbox.ended" and d["sandbox"] == made["id"]
                            and d["data"]["reason"] == "oom"], what="the event")
        server.delete(f"/v1/sandboxes/{watcher['id']}")

    def test_a_sandbox_at_its_budget(self):
        made = server.create(budget={"cpu_seconds": 0.3})
        path = f"/v1/sandboxes/{made['id']}"
        lines = list(server.lines("POST", path + "/commands", {"command": "while :; do :; done", "stream": True}))
        self.assertEqual((lines[-1]["type"], lines[-1]["error"]["end_reason"]), ("error", "limit"))
        self.assertIn("cpu_seconds", lines[-1]["error"]["message"])
        ended = eventually(lambda: (r := server.get(path).json)["state"] == "ended" and r)
        self.assertEqual(ended["end_reason"], "limit")
        written = self.ends(made["id"], "sandbox.ended")
        self.assertEqual(written[0]["reason"], "limit")
        self.assertIn("cpu_seconds", written[0]["detail"])


class Network(unittest.TestCase):
    def test_none_unless_asked_and_changed_while_it_runs(self):
        made = server.create()
        self.assertEqual(made["network"], "none")
        path = f"/v1/sandboxes/{made['id']}/network"
        look = "import socket\ntry: print(socket.getaddrinfo('denied.example', 80)[0][4][0])\nexcept OSError as e: print('no')"
        self.assertEqual(server.run(made["id"], f"python3 -c \"{look}\"")["stdout"], "no\n")
        changed = server.request("PUT", path, {"policy": "allow allowed.example:443\ndefault deny"})
        self.assertEqual(changed.status, 200, changed)
        self.assertIn("allow allowed.example:443", changed.json["network"])
        self.assertEqual(server.run(made["id"], f"python3 -c \"{look}\"")["stdout"], "no\n")
        report = eventually(lambda: (r := server.get(path).json).get("denials") and r, what="a denial")
        self.assertEqual(report["denials"][0]["name"], "denied.example")
        eventually(lambda: "egress.denied" in [e["kind"] for e in
                   server.get(f"/v1/ledger?sandbox={made['id']}").json["events"]], what="an entry of the ledger")
        bad = server.request("PUT", path, {"policy": "alow x"})
        self.assertEqual(bad.status, 400)
        self.assertEqual(server.delete(f"/v1/sandboxes/{made['id']}").status, 204)

    def test_a_bad_policy_creates_nothing(self):
        before = len(server.get("/v1/sandboxes?state=running&limit=1000").json["sandboxes"])
        self.assertEqual(server.post("/v1/sandboxes", {"network": "allow"}).status, 400)
        self.assertEqual(len(server.get("/v1/sandboxes?state=running&limit=1000").json["sandboxes"]), before)


if __name__ == "__main__":
    unittest.main()
