"""A TLS server outside that wants to know who asks."""
import base64
import hashlib
import http.server
import random
import secrets
import urllib.parse

from tls_world import Authority, Names


class Demanding:
    """Says welcome to whoever brings its key; at port 443 of an address that nobody else has. /hash?of=X-Name gives the
    SHA-256 of a header: the value itself would be blotted out on its way in. /claims gives what a bearer's token says."""

    def __init__(self, *names):
        self.key = "key-" + secrets.token_hex(16)
        self.names = names
        self.authority = Authority(*names)
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
                if url.path == "/claims":
                    middle = (self.headers.get("Authorization", "").removeprefix("Bearer ").split(".") + [""] * 2)[1]
                    status, text = 200, base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)).decode() or "none"
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.address, self.web = self.listen(Handler)
        self.authority.serve(self.web)
        # For a server of ours that is to find it.
        self.environment = {"ISOLA_NAME_SERVERS": f"127.0.0.1:{Names(self.address).port}", "ISOLA_AUTHORITIES": self.authority.ca}

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
        self.authority.close()
