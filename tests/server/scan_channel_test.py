"""What leaves a sandbox with bindings is searched for their values, on every road, however it is written and cut."""
import base64
import html
import io
import json
import os
import re
import secrets
import signal
import socket
import struct
import tarfile
import threading
import unittest
import urllib.parse

from island import Server, built, eventually, quote
from vault_test import children_named
from wire import WebSocket

POLICY = "allow api.example.org:443"
server = None


def setUpModule():
    global server
    server = Server("--scan-patience", "60s")


def tearDownModule():
    server.close()


def fresh_value():
    """With something in it for each way of escaping."""
    return f"K/{secrets.token_hex(8)}+\"{secrets.token_hex(8)}&<{secrets.token_hex(4)}"


def spellings(value):
    """name → (text as a program would write it, the part of it that must not be seen)."""
    raw = value.encode()
    out = {"raw": (value, value), "hex": (raw.hex(), raw.hex()), "HEX": (raw.hex().upper(), raw.hex().upper()),
           "url": (urllib.parse.quote(value, safe=""),) * 2, "json": (json.dumps(value)[1:-1],) * 2,
           "html": (html.escape(value),) * 2}
    for shift in range(3):
        for name, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
            text = encode(b"x" * shift + raw + b"zz").decode()
            first = -(-shift * 8 // 6)
            last = (shift + len(raw)) * 8 // 6
            out[f"{name} {shift}"] = (text, text[first:last])
    return out


def everything(value):
    return "".join(f"[{name}] {text}\n" for name, (text, _) in spellings(value).items())


class Base(unittest.TestCase):
    def box(self, bind=True, network=POLICY, **more):
        made = server.create(network=network, timeout=600, **more)
        self.addCleanup(lambda: server.delete(f"/v1/sandboxes/{made['id']}"))
        self.value = fresh_value()
        if bind:
            self.binding = self.bind(made["id"], self.value)
        return made["id"]

    def bind(self, box, value, **more):
        self.secret = "s" + secrets.token_hex(6)
        reply = server.post("/v1/secrets", {"name": self.secret, "value": value})
        self.assertEqual(reply.status, 201, reply)
        reply = server.post(f"/v1/sandboxes/{box}/bindings", {"secret": self.secret, "names": ["api.example.org"], **more})
        self.assertEqual(reply.status, 201, reply)
        return reply.json["id"]

    def put(self, box, path, text):
        data = text if isinstance(text, bytes) else text.encode()
        reply = server.request("PUT", f"/v1/sandboxes/{box}/files?path={quote(path)}", data)
        self.assertIn(reply.status, (200, 201, 204), reply)

    def clean(self, got, value=None, size=None):
        """Nothing of the value, as many bytes as there were, and the rest as it was."""
        text = got.decode() if isinstance(got, bytes) else got
        for name, (_, core) in spellings(value or self.value).items():
            self.assertIn(f"[{name}]", text)
            self.assertNotIn(core, text, name)
        self.assertEqual(text.count("*") > 100, True, text)
        if size is not None:
            self.assertEqual(len(text), size)

    def hits(self, box, **wanted):
        def look():
            entries = server.get(f"/v1/ledger?sandbox={box}&kind=scan.hit&limit=1000").json["events"]
            return [one for one in entries if all(one["data"].get(k) == v for k, v in wanted.items())]
        found = eventually(look, what=f"a scan.hit with {wanted}")
        for one in found:
            self.assertNotIn(self.value, json.dumps(one))
        return found


class Roads(Base):
    def test_waited_and_streamed_and_replayed(self):
        box = self.box()
        text = everything(self.value)
        self.put(box, "/tmp/all", text)
        done = server.run(box, "cat /tmp/all; cat /tmp/all >&2")
        self.clean(done["stdout"], size=len(text))
        self.clean(done["stderr"], size=len(text))
        out, last = {"stdout": "", "stderr": ""}, 0
        for line in server.lines("POST", f"/v1/sandboxes/{box}/commands",
                                 {"command": "cat /tmp/all; cat /tmp/all >&2; exit 3", "stream": True}):
            if line["type"] == "start":
                command = line["command_id"]
            if line["type"] in out:
                out[line["type"]] += line["data"]
                self.assertGreater(line["seq"], last)  # in the order in which it can be asked for again
                last = line["seq"]
            if line["type"] == "exit":
                self.assertEqual((line["exit_code"], line["seq"]), (3, 2 * len(text)))
        self.clean(out["stdout"], size=len(text))
        self.clean(out["stderr"], size=len(text))
        again = {"stdout": "", "stderr": ""}
        for line in server.lines("GET", f"/v1/sandboxes/{box}/commands/{command}/output"):
            if line["type"] in again:
                again[line["type"]] += line["data"]
        self.assertEqual(again, out)
        found = self.hits(box, where="stdout", secret=self.secret)
        self.assertEqual(found[0]["data"]["binding"], self.binding)
        self.assertIn(command, [one["data"].get("command_id") for one in found])
        self.hits(box, where="stderr")

    def test_split_at_every_place(self):
        box = self.box()
        program = """
import os, sys
value = open('/tmp/value').read()
for cut in range(1, len(value)):
    os.write(1, value[:cut].encode())
    os.write(2, b'.')
    os.write(1, value[cut:].encode())
    os.write(1, b'\\n')
"""
        self.put(box, "/tmp/value", self.value)
        self.put(box, "/tmp/split.py", program)
        done = server.run(box, "python3 /tmp/split.py")
        self.assertEqual(done["exit_code"], 0, done)
        lines = done["stdout"].splitlines()
        self.assertEqual(lines, ["*" * len(self.value)] * (len(self.value) - 1))
        # Byte by byte, with a pause after each: at most the first three letters are seen.
        slow = "import os, time\nfor c in open('/tmp/value').read():\n os.write(1, c.encode())\n time.sleep(0.06)\n"
        self.put(box, "/tmp/slow.py", slow)
        done = server.run(box, "python3 /tmp/slow.py")
        self.assertEqual(len(done["stdout"]), len(self.value))
        self.assertEqual(done["stdout"][3:], "*" * (len(self.value) - 3))

    def test_a_terminal(self):
        box = self.box()
        self.put(box, "/tmp/all", everything(self.value))
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.addCleanup(plain.close)
        terminal = WebSocket(plain, "localhost", f"/v1/sandboxes/{box}/terminal?cols=400",
                             {"Authorization": "Bearer " + server.key})
        self.assertEqual(terminal.json()["type"], "start")
        screen = b""
        terminal.send(b"echo ready-$((6*7))\n")
        while b"ready-42" not in screen:
            screen += terminal.read()[1]
        terminal.send(b"cat /tmp/all; echo over-$((6*7))\n")
        while b"over-42" not in screen:
            screen += terminal.read()[1]
        self.clean(screen)
        self.hits(box, where="terminal")

    def test_files_and_tar(self):
        box = self.box()
        text = everything(self.value) + "x" * 200_000 + everything(self.value)
        self.put(box, "/srv/tree/all", text)
        got = server.get(f"/v1/sandboxes/{box}/files?path=/srv/tree/all")
        self.assertEqual(got.status, 200)
        self.clean(got.body, size=len(text))
        self.assertEqual(got.body.count(b"x" * 200_000), 1)
        packed = server.get(f"/v1/sandboxes/{box}/files/tar?path=/srv/tree").body
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            self.clean(tar.extractfile("./all").read(), size=len(text))
        self.hits(box, where="file")

    def test_names_of_files(self):
        box = self.box()
        name = self.value.encode().hex()
        server.run(box, f"mkdir /srv/names && touch /srv/names/{name}")
        listed = server.get(f"/v1/sandboxes/{box}/files/list?path=/srv/names")
        self.assertEqual(listed.status, 200, listed)
        self.assertNotIn(name, listed.body.decode())
        self.assertIn("*" * len(name), listed.body.decode())

    def test_a_volume(self):
        if not server.launcher_status().get("disk_enforced", True):
            self.skipTest("no disk limits here, no volumes")
        volume = server.post("/v1/volumes", {"name": "v" + secrets.token_hex(6), "size": 32 << 20})
        if volume.status != 201:
            self.skipTest("no volumes here: " + volume.body.decode()[:200])
        self.addCleanup(lambda: server.delete(f"/v1/volumes/{volume.json['id']}"))
        box = self.box(volumes=[{"id": volume.json["id"], "path": "/data"}])
        text = everything(self.value)
        self.put(box, "/data/all", text)
        got = server.get(f"/v1/volumes/{volume.json['id']}/files?path=/all")
        self.assertEqual(got.status, 200, got)
        self.clean(got.body, size=len(text))
        server.delete(f"/v1/sandboxes/{box}")

    def test_a_port(self):
        box = self.box()
        self.put(box, "/tmp/value", self.value)
        self.put(box, "/tmp/all", everything(self.value))
        program = """
import socket
listener = socket.create_server(('127.0.0.1', 8000))
whole, value = open('/tmp/all', 'rb').read(), open('/tmp/value', 'rb').read()
def chunk(data): return b'%x\\r\\n' % len(data) + data + b'\\r\\n'
print('listening', flush=True)
while True:
    peer, _ = listener.accept()
    head = b''
    while b'\\r\\n\\r\\n' not in head: head += peer.recv(65536)
    path = head.split()[1]
    if path == b'/whole':
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n' % len(whole) + whole)
    elif path == b'/asked':
        asked = head.replace(value, b'')
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n' % len(asked) + asked)
    elif path == b'/packed':
        packs = b'gzip' in head.lower()  # what it looks like then does not matter
        body = value[::-1] if packs else value
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n' % len(body) +
                     (b'Content-Encoding: gzip\\r\\n' if packs else b'') + b'\\r\\n' + body)
    elif path == b'/head':
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nX-It: ' + value + b'\\r\\nContent-Length: 0\\r\\n\\r\\n')
    else:
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n')
        for cut in range(1, len(value)):
            peer.sendall(chunk(value[:cut]))
            peer.sendall(chunk(value[cut:] + b'\\n'))
        peer.sendall(chunk(b''))
    peer.close()
"""
        self.put(box, "/tmp/web.py", program)
        started = server.lines("POST", f"/v1/sandboxes/{box}/commands", {"command": "python3 /tmp/web.py", "stream": True})
        self.addCleanup(started.close)
        while next(started)["type"] != "stdout":
            pass
        ports = f"/v1/sandboxes/{box}/ports/8000"
        self.clean(server.get(ports + "/whole").body, size=len(everything(self.value)))
        self.assertEqual(server.get(ports + "/head").headers["x-it"], "*" * len(self.value))
        # Nobody is asked to pack what is to be searched.
        packs = {"Accept-Encoding": "gzip, br", "Sec-WebSocket-Extensions": "permessage-deflate"}
        packed = server.get(ports + "/packed", headers=packs)
        self.assertEqual((packed.headers.get("content-encoding"), packed.body), (None, b"*" * len(self.value)))
        asked = server.get(ports + "/asked", headers=packs).body.decode().lower()
        self.assertIn("\naccept-encoding: identity\r", asked)
        self.assertNotIn("gzip", asked)
        self.assertNotIn("permessage-deflate", asked)
        for line in server.get(ports + "/chunks").body.decode().splitlines():
            self.assertEqual(len(line), len(self.value))
            self.assertEqual(line[3:], "*" * (len(self.value) - 3))
        self.hits(box, where="port")

    @unittest.skipUnless(built("code-interpreter"), "the template code-interpreter is not built on this machine")
    def test_code(self):
        box = self.box(template="code-interpreter-v1", pids=2048, memory="4G")
        self.put(box, "/tmp/value", self.value)
        code = """
import sys
value = open('/tmp/value').read()
print(value)
for cut in range(1, len(value)):
    sys.stdout.write(value[:cut]); sys.stdout.flush()
    sys.stderr.write('.'); sys.stderr.flush()
    sys.stdout.write(value[cut:] + '\\n'); sys.stdout.flush()
value
"""
        done = server.post(f"/v1/sandboxes/{box}/code", {"code": code})
        self.assertEqual(done.status, 200, done)
        self.assertNotIn(self.value, done.body.decode())
        self.assertNotIn(json.dumps(self.value)[1:-1], done.body.decode())
        for line in done.json["stdout"].splitlines():
            # One that came whole was written as JSON on its way, and is as long as it was there.
            self.assertRegex(line, r"^.{0,3}\*{%d,}$" % (len(self.value) - 3), done.json["stdout"])
        self.assertEqual(done.json["stderr"], "." * (len(self.value) - 1))
        self.assertIn("***", json.dumps(done.json["results"]))

    def test_through_e2b(self):
        made = server.post("/sandboxes", {"templateID": "minimal", "timeout": 600}, headers={"X-API-Key": server.key}, key="")
        self.assertEqual(made.status, 201, made)
        box, token = made.json["sandboxID"], made.json["envdAccessToken"]
        self.addCleanup(lambda: server.delete(f"/v1/sandboxes/{box}"))
        changed = server.request("PUT", f"/v1/sandboxes/{box}/network", {"policy": POLICY})
        self.assertIn(changed.status, (200, 204), changed)
        self.value = fresh_value()
        self.bind(box, self.value)
        text = everything(self.value)
        self.put(box, "/tmp/all", text)
        inside = {"E2b-Sandbox-Id": box, "X-Access-Token": token}
        got = server.get("/files?path=/tmp/all&username=root", headers=inside, key="")
        self.assertEqual(got.status, 200, got)
        self.clean(got.body, size=len(text))
        for pty in (False, True):
            start = {"process": {"cmd": "cat", "args": ["/tmp/all"]}}
            if pty:
                start["pty"] = {"size": {"cols": 400, "rows": 24}}
            message = json.dumps(start).encode()
            reply = server.request("POST", "/process.Process/Start", struct.pack("!BI", 0, len(message)) + message, key="",
                                   headers={**inside, "Content-Type": "application/connect+json"})
            self.assertEqual(reply.status, 200, reply)
            rest, out = reply.body, b""
            while rest:
                size = struct.unpack("!BI", rest[:5])[1]
                data = json.loads(rest[5:5 + size]).get("event", {}).get("data", {})
                out += base64.b64decode(data.get("pty" if pty else "stdout", ""))
                rest = rest[5 + size:]
            self.clean(out, size=None if pty else len(text))


class Rules(Base):
    def test_without_bindings_nothing_is_touched(self):
        box = self.box(bind=False)
        other = self.box()  # whose value it is
        text = everything(self.value)
        self.put(box, "/tmp/all", text)
        self.assertEqual(server.run(box, "cat /tmp/all")["stdout"], text)
        self.assertEqual(server.get(f"/v1/sandboxes/{box}/files?path=/tmp/all").body.decode(), text)
        self.put(other, "/tmp/all", text)
        self.clean(server.run(other, "cat /tmp/all")["stdout"])
        self.assertEqual(server.get(f"/v1/ledger?sandbox={box}&kind=scan.hit").json["events"], [])

    def test_a_binding_counts_for_streams_that_are_open(self):
        box = self.box(bind=False)
        program = "echo begin; while read path; do cat $path; done"
        lines = server.lines("POST", f"/v1/sandboxes/{box}/commands",
                             {"command": program, "stream": True, "open_stdin": True})
        self.addCleanup(lines.close)
        command = next(lines)["command_id"]

        def ask():
            reply = server.request("POST", f"/v1/sandboxes/{box}/commands/{command}/stdin", b"/tmp/value\n")
            self.assertIn(reply.status, (200, 204), reply)
            out = ""
            while "\n" not in out:
                line = next(lines)
                out += line["data"] if line["type"] == "stdout" else ""
            return out.rstrip("\n")

        self.put(box, "/tmp/value", self.value + "\n")
        while next(lines)["type"] != "stdout":
            pass
        self.assertEqual(ask(), self.value)
        binding = self.bind(box, self.value)
        self.assertEqual(ask(), "*" * len(self.value))
        # It went out, and may come back: what is revoked is still searched for.
        self.assertEqual(server.delete(f"/v1/bindings/{binding}").status, 204)
        self.assertEqual(ask(), "*" * len(self.value))

    def test_one_that_blocks(self):
        box = self.box(bind=False)
        self.bind(box, self.value, scan="block")
        listed = server.get(f"/v1/sandboxes/{box}/bindings").json["bindings"]
        self.assertEqual([one["scan"] for one in listed], ["block"])
        self.put(box, "/tmp/value", "before\n" + self.value + "\nbehind\n")
        refused = server.post(f"/v1/sandboxes/{box}/commands", {"command": "cat /tmp/value"})
        self.assertGreaterEqual(refused.status, 400, refused)
        self.assertIn("blocked", refused.body.decode())
        self.assertNotIn(self.value, refused.body.decode())
        types, text = [], ""
        for line in server.lines("POST", f"/v1/sandboxes/{box}/commands", {"command": "cat /tmp/value; true", "stream": True}):
            types.append(line["type"])
            text += json.dumps(line)
        self.assertEqual(types[-1], "error")
        self.assertIn(self.secret, text)
        self.assertNotIn("behind", text)
        # What says nothing of it is not touched, and the sandbox lives on.
        self.assertEqual(server.run(box, "echo fine")["stdout"], "fine\n")
        self.hits(box, secret=self.secret)
        # The end of a command whose output was withheld is in the ledger all the same.
        eventually(lambda: len(server.get(f"/v1/ledger?sandbox={box}&kind=command.ended").json["events"]) == 3)
        refused = server.post(f"/v1/sandboxes/{box}/bindings",
                              {"secret": self.secret, "names": ["api.example.org"], "scan": "perhaps"})
        self.assertEqual(refused.status, 422 if refused.status == 422 else 400, refused)


class Gates(Base):
    """The gate dies in the middle: nothing passes that was not looked at, and nothing is lost."""

    def gate(self):
        launcher = server.launcher_pid()
        return eventually(lambda: children_named(launcher, b"gate"), what="a gate")[0]

    def test_what_was_revoked_before_the_kill_is_searched_for_after_it(self):
        box = self.box()
        self.put(box, "/tmp/value", self.value)
        for made in server.get(f"/v1/sandboxes/{box}/bindings").json["bindings"]:
            self.assertEqual(server.delete(f"/v1/bindings/{made['id']}").status, 204)
        before = self.gate()
        os.kill(before, signal.SIGKILL)
        eventually(lambda: self.gate() != before, what="another gate")
        self.assertEqual(server.run(box, "cat /tmp/value")["stdout"], "*" * len(self.value))

    def test_what_a_change_drops_while_the_gate_dies_is_searched_for_after_it(self):
        slow, started = (f"/var/tmp/isola-{word}-{secrets.token_hex(6)}" for word in ("slow", "started"))
        for path in (slow, started):
            self.addCleanup(lambda path=path: os.path.exists(path) and os.unlink(path))
        box = self.box()
        self.put(box, "/tmp/value", self.value)
        changed = self.secret
        script = f"if [ -e {slow} ]; then touch {started}; sleep 2; fi; echo a value of a source"
        reply = server.post("/v1/secrets", {"name": "c" + secrets.token_hex(6),
                                            "source": {"type": "command", "argv": ["/bin/sh", "-c", script]}})
        self.assertEqual(reply.status, 201, reply)
        reply = server.post(f"/v1/sandboxes/{box}/bindings", {"secret": reply.json["name"], "names": ["b.example.org"]})
        self.assertEqual(reply.status, 201, reply)
        with open(slow, "w"):
            pass
        # The change waits for the source when the gate dies: the next one is told of it, and never of what was before.
        replies = []
        asking = threading.Thread(target=lambda: replies.append(
            server.request("PUT", f"/v1/secrets/{changed}", {"value": fresh_value()})))
        asking.start()
        eventually(lambda: os.path.exists(started), what="the source")
        os.unlink(slow)
        os.kill(self.gate(), signal.SIGKILL)
        asking.join()
        self.assertIn(replies[0].status, (200, 204), replies)
        self.assertEqual(server.run(box, "cat /tmp/value")["stdout"], "*" * len(self.value))

    def test_killed_in_the_middle(self):
        box = self.box()
        self.put(box, "/tmp/value", self.value)
        # A batch for each word that it is given: who reads too slowly loses output, and that is another matter.
        program = """
import sys
value = open('/tmp/value').read()
for batch, word in enumerate(sys.stdin):
    for i in range(400 * batch, 400 * batch + 400):
        print(i, value, 'x' * 200, flush=i % 7 == 0)
    sys.stdout.flush()
"""
        self.put(box, "/tmp/much.py", program)
        batches = ["".join(f"{i} {'*' * len(self.value)} {'x' * 200}\n" for i in range(400 * n, 400 * n + 400))
                   for n in range(40)]
        self.put(box, "/tmp/file", "".join(batches).replace("*" * len(self.value), self.value))
        lines = server.lines("POST", f"/v1/sandboxes/{box}/commands",
                             {"command": "python3 /tmp/much.py", "stream": True, "open_stdin": True})
        self.addCleanup(lines.close)
        command, downloads = next(lines)["command_id"], []

        def download():
            downloads.append(server.get(f"/v1/sandboxes/{box}/files?path=/tmp/file").body.decode())

        threads = []
        for number, batch in enumerate(batches):
            reply = server.request("POST", f"/v1/sandboxes/{box}/commands/{command}/stdin", b"more\n")
            self.assertIn(reply.status, (200, 204), reply)
            if number % 10 == 5:
                threads.append(threading.Thread(target=download))
                threads[-1].start()
                os.kill(self.gate(), signal.SIGKILL)
            out = ""
            while len(out) < len(batch):
                line = next(lines)
                if line["type"] != "ping":
                    self.assertEqual(line["type"], "stdout", line)
                    out += line["data"]
            # Where nothing comes for a moment behind the first letters of a value, a terminal is shown up to three of them.
            out = re.sub(re.escape(self.value[0]) + r"[^*\n]{0,2}(?=\*{30})", lambda shown: "*" * len(shown[0]), out)
            self.assertEqual(out, batch)
        for thread in threads:
            thread.join()
        self.assertEqual(downloads, ["".join(batches)] * 4)

    def test_one_that_stays_away(self):
        """A gate that does not answer: the output waits, and fails with a word that says why."""
        other = Server("--scan-patience", "1s")
        global server
        before, server = server, other
        try:
            box = self.box()
            self.put(box, "/tmp/value", self.value + "\n")
            self.assertEqual(server.run(box, "cat /tmp/value")["stdout"], "*" * len(self.value) + "\n")
            gate = self.gate()
            os.kill(gate, signal.SIGSTOP)
            try:
                refused = server.post(f"/v1/sandboxes/{box}/commands", {"command": "cat /tmp/value"})
                self.assertEqual(refused.status, 503, refused)
                self.assertIn("withheld", refused.body.decode())
                self.assertNotIn(self.value, refused.body.decode())
                self.assertEqual(server.create(timeout=60)["state"], "running")  # nobody else waits for it
            finally:
                os.kill(gate, signal.SIGCONT)
            self.assertEqual(server.run(box, "cat /tmp/value")["stdout"], "*" * len(self.value) + "\n")
        finally:
            self.doCleanups()
            server = before
            other.close()

    def test_after_the_server(self):
        """Another server knows from the first byte on whose streams are searched."""
        box = self.box()
        self.put(box, "/tmp/value", self.value + "\n")
        port = server.port
        server.stop(signal.SIGKILL)
        server.start(port)
        self.assertEqual(server.run(box, "cat /tmp/value")["stdout"], "*" * len(self.value) + "\n")
        # Also where nothing is bound any more: it was, and the gate still has it.
        self.assertEqual(server.delete(f"/v1/sandboxes/{box}/bindings/{self.binding}").status, 204)
        server.stop(signal.SIGKILL)
        server.start(port)
        self.assertEqual(server.run(box, "cat /tmp/value")["stdout"], "*" * len(self.value) + "\n")
        # … and where it reaches nothing any more.
        self.assertEqual(server.request("PUT", f"/v1/sandboxes/{box}/network", {"policy": "none"}).status, 200)
        server.stop(signal.SIGKILL)
        server.start(port)
        self.assertEqual(server.run(box, "cat /tmp/value")["stdout"], "*" * len(self.value) + "\n")


if __name__ == "__main__":
    unittest.main()
