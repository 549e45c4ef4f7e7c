"""What strangers and hasty clients can do at the edge: hang up, pile up, send too much, come with what is no longer theirs."""
import base64
import concurrent.futures
import hashlib
import http.client
import json
import os
import select
import signal
import socket
import struct
import time
import unittest

from island import Server, eventually, quote
from wire import WebSocket

server = None

# Answers in ways that never end, and tells how many of those who asked are gone. One thread: the smallest template has
# no more than sockets and select.
SERVICE = rb"""
import select, socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 8000))
listener.listen(1024)
heads, waiting, gone = {}, {}, {}
while True:
    ready = select.select([listener, *heads, *waiting], [], [])[0]
    for one in ready:
        if one is listener:
            peer, _ = listener.accept()
            heads[peer] = b""
        elif one in waiting:
            try:
                more = one.recv(65536)
            except OSError:
                more = b""
            if not more:
                kind = waiting.pop(one)
                gone[kind] = gone.get(kind, 0) + 1
                one.close()
        else:
            more = one.recv(65536)
            head = heads[one] = heads[one] + more
            if not more:
                del heads[one]
                one.close()
                continue
            if b"\r\n\r\n" not in head:
                continue
            del heads[one]
            line = head.split(b"\r\n")[0]
            path = line.split(b" ")[1].split(b"?")[0]
            if path == b"/stream":
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
            elif path == b"/hints":
                try:
                    for _ in range(1000):
                        one.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                except OSError:
                    pass
            elif path != b"/silent":
                body = line if path == b"/line" else head if path == b"/head" else ";".join("%s=%d" % pair for pair in gone.items()).encode()
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
                one.close()
                continue
            waiting[one] = path.decode()
"""


def setUpModule():
    global server
    server = Server("--domain", "isola.test")


def tearDownModule():
    server.close()


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


def connect():
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


class HangingUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.id = server.create(public_ports=True)["id"]
        server.request("PUT", f"/v1/sandboxes/{cls.id}/files?path=/srv/service.py", SERVICE)
        server.post(f"/v1/sandboxes/{cls.id}/commands", {"command": "python3 /srv/service.py", "background": True})
        eventually(lambda: 8000 in [p["port"] for p in server.get(f"/v1/sandboxes/{cls.id}/ports").json["ports"]])
        cls.host = f"8000-{cls.id}.isola.test"

    @classmethod
    def tearDownClass(cls):
        server.delete(f"/v1/sandboxes/{cls.id}")

    def send(self, method, path, body=b"", more=""):
        plain = connect()
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        plain.sendall(f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\n{length}{more}\r\n".encode() + body)
        return plain

    def gone(self, kind):
        text = server.get("/", key="", headers={"Host": self.host}).body.decode()
        return dict(pair.split("=") for pair in text.split(";") if pair).get(kind, "0")

    def test_whoever_leaves_a_stream_leaves_nothing(self):
        for method, body in (("GET", b""), ("POST", b"x" * 1000)):
            before = int(self.gone("/stream"))
            for _ in range(5):
                plain = self.send(method, "/stream", body)
                self.assertIn(b"200", plain.recv(65536))
                plain.close()
            eventually(lambda: int(self.gone("/stream")) == before + 5, what="the end of what was left")

    def test_whoever_does_not_wait_for_an_answer(self):
        before = int(self.gone("/silent"))
        self.send("GET", "/silent").close()
        self.send("GET", "/silent", more="Connection: Upgrade\r\nUpgrade: websocket\r\n").close()
        eventually(lambda: int(self.gone("/silent")) == before + 2, what="the end of what was left")

    def test_hints_without_end(self):
        plain = self.send("GET", "/hints")
        self.assertIn(b"502", plain.recv(65536).split(b"\r\n")[0])
        plain.close()

    def test_a_connection_is_kept_for_those_who_stay(self):
        kept = server.connection()
        for _ in range(3):
            reply = server.get("/line", key="", headers={"Host": self.host}, connection=kept)
            self.assertEqual(reply.body, b"GET /line HTTP/1.1")

    def test_what_opened_the_door_stays_outside(self):
        named = {"Host": self.host, "X-Access-Token": "mine", "E2b-Signature": "of a webhook"}
        head = server.get("/head", key="", headers=named).body.decode()
        self.assertIn("X-Access-Token: mine\r\n", head, "a service may have tokens of its own")
        self.assertIn("E2b-Signature: of a webhook\r\n", head)
        ours = {"X-Access-Token": f"ea_{self.id}_" + "0" * 40, "E2b-Traffic-Access-Token": "0" * 40, "E2b-Sandbox-Id": self.id}
        head = server.get("/head", key="", headers={"Host": self.host, **ours}).body.decode().lower()
        for name in ours:
            self.assertNotIn(name.lower(), head)

    def test_targets_with_a_host(self):
        plain = connect()
        plain.sendall(f"GET http://{self.host}/line?a=b HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n".encode())
        reply = b""
        while piece := plain.recv(65536):
            reply += piece
        self.assertTrue(reply.endswith(b"\r\n\r\nGET /line?a=b HTTP/1.1"), reply)


class PilingUp(unittest.TestCase):
    def test_strangers_leave_room_for_the_owner(self):
        made = server.create(public_ports=True)
        # It listens and never answers.
        deaf = "import socket, time\ns = socket.socket()\ns.bind(('127.0.0.1', 8000))\ns.listen(2000)\ntime.sleep(1000)"
        server.post(f"/v1/sandboxes/{made['id']}/commands", {"argv": ["python3", "-c", deaf], "background": True})
        eventually(lambda: 8000 in [p["port"] for p in server.get(f"/v1/sandboxes/{made['id']}/ports").json["ports"]])
        host = f"8000-{made['id']}.isola.test"
        crowd = []
        for _ in range(552):
            crowd.append(connect())
            crowd[-1].sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())

        def refused():
            return select.select(crowd, [], [], 0)[0]
        eventually(lambda: len(refused()) == 552 - 512, what="the refusal of the rest")
        reply = refused()[0].recv(65536)
        self.assertIn(b" 503 ", reply.split(b"\r\n")[0])
        self.assertIn(b"Retry-After: 1", reply)
        self.assertEqual(server.run(made["id"], "echo mine")["stdout"], "mine\n")
        for one in crowd:
            one.close()

        def let_in():
            plain = connect()
            plain.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            there = select.select([plain], [], [], 0.5)[0]
            plain.close()
            return not there
        eventually(let_in, what="room again")
        server.delete(f"/v1/sandboxes/{made['id']}")


class TooMuch(unittest.TestCase):
    def test_bodies_that_become_large(self):
        reply = server.post("/v1/run", '{"argv":[' + "[]," * 200_000 + "[]]}")
        self.assertEqual(reply.status, 400)
        self.assertIn("too many values", reply.json["error"]["message"])

    def test_output_that_is_collected(self):
        made = server.create()
        done = server.run(made["id"], "head -c 9000000 /dev/zero | tr '\\0' x", max_output="64M")
        self.assertEqual((len(done["stdout"]), done["stdout_dropped_bytes"]), (8 << 20, 9000000 - (8 << 20)))
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_input_that_nobody_reads(self):
        made, other = server.create(), server.create()
        deaf = {"command": "sleep 1000", "background": True, "stdin": "x" * (15 << 20)}
        path = f"/v1/sandboxes/{made['id']}/commands"
        told = [server.post(path, deaf) for _ in range(9)]
        self.assertEqual([reply.status for reply in told], [202] * 8 + [429])  # 128 MiB are a project's
        self.assertIn("stdin", told[-1].json["error"]["message"])
        self.assertEqual(len(server.get(path).json["commands"]), 8)  # what was refused was not started
        self.assertEqual(server.post("/v1/run", {"command": "true", "stdin": "x" * (15 << 20)}).status, 429)
        self.assertEqual(server.run(other["id"], "cat", stdin="short")["stdout"], "short")
        server.delete(f"/v1/sandboxes/{made['id']}")
        # All of it comes to one who reads.
        eventually(lambda: server.post(f"/v1/sandboxes/{other['id']}/commands", {"command": "true", "stdin": "x" * (15 << 20)}).status == 200)
        self.assertEqual(server.run(other["id"], "wc -c", stdin="y" * (15 << 20))["stdout"].strip(), str(15 << 20))
        server.delete(f"/v1/sandboxes/{other['id']}")

    def test_replies_that_nobody_reads(self):
        made = server.create()
        other = server.post("/v1/projects", {"name": "reads-its-replies"}).json["id"]
        key = server.post("/v1/keys", {"project": other, "scope": "use"}).json["secret"]
        body = json.dumps({"argv": ["head", "-c", str(8 << 20), "/dev/zero"], "max_output": "8M"})  # 48 MiB of JSON

        def asked():
            plain = connect()
            plain.sendall(f"POST /v1/sandboxes/{made['id']}/commands HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                          f"{server.key}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            return plain, plain.recv(12)
        held = [asked() for _ in range(7)]
        self.assertEqual([first for _, first in held], [b"HTTP/1.1 200"] * 5 + [b"HTTP/1.1 429"] * 2, "256 MiB are a project's")
        self.assertIn(b"replies that nobody has read", held[-1][0].recv(65536))
        self.assertEqual(server.run(made["id"], "echo short")["stdout"], "short\n", "small ones are free")
        large = {"command": "head -c 1000000 /dev/zero"}
        self.assertEqual(len(server.post("/v1/run", large, key=key).json["stdout"]), 1000000, "another's")
        self.assertEqual(server.post("/v1/run", large).status, 200, "what fits beside them")
        [plain.close() for plain, _ in held]
        eventually(lambda: server.post(f"/v1/sandboxes/{made['id']}/commands", json.loads(body)).status == 200)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_keys_that_nobody_reads(self):
        made = server.create()

        def terminal():
            # No echo: nothing is written to whoever has gone, and so nothing is noticed by that.
            line = "stty raw -echo; echo ready; exec sleep 1000"
            one = WebSocket(connect(), "localhost", f"/v1/sandboxes/{made['id']}/terminal?command={quote(line)}",
                            {"Authorization": "Bearer " + server.key})
            said = b""
            while b"ready" not in said:
                said += one.read()[1]
            return one

        def sockets():
            folder = f"/proc/{server.process.pid}/fd"
            count = 0
            for name in os.listdir(folder):
                try:
                    count += os.readlink(f"{folder}/{name}").startswith("socket:")
                except OSError:
                    pass
            return count
        held = [terminal() for _ in range(20)]
        opened = sockets()
        for one in held:
            one.connection.settimeout(0.3)
            try:
                while True:
                    one.send(bytes(60_000))
            except TimeoutError:
                pass  # it is taken no more
            one.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.stream.close()
            one.connection.close()
        eventually(lambda: sockets() <= opened - 18, what="the end of what nobody waits for")
        much = terminal()
        much.send(bytes(70_000))
        while (said := much.read()) and said[0] != 8:
            pass
        self.assertTrue(said is None or struct.unpack("!H", said[1][:2])[0] == 1009, said)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_who_only_ended_its_side_gets_its_answer(self):
        body = json.dumps({"command": "sleep 3; echo there"}).encode()

        def asked():
            plain = connect()
            plain.sendall(f"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
                          f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            return plain
        plain = asked()
        plain.shutdown(socket.SHUT_WR)
        said = b""
        while piece := plain.recv(65536):
            said += piece
        self.assertIn(b'"stdout":"there\\n"', said)
        plain.close()
        # Who has left keeps nothing alive.
        body = json.dumps({"command": "sleep 1000", "metadata": {"whose": "deserter"}}).encode()
        plain = asked()
        living = "/v1/sandboxes?state=running&metadata.whose=deserter"
        eventually(lambda: server.get(living).json["sandboxes"])
        plain.close()
        eventually(lambda: not server.get(living).json["sandboxes"], what="the end of what nobody waits for")

    def test_bodies_that_never_come_to_their_end(self):
        made = server.create()
        other = server.post("/v1/projects", {"name": "not-besieged"}).json["id"]
        key = server.post("/v1/keys", {"project": other, "scope": "use"}).json["secret"]
        size = 15 << 20

        def begun():
            plain = socket.create_connection(("127.0.0.1", server.port))
            plain.sendall(f"POST /v1/sandboxes/{made['id']}/commands HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                          f"{server.key}\r\nContent-Length: {size}\r\n\r\n".encode())
            try:
                plain.sendall(b" " * (size - 1))
            except OSError:
                pass  # it was refused before all of it had gone
            return plain
        held = [begun() for _ in range(20)]  # 256 MiB are a project's
        first = []
        for plain in held:
            plain.settimeout(0.5)
            try:
                first.append(plain.recv(12))
            except TimeoutError:
                first.append(b"")
        self.assertEqual(set(first), {b"", b"HTTP/1.1 429"})
        self.assertGreaterEqual(first.count(b""), 15)
        self.assertEqual(server.post("/v1/run", {"command": "true", "stdin": "x" * (1 << 20)}, key=key).status, 200, "another's")
        self.assertEqual(server.run(made["id"], "echo short")["stdout"], "short\n", "small ones are free")
        [plain.close() for plain in held]
        eventually(lambda: server.post("/v1/run", {"command": "true", "stdin": "x" * (1 << 20)}).status == 200)
        server.delete(f"/v1/sandboxes/{made['id']}")


def e2b(method, path, body=None, key=None, headers=None):
    sent = {"X-API-Key": key or server.key} if key != "" else {}
    return server.request(method, path, body, key="", headers={**sent, **(headers or {})})


class DataPlane(unittest.TestCase):
    def make(self, key=None, **more):
        made = e2b("POST", "/v2/sandboxes", {"templateID": "minimal", "timeout": 600, **more}, key=key)
        self.assertEqual(made.status, 201, made)
        return made.json

    def envd(self, made, method, path, body=None, token=None):
        return e2b(method, path, body, key="", headers={"E2b-Sandbox-Id": made["sandboxID"],
                                                        "X-Access-Token": token or made["envdAccessToken"]})

    def start(self, made, process):
        message = json.dumps({"process": process}).encode()
        connection = server.connection()
        connection.request("POST", "/process.Process/Start", struct.pack("!BI", 0, len(message)) + message, {
            "Content-Type": "application/connect+json", "E2b-Sandbox-Id": made["sandboxID"],
            "X-Access-Token": made["envdAccessToken"]})
        answer = connection.getresponse()
        size = struct.unpack("!BI", answer.read(5))[1]
        self.assertIn("start", json.loads(answer.read(size))["event"])
        return connection, answer

    def test_a_revoked_key_takes_its_tokens_with_it(self):
        key = server.post("/v1/keys", {"scope": "use"}).json
        made, other = self.make(key["secret"]), self.make()
        self.assertEqual(self.envd(made, "GET", "/envs").status, 200)
        connection, answer = self.start(made, {"cmd": "sleep", "args": ["1000"]})
        self.assertEqual(server.delete(f"/v1/keys/{key['id']}").status, 204)
        try:
            self.assertEqual(answer.read(), b"")
        except (OSError, http.client.HTTPException):
            pass
        self.assertEqual(self.envd(made, "GET", "/envs").status, 401)
        self.assertEqual(self.envd(made, "GET", "/files?path=/etc/passwd").status, 401)
        self.assertEqual(self.envd(other, "GET", "/envs").status, 200)
        # Whoever still has a right to it gets a token that opens it.
        joined = e2b("POST", f"/sandboxes/{made['sandboxID']}/connect", {"timeout": 600}).json
        self.assertEqual(self.envd(joined, "GET", "/envs").status, 200)
        for one in (made, other):
            e2b("DELETE", f"/sandboxes/{one['sandboxID']}")

    def pid(self, made):
        return self.envd(made, "POST", "/process.Process/List", "{}").json["processes"][0]["pid"]

    def send(self, made, path, type_, body, length=None):
        """A request whose answer nobody takes yet."""
        plain = connect()
        plain.sendall((f"POST {path} HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {made['sandboxID']}\r\nX-Access-Token: "
                       f"{made['envdAccessToken']}\r\nContent-Type: {type_}\r\nContent-Length: {length or len(body)}\r\n\r\n").encode())
        try:
            plain.sendall(body)
        except OSError:
            pass  # it was refused before all of it had gone
        return plain

    def test_input_that_nobody_reads(self):
        made, other = self.make(), self.make()
        deaf, _ = self.start(made, {"cmd": "sleep", "args": ["1000"]})
        reader, _ = self.start(other, {"cmd": "sh", "args": ["-c", "exec cat >/dev/null"]})
        size = 11 << 20

        def input_to(pid):
            return json.dumps({"process": {"pid": pid}, "input": {"stdin": base64.b64encode(b"x" * size).decode()}}).encode()

        def answered(all_of_them):
            return select.select(all_of_them, [], [], 0)[0]

        to_deaf, to_reader = input_to(self.pid(made)), input_to(self.pid(other))
        wait = lambda: eventually(lambda: self.envd(other, "POST", "/process.Process/SendInput", to_reader).status == 200, what="room again")  # noqa: E731
        held = [self.send(made, "/process.Process/SendInput", "application/json", to_deaf) for _ in range(12)]  # 128 MiB are a project's
        eventually(lambda: len(answered(held)) == 1, what="the refusal of one")
        self.assertIn(b" 429 ", answered(held)[0].recv(65536).split(b"\r\n")[0])
        # Whoever leaves takes what it sent along: the process has not read it, and never will.
        [one.close() for one in held]
        wait()
        # Messages that never come to their end are held as well.
        start = json.dumps({"start": {"process": {"pid": self.pid(made)}}}).encode()
        never = struct.pack("!BI", 0, len(start)) + start + struct.pack("!BI", 0, 15 << 20) + b" " * ((15 << 20) - 1)
        held = [self.send(made, "/process.Process/StreamInput", "application/connect+json", never, 16 << 20) for _ in range(10)]
        eventually(lambda: answered(held), what="the refusal of one")
        self.assertIn(b"resource_exhausted", answered(held)[0].recv(65536))
        [one.close() for one in held]
        wait()
        for connection in (deaf, reader):
            connection.close()
        for one in (made, other):
            e2b("DELETE", f"/sandboxes/{one['sandboxID']}")

    def test_what_a_command_was_started_with_goes(self):
        if server.sanitized():
            self.skipTest("its memory grows by itself")
        made = self.make()
        begin = lambda: self.start(made, {"cmd": "sleep", "args": ["1000"], "junk": "x" * 900_000})[0]  # noqa: E731
        held = [begin() for _ in range(5)]
        before = resident(server.process.pid)
        held += [begin() for _ in range(80)]
        self.assertLess(resident(server.process.pid) - before, 40 << 20)
        [one.close() for one in held]
        e2b("DELETE", f"/sandboxes/{made['sandboxID']}")

    def asleep(self, key=None):
        made = self.make(key, autoPause=True, autoResume={"enabled": True})
        self.assertEqual(e2b("POST", f"/sandboxes/{made['sandboxID']}/pause", {}, key=key).status, 204)
        return made

    def test_many_wake_it_together(self):
        made = self.asleep()
        there = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "8000"}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            told = list(pool.map(lambda _: e2b("GET", "/", key="", headers=there), range(8)))
        self.assertEqual({one.json["message"] for one in told}, {"The sandbox is running but port is not open"}, told)
        e2b("DELETE", f"/sandboxes/{made['sandboxID']}")

    def test_one_that_cannot_be_woken_now(self):
        project = server.post("/v1/projects", {"name": "no room", "limits": {"live_sandboxes": 1}}).json
        key = server.post("/v1/keys", {"project": project["id"], "scope": "use"}).json["secret"]
        made, other = self.asleep(key), self.make(key)
        there = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "8000"}
        for told, code in ((e2b("GET", "/", key="", headers=there), 429), (self.envd(made, "GET", "/envs"), 429),
                           (self.envd(made, "GET", "/files?path=/etc/passwd"), 429),
                           (self.envd(made, "POST", "/process.Process/List", "{}"), "resource_exhausted")):
            self.assertEqual((told.status, told.json["code"], told.headers["retry-after"]), (429, code, "1"), told)
            self.assertIn("sandboxes", told.json["message"])
        self.assertEqual(e2b("DELETE", f"/sandboxes/{other['sandboxID']}", key=key).status, 204)
        eventually(lambda: self.envd(made, "GET", "/envs").status == 200, what="its turn")
        e2b("DELETE", f"/sandboxes/{made['sandboxID']}", key=key)

    def test_signed_files_at_an_origin_that_all_share(self):
        made, other = self.make(), self.make()
        server.request("PUT", f"/v1/sandboxes/{made['sandboxID']}/files?path=/tmp/a", b"mine")
        digest = hashlib.sha256(f"/tmp/a:read::{made['envdAccessToken']}".encode()).digest()
        signature = "v1_" + base64.b64encode(digest).decode().rstrip("=")
        path = "/files?path=/tmp/a&signature="
        self.assertEqual(e2b("GET", path + signature.replace("+", "%2B"), key="").body, b"mine")
        for wrong in ("x", "v1_" + "a" * 43, signature[:-1] + ("A" if signature[-1] != "A" else "B")):
            self.assertEqual(e2b("GET", path + wrong.replace("+", "%2B"), key="").status, 401)
        for one in (made, other):
            e2b("DELETE", f"/sandboxes/{one['sandboxID']}")

    def test_messages_of_any_size(self):
        made = self.make()
        large = json.dumps({"watcherId": "x" * (2 << 20)})
        reply = self.envd(made, "POST", "/filesystem.Filesystem/GetWatcherEvents", large)
        self.assertEqual((reply.status, reply.json["code"]), (400, "invalid_argument"))
        self.assertIn("larger", reply.json["message"])
        self.assertEqual(self.envd(made, "POST", "/process.Process/List", '{"a":' + "[" * 100 + "]" * 100 + "}").status, 400)
        connection, _ = self.start(made, {"cmd": "sleep", "args": ["1000"], "junk": "x" * 100_000, "cwd": "/tmp"})
        listed = self.envd(made, "POST", "/process.Process/List", "{}").json["processes"]
        self.assertEqual(listed[0]["config"], {"cmd": "sleep", "args": ["1000"], "cwd": "/tmp"})
        connection.close()
        e2b("DELETE", f"/sandboxes/{made['sandboxID']}")

    def test_a_url_that_the_native_api_signed(self):
        made = self.make(network={"allowPublicTraffic": False})
        host = f"8000-{made['sandboxID']}.isola.test"
        self.assertEqual(server.get("/", key="", headers={"Host": host}).status, 403)
        signed = server.post(f"/v1/sandboxes/{made['sandboxID']}/ports/8000/sign", {}).json
        reply = server.get("/?" + signed["query"], key="", headers={"Host": host})
        self.assertEqual((reply.status, reply.json["error"]["code"]), (502, "bad_gateway"), "let in, and nothing listens")
        reply = server.get("/?" + signed["query"].replace("signature=", "signature=0"), key="", headers={"Host": host})
        self.assertEqual(reply.status, 403)
        e2b("DELETE", f"/sandboxes/{made['sandboxID']}")


class Tenants(unittest.TestCase):
    def test_what_one_sees_of_the_others(self):
        project = server.post("/v1/projects", {"name": "second", "limits": {"live_sandboxes": 1}}).json
        key = server.post("/v1/keys", {"project": project["id"], "scope": "admin"}).json["secret"]
        mine = server.create()
        self.assertEqual(server.get("/v1/info", key=key).json["sandboxes"], 0)
        made = e2b("POST", "/v2/sandboxes", {"templateID": "minimal"}, key=key)
        self.assertEqual(made.status, 201)
        self.assertEqual(server.get("/v1/info", key=key).json["sandboxes"], 1)
        full = e2b("POST", "/v2/sandboxes", {"templateID": "minimal"}, key=key)
        self.assertEqual((full.status, full.headers.get("retry-after")), (429, "1"))
        # An address of the inside, spelled as one of IPv6.
        e2b("DELETE", f"/sandboxes/{made.json['sandboxID']}", key=key)
        for inside in ("allow [64:ff9b::a9fe:a9fe]", "allow [64:ff9b::7f00:1]", "allow [2002:a00:1::]"):
            self.assertEqual(server.post("/v1/sandboxes", {"network": inside}, key=key).status, 403, inside)
        server.delete(f"/v1/sandboxes/{mine['id']}")

    def test_a_terminal_of_a_task(self):
        made = server.create()
        terminal = WebSocket(connect(), "localhost", f"/v1/sandboxes/{made['id']}/terminal?task=look",
                             {"Authorization": "Bearer " + server.key})
        self.assertEqual(terminal.json()["type"], "start")
        command = server.get(f"/v1/sandboxes/{made['id']}/commands").json["commands"][0]
        self.assertEqual(command["task"], "look")
        resize = f"/v1/sandboxes/{made['id']}/commands/{command['id']}/resize"
        self.assertEqual(server.post(resize, {"rows": 41, "cols": 119}).status, 204)
        # No terminal is as large, and none gets what is left of the number in fewer bits.
        terminal.send(b'{"type": "resize", "rows": 65543, "cols": 65545}', text=True)
        terminal.send(b"stty size\n")
        said = b""
        while b"41 119" not in said:
            self.assertNotIn(b"7 9\r", said)
            said += terminal.read()[1]
        plain = server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "sleep 1000", "background": True}).json
        refused = server.post(f"/v1/sandboxes/{made['id']}/commands/{plain['id']}/resize", {"rows": 1, "cols": 1})
        self.assertEqual(refused.status, 400, refused)
        server.delete(f"/v1/sandboxes/{made['id']}")


class Readiness(unittest.TestCase):
    def test_a_launcher_that_is_gone(self):
        own = Server()
        # Whoever would start another one stands still.
        parents = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    parents[int(pid)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
        keepers = [pid for pid, parent in parents.items() if parent == own.process.pid]
        launcher = own.launcher_pid()
        for pid in keepers:
            os.kill(pid, signal.SIGSTOP)
        try:
            self.assertEqual(own.get("/readyz", key="").status, 200)
            self.assertIn("\nisola_ready 1\n", own.get("/metrics", key="").body.decode())
            os.kill(launcher, signal.SIGKILL)
            eventually(lambda: "\nisola_ready 0\n" in own.get("/metrics", key="").body.decode(), what="a count of it")
            self.assertEqual(own.get("/readyz", key="").status, 503)
        finally:
            for pid in keepers:
                os.kill(pid, signal.SIGCONT)
            try:
                eventually(lambda: own.get("/readyz", key="").status == 200, what="the next launcher")
            finally:
                own.close()

    def test_a_launcher_that_says_nothing(self):
        self.assertEqual(server.get("/readyz", key="").status, 200)
        launcher = server.launcher_pid()
        os.kill(launcher, signal.SIGSTOP)
        try:
            eventually(lambda: server.get("/readyz", key="").status == 503, what="a word about it")
        finally:
            os.kill(launcher, signal.SIGCONT)
        eventually(lambda: server.get("/readyz", key="").status == 200, what="ready again")


if __name__ == "__main__":
    unittest.main()
