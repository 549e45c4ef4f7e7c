"""What happens at the edges: states that forbid, keys that go, guests that fall silent, servers that die."""
import json
import os
import signal
import socket
import sqlite3
import threading
import time
import unittest

from island import Server, eventually
from wire import WebSocket

server = None


def setUpModule():
    global server
    server = Server("--sample", "300ms", "--domain", "isola.test")


def tearDownModule():
    server.close()


def state_of(where, sandbox):
    return where.get(f"/v1/sandboxes/{sandbox}").json


class States(unittest.TestCase):
    def conflict(self, reply, word):
        self.assertEqual((reply.status, reply.json["error"]["code"]), (409, "conflict"), reply)
        self.assertIn(word, reply.json["error"]["message"])

    def test_input_that_nobody_takes(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}/commands"
        deaf = server.post(path, {"command": "sleep 1000", "background": True}).json["id"]
        self.conflict(server.request("POST", f"{path}/{deaf}/stdin", "x"), "open_stdin")
        fed = server.post(path, {"command": "sleep 1000", "background": True, "stdin": "all"}).json["id"]
        self.conflict(server.request("POST", f"{path}/{fed}/stdin", "x"), "end of its input")
        heard = server.post(path, {"command": "cat; sleep 1000", "background": True, "open_stdin": True}).json["id"]
        self.assertEqual(server.request("POST", f"{path}/{heard}/stdin", "one").status, 204)
        self.assertEqual(server.request("POST", f"{path}/{heard}/stdin?eof=true", "two").status, 204)
        self.conflict(server.request("POST", f"{path}/{heard}/stdin", "three"), "end of its input")
        over = server.post(path, {"command": "true", "background": True, "open_stdin": True}).json["id"]
        eventually(lambda: not server.get(f"{path}/{over}").json["running"])
        self.conflict(server.request("POST", f"{path}/{over}/stdin", "x"), "has ended")
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_frozen_one(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}"
        server.post(path + "/freeze")
        self.conflict(server.post(path + "/freeze"), "running")
        self.conflict(server.post(path + "/commands", {"command": "true"}), "thaw")
        self.conflict(server.get(path + "/files?path=/etc/passwd"), "thaw")
        self.conflict(server.request("PUT", path + "/files?path=/tmp/x", b"x"), "thaw")
        self.conflict(server.get(path + "/commands"), "thaw")
        server.post(path + "/thaw")
        self.assertEqual(server.run(made["id"], "echo on")["stdout"], "on\n")
        server.delete(path)

    def test_commands_that_cannot_be_started(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}/commands"
        for argv, status, code in ((["no-such-program"], 404, "command_not_found"),
                                   (["/etc/passwd"], 403, "command_not_executable"),
                                   (["true", "y" * (3 << 20)], 400, "command_not_executable")):
            reply = server.post(path, {"argv": argv})
            self.assertEqual((reply.status, reply.json["error"]["code"]), (status, code))
        nowhere = server.post(path, {"argv": ["true"], "cwd": "/nowhere"})
        self.assertEqual((nowhere.status, nowhere.json["error"]["code"]), (400, "invalid"))
        server.delete(f"/v1/sandboxes/{made['id']}")
        late = server.post("/v1/run", {"command": "sleep 60", "timeout": 1})
        self.assertEqual((late.status, late.json["error"]["code"]), (504, "deadline"))

    def test_a_run_that_outlives_the_usual_lifetime(self):
        own = Server("--defaults-timeout", "1s")
        try:
            late = own.post("/v1/run", {"command": "sleep 60"})
            self.assertEqual((late.status, late.json["error"]["code"]), (504, "deadline"))
            self.assertNotIn("retry-after", late.headers)
        finally:
            own.close()

    def test_output_that_is_there(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}/commands"
        command = server.post(path, {"command": "echo one; sleep 1000", "background": True}).json["id"]
        lines = eventually(lambda: (l := list(server.lines("GET", f"{path}/{command}/output?follow=false"))) and len(l) == 3 and l)
        self.assertEqual([l["type"] for l in lines], ["start", "stdout", "caught_up"])
        following = server.lines("GET", f"{path}/{command}/output")
        self.assertEqual([next(following)["type"] for _ in range(3)], ["start", "stdout", "caught_up"])
        following.close()
        empty = list(server.lines("GET", f"{path}/{command}/output?from=now&follow=false"))
        self.assertEqual([l["type"] for l in empty], ["start", "caught_up"])
        server.delete(f"/v1/sandboxes/{made['id']}")


class Records(unittest.TestCase):
    def test_files_that_move_and_go(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}/files"
        server.request("PUT", path + "?path=/tmp/a", b"x")
        self.assertEqual(server.post(path + "/move", {"from": "/tmp/a", "to": "/tmp/b"}).status, 204)
        self.assertEqual(server.delete(path + "?path=/tmp/b").status, 204)
        events = server.get(f"/v1/ledger?sandbox={made['id']}&kind=file.").json["events"]
        self.assertEqual([(e["kind"], e["data"].get("path") or e["data"]["to"]) for e in events],
                         [("file.written", "/tmp/a"), ("file.moved", "/tmp/b"), ("file.removed", "/tmp/b")])
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_signed_urls_carry_the_port(self):
        made = server.create()
        signed = server.post(f"/v1/sandboxes/{made['id']}/ports/8000/sign", {}).json
        self.assertTrue(signed["url"].startswith(f"http://8000-{made['id']}.isola.test:{server.port}/?"), signed["url"])
        server.delete(f"/v1/sandboxes/{made['id']}")


class RevokedKeys(unittest.TestCase):
    def test_the_last_that_can_make_others_stays(self):
        first = next(key for key in server.get("/v1/keys").json["keys"] if key["name"] == "first")
        last = server.delete("/v1/keys/" + first["id"])
        self.assertEqual(last.status, 409, last)
        self.assertIn("make another", last.json["error"]["message"])
        self.assertEqual(server.get("/v1/keys").status, 200)

    def test_what_they_read_ends(self):
        made = server.create()
        server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "sleep 1000", "background": True})
        command = server.get(f"/v1/sandboxes/{made['id']}/commands").json["commands"][0]["id"]
        key = server.post("/v1/keys", {"scope": "admin"}).json
        # The name of a request is the caller's word: it shields none that has the revoker's.
        headers = {"Authorization": "Bearer " + key["secret"], "X-Request-Id": "the-same"}

        def stream(target):
            connection = server.connection()
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            answer.readline()
            return connection, answer.fp

        sandbox = f"/v1/sandboxes/{made['id']}"
        open_ones = [stream(target) for target in ("/v1/events", f"{sandbox}/events", f"{sandbox}/commands/{command}/output",
                                                   f"{sandbox}/files/watch?path=/tmp")]
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        terminal = WebSocket(plain, "localhost", f"{sandbox}/terminal", headers)
        self.assertIn("x-isola-untrusted", terminal.headers)
        self.assertEqual(terminal.headers["x-request-id"], "the-same")
        self.assertEqual(terminal.json()["type"], "start")
        kept = server.events("/v1/events")
        told = []
        listener = threading.Thread(target=lambda: told.append(next(kept)), daemon=True)
        listener.start()
        began = time.monotonic()
        # With the key itself: this call has its answer all the same.
        self.assertEqual(server.delete(f"/v1/keys/{key['id']}", key="", headers=headers).status, 204)
        for connection, body in open_ones:
            try:
                while body.readline():
                    pass
            except OSError:
                pass
        try:
            while terminal.read():
                pass
        except OSError:
            pass
        self.assertLess(time.monotonic() - began, 5)  # it is at once; the margin is for busy machines
        self.assertEqual(server.get("/v1/sandboxes", key=key["secret"]).status, 401)
        eventually(lambda: server.run(made["id"], "true") and told, what="an event for the key that stays")
        server.delete(sandbox)


class Answers(unittest.TestCase):
    """What a reply is, where it is easily something else."""

    def test_the_head_of_a_stream_ends(self):
        made = server.create()
        for path in ("/v1/events", f"/v1/sandboxes/{made['id']}/files/watch?path=/tmp"):
            with socket.create_connection(("127.0.0.1", server.port), 30) as line:
                head = f"HEAD {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.key}\r\n\r\n"
                line.sendall(head.encode())
                # The connection is good for the next one, which a stream that goes on would not let through.
                line.sendall(head.replace(path, "/healthz").replace("HEAD", "GET").encode())
                said = b""
                while b"ok" not in said.split(b"\r\n\r\n")[-1]:
                    piece = line.recv(4096)
                    self.assertTrue(piece, said)
                    said += piece
                self.assertEqual(said.count(b"HTTP/1.1 200"), 2, said)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_bad_handshake_starts_no_shell(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}/terminal"
        for headers in ({}, {"Sec-WebSocket-Version": "8", "Sec-WebSocket-Key": "x"}, {"Sec-WebSocket-Version": "13"}):
            reply = server.get(path, headers={"Connection": "Upgrade", "Upgrade": "websocket", **headers})
            self.assertEqual(reply.status, 400, reply)
        self.assertEqual(server.get(f"/v1/sandboxes/{made['id']}/commands").json["commands"], [])
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_reading_wakes_nobody(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}"
        command = server.run(made["id"], "true")["command_id"]
        reader = server.post("/v1/keys", {"scope": "read"}).json["secret"]
        self.assertEqual(server.get(path + "/ports", key=reader).json["ports"], [], "the gate's are nobody's")
        self.assertEqual(server.post(path + "/pause", {"memory": False}).status, 200)
        self.assertEqual([c["id"] for c in server.get(path + "/commands", key=reader).json["commands"]], [command])
        self.assertEqual(server.get(f"{path}/commands/{command}", key=reader).status, 200)
        self.assertEqual(server.get(f"{path}/commands/c000000000000", key=reader).status, 404)
        self.assertEqual(server.get(path + "/ports", key=reader).status, 409)
        self.assertEqual(server.get(path).json["state"], "stopped")
        self.assertEqual(server.post(path + "/resume").status, 200)
        self.assertEqual(server.post(path + "/freeze").status, 200)
        self.assertEqual(server.get(path + "/commands", key=reader).status, 200)
        self.assertEqual(server.get(path + "/ports", key=reader).status, 409)
        self.assertEqual(server.get(path).json["state"], "frozen")
        for verb in ("freeze", "thaw"):
            self.assertEqual(server.post(f"{path}/{verb}", {"gently": True}).status, 400)
        self.assertEqual(server.get(path + "/files/tar?path=/&form=x").status, 400)
        server.delete(path)

    def test_the_operator_sees_other_projects(self):
        project = server.post("/v1/projects", {"name": "seen"}).json["id"]
        key = server.post("/v1/keys", {"project": project, "scope": "admin"}).json["secret"]
        made = server.post("/v1/sandboxes", {}, key=key).json["id"]
        server.delete(f"/v1/sandboxes/{made}", key=key)
        for project_word in (project, "*"):
            events = server.get(f"/v1/ledger?project={project_word}&sandbox={made}").json["events"]
            self.assertEqual(events[0]["kind"], "sandbox.created")
            groups = [one["group"] for one in server.get(f"/v1/usage?project={project_word}&by=project").json["usage"]]
            self.assertIn(project, groups)
        self.assertEqual(server.get(f"/v1/ledger?sandbox={made}").json["events"], [])
        for path in ("/v1/ledger?project=default", "/v1/usage?project=*"):
            self.assertEqual(server.get(path, key=key).status, 403)

    def test_logs_hold_no_keys(self):
        server.delete("/v1/keys/" + server.key)
        server.get("/healthz", headers={"X-Request-Id": server.key})
        eventually(lambda: "/v1/keys/e2b_***" in server.log(), what="the line of that request")
        self.assertNotIn(server.key, server.log())


class SilentGuests(unittest.TestCase):
    """A patience that a busy machine does not try by itself."""

    @classmethod
    def setUpClass(cls):
        cls.own = Server("--patience", "3s")

    @classmethod
    def tearDownClass(cls):
        cls.own.close()

    def test_who_waits_for_a_frozen_one_waits_on(self):
        made = self.own.create()
        seen = []
        waiting = threading.Thread(target=lambda: seen.append(self.own.run(made["id"], "sleep 1; echo late")))
        waiting.start()
        eventually(lambda: self.own.get(f"/v1/sandboxes/{made['id']}/commands").json["commands"])
        self.own.post(f"/v1/sandboxes/{made['id']}/freeze")
        time.sleep(8)  # longer than twice the patience with a guest that is not frozen
        self.own.post(f"/v1/sandboxes/{made['id']}/thaw")
        waiting.join(30)
        self.assertEqual(seen[0]["stdout"], "late\n")
        self.own.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_quiet_command_is_not_a_silent_guest(self):
        own = Server("--patience", "1s")
        try:
            made = own.create()
            self.assertEqual(own.run(made["id"], "sleep 12; echo done")["stdout"], "done\n")
        finally:
            own.close()

    def test_nobody_waits_for_ever(self):
        made = self.own.create()
        with open(os.path.join(self.own.data, "run", made["id"])) as file:
            guest = int(file.read().split()[4])
        path = f"/v1/sandboxes/{made['id']}"
        seen = []
        running = threading.Thread(target=lambda: seen.append(self.own.post(path + "/commands", {"command": "sleep 1000"})))
        running.start()
        eventually(lambda: self.own.get(path + "/commands").json["commands"])
        os.kill(guest, signal.SIGSTOP)
        try:
            for reply in (self.own.post(path + "/commands", {"command": "true"}), self.own.get(path + "/files?path=/etc/passwd")):
                self.assertIn(reply.status, (503, 504), reply)
            running.join(30)
            self.assertEqual((seen[0].status, seen[0].json["error"]["code"]), (504, "timeout"))
        finally:
            os.kill(guest, signal.SIGCONT)
        back = eventually(lambda: (r := self.own.post(path + "/commands", {"command": "echo back"})).status == 200 and r)
        self.assertEqual(back.json["stdout"], "back\n")
        self.own.delete(path)


# Answers before it has the whole request, and once more when it has it.
DUPLEX = rb"""
import socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 8000))
listener.listen(8)
while True:
    peer, _ = listener.accept()
    data = b""
    while b"first" not in data:
        data += peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nheard the first\n")
    while b"second" not in data:
        data += peer.recv(65536)
    peer.sendall(b"and the second\n")
    peer.close()
"""


class Proxy(unittest.TestCase):
    def test_both_ways_at_once(self):
        made = server.create()
        server.request("PUT", f"/v1/sandboxes/{made['id']}/files?path=/srv/duplex.py", DUPLEX)
        server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "python3 /srv/duplex.py", "background": True})
        eventually(lambda: 8000 in [p["port"] for p in server.get(f"/v1/sandboxes/{made['id']}/ports").json["ports"]])
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        plain.sendall(f"POST /v1/sandboxes/{made['id']}/ports/8000/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                      f"{server.key}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n".encode())
        reply = b""
        while b"heard the first" not in reply:
            piece = plain.recv(65536)
            self.assertTrue(piece, reply)
            reply += piece
        plain.sendall(b"6\r\nsecond\r\n0\r\n\r\n")
        while b"0\r\n\r\n" not in reply:
            piece = plain.recv(65536)
            self.assertTrue(piece, reply)
            reply += piece
        self.assertIn(b"and the second", reply)
        plain.close()
        server.delete(f"/v1/sandboxes/{made['id']}")


class ManyCommands(unittest.TestCase):
    def test_more_than_there_are_watchers(self):
        """Each end is recorded, and its owner's calls find a channel all the while."""
        made = server.create(pids=1024, memory="512M")
        path = f"/v1/sandboxes/{made['id']}/commands"
        connection = server.connection()
        ids = [server.post(path, {"argv": ["sleep", "1000"], "background": True}, connection=connection).json["id"]
               for _ in range(320)]
        self.assertEqual(server.run(made["id"], "echo here")["stdout"], "here\n")
        sandbox = f"/v1/sandboxes/{made['id']}"
        self.assertEqual(server.post(sandbox + "/freeze").status, 200)
        time.sleep(2)
        self.assertEqual(server.post(sandbox + "/thaw").status, 200)
        server.run(made["id"], "pkill sleep")
        def ended():
            found = []
            after = 0
            while after is not None:
                page = server.get(f"/v1/ledger?sandbox={made['id']}&kind=command.ended&limit=1000&after={after}").json
                found += [e["data"]["command_id"] for e in page["events"]]
                after = page["next"]
            return found
        eventually(lambda: set(ids) <= set(ended()), what="the end of each")
        self.assertEqual(len(ended()), len(set(ended())), "each once")
        server.delete(f"/v1/sandboxes/{made['id']}")


class Deaths(unittest.TestCase):
    def setUp(self):
        self.own = Server("--sample", "300ms")

    def tearDown(self):
        self.own.close()

    def test_a_one_shot_run_does_not_outlive_its_server(self):
        connection = self.own.connection()
        connection.request("POST", "/v1/run", json.dumps({"command": "sleep 1000", "timeout": 0}),
                           {"Authorization": "Bearer " + self.own.key})
        one = eventually(lambda: self.own.get("/v1/sandboxes?state=running").json["sandboxes"])[0]
        kept = self.own.create()
        self.own.stop(signal.SIGKILL)
        connection.close()
        self.own.start()
        over = eventually(lambda: (r := state_of(self.own, one["id"]))["state"] == "ended" and r)
        self.assertEqual(over["end_reason"], "host-restart")
        self.assertIn("its server was restarted", over["end_detail"])
        self.assertEqual(state_of(self.own, kept["id"])["state"], "running")

    def test_a_one_shot_run_that_sleeps_is_not_kept(self):
        """Earlier versions let one be paused at its end; nobody would ever wake it."""
        made, other = self.own.create(), self.own.create()
        for one in (made, other):
            self.assertEqual(self.own.post(f"/v1/sandboxes/{one['id']}/pause", {"memory": False}).status, 200)
        self.own.stop()
        with sqlite3.connect(os.path.join(self.own.data, "server/store.db")) as store:
            store.execute("UPDATE sandboxes SET one_shot = 1 WHERE id = ?", (made["id"],))
        store.close()
        self.own.start()
        over = eventually(lambda: (r := state_of(self.own, made["id"]))["state"] == "ended" and r)
        self.assertEqual(over["end_reason"], "host-restart")
        self.assertEqual(state_of(self.own, other["id"])["state"], "stopped")

    def test_why_it_ends_survives(self):
        made = self.own.create(timeout=1)
        launcher = self.own.launcher_pid()
        os.kill(launcher, signal.SIGSTOP)
        try:
            eventually(lambda: state_of(self.own, made["id"])["state"] == "ending", what="the beginning of the end")
            self.own.stop(signal.SIGKILL)
        finally:
            os.kill(launcher, signal.SIGCONT)
        self.own.start()
        over = eventually(lambda: (r := state_of(self.own, made["id"]))["state"] == "ended" and r)
        self.assertEqual((over["end_reason"], over["end_detail"]), ("deadline", "its time was up"))


if __name__ == "__main__":
    unittest.main()
