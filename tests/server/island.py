"""A server of the test's own: `isola serve` on a free port, with a data directory that goes with it."""
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

from contract import Contract

ISOLA = os.environ["ISOLA_BINARY"]
FULL = "ISOLA_TEST_FULL" in os.environ
contract = Contract()


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:400]!r}>"


class Server:
    def __init__(self, *flags, data=None, env=None):
        self.own = data is None
        self.data = data or tempfile.mkdtemp(prefix="isola-server-", dir="/var/tmp")
        self.flags = list(flags)
        self.env = env or {}
        self.process = None
        self.port = 0
        self.start()

    @staticmethod
    def free_port():
        """Below those that clients get: one of them could have it while a server that was killed is away."""
        while True:
            with socket.socket() as probe:
                try:
                    port = random.randrange(20000, 32000)
                    probe.bind(("127.0.0.1", port))
                    return port
                except OSError:
                    pass

    def start(self, port=0):
        port = port or self.free_port()
        ready, word = os.pipe()
        os.set_inheritable(word, True)
        log = open(os.path.join(self.data, "test.log"), "ab")
        command = [ISOLA, "serve", "--listen", f"127.0.0.1:{port}", "--data", self.data, "--ready-fd", str(word),
                   "--defaults-template", "minimal", *self.flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[word],
                                        env={**os.environ, **self.env})
        os.close(word)
        log.close()
        with os.fdopen(ready) as pipe:
            answer = pipe.read()
        if not answer.startswith("ready "):
            raise RuntimeError(f"the server did not start: {answer!r}\n{self.log()}")
        self.url = answer.split()[1]
        self.port = int(self.url.rsplit(":", 1)[1])
        with open(os.path.join(self.data, "key")) as file:
            self.key = file.read().strip()

    def log(self):
        with open(os.path.join(self.data, "test.log"), errors="replace") as file:
            return file.read()[-4000:]

    def stop(self, how=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
        if self.process:
            self.process.wait(30)
        self.process = None

    def close(self):
        self.stop()
        subprocess.run([ISOLA, "launcher", "stop", "--all", "--data", self.data], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=60)
        if self.own:
            shutil.rmtree(self.data, ignore_errors=True)

    def sanitized(self):
        """Built with the address sanitizer, whose own memory grows."""
        with open(f"/proc/{self.process.pid}/maps") as file:
            return "libasan" in file.read()

    def launcher_status(self):
        out = subprocess.run([ISOLA, "launcher", "status", "--json", "--data", self.data], capture_output=True, text=True)
        return json.loads(out.stdout)

    def launcher_pid(self):
        """Nobody answers between one that was killed and the next."""
        def there():
            try:
                return self.launcher_status()["pid"]
            except ValueError:
                return None
        return eventually(there, what="a launcher")

    # ---- requests ----

    def connection(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, key=None, headers=None, connection=None, check=True):
        own = connection is None
        connection = connection or self.connection()
        sent = dict(headers or {})
        key = self.key if key is None else key
        if key:
            sent.setdefault("Authorization", "Bearer " + key)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        reply = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        if own:
            connection.close()
        if check:  # what is packed, nobody can read here
            contract.check(method, path, reply)
        return reply

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.request("POST", path, {} if body is None else body, **more)

    def delete(self, path, **more):
        return self.request("DELETE", path, **more)

    def create(self, **fields):
        reply = self.post("/v1/sandboxes", fields)
        assert reply.status in (200, 201), reply
        return reply.json

    def run(self, sandbox, command, **fields):
        reply = self.post(f"/v1/sandboxes/{sandbox}/commands", {"command": command, **fields})
        assert reply.status == 200, reply
        return reply.json

    def lines(self, method, path, body=None, key=None):
        """Streams NDJSON; yields objects. Closing the generator drops the connection."""
        connection = self.connection()
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body),
                               headers={"Authorization": "Bearer " + (key or self.key)})
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(f"{answer.status} {answer.read()!r}")
            while line := answer.readline():
                one = json.loads(line)
                contract.line(method, path, one)
                yield one
        finally:
            connection.close()

    def events(self, path):
        """Server-sent events; yields (event, data)."""
        connection = self.connection()
        try:
            connection.request("GET", path, headers={"Authorization": "Bearer " + self.key})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            name, data = "message", None
            while line := answer.readline():
                line = line.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data = json.loads(line[6:])
                elif not line and data is not None:
                    contract.event(path, name, data)
                    yield name, data
                    name, data = "message", None
        finally:
            connection.close()


class _Told(unittest.TextTestResult):
    """`./dev test` collects these lines: what was skipped is not what passed."""

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"\nskipped: {reason}", flush=True)


unittest.TextTestRunner.resultclass = _Told


def built(template):
    listed = subprocess.run([ISOLA, "template", "ls", "--json"], capture_output=True, text=True)
    return any(one["name"] == template for one in json.loads(listed.stdout or "[]"))


def eventually(look, seconds=30, what="it"):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := look():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {seconds} s")


def quote(text):
    return urllib.parse.quote(text, safe="")
