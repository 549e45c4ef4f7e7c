"""Snapshots, forks and rollbacks through the server, and kill -9 in the middle of all verbs."""
import json
import os
import random
import signal
import subprocess
import threading
import time
import unittest

from holder import Holder, ImageCase
from island import FULL, ISOLA, Server, eventually

FORKS = 20 if FULL else 3
OF_ONE = 100 if FULL else 10
CRASHES = 40 if FULL else 4


class Snapshots(ImageCase):
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

    def test_a_rollback_to_what_cannot_be_restored_changes_nothing(self):
        holder = Holder(self.server)
        holder.ask()
        made = self.ok(holder.verb("snapshot", name="bad"), 201)
        folder = os.path.join(self.server.data, "images", made["id"], "memory")
        pages = max((os.path.join(folder, f) for f in os.listdir(folder) if f.startswith("pages-")), key=os.path.getsize)

        def flip():
            with open(pages, "r+b") as file:
                file.seek(4096)
                byte = file.read(1)[0]
                file.seek(4096)
                file.write(bytes([byte ^ 1]))

        flip()
        for paused in (False, True):
            if paused:
                self.ok(holder.verb("pause"))
            refused = holder.verb("rollback", snapshot="bad")
            self.assertGreaterEqual(refused.status, 400)
            self.assertIn("is not what was written", refused.body.decode())
            self.assertEqual(self.server.get(holder.path).json["state"], "paused" if paused else "running")
            holder.check(self)  # as it was, and further than the snapshot
        flip()
        self.ok(holder.verb("rollback", snapshot="bad"))
        self.assertEqual(self.server.delete("/v1/snapshots/bad").status, 204)

    def test_a_rollback_to_more_than_its_limit_changes_nothing(self):
        large = self.server.create(timeout=3600, memory="512M")
        self.assertEqual(self.server.run(large["id"], "head -c 150M /dev/urandom > /dev/shm/large")["exit_code"], 0)
        self.ok(self.server.post(f"/v1/sandboxes/{large['id']}/snapshot", {"name": "large"}), 201)
        small = self.server.create(timeout=3600, memory="64M")
        refused = self.server.post(f"/v1/sandboxes/{small['id']}/rollback", {"snapshot": "large"})
        self.assertEqual(refused.status, 400, refused)
        self.assertRegex(refused.json["error"]["message"], "the memory of image .* limit is 67108864")
        self.assertEqual(self.server.get(f"/v1/sandboxes/{small['id']}").json["state"], "running")
        self.assertEqual(self.server.run(small["id"], "echo here")["stdout"], "here\n")
        self.assertEqual(self.server.delete("/v1/snapshots/large").status, 204)

    def test_damage_is_found_and_named(self):
        made = self.server.create(timeout=3600)
        kept = self.ok(self.server.post(f"/v1/sandboxes/{made['id']}/snapshot", {"name": "to-be-read"}), 201)
        at = f"/v1/snapshots/{kept['id']}/verify"
        self.assertEqual(self.ok(self.server.post(at)), {"id": kept["id"], "whole": True, "damage": None})
        folder = os.path.join(self.server.data, "images", kept["id"], "memory")
        pages = max((os.path.join(folder, f) for f in os.listdir(folder) if f.startswith("pages-")), key=os.path.getsize)
        with open(pages, "r+b") as file:
            file.seek(4096)
            byte = file.read(1)[0]
            file.seek(4096)
            file.write(bytes([byte ^ 1]))
        found = self.ok(self.server.post(at))
        self.assertFalse(found["whole"])
        self.assertIn(os.path.basename(pages), found["damage"])
        told = eventually(lambda: self.server.get("/v1/ledger?kind=image.damaged").json["events"], what="its entry")
        self.assertEqual([(e["sandbox"], e["data"]["image"]) for e in told], [(made["id"], kept["id"])])
        ran = subprocess.run([ISOLA, "snapshot", "verify"], capture_output=True, text=True,
                             env={**os.environ, "ISOLA_API_KEY": self.server.key, "ISOLA_URL": f"http://127.0.0.1:{self.server.port}"})
        self.assertEqual(ran.returncode, 1, ran)
        self.assertIn(f"{kept['id']}: damaged: ", ran.stdout)
        self.assertEqual(self.server.post("/v1/snapshots/nosuch/verify").status, 404)
        self.assertEqual(self.server.delete("/v1/snapshots/to-be-read").status, 204)

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

    def test_a_snapshot_that_is_used_stays_longer(self):
        server = Server("--log-access", "false", "--sweep", "100ms")
        try:
            made = server.create(timeout=3600)
            for name in ("used", "left"):
                self.ok(server.post(f"/v1/sandboxes/{made['id']}/snapshot",
                                    {"name": name, "memory": False, "expires_after": 4}), 201)

            def last_used(name):
                return server.get(f"/v1/snapshots/{name}").json["last_used"]
            made_at, left_at = last_used("used"), last_used("left")
            # In the middle of its time: from then on it has all of it again.
            middle = time.monotonic() + 2
            eventually(lambda: time.monotonic() > middle)
            self.assertEqual(server.run(server.create(snapshot="used", files_only=True)["id"], "echo x")["stdout"], "x\n")
            self.assertGreater(last_used("used"), made_at)
            self.assertEqual(last_used("left"), left_at, "looking at it is no use of it")
            eventually(lambda: server.get("/v1/snapshots/left").status == 404)
            self.assertEqual(server.get("/v1/snapshots/used").status, 200, "it outlived its first time")
            eventually(lambda: server.get("/v1/snapshots/used").status == 404)
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

    def test_many_of_one_image_cost_one(self):
        if not FULL:
            print(f"reduced: {OF_ONE} sandboxes of one image instead of 100 (tests/server/snapshots_test.py)", flush=True)
        most, size = OF_ONE * (1 << 20), OF_ONE << 21  # bytes: for each its own bookkeeping, and not its own files
        made = self.server.create(timeout=3600)
        self.server.run(made["id"], f"head -c {size} /dev/urandom >/root/large")
        wanted = self.server.run(made["id"], "cksum </root/large")["stdout"]
        self.ok(self.server.post(f"/v1/sandboxes/{made['id']}/snapshot", {"name": "large", "memory": False}), 201)

        def on_disk():
            root = f"/proc/{self.server.launcher_pid()}/root{self.server.data}/storage"
            subprocess.run(["sync", "-f", root + "/layers"], check=True)
            return int(subprocess.run(["du", "-sx", "-B1", root], check=True, capture_output=True, text=True).stdout.split()[0])
        before = on_disk()
        many = [self.server.create(snapshot="large", files_only=True, timeout=3600)["id"] for _ in range(OF_ONE)]
        for one in many:
            self.assertEqual(self.server.run(one, "cksum </root/large")["stdout"], wanted)
        self.assertLess(on_disk() - before, most)
        self.assertEqual(len(self.images()), 1)

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
            self.past = holder.verb("snapshot").json["id"]
            self.kept.add(self.past)
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
                self.resume(holder, round_)
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

    def resume(self, holder, round_):
        said = []

        def resumed():
            said.append(holder.verb("resume"))
            return said[-1].status == 200
        try:
            eventually(resumed)
        except AssertionError as late:
            raise AssertionError(f"round {round_}: a resume: {late}; the last of {len(said)} answers: {said[-1]}") from None

    def verbs(self, holder):
        try:
            for verb in random.sample(["pause", "snapshot", "fork", "rollback", "archive"], 5):
                if verb == "archive":
                    holder.verb("pause")
                told = holder.verb(verb, **({"snapshot": self.past} if verb == "rollback" else {}))
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
        print(f"reduced: {FORKS} forks, {CRASHES} kills of each kind (tests/server/snapshots_test.py)")
    unittest.main()
