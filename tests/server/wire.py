"""Just enough of a WebSocket client for tests, over any connected socket."""
import base64
import json
import os
import struct


class WebSocket:
    def __init__(self, connection, host, target, headers=None):
        self.connection = connection
        lines = [f"GET {target} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket",
                 "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)).decode()]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.stream = connection.makefile("rb")
        self.status = int(self.stream.readline().split()[1])
        self.headers = {}
        while line := self.stream.readline().decode().strip():
            name, value = line.split(": ", 1)
            self.headers[name.lower()] = value

    def send(self, data, text=False, opcode=None):
        mask = os.urandom(4)
        size = (struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0xFE, len(data))
                if len(data) < 65536 else struct.pack("!BQ", 0xFF, len(data)))
        body = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self.connection.sendall(bytes([0x80 | (opcode or (1 if text else 2))]) + size + mask + body)

    def close(self, code, reason=b""):
        """Says goodbye; the connection is the other side's to close."""
        self.send(struct.pack("!H", code) + reason, opcode=8)

    def read(self):
        """The next message as (opcode, bytes); None at the end."""
        head = self.stream.read(2)
        if len(head) < 2:
            return None
        size = head[1] & 127
        if size == 126:
            size = struct.unpack("!H", self.stream.read(2))[0]
        elif size == 127:
            size = struct.unpack("!Q", self.stream.read(8))[0]
        return head[0] & 15, self.stream.read(size)

    def json(self):
        return json.loads(self.read()[1])
