"""kill -9 of server, gate and launcher while requests go out with a secret: each use that the upstream saw is in the
ledger, or an entry there says that something may be missing; and the chain verifies."""
import http.server
import os
import secrets
import signal
import subprocess
import threading
import unittest

from island import FULL, ISOLA, Server, built, eventually
from tls_world import Authority, Names

TEMPLATE = next((name for name in ("base", "code-interpreter") if built(name)), None)  # with Python inside
NAME = "api.kill.example"
ROUNDS = 20 if FULL else 3
# Requests one after the other, for ever, each with a path of its own.
LOOP = """
import http.client, itertools, ssl, sys
for n in itertools.count():
    try:
        there = http.client.HTTPSConnection(sys.argv[1], int(sys.argv[2]), timeout=60, context=ssl.create_default_context())
        for m in range(20):
            there.request("GET", f"/{n}/{m}")
            there.getresponse().read()
    except OSError:
        pass
    except http.client.HTTPException:
        pass
"""


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    seen = 0
    goes = threading.Event()  # cleared: nobody gets an answer, so that nobody asks for more
    held = threading.Event()  # somebody waits for that

    def do_GET(self):
        if self.headers.get("Authorization", "") == "Bearer " + Kill.value:
            with self.lock:
                type(self).seen += 1
        if not self.goes.is_set():
            self.held.set()
            self.goes.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@unittest.skipUnless(TEMPLATE or FULL, "no template with Python is built")
class Kill(unittest.TestCase):
    value = "kill-" + secrets.token_hex(16)

    @classmethod
    def setUpClass(cls):
        assert TEMPLATE, "a full run has a template with Python: nothing was tried"
        if not FULL:
            print(f"reduced: kills of each process ({ROUNDS} of 20)")
        cls.authority = Authority(NAME)
        cls.web = cls.authority.serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream))
        cls.port = cls.web.server_port
        cls.server = Server(env={"ISOLA_NAME_SERVERS": f"127.0.0.1:{Names().port}",
                                 "ISOLA_AUTHORITIES": cls.authority.ca})
        name = "k" + secrets.token_hex(4)
        cls.server.post("/v1/secrets", {"name": name, "value": cls.value})
        cls.name = name

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.web.shutdown()
        cls.authority.close()

    def setUp(self):
        Upstream.goes.set()
        self.addCleanup(Upstream.goes.set)
        Upstream.seen = 0
        self.box = self.server.create(network=f"allow {NAME}:{self.port}\nallow 127.0.0.1/32:{self.port}\n",
                                      template=TEMPLATE)["id"]
        reply = self.server.post(f"/v1/sandboxes/{self.box}/bindings",
                                 {"secret": self.name, "names": [NAME], "ports": str(self.port)})
        self.assertEqual(reply.status, 201, reply)
        self.addCleanup(lambda box=self.box: self.server.delete(f"/v1/sandboxes/{box}"))
        reply = self.server.post(f"/v1/sandboxes/{self.box}/commands",
                                 {"argv": ["python3", "-c", LOOP, NAME, str(self.port)], "background": True})
        self.assertEqual(reply.status, 202, reply)

    def some_more(self):
        now = Upstream.seen
        eventually(lambda: Upstream.seen > now + 50, seconds=60, what="more requests")

    def all_told(self):
        """Every use that the upstream saw is in the ledger. Nothing goes on meanwhile, until somebody says so."""
        Upstream.held.clear()
        Upstream.goes.clear()
        Upstream.held.wait(60)
        eventually(lambda: self.used() >= Upstream.seen, seconds=60, what=f"all of {Upstream.seen} uses, not {self.used()}")

    def killed_when_all_is_told(self, kill):
        """And once more under way, where only what was not told yet can be missing."""
        for _ in range(ROUNDS):
            self.some_more()
            self.all_told()
            kill()
            Upstream.goes.set()
            self.some_more()
        self.all_told()
        told = self.used()
        self.assertLessEqual(told, Upstream.seen + ROUNDS, "none twice; those under way at a kill may have been cut off")
        Upstream.goes.set()
        self.some_more()
        kill()
        before = Upstream.seen
        self.some_more()
        Upstream.goes.clear()
        since = Upstream.seen - before - 1  # one may have been under way
        eventually(lambda: self.used() >= told + since, seconds=60, what=f"{told} and {since} uses")
        self.end()
        self.assertGreaterEqual(self.used(), told + since)
        eventually(lambda: len(self.entries("gate.restarted")) == ROUNDS + 1, what="an entry for each")

    def entries(self, kind):
        found, after = [], 0
        while True:
            page = self.server.get(f"/v1/ledger?sandbox={self.box}&kind={kind}&limit=1000&after={after}").json["events"]
            if not page:
                return found
            found += page
            after = page[-1]["seq"]

    def used(self):
        return sum(e["data"].get("count", 1) for e in self.entries("secret.used"))

    def gate_pid(self):
        out = subprocess.run(["pgrep", "-P", str(self.server.launcher_pid()), "-x", "isola-gate"], capture_output=True,
                             text=True).stdout.split()
        return int(out[0]) if out else 0

    def end(self):
        self.assertEqual(self.server.delete(f"/v1/sandboxes/{self.box}").status, 204)
        done = subprocess.run([ISOLA, "audit", "verify", "--data", self.server.data], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_of_the_server_takes_nothing(self):
        for _ in range(ROUNDS):
            self.some_more()
            self.server.stop(signal.SIGKILL)
            self.some_more()
            self.server.start()
        self.some_more()
        self.end()
        eventually(lambda: self.used() >= Upstream.seen, what=f"all of {Upstream.seen} uses")
        self.assertLessEqual(self.used(), Upstream.seen + 1, "none twice; the last one may have been cut off on its way")
        self.assertEqual(self.entries("gate.restarted") + self.entries("egress.lost"), [])

    def test_of_the_gate_leaves_the_word_that_something_may_be_missing(self):
        self.killed_when_all_is_told(lambda: os.kill(eventually(self.gate_pid, what="a gate"), signal.SIGKILL))

    def test_of_the_launcher_leaves_that_word_too(self):
        def kill():
            os.kill(self.server.launcher_pid(), signal.SIGKILL)
            eventually(lambda: self.server.get("/readyz", key="").status == 200, what="the next launcher")
        self.killed_when_all_is_told(kill)

    def test_of_both_at_once(self):
        def kill():
            launcher = self.server.launcher_pid()
            self.server.process.send_signal(signal.SIGKILL)
            os.kill(launcher, signal.SIGKILL)
            self.server.stop()
            self.server.start()
        self.killed_when_all_is_told(kill)


if __name__ == "__main__":
    unittest.main()
