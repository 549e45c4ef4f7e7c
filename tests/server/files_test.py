"""Files of a sandbox over real HTTP: one by one, as trees, and as they change."""
import io
import os
import socket
import tarfile
import threading
import unittest

from island import Server, eventually, quote

server = None


def setUpModule():
    global server
    server = Server()


def tearDownModule():
    server.close()


def archive(files, folders=(), mode=0o755):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in folders:
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, mode
            tar.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.id = server.create()["id"]
        cls.path = f"/v1/sandboxes/{cls.id}/files"

    @classmethod
    def tearDownClass(cls):
        server.delete(f"/v1/sandboxes/{cls.id}")

    def test_write_read_list_move_remove(self):
        body = os.urandom(3 << 20)
        self.assertEqual(server.request("PUT", self.path + "?path=/tmp/a/b/c.bin&mode=0600", body).json["bytes"], len(body))
        self.assertEqual(server.get(self.path + "?path=/tmp/a/b/c.bin").body, body)
        self.assertEqual(server.get(self.path + "?path=/tmp/a/b/c.bin&offset=10&length=5").body, body[10:15])
        stat = server.get(self.path + "/stat?path=/tmp/a/b/c.bin").json
        self.assertEqual((stat["size"], stat["mode"], stat["type"]), (len(body), "0600", "file"))
        self.assertEqual(server.post(self.path + "/move", {"from": "/tmp/a/b/c.bin", "to": "/tmp/a/d"}).status, 204)
        names = {e["path"] for e in server.get(self.path + "/list?path=/tmp/a&depth=3").json["entries"]}
        self.assertEqual(names, {"b", "d"})
        self.assertEqual(server.delete(self.path + "?path=/tmp/a").status >= 400, True)
        self.assertEqual(server.delete(self.path + "?path=/tmp/a&recursive=true").status, 204)
        self.assertEqual(server.get(self.path + "/stat?path=/tmp/a").status, 404)

    def test_modes_owners_and_links(self):
        def post(verb, **body):
            return server.post(f"{self.path}/{verb}", body).status

        server.request("PUT", self.path + "?path=/tmp/owned", b"x")
        self.assertEqual(post("chmod", path="/tmp/owned", mode="0751"), 204)
        self.assertEqual(post("chown", path="/tmp/owned", owner="1000:1000"), 204)
        self.assertEqual(post("symlink", path="/tmp/points", target="owned"), 204)
        seen = server.run(self.id, "stat -c '%a %u:%g' /tmp/owned; readlink /tmp/points; cat /tmp/points")["stdout"]
        self.assertEqual(seen, "751 1000:1000\nowned\nx")
        self.assertEqual(server.get(self.path + "/stat?path=/tmp/points").json["type"], "link")
        self.assertEqual(post("symlink", path="/tmp/points", target="elsewhere"), 409, "one that is there stays")
        self.assertEqual(post("chmod", path="/tmp/owned", mode="9"), 400)
        self.assertEqual(post("chmod", path="/tmp/nowhere", mode="0600"), 404)
        self.assertEqual(post("chown", path="/tmp/owned", owner="nobody-of-that-name"), 404)
        self.assertEqual(post("chown", path="/tmp/owned", owner="0:0", user="user"), 403, "who is not root gives nothing away")

    def test_odd_names(self):
        for name in ("/tmp/ä ö\n", "/tmp/..x", "/tmp/%2e%2e", "/tmp/a'b\"c"):
            self.assertEqual(server.request("PUT", f"{self.path}?path={quote(name)}", b"x").status, 200, name)
            self.assertEqual(server.get(f"{self.path}?path={quote(name)}").body, b"x")
        self.assertEqual(server.get(self.path + "?path=%00").status, 400)
        self.assertEqual(server.get(self.path + "?path=" + "a" * 5000).status >= 400, True)

    def test_paths_end_inside(self):
        server.run(self.id, "ln -sfn /../../../../../../etc/passwd /tmp/out; ln -sfn / /tmp/root")
        inside = server.get(self.path + "?path=/tmp/out").body
        with open("/etc/passwd", "rb") as file:
            self.assertNotEqual(inside, file.read())
        self.assertIn(b"root", inside)
        climbed = server.get(self.path + "?path=" + quote("/../../../../../../../../etc/hostname"))
        with open("/etc/hostname", "rb") as file:
            self.assertNotEqual(climbed.body, file.read())
        for road in ("/proc/1/root/etc/hostname", "/proc/self/root/etc/hostname", "/tmp/root/../../../etc/hostname"):
            reply = server.get(self.path + "?path=" + quote(road))
            with open("/etc/hostname", "rb") as file:
                self.assertNotEqual(reply.body, file.read(), road)

    def tree(self, folder):
        """Everything below, with what files hold; empty: it is not there."""
        look = f"cd {folder} 2>/dev/null && find . -type f -printf '%p=' -exec cat {{}} \\; -printf '\\n' -o -printf '%p\\n' | sort"
        return server.run(self.id, look)["stdout"].split()

    def test_tar_in_and_out(self):
        packed = archive({"one": b"data", "deep/er/two": b"data"})
        self.assertEqual(server.request("PUT", self.path + "/tar?path=/tmp/tree", packed).status, 204)
        self.assertEqual(server.run(self.id, "cat /tmp/tree/one /tmp/tree/deep/er/two")["stdout"], "datadata")
        back = server.get(self.path + "/tar?path=/tmp/tree").body
        with tarfile.open(fileobj=io.BytesIO(back)) as tar:
            self.assertIn("./deep/er/two", tar.getnames())
        self.assertNotIn(".isola-", server.run(self.id, "ls -a /tmp")["stdout"])

    def test_a_tar_joins_what_is_there(self):
        server.run(self.id, "mkdir -p /tmp/joined/deep /tmp/elsewhere; cd /tmp/joined; echo -n old > one; echo -n kept > deep/own; "
                            "ln -s /tmp/elsewhere link; chmod 700 deep")
        packed = archive({"one": b"new", "deep/two": b"2", "deep/new/three": b"3", "link/four": b"4"}, folders=("deep", "link"))
        self.assertEqual(server.request("PUT", self.path + "/tar?path=/tmp/joined/", packed).status, 204)
        self.assertEqual(self.tree("/tmp/joined"), [".", "./deep", "./deep/new", "./deep/new/three=3", "./deep/own=kept",
                                                    "./deep/two=2", "./link", "./one=new"])
        self.assertEqual(self.tree("/tmp/elsewhere"), [".", "./four=4"])
        self.assertEqual(server.run(self.id, "stat -c %a /tmp/joined/deep")["stdout"], "700\n", "a folder keeps its mode")
        # Below it another disk: then what came is copied there.
        packed = archive({"dev/shm/five": b"5", "tmp/joined/six": b"6"}, folders=("dev", "dev/shm", "tmp"))
        self.assertEqual(server.request("PUT", self.path + "/tar?path=/", packed).status, 204)
        self.assertEqual(server.run(self.id, "cat /dev/shm/five /tmp/joined/six; ls -A / | grep isola")["stdout"], "56")

    def test_a_tar_with_the_rights_of_a_user(self):
        server.run(self.id, "mkdir -p /srv/theirs /srv/closed; chown 1000 /srv/theirs")
        packed = archive({"a/b": b"x"}, folders=("a",), mode=0o500)  # not even they may write there afterwards
        for _ in range(2):  # the second time into what the first left
            reply = server.request("PUT", self.path + "/tar?path=/srv/theirs/new&user=1000", packed)
            self.assertIn(reply.status, (204, 403), reply)
            self.assertEqual(server.run(self.id, "stat -c %u /srv/theirs/new/a/b; find /srv -name '.isola*'")["stdout"], "1000\n")
        self.assertEqual(server.request("PUT", self.path + "/tar?path=/srv/closed/new&user=1000", packed).status, 403)
        self.assertEqual(self.tree("/srv/closed"), ["."])

    def test_a_broken_tar_leaves_what_was_there(self):
        server.run(self.id, "mkdir -p /tmp/whole/folder; echo -n old > /tmp/whole/one; echo -n file > /tmp/whole/plain; "
                            "ln -s /nowhere /tmp/whole/astray")
        before = self.tree("/tmp/whole")
        good = archive({"one": b"new", "two": b"2" * 100_000, "three": b"3"})
        bad = {"cut off": (good[:60_000], 400), "no tar": (b"this is no tar" * 100, 400),
               "garbage behind a file": (good[:1024] + os.urandom(5000), 400),
               "a file where a folder is": (archive({"one": b"new", "folder": b"x"}), 409),
               "a folder where a file is": (archive({"one": b"new", "plain/x": b"x"}, folders=("plain",)), 409),
               "a folder where a link leads nowhere": (archive({"one": b"new", "astray/x": b"x"}, folders=("astray",)), 409)}
        for what, (body, status) in bad.items():
            reply = server.request("PUT", self.path + "/tar?path=/tmp/whole", body)
            self.assertEqual(reply.status, status, (what, reply))
            self.assertEqual(reply.headers["x-isola-untrusted"], "data", what)
            self.assertEqual(self.tree("/tmp/whole"), before, what)
        for what in ("cut off", "no tar"):
            self.assertEqual(server.request("PUT", self.path + "/tar?path=/tmp/fresh/a/b", bad[what][0]).status, 400, what)
            self.assertEqual(self.tree("/tmp/fresh"), [], what)
        self.assertEqual(server.request("PUT", self.path + "/tar?path=/tmp/fresh/a/b", good).status, 204)
        self.assertEqual(len(self.tree("/tmp/fresh/a/b")), 4)

    def test_whoever_leaves_in_the_middle_of_a_tar(self):
        server.run(self.id, "mkdir -p /tmp/left; echo -n old > /tmp/left/one")
        body = archive({"one": b"new", "two": os.urandom(1_000_000)})
        for place in ("/tmp/left", "/tmp/never"):
            plain = socket.create_connection(("127.0.0.1", server.port))
            plain.sendall(f"PUT {self.path}/tar?path={place} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                          f"{server.key}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:300_000])
            eventually(lambda: "isola" in server.run(self.id, "find /tmp -name two")["stdout"], what="the second file, beside")
            plain.close()
            eventually(lambda: not server.run(self.id, "find /tmp -name '.isola*'")["stdout"], what="the end of it")
        self.assertEqual(self.tree("/tmp/left"), [".", "./one=old"])
        self.assertEqual(self.tree("/tmp/never"), [])

    def test_a_tar_larger_than_the_disk(self):
        made = server.create(disk="32M")
        path = f"/v1/sandboxes/{made['id']}/files/tar?path=/root/tree"
        reply = server.request("PUT", path, archive({"a": b"first", "b": os.urandom(48 << 20)}))
        self.assertEqual((reply.status, reply.json["error"]["code"]), (507, "disk_full"), reply)
        self.assertEqual(server.run(made["id"], "ls -A /root | grep -e tree -e isola")["stdout"], "")
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_tree_that_changes_while_it_is_read(self):
        made = server.create(disk="64M")
        path = f"/v1/sandboxes/{made['id']}/files/tar?path=/root/tree"
        # It is read for as long as it grows, and it does not stop growing: tar says so, and the archive is whole.
        server.run(made["id"], "mkdir /root/tree && head -c 20M /dev/urandom >/root/tree/log && echo here >/root/tree/other")
        server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "while :; do echo more >>/root/tree/log; done", "background": True})
        with tarfile.open(fileobj=io.BytesIO(server.get(path).body)) as tree:
            self.assertEqual(tree.extractfile("./other").read(), b"here\n")
            self.assertGreaterEqual(tree.getmember("./log").size, 20 << 20)
        # It is packed in /tmp: where that is full, it says so, and leaves nothing.
        server.run(made["id"], "head -c 4G /dev/zero >/tmp/full; true")
        full = server.get(path)
        self.assertEqual((full.status, full.json["error"]["code"]), (507, "disk_full"), full)
        self.assertEqual(server.run(made["id"], "ls -A /tmp")["stdout"], "full\n")
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_watching(self):
        server.post(self.path + "/mkdir", {"path": "/tmp/watched"})
        events = server.events(self.path + "/watch?path=/tmp/watched")
        seen = []
        thread = threading.Thread(target=lambda: seen.append(next(events)), daemon=True)
        thread.start()
        eventually(lambda: server.run(self.id, "date > /tmp/watched/$RANDOM") and seen, what="an event")
        self.assertIn(seen[0][1]["change"], ("created", "modified"))

    def test_a_broken_upload_leaves_the_old_file(self):
        server.request("PUT", self.path + "?path=/tmp/kept", b"old")
        plain = socket.create_connection(("127.0.0.1", server.port))
        plain.sendall(f"PUT {self.path}?path=/tmp/kept HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
                      "Content-Length: 100000\r\n\r\nhalf".encode())
        beside = "find /tmp -newer /tmp/kept -name '*kept*' ! -name kept; find /tmp -name '.*' -type f"
        eventually(lambda: server.run(self.id, beside)["stdout"], what="the half of it, beside")
        plain.close()
        eventually(lambda: not server.run(self.id, beside)["stdout"], what="the end of it")
        self.assertEqual(server.get(self.path + "?path=/tmp/kept").body, b"old")


if __name__ == "__main__":
    unittest.main()
