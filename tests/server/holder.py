"""What tests of images have in common: a program that holds everything that a program can hold, and a server for it."""
import json
import os
import socket
import subprocess
import unittest

from island import ISOLA, Server, eventually
from wire import WebSocket

# Holds everything that a program can hold, and answers each line with what it still has.
HOLDER = r"""
import os, sys, threading, socket, subprocess
word = os.urandom(8).hex()
file = open("/root/open", "w+")
file.write("first"); file.flush()
ticks, asked = [0], 0
def tick():
    nothing = threading.Event()
    while True:
        ticks[0] += 1
        nothing.wait(0.001)
threading.Thread(target=tick, daemon=True).start()
listener = socket.socket()
listener.bind(("127.0.0.1", 8123)); listener.listen()
def serve():
    while True:
        peer, _ = listener.accept()
        peer.recv(65536)
        peer.sendall(("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(word), word)).encode())
        peer.close()
threading.Thread(target=serve, daemon=True).start()
child = subprocess.Popen(["sleep", "1000000"])
print(word, flush=True)
for line in sys.stdin:
    asked += 1
    file.write("+"); file.flush(); file.seek(0); text = file.read()
    before = ticks[0]
    while ticks[0] == before:
        pass
    print(word, asked, text, child.poll(), line.strip(), flush=True)
"""


class Holder:
    """A sandbox with such a program in it, and a shell on a terminal with a variable."""

    def __init__(self, server, **fields):
        self.server = server
        fields.setdefault("timeout", 3600)
        self.id = server.create(**fields)["id"]
        self.path = f"/v1/sandboxes/{self.id}"
        server.request("PUT", self.path + "/files?path=/root/holder.py", HOLDER)
        started = server.post(self.path + "/commands", {"argv": ["python3", "/root/holder.py"], "open_stdin": True,
                                                        "background": True})
        assert started.status == 202, started
        self.command, self.pid = started.json["id"], started.json["pid"]
        self.asked, self.seq, self.seen = 0, 0, ""
        self.word = self.read_line()
        self.shell = self.terminal()
        start = self.shell.json()
        self.shell_command, self.shell_pid = start["command_id"], start["pid"]
        self.secret = os.urandom(4).hex()
        self.type(f"SECRET={self.secret}; cd /tmp; echo re''ady\n", "ready")

    def read_line(self):
        """One more line of the program's output, attached anew from where the last one ended."""
        while "\n" not in self.seen:
            for line in self.server.lines("GET", f"{self.path}/commands/{self.command}/output?from={self.seq}"):
                if line["type"] == "stdout":
                    self.seen += line["data"]
                    self.seq = line["seq"]
                    break
                if line["type"] not in ("start", "ping", "caught_up"):
                    raise AssertionError(line)
        line, self.seen = self.seen.split("\n", 1)
        return line

    def terminal(self, query="?cols=80&rows=24"):
        connection = socket.create_connection(("127.0.0.1", self.server.port), 60)
        shell = WebSocket(connection, f"127.0.0.1:{self.server.port}", self.path + "/terminal" + query,
                          {"Authorization": "Bearer " + self.server.key})
        assert shell.status == 101, shell.status
        return shell

    def type(self, text, until):
        self.shell.send(text.encode())
        screen = b""
        while until.encode() not in screen:
            message = self.shell.read()
            assert message and message[0] == 2, (message, screen)
            screen += message[1]
        return screen.decode(errors="replace")

    def copy(self, sandbox):
        """The same program in a fork."""
        other = object.__new__(Holder)
        other.__dict__.update(self.__dict__)
        other.id, other.path = sandbox, f"/v1/sandboxes/{sandbox}"
        if sandbox != self.id:  # the names of its parent's commands are its parent's
            other.command, other.shell_command = str(self.pid), str(self.shell_pid)
        return other

    def ask(self, text="x"):
        sent = self.server.request("POST", f"{self.path}/commands/{self.command}/stdin", text + "\n")
        assert sent.status == 204, sent
        self.asked += 1
        return self.read_line()

    def check(self, case, shell=True):
        """Everything is as it was."""
        told = self.ask("hello")
        case.assertEqual(told, f"{self.word} {self.asked} first{'+' * self.asked} None hello")
        case.assertEqual(self.server.get(self.path + "/ports/8123/").body.decode(), self.word)
        if shell:
            self.shell = self.terminal(f"?attach={self.shell_command}&from=now")
            self.shell.json()
            self.type("echo $SECRET in $PWD th''ere\n", f"{self.secret} in /tmp there")

    def state(self):
        return self.server.get(self.path).json["state"]

    def verb(self, verb, **fields):
        return self.server.post(f"{self.path}/{verb}", fields)


class ImageCase(unittest.TestCase):
    """A server, whose sandboxes and snapshots go after each test."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--pool", "1", "--log-access", "false")
        status = subprocess.run([ISOLA, "launcher", "status", "--json", "--data", cls.server.data], capture_output=True,
                                text=True)
        if not json.loads(status.stdout).get("checkpointer"):
            cls.server.close()
            raise unittest.SkipTest("no criu here; `./dev criu` provides one")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def tearDown(self):
        for one in self.server.get("/v1/sandboxes?limit=1000").json["sandboxes"]:
            if one["state"] != "ended":
                self.assertEqual(self.server.delete("/v1/sandboxes/" + one["id"]).status, 204)
        for one in self.server.get("/v1/snapshots").json["snapshots"]:
            self.assertEqual(self.server.delete("/v1/snapshots/" + one["id"]).status, 204)

    def images(self):
        folder = os.path.join(self.server.data, "images")
        return {name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}/manifest.json")}

    def ok(self, reply, status=200):
        self.assertEqual(reply.status, status, reply)
        return reply.json

    def wait_for(self, sandbox, state):
        return eventually(lambda: (now := self.server.get(f"/v1/sandboxes/{sandbox}").json)["state"] == state and now,
                          what=f"{sandbox}: {state}")
