"""Buckets of an S3-compatible store in sandboxes: files that are objects, keys that are nowhere inside, and nobody who
waits for a store that does not answer."""
import os
import secrets
import signal
import subprocess
import threading
import time
import unittest

from island import ISOLA, Server, eventually
from s3 import Store


def why_not():
    if subprocess.run(["which", "s3fs"], stdout=subprocess.DEVNULL).returncode != 0:
        return "s3fs is not installed"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "this machine has no /dev/fuse"
    return ""


def clients(sandbox):
    """Who serves the buckets of a sandbox: (pid of the relay, pids of the clients)."""
    pids = set()
    for path, _, files in os.walk("/sys/fs/cgroup"):
        if path.endswith(f"/{sandbox}-buckets") and "cgroup.procs" in files:
            with open(path + "/cgroup.procs") as file:
                pids.update(int(word) for word in file.read().split())
    named = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/comm") as file:
                named[pid] = file.read().strip()
        except OSError:  # it is gone
            pass
    return [p for p, name in named.items() if name == "isola-bucket"], [p for p, name in named.items() if name == "s3fs"]


def first_process(sandbox):
    """Process 1 of a sandbox, as the machine sees it."""
    for path, _, files in os.walk("/sys/fs/cgroup"):
        if path.endswith("/" + sandbox) and "cgroup.procs" in files:
            with open(path + "/cgroup.procs") as file:
                for pid in file.read().split():
                    with open(f"/proc/{pid}/status") as status:
                        if any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status):
                            return int(pid)
    raise AssertionError("it has no process 1")


def groups():
    return [path for path, _, _ in os.walk("/sys/fs/cgroup") if path.endswith("-buckets")]


class Buckets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            raise unittest.SkipTest("no buckets here: " + reason)
        cls.store = Store()
        cls.addClassCleanup(cls.store.close)
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)
        made = cls.server.post("/v1/secrets", {"name": "s3", "value": cls.store.key})
        assert made.status == 201, made

    def setUp(self):
        self.bucket = "b" + secrets.token_hex(8)
        self.store.make(self.bucket)
        self.boxes = []

    def tearDown(self):
        self.store.go_on()
        for box in self.boxes:
            self.server.delete("/v1/sandboxes/" + box)
            eventually(lambda: not any(f"/{box}-buckets" in path for path in groups()), what="the end of its clients")

    def mount(self, path="/data", **fields):
        return {"endpoint": self.store.url, "bucket": self.bucket, "secret": "s3", "path": path, **fields}

    def box(self, *mounts, **fields):
        made = self.server.create(timeout=600, buckets=list(mounts) or [self.mount()], **fields)
        self.boxes.append(made["id"])
        return made["id"]

    def refused(self, *mounts, **more):
        reply = self.server.post("/v1/sandboxes", {"buckets": list(mounts)}, **more)
        self.assertGreaterEqual(reply.status, 400, reply)
        return reply.status, reply.json["error"]["message"]

    def sh(self, box, command, code=0, **fields):
        result = self.server.run(box, command, **fields)
        self.assertEqual(result["exit_code"], code, result)
        return result["stdout"]

    # ---- what it is ----

    def test_e2b_watches_one_only_where_it_is_asked_for(self):
        box = self.box()
        token = self.server.post(f"/sandboxes/{box}/connect", {"timeout": 60}, key="", headers={"X-API-Key": self.server.key}).json["envdAccessToken"]

        def watch(path, **more):
            headers = {"E2b-Sandbox-Id": box, "X-Access-Token": token, "Content-Type": "application/json", "Authorization": "Basic cm9vdDo="}
            return self.server.post("/filesystem.Filesystem/CreateWatcher", {"path": path, **more}, key="", headers=headers)

        refused = watch("/data")
        self.assertEqual((refused.status, refused.json["code"]), (400, "invalid_argument"), refused)
        self.assertIn("network", refused.json["message"])
        self.assertEqual(watch("/data", allowNetworkMounts=True).status, 200)
        self.assertEqual(watch("/tmp").status, 200)

    def test_files_are_objects(self):
        self.store.put(self.bucket, "hello.txt", "from the store\n")
        self.store.put(self.bucket, "deep/down/there.txt", "x")
        box = self.box()
        self.assertEqual(self.sh(box, "cat /data/hello.txt"), "from the store\n")
        self.assertEqual(self.sh(box, "ls /data /data/deep/down"), "/data:\ndeep\nhello.txt\n\n/data/deep/down:\nthere.txt\n")
        # As the user of the template, and as root.
        self.assertEqual(self.sh(box, "stat -c %U /data/hello.txt"), "user\n")
        self.sh(box, "echo mine > /data/mine && echo more >> /data/mine && mkdir /data/new && cp /data/mine /data/new/two", user="user")
        self.sh(box, "mv /data/new/two /data/new/three && echo root > /data/roots", user="root")
        self.assertEqual(self.store.get(self.bucket, "mine"), "mine\nmore\n")
        self.assertEqual(self.store.get(self.bucket, "new/three"), "mine\nmore\n")
        self.assertEqual(self.store.get(self.bucket, "roots"), "root\n")
        self.sh(box, "rm /data/mine")
        self.assertNotIn("mine", self.store.names(self.bucket))
        # More than fits into what its client keeps at a time.
        self.sh(box, "python3 -c \"import os; f = open('/data/large', 'wb'); [f.write(bytes([i]) * (1 << 20)) for i in range(200)]\"")
        self.assertEqual(self.sh(box, "stat -c %s /data/large; head -c 105906176 /data/large | tail -c 1 | od -An -tu1"),
                         f"{200 << 20}\n 100\n")

    def test_only_what_is_below_the_prefix(self):
        self.store.put(self.bucket, "team/a/mine", "mine")
        self.store.put(self.bucket, "team/b/theirs", "theirs")
        box = self.box(self.mount(prefix="team/a"))
        self.assertEqual(self.sh(box, "ls -A /data; cat /data/../data/mine; ls -A /data/.."  " | grep -c theirs || true"), "mine\nmine0\n")
        self.sh(box, "echo new > /data/new; ln -s ../b/theirs /data/link")
        self.assertIn("team/a/new", self.store.names(self.bucket))
        self.sh(box, "cat /data/link", code=1)
        # One that is not there yet is an empty folder.
        other = self.box(self.mount(prefix="not/yet"))
        self.assertEqual(self.sh(other, "ls -A /data; echo 1 > /data/one"), "")
        self.assertEqual(self.store.get(self.bucket, "not/yet/one"), "1\n")

    def test_read_only_holds_for_root(self):
        self.store.put(self.bucket, "kept", "as it was")
        box = self.box(self.mount(read_only=True), self.mount("/also"))
        for line in ("echo x > /data/kept", "rm /data/kept", "touch /data/new", "mount -o remount,rw /data",
                     "umount /data"):
            self.server.run(box, line, user="root")
        self.assertIn("Read-only file system", self.server.run(box, "touch /data/new", user="root")["stderr"])
        self.assertEqual(self.store.names(self.bucket), ["kept"])
        self.assertEqual(self.store.get(self.bucket, "kept"), "as it was")
        # The other mount of the same bucket is writable.
        self.sh(box, "echo x > /also/other")
        self.assertEqual(self.sh(box, "cat /data/other"), "x\n")
        shown = self.server.get("/v1/sandboxes/" + box).json
        self.assertEqual([(one["path"], one["read_only"], one["secret"]) for one in shown["buckets"]],
                         [("/data", True, "s3"), ("/also", False, "s3")])

    def test_the_keys_are_outside(self):
        box = self.box()
        public, secret = self.store.key.split(":")
        # Not a word of it may stand in the search itself.
        search = (f"import glob\nwords = [word[::-1].encode() for word in {[public[::-1], secret[::-1]]}]\n"
                  "for path in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline') + ['/proc/mounts', '/proc/self/mountinfo'] "
                  "+ glob.glob('/etc/**', recursive=True) + glob.glob('/run/**', recursive=True) + glob.glob('/tmp/**', recursive=True):\n"
                  "  try:\n    text = open(path, 'rb').read()\n  except OSError:\n    continue\n"
                  "  assert not any(word in text for word in words), path\n")
        found = self.server.post(f"/v1/sandboxes/{box}/commands", {"argv": ["python3", "-c", search], "user": "root"}).json
        self.assertEqual(found["exit_code"], 0, found)
        relays, serving = clients(box)
        self.assertEqual((len(relays), len(serving)), (1, 1))
        for pid in relays + serving:
            with open(f"/proc/{pid}/cmdline", "rb") as words, open(f"/proc/{pid}/environ", "rb") as environment:
                said = words.read() + environment.read()
            self.assertNotIn(secret.encode(), said)
        # Nor anywhere in the server's folder.
        found = subprocess.run(["grep", "-rlF", secret, self.server.data], capture_output=True, text=True)
        self.assertEqual(found.stdout, "")
        events = self.server.get(f"/v1/ledger?sandbox={box}&kind=bucket.mounted").json["events"]
        self.assertEqual([(one["data"]["bucket"], one["data"]["secret"]) for one in events], [(self.bucket, "s3")])
        self.assertNotIn(secret, str(events))

    def test_its_client_is_confined(self):
        box = self.box()
        relays, serving = clients(box)
        for pid in relays + serving:
            with open(f"/proc/{pid}/status") as file:
                status = dict(line.split(":", 1) for line in file.read().splitlines())
            self.assertEqual(status["Uid"].split(), ["65534"] * 4)
            self.assertEqual(status["Groups"].strip(), "")
            for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh"):
                self.assertEqual(int(status[name], 16), 0, name)
            self.assertEqual(status["NoNewPrivs"].strip(), "1")
        client = serving[0]
        for kind in ("mnt", "pid", "net", "ipc", "uts"):
            self.assertNotEqual(os.readlink(f"/proc/{client}/ns/{kind}"), os.readlink(f"/proc/self/ns/{kind}"), kind)
        root = f"/proc/{client}/root"
        self.assertEqual(sorted(os.listdir(root + "/bin")), ["fusermount", "s3fs"])
        for missing in ("/proc/1", "/dev/null", "/home", "/root", "/var", "/etc/shadow", "/bin/sh", "/usr/bin"):
            self.assertFalse(os.path.exists(root + missing), missing)
        with open(f"/proc/{client}/net/dev") as file:
            self.assertEqual([line.split(":")[0].strip() for line in file.read().splitlines()[2:]], ["lo"])
        # Beside its two programs, libraries and certificates it has no file of the machine; and it can write to two places.
        with open(f"/proc/{client}/mountinfo") as file:
            mounted = {line.split()[4]: line.split()[5].split(",") for line in file}
        for path, options in mounted.items():
            self.assertIn(path, ("/", "/usr/lib", "/usr/lib64", "/bin/s3fs", "/bin/fusermount", "/etc/ld.so.cache", "/etc/mime.types"))
            self.assertLessEqual({"nosuid", "nodev"}, set(options), path)
            self.assertTrue(path == "/" or "ro" in options, path)

    def test_a_folder_that_is_kept(self):
        self.store.put(self.bucket, "kept.txt", "as it was\n")
        box = self.box()
        self.sh(box, "mkdir /srv/own; echo own > /srv/own/f")
        for name, path, file in (("of-bucket", "/data", "kept.txt"), ("of-files", "/srv/own", "f")):
            name += "-" + self.bucket  # other tests have the same server
            kept = self.server.post(f"/v1/sandboxes/{box}/folders", {"path": path, "name": name})
            self.assertEqual(kept.status, 201, kept)
            self.assertEqual(self.server.get(f"/v1/volumes/{name}/files?path=/{file}").status, 200)
            eventually(lambda: self.server.delete("/v1/volumes/" + name).status == 204, what="its removal")
        self.assertEqual(self.store.get(self.bucket, "kept.txt"), "as it was\n")

    # ---- through pause, fork and restarts ----

    def test_pause_fork_and_snapshot(self):
        self.store.put(self.bucket, "numbers", "".join(f"{i}\n" for i in range(1000)))
        box = self.box()
        self.server.run(box, "true")
        # It reads a line whenever it is told to, from a file that it opened once.
        program = ("import os, time\nf = open('/data/numbers')\nprint(f.readline(), end='', flush=True)\n"
                   "while True:\n  if os.path.exists('/tmp/go'):\n    os.unlink('/tmp/go'); open('/tmp/said', 'a').write(f.readline())\n"
                   "  time.sleep(0.02)\n")
        self.server.post(f"/v1/sandboxes/{box}/commands", {"argv": ["python3", "-c", program], "background": True})
        eventually(lambda: self.server.run(box, "pgrep -f numbers")["exit_code"] == 0)
        next_line = "rm -f /tmp/before; touch /tmp/go; while [ -e /tmp/go ]; do sleep 0.02; done; sleep 0.1; tail -1 /tmp/said"
        self.assertEqual(self.sh(box, next_line), "1\n")
        before = clients(box)
        paused = self.server.post(f"/v1/sandboxes/{box}/pause")
        self.assertEqual((paused.status, paused.json["state"]), (200, "paused"), paused)
        eventually(lambda: not clients(box)[1], what="the end of its client")
        self.store.put(self.bucket, "while-it-slept", "here")
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume").status, 200)
        self.assertEqual(self.sh(box, next_line), "2\n")
        self.assertEqual(self.sh(box, "cat /data/while-it-slept"), "here")
        self.assertNotEqual(clients(box), before)
        forks = self.server.post(f"/v1/sandboxes/{box}/fork", {"count": 2})
        self.assertEqual(forks.status, 201, forks)
        children = [one["id"] for one in forks.json["sandboxes"]]
        self.boxes += children
        for child in children:
            self.assertEqual(self.sh(child, next_line), "3\n")
            self.sh(child, f"echo {child} > /data/{child}")
            self.assertEqual(self.store.get(self.bucket, child), child + "\n")
            self.assertEqual(len(clients(child)[1]), 1)
        self.assertEqual(self.sh(box, next_line), "3\n")
        kept = self.server.post(f"/v1/sandboxes/{box}/snapshot", {})
        self.assertEqual(kept.status, 201, kept)
        other = self.server.create(snapshot=kept.json["id"], timeout=600)
        self.boxes.append(other["id"])
        self.assertEqual(self.sh(other["id"], next_line), "4\n")
        self.server.delete("/v1/snapshots/" + kept.json["id"])
        # Files only: the same folder, other processes.
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/pause", {"memory": False}).json["state"], "stopped")
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume").status, 200)
        self.assertEqual(self.sh(box, "cat /data/while-it-slept"), "here")

    def test_what_is_written_when_it_is_paused_or_ends_is_kept(self):
        box = self.box()
        program = "f = open('/data/half', 'w'); f.write('half'); f.flush(); open('/tmp/there', 'w'); import time; time.sleep(1000)"
        for verb in ("pause", "delete"):
            self.server.post(f"/v1/sandboxes/{box}/commands", {"argv": ["python3", "-c", program.replace("half", verb)],
                                                              "background": True})
            eventually(lambda: self.server.run(box, "rm /tmp/there")["exit_code"] == 0)
            if verb == "pause":
                self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/pause").status, 200)
                self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume").status, 200)
            else:
                self.server.delete("/v1/sandboxes/" + box)
            self.assertEqual(self.store.get(self.bucket, verb), verb)

    def test_it_outlives_server_and_launcher(self):
        box = self.box()
        self.sh(box, "echo 1 > /data/one")
        serving = clients(box)
        launcher = self.server.launcher_pid()
        os.kill(launcher, signal.SIGKILL)
        self.server.stop(signal.SIGKILL)
        self.assertEqual(clients(box), serving)
        self.server.start()
        self.assertEqual(self.sh(box, "cat /data/one; echo 2 > /data/two"), "1\n")
        self.assertEqual(self.store.get(self.bucket, "two"), "2\n")
        self.assertEqual(clients(box), serving)
        # A sandbox that ends while nobody watches takes its client with it.
        first = first_process(box)
        os.kill(self.server.launcher_pid(), signal.SIGKILL)
        self.server.stop(signal.SIGKILL)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not clients(box)[1], what="the end of its client")
        self.server.start()
        eventually(lambda: not any(f"/{box}-buckets" in path for path in groups()), what="the end of its group")

    # ---- what goes wrong ----

    def test_a_dead_client_is_an_error_and_nobody_waits(self):
        box = self.box()
        self.sh(box, "echo 1 > /data/one")
        relays, serving = clients(box)
        os.kill(serving[0], signal.SIGKILL)
        eventually(lambda: "not connected" in self.server.run(box, "cat /data/one")["stderr"])
        eventually(lambda: clients(box) == ([], []), what="the end of its relay")
        self.assertEqual(self.sh(box, "echo still here"), "still here\n")
        # It comes back with the next resume.
        paused = self.server.post(f"/v1/sandboxes/{box}/pause")
        self.assertEqual(paused.status, 200, paused)
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume").status, 200)
        self.assertEqual(self.sh(box, "cat /data/one"), "1\n")
        relays, serving = clients(box)
        os.kill(relays[0], signal.SIGKILL)
        eventually(lambda: clients(box) == ([], []), what="the end of its client")
        self.assertIn("not connected", self.server.run(box, "cat /data/one")["stderr"])
        self.assertEqual(self.server.delete("/v1/sandboxes/" + box).status, 204)

    def test_a_store_that_does_not_answer(self):
        box = self.box()
        self.store.put(self.bucket, "one", "1")
        self.store.hang()
        waiting = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "cat /data/one", "background": True})
        self.assertEqual(waiting.status, 202, waiting)
        # It waits in the kernel, in its client's hands: others do not, and its end comes all the same.
        self.assertEqual(self.sh(box, "echo others go on"), "others go on\n")
        refused = self.server.post("/v1/sandboxes", {"buckets": [self.mount()]})
        self.assertIn(refused.status, (503, 504), refused)
        self.assertEqual(self.server.delete("/v1/sandboxes/" + box).status, 204)
        eventually(lambda: clients(box) == ([], []), what="the end of its client")
        eventually(lambda: not groups(), what="the end of all clients")
        # One whose call ended with an error goes on when the store does.
        self.store.go_on()
        box = self.box()
        self.store.hang()
        failed = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "cat /data/one 2> /tmp/why; touch /tmp/over", "background": True})
        self.assertEqual(failed.status, 202, failed)
        eventually(lambda: self.server.run(box, "cat /tmp/over")["exit_code"] == 0, 180, "the end of its call")
        self.assertIn("Input/output error", self.sh(box, "cat /tmp/why"))
        self.store.go_on()
        eventually(lambda: self.server.run(box, "cat /data/one")["stdout"] == "1")

    def test_what_is_refused(self):
        self.assertEqual(self.refused(self.mount(bucket="not-there-at-all"))[0], 404)
        wrong = self.server.post("/v1/secrets", {"name": "wrong", "value": "AKIAWRONG:nothing"})
        self.assertEqual(wrong.status, 201)
        self.assertEqual(self.refused(self.mount(secret="wrong"))[0], 403)
        self.server.post("/v1/secrets", {"name": "odd", "value": "no colon in it"})
        status, why = self.refused(self.mount(secret="odd"))
        self.assertEqual(status, 400)
        self.assertIn("ACCESS_KEY_ID:SECRET_ACCESS_KEY", why)
        self.assertNotIn("no colon", why)
        status, why = self.refused(self.mount(secret="never-made"))
        self.assertEqual((status, "never-made" in why), (400, True))
        for field, value in (("endpoint", "https://a,uid=0"), ("endpoint", "file:///etc"), ("bucket", "-o"), ("prefix", "../x"),
                             ("region", "a,b"), ("path", "relative"), ("path", "/proc/x"), ("path", "/a b")):
            self.assertEqual(self.refused(self.mount(**{field: value}))[0], 400, (field, value))
        self.assertEqual(self.refused(self.mount(), self.mount())[0], 400)
        self.assertEqual(self.refused(*[self.mount(f"/d{i}") for i in range(9)])[0], 400)
        nobody = Server.free_port()
        self.assertEqual(self.refused(self.mount(endpoint=f"http://127.0.0.1:{nobody}"))[0], 503)
        key = self.server.post("/v1/keys", {"name": "user", "scope": "use"}).json["secret"]
        self.assertEqual(self.refused(self.mount(), key=key)[0], 403)
        self.assertEqual(groups(), [])

    def test_other_projects_reach_nothing_inside(self):
        made = self.server.post("/v1/projects", {"name": "tenant-" + secrets.token_hex(4)})
        self.assertEqual(made.status, 201, made)
        key = self.server.post("/v1/keys", {"name": "a", "scope": "admin", "project": made.json["id"]}).json["secret"]
        self.server.post("/v1/secrets", {"name": "s3", "value": self.store.key}, key=key)
        self.assertEqual(self.refused(self.mount(), key=key)[0], 403)
        secure = self.store.url.replace("http:", "https:")
        self.assertIn(self.refused(self.mount(endpoint=secure), key=key)[0], (403, 503))
        # Not even asked: the relay does not dial it.
        listener = __import__("socket").create_server(("127.0.0.1", 0))
        listener.settimeout(0)
        status, _ = self.refused(self.mount(endpoint=f"https://127.0.0.1:{listener.getsockname()[1]}"), key=key)
        self.assertIn(status, (403, 503))
        with self.assertRaises(BlockingIOError):
            listener.accept()
        listener.close()

    def test_on_the_command_line(self):
        environment = {**os.environ, "ISOLA_URL": self.server.url, "ISOLA_API_KEY": self.server.key}
        spec = f"path=/data,endpoint={self.store.url},bucket={self.bucket},secret=s3,ro"
        made = subprocess.run([ISOLA, "sandbox", "create", "--bucket", spec], capture_output=True, text=True, env=environment)
        self.assertEqual(made.returncode, 0, made)
        self.boxes.append(made.stdout.strip())
        shown = subprocess.run([ISOLA, "sandbox", "get", made.stdout.strip()], capture_output=True, text=True, env=environment)
        self.assertIn(f"{self.bucket} of {self.store.url} at /data (read-only)", shown.stdout, shown)
        odd = subprocess.run([ISOLA, "sandbox", "create", "--bucket", "path=/data"], capture_output=True, text=True, env=environment)
        self.assertIn("endpoint is missing", odd.stderr)


if __name__ == "__main__":
    unittest.main()
