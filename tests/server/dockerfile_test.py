"""Dockerfiles and devcontainers, through the native API and the command line."""
import contextlib
import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import unittest

from island import ISOLA, Server, eventually

server = None


def setUpModule():
    global server
    server = Server("--sweep", "1s", "--registries", "127.0.0.1:1")


def tearDownModule():
    if server:
        server.close()


def sh(made, line, **more):
    return server.run(made["id"], line, **more)["stdout"]


def tar_of(files, mode="w"):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.uid = len(content), 0o644, 77
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def upload(content, name=None):
    name = name or hashlib.sha256(content).hexdigest()
    return name, server.request("PUT", "/v1/build-files/" + name, content)


def build(name, dockerfile, files=None, **more):
    if files is not None:
        more["context"], reply = upload(tar_of(files))
        assert reply.status == 204, reply
    begun = server.post("/v1/templates", {"name": name, "dockerfile": dockerfile, **more})
    assert begun.status == 202, begun
    at = begun.headers["location"]
    eventually(lambda: server.get(at).json["state"] in ("ready", "failed"), 90, "the end of the build")
    return server.get(at).json


def texts(build):
    return [line["text"] for line in build["log"]]


class Stages(unittest.TestCase):
    DOCKERFILE = ("FROM minimal AS tools\nRUN mkdir /out && echo made > /out/tool && chown user:user /out/tool && echo x > /out/.hidden\n"
                  "FROM minimal AS unused\nRUN exit 1\n"
                  "FROM tools AS more\nRUN echo more >> /out/tool\n"
                  "FROM minimal\nCOPY --from=tools /out /from/tools\nCOPY --from=more --chown=root /out/* /from/more/\n"
                  "COPY --from=more /out/tool /from/single\nRUN ls -A /out 2>&1 > /from/list || true\n")

    def test_files_of_another_stage(self):
        made = build("staged", self.DOCKERFILE)
        self.assertEqual(made["state"], "ready", made)
        box = server.create(template="staged")
        self.assertEqual(sh(box, "cat /from/tools/tool /from/more/tool /from/single"), "made\nmade\nmore\nmade\nmore\n")
        self.assertEqual(sh(box, "stat -c %U /from/tools/tool /from/more/tool /from/single"), "user\nroot\nuser\n", "whose they were, unless it is said")
        self.assertEqual(sh(box, "ls -A /from/more /from/list; ls -A / | grep isola; true").count("isola"), 0, "nothing of the transfer is left")
        self.assertEqual(sh(box, "cat /from/more/.hidden"), "x\n")
        again = build("staged", self.DOCKERFILE)
        self.assertEqual([t for t in texts(again) if t.startswith(("RUN", "COPY", "stage"))], [t for t in texts(again) if t.startswith("stage")],
                         "all of it is known")
        changed = build("staged", self.DOCKERFILE.replace("echo made", "echo other"))
        self.assertEqual(changed["state"], "ready", changed)
        self.assertEqual(sh(server.create(template="staged"), "cat /from/single"), "other\nmore\n", "a stage that changed changes what is copied")
        eventually(lambda: not [s for s in server.get("/v1/sandboxes?limit=1000").json["sandboxes"]
                                if "isola.build" in s["metadata"] and s["state"] != "ended"], what="the end of its sandboxes")

    def test_a_known_step_is_used_from_the_beginning(self):
        """Until its stage is built, behind all that comes before, the sweep must not take it for one that nobody uses."""
        text = "FROM minimal AS first\nRUN echo kept > /kept\nFROM minimal\nRUN {}\nCOPY --from=first /kept /kept\n"
        self.assertEqual(build("used", text.format("true"))["state"], "ready")

        def uses():
            with contextlib.closing(sqlite3.connect(f"file:{server.data}/server/store.db?mode=ro", uri=True)) as db:
                return dict(db.execute("SELECT id, last_used FROM images WHERE kind = 'step'"))
        before = uses()
        begun = server.post("/v1/templates", {"name": "used", "dockerfile": text.format("echo begun; sleep 600")})
        self.assertEqual(begun.status, 202, begun)
        at = begun.headers["location"]
        eventually(lambda: "begun" in texts(server.get(at).json), 60, "its long step")
        used = [id for id, when in uses().items() if when > before.get(id, when)]
        self.assertEqual(server.post(at + "/cancel").status, 204)
        self.assertEqual(len(used), 1, "that of RUN echo kept")

    def test_a_template_as_a_stage(self):
        build("lib", "FROM minimal\nENV WHERE=/opt/lib\nRUN mkdir $WHERE && echo lib > $WHERE/l\n")
        made = build("user-of-lib", "FROM lib AS l\nENV SAID=$WHERE\nFROM minimal\nCOPY --from=lib /opt/lib /x\nRUN echo ok >> /x/l\n")
        self.assertEqual(made["state"], "ready", made)
        self.assertEqual(sh(server.create(template="user-of-lib"), "cat /x/l"), "lib\nok\n")

    def test_what_is_not_there(self):
        made = build("nothing", "FROM minimal AS a\nFROM minimal\nCOPY --from=a /nowhere* /x\n")
        self.assertEqual(made["error"]["step"], "1")
        self.assertIn("there is nothing like '/nowhere*' in that stage", texts(made))


class Variables(unittest.TestCase):
    def test_those_of_the_base(self):
        build("with-env", "FROM minimal\nENV PATH=/opt/own:$PATH COLOUR=blue\nWORKDIR /opt\n")
        made = build("above-env", "FROM with-env\nENV PATH=$PATH:/opt/last SHADE=dark-$COLOUR\nWORKDIR $COLOUR\n")
        self.assertEqual(made["state"], "ready", made)
        said = sh(server.create(template="above-env"), "echo $PATH; echo $SHADE; pwd").split("\n")
        self.assertTrue(said[0].startswith("/opt/own:/") and said[0].endswith(":/opt/last"), said)
        self.assertEqual(said[1:3], ["dark-blue", "/opt/blue"])


class Adding(unittest.TestCase):
    def test_archives_are_unpacked(self):
        files = {"a.tar.gz": tar_of({"in/one": b"1"}, "w:gz"), "b.tar": tar_of({"two": b"2"}), "plain.txt": b"plain", "empty.bin": b""}
        made = build("added", "FROM minimal\nADD a.tar.gz b.tar plain.txt empty.bin /put/\nCOPY a.tar.gz /copied/\nADD --chown=user b.tar /mine/\n", files)
        self.assertEqual(made["state"], "ready", made)
        box = server.create(template="added")
        self.assertEqual(sh(box, "cat /put/in/one /put/two /put/plain.txt; ls -A /put /copied"),
                         "12plain/copied:\na.tar.gz\n\n/put:\nempty.bin\nin\nplain.txt\ntwo\n")
        self.assertEqual(sh(box, "stat -c %u /put/in/one /mine/two"), "77\n1000\n", "owners as they were packed, unless it is said")

    def test_what_cannot_be_unpacked(self):
        made = build("damaged", "FROM minimal\nADD a.tar.gz /put/\n", {"a.tar.gz": b"\x1f\x8bnonsense"})
        self.assertEqual(made["state"], "failed")
        self.assertTrue([t for t in texts(made) if "'a.tar.gz' cannot be unpacked" in t], made)
        refused = server.post("/v1/templates", {"name": "net", "dockerfile": "FROM minimal\nADD https://example.org/x /x\n"})
        self.assertEqual(refused.status, 501, refused)
        self.assertIn("line 2", refused.json["error"]["message"])
        self.assertIn("RUN curl", refused.json["error"]["message"])


class HereDocuments(unittest.TestCase):
    def test_files_that_stand_in_it(self):
        made = build("here", "FROM minimal\nARG WHO=you\nUSER user\nWORKDIR /work\nCOPY <<EOF /etc/greeting\nhello $WHO, it's \"me\"\nEOF\n"
                             "COPY --chown=user --chmod=755 plain.txt <<'one.sh' <<-two /put/\n#!/bin/sh\necho $0 $WHO\none.sh\n\ttabs go\n\ttwo\n"
                             "COPY <<relative here\nr\nrelative\nRUN <<EOF\nset -e\n/put/one.sh > /tmp/said\nEOF\n", {"plain.txt": b"plain"})
        self.assertEqual(made["state"], "ready", made)
        box = server.create(template="here")
        self.assertEqual(sh(box, "cat /etc/greeting /put/plain.txt /put/two /work/here; cat /tmp/said"),
                         "hello you, it's \"me\"\nplaintabs go\nr\n/put/one.sh you\n", "an ARG is a variable of RUN")
        self.assertEqual(sh(box, "stat -c '%U %a' /etc/greeting /put/one.sh /put/two /work/here"), "root 644\nuser 755\nuser 755\nroot 644\n")


class Files(unittest.TestCase):
    def test_a_hash_is_compared_with_the_bytes(self):
        name, wrong = upload(b"these bytes", hashlib.sha256(b"other bytes").hexdigest())
        self.assertEqual(wrong.status, 400, wrong)
        self.assertIn("SHA-256", wrong.json["error"]["message"])
        self.assertEqual(server.post("/v1/templates", {"name": "x", "dockerfile": "FROM minimal\n", "context": name}).status, 400, "it is not kept")


class Dockerfiles(unittest.TestCase):
    """The same through the native API and the command line."""

    def cli(self, *words, code=0):
        ran = subprocess.run([ISOLA, *words, "--url", f"http://127.0.0.1:{server.port}"], capture_output=True, text=True,
                             env={**os.environ, "ISOLA_API_KEY": server.key})
        self.assertEqual(ran.returncode, code, ran.stderr)
        return ran

    def test_from_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"Dockerfile": "FROM minimal AS one\nARG WORD=none\nENV SAID=$WORD\nWORKDIR /srv/app\n"
                                             "COPY --chown=user . .\nRUN cat a.txt > copied && echo $WORD >> copied\n"
                                             "FROM one\nUSER user\nHEALTHCHECK CMD true\n",
                               "a.txt": "from the folder\n", "secret.log": "left out", ".dockerignore": "*.log\n"}.items():
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
            ran = self.cli("template", "build", "docked:v1", "--file", folder + "/Dockerfile", "--build-arg", "WORD=hi", "--tag", "default")
            self.assertEqual(ran.stdout, "docked:v1: ready\n")
            self.assertIn("HEALTHCHECK", ran.stderr)
            again = self.cli("template", "build", "docked:v2", "--file", folder + "/Dockerfile", "--build-arg", "WORD=hi", "--json")
            self.assertEqual(json.loads(again.stdout)["state"], "ready")
            self.assertIn("CACHED RUN", again.stderr)
            wrong = self.cli("template", "build", "docked", "--file", folder + "/Dockerfile", "--build-arg", "OTHER=1", code=125)
            self.assertIn("OTHER", wrong.stderr)
        box = server.create(template="docked")
        self.assertEqual(sh(box, "cat copied; pwd; whoami; echo $SAID; ls"), "from the folder\nhi\n/srv/app\nuser\nhi\nDockerfile\na.txt\ncopied\n")
        self.assertRegex(self.cli("template", "ls").stdout, r"(?m)^docked +- .*built here: default, v1, v2$")
        self.assertIn("docked", [t["name"] for t in json.loads(self.cli("template", "ls", "--json").stdout)])
        listed = {t["name"]: t for t in server.get("/v1/templates").json["templates"]}
        self.assertEqual(set(listed["docked"]["tags"]), {"v1", "v2", "default"})
        self.assertEqual(self.cli("template", "rm", "docked").stdout, "docked: removed\n")
        self.assertEqual(server.delete("/v1/templates/docked").status, 404)
        self.assertIn("docked", self.cli("template", "rm", "docked", code=125).stderr)

    def test_what_is_wrong_is_named(self):
        for fields, status, word in (({"dockerfile": "FROM minimal\nRUNN x\n"}, 400, "line 2"),
                                     ({"dockerfile": "FROM nosuchimage:9\n"}, 501, "nosuchimage:9"),
                                     ({"dockerfile": ""}, 400, "dockerfile"),
                                     ({"dockerfile": "FROM minimal\nCOPY a b\n"}, 400, "COPY a b"),
                                     ({"dockerfile": "FROM minimal\n", "context": "0" * 64}, 400, "context"),
                                     ({"dockerfile": "FROM minimal\n", "nonsense": 1}, 400, "nonsense"),
                                     ({"dockerfile": "FROM minimal\n", "name": "a b"}, 400, "name")):
            reply = server.post("/v1/templates", {"name": "wrong", **fields})
            self.assertEqual(reply.status, status, reply)
            self.assertIn(word, reply.json["error"]["message"])
        self.assertNotIn("wrong", [t["name"] for t in server.get("/v1/templates").json["templates"]], "nothing is half-made")

    def test_cancel(self):
        begun = server.post("/v1/templates", {"name": "long", "dockerfile": "FROM minimal\nRUN echo begun; sleep 1000\n"})
        self.assertEqual(begun.status, 202, begun)
        at = begun.headers["location"]
        eventually(lambda: "begun" in [line["text"] for line in server.get(at).json["log"]])
        self.assertEqual(server.post(at + "/cancel").status, 204)
        eventually(lambda: server.get(at).json["state"] == "failed", what="its end")
        self.assertIn("cancelled", server.get(at).json["error"]["message"])


class Devcontainers(unittest.TestCase):
    """A folder with a devcontainer.json becomes a template."""
    cli = Dockerfiles.cli

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="dev-", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        os.makedirs(self.folder + "/.devcontainer/tool")

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(text)

    def test_an_image_with_a_feature(self):
        self.write("main.txt", "the work\n")
        self.write(".devcontainer/tool/install.sh", "#!/bin/sh\necho \"$VERSION for $_REMOTE_USER by $(whoami)\" > /opt/tool\n")
        self.write(".devcontainer/devcontainer.json", """{
            // as editors write it
            "image": "minimal", "features": {"./tool": {"version": "1.5"}},
            "containerEnv": {"PLACE": "${containerWorkspaceFolder}"}, "remoteEnv": {"BOTH": "${containerEnv:PLACE}!"},
            "remoteUser": "user", "workspaceFolder": "/work", "forwardPorts": [80],
            "postCreateCommand": {"a": "cat main.txt > made && whoami >> made", "b": ["sh", "-c", "echo $BOTH >> made"]},
        }""")
        ran = self.cli("template", "build", "dev", "--devcontainer", self.folder)
        self.assertIn("forwardPorts has no meaning here", ran.stderr)
        box = server.create(template="dev")
        self.assertEqual(sh(box, "cat made /opt/tool; pwd; whoami; echo $PLACE"),
                         "the work\nuser\n/work!\n1.5 for user by root\n/work\nuser\n/work\n")

    def test_a_dockerfile(self):
        self.write("out.txt", "outside\n")
        self.write(".devcontainer/in.txt", "inside\n")
        self.write(".devcontainer/Dockerfile", "FROM minimal\nARG V\nCOPY out.txt .devcontainer/in.txt /got/\nRUN echo $V >> /got/v\n")
        self.write(".devcontainer/devcontainer.json", '{"build": {"dockerfile": "Dockerfile", "context": "..", "args": {"V": "7"}}}')
        self.cli("template", "build", "dev-file", "--devcontainer", self.folder)
        self.assertEqual(sh(server.create(template="dev-file"), "cat /got/out.txt /got/in.txt /got/v"), "outside\ninside\n7\n")

    def test_what_is_wrong_is_named(self):
        wrong = self.cli("template", "build", "dev-none", "--devcontainer", self.folder, code=125)
        self.assertIn("has no .devcontainer/devcontainer.json", wrong.stderr)
        self.write(".devcontainer/devcontainer.json", '{"image": "minimal", "features": {"registry.example/x:1": {}}}')
        wrong = self.cli("template", "build", "dev-far", "--devcontainer", self.folder, code=125)
        self.assertIn("registry.example/x:1", wrong.stderr)
        self.write(".devcontainer/devcontainer.json", '{"image": "minimal", "postCreateCommand": "exit 3"}')
        wrong = self.cli("template", "build", "dev-fails", "--devcontainer", self.folder, code=125)
        self.assertIn("exit status 3", wrong.stderr)
        refused = server.post("/v1/templates", {"name": "x", "devcontainer": {"text": "{}"}})
        self.assertEqual(refused.status, 400, refused)


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
