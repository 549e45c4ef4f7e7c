"""`isola audit baseline`: each point of the checklist once as it should be, and once as it should not."""
import json
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
import time
import unittest

from island import ISOLA, Server, eventually
from registry import Image, layer, own_cache, small_root

FRESH = "a fresh or isolated sandbox for each task"
IMAGES = "no secret in a template or image"
INJECTED = "secrets come from the vault, at use"
NARROW = "each binding is as narrow as can be"
EGRESS = "egress is reviewed: denied unless a rule allows it"
BOUNDED = "bounded lifetimes and budgets, no idle sandboxes"
SCANNED = "outputs are scanned"
KEYS = "callers' keys may no more than they need"
CHAIN = "the audit chain verifies"
BOUNDARY = "the boundary is named, and at least the project's minimum"
PROOF = "the last proof run is green"
DAY = 24 * 3600 * 1000


def token():
    """Looks like one, and opens nothing."""
    return "gh" + "p_" + "".join(random.Random(1).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij0123456789", k=36))


class Baseline(unittest.TestCase):
    more = []  # words for the command

    def setUp(self):
        self.server = Server()
        # A project whose work is done with a key that can do no more.
        self.project = self.server.post("/v1/projects", {"name": "tidy", "limits": {"live_sandboxes": 10},
                                                         "budget": {"wall_seconds": 100000}}).json["id"]
        self.admin = self.server.post("/v1/keys", {"project": self.project, "scope": "admin"}).json["secret"]
        self.key = self.server.post("/v1/keys", {"project": self.project, "scope": "use"}).json["secret"]

    def tearDown(self):
        self.server.close()

    def baseline(self):
        self.server.get("/v1/ledger")  # everything that was recorded is in the file
        out = subprocess.run([ISOLA, "audit", "baseline", self.project, "--json", "--data", self.server.data, *self.more],
                             capture_output=True, text=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
        answer = json.loads(out.stdout)
        stands = {point["point"]: point for point in answer["points"]}
        all_held = all(point["stand"] == "held" for point in answer["points"])
        self.assertEqual((out.returncode, answer["held"]), (0 if all_held else 1, all_held), "held means all of it")
        return stands

    def stand(self, point, wanted, says=""):
        found = self.baseline()[point]
        self.assertEqual(found["stand"], wanted, found)
        self.assertIn(says, found["by"])

    def store(self, sql, *values):
        """What takes a week, or another machine, is written into the store."""
        with sqlite3.connect(os.path.join(self.server.data, "server/store.db"), timeout=30) as store:
            store.execute(sql, values)
        store.close()

    def create(self, **fields):
        reply = self.server.post("/v1/sandboxes", {"timeout": 600, **fields}, key=self.key)
        self.assertEqual(reply.status, 201, reply)
        return reply.json["id"]

    def run_in(self, box, command, **fields):
        reply = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": command, **fields}, key=self.key)
        self.assertEqual(reply.status, 200, reply)
        return reply.json

    def secret(self, name):
        reply = self.server.post("/v1/secrets", {"name": name, "value": "a value of " + name}, key=self.admin)
        self.assertEqual(reply.status, 201, reply)

    def bind(self, box, secret, **more):
        reply = self.server.post(f"/v1/sandboxes/{box}/bindings",
                                 {"secret": secret, "names": ["api.example.org"], **more}, key=self.admin)
        self.assertEqual(reply.status, 201, reply)
        return reply.json["id"]

    def test_tasks(self):
        self.stand(FRESH, "unknown")
        first, second = self.create(), self.create()
        self.run_in(first, "true", task="one")
        self.run_in(second, "true", task="two")
        self.stand(FRESH, "held")
        third = self.create()
        self.run_in(third, "true")
        self.stand(FRESH, "unknown", third)
        self.run_in(first, "true")
        self.stand(FRESH, "not held", first)

    def test_images(self):
        self.stand(IMAGES, "held")
        box = self.create()
        self.run_in(box, "echo nothing > /root/file")
        made = self.server.post(f"/v1/sandboxes/{box}/snapshot", {"memory": False}, key=self.key)
        self.assertEqual(made.status, 201, made)
        self.stand(IMAGES, "held", "of their layers")
        self.stand(IMAGES, "held", "such as passwords, are not looked for")
        half = len(token()) // 2
        self.run_in(box, f"mkdir -p /root/.config; echo {token()[:half]}''{token()[half:]} > /root/.config/file")
        made = self.server.post(f"/v1/sandboxes/{box}/snapshot", {"memory": False}, key=self.key)
        self.stand(IMAGES, "not held", made.json["id"])
        self.assertNotIn(token(), json.dumps(self.baseline()))

    def test_what_git_keeps_in_an_image(self):
        box = self.create()
        half = len(token()) // 2
        self.run_in(box, f"mkdir -p /root/project/.git; echo url = https://{token()[:half]}''{token()[half:]}@git.example.org/x "
                         "> /root/project/.git/config")
        made = self.server.post(f"/v1/sandboxes/{box}/snapshot", {"memory": False}, key=self.key)
        self.stand(IMAGES, "not held", made.json["id"])

    def test_a_template_of_the_machine(self):
        """Outside of what packages have there; and one that a project built without layers of its own."""
        folder = tempfile.mkdtemp(prefix="isola-baseline-", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        cache = own_cache(folder + "/cache")
        self.more = ["--cache", cache]
        with open(f"{cache}/templates/minimal.json") as file:
            digest = json.load(file)["digest"]
        # As a build leaves it that added nothing to its base.
        self.store("INSERT INTO templates (id, project, name, created) VALUES ('tplain', ?, 'plain', 1)", self.project)
        self.store("INSERT INTO builds (id, template, project, state, why, step, spec, image, digest, base, memory, env, user, cwd, "
                   "cpus, memory_limit, created, finished) VALUES ('bplain', 'tplain', ?, 'ready', '', '', '{}', '', ?, '', 0, "
                   "'{}', '', '', 0, 0, 1, 1)", self.project, digest)
        self.stand(IMAGES, "held", "templates")
        self.store("UPDATE builds SET digest = ?", "0" * 64)
        self.stand(IMAGES, "unknown", "build 000000000000")
        self.store("UPDATE builds SET digest = ?", digest)
        image = Image()
        image.set_layers([layer(small_root(), texts={"srv/app/.env": "TOKEN=" + token() + "\n"})])
        image.write_layout(folder + "/layout")
        subprocess.run([ISOLA, "template", "import", folder + "/layout", "leaky", *self.more], check=True, capture_output=True)
        self.stand(IMAGES, "not held", "template leaky")

    def test_images_that_cannot_be_looked_into(self):
        box = self.create()
        made = self.server.post(f"/v1/sandboxes/{box}/snapshot", {"memory": False}, key=self.key)
        self.assertEqual(made.status, 201, made)
        self.server.stop()  # first: it would start another launcher
        subprocess.run([ISOLA, "launcher", "stop", "--all", "--data", self.server.data], capture_output=True)
        out = subprocess.run([ISOLA, "audit", "baseline", self.project, "--json", "--data", self.server.data],
                             capture_output=True, text=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
        stands = {point["point"]: point["stand"] for point in json.loads(out.stdout)["points"]}
        self.assertIn(stands[IMAGES], ("unknown",))
        self.assertEqual(out.returncode, 1)

    def test_injection(self):
        self.create()
        self.stand(INJECTED, "held")
        box = self.create(env={"TOKEN": token()})
        self.stand(INJECTED, "not held", box)

    def test_bindings(self):
        self.stand(NARROW, "held")
        box = self.create(network="allow api.example.org:443")
        self.secret("one")
        self.bind(box, "one", path_prefix="/user")
        self.stand(NARROW, "held")
        wide = self.bind(box, "one")
        self.stand(NARROW, "not held", wide)
        self.server.delete(f"/v1/bindings/{wide}", key=self.admin)
        below = self.bind(box, "one", methods=["GET"], names=["*.example.org"])
        self.stand(NARROW, "not held", below)
        self.server.delete(f"/v1/bindings/{below}", key=self.admin)
        self.stand(NARROW, "held")
        self.store("UPDATE sandboxes SET deadline = 0, idle_limit = 0 WHERE id = ?", box)
        self.stand(NARROW, "not held", "without an end")

    def test_egress(self):
        self.create(network="allow api.example.org:443\nallow 203.0.113.0/24:22")
        self.stand(EGRESS, "held", "allow api.example.org:443")
        for wide in ("allow 0.0.0.0/0", "allow *.com", "default allow", "allow *", "allow [::/0]:443"):
            box = self.create(network=wide)
            self.stand(EGRESS, "not held", box)
            self.server.delete(f"/v1/sandboxes/{box}", key=self.key)
        self.stand(EGRESS, "held")
        self.server.request("PATCH", f"/v1/projects/{self.project}", {"ceiling": "allow 0.0.0.0/0"})
        self.stand(EGRESS, "not held", "the ceiling of")
        self.server.request("PATCH", f"/v1/projects/{self.project}", {"ceiling": "allow api.example.org"})
        self.stand(EGRESS, "held", "1 of 1 project")
        # Whoever reviews them by a program sees each of them; people see the first few.
        names = [f"allow n{n}.example.org:443" for n in range(6)]
        self.create(network="\n".join(names[:1] + ["allow api.example.org:443"]))
        self.server.request("PATCH", f"/v1/projects/{self.project}", {"ceiling": "\n".join(names + ["allow api.example.org"])})
        for name in names:
            self.stand(EGRESS, "held", name)
        out = subprocess.run([ISOLA, "audit", "baseline", self.project, "--data", self.server.data], capture_output=True, text=True,
                             env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
        self.assertRegex(out.stdout, r"and \d more \(`isola net show ID`\)")

    def test_bounds(self):
        box = self.create()
        self.stand(BOUNDED, "held")
        now = int(time.time() * 1000)
        self.store("UPDATE sandboxes SET last_active = ? WHERE id = ?", now - 2 * DAY, box)
        self.stand(BOUNDED, "not held", box)
        self.store("UPDATE sandboxes SET state = 'stopped', last_active = ?, asleep = ? WHERE id = ?", now - 8 * DAY,
                   now - 8 * DAY, box)
        self.stand(BOUNDED, "not held", "nothing deletes them")
        self.store("UPDATE sandboxes SET delete_after = 1 WHERE id = ?", box)
        self.stand(BOUNDED, "held")
        endless = self.server.post("/v1/sandboxes", {"timeout": 0}, key=self.key).json["id"]
        self.stand(BOUNDED, "not held", endless)
        self.server.delete(f"/v1/sandboxes/{endless}", key=self.key)
        self.stand(BOUNDED, "held")
        self.store("UPDATE projects SET budget_wall = 0 WHERE id = ?", self.project)
        self.stand(BOUNDED, "not held", f"no budget: project {self.project}")

    def test_outputs(self):
        self.stand(SCANNED, "held")
        box = self.create(network="allow api.example.org:443")
        self.secret("one")
        self.secret("two")
        self.bind(box, "one")
        self.stand(SCANNED, "held")
        subprocess.run([ISOLA, "vault", "expose", "--data", self.server.data], check=True, capture_output=True)
        self.server.request("PATCH", f"/v1/projects/{self.project}", {"allow_exposed": True})
        reply = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "true", "secrets": {"V": "one"}}, key=self.admin)
        self.assertEqual(reply.status, 200, reply)
        self.stand(SCANNED, "held")
        reply = self.server.post(f"/v1/sandboxes/{box}/commands", {"command": "true", "secrets": {"V": "two"}}, key=self.admin)
        self.assertEqual(reply.status, 200, reply)
        self.stand(SCANNED, "not held", f"{box} (two)")

    def test_keys(self):
        self.run_in(self.create(), "true")
        self.stand(KEYS, "held")
        self.server.post("/v1/sandboxes", {"timeout": 600}, key=self.admin)
        self.stand(KEYS, "not held")

    def test_boundary(self):
        box = self.create()
        self.stand(BOUNDARY, "held", "minimum: jail of")
        self.store("UPDATE projects SET least_boundary = 'uml' WHERE id = ?", self.project)
        self.store("UPDATE sandboxes SET boundary = 'gvisor' WHERE id = ?", box)
        self.stand(BOUNDARY, "not held", f"{box} (gvisor, not uml)")
        self.store("UPDATE sandboxes SET boundary = 'microvm' WHERE id = ?", box)
        self.stand(BOUNDARY, "held")

    def test_chain_and_proof(self):
        self.stand(CHAIN, "held")
        self.stand(PROOF, "unknown")

        def prove(kind, age):
            with sqlite3.connect(os.path.join(self.server.data, "server/ledger.db"), timeout=30) as ledger:
                ledger.execute("INSERT INTO events SELECT max(seq) + 1, ?, '', '', '', '', ?, '{}', '', '', '', '' FROM events",
                               (int(time.time() * 1000) - age, kind))
            ledger.close()
        self.server.stop()
        stands = {}

        def look():
            out = subprocess.run([ISOLA, "audit", "baseline", "--json", "--data", self.server.data], capture_output=True,
                                 text=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
            stands.update({point["point"]: point["stand"] for point in json.loads(out.stdout)["points"]})
        prove("prove.passed", 0)
        look()
        self.assertEqual((stands[PROOF], stands[CHAIN]), ("held", "not held"), "an entry by hand breaks the chain")
        prove("prove.passed", 8 * DAY)
        look()
        self.assertEqual(stands[PROOF], "not held")
        prove("prove.failed", 0)
        look()
        self.assertEqual(stands[PROOF], "not held")


if __name__ == "__main__":
    unittest.main()
