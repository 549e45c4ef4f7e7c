"""Who may call, and what: keys, projects, bodies and heads that are refused."""
import json
import re
import unittest

from island import Server, contract

server = None


def setUpModule():
    global server
    server = Server(env={"ISOLA_MICROVM": "none"})  # one boundary is missing for certain


def tearDownModule():
    server.close()


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
        slow = server.request("PATCH", f"/v1/projects/{project['id']}", {"limits": {"creates_per_second": 0.05, "live_sandboxes": 0}})
        self.assertEqual(slow.json["limits"], {"creates_per_second": 0.05}, slow)
        self.assertEqual(server.post("/v1/sandboxes", {}, key=key).status, 201)
        for path, body in (("/v1/sandboxes", {}), ("/v1/run", {"command": "true"})):
            early = server.post(path, body, key=key)
            self.assertEqual((early.status, early.json["error"]["code"]), (429, "exhausted"))
            self.assertIn("a second", early.json["error"]["message"])
            self.assertIn(int(early.headers["retry-after"]), range(10, 21), "one in twenty seconds")
        for sandbox in server.get("/v1/sandboxes?state=running", key=key).json["sandboxes"]:
            server.delete(f"/v1/sandboxes/{sandbox['id']}", key=key)
        server.delete(f"/v1/sandboxes/{mine['id']}")


    def test_each_limit_of_a_project(self):
        small = {"cpus": 1, "memory": "128M", "disk": "256M"}
        for limit, word in (({"cpus": 1.5}, "CPUs"), ({"memory": 200 << 20}, "memory"), ({"disk": 300 << 20}, "disk")):
            project = server.post("/v1/projects", {"name": "with-" + word, "limits": limit}).json
            key = server.post("/v1/keys", {"project": project["id"]}).json["secret"]
            first = server.post("/v1/sandboxes", small, key=key)
            self.assertEqual(first.status, 201, first)
            for path, body in (("/v1/sandboxes", small), ("/v1/run", {"command": "true", **small})):
                over = server.post(path, body, key=key)
                self.assertEqual((over.status, over.json["error"]["code"]), (429, "exhausted"), word)
                self.assertIn(word, over.json["error"]["message"])
                self.assertIn("retry-after", over.headers)
            self.assertEqual(len(server.get("/v1/sandboxes", key=key).json["sandboxes"]), 1, "nothing is half-created")
            self.assertEqual(server.delete(f"/v1/sandboxes/{first.json['id']}", key=key).status, 204)
            again = server.post("/v1/sandboxes", small, key=key)
            self.assertEqual(again.status, 201, "what has ended makes room")
            server.delete(f"/v1/sandboxes/{again.json['id']}", key=key)


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
        self.refused(server.post("/v1/sandboxes", {"boundary": "microvm"}), "microvm", status=501)
        self.refused(server.post("/v1/sandboxes", {"boundary": "moat"}), "boundary")
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


if __name__ == "__main__":
    unittest.main()
