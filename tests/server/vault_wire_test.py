"""A secret on its way: real clients inside reach a TLS server of ours that demands it, and it is nowhere inside."""
import http.server
import os
import secrets
import ssl
import subprocess
import tempfile
import threading
import unittest

from demanding import Names, certify
from island import Server, built, eventually

TEMPLATE = next((name for name in ("base", "code-interpreter") if built(name)), None)  # with Python inside
NAME = "api.wire.example"
OTHER = "other.wire.example"
FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=dict(
        word.split("=", 1) for word in sys.argv[2:])), timeout=20).read().decode(), end="")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode(), end="")
except Exception as error:
    print("failed:", error, end="")
"""


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = []

    def do_GET(self):
        given = self.headers.get("Authorization", "")
        type(self).seen.append((self.headers["Host"], self.path, given))
        good = given == "Bearer " + Wire.value
        text = (b"welcome" if good else b"who are you?") + (given.encode() if self.path == "/echo" else b"")
        self.send_response(200 if good else 401)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@unittest.skipUnless(TEMPLATE, "no template with Python is built")
class Wire(unittest.TestCase):
    value = "wire-" + secrets.token_hex(16)

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="isola-wire-", dir="/var/tmp")
        os.chmod(cls.folder, 0o755)
        ca, leaf, leaf_key = certify(cls.folder, [NAME, OTHER])
        cls.web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(leaf, leaf_key)
        cls.web.socket = context.wrap_socket(cls.web.socket, server_side=True)
        cls.port = cls.web.server_port
        threading.Thread(target=cls.web.serve_forever, daemon=True).start()
        cls.server = Server(env={"ISOLA_NAME_SERVERS": f"127.0.0.1:{Names().port}", "ISOLA_AUTHORITIES": ca})

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.web.shutdown()
        subprocess.run(["rm", "-rf", cls.folder])

    def box(self, **more):
        policy = f"allow {NAME}:{self.port}\nallow {OTHER}:{self.port}\nallow 127.0.0.1/32:{self.port}\n"
        box = self.server.create(template=TEMPLATE, network=policy, **more)["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{box}"))
        return box

    def secret(self, value=None):
        name = "w" + secrets.token_hex(4)
        self.assertEqual(self.server.post("/v1/secrets", {"name": name, "value": value or self.value}).status, 201)
        return name

    def bind(self, box, name, **more):
        reply = self.server.post(f"/v1/sandboxes/{box}/bindings",
                                 {"secret": name, "names": [NAME], "ports": str(self.port), **more})
        self.assertEqual(reply.status, 201, reply)
        return reply.json["id"]

    def fetch(self, box, host=NAME, path="/", headers=()):
        """By a Python program inside."""
        url = f"https://{host}:{self.port}{path}"
        reply = self.server.post(f"/v1/sandboxes/{box}/commands", {"argv": ["python3", "-c", FETCH, url, *headers]})
        return reply.json["stdout"] if reply.status == 200 else str(reply)

    def test_clients_inside_get_through_and_find_nothing(self):
        box = self.box()
        self.assertNotEqual(self.fetch(box), "welcome")
        self.bind(box, self.secret())
        self.assertEqual(self.fetch(box), "welcome", self.server.log())
        url = f"https://{NAME}:{self.port}/"
        for tool, line in (("curl", f"curl -sS -m 20 {url}"),
                           ("node", f"node -e \"fetch('{url}').then(r => r.text()).then(t => console.log(t))\"")):
            if self.server.run(box, f"command -v {tool} || true")["stdout"]:
                self.assertEqual(self.server.run(box, line)["stdout"].strip(), "welcome", tool)
        # What the server sends back of it is blotted out on the way in.
        self.assertNotIn(self.value, self.fetch(box, path="/echo"))
        # Nowhere: written in two halves, so that the search does not find itself.
        half = len(self.value) // 2
        hunt = (f"word={self.value[:half]}; word=$word''{self.value[half:]}; "
                "(env; cat /proc/[0-9]*/environ) | tr '\\0' '\\n' | grep -v ^word= | grep -c -F \"$word\"; "
                "grep -rlF \"$word\" /home /root /tmp /etc /run /var /usr/local 2>/dev/null | wc -l")
        self.assertEqual(self.server.run(box, hunt)["stdout"].split(), ["0", "0"])
        # At another name it is not set, and what the sandbox says of itself is not what the server sees.
        self.assertNotIn("welcome", self.fetch(box, host=OTHER))
        self.assertEqual(self.fetch(box, headers=["Authorization=Bearer mine"]), "welcome")

    def test_a_revocation_is_in_force_when_it_returns(self):
        box = self.box()
        made = self.bind(box, self.secret())
        self.assertEqual(self.fetch(box), "welcome")
        self.assertEqual(self.server.delete(f"/v1/bindings/{made}").status, 204)
        self.assertNotIn("welcome", self.fetch(box))

    def test_another_value_is_used_from_the_next_request_on(self):
        box = self.box()
        name = self.secret("an old value that opens nothing")
        self.bind(box, name)
        self.assertIn("who are you", self.fetch(box))
        self.assertEqual(self.server.request("PUT", f"/v1/secrets/{name}", {"value": self.value}).status, 200)
        self.assertEqual(self.fetch(box), "welcome")

    def test_the_authority_of_a_sandbox_is_its_own(self):
        box, other = self.box(), self.box()
        name = self.secret()
        for one in (box, other):
            self.bind(one, name)
        read = "cat /usr/local/share/ca-certificates/isola.crt"
        first, second = (self.server.run(one, read)["stdout"] for one in (box, other))
        self.assertIn("BEGIN CERTIFICATE", first)
        self.assertNotEqual(first, second)
        self.assertEqual(self.server.run(box, "grep -c 'isola: begin' /etc/ssl/certs/ca-certificates.crt")["stdout"].strip(),
                         "1")
        reply = self.server.post(f"/v1/sandboxes/{box}/pause")
        if reply.status == 501:
            return
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume", {"keep_grants": True}).status, 200)
        self.assertNotEqual(self.server.run(box, read)["stdout"], first, "another life, another authority")
        self.assertEqual(self.server.run(box, "grep -c 'isola: begin' /etc/ssl/certs/ca-certificates.crt")["stdout"].strip(),
                         "1")
        self.assertEqual(self.fetch(box), "welcome")

    def test_it_goes_on_after_every_kill(self):
        box = self.box()
        self.bind(box, self.secret())
        self.assertEqual(self.fetch(box), "welcome")
        launcher = self.server.launcher_pid()
        with open(f"/proc/{launcher}/task/{launcher}/children") as file:
            for pid in file.read().split():
                with open(f"/proc/{pid}/comm") as comm:
                    if comm.read().strip() == "isola-gate":
                        os.kill(int(pid), 9)
        eventually(lambda: self.fetch(box) == "welcome", what="the next gate")
        os.kill(launcher, 9)
        eventually(lambda: self.fetch(box) == "welcome", what="the next launcher")
        self.server.stop(9)
        self.server.start(self.server.port)
        self.assertEqual(self.fetch(box), "welcome")


if __name__ == "__main__":
    unittest.main()
