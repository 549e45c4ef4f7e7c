"""Volumes through the server: shared, limited, read-only where said, kept through everything, and readable without a
sandbox, whatever somebody put into them."""
import json
import os
import signal
import subprocess
import tempfile
import unittest

from island import ISOLA, Server, eventually, quote

MIB = 1 << 20

# As little Python as the smallest template has: no http.server there.
WEB_ON_A_VOLUME = b"""
import os, socket
word = os.urandom(8).hex().encode()
log = open("/data/log", "a")
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 8000))
listener.listen(64)
while True:
    peer, _ = listener.accept()
    try:
        head = b""
        while b"\\r\\n\\r\\n" not in head:
            head += peer.recv(65536)
        log.write(head.split(b" ")[1].decode()[1:] + "\\n")
        log.flush()
        peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % len(word) + word)
    except OSError:
        pass
    peer.close()
"""


class Volumes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--sweep", "500ms")
        if not cls.server.launcher_status()["disk_enforced"]:
            cls.server.close()
            raise unittest.SkipTest("no disk limits here, no volumes")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def setUp(self):
        self.made = 0

    def tearDown(self):
        for sandbox in self.server.get("/v1/sandboxes?limit=1000&state=running&state=paused&state=stopped"
                                       "&state=frozen").json["sandboxes"]:
            self.server.delete("/v1/sandboxes/" + sandbox["id"])
        for snapshot in self.server.get("/v1/snapshots").json["snapshots"]:
            self.server.delete("/v1/snapshots/" + snapshot["id"])
        for volume in self.server.get("/v1/volumes?limit=1000").json["volumes"]:
            gone = self.server.delete("/v1/volumes/" + volume["id"])
            self.assertEqual(gone.status, 204, gone)

    def volume(self, size=32 * MIB, **fields):
        self.made += 1
        name = f"{self._testMethodName[:50]}-{self.made}"
        reply = self.server.post("/v1/volumes", {"name": name, "size": size, **fields})
        self.assertEqual(reply.status, 201, reply)
        return reply.json

    def box(self, *volumes, **fields):
        return self.server.create(timeout=600, volumes=list(volumes), **fields)["id"]

    def sh(self, box, command, code=0):
        result = self.server.run(box, command)
        self.assertEqual(result["exit_code"], code, result)
        return result["stdout"]

    def files(self, volume, kind, path, method="GET", body=None, **query):
        query = "".join(f"&{k}={quote(str(v))}" for k, v in query.items())
        return self.server.request(method, f"/v1/volumes/{volume}/files{kind}?path={quote(path)}{query}", body)

    def launcher_volumes(self):
        return {entry for entry in os.listdir(self.server.data + "/storage")}

    # ---- the volume itself ----

    def test_make_find_list_remove(self):
        one = self.volume(labels={"team": "a"})
        self.assertRegex(one["id"], "^v[a-z0-9]{20}$")
        self.assertEqual((one["size"], one["labels"], one["sandboxes"]), (32 * MIB, {"team": "a"}, []))
        for word in (one["id"], one["name"]):
            found = self.server.get("/v1/volumes/" + word)
            self.assertEqual(found.status, 200, found)
            self.assertEqual(found.json["id"], one["id"])
        clash = self.server.post("/v1/volumes", {"name": one["name"]})
        self.assertEqual(clash.status, 409, clash)
        again = self.server.post("/v1/volumes", {"name": one["name"], "get_or_create": True, "size": "64M"})
        self.assertEqual((again.status, again.json["id"], again.json["size"]), (200, one["id"], 32 * MIB))
        fresh = self.server.post("/v1/volumes", {"name": "fresh", "get_or_create": True})
        self.assertEqual((fresh.status, fresh.json["size"]), (201, 1 << 30), fresh)
        names = []
        cursor = ""
        while cursor is not None:
            page = self.server.get("/v1/volumes?limit=1" + (f"&cursor={quote(cursor)}" if cursor else "")).json
            names += [v["name"] for v in page["volumes"]]
            cursor = page["next"]
        self.assertEqual(names, ["fresh", one["name"]])
        self.assertEqual(self.server.delete("/v1/volumes/fresh").status, 204)
        self.assertEqual(self.server.delete("/v1/volumes/fresh").status, 404)
        self.assertEqual(self.server.get("/v1/volumes/fresh").status, 404)
        kinds = [e["kind"] for e in self.server.get("/v1/ledger?limit=1000").json["events"]]
        self.assertIn("volume.created", kinds)
        self.assertIn("volume.removed", kinds)

    def test_bad_requests(self):
        one = self.volume()
        for body in ({}, {"name": ""}, {"name": "../x"}, {"name": one["id"]}, {"name": "a b"}, {"name": "x", "size": 5},
                     {"name": "x", "size": "a lot"}, {"name": "x", "colour": "red"}, {"name": "x", "labels": {"a": 1}}):
            self.assertEqual(self.server.post("/v1/volumes", body).status, 400, body)
        name = one["name"]
        for volumes in ("x", [1], [{}], [{"name": name}], [{"path": "/data"}], [{"name": name, "path": "data"}],
                        [{"name": name, "id": one["id"], "path": "/data"}], [{"name": name, "path": "/proc/x"}],
                        [{"name": name, "path": "/dev"}], [{"name": name, "path": "/"}], [{"name": name, "path": "/a b"}],
                        [{"name": name, "path": "/a/../../b"}], [{"name": name, "path": "/a/./b"}], [{"name": name, "path": "/a//b"}],
                        [{"name": name, "path": "/a/../proc"}], [{"name": name, "path": "/a", "subpath": "../x"}],
                        [{"name": name, "path": "/a", "subpath": "/etc"}], [{"name": name, "path": "/a", "mode": "rw"}],
                        [{"name": name, "path": "/a"}, {"name": name, "path": "/a"}],
                        [{"name": name, "path": f"/d{i}"} for i in range(9)]):
            made = self.server.post("/v1/sandboxes", {"volumes": volumes})
            self.assertEqual(made.status, 400, (volumes, made))
        missing = self.server.post("/v1/sandboxes", {"volumes": [{"name": "nobody", "path": "/data"}]})
        self.assertEqual(missing.status, 404, missing)
        self.assertEqual(self.server.get("/v1/volumes/" + one["id"]).json["sandboxes"], [])

    def test_another_projects_are_not_there(self):
        one = self.volume()
        project = self.server.post("/v1/projects", {"name": "strangers"}).json
        key = self.server.post("/v1/keys", {"name": "x", "project": project["id"], "scope": "use"}).json["secret"]
        path = "/v1/volumes/" + one["id"]
        for reply in (self.server.get(path, key=key), self.server.delete(path, key=key),
                      self.server.request("PATCH", path, {"size": "64M"}, key=key),
                      self.server.get(path + "/files?path=/", key=key),
                      self.server.get(path + "/files/list?path=/", key=key),
                      self.server.request("PUT", path + "/files?path=/x", "x", key=key),
                      self.server.post("/v1/sandboxes", {"volumes": [{"id": one["id"], "path": "/data"}]}, key=key),
                      self.server.post("/v1/sandboxes", {"volumes": [{"name": one["name"], "path": "/d"}]}, key=key)):
            self.assertEqual(reply.status, 404, reply)
        self.assertEqual(self.server.get("/v1/volumes", key=key).json["volumes"], [])
        theirs = self.server.post("/v1/volumes", {"name": one["name"], "size": "16M"}, key=key)
        self.assertEqual(theirs.status, 201, "names are each project's own")
        self.assertEqual(self.server.delete("/v1/volumes/" + one["name"], key=key).status, 204)
        self.assertEqual(self.server.get(path).status, 200)

    def test_the_projects_limit_counts_them(self):
        project = self.server.post("/v1/projects", {"name": "small", "limits": {"stored": 64 * MIB}})
        self.assertEqual(project.status, 201, project)
        key = self.server.post("/v1/keys", {"name": "x", "project": project.json["id"], "scope": "use"}).json["secret"]
        made = self.server.post("/v1/volumes", {"name": "a", "size": 48 * MIB}, key=key)
        self.assertEqual(made.status, 201, made)
        over = self.server.post("/v1/volumes", {"name": "b", "size": 32 * MIB}, key=key)
        self.assertEqual(over.status, 429, over)
        over = self.server.request("PATCH", "/v1/volumes/a", {"size": 80 * MIB}, key=key)
        self.assertEqual(over.status, 429, over)
        self.assertEqual(self.server.delete("/v1/volumes/a", key=key).status, 204)
        made = self.server.post("/v1/volumes", {"name": "b", "size": 32 * MIB}, key=key)
        self.assertEqual(made.status, 201, made)
        self.assertEqual(self.server.delete("/v1/volumes/b", key=key).status, 204)

    # ---- in sandboxes ----

    def test_two_share_and_read_only_is_so_for_root(self):
        one = self.volume()
        writer = self.box({"name": one["name"], "path": "/data"})
        reader = self.box({"id": one["id"], "path": "/mnt/shared", "read_only": True})
        self.sh(writer, "echo hello >/data/file && mkdir /data/folder")
        self.assertEqual(self.sh(reader, "cat /mnt/shared/file"), "hello\n")
        for attempt in ("echo x >/mnt/shared/x", "rm /mnt/shared/file", "chmod 777 /mnt/shared/file",
                        "mount -o remount,rw /mnt/shared", "touch /mnt/shared/file", "mv /mnt/shared/file /mnt/shared/f",
                        "umount /mnt/shared"):
            self.assertNotEqual(self.server.run(reader, attempt)["exit_code"], 0, attempt)
        self.assertEqual(self.sh(writer, "cat /data/file"), "hello\n")
        seen = self.server.get(f"/v1/sandboxes/{reader}").json["volumes"]
        self.assertEqual(seen, [{"id": one["id"], "name": one["name"], "path": "/mnt/shared", "read_only": True}])
        self.assertEqual(sorted(self.server.get("/v1/volumes/" + one["id"]).json["sandboxes"]), sorted([writer, reader]))
        # It outlives both.
        for box in (writer, reader):
            self.assertEqual(self.server.delete("/v1/sandboxes/" + box).status, 204)
        later = self.box({"name": one["name"], "path": "/data"})
        self.assertEqual(self.sh(later, "cat /data/file"), "hello\n")

    def test_a_part_of_one(self):
        one = self.volume()
        whole = self.box({"name": one["name"], "path": "/data"})
        part = self.box({"name": one["name"], "path": "/mine", "subpath": "teams/a"})
        self.sh(part, "echo a >/mine/file")
        self.assertEqual(self.sh(whole, "cat /data/teams/a/file"), "a\n")
        self.sh(whole, "ln -s / /data/out; ln -s ../../.. /data/up; ln -s teams /data/inner")
        for bad in ("out/etc", "out", "up", "inner/a"):
            led = self.server.post("/v1/sandboxes", {"volumes": [{"name": one["name"], "path": "/m", "subpath": bad}]})
            self.assertEqual(led.status, 400, (bad, led))

    def test_a_sandbox_that_has_filled_its_own_disk_is_in_the_ledger(self):
        server = Server("--sample", "200ms")
        try:
            box = server.create(timeout=600, disk="32M")["id"]
            full = lambda: [e for e in server.get(f"/v1/ledger?kind=sandbox.disk_full&sandbox={box}").json["events"]]
            server.run(box, "head -c 8M /dev/urandom >/root/some")
            samples = lambda: server.get(f"/v1/ledger?kind=usage.sample&sandbox={box}").json["events"]
            self.assertEqual(full(), [])
            for times in (1, 2):  # once for each time that it is so
                self.assertNotEqual(server.run(box, "head -c 64M /dev/urandom >/root/big")["exit_code"], 0)
                events = eventually(lambda: (told := full()) and len(told) == times and told, what="an entry")
                self.assertEqual(events[-1]["data"]["limit"], 32 * MIB)
                # What was removed is charged until the store commits, which a sync inside does not ask for.
                server.run(box, "rm /root/big")
                os.sync()
                used = lambda: server.get(f"/v1/sandboxes/{box}/metrics").json["disk_bytes"]
                eventually(lambda: used() < 16 * MIB, what="room")
                before = len(samples())
                eventually(lambda: len(samples()) > before + 1, what="another look")
        finally:
            server.close()

    def test_a_full_one_is_enospc_and_can_grow(self):
        one = self.volume()
        box = self.box({"name": one["name"], "path": "/data"})
        probe = ("import os, sys\ntry:\n  f = open('/data/big', 'wb')\n  for i in range(64): f.write(bytes(1 << 20)); "
                 "f.flush(); os.fsync(f.fileno())\n  print('fits')\nexcept OSError as e: print(e.errno)")
        self.server.request("PUT", f"/v1/sandboxes/{box}/files?path=/root/probe.py", probe)
        self.assertIn(self.sh(box, "python3 /root/probe.py"), ("28\n", "122\n"))
        self.sh(box, "echo still >/root/works")
        eventually(lambda: [e for e in self.server.get("/v1/ledger?kind=volume.full").json["events"]
                            if e["data"]["volume"] == one["id"]], what="an entry of the ledger")
        answers = [self.files(one["id"], "", f"/more{i}", "PUT", bytes(1 << 19)).status for i in range(8)]
        self.assertIn(507, answers)
        self.assertEqual(set(answers) - {200}, {507})
        self.sh(box, "rm /data/big")
        grown = self.server.request("PATCH", "/v1/volumes/" + one["id"], {"size": 128 * MIB})
        if grown.status == 501:
            self.skipTest("this storage cannot be resized")
        self.assertEqual((grown.status, grown.json["size"]), (200, 128 * MIB), grown)
        self.assertEqual(self.sh(box, "python3 /root/probe.py"), "fits\n")
        used = self.server.get("/v1/volumes/" + one["id"]).json["used"]
        self.assertGreater(used, 32 * MIB)
        less = self.server.request("PATCH", "/v1/volumes/" + one["id"], {"size": 32 * MIB})
        self.assertEqual(less.status, 409, less)

    def test_not_removed_while_somebody_has_it(self):
        one = self.volume()
        path = "/v1/volumes/" + one["id"]
        box = self.box({"name": one["name"], "path": "/data"})
        self.assertEqual(self.server.delete(path).status, 409)
        self.sh(box, "echo kept >/data/file")
        paused = self.server.post(f"/v1/sandboxes/{box}/pause", {"memory": False})
        self.assertEqual(paused.status, 200, paused)
        self.assertEqual(self.server.delete(path).status, 409, "a sleeper has it, too")
        self.assertEqual(self.sh(box, "cat /data/file"), "kept\n", "resumed, it has it again")
        self.assertEqual(self.server.delete("/v1/sandboxes/" + box).status, 204)
        self.assertEqual(self.server.delete(path).status, 204)

    def has_criu(self):
        return bool(self.server.launcher_status().get("checkpointer"))

    def test_through_pause_fork_and_snapshot(self):
        if not self.has_criu():
            self.skipTest("no criu here")
        one, two = self.volume(), self.volume()
        volumes = [{"name": one["name"], "path": "/data"}, {"name": two["name"], "path": "/ro", "read_only": True}]
        box = self.box(*volumes)
        self.sh(box, "echo kept >/data/file; nohup sh -c 'exec 3>>/data/log; while sleep 0.05; do echo tick >&3; done' "
                     ">/dev/null 2>&1 & echo $! >/root/pid")
        paused = self.server.post(f"/v1/sandboxes/{box}/pause")
        self.assertEqual(paused.status, 200, paused)
        self.assertEqual(self.server.delete("/v1/volumes/" + one["id"]).status, 409)
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume").status, 200)
        goes_on = "a=$(wc -l </data/log); while [ $(wc -l </data/log) = $a ]; do sleep 0.05; done; cat /data/file"
        self.assertEqual(self.sh(box, goes_on), "kept\n")
        self.sh(box, "kill $(cat /root/pid)")
        forked = self.server.post(f"/v1/sandboxes/{box}/fork", {"count": 2})
        self.assertEqual(forked.status, 201, forked)
        for number, child in enumerate(c["id"] for c in forked.json["sandboxes"]):
            self.sh(child, f"echo {number} >/data/child{number}")
            self.assertNotEqual(self.server.run(child, "echo x >/ro/x")["exit_code"], 0)
        self.assertEqual(self.sh(box, "cat /data/child0 /data/child1"), "0\n1\n")
        kept = self.server.post(f"/v1/sandboxes/{box}/snapshot", {"name": "with-volumes"})
        self.assertEqual(kept.status, 201, kept)
        self.assertEqual(len(kept.json["volumes"]), 2)
        other = self.server.create(snapshot="with-volumes")["id"]
        self.assertEqual(self.sh(other, "cat /data/file"), "kept\n")
        self.assertNotEqual(self.server.run(other, "echo x >/ro/x")["exit_code"], 0)
        without = self.server.post("/v1/sandboxes", {"snapshot": "with-volumes", "volumes": []})
        self.assertEqual(without.status, 400, without)
        files = self.server.create(snapshot="with-volumes", files_only=True, volumes=[])["id"]
        self.assertNotEqual(self.server.run(files, "cat /data/file")["exit_code"], 0)

    def test_a_command_and_its_port_through_pause_and_fork(self):
        """Volume, pause, fork, port and a command that runs all the while: each together with all the others."""
        if not self.has_criu():
            self.skipTest("no criu here")
        one = self.volume()
        box = self.box({"name": one["name"], "path": "/data"})
        self.assertEqual(self.server.request("PUT", f"/v1/sandboxes/{box}/files?path=/srv/web.py", WEB_ON_A_VOLUME).status, 200)
        command = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "python3 /srv/web.py", "background": True}).json["id"]

        def answer(box, who):
            """Of the program: what only its memory knows; it writes to the file that it has had open from the start."""
            def there():
                reply = self.server.get(f"/v1/sandboxes/{box}/ports/8000/{who}")
                return reply.status == 200 and reply.body.decode()
            return eventually(there, what=f"the port, for {who}")

        def runs(box):
            self.assertTrue(self.server.get(f"/v1/sandboxes/{box}/commands/{command}").json["running"])
        word = answer(box, "first")
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/pause").status, 200)
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume").status, 200)
        self.assertEqual(answer(box, "resumed"), word, "the same program")
        runs(box)
        forked = self.server.post(f"/v1/sandboxes/{box}/fork", {"count": 2})
        self.assertEqual(forked.status, 201, forked)
        children = [child["id"] for child in forked.json["sandboxes"]]
        self.assertEqual(answer(box, "parent"), word, "the parent goes on")
        runs(box)
        for number, child in enumerate(children):
            self.assertEqual(answer(child, f"child{number}"), word, "and so does each child")
        for number, child in enumerate(children):
            self.assertEqual(self.server.post(f"/v1/sandboxes/{child}/pause").status, 200)
            self.assertEqual(answer(child, f"back{number}"), word, "a call resumes it")
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/pause").status, 200)
        self.assertEqual(answer(box, "last"), word)
        runs(box)
        log = self.files(one["id"], "", "/log").body.decode().split()
        self.assertEqual(log, ["first", "resumed", "parent", "child0", "child1", "back0", "back1", "last"], "one volume for all of them")

    def test_kill_9_of_server_and_launcher(self):
        one = self.volume()
        box = self.box({"name": one["name"], "path": "/data"})
        self.sh(box, "echo kept >/data/file")
        self.files(one["id"], "", "/there", "PUT", "by hand")
        for victims in ("serve", "launcher", "both"):
            launcher = self.server.launcher_pid()
            if victims != "serve":
                os.kill(launcher, signal.SIGKILL)
            if victims != "launcher":
                self.server.stop(signal.SIGKILL)
                self.server.start()
            eventually(lambda: self.server.get("/readyz").status == 200)
            self.assertEqual(eventually(lambda: (r := self.server.post(
                f"/v1/sandboxes/{box}/commands", {"command": "cat /data/file"})).status == 200 and r).json["stdout"],
                "kept\n", victims)
            read = eventually(lambda: (r := self.files(one["id"], "", "/there")).status == 200 and r)
            self.assertEqual(read.body, b"by hand", victims)
            self.assertEqual(self.server.delete("/v1/volumes/" + one["id"]).status, 409, victims)
            # What was on its way to a launcher that died is refused once (503), and may be asked again.
            shown = eventually(lambda: (r := self.server.get("/v1/volumes/" + one["id"])).status == 200 and r)
            self.assertEqual(shown.json["sandboxes"], [box])
        # The jails that served its files are gone with their servers.
        live = lambda: self.server.launcher_status()["live"] == 1
        eventually(live, what="the end of helpers")

    def test_killed_while_making_and_removing(self):
        import threading
        for round in range(4):
            names = [f"k{round}-{i}" for i in range(6)]
            answered = {}

            def work(name):
                try:
                    answered[name] = self.server.post("/v1/volumes", {"name": name, "size": "16M"}).status
                    if name.endswith("0"):
                        answered[name] = ("removed", self.server.delete("/v1/volumes/" + name).status)
                except OSError:
                    pass
            threads = [threading.Thread(target=work, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            threads[round].join()
            self.server.stop(signal.SIGKILL)
            for thread in threads:
                thread.join()
            self.server.start()
            there = {v["name"]: v for v in self.server.get("/v1/volumes?limit=1000").json["volumes"]}
            for name, status in answered.items():
                if status == 201 and not name.endswith("0"):
                    self.assertIn(name, there, "acknowledged and lost")
                if status == ("removed", 204):
                    self.assertNotIn(name, there, "removed and back")
            for name in names:
                again = self.server.post("/v1/volumes", {"name": name, "size": "16M", "get_or_create": True})
                self.assertIn(again.status, (200, 201), again)
                box = self.box({"name": name, "path": "/data"}) if name == names[1] else None
                if box:
                    self.sh(box, "touch /data/x")

    # ---- files without a sandbox ----

    def test_files_without_a_sandbox(self):
        one = self.volume()
        wrote = self.files(one["id"], "", "/a/b/file", "PUT", b"hello \0 bytes")
        self.assertEqual((wrote.status, wrote.json["bytes"]), (200, 13), wrote)
        self.assertEqual(self.files(one["name"], "", "/a/b/file").body, b"hello \0 bytes")
        self.assertEqual(self.files(one["name"], "", "a/b/file", offset=6, length=1).body, b"\0")
        about = self.files(one["id"], "/stat", "/a/b/file").json
        self.assertEqual((about["type"], about["size"], about["uid"]), ("file", 13, 1000), about)
        listed = self.files(one["id"], "/list", "/", depth=5).json
        self.assertEqual(sorted(e["path"] for e in listed["entries"]), ["a", "a/b", "a/b/file"])
        made = self.server.post(f"/v1/volumes/{one['id']}/files/mkdir", {"path": "/new/folder"})
        self.assertEqual(made.status, 204, made)
        big = os.urandom(5 * MIB)
        self.assertEqual(self.files(one["id"], "", "/big", "PUT", big).status, 200)
        self.assertEqual(self.files(one["id"], "", "/big").body, big)
        box = self.box({"name": one["name"], "path": "/data"})
        self.assertEqual(self.sh(box, "cat /data/a/b/file | wc -c; stat -c %u /data/a/b/file /data/new").split(),
                         ["13", "1000", "1000"])
        self.sh(box, "echo inside >/data/said; chmod 600 /data/said")
        self.assertEqual(self.files(one["id"], "", "/said").body, b"inside\n")
        self.assertEqual(self.files(one["id"], "", "/a", "DELETE").status, 409)
        self.assertEqual(self.files(one["id"], "", "/a", "DELETE", recursive="true").status, 204)
        self.assertEqual(self.files(one["id"], "", "/a/b/file").status, 404)
        for path, status in (("", 400), ("/nothing", 404), ("/new", 400), ("/x\0y", 400)):
            self.assertEqual(self.files(one["id"], "", path).status, status, path)
        # Whoever only reads the volume through the API does not keep it from going.
        self.assertEqual(self.server.delete("/v1/sandboxes/" + box).status, 204)
        self.assertEqual(self.files(one["id"], "", "/said").status, 200)
        self.assertEqual(self.server.delete("/v1/volumes/" + one["id"]).status, 204)
        self.assertEqual(self.files(one["id"], "", "/said").status, 404)
        helpers = lambda: self.server.launcher_status()["live"] == 0
        eventually(helpers, what="the end of helpers")

    def test_what_somebody_put_there_leads_nowhere(self):
        one = self.volume()
        box = self.box({"name": one["name"], "path": "/data"})
        self.sh(box, "cd /data && ln -s /etc/shadow shadow && ln -s / root && ln -s ../../../../../.. up && "
                     "ln -s /proc/self proc && ln -s /proc/1/root slash && mkfifo pipe && ln -s loop loop && "
                     "mkdir etc && echo mine >etc/shadow && ln -s /outside/x away && cp /bin/true suid && chmod 4755 suid && "
                     "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/data/socket\")'")
        # An absolute link is the volume's own: there is nothing else.
        self.assertEqual(self.files(one["id"], "", "/shadow").body, b"mine\n")
        self.assertEqual(self.files(one["id"], "", "/root/etc/shadow").body, b"mine\n")
        self.assertEqual(self.files(one["id"], "", "/up/etc/shadow").body, b"mine\n")
        self.assertEqual(self.files(one["id"], "", "/../../../etc/shadow").body, b"mine\n")
        listed = {e["path"] for e in self.files(one["id"], "/list", "/../..").json["entries"]}
        self.assertIn("shadow", listed)
        self.assertNotIn("usr", listed)
        for path in ("/proc/environ", "/slash/etc/passwd", "/root/proc/self/environ", "/root/dev/null", "/etc/passwd",
                     "/away", "/root/data/suid"):
            self.assertIn(self.files(one["id"], "", path).status, (400, 404), path)
        for path in ("/pipe", "/loop", "/socket", "/root"):
            self.assertEqual(self.files(one["id"], "", path).status // 100, 4, path)
        for path in ("/pipe", "/socket"):
            self.assertEqual(self.files(one["id"], "", path, "PUT", "x", append="true").status // 100, 4, path)
        # A write replaces a link, and does not go through it.
        self.assertEqual(self.files(one["id"], "", "/shadow", "PUT", "new").status, 200)
        self.assertEqual(self.sh(box, "cat /data/etc/shadow; cat /data/shadow; test -L /data/shadow || echo plain"),
                         "mine\nnewplain\n")
        self.assertEqual(self.files(one["id"], "", "/root", "DELETE", recursive="true").status, 204)
        self.assertEqual(self.sh(box, "test -e /data/etc/shadow && echo there"), "there\n")
        # setuid means nothing in a volume.
        self.assertIn("nosuid", self.sh(box, "grep ' /data ' /proc/mounts"))

    # ---- the command ----

    def cli(self, *words, code=0, text=None):
        env = {**os.environ, "ISOLA_URL": self.server.url, "ISOLA_API_KEY": self.server.key}
        done = subprocess.run([ISOLA, *words], capture_output=True, text=True, env=env, input=text, timeout=120)
        self.assertEqual(done.returncode, code, done)
        return done.stdout

    def test_the_command(self):
        made = self.cli("volume", "create", "tools", "--size", "32M", "--label", "a=b").strip()
        self.assertRegex(made, "^v[a-z0-9]{20}$")
        self.cli("volume", "create", "tools", code=125)
        self.assertEqual(self.cli("volume", "create", "tools", "--get-or-create").strip(), made)
        self.assertIn("tools", self.cli("volume", "ls"))
        self.assertEqual(json.loads(self.cli("volume", "ls", "--json"))["volumes"][0]["labels"], {"a": "b"})
        with tempfile.TemporaryDirectory() as here:
            os.makedirs(here + "/tree/inner")
            for name in ("one", "inner/two"):
                with open(f"{here}/tree/{name}", "w") as file:
                    file.write(name)
            os.chmod(here + "/tree/one", 0o755)
            os.symlink("/etc/passwd", here + "/tree/link")
            self.cli("volume", "cp", here + "/tree", "tools:/")
            self.cli("volume", "cp", "-", "tools:/said", text="typed")
            self.assertEqual(self.cli("volume", "cp", "tools:/said", "-"), "typed")
            self.cli("volume", "cp", "tools:/tree", here + "/back")
            with open(here + "/back/inner/two") as file:
                self.assertEqual(file.read(), "inner/two")
            self.assertTrue(os.access(here + "/back/one", os.X_OK))
            self.assertFalse(os.path.lexists(here + "/back/link"))
        box = self.cli("sandbox", "create", "--volume", "tools/tree:/t", "--volume", "tools:/all:ro", "--timeout",
                       "5m").strip()
        self.assertEqual(self.sh(box, "cat /t/inner/two; cat /all/said"), "inner/twotyped")
        self.assertNotEqual(self.server.run(box, "echo x >/all/x")["exit_code"], 0)
        self.assertIn(box, self.cli("volume", "info", "tools"))
        self.cli("sandbox", "create", "--volume", "tools", code=125)
        self.cli("volume", "rm", "tools", code=125)
        self.cli("sandbox", "kill", box)
        self.cli("volume", "rm", "tools")


if __name__ == "__main__":
    unittest.main(verbosity=2)
