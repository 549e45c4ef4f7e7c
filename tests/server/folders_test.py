"""Snapshots of folders: kept as volumes that are mounted elsewhere, or copied from, and that nobody changes."""
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
    server = Server("--sweep", "1s")


def tearDownModule():
    if server:
        server.close()


def sh(box, line, **more):
    return server.run(box["id"], line, **more)["stdout"]


def living():
    return [s for s in server.get("/v1/sandboxes?limit=1000").json["sandboxes"] if "isola.folder" in s["metadata"] and s["state"] != "ended"]


class Folders(unittest.TestCase):
    def test_of_a_sandbox(self):
        box = server.create()
        sh(box, "mkdir -p /srv/data/deep; cd /srv; echo one > data/f; ln -s f data/l; echo x > data/deep/.hidden; chown 7:8 data/deep; chown user:user data")
        kept = server.post(f"/v1/sandboxes/{box['id']}/folders", {"path": "/srv/data", "name": "data"})
        self.assertEqual(kept.status, 201, kept)
        self.assertEqual(kept.json["labels"], {"isola.folder": f"{box['id']}:/srv/data"})
        sh(box, "echo two > /srv/data/f")
        other = server.create(volumes=[{"name": "data", "path": "/mnt/data", "read_only": True}])
        self.assertEqual(sh(other, "cat /mnt/data/f /mnt/data/l /mnt/data/deep/.hidden; stat -c '%u %g' /mnt/data/deep /mnt/data"),
                         "one\none\nx\n7 8\n1000 1000\n", "as it was then")
        self.assertNotEqual(server.run(other["id"], "echo three > /mnt/data/f", user="root")["exit_code"], 0)
        self.assertEqual(sh(other, "cp -r /mnt/data own && echo four > own/f && cat own/f"), "four\n", "a copy is one's own")
        self.assertEqual(server.get("/v1/volumes/data/files?path=/f").body, b"one\n")
        for refused in (server.post("/v1/sandboxes", {"volumes": [{"name": "data", "path": "/mnt/data"}]}),
                        server.request("PUT", "/v1/volumes/data/files?path=/f", b"changed"),
                        server.request("DELETE", "/v1/volumes/data/files?path=/f")):
            self.assertGreaterEqual(refused.status, 400, refused)
        self.assertEqual(server.get("/v1/volumes/data/files?path=/f").body, b"one\n")
        self.assertEqual(server.get("/v1/snapshots").json["snapshots"], [], "nothing is left of how it was made")
        eventually(lambda: not living(), what="the end of its helper")
        server.delete(f"/v1/sandboxes/{other['id']}")
        eventually(lambda: server.delete("/v1/volumes/data").status == 204, what="its removal")

    def test_of_a_volume(self):
        self.assertEqual(server.post("/v1/volumes", {"name": "source", "size": "64M"}).status, 201)
        box = server.create(volumes=[{"name": "source", "path": "/mnt/v"}])
        sh(box, "mkdir /mnt/v/a; echo in > /mnt/v/a/f; echo out > /mnt/v/g")
        part = server.post("/v1/volumes/source/snapshot", {"name": "part", "path": "/a"})
        self.assertEqual(part.status, 201, part)
        self.assertEqual(server.get("/v1/volumes/part/files?path=/f").body, b"in\n")
        ran = subprocess.run([ISOLA, "volume", "keep", "whole", "--volume", "source"], capture_output=True, text=True,
                             env={**os.environ, "ISOLA_API_KEY": server.key, "ISOLA_URL": f"http://127.0.0.1:{server.port}"})
        self.assertEqual(ran.returncode, 0, ran)
        self.assertEqual(server.get("/v1/volumes/whole/files?path=/g").body, b"out\n")
        of_box = server.post(f"/v1/sandboxes/{box['id']}/folders", {"path": "/mnt/v", "name": "seen"})
        self.assertEqual(of_box.status, 201, of_box)
        self.assertEqual(server.get("/v1/volumes/seen/files?path=/a/f").body, b"in\n", "what it sees, volumes and all")

    def test_of_one_that_has_as_many_volumes_as_there_can_be(self):
        names = [f"full-{i}" for i in range(8)]
        for name in names:
            self.assertEqual(server.post("/v1/volumes", {"name": name, "size": "16M"}).status, 201)
        box = server.create(volumes=[{"name": name, "path": "/mnt/all/" + name} for name in names])
        sh(box, "mkdir /srv/own; echo own > /srv/own/f; echo in > /mnt/all/full-3/f; ln -s /mnt/all/full-3 /srv/link; ln -s /srv/own /mnt/all/full-4/out")
        at = f"/v1/sandboxes/{box['id']}/folders"
        for path, name, said in (("/srv/own", "of-own", b"own\n"), ("/mnt/all/full-3", "of-one", b"in\n"), ("/srv/link", "of-link", b"in\n"),
                                 ("/mnt/all/full-4/out", "of-out", b"own\n")):
            kept = server.post(at, {"path": path, "name": name})
            self.assertEqual(kept.status, 201, (path, kept))
            self.assertEqual(server.get(f"/v1/volumes/{name}/files?path=/f").body, said, path)
        every = server.post(at, {"path": "/mnt", "name": "of-all"})
        self.assertEqual(every.status, 400, every)
        self.assertIn("there are 8 volumes and buckets in it", every.json["error"]["message"])
        self.assertEqual(server.delete(f"/v1/sandboxes/{box['id']}").status, 204)

    def test_what_was_answered_is_on_disk(self):
        """Where its files cannot be put there, nobody hears that they are kept."""
        other = Server(env={"ISOLA_FAULT": "syncfs:1:5"})
        self.addCleanup(other.close)
        box = other.create()
        other.run(box["id"], "mkdir /srv/data; echo kept > /srv/data/f")
        kept = other.post(f"/v1/sandboxes/{box['id']}/folders", {"path": "/srv/data", "name": "data"})
        self.assertEqual(kept.status, 500, kept)
        self.assertIn("on disk", kept.json["error"]["message"])
        self.assertEqual(other.get("/v1/volumes").json["volumes"], [])

    def test_what_is_wrong(self):
        box = server.create()
        at = f"/v1/sandboxes/{box['id']}/folders"
        for body, word in (({"path": "/nowhere", "name": "x"}, "no folder /nowhere"), ({"path": "/etc/passwd", "name": "x"}, "no folder"), ({"path": "etc", "name": "x"}, "path"),
                           ({"path": "/etc"}, "name"), ({"path": "/etc", "name": "a b"}, "name"), ({"path": "/etc", "name": "x", "odd": 1}, "odd")):
            reply = server.post(at, body)
            self.assertEqual(reply.status, 400, (body, reply))
            self.assertIn(word, reply.json["error"]["message"])
        self.assertEqual(server.post(at, {"path": "/etc", "name": "taken"}).status, 201)
        self.assertEqual(server.post(at, {"path": "/etc", "name": "taken"}).status, 409)
        self.assertEqual(server.post("/v1/volumes/nosuch/snapshot", {"name": "x"}).status, 404)
        self.assertEqual([v["name"] for v in server.get("/v1/volumes").json["volumes"] if v["name"] == "x"], [], "nothing half-made")
        self.assertEqual(server.get("/v1/snapshots").json["snapshots"], [])

    def test_a_server_that_dies_leaves_no_half_of_one(self):
        box = server.create(timeout=3600)
        sh(box, "mkdir /srv/big; i=0; while [ $i -lt 200 ]; do mkdir /srv/big/$i; head -c 1M /dev/zero > /srv/big/$i/f; i=$((i+1)); done")
        for round_ in range(5):
            name, told = f"half-{round_}", []
            call = threading.Thread(target=lambda: told.append(server.post(f"/v1/sandboxes/{box['id']}/folders", {"path": "/srv/big", "name": name}).status))
            call.daemon = True
            call.start()
            eventually(lambda: told or [s for s in living() if s["state"] == "running"], what="its helper")
            shown = [v["name"] for v in server.get("/v1/volumes").json["volumes"]]
            server.stop(signal.SIGKILL)
            server.start(server.port)
            if told:  # too quick for us
                continue
            self.assertNotIn(name, shown)
            there = [v["name"] for v in server.get("/v1/volumes").json["volumes"]]
            self.assertNotIn(name, there, "nobody was told that it is whole")
            eventually(lambda: not living(), what="the end of its helper")
            eventually(lambda: server.post("/v1/volumes", {"name": name}).status == 201, what="its name is free again")
            self.assertEqual(server.get("/v1/snapshots").json["snapshots"], [])
            return
        self.fail("it was always done before the server could be killed")


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
