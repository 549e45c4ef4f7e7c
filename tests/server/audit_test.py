"""`isola audit` beside a server, without one, and on ledgers that somebody changed; kill -9 in between."""
import json
import os
import random
import signal
import socket
import sqlite3
import stat
import subprocess
import tempfile
import threading
import unittest

from island import FULL, ISOLA, Server, eventually

ROUNDS = 40 if FULL else 4
if not FULL:
    print(f"reduced: kills of a server that writes its ledger {ROUNDS} instead of 40 (ISOLA_TEST_FULL=1 does all)")


def audit(server, *words, ok=(0,)):
    # It gives up root in the middle: what looks for leaks at the end of a sanitized program cannot look then.
    out = subprocess.run([ISOLA, "audit", *words, "--data", server.data], capture_output=True, text=True,
                         env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
    assert out.returncode in ok, (out.returncode, out.stdout, out.stderr)
    return out


def verified(server, *words):
    out = audit(server, "verify", "--json", *words, ok=(0, 1))
    verdict = json.loads(out.stdout)
    assert out.returncode == (0 if verdict["good"] else 1)
    return verdict


class Audit(unittest.TestCase):
    def setUp(self):
        self.server = Server()

    def tearDown(self):
        self.server.close()

    def change(self, sql, *values):
        ledger = sqlite3.connect(os.path.join(self.server.data, "server/ledger.db"))
        with ledger:
            for trigger in ("events_stay", "events_remain"):
                ledger.execute(f"DROP TRIGGER IF EXISTS {trigger}")
            ledger.execute(sql, values)
        ledger.close()

    def bindings(self):
        """That the store has, of a server that is not there."""
        store = sqlite3.connect(os.path.join(self.server.data, "server/store.db"))
        ids = {row[0] for row in store.execute("SELECT id FROM bindings")}
        store.close()
        return ids

    def test_the_key_is_roots_and_the_files_stay_the_servers(self):
        key = os.stat(os.path.join(self.server.data, "ledger.key"))
        self.assertEqual((key.st_uid, stat.S_IMODE(key.st_mode)), (0, 0o600))
        verified(self.server)
        self.server.stop()
        verified(self.server)
        audit(self.server, "rotate")
        folder = os.path.join(self.server.data, "server")
        owner = os.stat(folder).st_uid
        self.assertNotEqual(owner, 0)
        for name in os.listdir(folder):
            self.assertEqual(os.stat(os.path.join(folder, name)).st_uid, owner, name)
        self.server.start()

    def test_beside_a_server_and_without_one(self):
        made = self.server.create(task="t1")
        self.server.run(made["id"], "true")
        first = verified(self.server)
        self.assertTrue(first["good"], first)
        self.assertEqual(first["keyed"], first["entries"])
        checkpoint = os.path.join(self.server.data, "checkpoint")
        with open(checkpoint, "w") as file:
            file.write(audit(self.server, "checkpoint").stdout)
        self.server.stop()
        self.assertTrue(verified(self.server, "--checkpoint", checkpoint)["good"])
        # A launcher that nobody's server started closes nobody's folder.
        for words in (["launcher", "stop", "--all"], ["run", "--template", "minimal", "--", "true"]):
            subprocess.run([ISOLA, "--data", self.server.data, *words], check=True, stdout=subprocess.DEVNULL)
        self.assertTrue(verified(self.server, "--checkpoint", checkpoint)["good"])
        # Cut off below the checkpoint, as if the server had never got further.
        self.change("DELETE FROM events WHERE seq > 2")
        alone = verified(self.server)  # the server's key tells
        self.assertEqual((alone["good"], alone["broken"]), (False, 3), alone)
        verdict = verified(self.server, "--checkpoint", checkpoint)
        self.assertFalse(verdict["good"], verdict)
        self.assertEqual(verdict["broken"], 3)

    def test_without_the_key_nothing_is_called_whole(self):
        self.server.create()
        self.server.stop()
        key = os.path.join(self.server.data, "ledger.key")
        os.rename(key, key + ".away")
        for words, code in (([], 2), (["--unkeyed"], 0)):
            out = audit(self.server, "verify", "--json", *words, ok=(code,))
            verdict = json.loads(out.stdout)
            self.assertEqual((verdict["good"], verdict["hashes_fit"], verdict["keyed"]), (None, True, 0), verdict)
            plain = audit(self.server, "verify", *words, ok=(code,))
            self.assertNotIn("whole:", plain.stdout)
            self.assertIn("NOT CHECKED", plain.stdout)
        self.assertTrue(verified(self.server, "--ledger-key", key + ".away")["good"])
        self.change("UPDATE events SET actor = 'mallory' WHERE seq = 2")
        for words in ([], ["--unkeyed"]):
            verdict = json.loads(audit(self.server, "verify", "--json", *words, ok=(1,)).stdout)
            self.assertEqual((verdict["good"], verdict["hashes_fit"]), (False, False), verdict)
        os.rename(key + ".away", key)

    def test_a_change_is_named(self):
        self.server.create()
        self.server.stop()
        self.change("UPDATE events SET actor = 'mallory' WHERE seq = 2")
        verdict = verified(self.server)
        self.assertEqual((verdict["good"], verdict["broken"]), (False, 2))
        self.assertIn("was changed", verdict["what"])
        refused = audit(self.server, "checkpoint", ok=(1,))
        self.assertEqual(refused.stdout, "")

    def test_rotation_and_export(self):
        made = self.server.create(task="t1")["id"]
        self.server.run(made, "echo before")
        busy = audit(self.server, "rotate", "--new-key", ok=(125,))
        self.assertIn("stop the server first", busy.stderr)
        # While it runs; what was before is still answered.
        living = json.loads(audit(self.server, "rotate", "--json").stdout)
        self.assertTrue(os.path.exists(living["file"]))
        self.server.run(made, "echo after")
        kinds = [event["kind"] for event in self.server.get(f"/v1/ledger?sandbox={made}&kind=command.started").json["events"]]
        self.assertEqual(len(kinds), 2)
        use = self.server.post("/v1/keys", {"scope": "use"}).json["secret"]
        self.assertEqual(self.server.post("/v1/ledger/rotate", key=use).status, 403)
        other = self.server.post("/v1/projects", {"name": "others"}).json["id"]
        theirs = self.server.post("/v1/keys", {"project": other, "scope": "admin"}).json["secret"]
        self.assertEqual(self.server.post("/v1/ledger/rotate", key=theirs).status, 403)
        self.assertTrue(os.path.exists(self.server.post("/v1/ledger/rotate").json["file"]))
        before = self.server.get("/v1/usage?by=all").json
        self.server.stop()
        rotated = json.loads(audit(self.server, "rotate", "--json").stdout)
        self.assertTrue(os.path.exists(rotated["file"]))
        self.server.start()
        self.server.run(made, "true")
        self.assertIsNotNone(before)
        verdict = verified(self.server)
        self.assertTrue(verdict["good"], verdict)
        self.assertEqual(verdict["files"], 4)
        lines = [json.loads(line) for line in audit(self.server, "export").stdout.splitlines()]
        self.assertEqual([line["seq"] for line in lines], list(range(1, len(lines) + 1)))
        self.assertIn("ledger.rotated", {line["kind"] for line in lines})
        self.assertIn("key.used", {line["kind"] for line in lines})
        self.assertTrue(all(len(line["mac"]) == 64 for line in lines))
        # A file that is not there was moved away or deleted: who says which?
        os.rename(living["file"], os.path.join(self.server.data, "elsewhere"))
        verdict = verified(self.server)
        self.assertEqual((verdict["good"], verdict["broken"]), (False, 1), verdict)
        self.assertTrue(verified(self.server, "--begins-at", living["head"])["good"])
        self.assertFalse(verified(self.server, "--begins-at", rotated["head"])["good"])
        os.rename(os.path.join(self.server.data, "elsewhere"), living["file"])
        some = [json.loads(line) for line in audit(self.server, "export", "--kind", "sandbox.", "--sandbox", made).stdout.splitlines()]
        self.assertEqual({line["sandbox"] for line in some}, {made})

    def test_without_its_key_the_server_does_not_start(self):
        self.server.create()
        self.server.stop()
        os.unlink(os.path.join(self.server.data, "server/ledger.db.ratchet"))
        with self.assertRaisesRegex(RuntimeError, "is gone, the key of the ledger"):
            self.server.start()
        self.server.process.wait(30)
        self.server.process = None
        audit(self.server, "rotate", "--new-key")
        self.server.start()
        self.server.create()
        verdict = verified(self.server)
        self.assertTrue(verdict["good"], verdict)

    def test_kill_and_verify(self):
        """Whatever was acknowledged is there, and the chain is whole, however often the writer is killed."""
        acknowledged, stopping = set(), threading.Event()
        secrets = {"secret.created": set(), "secret.rotated": set(), "secret.deleted": set()}
        box = self.server.create(network="allow a.example:443")["id"]
        self.server.post("/v1/secrets", {"name": "bound", "value": "a value that is bound"})
        revoked = set()

        def change():
            number = 0
            while not stopping.is_set():
                number += 1
                name = f"s{number}"
                try:
                    if self.server.post("/v1/secrets", {"name": name, "value": "one value"}).status == 201:
                        secrets["secret.created"].add(name)
                    if self.server.request("PUT", f"/v1/secrets/{name}", {"value": "another value"}).status == 200:
                        secrets["secret.rotated"].add(name)
                    if self.server.delete(f"/v1/secrets/{name}").status == 204:
                        secrets["secret.deleted"].add(name)
                    made = self.server.post(f"/v1/sandboxes/{box}/bindings", {"secret": "bound", "names": ["a.example"]})
                    if made.status == 201 and self.server.delete(f"/v1/bindings/{made.json['id']}").status == 204:
                        revoked.add(made.json["id"])
                except OSError:
                    pass
                except Exception as error:
                    if "http.client" not in type(error).__module__ and not isinstance(error, ValueError):
                        raise

        def work():
            while not stopping.is_set():
                try:
                    reply = self.server.post("/v1/keys", {"name": "n"})  # is in the ledger before the caller is told
                    if reply.status in (200, 201):
                        acknowledged.add(reply.json["id"])
                except OSError:
                    pass
                except Exception as error:  # a reply that was cut off
                    if "http.client" not in type(error).__module__ and not isinstance(error, ValueError):
                        raise

        def bind():
            while not stopping.is_set():
                try:
                    made = self.server.post(f"/v1/sandboxes/{box}/bindings", {"secret": "bound", "names": ["b.example"]})
                    if made.status == 201:
                        self.server.delete(f"/v1/bindings/{made.json['id']}")
                except OSError:
                    pass
                except Exception as error:
                    if "http.client" not in type(error).__module__ and not isinstance(error, ValueError):
                        raise

        threads = [threading.Thread(target=one, daemon=True) for one in (work, work, change, bind)]
        for thread in threads:
            thread.start()
        port = self.server.port
        for _ in range(ROUNDS):
            so_far = len(acknowledged)
            last = sum(map(len, secrets.values())) + len(revoked)
            eventually(lambda: len(acknowledged) > so_far + random.randrange(10) and
                       sum(map(len, secrets.values())) + len(revoked) > last, what="some keys and secrets")
            self.server.stop(signal.SIGKILL)
            verdict = verified(self.server)
            self.assertTrue(verdict["good"], verdict)
            self.assertEqual(verdict["keyed"], verdict["entries"])
            granted = {json.loads(line)["data"]["binding"]
                       for line in audit(self.server, "export", "--kind", "grant.created").stdout.splitlines()}
            self.assertEqual(self.bindings() - granted, set(), "in the store, and the ledger has never heard of it")
            self.server.start(port)
        stopping.set()
        for thread in threads:
            thread.join(30)
        told = {json.loads(line)["data"]["key"]
                for line in audit(self.server, "export", "--kind", "key.created").stdout.splitlines()}
        self.assertEqual(acknowledged - told, set())
        for kind, names in secrets.items():
            told = {json.loads(line)["data"]["secret"]
                    for line in audit(self.server, "export", "--kind", kind).stdout.splitlines()}
            self.assertEqual(names - told, set(), kind)
        told = {json.loads(line)["data"]["binding"]
                for line in audit(self.server, "export", "--kind", "grant.revoked").stdout.splitlines()}
        self.assertEqual(revoked - told, set())
        self.assertTrue(verified(self.server)["good"])

    def test_what_was_answered_a_moment_before_the_kill(self):
        """Of secrets and revocations: the answer is the last thing that the server does."""
        box = self.server.create(network="allow a.example:443")["id"]

        def told(kind, field):
            return {json.loads(line)["data"][field]
                    for line in audit(self.server, "export", "--kind", kind).stdout.splitlines()}

        def and_kill(reply, status):
            self.server.stop(signal.SIGKILL)
            self.assertEqual(reply.status, status, reply)
            self.server.start()
        for number in range(3):
            name = f"s{number}"
            and_kill(self.server.post("/v1/secrets", {"name": name, "value": "one value"}), 201)
            self.assertIn(name, told("secret.created", "secret"))
            and_kill(self.server.request("PUT", f"/v1/secrets/{name}", {"value": "another value"}), 200)
            self.assertIn(name, told("secret.rotated", "secret"))
            made = self.server.post(f"/v1/sandboxes/{box}/bindings", {"secret": name, "names": ["a.example"]}).json["id"]
            and_kill(self.server.delete(f"/v1/bindings/{made}"), 204)
            self.assertIn(made, told("grant.revoked", "binding"))
            and_kill(self.server.delete(f"/v1/secrets/{name}"), 204)
            self.assertIn(name, told("secret.deleted", "secret"))

    def test_secret(self):
        """Entries as the gate makes them, here by hand: who used it, for which task, where, when."""
        self.assertIn("knows nothing", audit(self.server, "secret", "github").stdout)
        self.server.stop()
        used = {"name": "api.example.org", "method": "GET", "path": "/user"}
        bucket = {"endpoint": "https://s3.example.org", "bucket": "models", "path": "/data", "read_only": True}
        for kind, secret, sandbox, data in (("secret.used", "github", "i1", used), ("secret.used", "other", "i2", used),
                                            ("bucket.mounted", "github", "i3", bucket),
                                            ("secret.used", "github", "i4", {**used, "tasks": ["", "task-7"]})):
            self.change("INSERT INTO events SELECT max(seq) + 1, 1763000000000, 'default', ?, 'task-9', 'ada', ?, ?, "
                        "'', '', '', '' FROM events", sandbox, kind, json.dumps({"secret": secret, **data}))
        shown = audit(self.server, "secret", "github").stdout.splitlines()
        self.assertEqual([line.split() for line in shown[1:]], [
            ["2025-11-13T02:13:20Z", "secret.used", "default", "i1", "task-9", "ada", "api.example.org", "GET", "/user"],
            ["2025-11-13T02:13:20Z", "bucket.mounted", "default", "i3", "task-9", "ada", "https://s3.example.org", "models", "/data"],
            ["2025-11-13T02:13:20Z", "secret.used", "default", "i4", "-,task-7", "ada", "api.example.org", "GET", "/user"]])
        listed = json.loads(audit(self.server, "secret", "github", "--json").stdout)
        self.assertEqual([one["sandbox"] for one in listed], ["i1", "i3", "i4"])
        # Put there by hand, as it was here, it does not verify.
        self.assertFalse(verified(self.server)["good"])

    def test_baseline(self):
        made = self.server.create(timeout=600)
        self.server.get("/v1/ledger")  # which waits until the birth, and whose key it was, is in the file
        points = json.loads(audit(self.server, "baseline", "--json", ok=(0, 1)).stdout)["points"]
        stands = {point["point"]: point for point in points}
        self.assertEqual(len(points), 11)
        chain = stands["the audit chain verifies"]
        self.assertEqual(chain["stand"], "held", chain)
        self.assertEqual(stands["the last proof run is green"]["stand"], "unknown")
        self.assertEqual(stands["egress is reviewed: denied unless a rule allows it"]["stand"], "held")
        # The first key may administer, and makes sandboxes: that is told.
        self.assertEqual(stands["callers' keys may no more than they need"]["stand"], "not held")
        # The default project has no budget.
        bounded = stands["bounded lifetimes and budgets, no idle sandboxes"]
        self.assertEqual(bounded["stand"], "not held", bounded)
        out = audit(self.server, "baseline", "default", ok=(1,))
        self.assertIn("not held", out.stdout)
        audit(self.server, "baseline", "nobody", ok=(125,))
        # What is put right is held; what gets worse is not.
        self.server.request("PATCH", "/v1/projects/default", {"budget": {"wall_seconds": 100000}})
        endless = self.server.create(timeout=0)
        token = "gh" + "p_" + "".join(random.Random(1).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij0123456789", k=36))
        self.server.create(env={"TOKEN": token}, network="all", timeout=600)
        for task in ("one", "two"):
            self.server.run(made["id"], "true", task=task)
        def again():
            points = json.loads(audit(self.server, "baseline", "--json", ok=(0, 1)).stdout)["points"]
            return {point["point"]: point for point in points}
        eventually(lambda: again()["a fresh or isolated sandbox for each task"]["stand"] == "not held", what="two tasks in one")
        stands = again()
        self.assertIn(endless["id"], stands["bounded lifetimes and budgets, no idle sandboxes"]["by"])
        self.assertNotIn("no budget", stands["bounded lifetimes and budgets, no idle sandboxes"]["by"])
        injected = stands["secrets come from the vault, at use"]
        self.assertEqual(injected["stand"], "not held")
        self.assertIn("GitHub personal access token", injected["by"])
        self.assertNotIn(token, json.dumps(stands))
        self.assertEqual(stands["egress is reviewed: denied unless a rule allows it"]["stand"], "not held")


class Syslog(unittest.TestCase):
    def test_entries_arrive(self):
        folder = tempfile.mkdtemp(prefix="isola-syslog-")
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "log")
        collector = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        collector.bind(path)
        os.chmod(path, 0o777)
        collector.settimeout(30)
        server = Server("--audit-syslog", "unix:" + path)
        try:
            made = server.create()["id"]
            while True:
                message = collector.recv(65536).decode()
                if '"kind":"sandbox.created"' in message:
                    break
            self.assertRegex(message, r"^<110>1 \d{4}-\d\d-\d\dT[0-9:.]+Z \S+ isola \d+ sandbox\.created - \{")
            self.assertEqual(json.loads(message[message.index("{"):])["sandbox"], made)
        finally:
            server.close()
            collector.close()
            os.unlink(path)
            os.rmdir(folder)


if __name__ == "__main__":
    unittest.main()
