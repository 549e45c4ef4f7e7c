"""Names and certificates of the test's own, for sandboxes that reach TLS servers beside the test."""
import os
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading


class Names(threading.Thread):
    """Answers every question about an address with one, and all others with nothing."""

    def __init__(self, address="127.0.0.1"):
        super().__init__(daemon=True)
        self.address = address
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.start()

    def run(self):
        while True:
            question, peer = self.socket.recvfrom(4096)
            end = question.index(b"\0", 12) + 5
            kind = struct.unpack(">H", question[end - 4:end - 2])[0]
            answers = 1 if kind == 1 else 0
            reply = question[:2] + b"\x81\x80" + struct.pack(">HHHH", 1, answers, 0, 0) + question[12:end]
            if answers:
                reply += b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(self.address)
            self.socket.sendto(reply, peer)


class Authority:
    """An authority and one certificate of it, in a folder that everybody may read."""

    def __init__(self, *names):
        self.folder = tempfile.mkdtemp(prefix="isola-wire-", dir="/var/tmp")
        os.chmod(self.folder, 0o755)
        self.ca, self.leaf, self.key = (f"{self.folder}/{name}" for name in ("ca.pem", "leaf.pem", "leaf.key"))
        kinds = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        with open(self.folder + "/names", "w") as file:
            file.write("subjectAltName=" + ",".join(f"DNS:{name}" for name in names) + ",IP:127.0.0.1\n")
        for words in (["req", "-x509", *kinds, "-keyout", self.folder + "/ca.key", "-out", self.ca, "-subj",
                       "/CN=wire test", "-days", "2"],
                      ["req", *kinds, "-keyout", self.key, "-out", self.folder + "/leaf.csr", "-subj",
                       "/CN=" + names[0]],
                      ["x509", "-req", "-in", self.folder + "/leaf.csr", "-CA", self.ca, "-CAkey",
                       self.folder + "/ca.key", "-CAcreateserial", "-out", self.leaf, "-days", "2", "-extfile",
                       self.folder + "/names"]):
            subprocess.run(["openssl", *words], check=True, capture_output=True)

    def serve(self, server):
        """An http.server under TLS, in a thread."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.leaf, self.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
