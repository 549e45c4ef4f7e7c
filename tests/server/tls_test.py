"""TLS end to end: certificates made here, clients that check them."""
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import unittest

from inside import WEB_SERVER
from island import ISOLA, Server, contract, eventually
from wire import WebSocket

server = None
folder = None


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def make_authority(name):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem")


def make_certificate(authority, serial):
    """server.pem and server.key: for localhost, the loopback address and every preview."""
    names = f"{folder}/names"
    with open(names, "w") as file:
        file.write("subjectAltName=DNS:localhost,DNS:isola.test,DNS:*.isola.test,IP:127.0.0.1\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=isola.test",
            "-keyout", f"{folder}/server.key", "-out", f"{folder}/server.csr")
    openssl("x509", "-req", "-in", f"{folder}/server.csr", "-CA", f"{folder}/{authority}.pem", "-CAkey",
            f"{folder}/{authority}.key", "-set_serial", str(serial), "-days", "2", "-extfile", names, "-out",
            f"{folder}/server.pem")
    os.chmod(f"{folder}/server.key", 0o644)  # the server reads it as its own user; a real one is chown'd to it


class TlsServer(Server):
    def connection(self, timeout=60):
        import http.client
        context = ssl.create_default_context(cafile=f"{folder}/good.pem")
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=context)


def setUpModule():
    global server, folder
    folder = tempfile.mkdtemp(prefix="isola-tls-", dir="/var/tmp")
    os.chmod(folder, 0o755)
    make_authority("good")
    make_authority("other")
    make_certificate("good", 7001)
    server = TlsServer("--tls-certificate", f"{folder}/server.pem", "--tls-key", f"{folder}/server.key", "--domain",
                       "isola.test")


def tearDownModule():
    server.close()
    shutil.rmtree(folder, ignore_errors=True)


def curl(target, *words, host="localhost", authority="good"):
    return subprocess.run(
        ["curl", "-sS", "--max-time", "30", "--cacert", f"{folder}/{authority}.pem", "--resolve",
         f"{host}:{server.port}:127.0.0.1", "-w", "\n%{http_code}", *words, f"https://{host}:{server.port}{target}"],
        capture_output=True, text=True)


class Tls(unittest.TestCase):
    def test_only_with_the_right_authority(self):
        self.assertTrue(server.url.startswith("https://"))
        good = curl("/healthz")
        self.assertEqual((good.returncode, good.stdout), (0, '{"ok":true}\n200'))
        self.assertEqual(curl("/healthz", authority="other").returncode, 60)
        self.assertEqual(curl("/healthz", host="elsewhere.example").returncode, 60)

    def test_the_whole_api(self):
        made = server.create()
        self.assertEqual(server.run(made["id"], "echo over TLS")["stdout"], "over TLS\n")
        big = os.urandom(3 << 20)
        path = f"/v1/sandboxes/{made['id']}/files?path=/tmp/big"
        self.assertEqual(server.request("PUT", path, big).status, 200)
        self.assertEqual(server.get(path).body, big)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_plain_http_is_not_answered(self):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            try:
                said = plain.recv(4096)
            except ConnectionError:
                said = b""
        self.assertNotIn(b"HTTP/1.1", said)

    def test_previews_by_name(self):
        made = server.create()
        for path, content in (("/srv/www/index.html", b"hello from inside"), ("/srv/web.py", WEB_SERVER)):
            server.request("PUT", f"/v1/sandboxes/{made['id']}/files?path={path}", content)
        server.post(f"/v1/sandboxes/{made['id']}/commands", {"command": "python3 /srv/web.py", "background": True})
        eventually(lambda: 8000 in [p["port"] for p in server.get(f"/v1/sandboxes/{made['id']}/ports").json["ports"]])
        host = f"8000-{made['id']}.isola.test"
        page = curl("/index.html", "-H", f"X-Isola-Token: {made['port_token']}", host=host)
        self.assertEqual((page.returncode, page.stdout), (0, "hello from inside\n200"), page.stderr)
        self.assertEqual(curl("/index.html", host=host).stdout[-3:], "403")
        signed = server.post(f"/v1/sandboxes/{made['id']}/ports/8000/sign", {"path": "/index.html"}).json
        self.assertTrue(signed["url"].startswith(f"https://{host}:{server.port}/index.html?"), signed["url"])
        self.assertEqual(curl("/index.html?" + signed["query"], host=host).stdout, "hello from inside\n200")
        seen = curl("/headers", "-H", f"X-Isola-Token: {made['port_token']}", host=host).stdout
        self.assertIn("X-Forwarded-Proto: https", seen)
        # Watching whether a client is still there does not cost it its connection; one that leaves is noticed.
        kept = server.connection()
        for _ in range(3):
            reply = server.get("/index.html", key="", connection=kept,
                               headers={"Host": host, "X-Isola-Token": made["port_token"]})
            self.assertEqual((reply.body, reply.headers.get("connection")), (b"hello from inside", None))
        kept.close()
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_terminal(self):
        made = server.create()
        context = ssl.create_default_context(cafile=f"{folder}/good.pem")
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                terminal = WebSocket(secure, f"localhost:{server.port}", f"/v1/sandboxes/{made['id']}/terminal?command=cat",
                                     {"Authorization": "Bearer " + server.key})
                self.assertEqual(terminal.status, 101)
                self.assertIn("x-isola-untrusted", terminal.headers)
                self.assertRegex(terminal.headers["x-request-id"], "^[0-9a-f]{16}$")
                contract.named("TerminalStart", terminal.json())
                terminal.send(b"echoed\n\x04")
                seen = b""
                while b"echoed\r\nechoed\r\n" not in seen:
                    seen += terminal.read()[1]
                code, data = terminal.read()
                self.assertEqual(code, 1, data)
                contract.named("TerminalExit", json.loads(data))
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_new_certificate_without_a_restart(self):
        def serial():
            context = ssl.create_default_context(cafile=f"{folder}/good.pem")
            with socket.create_connection(("127.0.0.1", server.port)) as plain:
                with context.wrap_socket(plain, server_hostname="localhost") as secure:
                    return int(secure.getpeercert()["serialNumber"], 16)

        self.assertEqual(serial(), 7001)
        make_certificate("good", 7002)
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: serial() == 7002, what="the new certificate")


class Refusals(unittest.TestCase):
    def serve(self, *words):
        with tempfile.TemporaryDirectory(prefix="isola-refused-", dir="/var/tmp") as data:
            return subprocess.run([ISOLA, "serve", "--data", data, *words], capture_output=True, text=True, timeout=60)

    def test_no_keys_in_the_clear(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            done = self.serve("--listen", address)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("not a loopback address", done.stderr)
        self.assertIn("TLS wants both", self.serve("--tls-certificate", f"{folder}/server.pem").stderr)

    def test_files_that_are_none(self):
        done = self.serve("--listen", "127.0.0.1:0", "--tls-certificate", f"{folder}/names", "--tls-key", f"{folder}/names")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"{folder}/names", done.stderr)


if __name__ == "__main__":
    unittest.main()
