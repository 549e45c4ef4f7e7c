"""Sandboxes and commands over real HTTP."""
import base64
import json
import socket
import threading
import unittest
import zlib

from island import Server, eventually, quote

server = None


def setUpModule():
    global server
    server = Server("--sample", "300ms", "--domain", "isola.test")


def tearDownModule():
    server.close()


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
        for path in ("", "/commands", "/files?path=/", "/ports"):
            gone = server.get("/v1/sandboxes/walrus" + path)
            self.assertEqual(gone.status, 404)
            for word in ("walrus", made["id"], "killed"):
                self.assertIn(word, gone.json["error"]["message"])
        never = server.get("/v1/sandboxes/seal").json["error"]["message"]
        self.assertEqual(never, 'there is no sandbox "seal"')
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
        large = server.post("/v1/sandboxes", {"on_resume": ["#" * 60000] * 3})
        self.assertEqual((large.status, large.json["error"]["code"]), (400, "invalid"))
        self.assertIn("128 KiB", large.json["error"]["message"])
        failed = server.post("/v1/sandboxes", {"on_create": ["echo oh $((6 * 7)) >&2; exit 4"]})
        self.assertEqual(failed.status, 400)
        self.assertIn("ended with 4, and said\n\"oh 42", failed.json["error"]["message"])
        self.assertEqual(failed.headers["x-isola-untrusted"], "data")
        self.assertNotIn("x-isola-untrusted", large.headers)
        # Whoever asked is told what it said; no record keeps that.
        ended = server.get("/v1/ledger?kind=sandbox.ended&limit=1000").body.decode()
        self.assertIn("ended with 4", ended)
        self.assertNotIn("oh 42", ended)
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
        for action in ("pause", "stop"):
            kept = server.post("/v1/run", {"command": "true", "at_end": action})
            self.assertEqual((kept.status, kept.json["error"]["code"]), (400, "invalid"), kept)
            self.assertIn("at_end", kept.json["error"]["message"])


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

    def test_a_packed_stream_comes_as_it_happens(self):
        made = server.post(self.path, {"argv": ["cat"], "background": True, "open_stdin": True}).json
        one = f"{self.path}/{made['id']}"
        connection = server.connection()
        connection.request("GET", one + "/output", headers={"Authorization": "Bearer " + server.key, "Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        self.assertEqual(answer.getheader("Content-Encoding"), "gzip")
        unpack, text = zlib.decompressobj(31), ""
        for word in ("one", "two", "three"):  # each is only written when the one before was read
            self.assertEqual(server.request("POST", one + "/stdin", word).status, 204)
            while f'"{word}"' not in text:
                piece = answer.read1(65536)
                self.assertTrue(piece, text)
                text += unpack.decompress(piece).decode()
        server.request("POST", one + "/stdin?eof=true", b"")
        while piece := answer.read1(65536):
            text += unpack.decompress(piece).decode()
        self.assertTrue(unpack.eof)
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual((lines[0]["type"], lines[-1]["type"]), ("start", "exit"))
        self.assertEqual(lines[0]["sandbox"], self.id)
        connection.close()

    def test_a_large_answer_is_packed_for_those_who_ask(self):
        ask = {"command": "seq 400000", "max_output": "8M"}
        plain = server.post(self.path, ask)
        packed = server.post(self.path, ask, headers={"Accept-Encoding": "gzip"}, check=False)
        self.assertEqual(packed.headers["content-encoding"], "gzip")
        self.assertLess(len(packed.body), len(plain.body) / 2)
        self.assertGreater(len(plain.body), 2 << 20)
        self.assertEqual(json.loads(zlib.decompress(packed.body, 31))["stdout"], plain.json["stdout"])

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

    def test_a_slow_reader_can_hold_its_command(self):
        # More than guest, server and sockets have room for.
        def flood(**more):
            lines = server.lines("POST", self.path, {"command": "head -c 60000000 /dev/zero | tr '\\0' x", "stream": True, **more})
            return next(lines)["command_id"], lines

        def is_over(command):
            return not server.get(f"{self.path}/{command}").json["running"]

        def is_recorded(command):
            events = server.get(f"/v1/ledger?sandbox={self.id}&kind=command.ended&limit=1000").json["events"]
            return command in [event["data"]["command_id"] for event in events]

        held_command, held = flood(wait_for_reader=True)
        # The same without: it is over although nobody reads, and something is lost. Whoever asks is told so, and the ledger
        # has it though nobody asks.
        free_command, free = flood()
        eventually(lambda: is_over(free_command), seconds=60)
        unasked, unread = flood()
        eventually(lambda: is_recorded(unasked), seconds=60)
        unread.close()
        self.assertFalse(is_over(held_command))
        self.assertTrue(any(event["type"] == "gap" for event in free))
        kinds, size = set(), 0
        for event in held:
            kinds.add(event["type"])
            size += len(event.get("data", ""))
        self.assertEqual((size, kinds - {"ping"}), (60000000, {"stdout", "exit"}))
        for odd in ({"background": True}, {"secret_files": {"A": "b"}}):
            refused = server.post(self.path, {"command": "true", "wait_for_reader": True, **odd})
            self.assertEqual((refused.status, "wait_for_reader" in refused.json["error"]["message"]), (400, True))

    def test_input_that_nobody_reads_keeps_nobody(self):
        made = server.create(idle_timeout=2)["id"]
        path = f"/v1/sandboxes/{made}/commands"
        deaf = server.post(path, {"command": "sleep 3600", "background": True, "open_stdin": True}).json["id"]
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as caller:
            caller.sendall(f"POST {path}/{deaf}/stdin HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
                           f"Content-Length: {1 << 30}\r\n\r\n".encode() + b"x" * (1 << 20))
        eventually(lambda: server.get(f"/v1/sandboxes/{made}").json["state"] == "ended", seconds=60, what="its idle end")
        self.assertEqual(server.get(f"/v1/sandboxes/{made}").json["end_reason"], "idle")

    def test_input_for_a_command_that_ends_before_it_reads_it(self):
        # Its output is more than whoever sends the input has room for, and somebody else has its input open.
        command = server.post(self.path, {"command": "exec 3<&0; sleep 3600 <&3 >/dev/null 2>&1 & read -r; head -c 4000000 /dev/zero", "background": True,
                                          "open_stdin": True}).json["id"]
        sent = server.request("POST", f"{self.path}/{command}/stdin", b"go\n" + b"x" * (8 << 20))
        self.assertEqual(sent.status, 204, sent)
        self.assertFalse(server.get(f"{self.path}/{command}").json["running"])

    def test_who_comes_later_can_hold_it_too(self):
        command = server.post(self.path, {"command": "read -r; head -c 60000000 /dev/zero | tr '\\0' x", "background": True,
                                          "open_stdin": True}).json["id"]
        reader = server.lines("GET", f"{self.path}/{command}/output?wait_for_reader=true")
        next(reader)
        self.assertEqual(server.request("POST", f"{self.path}/{command}/stdin", b"go\n").status, 204)
        kinds, size = set(), 0
        for event in reader:
            kinds.add(event["type"])
            size += len(event.get("data", ""))
        self.assertEqual(size, 60000000)
        self.assertNotIn("gap", kinds)

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


if __name__ == "__main__":
    unittest.main()
