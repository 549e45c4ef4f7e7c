"""Servers outside that want to know who asks: certificates of an authority of the test's own, a server of names, and a TLS
server that demands a key."""
import hashlib
import http.server
import os
import random
import secrets
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import urllib.parse


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


def certify(folder, names):
    """An authority and a certificate of its for these names: the paths of the authority's, the leaf's and the leaf's key."""
    ca, key = folder + "/ca.pem", folder + "/ca.key"
    leaf, leaf_key = folder + "/leaf.pem", folder + "/leaf.key"
    with open(folder + "/names", "w") as file:
        file.write("subjectAltName=" + ",".join("DNS:" + name for name in names) + "\n")
    for words in (["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                   "-out", ca, "-subj", "/CN=a test's own", "-days", "2"],
                  ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", leaf_key,
                   "-out", folder + "/leaf.csr", "-subj", "/CN=" + names[0]],
                  ["x509", "-req", "-in", folder + "/leaf.csr", "-CA", ca, "-CAkey", key, "-CAcreateserial",
                   "-out", leaf, "-days", "2", "-extfile", folder + "/names"]):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    return ca, leaf, leaf_key


class Demanding:
    """Says welcome to whoever brings its key; at port 443 of an address that nobody else has. /hash?of=X-Name gives the
    SHA-256 of a header: the value itself would be blotted out on its way in."""

    def __init__(self, *names):
        self.key = "key-" + secrets.token_hex(16)
        self.names = names
        self.folder = tempfile.mkdtemp(prefix="isola-demanding-", dir="/var/tmp")
        os.chmod(self.folder, 0o755)
        self.authority, leaf, leaf_key = certify(self.folder, names)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                good = self.headers.get("Authorization", "") == "Bearer " + outer.key
                status, text = (200, "welcome") if good else (401, "who are you?")
                if url.path == "/hash":
                    given = self.headers.get(dict(urllib.parse.parse_qsl(url.query))["of"])
                    status, text = 200, hashlib.sha256(given.encode()).hexdigest() if given is not None else "none"
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.address, self.web = self.listen(Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(leaf, leaf_key)
        self.web.socket = context.wrap_socket(self.web.socket, server_side=True)
        threading.Thread(target=self.web.serve_forever, daemon=True).start()
        # For a server of ours that is to find it.
        self.environment = {"ISOLA_NAME_SERVERS": f"127.0.0.1:{Names(self.address).port}", "ISOLA_AUTHORITIES": self.authority}

    @staticmethod
    def listen(handler):
        while True:
            address = "127.%d.%d.%d" % (random.randrange(1, 255), random.randrange(256), random.randrange(1, 255))
            try:
                return address, http.server.ThreadingHTTPServer((address, 443), handler)
            except OSError:
                continue

    def close(self):
        self.web.shutdown()
        self.web.server_close()
        shutil.rmtree(self.folder)
