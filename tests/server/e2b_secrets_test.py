"""Secrets and network.rules as E2B's clients say them: a program inside reaches a server that demands a key, and the key is
nowhere inside, in no reply, and in no file of the server."""
import hashlib
import json
import os
import secrets
import subprocess
import unittest

from demanding import Demanding
from island import FULL, Server, built, eventually

TEMPLATE = next((name for name in ("base", "code-interpreter") if built(name)), None)  # with Python inside
ISSUER = "https://isola.rules.example"
NAME, OTHER = "api.rules.example", "deep.below.rules.example"
FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode(), end="")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode(), end="")
except Exception as error:
    print("failed:", error, end="")
"""


def rule(**headers):
    return [{"transform": {"headers": {name.replace("_", "-"): value for name, value in headers.items()}}}]


class Secrets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def call(self, method, path, body=None, key=None):
        return self.server.request(method, path, body, key="", headers={"X-API-Key": key or self.server.key})

    def test_a_life(self):
        value = "hunter-" + secrets.token_hex(8)
        made = self.call("POST", "/secrets", {"name": "OpenAI", "value": value, "metadata": {"team": "a"}})
        self.assertEqual(made.status, 201, made)
        one = made.json
        self.assertEqual((one["name"], one["currentVersion"], one["metadata"]), ("openai", 1, {"team": "a"}))
        self.assertTrue(one["secretID"].startswith("sec_"))
        for word in ("openai", "OpenAI", one["secretID"]):
            self.assertEqual(self.call("GET", f"/secrets/{word}").json, one)
        again = self.call("POST", "/secrets", {"name": "openai", "value": "x"})
        self.assertEqual((again.status, again.json["code"]), (409, 409))
        changed = self.call("POST", f"/secrets/{one['secretID']}", {"value": value + "2"})
        self.assertEqual(changed.status, 200, changed)
        self.assertEqual((changed.json["currentVersion"], changed.json["metadata"]), (2, {"team": "a"}))
        changed = self.call("POST", "/secrets/openai", {"value": value, "metadata": {}})
        self.assertEqual((changed.json["currentVersion"], changed.json["metadata"]), (3, {}))
        # The other API has the same one.
        self.assertEqual(self.server.get("/v1/secrets/openai").json["version"], 3)
        for reply in (made, changed, self.call("GET", "/secrets"), self.server.get("/v1/secrets")):
            self.assertNotIn(value.encode(), reply.body)
        self.assertEqual(self.call("DELETE", f"/secrets/{one['secretID']}").status, 204)
        for method, body in (("GET", None), ("DELETE", None), ("POST", {"value": "x"})):
            gone = self.call(method, "/secrets/openai", body)
            self.assertEqual((gone.status, gone.json["code"]), (404, 404))

    def test_pages(self):
        for n in range(5):
            self.assertEqual(self.call("POST", "/secrets", {"name": f"page-{n}", "value": "v"}).status, 201)
        seen, token = [], ""
        for _ in range(10):
            page = self.call("GET", "/secrets?limit=2" + (f"&nextToken={token}" if token else ""))
            self.assertLessEqual(len(page.json), 2)
            seen += [one["name"] for one in page.json]
            token = page.headers.get("x-next-token", "")
            if not token:
                break
        self.assertEqual([name for name in seen if name.startswith("page-")], [f"page-{n}" for n in range(5)])
        self.assertEqual(len(seen), len(set(seen)))
        for n in range(5):
            self.call("DELETE", f"/secrets/page-{n}")

    def test_what_is_refused(self):
        for body in ({"name": "x"}, {"name": "x", "value": ""}, {"name": "x", "value": 1}, {"value": "x"},
                     {"name": "sec_x", "value": "x"}, {"name": "a b", "value": "x"}, {"name": "x", "value": "y" * 17000},
                     {"name": "x", "value": "y", "metadata": {"a": 1}}, {"name": "x", "value": "y", "metadata": {"a": "b" * 1025}},
                     {"name": "x", "value": "y", "metadata": {str(n): "b" for n in range(33)}}, "{", "[]"):
            reply = self.call("POST", "/secrets", body)
            self.assertEqual((reply.status, reply.json["code"]), (400, 400), (body, reply))
        for limit in ("0", "101", "x"):
            self.assertEqual(self.call("GET", f"/secrets?limit={limit}").status, 400)
        use = self.server.post("/v1/keys", {"scope": "use"}).json["secret"]
        self.assertEqual(self.call("POST", "/secrets", {"name": "x", "value": "y"}, key=use).status, 403)
        self.assertEqual(self.call("DELETE", "/secrets/x", key=use).status, 403)
        self.assertEqual(self.call("GET", "/secrets", key="e2b_" + "0" * 40).status, 401)


@unittest.skipUnless(TEMPLATE or FULL, "no template with Python is built")
class Rules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        assert TEMPLATE, "a full run has a template with Python: nothing was tried"
        cls.outside = Demanding(NAME, OTHER)
        cls.server = Server("--issuer", ISSUER, env=cls.outside.environment)
        cls.secret = "s" + secrets.token_hex(4)
        cls.put(cls.secret, cls.outside.key)

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.outside.close()

    @classmethod
    def call(cls, method, path, body=None, key=None):
        return cls.server.request(method, path, body, key="", headers={"X-API-Key": key or cls.server.key})

    @classmethod
    def put(cls, name, value):
        reply = cls.call("POST", "/secrets", {"name": name, "value": value})
        assert reply.status == 201, reply

    def network(self, rules):
        return {"allowOut": [NAME, OTHER, self.outside.address], "denyOut": ["0.0.0.0/0"], "rules": rules}

    def box(self, rules=None, key=None, **more):
        reply = self.call("POST", "/v2/sandboxes",
                          {"templateID": TEMPLATE, "timeout": 600, "network": self.network(rules or {}), **more}, key=key)
        self.assertEqual(reply.status, 201, reply)
        box = reply.json["sandboxID"]
        self.addCleanup(lambda: self.call("DELETE", f"/sandboxes/{box}"))
        return box

    def fetch(self, box, path="/", host=NAME):
        reply = self.server.post(f"/v1/sandboxes/{box}/commands",
                                 {"argv": ["python3", "-c", FETCH, f"https://{host}{path}"]})
        return reply.json["stdout"] if reply.status == 200 else str(reply)

    def hash(self, box, header, host=NAME):
        return self.fetch(box, f"/hash?of={header}", host)

    def test_a_secret_goes_out_and_is_nowhere_inside(self):
        box = self.box({NAME: rule(Authorization="Bearer ${e2b.secrets.%s}" % self.secret, X_Team="blue")})
        self.assertEqual(self.fetch(box), "welcome", self.server.log())
        self.assertEqual(self.hash(box, "X-Team"), hashlib.sha256(b"blue").hexdigest())
        # At another name there is nothing of it.
        self.assertNotIn("welcome", self.fetch(box, host=OTHER))
        self.assertNotEqual(self.hash(box, "X-Team", OTHER), hashlib.sha256(b"blue").hexdigest())
        key = self.outside.key
        half = len(key) // 2
        hunt = (f"word={key[:half]}; word=$word''{key[half:]}; "
                "(env; cat /proc/[0-9]*/environ) | tr '\\0' '\\n' | grep -v ^word= | grep -c -F \"$word\"; "
                "grep -rlF \"$word\" /home /root /tmp /etc /run /var /usr/local 2>/dev/null | wc -l")
        self.assertEqual(self.server.run(box, hunt)["stdout"].split(), ["0", "0"])
        rules = self.call("GET", f"/sandboxes/{box}").json["network"]["rules"]
        self.assertEqual(rules, {NAME: rule(Authorization="Bearer ${e2b.secrets.%s}" % self.secret, X_Team="***")})

    def test_a_value_of_its_own_is_the_sandboxes_alone(self):
        mine = "written-out-" + secrets.token_hex(8)
        use = self.server.post("/v1/keys", {"scope": "use"}).json["secret"]
        before = self.server.get("/v1/secrets").body
        box = self.box({"*.rules.example": rule(Authorization="Bearer " + self.outside.key, X_Mine=mine)}, key=use)
        self.assertEqual(self.fetch(box), "welcome")
        self.assertEqual(self.fetch(box, host=OTHER), "welcome")
        self.assertEqual(self.hash(box, "X-Mine"), hashlib.sha256(mine.encode()).hexdigest())
        for path in (f"/sandboxes/{box}", "/v2/sandboxes", "/secrets"):
            self.assertNotIn(mine.encode(), self.call("GET", path).body)
        for path in (f"/v1/sandboxes/{box}", "/v1/bindings", "/v1/secrets", f"/v1/events?sandbox={box}"):
            self.assertNotIn(mine.encode(), self.server.get(path).body)
        self.assertEqual(self.server.get("/v1/secrets").body, before, "nobody finds it by a name")
        # In what the server, the gate and the launcher write; the files of sandboxes are hunted through from inside.
        places = [os.path.join(self.server.data, name) for name in os.listdir(self.server.data)
                  if name in ("server", "gate", "vault", "run", "test.log") or "ledger" in name]
        self.assertGreater(len(places), 3)
        found = subprocess.run(["grep", "-rlaF", mine, *places], capture_output=True, text=True).stdout
        self.assertEqual(found, "")
        bindings = self.server.get("/v1/bindings").json["bindings"]
        self.assertTrue([one for one in bindings if one.get("sandbox") == box], bindings)
        hidden = next(one["secret"] for one in bindings if one.get("sandbox") == box)
        for method, path, body in (("GET", f"/v1/secrets/{hidden}", None), ("PUT", f"/v1/secrets/{hidden}", {"value": "x"}),
                                   ("DELETE", f"/v1/secrets/{hidden}", None),
                                   ("POST", "/v1/bindings", {"secret": hidden, "names": [OTHER]})):
            self.assertEqual(self.server.request(method, path, body).status, 404, (method, path))
        self.call("DELETE", f"/sandboxes/{box}")
        eventually(lambda: hidden.encode() not in self.server.get("/v1/bindings").body, what="the end of its bindings")

    def test_the_narrowest_rule_counts(self):
        box = self.box({"*.rules.example": rule(X_Who="wide"), "*.below.rules.example": rule(x_who="narrow"), NAME: rule(X_WHO="exact")})
        self.assertEqual(self.hash(box, "X-Who"), hashlib.sha256(b"exact").hexdigest())
        self.assertEqual(self.hash(box, "X-Who", OTHER), hashlib.sha256(b"narrow").hexdigest())

    def test_an_update_replaces_all_of_it(self):
        box = self.box()
        self.assertNotIn("welcome", self.fetch(box))
        path = f"/sandboxes/{box}/network"
        rules = {NAME: rule(Authorization="Bearer ${e2b.secrets.%s}" % self.secret, X_A="1")}
        self.assertEqual(self.call("PUT", path, self.network(rules)).status, 204)
        self.assertEqual(self.fetch(box), "welcome")
        # What cannot be granted changes nothing, and what is bound by other means stays.
        bad = {NAME: rule(Authorization="Bearer ${e2b.secrets.nobody-has-this}")}
        self.assertEqual(self.call("PUT", path, self.network(bad)).status, 400)
        self.assertEqual(self.fetch(box), "welcome")
        bound = self.server.post(f"/v1/sandboxes/{box}/bindings", {"secret": self.secret, "names": [OTHER]})
        self.assertEqual(bound.status, 201, bound)
        self.assertEqual(self.call("PUT", path, self.network({NAME: rule(X_A="2")})).status, 204)
        self.assertIn("who are you", self.fetch(box))
        self.assertEqual(self.hash(box, "X-A"), hashlib.sha256(b"2").hexdigest())
        self.assertEqual(self.fetch(box, host=OTHER), "welcome")
        self.assertEqual(self.call("PUT", path, self.network({})).status, 204)
        self.assertNotEqual(self.hash(box, "X-A"), hashlib.sha256(b"2").hexdigest())
        self.assertNotIn("rules", self.call("GET", f"/sandboxes/{box}").json["network"])

    def test_another_value_and_an_end(self):
        name = "r" + secrets.token_hex(4)
        self.put(name, "opens nothing")
        box = self.box({NAME: rule(Authorization="Bearer ${e2b.secrets.%s}" % name)})
        self.assertIn("who are you", self.fetch(box))
        self.assertEqual(self.call("POST", f"/secrets/{name}", {"value": self.outside.key}).status, 200)
        self.assertEqual(self.fetch(box), "welcome")
        self.assertEqual(self.call("DELETE", f"/secrets/{name}").status, 204)
        self.assertNotIn("welcome", self.fetch(box))

    def test_it_is_there_after_a_pause_and_in_a_fork(self):
        mine = secrets.token_hex(8)
        box = self.box({NAME: rule(Authorization="Bearer ${e2b.secrets.%s}" % self.secret, X_Mine=mine)})
        paused = self.call("POST", f"/sandboxes/{box}/pause")
        if paused.status == 501:
            self.skipTest("no memory images here: " + paused.json["message"])
        self.assertEqual(paused.status, 204, paused)
        self.assertEqual(self.call("POST", f"/v2/sandboxes/{box}/connect", {"timeout": 600}).status, 201)
        self.assertEqual(self.fetch(box), "welcome")
        forked = self.call("POST", f"/sandboxes/{box}/fork", {"count": 2, "timeout": 600})
        self.assertEqual(forked.status, 201, forked)
        children = [one["sandbox"]["sandboxID"] for one in forked.json]
        self.call("DELETE", f"/sandboxes/{box}")  # what is theirs does not go with their parent
        for child in children:
            self.assertEqual(self.fetch(child), "welcome")
            self.assertEqual(self.hash(child, "X-Mine"), hashlib.sha256(mine.encode()).hexdigest())
            self.call("DELETE", f"/sandboxes/{child}")

    def test_it_is_there_after_a_new_key_of_the_vault(self):
        mine = secrets.token_hex(8)
        box = self.box({NAME: rule(X_Mine=mine)})
        rotated = subprocess.run([os.environ["ISOLA_BINARY"], "vault", "rotate", "--data", self.server.data],
                                 capture_output=True, text=True)
        self.assertEqual(rotated.returncode, 0, rotated)
        self.server.stop(9)
        self.server.start(self.server.port)
        self.assertEqual(self.hash(box, "X-Mine"), hashlib.sha256(mine.encode()).hexdigest())
        fresh = self.box({NAME: rule(Authorization="Bearer ${e2b.secrets.%s}" % self.secret)})
        self.assertEqual(self.fetch(fresh), "welcome")

    def test_who_may_say_so(self):
        use = self.server.post("/v1/keys", {"scope": "use"}).json["secret"]
        body = {"templateID": TEMPLATE, "network": self.network({NAME: rule(A="${e2b.secrets.%s}" % self.secret)})}
        reply = self.call("POST", "/sandboxes", body, key=use)
        self.assertEqual((reply.status, reply.json["code"]), (403, 403))
        box = self.box({}, key=use)
        self.assertEqual(self.call("PUT", f"/sandboxes/{box}/network", body["network"], key=use).status, 403)
        project = self.server.post("/v1/projects", {"name": "others"}).json["id"]
        other = self.server.post("/v1/keys", {"project": project, "scope": "admin"}).json["secret"]
        reply = self.call("POST", "/sandboxes", body, key=other)
        self.assertEqual(reply.status, 400, "another project's secret does not exist")
        # A token of its identity: not one that nobody named, and not by such a key either.
        body["network"]["rules"] = {NAME: rule(A="${e2b.identity.tokens.aws}")}
        self.assertEqual(self.call("POST", "/sandboxes", body).status, 400)
        body["iam"] = {"tokens": {"aws": {"audience": "sts.example", "tokenType": "JWT-SVID"}}}
        self.assertEqual(self.call("POST", "/sandboxes", body, key=use).status, 403)

    def test_a_token_says_who_the_sandbox_is(self):
        tokens = {"aws": {"audience": "sts.example", "tokenType": "JWT-SVID"},
                  "other": {"audience": "https://other.example", "tokenType": "JWT-SVID"}}
        before = self.server.get("/v1/secrets").body
        box = self.box({NAME: rule(Authorization="Bearer ${e2b.identity.tokens.aws}")}, iam={"tokens": tokens})
        claims = json.loads(self.fetch(box, "/claims"))
        self.assertEqual((claims["iss"], claims["aud"], claims["sandbox"]), (ISSUER, "sts.example", box))
        self.assertEqual(self.server.get("/v1/secrets").body, before, "nobody finds it by a name")
        # Those that a create named can be named later, too.
        change = self.network({NAME: rule(Authorization="Bearer ${e2b.identity.tokens.other}")})
        self.assertEqual(self.call("PUT", f"/sandboxes/{box}/network", change).status, 204)
        self.assertEqual(json.loads(self.fetch(box, "/claims"))["aud"], "https://other.example")
        change = self.network({NAME: rule(Authorization="Bearer ${e2b.identity.tokens.third}")})
        self.assertEqual(self.call("PUT", f"/sandboxes/{box}/network", change).status, 400)
        self.assertEqual(self.call("PUT", f"/sandboxes/{box}/network", self.network({})).status, 204)
        self.assertEqual(self.fetch(box, "/claims"), "none")

    def test_without_an_issuer_there_are_no_tokens(self):
        server = Server()
        self.addCleanup(server.close)
        body = {"templateID": TEMPLATE, "iam": {"tokens": {"aws": {"audience": "x", "tokenType": "JWT-SVID"}}}}
        reply = server.request("POST", "/sandboxes", body, key="", headers={"X-API-Key": server.key})
        self.assertEqual(reply.status, 501, reply)


if __name__ == "__main__":
    unittest.main()
