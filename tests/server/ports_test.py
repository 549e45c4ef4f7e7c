"""What listens inside, reached from outside: by path, by host name, by headers; HTTP and WebSockets."""
import socket
import struct
import time
import unittest

from inside import ECHO_SOCKET, WEB_SERVER
from island import Server, eventually
from wire import WebSocket

server = None


def setUpModule():
    global server
    server = Server("--domain", "isola.test")


def tearDownModule():
    server.close()


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
        # What the API itself refuses: a page of somebody's, be it that its name leads here.
        for odd, status, code in (({"Host": "evil.example"}, 421, "wrong_host"), ({"Origin": "http://evil.example"}, 403, "wrong_origin")):
            refused = server.get("/index.html", key="", headers={**headers, **odd})
            self.assertEqual((refused.status, refused.json["error"]["code"]), (status, code))

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

    def by_browser(self, path="/", port=8000, **headers):
        """As one asks at an address that it trusts: it says whose request it is."""
        return self.by_host(path, port, **{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image", **headers})

    def cookie_of(self, reply):
        return reply.headers["set-cookie"].split(";")[0]

    def test_pages_in_a_browser(self):
        right = f"isola_token={self.made['port_token']}"
        opened = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        moved = self.by_browser(f"/sub/page?a=1&{right}", **opened)
        self.assertEqual((moved.status, moved.headers["location"], moved.headers["cache-control"]), (303, "/sub/page?a=1", "no-store"))
        self.assertIn("; HttpOnly; SameSite=Lax", moved.headers["set-cookie"])
        self.assertEqual(self.by_browser(f"//evil.example/x?{right}", **opened).headers["location"], "/evil.example/x")
        token = self.cookie_of(moved)
        self.assertEqual(self.by_browser("/sub/page?a=1", Cookie=token, **opened).body, b"a page")
        self.assertEqual(self.by_browser("/index.html", Cookie=token).body, b"hello from inside")
        self.assertNotIn("set-cookie", self.by_browser("/index.html", Cookie=token).headers)
        self.assertNotIn("set-cookie", self.by_browser("/index.html", **{"X-Isola-Token": self.made["port_token"]}).headers)
        # A neighbour's page may have put one of its own before it.
        self.assertEqual(self.by_browser("/index.html", Cookie="isola_token=x; isola_grant=y; " + token).status, 200)
        # Requests of other pages of this domain bring it along, too.
        other, own = f"https://8000-i{'x' * 20}.isola.test", f"https://8000-{self.id}.isola.test"
        for headers, status in (({"Origin": other}, 403), ({"Origin": "null"}, 403), ({"Origin": own}, 200),
                                ({"Sec-Fetch-Site": "same-site"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
                                ({**opened, "Sec-Fetch-Dest": "iframe"}, 403), (opened, 200)):
            self.assertEqual(self.by_browser("/index.html", Cookie=token, **headers).status, status, headers)
        # Where a browser does not say whose page asks, none is set and none counts.
        page = self.by_host("/sub/page?" + right)
        self.assertEqual((page.body, "set-cookie" in page.headers), (b"a page", False))
        self.assertEqual(self.by_host("/index.html", Cookie=token).status, 403)

    def test_signed_pages_in_a_browser(self):
        signed = server.post(f"/v1/sandboxes/{self.id}/ports/8000/sign", {"path": "/sub/*", "expires_in": 600}).json
        page = self.by_browser("/sub/page?" + signed["query"])
        self.assertRegex(page.headers["set-cookie"], "; Path=/sub/; .*; Max-Age=(600|599|598)$")
        grant = self.cookie_of(page)
        self.assertEqual(self.by_browser("/sub/page", Cookie="a=b; " + grant).body, b"a page")
        # As far and as long as it goes, and no further.
        self.assertEqual(self.by_browser("/index.html", Cookie=grant).status, 403)
        self.assertEqual(self.by_browser("/sub/%2e%2e/index.html", Cookie=grant).status, 403)
        self.assertEqual(self.by_browser("/sub/page", port=8001, Cookie=grant).status, 403)
        self.assertEqual(self.by_browser("/sub/page", Cookie=grant.replace("isola_grant=", "isola_grant=9")).status, 403)
        one = server.post(f"/v1/sandboxes/{self.id}/ports/8000/sign", {"path": "/sub/page"}).json
        self.assertNotIn("set-cookie", self.by_browser("/sub/page?" + one["query"]).headers)
        short = server.post(f"/v1/sandboxes/{self.id}/ports/8000/sign", {"path": "/*", "expires_in": 1}).json
        short = self.cookie_of(self.by_browser("/index.html?" + short["query"]))
        time.sleep(1.5)
        self.assertEqual(self.by_browser("/index.html", Cookie=short).status, 403)
        # None of it gets inside, nor does the address of a page that had it.
        referer = f"https://8000-{self.id}.isola.test/sub/page?{signed['query'].replace('isola_', 'isola%5F')}"
        seen = self.by_browser("/headers", Cookie=f"a=b; {grant}; isola_token={self.made['port_token']}", Referer=referer).body.decode()
        self.assertIn("a=b", seen)
        self.assertNotIn("isola_grant", seen)
        self.assertNotIn("isola_token", seen)
        self.assertNotIn("isola%5F", seen)

    def test_a_dead_port_is_readable(self):
        headers = {"X-Isola-Token": self.made["port_token"]}
        dead = self.by_host(port=9, **headers)
        self.assertEqual((dead.status, dead.json["error"]["code"]), (502, "bad_gateway"))
        page = self.by_host(port=9, Accept="text/html", **headers)
        self.assertIn(b"<h1>", page.body)

    def test_a_sandbox_that_is_not_to_be_reached(self):
        project = server.post("/v1/projects", {"name": "reached", "limits": {"live_sandboxes": 1}}).json["id"]
        key = server.post("/v1/keys", {"project": project, "scope": "admin"}).json["secret"]
        made = server.post("/v1/sandboxes", {}, key=key).json
        token = {"X-Isola-Token": made["port_token"]}
        ways = (lambda: server.get(f"/v1/sandboxes/{made['id']}/ports/9/", key=key),
                lambda: server.get("/", key="", headers={"Host": f"9-{made['id']}.isola.test", **token}),
                lambda: server.get("/", key="", headers={"X-Isola-Sandbox": made["id"], "X-Isola-Port": "9", **token}))

        def expect(status, code, retry):
            for way in ways:
                reply = way()
                self.assertEqual((reply.status, reply.json["error"]["code"], reply.headers.get("retry-after")), (status, code, retry), reply)
        expect(502, "bad_gateway", None)
        path = f"/v1/sandboxes/{made['id']}"
        server.post(path + "/freeze", key=key)
        expect(409, "conflict", None)
        server.post(path + "/thaw", key=key)
        self.assertEqual(server.request("PATCH", path, {"auto_resume": True}, key=key).status, 200)
        self.assertEqual(server.post(path + "/pause", {"memory": False}, key=key).status, 200)
        other = server.post("/v1/sandboxes", {}, key=key).json["id"]
        expect(429, "exhausted", "1")
        for one in (made["id"], other):
            server.delete(f"/v1/sandboxes/{one}", key=key)

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
            for text in ("grüß dich", "x" * 5000):
                socket_.send(text.encode(), text=True)
                self.assertEqual(socket_.read(), (1, text.encode()))
            socket_.connection.close()
            # Codes and words of a goodbye pass both ways, and the connection ends with it.
            for goes_first in ("outside", "inside"):
                socket_ = WebSocket(socket.create_connection(("127.0.0.1", server.port), timeout=20), host, target, headers)
                self.assertEqual(socket_.read()[0], 1)
                if goes_first == "outside":
                    socket_.close(4001, b"enough")
                    self.assertEqual(socket_.read(), (8, struct.pack("!H", 4001) + b"enough"), target)
                else:
                    socket_.send(b"bye 4321", text=True)
                    self.assertEqual(socket_.read(), (8, struct.pack("!H", 4321) + b"as you wish"), target)
                self.assertIsNone(socket_.read())
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


class OnThisMachineAlone(unittest.TestCase):
    """Where no domain is set, a signed URL leads somewhere all the same: below localhost."""

    def test_signed_urls(self):
        other = Server()
        try:
            made = other.create()
            path = f"/v1/sandboxes/{made['id']}"
            other.request("PUT", path + "/files?path=/srv/www/index.html", b"hello from inside")
            other.request("PUT", path + "/files?path=/srv/web.py", WEB_SERVER)
            other.post(path + "/commands", {"command": "python3 /srv/web.py", "background": True})
            eventually(lambda: 8000 in [p["port"] for p in other.get(path + "/ports").json["ports"]])
            url = other.post(path + "/ports/8000/sign", {"path": "/*"}).json["url"]
            self.assertTrue(url.startswith(f"http://8000-{made['id']}.localhost:{other.port}/?"), url)
            host, target = url[len("http://"):].split("/", 1)
            self.assertEqual(other.get("/index.html?" + target[1:], key="", headers={"Host": host}).body, b"hello from inside")
            self.assertEqual(other.get("/index.html", key="", headers={"Host": host}).status, 403)
        finally:
            other.close()


if __name__ == "__main__":
    unittest.main()
