"""Large bodies in flat memory, and replies that a client gets although it is still talking."""
import json
import os
import socket
import subprocess
import threading
import time
import unittest

from island import FULL, Server, eventually

server = None
SIZE = (10 << 30) if FULL else (256 << 20)
ROOM = 24 << 20  # how much any process may grow; asan keeps more
PIECE = os.urandom(1 << 20)


def setUpModule():
    global server
    server = Server(env={"ASAN_OPTIONS": "quarantine_size_mb=16"})  # what asan keeps back is not growth
    if not FULL:
        print("reduced: an upload of 256 MiB instead of 10 GiB", flush=True)


def tearDownModule():
    server.close()


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


class Watch:
    """The largest memory of our processes while something happens."""

    def __init__(self, sandbox):
        with open(os.path.join(server.data, "run", sandbox)) as file:
            guest = int(file.read().split()[4])
        self.pids = {"serve": server.process.pid, "launcher": server.launcher_pid(), "guest": guest}

    def __enter__(self):
        self.before = {name: resident(pid) for name, pid in self.pids.items()}
        self.most = dict(self.before)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self):
        while not self.over.wait(0.05):
            for name, pid in self.pids.items():
                self.most[name] = max(self.most[name], resident(pid))

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def grown(self):
        return {name: self.most[name] - self.before[name] for name in self.pids}


def upload(method, path, size):
    """Chunked, and as fast as it goes."""
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=120)
    plain.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
                  "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
    head = f"{len(PIECE):x}\r\n".encode()
    for _ in range(size // len(PIECE)):
        plain.sendall(head)
        plain.sendall(PIECE)
        plain.sendall(b"\r\n")
    plain.sendall(b"0\r\n\r\n")
    reply = b""
    while piece := plain.recv(65536):
        reply += piece
    plain.close()
    return reply


class Large(unittest.TestCase):
    def flat(self, watch):
        print(f"grown: {({k: f'{v / 2**20:.1f} MiB' for k, v in watch.grown().items()})}", flush=True)
        room = ROOM * 8 if server.sanitized() else ROOM
        for name, bytes in watch.grown().items():
            self.assertLess(bytes, room, name)

    def test_into_a_command(self):
        made = server.create(timeout=0)
        path = f"/v1/sandboxes/{made['id']}/commands"
        command = server.post(path, {"command": "wc -c", "background": True, "open_stdin": True}).json["id"]
        with Watch(made["id"]) as watch:
            reply = upload("POST", f"{path}/{command}/stdin?eof=true", SIZE)
        self.assertIn(b"204 No Content", reply[:100])
        lines = list(server.lines("GET", f"{path}/{command}/output"))
        self.assertEqual([l["data"] for l in lines if l["type"] == "stdout"], [f"{SIZE}\n"])
        self.flat(watch)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_into_a_file_and_back(self):
        size = 256 << 20
        made = server.create(disk="1G")
        path = f"/v1/sandboxes/{made['id']}/files?path=/root/big"
        with Watch(made["id"]) as watch:
            reply = upload("PUT", path, size)
            self.assertIn(b"200 OK", reply[:100], reply[-400:])
            connection = server.connection()
            connection.request("GET", path, headers={"Authorization": "Bearer " + server.key})
            answer, back = connection.getresponse(), 0
            while piece := answer.read(1 << 20):
                self.assertEqual(piece, (PIECE + PIECE)[back % len(PIECE):][:len(piece)])
                back += len(piece)
            connection.close()
        self.assertEqual(back, size)
        self.flat(watch)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_more_than_the_disk_is_said(self):
        made = server.create(disk="32M")
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        plain.sendall(f"PUT /v1/sandboxes/{made['id']}/files?path=/root/big HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
                      f"Bearer {server.key}\r\nContent-Length: {64 << 20}\r\n\r\n".encode())
        try:
            for _ in range(64):
                plain.sendall(PIECE)
        except ConnectionError:
            pass  # the server has said its word and listens no more
        reply = plain.recv(65536)
        self.assertIn(b"507", reply[:20], reply)
        self.assertIn(b"disk_full", reply)
        server.delete(f"/v1/sandboxes/{made['id']}")


class StillTalking(unittest.TestCase):
    """An early reply reaches a client that goes on sending: the server listens a little longer before it closes."""

    def test_an_early_refusal(self):
        for key, status in (("", b"401"), (server.key, b"413")):
            plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            head = (f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
                    f"Content-Length: {3 << 20}\r\n\r\n")
            plain.sendall(head.encode())
            for _ in range(3):  # all of it, although the answer is long there
                plain.sendall(PIECE)
                time.sleep(0.05)
            reply = b""
            while b"\r\n\r\n" not in reply:
                piece = plain.recv(65536)
                self.assertTrue(piece, "closed without a reply")
                reply += piece
            self.assertEqual(reply.split()[1], status, reply)
            self.assertIn(b"Connection: close", reply)
            plain.close()


if __name__ == "__main__":
    unittest.main()
