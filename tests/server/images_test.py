"""Pause, resume, snapshot, fork and rollback through the server: what runs inside goes on as if nothing had been,
whoever was killed meanwhile."""
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import unittest

from island import FULL, ISOLA, Server, eventually
from wire import WebSocket

FORKS = 20 if FULL else 3
CYCLES = 50 if FULL else 5
CRASHES = 40 if FULL else 4

# Holds everything that a program can hold, and answers each line with what it still has.
HOLDER = r"""
import os, sys, threading, socket, subprocess
word = os.urandom(8).hex()
file = open("/root/open", "w+")
file.write("first"); file.flush()
ticks, asked = [0], 0
def tick():
    nothing = threading.Event()
    while True:
        ticks[0] += 1
        nothing.wait(0.001)
threading.Thread(target=tick, daemon=True).start()
listener = socket.socket()
listener.bind(("127.0.0.1", 8123)); listener.listen()
def serve():
    while True:
        peer, _ = listener.accept()
        peer.recv(65536)
        peer.sendall(("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(word), word)).encode())
        peer.close()
threading.Thread(target=serve, daemon=True).start()
child = subprocess.Popen(["sleep", "1000000"])
print(word, flush=True)
for line in sys.stdin:
    asked += 1
    file.write("+"); file.flush(); file.seek(0); text = file.read()
    before = ticks[0]
    while ticks[0] == before:
        pass
    print(word, asked, text, child.poll(), line.strip(), flush=True)
"""


class Holder:
    """A sandbox with such a program in it, and a shell on a terminal with a variable."""

    def __init__(self, server, **fields):
        self.server = server
        fields.setdefault("timeout", 3600)
        self.id = server.create(**fields)["id"]
        self.path = f"/v1/sandboxes/{self.id}"
        server.request("PUT", self.path + "/files?path=/root/holder.py", HOLDER)
        started = server.post(self.path + "/commands", {"argv": ["python3", "/root/holder.py"], "open_stdin": True,
                                                        "background": True})
        assert started.status == 202, started
        self.command, self.pid = started.json["id"], started.json["pid"]
        self.asked, self.seq, self.seen = 0, 0, ""
        self.word = self.read_line()
        self.shell = self.terminal()
        start = self.shell.json()
        self.shell_command, self.shell_pid = start["command_id"], start["pid"]
        self.secret = os.urandom(4).hex()
        self.type(f"SECRET={self.secret}; cd /tmp; echo re''ady\n", "ready")

    def read_line(self):
        """One more line of the program's output, attached anew from where the last one ended."""
        while "\n" not in self.seen:
            for line in self.server.lines("GET", f"{self.path}/commands/{self.command}/output?from={self.seq}"):
                if line["type"] == "stdout":
                    self.seen += line["data"]
                    self.seq = line["seq"]
                    break
                if line["type"] not in ("start", "ping", "caught_up"):
                    raise AssertionError(line)
        line, self.seen = self.seen.split("\n", 1)
        return line

    def terminal(self, query="?cols=80&rows=24"):
        connection = socket.create_connection(("127.0.0.1", self.server.port), 60)
        shell = WebSocket(connection, f"127.0.0.1:{self.server.port}", self.path + "/terminal" + query,
                          {"Authorization": "Bearer " + self.server.key})
        assert shell.status == 101, shell.status
        return shell

    def type(self, text, until):
        self.shell.send(text.encode())
        screen = b""
        while until.encode() not in screen:
            message = self.shell.read()
            assert message and message[0] == 2, (message, screen)
            screen += message[1]
        return screen.decode(errors="replace")

    def copy(self, sandbox):
        """The same program in a fork."""
        other = object.__new__(Holder)
        other.__dict__.update(self.__dict__)
        other.id, other.path = sandbox, f"/v1/sandboxes/{sandbox}"
        if sandbox != self.id:  # the names of its parent's commands are its parent's
            other.command, other.shell_command = str(self.pid), str(self.shell_pid)
        return other

    def ask(self, text="x"):
        sent = self.server.request("POST", f"{self.path}/commands/{self.command}/stdin", text + "\n")
        assert sent.status == 204, sent
        self.asked += 1
        return self.read_line()

    def check(self, case, shell=True):
        """Everything is as it was."""
        told = self.ask("hello")
        case.assertEqual(told, f"{self.word} {self.asked} first{'+' * self.asked} None hello")
        case.assertEqual(self.server.get(self.path + "/ports/8123/").body.decode(), self.word)
        if shell:
            self.shell = self.terminal(f"?attach={self.shell_command}&from=now")
            self.shell.json()
            self.type("echo $SECRET in $PWD th''ere\n", f"{self.secret} in /tmp there")

    def state(self):
        return self.server.get(self.path).json["state"]

    def verb(self, verb, **fields):
        return self.server.post(f"{self.path}/{verb}", fields)


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--pool", "1", "--log-access", "false")
        status = subprocess.run([ISOLA, "launcher", "status", "--json", "--data", cls.server.data], capture_output=True,
                                text=True)
        if not json.loads(status.stdout).get("checkpointer"):
            cls.server.close()
            raise unittest.SkipTest("no criu here; `./dev criu` provides one")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def tearDown(self):
        for one in self.server.get("/v1/sandboxes?limit=1000").json["sandboxes"]:
            if one["state"] != "ended":
                self.assertEqual(self.server.delete("/v1/sandboxes/" + one["id"]).status, 204)
        for one in self.server.get("/v1/snapshots").json["snapshots"]:
            self.assertEqual(self.server.delete("/v1/snapshots/" + one["id"]).status, 204)

    def images(self):
        folder = os.path.join(self.server.data, "images")
        return {name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}/manifest.json")}

    def ok(self, reply, status=200):
        self.assertEqual(reply.status, status, reply)
        return reply.json

    def wait_for(self, sandbox, state):
        return eventually(lambda: (now := self.server.get(f"/v1/sandboxes/{sandbox}").json)["state"] == state and now,
                          what=f"{sandbox}: {state}")

    # ---- pause and resume ----

    def test_everything_survives_a_pause_and_kill_9_of_server_and_launcher(self):
        holder = Holder(self.server, metadata={"a": "b"}, env={"GREETING": "hi"})
        before = self.server.get(holder.path).json
        paused = self.ok(holder.verb("pause"))
        self.assertEqual(paused["state"], "paused")
        self.assertIsNotNone(paused["paused"])
        launcher = self.server.launcher_pid()
        self.server.process.kill()
        self.server.process.wait()
        os.kill(launcher, signal.SIGKILL)
        self.server.start(self.server.port)
        self.assertEqual(holder.state(), "paused")
        resumed = self.ok(holder.verb("resume", latency=True))
        self.assertEqual((resumed["state"], resumed["birth"]), ("running", "resumed"))
        self.assertGreater(resumed["latency_ms"]["total"], 0)
        for same in ("id", "metadata", "port_token", "network", "created", "memory"):
            self.assertEqual(resumed[same], before[same])
        holder.check(self)
        self.assertEqual(self.server.run(holder.id, "echo $GREETING")["stdout"], "hi\n")
        # The image is spent: nothing is kept twice.
        eventually(lambda: not self.images(), what="an empty folder of images")

    def test_again_and_again(self):
        holder = Holder(self.server)
        for _ in range(CYCLES):
            self.ok(holder.verb("pause"))
            self.ok(holder.verb("pause"))  # paused already
            self.ok(holder.verb("resume"))
            self.ok(holder.verb("resume"))
            holder.check(self)

    def test_files_only(self):
        holder = Holder(self.server, env={"GREETING": "hi"}, on_resume=["echo $GREETING >>/root/woken"])
        self.assertEqual(self.ok(holder.verb("pause", memory=False))["state"], "stopped")
        self.assertEqual(self.ok(holder.verb("resume"))["state"], "running")
        told = self.server.run(holder.id, "cat /root/open /root/woken; pgrep -c sleep")
        self.assertEqual(told["stdout"], "firsthi\n0\n")

    def test_a_command_goes_on_and_its_reader_attaches_again(self):
        made = self.server.create(timeout=3600)
        path = f"/v1/sandboxes/{made['id']}"
        count = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"
        lines, code = [], None
        stream = self.server.lines("POST", path + "/commands", {"command": count, "stream": True})
        command, seq, text = next(stream)["command_id"], 0, ""
        for line in stream:
            if line["type"] == "stdout":
                text, seq = text + line["data"], line["seq"]
                if len(text) > 50 and not lines:
                    lines.append(threading.Thread(target=lambda: self.ok(self.server.post(path + "/pause"))))
                    lines[0].start()
            elif line["type"] == "error":
                code = line["error"]["code"]
        lines[0].join()
        self.assertEqual(code, "paused")
        # Attaching is a call like any other: it resumes.
        more = self.server.lines("GET", f"{path}/commands/{command}/output?from={seq}")
        for line in more:
            if line["type"] == "stdout":
                text += line["data"]
                if len(text) > 400:
                    break
        more.close()
        numbers = [int(n) for n in text.split("\n")[:-1]]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))

    def test_calls_resume_where_that_is_its_way(self):
        holder = Holder(self.server)
        calls = {"a command": lambda: self.server.run(holder.id, "echo on")["stdout"] == "on\n",
                 "a file call": lambda: self.server.get(holder.path + "/files?path=/root/open").status == 200,
                 "a port": lambda: self.server.get(holder.path + "/ports/8123/").body.decode() == holder.word,
                 "input": lambda: holder.ask().startswith(holder.word)}
        for name, call in calls.items():
            with self.subTest(name):
                self.ok(holder.verb("pause"))
                self.assertTrue(call())
                self.assertEqual(holder.state(), "running")
        self.ok(holder.verb("pause"))
        self.ok(self.server.request("PATCH", holder.path, {"auto_resume": False}))
        self.assertEqual(self.server.post(holder.path + "/commands", {"command": "true"}).status, 409)
        self.assertEqual(self.server.get(holder.path + "/files?path=/root/open").status, 409)
        self.assertEqual(holder.state(), "paused")
        self.ok(holder.verb("resume"))

    def test_many_callers_resume_it_once(self):
        holder = Holder(self.server)
        self.ok(holder.verb("pause"))
        answers = []
        callers = [threading.Thread(target=lambda: answers.append(self.server.run(holder.id, "echo $$")["exit_code"]))
                   for _ in range(8)]
        [c.start() for c in callers]
        [c.join() for c in callers]
        self.assertEqual(answers, [0] * 8)
        holder.check(self)

    def test_time_that_is_up_pauses(self):
        made = self.server.create(timeout=1, at_end="pause", metadata={"x": "1"})
        self.wait_for(made["id"], "paused")
        self.assertEqual(self.server.run(made["id"], "echo back")["stdout"], "back\n")
        # As long as it had, again.
        self.assertIsNotNone(self.server.get("/v1/sandboxes/" + made["id"]).json["deadline"])
        self.wait_for(made["id"], "paused")
        stopped = self.server.create(timeout=1, at_end="stop")
        self.wait_for(stopped["id"], "stopped")

    def test_idling_pauses_and_use_does_not(self):
        made = self.server.create(idle_timeout=1, at_end="pause", timeout=0)
        self.assertEqual(self.server.run(made["id"], "sleep 2; echo done")["stdout"], "done\n")
        self.wait_for(made["id"], "paused")

    def test_short_idling_stands_still_until_the_next_call(self):
        made = self.server.create(timeout=3600, freeze_after=0.5)
        self.assertIn("freeze_after", self.wait_for(made["id"], "frozen")["frozen_reason"])
        self.assertEqual(self.server.run(made["id"], "echo there")["stdout"], "there\n")
        self.wait_for(made["id"], "frozen")
        # Frozen by hand it waits for a hand.
        self.ok(self.server.post(f"/v1/sandboxes/{made['id']}/thaw"))
        self.ok(self.server.post(f"/v1/sandboxes/{made['id']}/freeze"))
        self.assertEqual(self.server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "true"}).status, 409)

    def test_what_cannot_be_paused_stands_still(self):
        self.assertEqual(self.server.post("/v1/projects", {"name": "full", "limits": {"stored": 1}}).status, 201)
        project = [p for p in self.server.get("/v1/projects").json["projects"] if p["name"] == "full"][0]["id"]
        key = self.server.post("/v1/keys", {"name": "x", "project": project}).json["secret"]
        made = self.server.post("/v1/sandboxes", {"timeout": 1, "at_end": "pause"}, key=key).json["id"]
        path = f"/v1/sandboxes/{made}"
        now = eventually(lambda: (r := self.server.get(path, key=key).json)["state"] == "frozen" and r)
        self.assertIn("stored bytes", now["frozen_reason"])
        self.ok(self.server.post(path + "/thaw", key=key))
        self.assertEqual(self.server.post(path + "/commands", {"command": "echo on"}, key=key).json["stdout"], "on\n")
        self.assertEqual(self.server.delete(path, key=key).status, 204)

    def test_a_paused_one_ends_when_nobody_comes_back(self):
        made = self.server.create(timeout=3600, delete_after=1)
        self.ok(self.server.post(f"/v1/sandboxes/{made['id']}/pause"))
        self.assertEqual(self.wait_for(made["id"], "ended")["end_reason"], "deadline")
        eventually(lambda: not self.images(), what="an empty folder of images")

    def test_by_key_it_is_simply_there(self):
        first = self.server.create(key="conversation-7", timeout=3600, at_end="pause")
        self.server.run(first["id"], "echo kept >/root/note")
        self.ok(self.server.post(f"/v1/sandboxes/{first['id']}/pause"))
        again = self.server.create(key="conversation-7", timeout=3600, at_end="pause")
        self.assertEqual((again["id"], again["existed"], again["state"]), (first["id"], True, "running"))
        self.assertEqual(self.server.run(first["id"], "cat /root/note")["stdout"], "kept\n")

    def test_delete_from_every_state(self):
        for state in ("running", "frozen", "paused", "stopped"):
            with self.subTest(state):
                made = self.server.create(timeout=3600)
                path = f"/v1/sandboxes/{made['id']}"
                if state == "frozen":
                    self.ok(self.server.post(path + "/freeze"))
                elif state != "running":
                    self.ok(self.server.post(path + "/pause", {"memory": state == "paused"}))
                self.assertEqual(self.server.get(path).json["state"], state)
                self.assertEqual(self.server.delete(path).status, 204)
                self.wait_for(made["id"], "ended")
        eventually(lambda: not self.images(), what="an empty folder of images")
        # In the middle of a pause.
        holder = Holder(self.server)
        pausing = threading.Thread(target=lambda: holder.verb("pause"))
        pausing.start()
        self.assertEqual(self.server.delete(holder.path).status, 204)
        pausing.join()
        self.wait_for(holder.id, "ended")
        eventually(lambda: not self.images(), what="an empty folder of images")

    def test_a_frozen_one_is_paused_too(self):
        holder = Holder(self.server)
        self.ok(holder.verb("freeze"))
        self.assertEqual(self.ok(holder.verb("pause"))["state"], "paused")
        holder.check(self)

    def test_a_policy_stays(self):
        made = self.server.create(timeout=3600, network="allow example.org:443\ndefault deny\n")
        path = f"/v1/sandboxes/{made['id']}"
        self.ok(self.server.post(path + "/pause"))
        self.ok(self.server.request("PUT", path + "/network", {"policy": "allow example.net:443\ndefault deny\n"}))
        self.ok(self.server.post(path + "/resume"))
        # The gate of the resumed one knows it: what it does not allow is denied by name.
        for name in ("example.net", "example.org"):
            self.server.run(made["id"], f"python3 -c 'import socket; socket.gethostbyname(\"{name}\")'")
        told = eventually(lambda: (t := self.ok(self.server.get(path + "/network")))["denials"] and t)
        self.assertIn("example.net", told["policy"])
        denied = json.dumps(told["denials"])
        self.assertIn("example.org", denied)
        self.assertNotIn("example.net", denied)

    # ---- snapshots ----

    def test_a_snapshot_is_not_noticed_and_comes_back(self):
        holder = Holder(self.server)
        shell, stop = holder.shell, threading.Event()
        counted = []

        def read():
            stream = self.server.lines("POST", holder.path + "/commands", {
                "command": "for i in $(seq 1 400); do echo $i; sleep 0.005; done", "stream": True})
            counted.extend(stream)

        reader = threading.Thread(target=read)
        reader.start()
        eventually(lambda: len(counted) > 3)
        made = self.ok(holder.verb("snapshot", name="ready"), 201)
        self.assertTrue(made["memory"])
        self.assertEqual(made["sandbox"], holder.id)
        holder.type("echo $SECRET st''ill\n", holder.secret + " still")  # the same terminal, the same connection
        reader.join()
        stop.set()
        text = "".join(line["data"] for line in counted if line["type"] == "stdout")
        self.assertEqual(text, "".join(f"{i}\n" for i in range(1, 401)))
        self.assertEqual(counted[-1]["type"], "exit")
        self.assertIs(holder.shell, shell)

        self.assertEqual(holder.verb("snapshot", name="ready").status, 409)
        self.assertEqual([s["id"] for s in self.ok(self.server.get("/v1/snapshots"))["snapshots"]], [made["id"]])
        self.assertEqual(self.ok(self.server.get("/v1/snapshots/ready"))["id"], made["id"])
        self.assertEqual(self.ok(self.server.get("/v1/snapshots?sandbox=ix"))["snapshots"], [])

        saved = holder.copy(holder.id)
        holder.ask()
        # A new sandbox from it: the program as it was then, in another sandbox.
        other = self.server.create(snapshot="ready", timeout=3600, metadata={"of": "it"})
        self.assertEqual((other["birth"], other["metadata"]), ("forked", {"of": "it"}))
        copy = saved.copy(other["id"])
        copy.check(self)
        # And back in place.
        rolled = self.ok(holder.verb("rollback", snapshot="ready"))
        self.assertEqual((rolled["id"], rolled["state"]), (holder.id, "running"))
        saved.check(self)
        copy.check(self)
        # Also from where it is paused, and after it is gone the sandboxes live on.
        self.ok(saved.verb("pause"))
        self.ok(saved.verb("rollback", snapshot=made["id"]))
        self.assertEqual(self.server.delete("/v1/snapshots/ready").status, 204)
        self.assertEqual(self.server.get("/v1/snapshots/ready").status, 404)
        copy.check(self)
        eventually(lambda: not self.images(), what="an empty folder of images")

    def test_a_rollback_undoes_files_and_commands(self):
        made = self.server.create(timeout=3600)
        path = f"/v1/sandboxes/{made['id']}"
        self.server.run(made["id"], "echo good >/root/file")
        self.ok(self.server.post(path + "/snapshot", {"name": "good", "memory": False}), 201)
        self.server.run(made["id"], "echo bad >/root/file; rm -rf /usr/share; touch /root/more")
        started = self.server.post(path + "/commands", {"command": "sleep 1000", "background": True}).json
        self.ok(self.server.post(path + "/rollback", {"snapshot": "good"}))
        told = self.server.run(made["id"], "cat /root/file; ls /root/more; ls -d /usr/share")
        self.assertEqual(told["stdout"], "good\n/usr/share\n")
        self.assertEqual(self.server.get(f"{path}/commands/{started['id']}").status, 404)

    def test_snapshots_expire_after_their_last_use(self):
        server = Server("--log-access", "false", "--sweep", "200ms")
        try:
            made = server.create(timeout=3600)
            for name, time_left in (("short", 1), ("long", 3600)):
                self.ok(server.post(f"/v1/sandboxes/{made['id']}/snapshot",
                                    {"name": name, "memory": False, "expires_after": time_left}), 201)
            eventually(lambda: server.get("/v1/snapshots/short").status == 404)
            self.assertEqual(server.get("/v1/snapshots/long").status, 200)
            folder = os.path.join(server.data, "images")
            eventually(lambda: len(os.listdir(folder)) == 1, what="its bytes are gone")
        finally:
            server.close()

    # ---- forks ----

    def test_forks_are_whole_and_independent(self):
        holder = Holder(self.server, name="parent", key="k")
        holder.ask()
        before = self.server.get(holder.path).json
        children = self.ok(holder.verb("fork", count=FORKS, metadata={"fork": "yes"}), 201)["sandboxes"]
        self.assertEqual(len({c["id"] for c in children}), FORKS)
        self.assertEqual(len({c["port_token"] for c in children} | {before["port_token"]}), FORKS + 1)
        copies = [holder.copy(c["id"]) for c in children]
        for child, copy in zip(children, copies):
            self.assertEqual((child["birth"], child["metadata"]), ("forked", {"fork": "yes"}))
            self.assertNotIn("name", child)
            self.assertNotIn("key", child)
            copy.check(self)
            self.server.run(copy.id, f"echo {copy.id} >/root/mine")
        for copy in copies:
            self.assertEqual(self.server.run(copy.id, "cat /root/mine; domainname")["stdout"], f"{copy.id}\n{copy.id}\n")
            copy.check(self)
        self.assertEqual(self.server.run(holder.id, "ls /root/mine")["exit_code"], 2)
        holder.check(self)
        # Each goes its own way from here.
        self.ok(copies[0].verb("pause"))
        copies[0].check(self)
        eventually(lambda: not self.images(), what="an empty folder of images")

    def test_forks_are_all_or_none(self):
        self.assertEqual(self.server.post("/v1/projects", {"name": "small", "limits": {"live_sandboxes": 3}}).status, 201)
        project = [p for p in self.server.get("/v1/projects").json["projects"] if p["name"] == "small"][0]["id"]
        key = self.server.post("/v1/keys", {"name": "x", "project": project}).json["secret"]
        made = self.server.post("/v1/sandboxes", {"timeout": 3600}, key=key).json["id"]
        path = f"/v1/sandboxes/{made}"
        self.assertEqual(self.server.post(path + "/fork", {"count": 3}, key=key).status, 429)
        living = self.server.get("/v1/sandboxes?state=running", key=key).json["sandboxes"]
        self.assertEqual([s["id"] for s in living], [made])
        children = self.ok(self.server.post(path + "/fork", {"count": 2}, key=key), 201)["sandboxes"]
        for one in [made] + [c["id"] for c in children]:
            self.assertEqual(self.server.delete("/v1/sandboxes/" + one, key=key).status, 204)

    # ---- limits, refusals, what is left behind ----

    def test_a_project_keeps_only_so_much(self):
        self.assertEqual(self.server.post("/v1/projects", {"name": "thrifty", "limits": {"stored": "1M"}}).status, 201)
        project = [p for p in self.server.get("/v1/projects").json["projects"] if p["name"] == "thrifty"][0]
        self.assertEqual(project["limits"], {"stored": 1 << 20})
        key = self.server.post("/v1/keys", {"name": "x", "project": project["id"]}).json["secret"]
        made = self.server.post("/v1/sandboxes", {"timeout": 3600}, key=key).json["id"]
        path = f"/v1/sandboxes/{made}"
        self.server.post(path + "/commands", {"command": "head -c 3000000 /dev/urandom >/root/big; sync"}, key=key)
        for verb in ("pause", "snapshot"):
            refused = self.server.post(f"{path}/{verb}", {}, key=key)
            self.assertEqual(refused.status, 429, refused)
            self.assertIn("stored bytes", refused.json["error"]["message"])
        self.assertEqual(self.server.get(path, key=key).json["state"], "running")
        self.assertEqual(self.server.delete(path, key=key).status, 204)

    def test_bad_input(self):
        made = self.server.create(timeout=3600)
        path = f"/v1/sandboxes/{made['id']}"
        for verb, body, status in (("fork", {"count": 0}, 400), ("fork", {"count": 1000}, 400),
                                   ("fork", {"colour": 1}, 400), ("pause", {"memory": "yes"}, 400),
                                   ("snapshot", {"name": "no spaces"}, 400), ("snapshot", {"expires_after": -1}, 400),
                                   ("rollback", {}, 400), ("rollback", {"snapshot": "nowhere"}, 404)):
            with self.subTest(f"{verb} {body}"):
                self.assertEqual(self.server.post(f"{path}/{verb}", body).status, status)
        self.assertEqual(self.server.post("/v1/sandboxes", {"snapshot": "nowhere"}).status, 404)
        self.assertEqual(self.server.post("/v1/sandboxes", {"snapshot": "x", "template": "minimal"}).status, 400)
        self.assertEqual(self.server.delete("/v1/snapshots/nowhere").status, 404)
        self.assertEqual(self.server.post("/v1/sandboxes/inope/pause").status, 404)
        # Of another project: as if it were not there.
        self.ok(self.server.post(path + "/snapshot", {"name": "mine", "memory": False}), 201)
        self.server.post("/v1/projects", {"name": "other"})
        project = [p for p in self.server.get("/v1/projects").json["projects"] if p["name"] == "other"][0]["id"]
        key = self.server.post("/v1/keys", {"name": "x", "project": project}).json["secret"]
        self.assertEqual(self.server.get("/v1/snapshots/mine", key=key).status, 404)
        self.assertEqual(self.server.post("/v1/sandboxes", {"snapshot": "mine"}, key=key).status, 404)
        self.assertEqual(self.server.get("/v1/snapshots", key=key).json["snapshots"], [])

    def test_what_is_kept_is_in_the_ledger(self):
        made = self.server.create(timeout=3600, task="t9")
        path = f"/v1/sandboxes/{made['id']}"
        self.server.run(made["id"], "head -c 3000000 /dev/urandom >/root/big; sync")
        self.ok(self.server.post(path + "/pause"))
        self.ok(self.server.post(path + "/resume"))
        self.ok(self.server.post(path + "/fork", {}), 201)
        kinds = [e["kind"] for e in self.ok(self.server.get(f"/v1/ledger?sandbox={made['id']}"))["events"]]
        for kind in ("sandbox.created", "sandbox.paused", "sandbox.resumed", "sandbox.forked"):
            self.assertIn(kind, kinds)


    def test_storage_is_in_the_usage(self):
        server = Server("--log-access", "false", "--sweep", "200ms", "--sample", "200ms")
        try:
            made = server.create(timeout=3600, task="t")
            path = f"/v1/sandboxes/{made['id']}"
            server.run(made["id"], "head -c 30000000 /dev/urandom >/root/big; sync")
            kept = self.ok(server.post(path + "/snapshot", {"memory": False}), 201)
            self.ok(server.post(path + "/pause", {"memory": False}))

            def disk(name):
                rows = server.get(f"/v1/usage?by=sandbox&sandbox={name}").json["usage"]
                return rows[0]["disk_gib_hours"] if rows else 0

            for name in (made["id"], kept["id"]):
                first = eventually(lambda: disk(name))
                eventually(lambda: disk(name) > first, what=f"more of {name}")
        finally:
            server.close()

    def test_from_the_command_line(self):
        def isola(*words, code=0):
            done = subprocess.run([ISOLA, *words], capture_output=True, text=True,
                                  env={**os.environ, "ISOLA_URL": self.server.url, "ISOLA_API_KEY": self.server.key})
            self.assertEqual(done.returncode, code, done.stderr)
            return done.stdout.strip()

        one = isola("sandbox", "create", "--name", "cli", "--at-end", "pause", "--delete-after", "7d")
        isola("exec", "cli", "--", "sh", "-c", "echo 1 >/root/n")
        self.assertEqual(isola("sandbox", "pause", "cli"), one + ": paused")
        self.assertIn("paused", isola("sandbox", "ls"))
        self.assertEqual(isola("sandbox", "resume", "cli"), one + ": running")
        kept = isola("sandbox", "snapshot", "cli", "--name", "first", "--expires-after", "1d")
        self.assertIn("first", isola("snapshot", "ls"))
        self.assertEqual(isola("snapshot", "ls", "-q", "--sandbox", "cli"), kept)
        isola("exec", "cli", "--", "sh", "-c", "echo 2 >/root/n")
        child = isola("sandbox", "fork", "cli", "-n", "1")
        isola("sandbox", "rollback", "cli", "first")
        self.assertEqual(isola("exec", "cli", "--", "cat", "/root/n"), "1")
        self.assertEqual(isola("exec", child, "--", "cat", "/root/n"), "2")
        copy = isola("sandbox", "create", "--snapshot", "first")
        self.assertEqual(isola("exec", copy, "--", "cat", "/root/n"), "1")
        isola("snapshot", "rm", "first")
        isola("snapshot", "rm", "first", code=125)
        isola("sandbox", "pause", "nobody", code=125)


class Crashes(unittest.TestCase):
    """kill -9 of server or launcher at random moments of all verbs: there is always the sandbox or its image, snapshots
    that were acknowledged are there, and of what was not nothing is left."""

    def crash(self, victim):
        server = Server("--log-access", "false", "--sweep", "300ms")
        self.kept = set()
        try:
            status = subprocess.run([ISOLA, "launcher", "status", "--json", "--data", server.data], capture_output=True,
                                    text=True)
            if not json.loads(status.stdout).get("checkpointer"):
                self.skipTest("no criu here; `./dev criu` provides one")
            holder = Holder(server)
            for round_ in range(CRASHES):
                verbs = threading.Thread(target=self.verbs, args=(holder,), daemon=True)
                verbs.start()
                time.sleep(random.uniform(0, 0.4))
                if victim == "server":
                    server.process.kill()
                    server.process.wait()
                    server.start(server.port)
                else:
                    os.kill(server.launcher_pid(), signal.SIGKILL)
                verbs.join()
                eventually(lambda: server.get("/readyz", key="").status == 200)
                eventually(lambda: holder.verb("resume").status == 200, what=f"round {round_}: a resume")
                eventually(lambda: self.answers(holder), what=f"round {round_}: an answer")
            there = {s["id"] for s in server.get("/v1/snapshots").json["snapshots"]}
            self.assertLessEqual(self.kept, there)
            for snapshot in there:
                self.assertEqual(server.delete("/v1/snapshots/" + snapshot).status, 204)
            for one in server.get("/v1/sandboxes?limit=1000").json["sandboxes"]:
                server.delete("/v1/sandboxes/" + one["id"])
            folder = os.path.join(server.data, "images")
            eventually(lambda: not os.listdir(folder), seconds=60, what="an empty folder of images")
        finally:
            server.close()

    def verbs(self, holder):
        try:
            for verb in random.sample(["pause", "snapshot", "fork"], 3):
                told = holder.verb(verb)
                if verb == "snapshot" and told.status == 201:
                    self.kept.add(told.json["id"])
                holder.verb("resume")
        except Exception:  # the server is being killed
            pass

    def answers(self, holder):
        """Input may get lost with a server, what was read may not; so the counter is only asked for its word."""
        try:
            told = holder.server.get(holder.path + "/ports/8123/")
            return told.status == 200 and told.body.decode() == holder.word
        except OSError:
            return False

    def test_killing_the_server(self):
        self.crash("server")

    def test_killing_the_launcher(self):
        self.crash("launcher")


if __name__ == "__main__":
    if not FULL:
        print(f"reduced: {FORKS} forks, {CYCLES} cycles, {CRASHES} kills of each kind (tests/server/images_test.py)")
    unittest.main()
