"""The native API over real HTTP."""
import base64
import http.client
import io
import json
import os
import re
import socket
import tarfile
import threading
import time
import unittest

from island import Server, contract, eventually, quote
from wire import WebSocket

server = None


def setUpModule():
    global server
    server = Server("--sample", "300ms", "--domain", "isola.test")


def tearDownModule():
    server.close()


# A WebSocket server in a few lines: says where it was called, then sends back what it gets.
ECHO_SOCKET = br"""
import base64, hashlib, socket, struct, threading
def frame(opcode, data):
    size = bytes([len(data)]) if len(data) < 126 else b'\x7e' + struct.pack('!H', len(data))
    return bytes([0x80 | opcode]) + size + data
def serve(peer):
    stream = peer.makefile('rb')
    target = stream.readline().split()[1]
    headers = {}
    while (line := stream.readline().strip()):
        name, value = line.split(b':', 1)
        headers[name.lower()] = value.strip()
    accept = hashlib.sha1(headers[b'sec-websocket-key'] + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest()
    peer.sendall(b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n'
                 b'Sec-WebSocket-Protocol: ' + headers[b'sec-websocket-protocol'] + b'\r\n'
                 b'Sec-WebSocket-Accept: ' + base64.b64encode(accept) + b'\r\n\r\n' + frame(1, b'at ' + target))
    while True:
        head = stream.read(2)
        if len(head) < 2 or head[0] & 15 == 8: return
        size = head[1] & 127
        if size == 126: size = struct.unpack('!H', stream.read(2))[0]
        mask, body = stream.read(4), stream.read(size)
        peer.sendall(frame(2, bytes(b ^ mask[i % 4] for i, b in enumerate(body))))
listener = socket.create_server(('0.0.0.0', 8003))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


class Sandboxes(unittest.TestCase):
    def test_a_life(self):
        made = server.create(metadata={"team": "red"}, env={"COLOUR": "blue"}, task="t1", latency=True)
        self.assertEqual(made["state"], "running")
        self.assertEqual(made["boundary"], "jail")
        self.assertTrue(made["shared_kernel"])
        self.assertGreater(made["latency_ms"]["total"], 0)
        one = server.get(f"/v1/sandboxes/{made['id']}").json
        self.assertEqual(one["metadata"], {"team": "red"})
        done = server.run(made["id"], "echo $COLOUR; echo no >&2; exit 3")
        self.assertEqual((done["stdout"], done["stderr"], done["exit_code"]), ("blue\n", "no\n", 3))
        self.assertEqual(done["untrusted"], ["stdout", "stderr"])
        self.assertEqual(server.delete(f"/v1/sandboxes/{made['id']}").status, 204)
        gone = server.get(f"/v1/sandboxes/{made['id']}").json
        self.assertEqual((gone["state"], gone["end_reason"]), ("ended", "killed"))
        late = server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "true"})
        self.assertEqual(late.status, 404)
        self.assertIn("killed", late.json["error"]["message"])
        self.assertEqual(server.delete(f"/v1/sandboxes/{made['id']}").status, 204)

    def test_names_are_unique_and_address(self):
        made = server.create(name="walrus")
        taken = server.post("/v1/sandboxes", {"name": "walrus"})
        self.assertEqual((taken.status, taken.json["error"]["code"]), (409, "exists"))
        self.assertEqual(server.run("walrus", "echo hi")["stdout"], "hi\n")
        server.delete("/v1/sandboxes/walrus")
        again = server.create(name="walrus")
        self.assertNotEqual(again["id"], made["id"])
        server.delete(f"/v1/sandboxes/{again['id']}")

    def test_by_key_there_is_only_ever_one(self):
        made, errors = set(), []

        def ask():
            reply = server.post("/v1/sandboxes", {"key": "conversation-7"})
            (made.add(reply.json["id"]) if reply.status in (200, 201) else errors.append(reply))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual((len(made), errors), (1, []))
        server.delete(f"/v1/sandboxes/{made.pop()}")

    def test_lists_have_pages_and_filters(self):
        ids = [server.create(metadata={"batch": "pages", "n": str(i)})["id"] for i in range(5)]
        seen, cursor = [], ""
        while True:
            page = server.get(f"/v1/sandboxes?metadata.batch=pages&limit=2&cursor={quote(cursor)}").json
            seen += [s["id"] for s in page["sandboxes"]]
            cursor = page["next"]
            if not cursor:
                break
        self.assertEqual(seen, ids[::-1])
        only = server.get("/v1/sandboxes?metadata.batch=pages&metadata.n=3").json["sandboxes"]
        self.assertEqual([s["id"] for s in only], [ids[3]])
        for sandbox in ids:
            server.delete(f"/v1/sandboxes/{sandbox}")
        left = server.get("/v1/sandboxes?metadata.batch=pages&state=running").json["sandboxes"]
        self.assertEqual(left, [])

    def test_a_deadline_ends_it_and_can_be_moved(self):
        made = server.create(timeout=1)
        ended = eventually(lambda: (r := server.get(f"/v1/sandboxes/{made['id']}").json)["state"] == "ended" and r)
        self.assertEqual(ended["end_reason"], "deadline")
        made = server.create(timeout=2)
        longer = server.request("PATCH", f"/v1/sandboxes/{made['id']}", {"timeout": 600})
        self.assertGreater(longer.json["deadline"], made["deadline"])
        kept = server.request("PATCH", f"/v1/sandboxes/{made['id']}", {"timeout": 1, "only_extend": True}).json
        self.assertEqual(kept["deadline"], longer.json["deadline"])
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_an_idle_limit_waits_for_the_last_use(self):
        made = server.create(idle_timeout=1)
        self.assertEqual(server.run(made["id"], "sleep 2; echo still")["stdout"], "still\n")
        ended = eventually(lambda: (r := server.get(f"/v1/sandboxes/{made['id']}").json)["state"] == "ended" and r)
        self.assertEqual(ended["end_reason"], "idle")

    def test_budgets(self):
        made = server.create(budget={"commands": 1})
        server.run(made["id"], "true")
        over = server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "true"})
        self.assertEqual((over.status, over.json["error"]["code"]), (429, "exhausted"))
        server.delete(f"/v1/sandboxes/{made['id']}")
        made = server.create(budget={"cpu_seconds": 0.5})
        server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "while :; do :; done", "background": True})
        ended = eventually(lambda: (r := server.get(f"/v1/sandboxes/{made['id']}").json)["state"] == "ended" and r)
        self.assertEqual(ended["end_reason"], "limit")
        self.assertIn("cpu_seconds", ended["end_detail"])

    def test_a_projects_budget(self):
        project = server.post("/v1/projects", {"name": "thrifty", "budget": {"commands": 1}}).json
        key = server.post("/v1/keys", {"project": project["id"]}).json["secret"]
        made = server.post("/v1/sandboxes", {}, key=key).json
        for status in (200, 429):
            self.assertEqual(server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "true"}, key=key).status, status)
        ended = eventually(lambda: (r := server.get(f"/v1/sandboxes/{made['id']}", key=key).json)["state"] == "ended" and r)
        self.assertIn("project's budget of commands", ended["end_detail"])
        refused = server.post("/v1/sandboxes", {}, key=key)
        self.assertEqual((refused.status, refused.json["error"]["code"]), (429, "exhausted"))

    def test_frozen_and_thawed(self):
        made = server.create()
        self.assertEqual(server.post(f"/v1/sandboxes/{made['id']}/freeze").json["state"], "frozen")
        held = server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "true"})
        self.assertEqual(held.status, 409)
        self.assertEqual(server.post(f"/v1/sandboxes/{made['id']}/thaw").json["state"], "running")
        self.assertEqual(server.run(made["id"], "echo on")["stdout"], "on\n")
        server.post(f"/v1/sandboxes/{made['id']}/freeze")
        self.assertEqual(server.delete(f"/v1/sandboxes/{made['id']}").status, 204)

    def test_hooks_and_a_probe(self):
        made = server.create(on_create=["echo made > /tmp/hook"], probe="test -f /tmp/hook")
        self.assertEqual(server.run(made["id"], "cat /tmp/hook")["stdout"], "made\n")
        server.delete(f"/v1/sandboxes/{made['id']}")
        before = len(server.get("/v1/sandboxes?state=running&limit=1000").json["sandboxes"])
        failed = server.post("/v1/sandboxes", {"on_create": ["echo oh no >&2; exit 4"]})
        self.assertEqual(failed.status, 400)
        self.assertIn("oh no", failed.json["error"]["message"])
        self.assertEqual(len(server.get("/v1/sandboxes?state=running&limit=1000").json["sandboxes"]), before)

    def test_out_of_memory_says_so(self):
        made = server.create(memory="64M")
        done = server.run(made["id"], "head -c 300M /dev/zero | tail -c 299M | wc -c; true")
        metrics = server.get(f"/v1/sandboxes/{made['id']}/metrics").json
        self.assertGreater(metrics["oom_kills"], 0, done)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_who_leaves_keeps_nothing(self):
        connection = server.connection()
        connection.request("POST", "/v1/run", json.dumps({"command": "sleep 1000", "timeout": 0, "metadata": {"left": "1"}}),
                           {"Authorization": "Bearer " + server.key})
        one = eventually(lambda: server.get("/v1/sandboxes?metadata.left=1&state=running").json["sandboxes"])
        connection.close()
        eventually(lambda: server.get(f"/v1/sandboxes/{one[0]['id']}").json["state"] == "ended", what="the end")

    def test_one_shot_runs(self):
        reply = server.post("/v1/run", {"command": "cat /tmp/in/x; cat; exit 7", "stdin": "two", "files": {"/tmp/in/x": "one "}})
        self.assertEqual((reply.status, reply.json["stdout"], reply.json["exit_code"]), (200, "one two", 7))
        gone = eventually(lambda: (r := server.get(f"/v1/sandboxes/{reply.json['sandbox']}").json)["state"] == "ended" and r)
        self.assertEqual(gone["end_reason"], "exited")
        data = bytes(range(256))
        reply = server.post("/v1/run", {"command": "cat /tmp/bytes", "encoding": "base64",
                                        "files": {"/tmp/bytes": {"base64": base64.b64encode(data).decode()}}})
        self.assertEqual(base64.b64decode(reply.json["stdout"]), data)
        late = server.post("/v1/run", {"command": "sleep 60", "timeout": 1})
        self.assertEqual(late.status, 504, late)


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.id = server.create()["id"]
        cls.path = f"/v1/sandboxes/{cls.id}/commands"

    @classmethod
    def tearDownClass(cls):
        server.delete(f"/v1/sandboxes/{cls.id}")

    def test_streaming_and_replay(self):
        stream = server.lines("POST", self.path, {"command": "for i in 1 2 3; do echo line $i; sleep 0.2; done; exit 5",
                                                  "stream": True})
        start = next(stream)
        first = next(stream)
        self.assertEqual((start["type"], first["type"], first["data"]), ("start", "stdout", "line 1\n"))
        stream.close()  # the connection drops; the command goes on
        again = list(server.lines("GET", f"{self.path}/{start['command_id']}/output?from={first['seq']}"))
        text = "".join(e["data"] for e in again if e["type"] == "stdout")
        self.assertEqual(text, "line 2\nline 3\n")
        self.assertEqual((again[-1]["type"], again[-1]["exit_code"]), ("exit", 5))
        whole = list(server.lines("GET", f"{self.path}/{start['command_id']}/output"))
        self.assertEqual("".join(e["data"] for e in whole if e["type"] == "stdout"), "line 1\nline 2\nline 3\n")

    def test_background_stdin_signal(self):
        made = server.post(self.path, {"argv": ["cat"], "background": True, "open_stdin": True})
        self.assertEqual(made.status, 202)
        one = f"{self.path}/{made.json['id']}"
        self.assertEqual(server.request("POST", one + "/stdin", b"hello ").status, 204)
        self.assertEqual(server.request("POST", one + "/stdin?eof=true", b"you").status, 204)
        events = list(server.lines("GET", one + "/output"))
        self.assertEqual("".join(e["data"] for e in events if e["type"] == "stdout"), "hello you")
        made = server.post(self.path, {"command": "sleep 100", "background": True}).json
        self.assertTrue(server.get(f"{self.path}/{made['id']}").json["running"])
        self.assertEqual(server.post(f"{self.path}/{made['id']}/signal", {"signal": "TERM"}).status, 204)
        done = eventually(lambda: (r := server.get(f"{self.path}/{made['id']}").json) and not r["running"] and r)
        self.assertEqual((done["exit_code"], done["signal"]), (143, 15))
        self.assertIn(made["id"], [c["id"] for c in server.get(self.path).json["commands"]])

    def test_timeouts(self):
        done = server.run(self.id, "echo begun; sleep 60", timeout=1)
        self.assertTrue(done["timed_out"])
        self.assertEqual(done["stdout"], "begun\n")

    def test_odd_output(self):
        done = server.run(self.id, r"printf 'a\xffb\x1b[31mred\x1b[0m\xe2\x80\xaeevil'")
        self.assertIn("\ufffd", done["stdout"])
        clean = server.run(self.id, r"printf 'a\x1b[31mred\x1b[0m\xe2\x80\xaeevil'", clean=True)
        self.assertEqual(clean["stdout"], "aredevil")
        exact = server.run(self.id, r"printf '\x00\xff\x1b'", encoding="base64")
        self.assertEqual(base64.b64decode(exact["stdout"]), b"\x00\xff\x1b")
        much = server.run(self.id, "head -c 3000000 /dev/zero", max_output=1000)
        self.assertEqual((len(much["stdout"]), much["stdout_dropped_bytes"]), (1000, 2999000))

    def test_users_cwd_env(self):
        done = server.run(self.id, "id -u; pwd; echo $A", user="1000", cwd="/tmp", env={"A": "b c"})
        self.assertEqual(done["stdout"], "1000\n/tmp\nb c\n")
        bad = server.post(self.path, {"command": "true", "cwd": "/no/such/place"})
        self.assertGreaterEqual(bad.status, 400)
        bad = server.post(self.path, {"argv": ["/no/such/program"]})
        self.assertIn(bad.status, (400, 404))

    def test_many_streams_lose_nothing(self):
        count, lines = 40, 500
        results = [None] * count

        def follow(i):
            text = "".join(e["data"] for e in server.lines("POST", self.path, {
                "command": f"for i in $(seq {lines}); do echo {i} $i; done", "stream": True}) if e["type"] == "stdout")
            results[i] = text == "".join(f"{i} {n}\n" for n in range(1, lines + 1))

        threads = [threading.Thread(target=follow, args=(i,)) for i in range(count)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(results, [True] * count)


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

    def test_tar_in_and_out(self):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name in ("one", "deep/er/two"):
                info = tarfile.TarInfo(name)
                info.size = 4
                tar.addfile(info, io.BytesIO(b"data"))
        self.assertEqual(server.request("PUT", self.path + "/tar?path=/tmp/tree", packed.getvalue()).status, 204)
        self.assertEqual(server.run(self.id, "cat /tmp/tree/one /tmp/tree/deep/er/two")["stdout"], "datadata")
        back = server.get(self.path + "/tar?path=/tmp/tree").body
        with tarfile.open(fileobj=io.BytesIO(back)) as tar:
            self.assertIn("./deep/er/two", tar.getnames())
        self.assertNotIn(".isola-", server.run(self.id, "ls -a /tmp")["stdout"])
        broken = server.request("PUT", self.path + "/tar?path=/tmp/tree", b"this is no tar" * 100)
        self.assertEqual(broken.status, 400)

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
        time.sleep(0.3)
        plain.close()
        time.sleep(0.3)
        self.assertEqual(server.get(self.path + "?path=/tmp/kept").body, b"old")


# As little Python as the smallest template has: no http.server there.
WEB_SERVER = rb"""
import os, socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 8000))
listener.listen(64)
while True:
    peer, _ = listener.accept()
    head = b""
    while b"\r\n\r\n" not in head:
        head += peer.recv(65536)
    path = head.split(b" ")[1].split(b"?")[0].decode()
    if path == "/headers":
        status, body = "200 OK", head
    elif path == "/switch":
        peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
        continue
    elif os.path.isfile("/srv/www" + path):
        status, body = "200 OK", open("/srv/www" + path, "rb").read()
    else:
        status, body = "404 Not Found", b"no such page"
    peer.sendall(("HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))).encode() + body)
    peer.close()
"""


class Ports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = server.create()
        cls.id = cls.made["id"]
        for path, content in (("/srv/www/index.html", b"hello from inside"), ("/srv/www/sub/page", b"a page"),
                              ("/srv/web.py", WEB_SERVER)):
            server.request("PUT", f"/v1/sandboxes/{cls.id}/files?path={path}", content)
        server.post(f"/v1/sandboxes/{cls.id}/commands", {"command": "python3 /srv/web.py", "background": True})
        eventually(lambda: 8000 in [p["port"] for p in server.get(f"/v1/sandboxes/{cls.id}/ports").json["ports"]])

    @classmethod
    def tearDownClass(cls):
        server.delete(f"/v1/sandboxes/{cls.id}")

    def by_host(self, path="/", port=8000, **headers):
        return server.get(path, key="", headers={"Host": f"{port}-{self.id}.isola.test", **headers})

    def test_by_path_with_a_key(self):
        reply = server.get(f"/v1/sandboxes/{self.id}/ports/8000/index.html")
        self.assertEqual((reply.status, reply.body), (200, b"hello from inside"))
        self.assertEqual(server.get(f"/v1/sandboxes/{self.id}/ports/8000/nope").status, 404)

    def test_private_unless_asked(self):
        self.assertEqual(self.by_host().status, 403)
        self.assertEqual(self.by_host(**{"X-Isola-Token": "wrong"}).status, 403)
        self.assertEqual(self.by_host("/index.html", **{"X-Isola-Token": self.made["port_token"]}).body, b"hello from inside")
        headers = {"X-Isola-Sandbox": self.id, "X-Isola-Port": "8000", "X-Isola-Token": self.made["port_token"]}
        self.assertEqual(server.get("/index.html", key="", headers=headers).body, b"hello from inside")

    def test_signed_urls(self):
        signed = server.post(f"/v1/sandboxes/{self.id}/ports/8000/sign", {"path": "/sub/page", "expires_in": 600}).json
        self.assertEqual(self.by_host("/sub/page?" + signed["query"]).body, b"a page")
        self.assertEqual(self.by_host("/index.html?" + signed["query"]).status, 403)
        self.assertEqual(self.by_host("/sub/../sub/page?" + signed["query"]).status, 403)
        self.assertEqual(self.by_host("/sub/page?" + signed["query"], port=8001).status, 403)
        self.assertEqual(self.by_host("/sub/page?" + signed["query"].replace("isola_expires=", "isola_expires=9")).status, 403)
        below = server.post(f"/v1/sandboxes/{self.id}/ports/8000/sign", {"path": "/sub/*"}).json
        self.assertEqual(self.by_host("/sub/page?" + below["query"]).body, b"a page")
        self.assertEqual(self.by_host("/index.html?" + below["query"]).status, 403)
        self.assertEqual(self.by_host("/sub/%2e%2e/index.html?" + below["query"]).status, 403)
        short = server.post(f"/v1/sandboxes/{self.id}/ports/8000/sign", {"path": "/*", "expires_in": 1}).json
        time.sleep(1.5)
        self.assertEqual(self.by_host("/index.html?" + short["query"]).status, 403)

    def test_a_dead_port_is_readable(self):
        headers = {"X-Isola-Token": self.made["port_token"]}
        dead = self.by_host(port=9, **headers)
        self.assertEqual((dead.status, dead.json["error"]["code"]), (502, "bad_gateway"))
        page = self.by_host(port=9, Accept="text/html", **headers)
        self.assertIn(b"<h1>", page.body)

    def test_websockets(self):
        server.request("PUT", f"/v1/sandboxes/{self.id}/files?path=/srv/echo.py", ECHO_SOCKET)
        server.post(f"/v1/sandboxes/{self.id}/commands", {"command": "python3 /srv/echo.py", "background": True})
        eventually(lambda: 8003 in [p["port"] for p in server.get(f"/v1/sandboxes/{self.id}/ports").json["ports"]])
        token = {"X-Isola-Token": self.made["port_token"], "Sec-WebSocket-Protocol": "chat"}
        ways = ((f"127.0.0.1:{server.port}", f"/v1/sandboxes/{self.id}/ports/8003/room?x=1",
                 {"Authorization": "Bearer " + server.key, "Sec-WebSocket-Protocol": "chat"}),
                (f"8003-{self.id}.isola.test", "/room?x=1", token),
                (f"127.0.0.1:{server.port}", "/room?x=1", {**token, "X-Isola-Sandbox": self.id, "X-Isola-Port": "8003"}))
        for host, target, headers in ways:
            socket_ = WebSocket(socket.create_connection(("127.0.0.1", server.port), timeout=20), host, target, headers)
            self.assertEqual(socket_.status, 101, target)
            self.assertEqual(socket_.read(), (1, b"at /room?x=1"))
            for message in (b"hello", bytes(range(256)) * 100):
                socket_.send(message)
                self.assertEqual(socket_.read(), (2, message))
            socket_.connection.close()
        refused = WebSocket(socket.create_connection(("127.0.0.1", server.port), timeout=20),
                            f"8003-{self.id}.isola.test", "/room", {})
        self.assertEqual(refused.status, 403)
        refused.connection.close()

    def test_what_it_answers_is_marked(self):
        for reply in (server.get(f"/v1/sandboxes/{self.id}/ports/8000/index.html"),
                      self.by_host("/index.html", **{"X-Isola-Token": self.made["port_token"]})):
            self.assertEqual((reply.status, reply.headers["x-isola-untrusted"]), (200, "body"))
        path = f"/v1/sandboxes/{self.id}"
        for below in ("/ports", "/commands", "/network", "/files/stat?path=/srv", "/files/list?path=/srv"):
            self.assertEqual(server.get(path + below).headers["x-isola-untrusted"], "data", below)
        self.assertEqual(server.get(path + "/files?path=/srv/web.py").headers["x-isola-untrusted"], "body")

    def test_nobody_switches_protocols_unasked(self):
        self.assertEqual(server.get(f"/v1/sandboxes/{self.id}/ports/8000/switch").status, 502)

    def test_keys_do_not_get_in(self):
        seen = server.get(f"/v1/sandboxes/{self.id}/ports/8000/headers").body.decode()
        self.assertIn("Host: localhost:8000", seen)
        self.assertNotIn(server.key, seen)
        self.assertNotIn("uthorization", seen)
        headers = {"X-Isola-Sandbox": self.id, "X-Isola-Port": "8000", "X-API-Key": server.key,
                   "Cookie": f"a=b; isola_token={self.made['port_token']}"}
        seen = server.get("/headers", headers=headers).body.decode()
        self.assertNotIn(server.key, seen)
        self.assertNotIn(self.made["port_token"], seen)
        self.assertIn("a=b", seen)


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


class Tenants(unittest.TestCase):
    def test_keys(self):
        for key in ("", "e2b_" + "0" * 40, "nonsense", "e2b_" + "z" * 40):
            reply = server.get("/v1/sandboxes", key=key)
            self.assertEqual(reply.status, 401, key)
        made = server.post("/v1/keys", {"name": "reader", "scope": "read"}).json
        self.assertEqual(server.get("/v1/sandboxes", key=made["secret"]).status, 200)
        self.assertEqual(server.post("/v1/sandboxes", {}, key=made["secret"]).status, 403)
        self.assertNotIn(made["secret"], json.dumps(server.get("/v1/keys").json))
        self.assertEqual(server.delete(f"/v1/keys/{made['id']}").status, 204)
        self.assertEqual(server.get("/v1/sandboxes", key=made["secret"]).status, 401)
        user = server.post("/v1/keys", {"scope": "use"}).json
        self.assertEqual(server.post("/v1/keys", {}, key=user["secret"]).status, 403)

    def test_projects_do_not_see_each_other(self):
        project = server.post("/v1/projects", {"name": "other", "limits": {"live_sandboxes": 2}}).json
        key = server.post("/v1/keys", {"project": project["id"], "scope": "admin"}).json["secret"]
        mine = server.create(name="mine")
        # Every call that the contract has of a sandbox: none of them knows this one.
        for path, calls in contract.all["paths"].items():
            if not path.startswith("/v1/sandboxes/{id}"):
                continue
            for method in calls:
                for name in (mine["id"], "mine"):
                    at = path.replace("{id}", name).replace("{port}", "80").replace("{path}", "")
                    at = re.sub(r"\{\w+\}", "python", at) + ("?path=/" if "/files" in path else "")
                    reply = server.request(method.upper(), at, None if method == "get" else "{}", key=key)
                    self.assertEqual(reply.status, 404, (method, at, reply))
        self.assertEqual(server.get("/v1/sandboxes", key=key).json["sandboxes"], [])
        for inside in ("allow 127.0.0.1/32", "allow 169.254.169.254/32", "allow 10.0.0.0/8", "allow x.example local"):
            self.assertEqual(server.post("/v1/sandboxes", {"network": inside}, key=key).status, 403, inside)
        self.assertEqual(server.post("/v1/projects", {"name": "x"}, key=key).status, 403)
        theirs = server.post("/v1/sandboxes", {"name": "mine"}, key=key)
        self.assertEqual(theirs.status, 201)
        self.assertEqual(server.post("/v1/sandboxes", {}, key=key).status, 201)
        full = server.post("/v1/sandboxes", {}, key=key)
        self.assertEqual((full.status, full.json["error"]["code"]), (429, "exhausted"))
        self.assertIn("retry-after", full.headers)
        slow = server.request("PATCH", f"/v1/projects/{project['id']}", {"limits": {"creates_per_second": 0.05}})
        self.assertEqual(slow.status, 200)
        self.assertEqual(server.post("/v1/sandboxes", {}, key=key).status, 201)
        for path, body in (("/v1/sandboxes", {}), ("/v1/run", {"command": "true"})):
            early = server.post(path, body, key=key)
            self.assertEqual((early.status, early.json["error"]["code"]), (429, "exhausted"))
            self.assertIn("a second", early.json["error"]["message"])
            self.assertIn(int(early.headers["retry-after"]), range(10, 21), "one in twenty seconds")
        for sandbox in server.get("/v1/sandboxes?state=running", key=key).json["sandboxes"]:
            server.delete(f"/v1/sandboxes/{sandbox['id']}", key=key)
        server.delete(f"/v1/sandboxes/{mine['id']}")


class BadInput(unittest.TestCase):
    def refused(self, reply, *words, status=400):
        self.assertEqual(reply.status, status, reply)
        self.assertTrue(reply.json["error"]["request_id"])
        for word in words:
            self.assertIn(word, reply.json["error"]["message"])

    def test_bodies(self):
        self.refused(server.post("/v1/sandboxes", '{"name": }'), "line 1, column 10")
        self.refused(server.post("/v1/sandboxes", "[1]"), "object")
        self.refused(server.post("/v1/sandboxes", {"nmae": "x"}), '"nmae"')
        self.refused(server.post("/v1/sandboxes", {"budget": {"cpus": 1}}), '"budget.cpus"')
        self.refused(server.post("/v1/sandboxes", {"memory": "lots"}), "memory")
        self.refused(server.post("/v1/sandboxes", {"timeout": -1}), "timeout")
        self.refused(server.post("/v1/sandboxes", {"task": "x" * 1000}), "task")
        self.refused(server.post("/v1/sandboxes", "[" * 100000), "deep")
        self.refused(server.post("/v1/sandboxes", {"template": "nope"}), "nope", status=404)
        self.refused(server.post("/v1/sandboxes", {"boundary": "microvm"}), "jail", status=501)
        self.refused(server.get("/v1/sandboxes?colour=red"), "colour")
        self.refused(server.get("/v1/sandboxes?cursor=garbage"), "cursor")
        for path in ("/v1/sandboxes", "/v1/snapshots", "/v1/volumes", "/v1/ledger"):
            for number in ("abc", "0", "1001", "-1", "1x", "", "99999999999999999999"):
                self.refused(server.get(f"{path}?limit={number}"), "limit")
        self.refused(server.get("/v1/ledger?after=last"), "after")
        box = "/v1/sandboxes/" + server.create(name="asked")["id"]
        for path in ("/v1/usage", "/v1/ledger", "/v1/events", box + "/events", box + "/files", box + "/files/stat",
                     box + "/files/list", box + "/files/watch"):
            self.refused(server.get(f"{path}?path=/&form=2026-01-01"), "path" if "/files" not in path else "form")
        self.refused(server.get(f"{box}/files/list?path=/&depth=deep"), "depth")
        self.refused(server.get(f"{box}/files/stat?path=/&follow=perhaps"), "follow")
        started = server.post(box + "/commands", {"command": "true", "background": True}).json["id"]
        self.refused(server.get(f"{box}/commands/{started}/output?encoding=hex"), "encoding")
        self.refused(server.get(f"{box}/commands/{started}/output?from=then"), "from")
        server.delete(box)
        self.refused(server.post("/v1/run", {"command": "true", "files": {"/tmp/x": {"base64": "*"}}}), "base64")
        self.refused(server.post("/v1/run", {"command": "true", "files": {"/tmp/x": 7}}), "/tmp/x")
        self.refused(server.post("/v1/sandboxes", {"budget": {"cpu_seconds": 1, "at_limit": "sleep"}}), "at_limit")
        self.refused(server.get("/v1/nothing"), status=404)
        self.refused(server.request("PUT", "/v1/sandboxes", "{}"), status=405)

    def test_hosts_and_origins(self):
        self.assertEqual(server.get("/v1/sandboxes", headers={"Host": "evil.example"}).status, 421)
        self.assertEqual(server.get("/v1/sandboxes", headers={"Origin": "http://evil.example"}).status, 403)
        self.assertEqual(server.get("/v1/sandboxes", headers={"Host": f"localhost:{server.port}"}).status, 200)

    def test_a_terminal_wants_a_key(self):
        made = server.create()
        reply = server.get(f"/v1/sandboxes/{made['id']}/terminal", key="", headers={
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="})
        self.assertEqual(reply.status, 401)
        self.assertEqual(server.get(f"/v1/sandboxes/{made['id']}/terminal").status, 400)
        self.assertEqual(server.get(f"/v1/sandboxes/{made['id']}/commands").json["commands"], [])
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_system(self):
        self.assertEqual(server.get("/healthz", key="").status, 200)
        self.assertEqual(server.get("/readyz", key="").status, 200)
        self.assertIn(b"isola_sandboxes ", server.get("/metrics", key="").body)
        self.assertEqual(server.get("/openapi.json", key="").json["openapi"][:2], "3.")
        info = server.get("/v1/info").json
        self.assertEqual((info["boundary"], info["shared_kernel"]), ("jail", True))


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


if __name__ == "__main__":
    unittest.main()
