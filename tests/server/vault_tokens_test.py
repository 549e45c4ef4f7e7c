"""Credentials that are made when they are needed: tokens of a sandbox's identity, checked by a library that nobody here
wrote against the keys that the server publishes, and tokens of an app, exchanged at a stand-in for GitHub's API."""
import base64
import datetime
import http.server
import json
import os
import secrets
import signal
import subprocess
import sys
import unittest

from island import FULL, ISOLA, Server, built, eventually
from tls_world import Authority, Names

TEMPLATE = next((name for name in ("base", "code-interpreter") if built(name)), None)  # with Python inside
NAME = "api.tokens.example"
ISSUER = "https://isola.tokens.example"
FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode(), end="")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode(), end="")
except Exception as error:
    print("failed:", error, end="")
"""
# In a Python that has PyJWT: {"token", "keys", "audience", "issuer"} → the claims, or the name of what is wrong.
CHECK = """
import json, sys
import jwt
said = json.load(sys.stdin)
try:
    kid = jwt.get_unverified_header(said["token"])["kid"]
    key = next((jwt.PyJWK(one) for one in said["keys"]["keys"] if one["kid"] == kid), None)
    if key is None: raise LookupError
    print(json.dumps(jwt.decode(said["token"], key.key, algorithms=["RS256"], audience=said["audience"],
        issuer=said["issuer"], options={"require": ["exp", "iat", "nbf", "aud", "iss", "sub", "jti"]})))
except Exception as error:
    print(json.dumps(type(error).__name__))
"""


def python_with_jwt():
    for program in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([program, "-c", "import jwt, cryptography"], capture_output=True).returncode == 0:
            return program
    return None


PYTHON = python_with_jwt()


class Upstream(http.server.BaseHTTPRequestHandler):
    """Remembers what came as Authorization."""
    protocol_version = "HTTP/1.1"
    seen = []

    def do_GET(self):
        type(self).seen.append(self.headers.get("Authorization", ""))
        text = b"heard"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Github(http.server.BaseHTTPRequestHandler):
    """One installation of one app. `lives`: seconds; `refuses`: the app was uninstalled."""
    protocol_version = "HTTP/1.1"
    asked, given, lives, refuses, key = [], [], 3600, False, ""

    def do_POST(self):
        cls = type(self)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        cls.asked.append((self.path, token, body))
        good = self.path == "/api/v3/app/installations/42/access_tokens" and not cls.refuses
        status, answer = 401, {"message": "Bad credentials"}
        if good and cls.claims(token).get("iss") == "12345":
            made = "ghs_" + secrets.token_hex(18)
            cls.given.append(made)
            end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=cls.lives)
            status, answer = 201, {"token": made, "expires_at": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
                                   "permissions": body.get("permissions", {})}
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    @classmethod
    def claims(cls, token):
        """Checked with the app's public key, by openssl: {} if it does not hold."""
        try:
            head, middle, signature = token.split(".")
            padded = (part + "=" * (-len(part) % 4) for part in (middle, signature))
            middle, signature = (base64.urlsafe_b64decode(part) for part in padded)
        except ValueError:
            return {}
        path = cls.key + ".signature"
        with open(path, "wb") as file:
            file.write(signature)
        checked = subprocess.run(["openssl", "dgst", "-sha256", "-verify", cls.key + ".pub", "-signature", path],
                                 input=token.rsplit(".", 1)[0].encode(), capture_output=True)
        return json.loads(middle) if checked.returncode == 0 else {}

    def log_message(self, *_):
        pass


class Published(unittest.TestCase):
    """What whoever checks a token asks for: no sandbox is needed, and no key."""

    def test_keys_and_configuration(self):
        server = Server("--issuer", ISSUER)
        self.addCleanup(server.close)
        found = server.get("/.well-known/openid-configuration", key="")
        self.assertEqual((found.status, found.json["issuer"], found.json["jwks_uri"]),
                         (200, ISSUER, ISSUER + "/.well-known/jwks.json"))
        keys = server.get("/.well-known/jwks.json", key="")
        self.assertEqual(keys.status, 200)
        self.assertTrue(all("d" not in key for key in keys.json["keys"]), "public parts only")


@unittest.skipUnless(TEMPLATE or FULL, "no template with Python is built")
class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        assert TEMPLATE, "a full run has a template with Python: nothing was tried"
        cls.authority = Authority(NAME)
        cls.web = cls.authority.serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream))
        cls.github = cls.authority.serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Github))
        Github.key = cls.authority.folder + "/app.key"
        subprocess.run(["openssl", "genrsa", "-out", Github.key, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", Github.key, "-pubout", "-out", Github.key + ".pub"], check=True,
                       capture_output=True)
        cls.server = Server("--issuer", ISSUER, env={"ISOLA_NAME_SERVERS": f"127.0.0.1:{Names().port}",
                                                     "ISOLA_AUTHORITIES": cls.authority.ca})

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.web.shutdown()
        cls.github.shutdown()
        cls.authority.close()

    def box(self, **more):
        policy = f"allow {NAME}:{self.web.server_port}\nallow 127.0.0.1/32:{self.web.server_port}\n"
        box = self.server.create(template=TEMPLATE, network=policy, **more)["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{box}"))
        return box

    def secret(self, status=201, **source):
        name = "t" + secrets.token_hex(4)
        reply = self.server.post("/v1/secrets", {"name": name, "source": source})
        self.assertEqual(reply.status, status, reply)
        return name

    def bind(self, box, name, status=201, **more):
        reply = self.server.post(f"/v1/sandboxes/{box}/bindings",
                                 {"secret": name, "names": [NAME], "ports": str(self.web.server_port), **more})
        self.assertEqual(reply.status, status, reply)
        return reply.json

    def sent(self, box):
        """What the server outside sees of one request by a program inside."""
        before = len(Upstream.seen)
        url = f"https://{NAME}:{self.web.server_port}/"
        reply = self.server.post(f"/v1/sandboxes/{box}/commands", {"argv": ["python3", "-c", FETCH, url]})
        self.assertEqual(reply.status, 200, reply)
        return Upstream.seen[-1] if len(Upstream.seen) > before else reply.json["stdout"]

    def token(self, box):
        sent = self.sent(box)
        self.assertTrue(sent.startswith("Bearer ey"), sent)
        return sent.removeprefix("Bearer ")

    def keys(self):
        return self.server.get("/.well-known/jwks.json", key="").json

    def check(self, token, keys=None, audience="https://deploy.example", issuer=ISSUER):
        if not PYTHON:
            self.skipTest("there is no Python with PyJWT")
        said = {"token": token, "keys": keys or self.keys(), "audience": audience, "issuer": issuer}
        done = subprocess.run([PYTHON, "-c", CHECK], input=json.dumps(said), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def isola(self, *words, status=0):
        # Some give up root in the middle: what looks for leaks at the end of a sanitized program cannot look then.
        done = subprocess.run([ISOLA, *words, "--data", self.server.data], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def ledger(self, kind, **match):
        found = self.server.get(f"/v1/ledger?kind={kind}&limit=1000").json["events"]
        return [one for one in found if all(one["data"].get(k) == v for k, v in match.items())]

    def jwt(self, **more):
        return self.secret(type="jwt", audience="https://deploy.example", **more)

    def github_app(self, status=201, **more):
        with open(Github.key) as file:
            return self.secret(status, type="github-app", app_id="12345", installation_id="42",
                               url=f"https://127.0.0.1:{self.github.server_port}/api/v3", private_key=file.read(), **more)

    # ---- who a sandbox is ----

    def test_a_token_says_who_the_sandbox_is(self):
        box, other = self.box(task="task-7", actor="alice"), self.box()
        name = self.jwt()
        made = self.bind(box, name)
        self.bind(other, name, audience="https://elsewhere.example")
        found = self.server.get("/.well-known/openid-configuration", key="").json
        self.assertEqual((found["issuer"], found["jwks_uri"]), (ISSUER, ISSUER + "/.well-known/jwks.json"))
        token = self.token(box)
        claims = self.check(token)
        self.assertEqual((claims["sub"], claims["sandbox"]), (f"project:default:sandbox:{box}", box))
        self.assertEqual((claims["project"], claims["task"], claims["actor"]), ("default", "task-7", "alice"))
        self.assertEqual(claims["exp"] - claims["iat"], 600)
        # For whom it is, and by whom, is part of it.
        self.assertEqual(self.check(token, audience="https://elsewhere.example"), "InvalidAudienceError")
        self.assertEqual(self.check(token, issuer="https://other.example"), "InvalidIssuerError")
        head, middle, signature = token.split(".")
        forged = base64.urlsafe_b64encode(json.dumps({**claims, "sandbox": other}).encode()).rstrip(b"=").decode()
        self.assertEqual(self.check(".".join((head, forged, signature))), "InvalidSignatureError")
        elsewhere = self.check(self.token(other), audience="https://elsewhere.example")
        self.assertEqual(elsewhere["sandbox"], other)
        # The same until it is nearly over.
        self.assertEqual(self.token(box), token)
        # In the ledger by name: which token, and where it went.
        eventually(lambda: self.ledger("secret.minted", secret=name, binding=made["id"], token=claims["jti"]))
        eventually(lambda: self.ledger("secret.used", secret=name, binding=made["id"]))
        self.assertIn(claims["jti"], self.isola("audit", "secret", name, "--json"))
        for part in (token, signature):
            self.assertNotIn(part.encode(), self.server.get("/v1/ledger?limit=1000").body)
        # It is nowhere inside. Written in two halves, so that the search does not find itself.
        half = len(signature) // 2
        hunt = (f"word={signature[:half]}; word=$word''{signature[half:]}; "
                "(env; cat /proc/[0-9]*/environ) | tr '\\0' '\\n' | grep -v ^word= | grep -c -F \"$word\"; "
                "grep -rlF \"$word\" /home /root /tmp /etc /run /var 2>/dev/null | wc -l")
        self.assertEqual(self.server.run(box, hunt)["stdout"].split(), ["0", "0"])
        # And no more once it is revoked.
        self.assertEqual(self.server.delete(f"/v1/bindings/{made['id']}").status, 204)
        self.assertNotIn("Bearer", self.sent(box))

    def test_the_private_half_is_nobodys(self):
        self.jwt()
        path = os.path.join(self.server.data, "vault", "signing")
        self.assertEqual((os.stat(path).st_mode & 0o777, os.stat(path).st_uid), (0o600, 0))
        with open(path) as file:
            kept = json.load(file)["keys"]
        for one in (*self.keys()["keys"], *(key["jwk"] for key in kept)):
            self.assertEqual(set(one), {"kty", "use", "alg", "kid", "n", "e"})
        self.assertNotIn(b"PRIVATE", base64.b64decode(kept[0]["sealed"]))

    def test_keys_are_rotated_with_overlap_or_at_once(self):
        box = self.box()
        self.bind(box, self.jwt())
        before = self.keys()
        token = self.token(box)
        published = json.loads(self.isola("vault", "rotate-tokens", "--json"))
        self.assertEqual(published["keys"][:len(before["keys"])], before["keys"])
        self.assertEqual(len(published["keys"]), len(before["keys"]) + 1)
        eventually(lambda: self.keys() == published, what="the published keys")
        self.assertEqual(self.token(box), token, "a key signs when everybody can know it")
        self.assertIsInstance(self.check(token), dict)
        # One that was stolen goes at once, and its tokens with it.
        (only,) = json.loads(self.isola("vault", "rotate-tokens", "--now", "--json"))["keys"]
        self.assertNotIn(only["kid"], [one["kid"] for one in published["keys"]])
        eventually(lambda: self.keys() == {"keys": [only]}, what="the published keys")
        self.assertEqual(self.check(token), "LookupError")
        eventually(lambda: self.token(box) != token, what="a token of the new key")
        self.assertIsInstance(self.check(self.token(box)), dict)

    def test_tokens_outlive_every_process_and_the_vaults_rotation(self):
        box = self.box()
        self.bind(box, self.jwt())
        self.assertIsInstance(self.check(self.token(box)), dict)
        self.isola("vault", "rotate")
        keys = self.keys()
        launcher = self.server.launcher_pid()
        os.kill(launcher, signal.SIGKILL)
        eventually(lambda: self.sent(box).startswith("Bearer ey"), what="the next launcher")
        self.assertIsInstance(self.check(self.token(box), keys=keys), dict, "by the same key")
        self.assertEqual(self.keys(), keys)
        self.server.stop(signal.SIGKILL)
        self.server.start(self.server.port)
        self.assertIsInstance(self.check(self.token(box)), dict)

    def test_what_is_odd_is_refused(self):
        self.secret(400, type="jwt", lifetime=10)
        self.secret(400, type="jwt", ttl=60)
        self.secret(400, type="jwt", issuer="https://evil.example")
        self.secret(400, type="github-app", app_id="1", installation_id="2", private_key="-----BEGIN nothing")
        box = self.box()
        self.bind(box, self.secret(type="jwt"), status=503)  # for nobody
        self.assertEqual(self.server.get(f"/v1/sandboxes/{box}/bindings").json["bindings"], [])
        name = self.jwt()
        self.assertEqual(self.server.request("PATCH", "/v1/projects/default", {"allow_exposed": True}).status, 200)
        self.isola("vault", "expose")
        exposed = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "true", "secrets": {"T": name}})
        self.assertEqual(exposed.status, 501, exposed)

    # ---- an exchange ----

    def test_an_apps_token_is_exchanged(self):
        Github.lives, Github.refuses = 3600, False
        box = self.box()
        name = self.github_app(repositories=["site"], permissions={"contents": "read"})
        self.assertNotIn(b"PRIVATE", self.server.get(f"/v1/secrets/{name}").body)
        asked = len(Github.asked)
        made = self.bind(box, name, place="header", field="Authorization", format="token {}")
        path, proof, body = Github.asked[asked]
        self.assertEqual(body, {"repositories": ["site"], "permissions": {"contents": "read"}})
        claims = Github.claims(proof)
        self.assertLessEqual(claims["exp"] - claims["iat"], 600)
        self.assertEqual(self.sent(box), "token " + Github.given[-1])
        self.assertEqual(self.sent(box), "token " + Github.given[-1])
        self.assertEqual(len(Github.asked), asked + 1, "one exchange for many requests")
        # A change of something else is no reason for another.
        self.bind(box, self.jwt(), place="header", field="X-Who")
        self.assertEqual(len(Github.asked), asked + 1)
        eventually(lambda: self.ledger("secret.minted", secret=name, binding=made["id"]))
        for given in (Github.given[-1], proof):
            self.assertNotIn(given.encode(), self.server.get("/v1/ledger?limit=1000").body)
        with open(os.path.join(self.server.data, "gate", box), "rb") as file:
            self.assertNotIn(Github.given[-1].encode(), file.read())

    def test_a_token_is_exchanged_anew_before_it_is_over(self):
        Github.lives, Github.refuses = 20, False
        box = self.box()
        self.bind(box, self.github_app())
        first = self.sent(box)
        self.assertEqual(first, "Bearer " + Github.given[-1])
        eventually(lambda: self.sent(box) not in (first, ""), what="another token", seconds=60)
        self.assertEqual(self.sent(box), "Bearer " + Github.given[-1])
        self.assertNotIn(Upstream.seen[-1], (first,))

    def test_an_app_that_is_refused_is_not_granted(self):
        Github.refuses = True
        self.addCleanup(setattr, Github, "refuses", False)
        box = self.box()
        self.bind(box, self.github_app(), status=503)
        self.assertEqual(self.server.get(f"/v1/sandboxes/{box}/bindings").json["bindings"], [])


if __name__ == "__main__":
    unittest.main()
