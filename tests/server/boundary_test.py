"""Boundaries over real HTTP: what a server has, what a caller can demand, what a project can insist on."""
import os
import re
import signal
import unittest

from island import Server, eventually

server = None
offers = {}


def setUpModule():
    global server, offers
    server = Server()
    offers = {one["boundary"]: one for one in server.get("/v1/info").json["boundaries"]}


def tearDownModule():
    server.close()


class Boundaries(unittest.TestCase):
    def test_the_server_says_what_it_has_and_what_is_missing(self):
        self.assertEqual(list(offers), ["jail", "gvisor", "uml", "microvm"])
        self.assertTrue(offers["jail"]["offered"])
        for one in offers.values():
            if one["offered"]:
                self.assertTrue(one["engine"] and one["engine_version"], one)
            else:
                self.assertTrue(one["missing"], one)

    def test_every_sandbox_says_what_it_has(self):
        made = server.create()
        self.assertEqual((made["boundary"], made["engine"], made["shared_kernel"]), ("jail", "linux", True))
        again = server.get("/v1/sandboxes/" + made["id"]).json
        self.assertEqual([again[word] for word in ("engine", "engine_version", "accelerated")],
                         [made[word] for word in ("engine", "engine_version", "accelerated")])
        server.delete("/v1/sandboxes/" + made["id"])

    def test_gvisor(self):
        self.whole("gvisor", "runsc")

    def test_uml(self):
        self.whole("uml", "user-mode-linux")

    def test_microvm(self):
        self.whole("microvm", "qemu")

    def whole(self, boundary, engine):
        if not offers[boundary]["offered"]:
            self.skipTest("boundary " + boundary + ": " + offers[boundary]["missing"])
        strongest = [name for name, one in offers.items() if one["offered"]][-1] == boundary
        for demand in (boundary, "strongest") if strongest else (boundary,):
            made = server.create(boundary=demand)
            box = "/v1/sandboxes/" + made["id"]
            self.assertEqual((made["boundary"], made["engine"], made["shared_kernel"]), (boundary, engine, False))
            self.assertEqual(server.run(made["id"], "echo $((6 * 7))")["stdout"], "42\n")
            put = server.request("PUT", box + "/files?path=/tmp/x", b"content")
            self.assertLess(put.status, 300, put)
            self.assertEqual(server.get(box + "/files?path=/tmp/x").body, b"content")
            if boundary == "uml":
                paused = server.post(box + "/pause")
                self.assertEqual(paused.status, 501, paused)
                self.assertIn(boundary, paused.json["error"]["message"])
                self.assertEqual(server.run(made["id"], "echo still there")["stdout"], "still there\n")
            self.assertLess(server.delete(box).status, 300)

    @staticmethod
    def kill_launcher():
        os.kill(server.launcher_pid(), signal.SIGKILL)

    def answered(self, ask):
        """The server starts another launcher by itself, and says 503 (or 502) until it is there."""
        last = None

        def good():
            nonlocal last
            last = ask()
            return last.status < 300
        eventually(good, what="an answer")
        self.assertLess(last.status, 300, last)
        return last

    def test_gvisor_keeps_memory_or_says_why_not(self):
        if not offers["gvisor"]["offered"]:
            self.skipTest("boundary gvisor: " + offers["gvisor"]["missing"])
        day = re.search(r"20\d{6}", offers["gvisor"]["engine_version"])
        if not day or int(day.group()) >= 20240729:
            self.keeps_memory("gvisor", "runsc")
            return
        made = server.create(boundary="gvisor")
        box = "/v1/sandboxes/" + made["id"]
        paused = server.post(box + "/pause")
        self.assertEqual(paused.status, 501, paused)
        self.assertIn("runsc", paused.json["error"]["message"])
        self.assertEqual(server.run(made["id"], "echo lives")["stdout"], "lives\n")
        self.assertLess(server.delete(box).status, 300)
        self.skipTest("memory with the boundary gvisor: " + paused.json["error"]["message"])

    def keeps_memory(self, boundary, engine):
        made = server.create(boundary=boundary)
        box = "/v1/sandboxes/" + made["id"]
        server.run(made["id"], "sleep 100000 & echo $! >/root/pid")
        lives = "kill -0 $(cat /root/pid) && echo lives"
        paused = server.post(box + "/pause")
        self.assertLess(paused.status, 300, paused)
        self.assertEqual(server.get(box).json["state"], "paused")
        self.kill_launcher()
        self.answered(lambda: server.post(box + "/resume"))
        self.assertEqual(server.run(made["id"], lives)["stdout"], "lives\n")
        self.kill_launcher()
        # Its guest answers whether there is a launcher or not; a fork needs one.
        self.answered(lambda: server.post(box + "/commands", {"command": "true"}))
        forked = self.answered(lambda: server.post(box + "/fork", {"count": 2}))
        for one in forked.json["sandboxes"]:
            self.assertEqual((one["boundary"], one["engine"]), (boundary, engine))
            self.assertEqual(server.run(one["id"], lives + "; echo " + one["id"] + " >/root/me")["stdout"], "lives\n")
            server.delete("/v1/sandboxes/" + one["id"])
        self.assertEqual(server.run(made["id"], lives + "; test -e /root/me || echo apart")["stdout"], "lives\napart\n")
        self.assertLess(server.delete(box).status, 300)

    def test_a_project_can_insist(self):
        project = server.post("/v1/projects", {"name": "careful", "limits": {"boundary": "gvisor"}}).json
        self.assertEqual(project["limits"], {"boundary": "gvisor"})
        more = server.request("PATCH", "/v1/projects/" + project["id"], {"limits": {"live_sandboxes": 7}}).json
        self.assertEqual(more["limits"], {"boundary": "gvisor", "live_sandboxes": 7}, "what is not named stays")
        key = server.post("/v1/keys", {"project": project["id"]}).json["secret"]
        weaker = server.post("/v1/sandboxes", {"boundary": "jail"}, key=key)
        self.assertEqual(weaker.status, 403, weaker)
        self.assertIn("gvisor", weaker.json["error"]["message"])
        made = server.post("/v1/sandboxes", {}, key=key)
        if offers["gvisor"]["offered"]:
            self.assertEqual((made.status, made.json.get("boundary")), (201, "gvisor"), made)
            server.delete("/v1/sandboxes/" + made.json["id"], key=key)
        else:
            self.assertEqual(made.status, 501, made)

    def test_what_is_missing_is_said(self):
        other = Server(env={"ISOLA_RUNSC": "none"})
        try:
            refused = other.post("/v1/sandboxes", {"boundary": "gvisor"})
            self.assertEqual(refused.status, 501, refused)
            self.assertIn("runsc is not installed", refused.json["error"]["message"])
        finally:
            other.close()


if __name__ == "__main__":
    unittest.main()
