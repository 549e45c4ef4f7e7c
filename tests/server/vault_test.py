"""Secrets and bindings over real HTTP: values come in and are nowhere, grants outlive every process, revocation holds."""
import base64
import http.server
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import threading
import unittest

from island import ISOLA, Server, eventually

POLICY = "allow api.example.org:443"


def forms(value):
    """How a value could lie about: as it is, and as base64 at each of its three alignments, and as hex."""
    raw = value.encode()
    yield raw
    yield raw.hex().encode()
    for shift in range(3):
        # The characters that follow from the value alone; so many that no random id is one of them by chance.
        needle = base64.b64encode(b"\0" * shift + raw)[-(-8 * shift // 6):8 * (shift + len(raw)) // 6]
        assert len(needle) >= 12, f"{value} is too short to be looked for"
        yield needle


def files_with(folder, value):
    needles = list(forms(value))
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            try:
                if os.path.islink(full) or not os.path.isfile(full) or os.path.getsize(full) > 64 << 20:
                    continue
                with open(full, "rb") as file:
                    content = file.read()
            except OSError:
                continue
            for needle in needles:
                if needle in content:
                    at = content.index(needle)
                    found.append((full, at, content[max(at - 40, 0):at + len(needle) + 40]))
    return found


def in_memory(pid, needles):
    """Whether the memory of a process has any of these; mappings that cannot be read are passed over."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            start, end = (int(x, 16) for x in place.split("-"))
            if end - start > 1 << 40:  # a sanitizer's shadow of all memory
                continue
            try:
                memory.seek(start)
                content = memory.read(end - start)
            except (OSError, ValueError, OverflowError, MemoryError):
                continue
            if any(needle in content for needle in needles):
                return line
    return None


def sanitized(pid):
    with open(f"/proc/{pid}/maps") as maps:
        content = maps.read()
    return "libasan" in content or "libtsan" in content


def children_named(pid, word):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline", "rb") as line:
                    if int(stat.read().rsplit(")", 1)[1].split()[1]) == pid and word in line.read():
                        found.append(int(entry))
            except OSError:
                pass
    return found


class Fields:
    """The form of messages between the server's processes (src/base/codec.h)."""

    def __init__(self, content):
        self.left = content

    def take(self, count):
        taken, self.left = self.left[:count], self.left[count:]
        assert len(taken) == count, "cut short"
        return taken

    def number(self, size):
        return int.from_bytes(self.take(size), "little")

    def bytes(self):
        return self.take(self.number(4))

    def list(self):
        return [self.bytes() for _ in range(self.number(4))]


def bindings_in(content):
    """As src/vault/binding_wire.cc writes them: those of their fields that are looked at here."""
    reader = Fields(content)
    assert reader.number(1) == 1, "another form"
    found = []
    for _ in range(reader.number(4)):
        texts = [reader.bytes() for _ in range(14)]
        reader.list(), reader.list()
        reader.take(4 + 3 * 8)
        found.append({"id": texts[0].decode(), "secret": texts[1].decode(), "sealed": texts[9]})
    assert not reader.left, "more than they are"
    return found


class Vault(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.value_of_operator = "operator-" + secrets.token_hex(12)
        cls.server = Server(env={"ISOLA_SECRET_OPERATOR": cls.value_of_operator})

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    # ---- what the tests say ----

    def secret(self, value=None, **more):
        name = "s" + secrets.token_hex(6)
        body = {"name": name, **({"value": value} if value else {}), **more}
        reply = self.server.post("/v1/secrets", body)
        self.assertEqual(reply.status, 201, reply)
        return name

    def bind(self, target, secret, status=201, **more):
        reply = self.server.post(target, {"secret": secret, "names": ["api.example.org"], **more})
        self.assertEqual(reply.status, status, reply)
        return reply.json

    def box(self, **more):
        box = self.server.create(network=POLICY, **more)
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{box['id']}"))
        return box["id"]

    def grants(self, box):
        return [one["id"] for one in self.server.get(f"/v1/sandboxes/{box}/bindings").json["bindings"]]

    def terms(self, box):
        return [one["id"] for one in self.kept(box)]

    def kept(self, box):
        """What the launcher has written down for the gate: the last text in the file."""
        try:
            with open(os.path.join(self.server.data, "gate", box), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return []
        reader = Fields(content)
        texts = [reader.bytes() for _ in range(3)]
        return bindings_in(texts[2]) if texts[2] else []

    def isola(self, *words, status=0, text="", **env):
        done = subprocess.run([ISOLA, words[0], "--data", self.server.data, *words[1:]] if "--" in words else
                              [ISOLA, *words, "--data", self.server.data], input=text, capture_output=True, text=True,
                              env={**os.environ, **env}, timeout=120)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def ledger(self, kind, **match):
        found = self.server.get(f"/v1/ledger?kind={kind}&limit=1000").json["events"]
        return [one for one in found if all(one["data"].get(k) == v for k, v in match.items())]

    # ---- values ----

    def test_a_value_comes_in_and_is_nowhere(self):
        value = "value-" + secrets.token_hex(16)
        name = self.secret(value)
        box = self.box()
        mine = self.bind(f"/v1/sandboxes/{box}/bindings", name)
        replies = [self.server.get("/v1/secrets"), self.server.get(f"/v1/secrets/{name}"),
                   self.server.get("/v1/bindings"), self.server.get(f"/v1/sandboxes/{box}/bindings"),
                   self.server.get(f"/v1/sandboxes/{box}"), self.server.get("/v1/ledger?limit=1000")]
        for reply in replies:
            self.assertEqual(reply.status, 200)
            for needle in forms(value):
                self.assertNotIn(needle, reply.body)
            self.assertNotIn(b"sealed", reply.body)
        self.assertEqual(self.terms(box), [mine["id"]], "the launcher has it for the gate")
        self.assertEqual(files_with(self.server.data, value), [], "no file has it, the log included")
        launcher = self.server.launcher_pid()
        for pid in [self.server.process.pid, launcher, *children_named(launcher, b"gate")]:
            for file in ("environ", "cmdline"):
                with open(f"/proc/{pid}/{file}", "rb") as content:
                    self.assertNotIn(value.encode(), content.read())
        self.assertIsNone(in_memory(launcher, list(forms(value))), "the launcher never holds a value")
        # The operator's variables were for the launcher, which has them; the server, whom strangers talk to, has not.
        operators = self.value_of_operator.encode()
        with open(f"/proc/{launcher}/environ", "rb") as content:
            self.assertIn(operators, content.read())
        with open(f"/proc/{self.server.process.pid}/environ", "rb") as content:
            self.assertNotIn(operators, content.read())
        if sanitized(self.server.process.pid):
            print("skipped: the operator's variables in the server's memory: a sanitizer keeps a copy for itself")
        else:
            self.assertIsNone(in_memory(self.server.process.pid, [operators]), "nor anywhere else")

    def test_the_key_is_the_launchers_and_the_gates_alone(self):
        with open(os.path.join(self.server.data, "vault", "key"), "rb") as file:
            content = file.read()
        self.assertEqual(os.stat(file.name).st_mode & 0o777, 0o600)
        keys = content[-64:]
        current, gate = keys[:32], keys[32:]
        self.secret("warm up")
        launcher = self.server.launcher_pid()
        self.assertIsNotNone(in_memory(launcher, [current]), "the test finds it where it is")
        self.assertIsNone(in_memory(self.server.process.pid, [current, gate]), "the server has neither")
        box = self.box()
        self.bind(f"/v1/sandboxes/{box}/bindings", self.secret("x1" * 10))
        for pid in children_named(launcher, b"gate"):
            self.assertIsNone(in_memory(pid, [current]), "the gate has its own key, not the vault's")
        # A core of the launcher would not have it: its memory is not dumpable, and the key's pages are left out.
        with open(f"/proc/{launcher}/smaps") as maps:
            locked = "" if self.server.sanitized() else " lo"  # sanitizers lock nothing, without a word
            self.assertTrue(any(line.startswith("VmFlags") and " dd" in line and locked in line for line in maps))
        self.assertEqual(os.stat(f"/proc/{launcher}/environ").st_uid, 0)

    def test_versions_and_refusals(self):
        name = self.secret("one")
        self.assertEqual(self.server.post("/v1/secrets", {"name": name, "value": "two"}).status, 409)
        changed = self.server.request("PUT", f"/v1/secrets/{name}", {"value_base64": base64.b64encode(b"\0\1").decode()})
        self.assertEqual((changed.status, changed.json["version"]), (200, 2))
        for bad in ({"name": "../x", "value": "v"}, {"name": "x"}, {"name": "x", "value": ""},
                    {"name": "x", "value": "v", "source": {"type": "env", "name": "A"}},
                    {"name": "x", "value": "y" * (16 * 1024 + 1)}, {"name": "x", "value_base64": "!"},
                    {"name": "x", "value": 7}, {"name": "x", "source": {"type": "gopher"}},
                    {"name": "x", "value": "v", "colour": "red"}):
            reply = self.server.post("/v1/secrets", bad)
            self.assertEqual(reply.status, 400, (bad, reply))
        self.assertEqual(self.server.request("PUT", "/v1/secrets/nothing", {"value": "x"}).status, 404)
        # Tokens of identity need somebody who signs.
        signed = self.server.post("/v1/secrets", {"name": "x", "source": {"type": "jwt", "audience": "https://a.example"}})
        self.assertEqual(signed.status, 501, signed)
        for path in ("openid-configuration", "jwks.json"):
            self.assertEqual(self.server.get("/.well-known/" + path, key="").status, 404)
        self.assertEqual(self.server.delete("/v1/secrets/nothing").status, 404)

    def test_bindings_are_refused_where_they_are_too_wide(self):
        name = self.secret("a value")
        box = self.box()
        for more in ({"names": ["*"]}, {"names": []}, {"names": ["Api.example.org"]}, {"place": "cookie"},
                     {"place": "header", "field": "Host"}, {"place": "header", "field": "X", "format": "a\r\nb: {}"},
                     {"methods": ["get"]}, {"path_prefix": "/a/../b"}, {"ports": "0"}, {"secret": "no spaces"},
                     {"placeholder": "x"}, {"colour": "red"}):
            reply = self.server.post(f"/v1/sandboxes/{box}/bindings",
                                     {"secret": name, "names": ["api.example.org"], **more})
            self.assertEqual(reply.status, 400, (more, reply))
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/bindings",
                                          {"secret": "nothing", "names": ["api.example.org"]}).status, 404)
        self.assertEqual(self.grants(box), [])

    def test_only_admin_keys_say_where_a_value_goes(self):
        made = self.server.post("/v1/keys", {"name": "worker", "scope": "use"}).json["secret"]
        name = self.secret("a value")
        box = self.box()
        for method, path, body in (("POST", "/v1/secrets", {"name": "x", "value": "v"}),
                                   ("PUT", f"/v1/secrets/{name}", {"value": "v"}),
                                   ("DELETE", f"/v1/secrets/{name}", None),
                                   ("POST", "/v1/bindings", {"secret": name, "names": ["a.example.org"]}),
                                   ("POST", f"/v1/sandboxes/{box}/bindings",
                                    {"secret": name, "names": ["a.example.org"]})):
            self.assertEqual(self.server.request(method, path, body, key=made).status, 403, path)
        self.assertEqual(self.server.get("/v1/secrets", key=made).status, 200)
        # Another project has its own, and nothing of this machine.
        project = self.server.post("/v1/projects", {"name": "p" + secrets.token_hex(4)}).json["id"]
        other = self.server.post("/v1/keys", {"name": "o", "scope": "admin", "project": project}).json["secret"]
        self.assertEqual(self.server.get(f"/v1/secrets/{name}", key=other).status, 404)
        self.assertEqual(self.server.get("/v1/bindings", key=other).json["bindings"], [])
        for source in ({"type": "env", "name": "PATH"}, {"type": "file", "path": "/etc/hostname"},
                       {"type": "command", "argv": ["/bin/true"]}):
            reply = self.server.post("/v1/secrets", {"name": "x", "source": source}, key=other)
            self.assertEqual(reply.status, 403, reply)

    # ---- who has it ----

    def test_a_grant_comes_and_goes(self):
        name = self.secret("value 1")
        box = self.box()
        made = self.bind(f"/v1/sandboxes/{box}/bindings", name, methods=["GET"], path_prefix="/repos/",
                         place="header", field="X-Token", format="token {}", make_placeholder=True)
        self.assertTrue(made["placeholder"].startswith("isola-placeholder-"))
        self.assertEqual(self.terms(box), [made["id"]])
        self.assertEqual(self.server.delete(f"/v1/sandboxes/{box}/bindings/{made['id']}").status, 204)
        self.assertEqual(self.terms(box), [])
        self.assertEqual(self.grants(box), [])
        self.assertEqual(self.server.delete(f"/v1/sandboxes/{box}/bindings/{made['id']}").status, 404)
        # With its secret.
        again = self.bind(f"/v1/sandboxes/{box}/bindings", name)
        self.assertEqual(self.terms(box), [again["id"]])
        self.assertEqual(self.server.delete(f"/v1/secrets/{name}").status, 204)
        self.assertEqual((self.terms(box), self.grants(box)), ([], []))
        self.assertEqual(len(self.ledger("grant.created", secret=name)), 2)
        self.assertEqual([one["data"].get("reason") for one in self.ledger("grant.revoked", secret=name)],
                         [None, "its secret was deleted"])
        self.assertEqual(len(self.ledger("secret.deleted", secret=name)), 1)

    def test_a_grant_of_the_project_and_of_a_template(self):
        name = self.secret("a value")
        before = self.box()
        plain = self.box(grants=False)
        shared = self.bind("/v1/bindings", name)
        mine = self.bind("/v1/bindings", name, template="minimal")
        other = self.bind("/v1/bindings", name, template="elsewhere")
        self.addCleanup(lambda: [self.server.delete(f"/v1/bindings/{one['id']}") for one in (shared, mine, other)])
        after = self.box()
        for box in (before, after):
            self.assertEqual(self.terms(box), [mine["id"], shared["id"]], "the nearest comes first")
        self.assertEqual(self.terms(plain), [])
        self.assertEqual(self.server.delete(f"/v1/sandboxes/{after}/bindings/{shared['id']}").status, 404,
                         "what is not its own is not its to revoke")
        self.assertEqual(self.server.delete(f"/v1/bindings/{shared['id']}").status, 204)
        for box in (before, after):
            self.assertEqual(self.terms(box), [mine["id"]])

    def test_a_grant_expires(self):
        name = self.secret("a value")
        box = self.box()
        made = self.bind(f"/v1/sandboxes/{box}/bindings", name, expires_in=1)
        self.assertIsNotNone(made["expires"])
        eventually(lambda: self.terms(box) == [], what="the end of the grant")
        self.assertEqual(self.grants(box), [])
        eventually(lambda: self.ledger("grant.revoked", binding=made["id"], reason="it has expired"))

    def test_what_reaches_nothing_has_nothing(self):
        name = self.secret("a value")
        box = self.server.create()["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{box}"))
        made = self.bind(f"/v1/sandboxes/{box}/bindings", name)
        self.assertEqual(self.terms(box), [])
        self.assertEqual(self.server.request("PUT", f"/v1/sandboxes/{box}/network", {"policy": POLICY}).status, 200)
        self.assertEqual(self.terms(box), [made["id"]])

    def test_forks_and_resumed_ones_are_granted_anew(self):
        if not self.server.get("/v1/info").json.get("memory_images", True):
            self.skipTest("no memory images on this machine")
        name = self.secret("a value")
        shared = self.bind("/v1/bindings", name)
        self.addCleanup(lambda: self.server.delete(f"/v1/bindings/{shared['id']}"))
        box = self.box()
        own = self.bind(f"/v1/sandboxes/{box}/bindings", name)
        fork = self.server.post(f"/v1/sandboxes/{box}/fork", {})
        if fork.status == 501:
            self.skipTest("no memory images on this machine")
        child = fork.json["sandboxes"][0]["id"]
        keeping = self.server.post(f"/v1/sandboxes/{box}/fork", {"keep_grants": True}).json["sandboxes"][0]["id"]
        for one in (child, keeping):
            self.addCleanup(lambda one=one: self.server.delete(f"/v1/sandboxes/{one}"))
        self.assertEqual((self.grants(child), self.terms(child)), ([], []))
        self.assertEqual(len(self.grants(keeping)), 2)
        self.assertNotIn(own["id"], self.grants(keeping), "a copy of its own")
        self.assertEqual(len(self.terms(keeping)), 2)
        self.assertEqual(self.terms(box), [own["id"], shared["id"]])
        for keep, left in ((True, [own["id"], shared["id"]]), (False, [])):
            self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/pause").status, 200)
            asleep = self.server.post(f"/v1/sandboxes/{box}/bindings", {"secret": name, "names": ["asleep.example.org"]})
            self.assertEqual(asleep.status, 409, "its resume would take it away, and nobody would be told")
            self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume", {"keep_grants": keep}).status, 200)
            self.assertEqual((self.grants(box), self.terms(box)), (left, left))

    def test_grants_outlive_every_process(self):
        name = self.secret("a value")
        box = self.box()
        made = self.bind(f"/v1/sandboxes/{box}/bindings", name)["id"]
        gone = self.bind(f"/v1/sandboxes/{box}/bindings", name)["id"]
        launcher = self.server.launcher_pid()
        (gate,) = children_named(launcher, b"gate")
        os.kill(gate, signal.SIGKILL)
        eventually(lambda: [pid for pid in children_named(launcher, b"gate") if pid != gate], what="another gate")
        self.assertEqual(self.server.delete(f"/v1/bindings/{gone}").status, 204, "revocation waits for the next gate")
        self.assertEqual(self.terms(box), [made])
        os.kill(launcher, signal.SIGKILL)

        def another():
            try:
                return self.server.launcher_pid() != launcher
            except (KeyError, ValueError):
                return False

        eventually(another, what="another launcher")
        eventually(lambda: self.terms(box) == [made], what="the terms")
        self.assertEqual(self.grants(box), [made])
        second = eventually(lambda: self.try_bind(box, name), what="a binding by the next launcher")
        self.assertEqual(self.terms(box), [made, second])
        self.server.stop(signal.SIGKILL)
        self.server.start(self.server.port)
        self.assertEqual(self.grants(box), [made, second])
        self.assertEqual(self.terms(box), [made, second])
        self.assertEqual(self.server.delete(f"/v1/secrets/{name}").status, 204)
        self.assertEqual(self.terms(box), [])

    def try_bind(self, box, name):
        reply = self.server.post(f"/v1/sandboxes/{box}/bindings", {"secret": name, "names": ["api.example.org"]})
        return reply.json["id"] if reply.status == 201 else None

    # ---- the key ----

    def test_a_rotation_leaves_every_grant(self):
        self.allow_exposed(True)
        value = "rotated-" + secrets.token_hex(8)
        name = self.secret(value)
        box = self.box()
        made = self.bind(f"/v1/sandboxes/{box}/bindings", name)["id"]
        with open(os.path.join(self.server.data, "vault", "key"), "rb") as file:
            before = file.read()
        out = json.loads(self.isola("vault", "rotate", "--json"))
        self.assertGreaterEqual(out["resealed"], 1)
        with open(os.path.join(self.server.data, "vault", "key"), "rb") as file:
            after = file.read()
        self.assertNotIn(before[-64:-32], after, "the old key is gone")
        self.assertEqual(self.terms(box), [made])
        self.assertEqual(json.loads(self.isola("vault", "rotate", "--json"))["resealed"] >= 1, True)
        self.assertEqual(self.exposed(name), value)
        # What the launcher keeps was sealed anew, too: the next one can open it.
        os.kill(self.server.launcher_pid(), signal.SIGKILL)
        eventually(lambda: self.try_bind(box, name), what="a binding by the next launcher")
        self.assertIn(made, self.terms(box))

    def test_a_revocation_does_not_wait_for_slow_sources(self):
        slow, started = (f"/var/tmp/isola-{word}-{secrets.token_hex(6)}" for word in ("slow", "started"))
        for path in (slow, started):
            self.addCleanup(lambda path=path: os.path.exists(path) and os.unlink(path))
        script = f"if [ -e {slow} ]; then touch {started}; sleep 4; fi; echo a value of a source"
        box = self.box()
        quick = self.bind(f"/v1/sandboxes/{box}/bindings", self.secret("a quick value"))["id"]
        other = self.bind(f"/v1/sandboxes/{box}/bindings", self.secret(source={"type": "command", "argv": ["/bin/sh", "-c", script]}))["id"]
        with open(slow, "w"):
            pass
        replies = []
        asking = threading.Thread(target=lambda: replies.append(
            self.server.delete(f"/v1/sandboxes/{box}/bindings/{quick}")))
        asking.start()
        eventually(lambda: os.path.exists(started), what="the source")
        self.assertEqual(self.terms(box), [other], "gone before the other was asked for")
        asking.join()
        self.assertEqual(replies[0].status, 204, replies)
        self.assertEqual(self.terms(box), [other])

    def test_a_fork_that_keeps_grants_is_refused_where_they_cannot_be_written_down(self):
        box = self.box()
        for value in ("a value to be kept", "another value to be kept"):
            self.bind(f"/v1/sandboxes/{box}/bindings", self.secret(value))
        living = lambda: {one["id"] for one in self.server.get("/v1/sandboxes").json["sandboxes"] if one["state"] != "ended"}
        known = living()
        ledger = sqlite3.connect(os.path.join(self.server.data, "server/ledger.db"), timeout=20)
        with ledger:
            ledger.execute("CREATE TRIGGER full BEFORE INSERT ON events WHEN NEW.kind = 'grant.created' "
                           "BEGIN SELECT RAISE(ABORT, 'full'); END")
        try:
            fork = self.server.post(f"/v1/sandboxes/{box}/fork", {"keep_grants": True})
            if fork.status == 501:
                self.skipTest(fork.json["error"]["message"])
            self.assertGreaterEqual(fork.status, 400, fork)
            self.assertIn("full", fork.json["error"]["message"])
        finally:
            with ledger:
                ledger.execute("DROP TRIGGER full")
            ledger.close()
        eventually(lambda: living() == known, what="the end of the fork")
        fork = eventually(lambda: self.server.post(f"/v1/sandboxes/{box}/fork", {"keep_grants": True}).json.get("sandboxes"),
                          what="a fork when the ledger writes again")[0]["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{fork}"))
        self.assertEqual(len(self.terms(fork)), 2)
        created = self.server.get(f"/v1/ledger?sandbox={fork}&kind=grant.created").json["events"]
        self.assertEqual(len(created), 2, created)

    def test_values_that_cannot_be_searched_for_are_not_granted(self):
        box = self.box()
        for value in ("12345", "xxxxxxxxxxxx"):
            refused = self.bind(f"/v1/sandboxes/{box}/bindings", self.secret(value), status=400)
            self.assertIn("searched for", refused["error"]["message"])
        self.assertEqual(self.terms(box), [])

    def test_values_that_no_header_can_have_are_granted_where_they_can_stand(self):
        box = self.box()
        name = self.secret("-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----\n")
        for place in ({"place": "bearer"}, {"place": "header", "field": "X-Key"}):
            refused = self.bind(f"/v1/sandboxes/{box}/bindings", name, status=400, **place)
            self.assertIn("line's end", refused["error"]["message"])
        self.assertEqual(self.terms(box), [])
        made = self.bind(f"/v1/sandboxes/{box}/bindings", name, place="basic", field="me")["id"]
        self.assertEqual(self.terms(box), [made])

    def test_a_grant_on_its_way_is_sealed_anew_by_a_rotation(self):
        started = f"/var/tmp/isola-slow-{secrets.token_hex(6)}"
        self.addCleanup(lambda: os.path.exists(started) and os.unlink(started))
        slow = self.secret(source={"type": "command", "argv": ["/bin/sh", "-c", f"touch {started}; sleep 2; echo a value"]})
        box = self.box()
        replies = []
        asking = threading.Thread(target=lambda: replies.append(
            self.server.post(f"/v1/sandboxes/{box}/bindings", {"secret": slow, "names": ["api.example.org"]})))
        asking.start()
        eventually(lambda: os.path.exists(started), what="the source")
        self.isola("vault", "rotate")  # all of it, while that is under way
        asking.join()
        self.assertEqual(replies[0].status, 201, replies)
        (kept,) = self.kept(box)
        other = self.box()
        self.bind(f"/v1/sandboxes/{other}/bindings", self.secret("after that"))
        (now,) = self.kept(other)
        key_of = lambda one: one["sealed"][:8]
        self.assertEqual(key_of(kept), key_of(now), "it is sealed to a key that is gone")

    def test_what_could_not_be_written_down_is_not_found_again(self):
        box = self.box()
        made = self.bind(f"/v1/sandboxes/{box}/bindings", self.secret("a value"))["id"]
        self.assertEqual(self.terms(box), [made])
        blocked = os.path.join(self.server.data, "gate", box + ".tmp")
        os.mkdir(blocked)
        try:
            self.assertNotEqual(self.server.delete(f"/v1/bindings/{made}").status, 204)
            self.assertEqual(self.terms(box), [], "the next launcher would bring it back")
        finally:
            os.rmdir(blocked)
        eventually(lambda: os.path.exists(os.path.join(self.server.data, "gate", box)), what="the policy on disk")
        self.assertEqual((self.terms(box), self.grants(box)), ([], []))

    def test_a_passphrase_locks_the_vault(self):
        self.allow_exposed(True)
        name = self.secret("under lock")
        box = self.box()
        self.isola("vault", "protect", text="correct horse\n")
        try:
            launcher = self.server.launcher_pid()
            os.kill(launcher, signal.SIGKILL)
            eventually(lambda: json.loads(self.isola("vault", "status", "--json"))["locked"]
                       if self.alive() else False, what="a locked vault")
            self.assertEqual(eventually(lambda: self.post_when_up("/v1/secrets", {
                "name": "new" + secrets.token_hex(4), "value": "v"})), 201, "values can come in")
            reply = self.server.post(f"/v1/sandboxes/{box}/bindings", {"secret": name, "names": ["api.example.org"]})
            self.assertEqual(reply.status, 503, reply)
            self.assertIn(b"locked", reply.body)
            self.isola("vault", "unlock", text="wrong horse\n", status=125)
            self.isola("vault", "unlock", text="correct horse\n")
            self.bind(f"/v1/sandboxes/{box}/bindings", name)
            self.assertEqual(self.exposed(name), "under lock")
        finally:
            self.isola("vault", "unlock", text="correct horse\n")
            self.isola("vault", "protect", "--remove")
        self.assertFalse(json.loads(self.isola("vault", "status", "--json"))["has_passphrase"])

    def alive(self):
        out = subprocess.run([ISOLA, "launcher", "status", "--data", self.server.data], capture_output=True)
        return out.returncode == 0

    def post_when_up(self, path, body):
        status = self.server.post(path, body).status
        return None if status == 503 else status

    # ---- where values come from, and commands that cannot go without ----

    def allow_exposed(self, yes):
        self.isola("vault", "expose")
        self.assertEqual(self.server.request("PATCH", "/v1/projects/default", {"allow_exposed": yes}).status, 200)

    def exposed(self, name):
        box = self.box()
        return self.server.run(box, 'printf %s "$TOKEN"', secrets={"TOKEN": name})["stdout"]

    def test_sources_are_asked_when_it_is_granted(self):
        self.allow_exposed(True)
        asked = []
        from_kv, from_aws, deep_token, deep_key, wrong_token = (
            f"{name}-{secrets.token_hex(8)}" for name in ("from-kv", "from-aws", "deep-token", "deep-key", "wrong-token"))

        class Answer(http.server.BaseHTTPRequestHandler):
            def answer(self, body):
                asked.append((self.path, dict(self.headers)))
                good = self.headers.get("X-Vault-Token") == deep_token or "AWS4-HMAC-SHA256" in str(
                    self.headers.get("authorization"))
                text = json.dumps(body if good else {"errors": ["no"]}).encode()
                self.send_response(200 if good else 403)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self):
                self.answer({"data": {"data": {"token": from_kv}, "metadata": {}}})

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer({"SecretString": json.dumps({"pat": from_aws})})

            def log_message(self, *_):
                pass

        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        self.addCleanup(web.server_close)
        self.addCleanup(web.shutdown)
        url = f"http://127.0.0.1:{web.server_port}"
        kv = {"type": "vault-kv", "url": url, "path": "secret/app", "field": "token", "token": deep_token}
        aws = {"type": "aws", "url": url, "region": "eu-central-1", "secret_id": "app", "field": "pat",
               "access_key_id": "AKIA1", "secret_access_key": deep_key}
        self.assertEqual(self.exposed(self.secret(source=kv)), from_kv)
        self.assertEqual(asked[-1][0], "/v1/secret/data/app")
        self.assertEqual(self.exposed(self.secret(source=aws)), from_aws)
        self.assertIn("Credential=AKIA1/", asked[-1][1]["authorization"])
        path = f"/var/tmp/isola-source-{secrets.token_hex(6)}"
        with open(path, "w") as file:
            file.write("from-file\n")
        os.chmod(path, 0o644)
        self.addCleanup(lambda: os.unlink(path))
        self.assertEqual(self.exposed(self.secret(source={"type": "file", "path": path})), "from-file")
        self.assertEqual(self.exposed(self.secret(source={"type": "command", "argv": ["/bin/echo", "from-command"]})),
                         "from-command")
        self.assertEqual(self.exposed(self.secret(source={"type": "env", "name": "ISOLA_SECRET_OPERATOR"})),
                         self.value_of_operator)
        # Credentials of sources are as secret as values.
        name = self.secret(source={**kv, "token": wrong_token})
        shown = self.server.get(f"/v1/secrets/{name}")
        self.assertEqual(shown.json["source"]["type"], "vault-kv")
        self.assertNotIn(wrong_token.encode(), shown.body)
        # Where it leads to is for whoever may set it.
        use = self.server.post("/v1/keys", {"scope": "use"}).json["secret"]
        self.assertIn("url", shown.json["source"])
        self.assertEqual(self.server.get(f"/v1/secrets/{name}", key=use).json["source"], {"type": "vault-kv"})
        listed = self.server.get("/v1/secrets", key=use).json["secrets"]
        self.assertTrue(all(set(one.get("source", {"type": ""})) == {"type"} for one in listed), listed)
        for deep in (deep_token, deep_key, wrong_token, from_kv, from_aws):
            self.assertEqual(files_with(self.server.data, deep), [], deep)
        # One that does not answer is not granted; the grants beside it are not touched.
        box = self.box()
        good = self.bind(f"/v1/sandboxes/{box}/bindings", self.secret("a value"))["id"]
        self.bind(f"/v1/sandboxes/{box}/bindings", name, status=503)
        self.assertEqual((self.grants(box), self.terms(box)), ([good], [good]))
        # As whom files are read: the server's user, who cannot read what root alone may.
        if os.stat(os.path.join(self.server.data, "server")).st_uid != 0:
            os.chmod(path, 0o600)
            self.bind(f"/v1/sandboxes/{box}/bindings", self.secret(source={"type": "file", "path": path}), status=503)

    def test_a_value_inside_is_marked_and_stays_out_of_images(self):
        value = "inside-" + secrets.token_hex(8)
        name = self.secret(value)
        self.allow_exposed(False)
        box = self.box()
        refused = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "true", "secrets": {"TOKEN": name}})
        self.assertEqual(refused.status, 403, refused)
        self.assertFalse(self.server.get(f"/v1/sandboxes/{box}").json["exposed"])
        self.allow_exposed(True)
        ran = self.server.run(box, 'printf %s "$TOKEN"; env | grep -c TOKEN', secrets={"TOKEN": name})
        self.assertIn(value, ran["stdout"])
        self.isola("vault", "expose", "--never")
        again = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "true", "secrets": {"TOKEN": name}})
        self.assertEqual(again.status, 403, "root of the machine has the last word")
        self.assertEqual(self.server.run(box, "env | grep -c TOKEN; true")["stdout"].strip(), "0", "for one command")
        self.assertTrue(self.server.get(f"/v1/sandboxes/{box}").json["exposed"])
        event = self.ledger("secret.exposed", exposed=True, secret=name, variable="TOKEN")[0]
        self.assertNotIn(value, json.dumps(event))
        for verb in ("pause", "snapshot", "fork"):
            reply = self.server.post(f"/v1/sandboxes/{box}/{verb}", {})
            self.assertEqual(reply.status, 409, (verb, reply))
        # E2B's clients take 409 for "it is paused already".
        reply = self.server.post(f"/sandboxes/{box}/pause", {}, key="", headers={"X-API-Key": self.server.key})
        self.assertEqual(reply.status, 400, reply)
        unknown = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "true", "secrets": {"T": "nothing"}})
        self.assertEqual(unknown.status, 404)
        self.assertEqual(files_with(self.server.data, value), [])

    def private_files(self, box):
        return self.server.run(box, "ls -d /dev/shm/.isola-* 2>/dev/null; true")["stdout"].split()

    def test_a_value_in_a_file_is_for_one_command(self):
        self.allow_exposed(True)
        value = "filed-" + secrets.token_hex(8)
        name = self.secret(value + "\n\0binary, too")
        box = self.box()
        ran = self.server.run(box, 'tr "\\0" Z < "$TOKEN_FILE"; stat -f -c %T "$TOKEN_FILE"; stat -c "%a %u" "$TOKEN_FILE" '
                              '"$(dirname "$TOKEN_FILE")"; env | grep -c "^TOKEN_FILE=/dev/shm/"; env | grep -c filed-; true',
                              secret_files={"TOKEN_FILE": name}, user="1234")
        self.assertEqual(ran["stdout"].split("\n")[:6],
                         [value, "Zbinary, tootmpfs", "400 1234", "500 1234", "1", "0"], ran)
        self.assertEqual(self.private_files(box), [])
        self.assertTrue(self.server.get(f"/v1/sandboxes/{box}").json["exposed"])
        event = self.ledger("secret.exposed", exposed=True, secret=name, variable="TOKEN_FILE")[0]
        self.assertEqual(event["data"]["as"], "file")
        self.assertNotIn(value, json.dumps(event))
        for bad in ({"../x": name}, {"": name}, {"1A": name}, {"A B": name}, {"A=B": name}):
            self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/commands",
                                              {"command": "true", "secret_files": bad}).status, 400, bad)
        both = self.server.post(f"/v1/sandboxes/{box}/commands",
                                {"command": "true", "secrets": {"A": name}, "secret_files": {"A": name}})
        self.assertEqual(both.status, 400, both)
        # A command that cannot start leaves nothing either.
        missing = self.server.post(f"/v1/sandboxes/{box}/commands",
                                   {"argv": ["/nonexistent"], "secret_files": {"TOKEN_FILE": name}})
        self.assertNotEqual(missing.status, 500, missing)
        self.assertEqual(self.private_files(box), [])
        self.assertEqual(self.isola("exec", box, "--secret-file", f"TOKEN_FILE={name}", "--secret", f"TOKEN={self.secret('plain')}",
                                    "--", "sh", "-c", 'head -c 6 "$TOKEN_FILE"; printf %s "$TOKEN"'), "filed-plain")
        self.allow_exposed(False)
        refused = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "true", "secret_files": {"T": name}})
        self.assertEqual(refused.status, 403, refused)
        self.assertEqual(files_with(self.server.data, value), [])

    def test_a_value_in_a_file_goes_whoever_is_killed(self):
        self.allow_exposed(True)
        name = self.secret("filed away")
        box = self.box()
        wait = {"command": "while [ ! -e /tmp/go ]; do sleep 0.05; done", "background": True,
                "secret_files": {"TOKEN_FILE": name}, "user": "1234"}
        first = self.server.post(f"/v1/sandboxes/{box}/commands", wait).json["id"]
        second = self.server.post(f"/v1/sandboxes/{box}/commands", wait).json["id"]
        self.assertEqual(len(self.private_files(box)), 2)
        # Its neighbour of another user cannot read it.
        look = self.server.run(box, "cat /dev/shm/.isola-*/TOKEN_FILE", user="4321")
        self.assertNotIn("filed", look["stdout"])
        self.assertNotEqual(look["exit_code"], 0)
        # kill -9 of the command.
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/commands/{first}/signal",
                                          {"signal": "KILL"}).status // 100, 2)
        eventually(lambda: len(self.private_files(box)) == 1, what="the end of the killed command's file")
        # kill -9 of the server, and the command ends while nobody serves it.
        self.server.run(box, "(sleep 1; touch /tmp/go) >/dev/null 2>&1 &")
        self.server.stop(signal.SIGKILL)
        self.server.start(self.server.port)
        eventually(lambda: self.private_files(box) == [], what="the end of the file")
        self.assertIsNotNone(second)

    def test_what_is_made_of_exposed_memory_is_exposed(self):
        self.allow_exposed(True)
        name = self.secret("inside")
        box = self.box()
        clean = self.server.post(f"/v1/sandboxes/{box}/snapshot", {"name": "c" + secrets.token_hex(4)})
        if clean.status == 501:
            self.skipTest("no memory images on this machine")
        self.assertEqual(clean.status, 201, clean)
        self.server.run(box, "true", secrets={"TOKEN": name})
        snapshot = "e" + secrets.token_hex(4)
        made = self.server.post(f"/v1/sandboxes/{box}/snapshot", {"name": snapshot, "allow_exposed": True})
        self.assertEqual(made.status, 201, made)
        fork = self.server.post(f"/v1/sandboxes/{box}/fork", {"allow_exposed": True}).json["sandboxes"][0]["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{fork}"))
        # The mark does not depend on the sandbox that it was made of.
        self.assertEqual(self.server.delete(f"/v1/sandboxes/{box}").status, 204)

        def is_exposed(**how):
            child = self.box(**how)
            return self.server.get(f"/v1/sandboxes/{child}").json["exposed"], child

        exposed, child = is_exposed(snapshot=snapshot)
        self.assertTrue(exposed)
        self.assertTrue(self.server.get(f"/v1/sandboxes/{fork}").json["exposed"])
        self.assertEqual(self.server.post(f"/v1/sandboxes/{child}/snapshot", {}).status, 409)
        self.assertFalse(is_exposed(snapshot=snapshot, files_only=True)[0])
        exposed, other = is_exposed(snapshot=clean.json["id"])
        self.assertFalse(exposed)
        # Nor does going back to it in place.
        back = self.server.post(f"/v1/sandboxes/{other}/rollback", {"snapshot": snapshot})
        self.assertEqual(back.status, 200, back)
        self.assertTrue(self.server.get(f"/v1/sandboxes/{other}").json["exposed"])

    # ---- the command line ----

    def test_the_command_line(self):
        value = "typed-" + secrets.token_hex(8)
        name = "cli" + secrets.token_hex(4)
        box = self.box()
        self.assertIn(f"{name} version 1", self.isola("secret", "set", name, "--from-stdin", text=value + "\n"))
        self.assertIn(f"{name} version 2", self.isola("secret", "set", name, "--from-stdin", text=value + "\n"))
        listed = self.isola("secret", "ls")
        self.assertIn(name, listed)
        self.assertNotIn(value, listed)
        self.allow_exposed(True)
        self.assertEqual(self.exposed(name), value, "without the newline")
        made = self.isola("bind", box, name, "api.example.org", "--as", "basic:me", "--method", "GET", "--path", "/x",
                          "--expires", "1h").split()[0]
        shown = self.isola("grants", box)
        for word in (made, name, "api.example.org", "basic:me", "/x"):
            self.assertIn(word, shown)
        self.isola("unbind", made)
        self.assertEqual(self.terms(box), [])
        shared = json.loads(self.isola("bind", "--project", name, "api.example.org", "--placeholder", "--json"))
        self.assertEqual(shared["scope"], "project")
        self.isola("secret", "rm", name)
        self.assertNotIn(shared["id"], self.isola("grants", "--json"))
        self.isola("secret", "set", name, "--from-file", "/nonexistent", status=125)
        self.isola("bind", box, status=125)


if __name__ == "__main__":
    unittest.main()
