"""Workspaces: sandboxes that are put away for long and come back, and repositories that they begin with."""
import os
import signal
import subprocess
import sys
import threading
import unittest

from island import ISOLA, Server, eventually

server = None


def setUpModule():
    global server
    server = Server("--sweep", "1s", "--sample", "1s")


def tearDownModule():
    if server:
        server.close()


def state(box):
    return server.get(f"/v1/sandboxes/{box['id']}").json["state"]


def verb(box, name, body=None):
    return server.post(f"/v1/sandboxes/{box['id']}/{name}", body or {})


def sh(box, line, **more):
    return server.run(box["id"], line, **more)["stdout"]


def children_called(name, parent):
    listed = subprocess.run(["pgrep", "-P", str(parent), "-x", name], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def folder_of(box):
    """Of its image, with everything in it."""
    images = os.path.join(server.data, "images")
    return [os.path.join(images, name) for name in os.listdir(images)]


class Archive(unittest.TestCase):
    def tearDown(self):
        for box in server.get("/v1/sandboxes?limit=1000").json["sandboxes"]:
            server.delete(f"/v1/sandboxes/{box['id']}")

    def archives(self):
        return sorted(name for folder in folder_of(None) for name in os.listdir(folder) if name.endswith(".zst"))

    def test_files_there_and_back(self):
        box = server.create()
        sh(box, "mkdir -p work && yes line | head -c 8000000 > work/big && ln work/big work/second && rm -rf /opt/* && mkdir -m 700 work/closed; "
                "echo changed > ~/.profile; sudo rm /etc/issue; sudo chown 7:8 work/closed")
        before = sh(box, "sha256sum work/big; stat -c '%u %g %a %h %n' work/* ; ls /etc/issue 2>&1; cat ~/.profile")
        self.assertEqual(verb(box, "archive").status, 409, "it is awake")
        self.assertEqual(verb(box, "pause", {"memory": False}).json["state"], "stopped")
        self.assertEqual(verb(box, "archive").json["state"], "archived")
        self.assertEqual(verb(box, "archive").json["state"], "archived", "again changes nothing")
        self.assertEqual(self.archives(), ["layer.tar.zst"])
        self.assertEqual(sh(box, "sha256sum work/big; stat -c '%u %g %a %h %n' work/* ; ls /etc/issue 2>&1; cat ~/.profile"), before,
                         "a call brings it back, as it was")
        self.assertEqual(state(box), "running")
        sh(box, "echo more >> work/big")
        self.assertEqual(verb(box, "pause", {"memory": False}).json["state"], "stopped")
        self.assertEqual(verb(box, "archive").json["state"], "archived", "as often as one likes")
        self.assertEqual(verb(box, "resume").json["state"], "running")
        self.assertEqual(sh(box, "tail -n1 work/big"), "more\n")
        self.assertEqual(self.archives(), [])

    def test_memory_there_and_back(self):
        box = server.create()
        server.post(f"/v1/sandboxes/{box['id']}/commands", {"command": "exec 3>log; i=0; while :; do i=$((i+1)); echo $i >&3; echo $i > at; sleep 0.05; done", "background": True})
        eventually(lambda: sh(box, "cat at 2>/dev/null") not in ("", "\n"), what="the first number")
        self.assertEqual(verb(box, "pause").json["state"], "paused")
        self.assertEqual(verb(box, "archive").json["state"], "archived")
        self.assertEqual(self.archives(), ["memory.tar.zst"])
        self.assertEqual(verb(box, "resume").json["birth"], "resumed")
        number = int(sh(box, "cat at"))
        eventually(lambda: int(sh(box, "cat at") or 0) > number, what="the next number: it goes on")
        self.assertEqual(sh(box, "head -n1 log"), "1\n")

    def test_by_itself(self):
        box = server.create(idle_timeout="1s", at_end="stop", archive_after="1s", delete_after=0)
        self.assertEqual(server.get(f"/v1/sandboxes/{box['id']}").json["archive_after"], 1)
        eventually(lambda: state(box) == "archived", 30, "its archive")
        self.assertEqual(sh(box, "echo back"), "back\n")
        self.assertEqual(server.request("PATCH", f"/v1/sandboxes/{box['id']}", {"archive_after": -1}).status, 400)
        changed = server.request("PATCH", f"/v1/sandboxes/{box['id']}", {"archive_after": 0}).json
        self.assertEqual(changed["archive_after"], None)

    def test_it_counts_less(self):
        project = server.post("/v1/projects", {"name": "counting", "limits": {"stored": "30M"}}).json
        key = server.post("/v1/keys", {"project": project["id"], "scope": "admin"}).json["secret"]
        boxes = [server.post("/v1/sandboxes", {}, key=key).json["id"] for _ in range(2)]
        pause = lambda box: server.post(f"/v1/sandboxes/{box}/pause", {"memory": False}, key=key).status
        for box in boxes:
            filled = server.post(f"/v1/sandboxes/{box}/commands", {"command": "yes line | head -c 20000000 > big; sync big"}, key=key)
            self.assertEqual(filled.json["exit_code"], 0, filled)
        self.assertEqual(pause(boxes[0]), 200)
        self.assertEqual(pause(boxes[1]), 429, "both do not fit")
        self.assertEqual(server.post(f"/v1/sandboxes/{boxes[0]}/archive", {}, key=key).status, 200)
        self.assertEqual(pause(boxes[1]), 200, "one of them packed they do")
        for box in boxes:
            server.delete(f"/v1/sandboxes/{box}", key=key)

    def test_there_and_back_at_once(self):
        """The files come back to a place that is still being cleared of what lay there before."""
        box = server.create()
        sh(box, "echo kept > f")
        verb(box, "pause", {"memory": False})
        hands = children_called("isola-janitor", server.launcher_pid())
        self.assertTrue(hands)
        came = []
        for hand in hands:
            os.kill(hand, signal.SIGSTOP)
        try:
            self.assertEqual(verb(box, "archive").status, 200)
            asked = threading.Thread(target=lambda: came.append(verb(box, "resume")))
            asked.start()
            asked.join(1)  # who does not wait for them has his answer by then
        finally:
            for hand in hands:
                os.kill(hand, signal.SIGCONT)
        asked.join(30)
        self.assertEqual(came[0].status, 200, came)
        self.assertEqual(sh(box, "cat f"), "kept\n")

    def test_everybody_dies(self):
        box = server.create()
        sh(box, "echo kept > f")
        verb(box, "pause", {"memory": False})
        verb(box, "archive")
        pid = server.launcher_pid()
        server.stop(9)
        os.kill(pid, 9)
        server.start(server.port)
        self.assertEqual(state(box), "archived")
        self.assertEqual(sh(box, "cat f"), "kept\n")

    def test_one_that_is_removed(self):
        box = server.create()
        verb(box, "pause", {"memory": False})
        verb(box, "archive")
        server.delete(f"/v1/sandboxes/{box['id']}")
        eventually(lambda: folder_of(box) == [], what="nothing left of it")

    def test_damage_is_named(self):
        box = server.create(auto_resume=False)
        sh(box, "head -c 100000 /dev/urandom > f")
        verb(box, "pause", {"memory": False})
        verb(box, "archive")
        path = [os.path.join(f, "layer.tar.zst") for f in folder_of(box) if os.path.exists(os.path.join(f, "layer.tar.zst"))][0]
        with open(path, "r+b") as file:
            good = file.read()
            file.seek(len(good) // 2)
            file.write(b"damage")
        wrong = verb(box, "resume")
        self.assertGreaterEqual(wrong.status, 500)
        self.assertIn("is not what was written", wrong.json["error"]["message"])
        self.assertEqual(state(box), "archived")
        with open(path, "wb") as file:
            file.write(good)
        back = verb(box, "resume")  # what was unpacked in vain is still being removed
        self.assertEqual(back.status, 200, back)
        self.assertEqual(state(box), "running")

    def test_what_would_not_come_back_stays(self):
        """Folders deeper than any path is long: tar packs them, and could not make them."""
        box = server.create(auto_resume=False)
        sh(box, "echo kept > f; p=$(for i in $(seq 15); do printf '%0200d/' $i; done); mkdir -p one/$p two/$p && mv two one/$p")
        self.assertEqual(verb(box, "pause", {"memory": False}).json["state"], "stopped")
        refused = verb(box, "archive")
        self.assertEqual(refused.status, 501, refused)
        self.assertIn("stays as it is", refused.json["error"]["message"])
        self.assertIn("File name too long", refused.json["error"]["message"])
        self.assertEqual(state(box), "stopped")
        self.assertEqual(self.archives(), [], "of the attempt nothing is left")
        self.assertEqual(verb(box, "resume").json["state"], "running")
        self.assertEqual(sh(box, "cat f; ls one | wc -l"), "kept\n1\n")

    def test_what_would_not_come_back_is_told_when_its_time_comes(self):
        box = server.create(idle_timeout="1s", at_end="stop", archive_after="1s", delete_after=0, auto_resume=False)
        sh(box, "p=$(for i in $(seq 15); do printf '%0200d/' $i; done); mkdir -p one/$p two/$p && mv two one/$p")
        eventually(lambda: f"{box['id']} is not archived" in server.log(), 30, "the warning")
        self.assertEqual(state(box), "stopped")

    def test_sockets_are_left_out(self):
        box = server.create()
        if not sh(box, "command -v python3 perl || true"):
            self.skipTest("the template has nothing that makes a socket")
        sh(box, "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")' || perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"s\", Listen => 1)'; test -S s; echo kept > f")
        verb(box, "pause", {"memory": False})
        self.assertEqual(verb(box, "archive").json["state"], "archived")
        self.assertEqual(sh(box, "cat f; ls s 2>/dev/null || true"), "kept\n")

    def test_the_command_line(self):
        box = server.create()
        env = {**os.environ, "ISOLA_API_KEY": server.key, "ISOLA_URL": f"http://127.0.0.1:{server.port}"}
        verb(box, "pause", {"memory": False})
        ran = subprocess.run([ISOLA, "sandbox", "archive", box["id"]], env=env, capture_output=True, text=True)
        self.assertEqual(ran.stdout, box["id"] + ": archived\n", ran)


class Git(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        there = [t["name"] for t in server.get("/v1/templates").json["templates"] if t["name"] in ("base", "code-interpreter")]
        if not there:
            raise unittest.SkipTest("no template that has git is built: `isola template build base`")
        dockerfile = (f"FROM {there[0]}\nRUN git config --system user.email a@example.org && git config --system user.name a && git config --system --add safe.directory '*' && "
                      "git init -q -b main /opt/repo.git && cd /opt/repo.git && echo one > f && git add f && git commit -qm one && git tag v1 && "
                      "git rev-parse HEAD > /opt/first && echo two > f && git commit -qam two && git checkout -qb other && echo three > f && git commit -qam three && git checkout -q main\n")
        begun = server.post("/v1/templates", {"name": "with-repo", "dockerfile": dockerfile})
        at = begun.headers["location"]
        eventually(lambda: server.get(at).json["state"] in ("ready", "failed"), 90, "the end of the build")
        assert server.get(at).json["state"] == "ready", server.get(at).json

    def made(self, **git):
        return server.post("/v1/sandboxes", {"template": "with-repo", "git": {"url": "file:///opt/repo.git", **git}})

    def test_what_it_begins_with(self):
        for git, path, text in (({}, "repo", "two\n"), ({"ref": "v1"}, "repo", "one\n"), ({"ref": "other", "path": "/tmp/here"}, "/tmp/here", "three\n"),
                                ({"path": "-x"}, "./-x", "two\n")):
            box = self.made(**git)
            self.assertEqual(box.status, 201, box)
            self.assertEqual(sh(box.json, f"cat {path}/f"), text, git)
        first = sh(box.json, "cat /opt/first").strip()
        box = self.made(ref=first)
        self.assertEqual(sh(box.json, "cat repo/f; git -C repo rev-parse HEAD"), "one\n" + first + "\n")

    def test_what_is_wrong_is_named(self):
        for git, word in (({"ref": "nosuch"}, "nosuch"), ({"url": "file:///nowhere"}, "/nowhere"), ({"url": "ssh://x/y"}, "git.url"), ({"url": "https://me:secret@example.org/x"}, "password"),
                          ({"ref": "--upload-pack=x"}, "git.ref"), ({"url": "https://git.example.org/x"}, "git.example.org"), ({"nonsense": 1}, "nonsense")):
            reply = self.made(**git)
            self.assertEqual(reply.status, 400, (git, reply))
            self.assertIn(word, reply.json["error"]["message"])
            self.assertNotIn("secret", reply.json["error"]["message"])
        reply = server.post("/v1/sandboxes", {"git": {"url": "file:///opt/repo.git"}})
        self.assertIn("has no git", reply.json["error"]["message"])
        eventually(lambda: not [s for s in server.get("/v1/sandboxes?limit=1000").json["sandboxes"] if s["state"] == "creating"], what="nothing half-made")


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
