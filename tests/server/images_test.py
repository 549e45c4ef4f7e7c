"""Pause and resume through the server: what runs inside goes on as if nothing had been, whoever was killed meanwhile."""
import json
import os
import signal
import socket
import subprocess
import threading
import unittest

from holder import Holder, ImageCase
from island import FULL, ISOLA, Server, eventually

CYCLES = 50 if FULL else 5


class Images(ImageCase):
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

    def test_programs_that_confine_themselves_further(self):
        """With filters of their own above ours, or less than they might have: both are theirs to do."""
        made = self.server.create(timeout=3600)["id"]
        own = ("perl -e '$f = pack(\"SCCL\", 6, 0, 0, 0x7fff0000); $p = pack(\"Sx6P\", 1, $f); "
               "syscall(157, 38, 1, 0, 0, 0) == 0 && syscall(157, 22, 2, $p) == 0 or die $!; exec \"sleep\", \"1001\"'")
        for line in (own, "setpriv --bounding-set -net_raw,-chown sleep 1002"):
            self.ok(self.server.post(f"/v1/sandboxes/{made}/commands", {"command": line, "background": True}), 202)
        look = "grep -h -e Seccomp_filters -e CapBnd $(pgrep -x sleep | sed 's,.*,/proc/&/status,')"
        before = eventually(lambda: self.server.run(made, look)["stdout"].count("\n") == 4 and self.server.run(made, look)["stdout"])
        self.assertIn("Seccomp_filters:\t2", before)
        for verb in ("pause", "resume"):
            self.ok(self.server.post(f"/v1/sandboxes/{made}/{verb}", {}))
        self.assertEqual(self.server.run(made, look)["stdout"], before)

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

    def test_short_idling_stands_still_and_long_idling_pauses(self):
        made = self.server.create(timeout=0, freeze_after=0.3, idle_timeout=2, at_end="pause")
        path = f"/v1/sandboxes/{made['id']}"
        self.ok(self.server.post(path + "/commands", {"command": "echo kept >/root/note; exec sleep 1004", "background": True}), 202)
        self.wait_for(made["id"], "paused")

        def told():
            events = self.ok(self.server.get(f"/v1/ledger?sandbox={made['id']}"))["events"]
            steps = [(e.get("data") or {}).get("state") if e["kind"] == "sandbox.updated" else e["kind"] for e in events]
            return [step for step in steps if step in ("frozen", "running", "sandbox.paused", "sandbox.resumed")]
        self.assertEqual(told(), ["frozen", "sandbox.paused"])
        # A command wakes it, from memory.
        self.assertEqual(self.server.run(made["id"], "cat /root/note; pgrep -cxf 'sleep 1004'")["stdout"], "kept\n1\n")
        self.assertEqual(told()[:3], ["frozen", "sandbox.paused", "sandbox.resumed"])
        # And all of it once more.
        self.wait_for(made["id"], "frozen")
        self.wait_for(made["id"], "paused")

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


if __name__ == "__main__":
    if not FULL:
        print(f"reduced: {CYCLES} cycles (tests/server/images_test.py)")
    unittest.main()
