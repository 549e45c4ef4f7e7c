"""A full disk, and kill -9 of the launcher, in the middle of what makes, packs, unpacks and removes images: the error is
clear, what was acknowledged is there, and of the rest nothing stays."""
import errno
import http.client
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from island import FULL, Server, eventually

ROUNDS = 20 if FULL else 4
MIB = 1 << 20


class SmallDisk:
    """A server whose data directory has little room, and a way to take that."""

    def __init__(self, size):
        self.place = tempfile.mkdtemp(prefix="isola-small-", dir="/var/tmp")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", self.place]).returncode != 0:
            os.rmdir(self.place)
            raise unittest.SkipTest("no tmpfs can be mounted here")
        os.chmod(self.place, 0o755)
        os.mkdir(self.place + "/data")
        try:
            self.server = Server("--sweep", "500ms", "--pool", "0", data=self.place + "/data")
        except RuntimeError:
            subprocess.run(["umount", "--lazy", self.place])
            raise
        # Hundreds of megabytes are written before a disk is full, on whatever machine this is.
        self.server.connection = lambda: http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600)

    def leave(self, size):
        """Takes all but so much."""
        room = os.statvfs(self.place)
        with open(self.place + "/filler", "ab") as filler:
            os.posix_fallocate(filler.fileno(), filler.tell(), max(1, room.f_bavail * room.f_frsize - size))

    def room(self):
        room = os.statvfs(self.place)
        return room.f_bavail * room.f_frsize

    def fill(self):
        """Takes all, to the last page."""
        self.leave(1 * MIB)
        with open(self.place + "/filler", "ab", buffering=0) as filler:
            try:
                while filler.write(bytes(4096)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self):
        os.truncate(self.place + "/filler", 0)

    def close(self):
        self.server.close()
        for _ in range(100):  # a store that is just closing
            if subprocess.run(["umount", self.place], stderr=subprocess.DEVNULL).returncode == 0:
                break
            time.sleep(0.1)
        shutil.rmtree(self.place, ignore_errors=True)


def nothing_left(test, server):
    for snapshot in server.get("/v1/snapshots").json["snapshots"]:
        server.delete("/v1/snapshots/" + snapshot["id"])
    for box in server.get("/v1/sandboxes?limit=1000").json["sandboxes"]:
        server.delete("/v1/sandboxes/" + box["id"])
    images = os.path.join(server.data, "images")
    eventually(lambda: not os.listdir(images), 60, "an empty folder of images")
    status = server.launcher_status()
    test.assertEqual((status["live"], status["cleaning"]), (0, 0), status)


def quietly(work):
    try:
        work()
    except Exception:  # whoever it asked is being killed
        pass


def kill_in(server, work, longest):
    """kill -9 of the launcher at some moment of the work, again and again."""
    for _ in range(ROUNDS):
        busy = threading.Thread(target=quietly, args=(work,))
        busy.start()
        killed = server.launcher_pid()
        time.sleep(random.uniform(0, longest))  # any moment will do
        os.kill(killed, signal.SIGKILL)
        busy.join()
        eventually(lambda: server.launcher_pid() != killed, what="another launcher")
        eventually(lambda: server.get("/readyz", key="").status == 200)


def create_again(server, **fields):
    """Each worker of the server hears by itself that its launcher is another: until then it says 503, try again."""
    def made():
        reply = server.post("/v1/sandboxes", fields)
        assert reply.status in (201, 503), reply
        return reply.json if reply.status == 201 else None
    return eventually(made, what="a sandbox")


def there_again(server, path):
    """It runs, or can be resumed: whatever was killed in between."""
    said = []

    def awake():
        if server.get(path).json["state"] == "running":
            return True
        said[:] = [server.post(path + "/resume")]
        return said[0].status == 200
    try:
        eventually(awake)
    except AssertionError:
        raise AssertionError(f"{said}, {server.get(path)}, {server.launcher_status()}") from None


class FullDisk(unittest.TestCase):
    def setUp(self):
        self.disk = SmallDisk("1200m")
        self.server = self.disk.server
        self.addCleanup(self.disk.close)

    def tearDown(self):
        if os.path.exists(self.disk.place + "/filler"):
            self.disk.free()
        nothing_left(self, self.server)

    def box(self, **fields):
        return self.server.create(timeout=3600, auto_resume=False, **fields)["id"]

    def sh(self, box, line):
        ran = self.server.run(box, line)
        self.assertEqual(ran["exit_code"], 0, ran)
        return ran["stdout"]

    def verb(self, box, name, **body):
        return self.server.post(f"/v1/sandboxes/{box}/{name}", body)

    def refused(self, reply):
        self.assertGreaterEqual(reply.status, 500, reply)
        self.assertRegex(reply.json["error"]["message"], "(?i)no space left|disk is full|disk quota|free")

    def state(self, box):
        return self.server.get("/v1/sandboxes/" + box).json["state"]

    def test_memory(self):
        if not self.server.launcher_status().get("checkpointer"):
            self.skipTest("no criu here; `./dev criu` provides one")
        box = self.box(memory="512M")
        self.sh(box, "head -c 200M /dev/urandom > /dev/shm/large; echo here > /tmp/f; sync /tmp/f")
        self.disk.leave(100 * MIB)
        for verb, body in (("snapshot", {}), ("fork", {"count": 2}), ("pause", {})):
            with self.subTest(verb):
                self.refused(self.verb(box, verb, **body))
                self.assertEqual(self.state(box), "running")
                self.assertEqual(self.sh(box, "cat /tmp/f; stat -c %s /dev/shm/large"), f"here\n{200 * MIB}\n")
        eventually(lambda: not os.listdir(self.server.data + "/images"), what="nothing of those that failed")
        self.disk.free()
        self.assertEqual(self.verb(box, "pause").status, 200)
        self.assertEqual(self.verb(box, "resume").status, 200)
        self.assertEqual(self.sh(box, "stat -c %s /dev/shm/large"), f"{200 * MIB}\n")


    def room_of_layers(self):
        """In the layer store. What it gives back to the disk below is the store's affair, and takes minutes with some."""
        store = f"/proc/{self.server.launcher_pid()}/root{self.server.data}/storage/layers"
        subprocess.run(["sync", "-f", store], check=True)
        room = os.statvfs(store)
        return room.f_bavail * room.f_frsize

    def test_removing_makes_room(self):
        """By hand, and by whoever looks for what has expired."""
        kinds = [("files", "/root/large", self.room_of_layers)]
        if self.server.launcher_status().get("checkpointer"):
            kinds.append(("memory", "/dev/shm/large", self.disk.room))
        for kind, file, room in kinds:
            with self.subTest(kind):
                box = self.box(memory="512M")
                for name, more in (("by-hand", {}), ("by-time", {"expires_after": 10})):
                    # Another content each time, so that no two have their bytes in common.
                    self.sh(box, f"head -c 100M /dev/urandom > {file}; sync {file}")
                    kept = self.server.post(f"/v1/sandboxes/{box}/snapshot", {"name": name, "memory": kind == "memory", **more})
                    self.assertEqual(kept.status, 201, kept)
                self.sh(box, f"rm {file}")
                self.disk.leave(26 * MIB)  # a little more than no new sandbox is made with
                before = room()
                self.assertEqual(self.server.delete("/v1/snapshots/by-hand").status, 204)
                eventually(lambda: room() > before + 90 * MIB, 90, "the room of the first")
                eventually(lambda: self.server.get("/v1/snapshots/by-time").status == 404, what="the end of the second")
                eventually(lambda: room() > before + 190 * MIB, 90, "the room of the second")
                self.disk.free()
                self.assertEqual(self.server.delete("/v1/sandboxes/" + box).status, 204)

    def test_what_is_written_down(self):
        """What has to be in the store or in the ledger before it is answered is refused, by whatever call."""
        box = "/v1/sandboxes/" + self.box()
        frozen = "/v1/sandboxes/" + self.box()
        self.assertEqual(self.server.post(frozen + "/freeze").status, 200)
        project = self.server.post("/v1/projects", {"name": "there"}).json["id"]
        key = self.server.post("/v1/keys", {}).json["id"]
        for name in ("there", "spare"):
            self.server.post("/v1/secrets", {"name": name, "value": "long enough to be one"})
        grant = {"secret": "there", "names": ["api.example"]}
        binding = self.server.post("/v1/bindings", grant).json["id"]
        kept = self.server.post(box + "/snapshot", {"memory": False, "name": "there"})
        self.assertEqual(kept.status, 201, kept)
        volume = self.server.post("/v1/volumes", {"name": "there", "size": "16M"})
        self.assertEqual(volume.status, 201, volume)
        again = [("PATCH", box, lambda n: {"metadata": {"n": str(n), "filler": "x" * 60000}}),
                 ("PUT", box + "/network", lambda n: {"policy": f"allow n{n}.example"}),
                 ("POST", "/v1/keys", lambda n: {"name": f"n{n}"}), ("POST", "/v1/projects", lambda n: {"name": f"n{n}"}),
                 ("PATCH", "/v1/projects/" + project, lambda n: {"limits": {"live_sandboxes": n}}),
                 ("PUT", "/v1/tasks/one", lambda n: {"budget": {"commands": n}}),
                 ("POST", "/v1/secrets", lambda n: {"name": f"n{n}", "value": "long enough to be one"}),
                 ("PUT", "/v1/secrets/there", lambda n: {"value": f"another that is long enough {n}"}),
                 ("POST", "/v1/bindings", lambda n: grant), ("POST", "/v1/volumes", lambda n: {"name": f"n{n}", "size": "16M"})]
        once = [("POST", box + "/freeze", {}), ("POST", frozen + "/thaw", {}), ("DELETE", "/v1/keys/" + key, None),
                ("DELETE", "/v1/bindings/" + binding, None), ("DELETE", "/v1/volumes/there", None), ("DELETE", "/v1/secrets/spare", None),
                ("DELETE", "/v1/snapshots/there", None)]
        self.disk.fill()
        odd, refused = [], set()

        def is_refused(method, path, body):
            reply = self.server.request(method, path, body)
            full = reply.status == 507 and reply.json["error"]["code"] == "disk_full"
            if full:
                refused.add((method, path))
            elif reply.status >= 300:
                odd.append((method, path, reply))
            return full or reply.status >= 300

        # What was written before may leave room for a few more: each is asked until it is told.
        for method, path, body in again:
            if not any(is_refused(method, path, body(n)) for n in range(1, 60)):
                odd.append((method, path, "was never refused"))
        for method, path, body in once:
            is_refused(method, path, body)
        self.assertEqual(odd, [])
        self.assertEqual({call[:2] for call in again} - refused, set())
        self.disk.free()
        for method, path, body in again:
            self.assertLess(self.server.request(method, path, body(1000)).status, 300, (method, path))


class KilledLauncher(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--sweep", "300ms", "--pool", "0", "--log-access", "false")
        cls.addClassCleanup(cls.server.close)

    def tearDown(self):
        nothing_left(self, self.server)

    def test_packing_and_unpacking(self):
        box = self.server.create(timeout=3600, auto_resume=False)["id"]
        path = f"/v1/sandboxes/{box}"
        line = "head -c 30M /dev/urandom > /root/large; sync /root/large; sha256sum < /root/large"
        digest = self.server.run(box, line)["stdout"]
        self.assertEqual(self.server.post(path + "/pause", {"memory": False}).status, 200)

        def there_and_back():
            self.server.post(path + "/archive")
            self.server.post(path + "/resume")
            self.server.post(path + "/pause", {"memory": False})

        kill_in(self.server, there_and_back, 0.6)
        there_again(self.server, path)
        self.assertEqual(self.server.run(box, "sha256sum < /root/large")["stdout"], digest)

    def test_removing(self):
        box = self.server.create(timeout=3600)["id"]
        gone = []

        def keep_and_remove():
            kept = [self.server.post(f"/v1/sandboxes/{box}/snapshot", {"memory": False}).json["id"] for _ in range(5)]
            for snapshot in kept:
                if self.server.delete("/v1/snapshots/" + snapshot).status == 204:
                    gone.append(snapshot)

        kill_in(self.server, keep_and_remove, 0.4)
        there = {snapshot["id"] for snapshot in self.server.get("/v1/snapshots").json["snapshots"]}
        self.assertEqual(there & set(gone), set(), "what was removed is not there again")
        for snapshot in there:  # and what is there can be used
            made = create_again(self.server, snapshot=snapshot)
            self.assertEqual(self.server.run(made["id"], "echo x")["stdout"], "x\n")
            self.server.delete("/v1/sandboxes/" + made["id"])


class Builds(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.disk = SmallDisk("1200m")
        cls.server = cls.disk.server
        cls.addClassCleanup(cls.disk.close)

    def test_the_disk_is_full(self):
        dockerfile = "FROM minimal\nRUN echo made > /made\n"
        self.disk.leave(1 * MIB)
        failed = self.build("full", dockerfile)
        self.assertEqual(failed["state"], "failed", failed)
        self.assertRegex(str(failed), "(?i)no space left|disk is full|free")
        self.disk.free()
        self.assertEqual(self.build("full", dockerfile)["state"], "ready")
        made = self.server.create(template="full")
        self.assertEqual(self.server.run(made["id"], "cat /made")["stdout"], "made\n")
        self.assertEqual(self.server.delete("/v1/templates/full").status, 204)

    def build(self, name, dockerfile):
        begun = self.server.post("/v1/templates", {"name": name, "dockerfile": dockerfile, "force": True})
        self.assertEqual(begun.status, 202, begun)
        at = begun.headers["location"]
        eventually(lambda: self.server.get(at).json["state"] in ("ready", "failed"), 120, "the end of the build")
        return self.server.get(at).json

    def test_the_launcher_is_killed(self):
        dockerfile = "FROM minimal\n" + "".join(f"RUN echo {i} >> /made\n" for i in range(4))
        begun = []

        def build():
            reply = self.server.post("/v1/templates", {"name": f"crash-{len(begun)}", "dockerfile": dockerfile, "force": True})
            if reply.status == 202:
                begun.append((reply.headers["location"], f"crash-{len(begun)}"))

        kill_in(self.server, build, 1.0)
        for at, _ in begun:
            eventually(lambda: self.server.get(at).json["state"] in ("ready", "failed"), 120, "the end of the build")
        eventually(lambda: not [box for box in self.server.get("/v1/sandboxes?limit=1000").json["sandboxes"]
                                if "isola.build" in box["metadata"] and box["state"] != "ended"], what="the end of their sandboxes")
        for at, name in begun:
            if self.server.get(at).json["state"] == "ready":
                made = create_again(self.server, template=name)
                self.assertEqual(self.server.run(made["id"], "cat /made")["stdout"], "0\n1\n2\n3\n")
                self.server.delete("/v1/sandboxes/" + made["id"])
            self.server.delete("/v1/templates/" + name)


if __name__ == "__main__":
    if not FULL:
        print(f"reduced: {ROUNDS} kills of each kind (tests/server/disaster_test.py)")
    unittest.main()
