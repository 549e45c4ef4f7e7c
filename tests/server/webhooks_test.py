"""Webhooks: listeners outside are told what happens to sandboxes, signed, in order, also after kill -9."""
import base64
import hashlib
import http.server
import json
import signal
import threading
import unittest

from island import Server, eventually

WORDS = ["sandbox.lifecycle." + w for w in ("created", "updated", "paused", "resumed", "snapshotted", "killed")]
server = None


def setUpModule():
    global server
    server = Server("--webhook-again", "50ms")


def tearDownModule():
    server.close()


class Listener:
    """Somebody's server: keeps what it is told, and answers what `answers` says, then 200."""

    def __init__(self, port=0):
        self.told, self.answers, self.lock = [], [], threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.lock:
                    outer.told.append((dict(self.headers.items()), body))
                    status = outer.answers.pop(0) if outer.answers else 200
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def events(self):
        with self.lock:
            return [json.loads(body) for _, body in self.told]

    def wait(self, count):
        eventually(lambda: len(self.events()) >= count, what=f"{count} deliveries")
        return self.events()


class Webhooks(unittest.TestCase):
    def setUp(self):
        self.listener = Listener()

    def tearDown(self):
        for webhook in server.get("/events/webhooks").json:
            self.assertEqual(server.delete("/events/webhooks/" + webhook["id"]).status, 200)
        self.listener.close()

    def webhook(self, **fields):
        body = {"name": "mine", "url": f"http://127.0.0.1:{self.listener.port}/hook", "events": WORDS,
                "signatureSecret": "between us", **fields}
        made = server.post("/events/webhooks", body)
        self.assertEqual(made.status, 201, made)
        return made.json

    def cycle(self):
        box = server.create()["id"]
        self.assertEqual(server.delete("/v1/sandboxes/" + box).status, 204)
        return box

    def test_signed_and_in_order(self):
        webhook = self.webhook()
        self.assertNotIn("between us", json.dumps(server.get("/events/webhooks").json))
        box = server.create(metadata={"for": "webhooks"})["id"]
        self.assertEqual(server.post(f"/v1/sandboxes/{box}/pause").status, 200)
        self.assertEqual(server.post(f"/v1/sandboxes/{box}/resume").status, 200)
        self.assertEqual(server.delete("/v1/sandboxes/" + box).status, 204)
        events = self.listener.wait(4)
        self.assertEqual([e["type"].rsplit(".")[-1] for e in events], ["created", "paused", "resumed", "killed"])
        self.assertEqual([e["event_label"] for e in events], ["create", "pause", "resume", "kill"])
        self.assertEqual({e["sandbox_id"] for e in events}, {box})
        fields = {"version", "id", "type", "timestamp", "event_category", "event_label", "sandbox_id", "sandbox_execution_id",
                  "sandbox_template_id", "sandbox_build_id", "sandbox_team_id"}
        self.assertEqual([set(e) - {"event_data"} for e in events], [fields] * 4)
        self.assertEqual({(e["version"], e["event_category"], e["sandbox_template_id"], e["sandbox_team_id"]) for e in events},
                         {("v2", "lifecycle", "minimal", "default")})
        self.assertEqual(len({(e["sandbox_execution_id"], e["sandbox_build_id"]) for e in events}), 1)
        for event, stopped in zip(events, (False, True, False, True)):
            data = event.get("event_data", {})
            self.assertEqual(data["sandbox_metadata"], {"for": "webhooks"})
            self.assertEqual(set(data) - {"sandbox_metadata"}, {"execution"} if stopped else set())
            if stopped:
                self.assertEqual(set(data["execution"]), {"started_at", "vcpu_count", "memory_mb", "execution_time"})
        for headers, body in self.listener.told:
            expected = base64.b64encode(hashlib.sha256(b"between us" + body).digest()).decode().rstrip("=")
            self.assertEqual(headers["e2b-signature"], expected)
            self.assertEqual(headers["e2b-signature-version"], "v1")
            self.assertEqual(headers["e2b-webhook-id"], webhook["id"])
        self.assertEqual(len({h["e2b-delivery-id"] for h, _ in self.listener.told}), 4)

    def test_only_what_was_asked_for(self):
        self.webhook(events=["sandbox.lifecycle.killed"])
        first, second = self.cycle(), self.cycle()
        events = self.listener.wait(2)
        self.assertEqual([(e["type"], e["sandbox_id"]) for e in events],
                         [("sandbox.lifecycle.killed", first), ("sandbox.lifecycle.killed", second)])

    def test_a_try_that_fails_is_repeated(self):
        self.listener.answers = [500, 404]
        self.webhook(events=["sandbox.lifecycle.killed"])
        self.cycle()
        self.cycle()
        events = self.listener.wait(4)
        self.assertEqual(events[0], events[1])
        self.assertEqual(events[1], events[2])
        self.assertNotEqual(events[2]["id"], events[3]["id"])
        self.assertEqual(len({h["e2b-delivery-id"] for h, _ in self.listener.told}), 4)

    def test_one_that_stays_deaf_misses_that_one(self):
        self.listener.answers = [503] * 4
        self.webhook(events=["sandbox.lifecycle.killed"])
        first, second = self.cycle(), self.cycle()
        events = self.listener.wait(5)
        self.assertEqual([e["sandbox_id"] for e in events], [first] * 4 + [second])

    def test_nobody_is_followed(self):
        self.listener.answers = [307] * 4
        self.webhook(events=["sandbox.lifecycle.killed"])
        self.cycle()
        second = self.cycle()
        self.assertEqual(self.listener.wait(5)[-1]["sandbox_id"], second)

    def test_kill_9_forgets_nothing(self):
        port = self.listener.port
        self.listener.close()
        self.webhook(events=["sandbox.lifecycle.created", "sandbox.lifecycle.killed"])
        box = server.create()["id"]
        server.get("/v1/ledger")  # which waits until the birth is in the file
        server.stop(signal.SIGKILL)
        self.listener = Listener(port)
        server.start()
        self.assertEqual(server.delete("/v1/sandboxes/" + box).status, 204)
        told = lambda: {(e["type"].rsplit(".")[-1], e["sandbox_id"]) for e in self.listener.events()}
        eventually(lambda: ("killed", box) in told(), what="the end")
        self.assertIn(("created", box), told())

    def test_switched_off(self):
        webhook = self.webhook(events=["sandbox.lifecycle.killed"])
        path = "/events/webhooks/" + webhook["id"]
        self.assertFalse(server.request("PATCH", path, body={"enabled": False}).json["enabled"])
        missed = self.cycle()
        server.get("/v1/ledger")
        self.assertTrue(server.request("PATCH", path, body={"enabled": True, "name": "again"}).json["enabled"])
        self.assertEqual(server.get(path).json["name"], "again")
        heard = self.cycle()
        events = self.listener.wait(1)
        self.assertEqual([e["sandbox_id"] for e in events], [heard], missed)

    def test_a_tenants_does_not_lead_inside(self):
        project = server.post("/v1/projects", {"name": "tenant"})
        self.assertEqual(project.status, 201, project)
        key = server.post("/v1/keys", {"project": project.json["id"], "name": "k", "scope": "admin"}).json["secret"]
        body = {"name": "probe", "url": f"http://localhost:{self.listener.port}/", "events": WORDS, "signatureSecret": "s"}
        made = server.post("/events/webhooks", body, key=key)
        self.assertEqual(made.status, 201, made)
        self.assertEqual(server.get("/events/webhooks").json, [], "another project's")
        self.assertEqual(server.get("/events/webhooks/" + made.json["id"]).status, 404)
        box = server.post("/v1/sandboxes", {}, key=key)
        self.assertEqual(box.status, 201, box)
        self.assertEqual(server.delete("/v1/sandboxes/" + box.json["id"], key=key).status, 204)
        eventually(lambda: server.log().count(f"{made.json['id']} was not told of entry") >= 2, what="two refusals")
        self.assertEqual(self.listener.events(), [])
        self.assertEqual(server.delete("/events/webhooks/" + made.json["id"], key=key).status, 200)

    def test_bad_requests(self):
        good = {"name": "n", "url": "https://example.org/", "events": WORDS, "signatureSecret": "s"}
        for name, value in (("url", "ftp://example.org/"), ("url", "example"), ("url", "https://e/" + "x" * 3000),
                            ("events", []), ("events", ["sandbox.born"]), ("events", "x"), ("signatureSecret", ""),
                            ("name", 7), ("enabled", "yes"), ("name", None), ("url", None), ("events", None),
                            ("signatureSecret", None)):
            reply = server.post("/events/webhooks", {**good, name: value})
            self.assertEqual(reply.status, 400, (name, value, reply))
            self.assertIn(name, reply.json["message"])
        self.assertEqual(server.get("/events/webhooks").json, [])
        for method in ("GET", "PATCH", "DELETE"):
            body = {"name": "x"} if method == "PATCH" else None
            self.assertEqual(server.request(method, "/events/webhooks/wnothing", body=body).status, 404, method)
        self.assertEqual(server.get("/events/webhooks", key="wrong").status, 401)
        for _ in range(20):
            self.webhook(enabled=False)
        self.assertEqual(server.post("/events/webhooks", good).status, 429)


if __name__ == "__main__":
    unittest.main()
