"""What every call of the contract refuses, by every call: what HTTP, the guard and a sandbox's state say before the call
itself is looked at. What is promised of one is given here, or listed in contract_test.py with a reason."""
import json
import socket
import unittest

from island import Reply, Server, contract

server = None


def setUpModule():
    global server
    server = Server()


def tearDownModule():
    server.close()


# What a call needs so that only the state of its sandbox is in its way.
QUERIES = {"/files": "?path=/tmp/x", "/files/stat": "?path=/tmp", "/files/list": "?path=/tmp", "/files/watch": "?path=/tmp",
           "/files/tar": "?path=/tmp"}
BODIES = {"/commands": {"command": "true"}, "/resize": {"rows": 1, "cols": 1}, "/mkdir": {"path": "/tmp/d"},
          "/move": {"from": "/tmp/a", "to": "/tmp/b"}, "/chmod": {"path": "/tmp", "mode": "0700"},
          "/chown": {"path": "/tmp", "owner": "root"}, "/symlink": {"path": "/tmp/l", "target": "x"}, "/code": {"code": "1"},
          "/folders": {"path": "/tmp", "name": "kept"}, "/rollback": {"snapshot": "nowhere"}}
# What is about the sandbox, not into it.
ABOUT = {"", "/freeze", "/thaw", "/pause", "/resume", "/snapshot", "/fork", "/rollback", "/archive", "/network", "/bindings",
         "/bindings/{binding}", "/ports/{port}/sign"}
WAITING = {"command": "cat", "background": True, "open_stdin": True}
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}


def operations(status, below="/"):
    """Those that promise the status: method, path."""
    for path, calls in contract.all["paths"].items():
        for method, call in calls.items():
            if path.startswith(below) and status in call.get("responses", {}):
                yield method.upper(), path


class Raw:
    """Requests as nobody's library writes them."""

    def __init__(self, names):
        self.names = names

    def target(self, path):
        for name, value in self.names.items():
            path = path.replace("{" + name + "}", value)
        return path

    def send(self, method, path, *lines, end="\r\n", body="", host="localhost", key=None):
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        head = [f"{method} {self.target(path)} HTTP/1.1", f"Host: {host}", *lines]
        if key != "":
            head.append("Authorization: Bearer " + (key or server.key))
        plain.sendall(("\r\n".join(head) + "\r\n" + end + body).encode())
        return plain

    def answer(self, method, path, plain):
        with plain, plain.makefile("rb") as stream:
            status = int(stream.readline().split()[1])
            headers = {}
            while line := stream.readline().strip():
                name, value = line.decode().split(":", 1)
                headers[name.lower()] = value.strip()
            reply = Reply(status, headers, stream.read(int(headers.get("content-length", 0))))
        contract.check(method, self.target(path), reply)
        return reply

    def ask(self, method, path, *lines, **more):
        return self.answer(method, path, self.send(method, path, *lines, **more))


class BeforeTheCall(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.box = server.create()["id"]
        command = server.post(f"/v1/sandboxes/{cls.box}/commands", WAITING).json["id"]
        volume = server.post("/v1/volumes", {"name": "asked"}).json["id"]
        server.post("/v1/secrets", {"name": "asked", "value": "a value of some length"})
        project = server.post("/v1/projects", {"name": "asked"}).json["id"]
        cls.raw = Raw({"id": cls.box, "command": command, "volume": volume, "secret": "asked", "project": project, "task": "asked",
                       "port": "80", "path": "", "hash": "0" * 64, "context": "python", "template": "minimal", "build": "b",
                       "snapshot": "s", "key": "k", "binding": "b"})
        cls.reader = server.post("/v1/keys", {"scope": "read"}).json["secret"]

    @classmethod
    def tearDownClass(cls):
        server.delete(f"/v1/sandboxes/{cls.box}")

    def each(self, status, ask, below="/", code=None):
        seen = 0
        for method, path in operations(str(status), below):
            with self.subTest(f"{method} {path}"):
                reply = ask(method, path)
                self.assertEqual(reply.status, status, reply)
                if code:
                    self.assertEqual(reply.json["error"]["code"], code)
            seen += 1
        self.assertGreater(seen, 10)

    def test_what_is_no_http(self):
        self.each(400, lambda method, path: self.raw.ask(method, path, "this is no field"), code="invalid")

    def test_without_a_key(self):
        self.each(401, lambda method, path: self.raw.ask(method, path, key=""), code="unauthenticated")

    def test_pages_of_others(self):
        self.each(403, lambda method, path: self.raw.ask(method, path, "Origin: http://evil.example"), code="wrong_origin")

    def test_names_of_others(self):
        self.each(421, lambda method, path: self.raw.ask(method, path, host="evil.example"), code="wrong_host")

    def test_keys_that_only_read(self):
        for method, path in operations("403", "/v1/"):
            if method != "GET":
                with self.subTest(f"{method} {path}"):
                    self.assertEqual(self.raw.ask(method, path, key=self.reader).status, 403)

    def test_expectations(self):
        self.each(417, lambda method, path: self.raw.ask(method, path, "Expect: a-miracle"))

    def test_a_large_head(self):
        large = ["X-Filler: " + "x" * 4000] * 20
        self.each(431, lambda method, path: self.raw.ask(method, path, *large), code="headers_too_large")

    def test_a_slow_head(self):
        begun = [(method, path, self.raw.send(method, path, end="")) for method, path in operations("408")]
        for method, path, plain in begun:
            with self.subTest(f"{method} {path}"):
                self.assertEqual(self.raw.answer(method, path, plain).status, 408)

    def test_a_large_body(self):
        self.each(413, lambda method, path: self.raw.ask(method, path + self.query(path), f"Content-Length: {1 << 40}"), code="too_large")

    def test_a_packed_body(self):
        def ask(method, path):
            return self.raw.ask(method, path + self.query(path), "Content-Encoding: br", "Content-Length: 2", body="{}")
        self.each(415, ask)

    @staticmethod
    def query(path):
        return next((query for end, query in QUERIES.items() if path.endswith(end)), "")


class AState(unittest.TestCase):
    """A sandbox that is not to be reached: whatever goes into it says so."""

    def into(self, box, status, key=None):
        command = server.post(f"/v1/sandboxes/{box}/commands", WAITING, key=key).json["id"]
        yield
        calls = Raw({"id": box, "command": command, "port": "80", "path": "", "context": "python", "binding": "b"})
        for method, path in operations(status, "/v1/sandboxes/{id}"):
            end = path.removeprefix("/v1/sandboxes/{id}")
            if end in ABOUT:
                continue
            body = next((body for name, body in BODIES.items() if path.endswith(name) and method == "POST"), {})
            headers = UPGRADE if end == "/terminal" else {}
            # Of one that is known nobody has to be asked.
            at = calls.target(path.replace("{command}", "c0") if end == "/commands/{command}" else path)
            reply = server.request(method, at + BeforeTheCall.query(path), None if method == "GET" else json.dumps(body),
                                   key=key, headers=headers)
            with self.subTest(f"{method} {path}"):
                self.assertEqual(reply.status, int(status), reply)

    def test_frozen(self):
        box = server.create()["id"]
        calls = self.into(box, "409")
        next(calls)
        self.assertEqual(server.post(f"/v1/sandboxes/{box}/freeze").status, 200)
        next(calls, None)
        server.delete(f"/v1/sandboxes/{box}")

    def test_stopped_where_no_more_may_live(self):
        project = server.post("/v1/projects", {"name": "full", "limits": {"live_sandboxes": 1}}).json["id"]
        key = server.post("/v1/keys", {"project": project, "scope": "admin"}).json["secret"]
        box = server.post("/v1/sandboxes", {}, key=key).json["id"]
        calls = self.into(box, "429", key)
        next(calls)
        self.assertEqual(server.post(f"/v1/sandboxes/{box}/pause", {"memory": False}, key=key).status, 200)
        other = server.post("/v1/sandboxes", {}, key=key)
        self.assertEqual(other.status, 201, other)
        next(calls, None)
        for one in (box, other.json["id"]):
            server.delete(f"/v1/sandboxes/{one}", key=key)


class Nothing(unittest.TestCase):
    def test_names_of_nothing(self):
        for method, path, body in (("POST", "/v1/run", {"command": "true", "template": "nothing"}),
                                   ("POST", "/v1/keys", {"project": "nothing"}), ("PATCH", "/v1/projects/nothing", {}),
                                   ("DELETE", "/v1/volumes/nothing/files?path=/x", None),
                                   ("GET", "/v1/volumes/nothing/files/stat?path=/x", None),
                                   ("POST", "/v1/volumes/nothing/files/mkdir", {"path": "/x"}),
                                   ("GET", "/v1/templates/nothing/builds/b", None),
                                   ("POST", "/v1/templates/nothing/builds/b/cancel", {}),
                                   ("POST", "/v1/bindings", {"secret": "nothing", "names": ["a.example"]})):
            with self.subTest(f"{method} {path}"):
                self.assertEqual(server.request(method, path, body).status, 404)

    def test_names_that_are_taken(self):
        box = server.create(name="taken")["id"]
        server.post("/v1/volumes", {"name": "taken"})
        self.assertEqual(server.post("/v1/projects", {"name": "taken"}).status, 201)
        self.assertEqual(server.request("PUT", "/v1/volumes/taken/files?path=/file", b"x").status, 200)
        for method, path, body in (("POST", "/v1/run", {"command": "true", "name": "taken"}), ("POST", "/v1/projects", {"name": "taken"}),
                                   ("PUT", "/v1/volumes/taken/files?path=/file&create_new=true", b"y"),
                                   ("POST", "/v1/volumes/taken/files/mkdir", {"path": "/file"}),
                                   ("POST", "/v1/volumes/taken/snapshot", {"name": "taken"})):
            with self.subTest(f"{method} {path}"):
                self.assertEqual(server.request(method, path, body).status, 409)
        self.assertEqual(server.post(f"/v1/sandboxes/{box}/pause", {"memory": False}).status, 200)
        self.assertEqual(server.post(f"/v1/sandboxes/{box}/thaw").status, 409, "it is not frozen")
        server.delete(f"/v1/sandboxes/{box}")
        server.delete("/v1/volumes/taken")


if __name__ == "__main__":
    unittest.main()
