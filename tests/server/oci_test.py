"""Images of other tools as templates: from disk, and from a registry on loopback, as what a Dockerfile begins with."""
import base64
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest

from island import ISOLA, Server, eventually
from registry import Image, Registry, own_cache

server = registry = folder = None
image = Image()


def setUpModule():
    global server, registry, folder
    folder = tempfile.mkdtemp(prefix="isola-oci-", dir="/var/tmp")
    os.chmod(folder, 0o755)
    registry = Registry()
    registry.push("team/small", "v1", image)
    registry.push("private/small", "v1", Image("private"))
    registry.write_credentials(folder + "/auth.json")
    with open(folder + "/registries.conf", "w") as file:
        file.write(f'[[registry]]\nlocation = "{registry.name}"\ninsecure = true\n[[registry]]\nlocation = "127.0.0.1:1"\ninsecure = true\n')
    own_cache(folder + "/cache")
    server = Server("--cache", folder + "/cache", "--registries", registry.name + ",127.0.0.1:1", "--sweep", "1s",
                    env={"CONTAINERS_REGISTRIES_CONF": folder + "/registries.conf", "REGISTRY_AUTH_FILE": folder + "/auth.json"})


def tearDownModule():
    if server:
        server.close()
    if registry:
        registry.close()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def cli(*words, code=0):
    ran = subprocess.run([ISOLA, *words, "--cache", folder + "/cache"], capture_output=True, text=True,
                         env={**os.environ, "ISOLA_API_KEY": server.key, "ISOLA_URL": f"http://127.0.0.1:{server.port}",
                              "CONTAINERS_REGISTRIES_CONF": folder + "/registries.conf", "REGISTRY_AUTH_FILE": folder + "/auth.json"})
    assert ran.returncode == code, (words, ran)
    return ran


def build(name, dockerfile, **more):
    begun = server.post("/v1/templates", {"name": name, "dockerfile": dockerfile, **more})
    assert begun.status == 202, begun
    at = begun.headers["location"]
    eventually(lambda: server.get(at).json["state"] in ("ready", "failed"), 120, "the end of the build")
    return server.get(at).json


def sh(box, line, **more):
    return server.run(box["id"], line, **more)["stdout"]


class OnDisk(unittest.TestCase):
    def test_a_layout(self):
        image.write_layout(folder + "/layout")
        cli("template", "import", folder + "/layout", "small")
        box = server.create(template="small")
        self.assertEqual(sh(box, "cat hello; pwd; whoami; echo $FLAVOUR; cat /usr/share/mark"),
                         "hello from the image\n/srv\nroot\nsweet\none", "its own folder, variables and user, in a shell that is no bash")
        self.assertEqual(server.run(box["id"], "ls /gone")["exit_code"], 2, "what a later layer took away is gone")
        self.assertEqual(sh(box, "whoami", user="user"), "user\n", "every template has that one")
        self.assertEqual(sh(box, "stat -c '%u %a' /srv/hello"), "0 644\n")
        listed = cli("template", "ls").stdout
        self.assertIn(folder + "/layout", listed)
        again = cli("template", "import", folder + "/layout", "small")
        self.assertIn("small: ready", again.stdout)

    def test_what_docker_saves(self):
        image.write_docker_archive(folder + "/saved.tar")
        cli("template", "import", folder + "/saved.tar", "saved")
        self.assertEqual(sh(server.create(template="saved"), "cat hello"), "hello from the image\n")

    def test_damage_is_named(self):
        other = Image("damaged")
        other.write_layout(folder + "/damaged")
        blob = folder + "/damaged/blobs/sha256/" + json.loads(other.manifest)["layers"][1]["digest"][7:]
        with open(blob, "r+b") as file:
            file.seek(20)
            file.write(b"!!")
        ran = cli("template", "import", folder + "/damaged", "damaged", code=125)
        self.assertIn("is not what was packed", ran.stderr)
        self.assertNotIn("damaged", [t["name"] for t in json.loads(cli("template", "ls", "--json").stdout)])
        for source, word in (("/nonexistent", "cannot find"), ("/etc", "neither an OCI layout")):
            self.assertIn(word, cli("template", "import", source, "odd", code=125).stderr)

    def test_from_in_a_dockerfile(self):
        image.write_layout(folder + "/base-image")
        with open(folder + "/Dockerfile", "w") as file:
            file.write("FROM oci:./base-image\nENV MORE=$FLAVOUR-and-sour\nRUN echo $MORE > /srv/taste\n")
        cli("template", "build", "tasty", "--file", folder + "/Dockerfile")
        self.assertEqual(sh(server.create(template="tasty"), "cat taste; echo $MORE"), "sweet-and-sour\nsweet-and-sour\n")
        refused = server.post("/v1/templates", {"name": "x", "dockerfile": f"FROM oci:{folder}/base-image\n"})
        self.assertEqual(refused.status, 403, refused)


class FromARegistry(unittest.TestCase):
    def test_an_image_by_name(self):
        made = build("pulled", f"FROM {registry.name}/team/small:v1\nENV PATH=/more:$PATH\nCOPY --from={registry.name}/team/small:v1 /srv/hello /copied\n"
                               "RUN cat /usr/share/mark > /srv/from; echo $PATH > /srv/path\n")
        self.assertEqual(made["state"], "ready", made)
        box = server.create(template="pulled")
        self.assertEqual(sh(box, "cat from; cat /copied; cat path"), "onehello from the image\n/more:/opt/tool:/bin\n",
                         "with the variables that the image brings along")
        fetched = [path for path in registry.asked if "/blobs/" in path]
        self.assertTrue(fetched)
        again = build("pulled", f"FROM {registry.name}/team/small:v1\nRUN true\n")
        self.assertEqual(again["state"], "ready")
        self.assertEqual([path for path in registry.asked if "/blobs/" in path], fetched, "what is here is not fetched again")
        self.assertFalse([t for t in server.get("/v1/templates").json["templates"] if t["name"].startswith("oci-")])

    def test_e2b(self):
        headers = {"X-API-Key": server.key}
        made = server.request("POST", "/v3/templates", {"name": "e2b-pulled"}, key="", headers=headers).json
        at = f"/templates/{made['templateID']}/builds/{made['buildID']}"
        body = {"fromImage": f"{registry.name}/team/small:v1", "steps": [{"type": "RUN", "args": ["echo $FLAVOUR > /tmp/x; mkdir -p ~; whoami > ~/who"]}]}
        self.assertEqual(server.request("POST", "/v2" + at, body, key="", headers=headers).status, 202)
        look = lambda: server.request("GET", at + "/status", key="", headers=headers).json
        eventually(lambda: look()["status"] in ("ready", "error"), 120, "the end of the build")
        self.assertEqual(look()["status"], "ready", look())
        self.assertEqual(sh(server.create(template="e2b-pulled"), "cat /home/user/who"), "user\n")

    def test_what_cannot_be_had(self):
        missing = build("missing", f"FROM {registry.name}/team/small:v2\n")
        self.assertEqual((missing["state"], missing["error"]["step"]), ("failed", "base"))
        self.assertIn("is not in its registry", missing["error"]["message"])
        down = build("down", "FROM 127.0.0.1:1/team/small\n")
        self.assertIn("the registry 127.0.0.1:1 does not answer", down["error"]["message"])
        for other in ("ubuntu:22.04", "localhost:5000/x", "169.254.169.254/latest/meta-data"):
            refused = server.post("/v1/templates", {"name": "other", "dockerfile": f"FROM {other}\n"})
            self.assertEqual(refused.status, 501, refused)
            self.assertIn("registries", refused.json["error"]["message"])
        self.assertEqual(server.post("/v1/templates", {"name": "odd", "dockerfile": "FROM docker://x\n"}).status, 400)

    def test_a_ceiling_holds(self):
        project = server.post("/v1/projects", {"name": "closed"}).json
        self.assertLess(server.request("PATCH", f"/v1/projects/{project['id']}", {"ceiling": "allow *.example.org\n"}).status, 300)
        key = server.post("/v1/keys", {"project": project["id"], "scope": "use"}).json["secret"]
        refused = server.post("/v1/templates", {"name": "x", "dockerfile": f"FROM {registry.name}/team/small:v1\n"}, key=key)
        self.assertEqual(refused.status, 403, refused)

    def test_credentials_are_the_operators(self):
        private = f"FROM {registry.name}/private/small:v1\nRUN true\n"
        refused = build("private", private)
        self.assertEqual(refused["state"], "failed", refused)
        self.assertIn("is not for this machine", refused["error"]["message"])
        made = json.loads(cli("template", "pull", f"{registry.name}/private/small:v1", "--json").stdout)
        self.assertTrue(made["name"].startswith("oci-"), made)
        self.assertEqual(build("private", private)["state"], "failed", "what the operator fetched is the operator's")
        self.assertEqual(server.post("/v1/sandboxes", {"template": made["name"]}).status, 404)
        self.assertEqual(server.post("/v1/templates", {"name": "x", "dockerfile": f"FROM {made['name']}\n"}).status, 501)
        anonymous = cli("template", "pull", "--anonymous", f"{registry.name}/private/small:v1", code=125)
        self.assertIn("is not for this machine", anonymous.stderr)
        self.assertFalse([name for name in os.listdir(folder + "/cache/pull") if not name.endswith(".lock")])

    def test_a_fetch_that_is_killed_leaves_no_credentials(self):
        headers = {"X-API-Key": server.key}
        call = lambda *what: server.request(*what, key="", headers=headers)  # noqa: E731
        os.makedirs(folder + "/cache/pull", 0o711, exist_ok=True)
        left = lambda: [name for name in os.listdir(folder + "/cache/pull") if not name.endswith(".lock")]  # noqa: E731

        def fetching():
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        words = file.read().split(b"\0")
                except OSError:
                    continue
                if b"--credentials-on-stdin" in words and (folder + "/cache").encode() in words:
                    return int(name)
            return None

        registry.hold.clear()
        try:
            made = call("POST", "/v3/templates", {"name": "killed"}).json
            at = f"/templates/{made['templateID']}/builds/{made['buildID']}"
            begun = call("POST", "/v2" + at, {"fromImage": f"{registry.name}/private/small:v1", "steps": [],
                                              "fromImageRegistry": {"type": "registry", "username": registry.user, "password": registry.password}})
            self.assertEqual(begun.status, 202, begun)
            eventually(lambda: left() and os.path.exists(f"{folder}/cache/pull/{left()[0]}/skopeo/auth.json"), 30, "its credentials")
            os.kill(eventually(fetching, 30, "the one that fetches"), signal.SIGALRM)  # as when its time is up
            eventually(lambda: not left(), 30, "an empty folder")
            eventually(lambda: call("GET", at + "/status").json["status"] == "error", 60, "the end of the build")
        finally:
            registry.hold.set()

    def test_fetching_counts_as_time_of_the_build(self):
        registry.hold.clear()
        short = Server("--cache", folder + "/cache", "--registries", registry.name, "--builds-timeout", "2s",
                       env={"CONTAINERS_REGISTRIES_CONF": folder + "/registries.conf"})
        try:
            begun = short.post("/v1/templates", {"name": "slow", "dockerfile": f"FROM {registry.name}/team/small:v1\nRUN true\n"})
            at = begun.headers["location"]
            eventually(lambda: short.get(at).json["state"] == "failed", 60, "the end of the build")
            self.assertIn("builds.timeout", short.get(at).json["error"]["message"])
        finally:
            registry.hold.set()
            short.close()

    def test_credentials_may_be_the_callers_own(self):
        headers = {"X-API-Key": server.key}
        call = lambda *what: server.request(*what, key="", headers=headers)  # noqa: E731
        image_name = f"{registry.name}/private/small:v1"

        def begin(name, registry_of, **more):
            made = call("POST", "/v3/templates", {"name": name}).json
            at = f"/templates/{made['templateID']}/builds/{made['buildID']}"
            return at, call("POST", "/v2" + at, {"fromImage": image_name, "fromImageRegistry": registry_of,
                                                 "steps": [{"type": "RUN", "args": ["cat /usr/share/mark > /tmp/kept"]}], **more})

        def ended(at):
            eventually(lambda: call("GET", at + "/status").json["status"] in ("ready", "error"), 120, "the end of the build")
            return call("GET", at + "/status").json

        right = {"type": "registry", "username": registry.user, "password": registry.password}
        at, begun = begin("own", right)
        self.assertEqual(begun.status, 202, begun)
        self.assertEqual(ended(at)["status"], "ready", call("GET", at + "/status"))
        self.assertEqual(sh(server.create(template="own"), "cat /tmp/kept"), "private")
        at, begun = begin("own-wrong", {**right, "password": "a-guess"})
        self.assertEqual(begun.status, 202, begun)
        told = ended(at)
        self.assertEqual(told["status"], "error", told)
        self.assertIn("is not for this machine", told["reason"]["message"])
        self.assertEqual(build("own-none", f"FROM {image_name}\nRUN true\n")["state"], "failed", "they were for that one build")
        # A service account's key is a password like any other, of a user that is called so.
        account = json.dumps({"type": "service_account", "private_key": "in-the-key"})
        was, registry.user, registry.password = (registry.user, registry.password), "_json_key", account
        try:
            at, begun = begin("own-gcp", {"type": "gcp", "serviceAccountJson": account})
            self.assertEqual(ended(at)["status"], "ready", call("GET", at + "/status"))
        finally:
            registry.user, registry.password = was
        for wrong, status in (({"type": "aws", "awsAccessKeyId": "a"}, 501), ({"type": "registry", "username": "a"}, 400), ("registry", 400),
                              ({**right, "username": "a:b"}, 400), ({**right, "password": "x" * 20000}, 400)):
            self.assertEqual(begin("own-odd", wrong)[1].status, status, wrong)
        self.assertEqual(begin("own-odd", right, fromImage="", fromTemplate="minimal")[1].status, 400)
        # Nothing that stays has any of it.
        server.run(server.create(template="own")["id"], "true")
        secrets = [text.encode() for word in (registry.password, "in-the-key", "a-guess") for text in (word, base64.b64encode(word.encode()).decode())]
        secrets.append(registry.token().encode())
        for top in (server.data, folder + "/cache"):
            for path, _, names in os.walk(top):
                for name in names:
                    whole = os.path.join(path, name)
                    if os.path.islink(whole) or not os.path.isfile(whole) or name.endswith(".erofs") or os.path.getsize(whole) > 64 << 20:
                        continue
                    with open(whole, "rb") as file:
                        text = file.read()
                    for secret in secrets:
                        self.assertNotIn(secret, text, whole)
        self.assertFalse([name for name in os.listdir(folder + "/cache/pull") if not name.endswith(".lock")])

    def test_bounds(self):
        odd = Image("odd")
        with tempfile.TemporaryFile() as raw:
            with tarfile.open(fileobj=raw, mode="w") as tar:
                for name in ("etc/passwd", "etc/group"):
                    pipe = tarfile.TarInfo(name)
                    pipe.type = tarfile.FIFOTYPE
                    tar.addfile(pipe)
            raw.seek(0)
            odd.set_layers([*odd.layers, raw.read()])
        odd.write_layout(folder + "/piped")
        self.assertIn("is not a file", cli("template", "import", folder + "/piped", "piped", code=125).stderr)
        # Sparse, as GNU tar writes it: a map of no pieces, and a size of 8 TiB.
        with tempfile.TemporaryFile() as raw:
            with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
                hole = tarfile.TarInfo("hole")
                hole.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "hole",
                                    "GNU.sparse.realsize": str(8 << 40)}
                hole.size = 512
                tar.addfile(hole, io.BytesIO(b"0\n".ljust(512, b"\0")))
            raw.seek(0)
            odd.set_layers([*Image("odd").layers, raw.read()])
        odd.write_layout(folder + "/hollow")
        self.assertIn("larger than", cli("template", "import", folder + "/hollow", "hollow", code=125).stderr)

    def test_by_hand(self):
        ran = cli("template", "pull", f"{registry.name}/team/small:v1", "by-hand", "--json")
        self.assertEqual(json.loads(ran.stdout)["name"], "by-hand")
        self.assertEqual(sh(server.create(template="by-hand"), "cat hello"), "hello from the image\n")
        wrong = cli("template", "pull", f"{registry.name}/team/small:v9", code=125)
        self.assertIn("is not in its registry", wrong.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
