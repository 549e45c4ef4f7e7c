"""Template builds over E2B's wire: steps, files, start commands, the cache, tags, failures."""
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import unittest
import urllib.request

from island import ISOLA, Server, eventually

server = None


def setUpModule():
    global server
    server = Server("--sweep", "1s", "--registries", "127.0.0.1:1")


def tearDownModule():
    if server:
        server.close()


def call(method, path, body=None):
    return server.request(method, path, body, key="", headers={"X-API-Key": server.key})


def begin(name, **spec):
    made = call("POST", "/v3/templates", {"name": name})
    assert made.status == 202, made
    build = made.json
    reply = call("POST", f"/v2/templates/{build['templateID']}/builds/{build['buildID']}", {"fromTemplate": "minimal", **spec})
    assert reply.status == 202, reply
    return build


def finished(build, seconds=90):
    def look():
        status = call("GET", f"/templates/{build['templateID']}/builds/{build['buildID']}/status").json
        return status if status["status"] in ("ready", "error") else None
    return eventually(look, seconds, "the end of the build")


def lines(build):
    out, offset = [], 0
    while True:
        page = call("GET", f"/templates/{build['templateID']}/builds/{build['buildID']}/status?logsOffset={offset}").json
        if not page["logEntries"]:
            return out
        out += [entry["message"] for entry in page["logEntries"]]
        offset += len(page["logEntries"])


def built(name, **spec):
    build = begin(name, **spec)
    status = finished(build)
    assert status["status"] == "ready", (status, lines(build))
    return build


def step(kind, *args, **more):
    return {"type": kind, "args": list(args), **more}


def tar_of(files):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def upload(template, content, name=None):
    digest = name or hashlib.sha256(content).hexdigest()
    place = call("GET", f"/templates/{template}/files/{digest}")
    assert place.status == 201, place
    request = urllib.request.Request(place.json["url"], data=content, method="PUT")
    assert urllib.request.urlopen(request).status == 200
    assert call("GET", f"/templates/{template}/files/{digest}").json["present"] is True
    return digest


def sh(made, line, **more):
    return server.run(made["id"], line, **more)["stdout"]


class Builds(unittest.TestCase):
    def test_steps(self):
        built("steps", steps=[step("ENV", "COLOUR", "blue", "SHAPE", "round"), step("WORKDIR", "/opt/work"),
                              step("RUN", "echo $COLOUR > made; whoami >> made; pwd >> made"),
                              step("USER", "root"), step("RUN", "whoami > /opt/by-root")])
        made = server.create(template="steps")
        self.assertEqual(sh(made, "cat made"), "blue\nuser\n/opt/work\n", "in the template's own folder")
        self.assertEqual(sh(made, "cat /opt/by-root; whoami; echo $SHAPE"), "root\nroot\nround\n")
        again = server.create(template="steps", env={"SHAPE": "square"})
        self.assertEqual(sh(again, "echo $SHAPE"), "square\n", "a create's own goes before")
        kept = server.post(f"/v1/sandboxes/{made['id']}/snapshot", {"memory": False}).json
        self.assertEqual(sh(server.create(snapshot=kept["id"]), "whoami; pwd"), "root\n/opt/work\n", "also through a snapshot")

    def test_a_folder_at_the_end(self):
        built("ending", steps=[step("WORKDIR", "/opt/last")])
        made = server.create(template="ending")
        self.assertEqual(sh(made, "pwd"), "/opt/last\n")
        self.assertEqual(server.delete("/v1/templates/ending").status, 204)
        self.assertEqual(server.delete("/v1/templates/ending").status, 404)
        self.assertEqual(sh(made, "pwd"), "/opt/last\n", "what was made of it goes on")
        self.assertEqual(server.post("/v1/sandboxes", {"template": "ending"}).status, 404)

    def test_a_name_of_this_machine(self):
        call("POST", "/v3/templates", {"name": "minimal"})
        self.assertEqual(sh(server.create(template="minimal"), "echo here"), "here\n", "nothing is built yet")
        built("minimal", steps=[step("RUN", "echo mine > /home/user/mark")])
        self.assertEqual(sh(server.create(template="minimal"), "cat /home/user/mark"), "mine\n")
        built("minimal", steps=[step("RUN", "echo again >> /home/user/mark")])
        self.assertEqual(sh(server.create(template="minimal"), "cat /home/user/mark"), "mine\nagain\n", "on top of its own")
        # What is inside is told what the API says.
        made = call("POST", "/sandboxes", {"templateID": "minimal"}).json
        self.assertNotEqual(made["templateID"], "minimal")
        self.assertEqual(sh({"id": made["sandboxID"]}, "echo $E2B_TEMPLATE_ID"), made["templateID"] + "\n")
        self.assertEqual(call("DELETE", "/templates/minimal").status, 204)

    def test_a_template_may_want_more_disk(self):
        project = server.post("/v1/projects", {"name": "disks", "limits": {"disk": "8G"}}).json["id"]
        key = server.post("/v1/keys", {"project": project, "scope": "use"}).json["secret"]
        own = lambda *what: server.request(*what, key="", headers={"X-API-Key": key})  # noqa: E731
        for wrong in (8193, 0, -1, "1", 1e10):
            refused = own("POST", "/v3/templates", {"name": "large", "minFreeDiskMb": wrong})
            self.assertEqual((refused.status, refused.json["code"]), (400, 400), refused)
        self.assertEqual(own("GET", "/templates/aliases/large").status, 404, "nothing is left of it")
        usual = server.create()["disk"]
        for asked, disk in ((6144, 6144 << 20), (1, usual)):
            made = own("POST", "/v3/templates", {"name": "large", "minFreeDiskMb": asked})
            self.assertEqual(made.status, 202, made)
            path = f"/templates/{made.json['templateID']}/builds/{made.json['buildID']}"
            self.assertEqual(own("POST", "/v2" + path, {"fromTemplate": "minimal", "steps": [step("RUN", "echo made > /opt/mark", "root")]}).status, 202)
            eventually(lambda: own("GET", path + "/status").json["status"] == "ready", 90, "the build")  # noqa: B023
            box = own("POST", "/v2/sandboxes", {"templateID": "large"}).json["sandboxID"]
            self.assertEqual(own("GET", f"/sandboxes/{box}").json["diskSizeMB"], disk >> 20)
            self.assertEqual(server.get(f"/v1/sandboxes/{box}", key=key).json["disk"], disk)
            self.assertEqual(own("GET", "/templates/large").json["builds"][0]["diskSizeMB"], disk >> 20)
            self.assertEqual(own("DELETE", f"/sandboxes/{box}").status, 204)

    def test_a_template_that_is_published_is_everybodys_to_use(self):
        made = built("shared", steps=[step("RUN", "echo theirs > /home/user/mark")])
        project = server.post("/v1/projects", {"name": "others"}).json["id"]
        key = server.post("/v1/keys", {"project": project, "scope": "use"}).json["secret"]
        other = lambda *what: server.request(*what, key="", headers={"X-API-Key": key})  # noqa: E731
        id_, whole = made["templateID"], "default%2Fshared"
        tries = lambda: [other("GET", "/templates/" + name).status for name in (id_, whole)] + \
            [other("GET", "/templates/aliases/" + name).status for name in (id_, whole)]  # noqa: E731
        creates = lambda name: other("POST", "/v2/sandboxes", {"templateID": name})  # noqa: E731
        self.assertEqual(tries(), [404] * 4)
        self.assertEqual([creates(name).status for name in (id_, "default/shared")], [404] * 2)
        for wrong in ({}, {"public": "yes"}):
            self.assertEqual(call("PATCH", "/v2/templates/" + id_, wrong).status, 400)
        self.assertEqual(other("PATCH", "/v2/templates/" + id_, {"public": True}).status, 404, "only whoever has it")
        self.assertEqual(call("PATCH", "/v2/templates/minimal", {"public": False}).status, 403)
        user = server.post("/v1/keys", {"scope": "use"}).json["secret"]
        mine = lambda open_: server.request("PATCH", "/v2/templates/" + id_, {"public": open_}, key="", headers={"X-API-Key": user})  # noqa: E731
        self.assertEqual(mine(True).status, 403, "that is for whoever manages the project")
        opened = call("PATCH", "/v2/templates/" + id_, {"public": True})
        self.assertEqual((opened.status, opened.json), (200, {"names": ["default/shared"]}))
        self.assertTrue(call("GET", "/templates/" + id_).json["public"])
        self.assertEqual(tries(), [200] * 4)
        seen = other("GET", "/templates/" + id_).json
        self.assertEqual((seen["public"], seen["names"], seen["builds"]), (True, ["default/shared"], []))
        for name in (id_, "default/shared", "default/shared:default"):
            box = creates(name)
            self.assertEqual((box.status, box.json.get("templateID")), (201, id_), box)
            ran = server.post(f"/v1/sandboxes/{box.json['sandboxID']}/commands", {"command": "cat /home/user/mark; echo $E2B_TEMPLATE_ID"}, key=key)
            self.assertEqual(ran.json["stdout"], f"theirs\n{id_}\n", ran)
            other("DELETE", "/sandboxes/" + box.json["sandboxID"])
        # A name alone is one's own, and how it was made stays with who made it.
        self.assertEqual(creates("shared").status, 404)
        for method, path in (("GET", f"/templates/{id_}/files/{'a' * 64}"), ("GET", f"/templates/{id_}/builds/{made['buildID']}/status"),
                             ("GET", f"/templates/{id_}/tags"), ("DELETE", f"/templates/{id_}")):
            self.assertEqual(other(method, path).status, 404, path)
        self.assertNotIn(id_, [one["templateID"] for one in other("GET", "/templates").json])
        self.assertEqual(other("POST", "/templates/tags", {"target": id_, "tags": ["x"]}).status, 404)
        self.assertEqual(mine(False).status, 403)
        self.assertEqual(call("PATCH", "/v2/templates/" + id_, {"public": False}).json, {"names": []})
        told = [one["data"] for one in server.get("/v1/ledger?kind=project.updated").json["events"] if one["data"].get("template") == id_]
        self.assertEqual([(one["changed"], one["name"], one["published"]) for one in told], [(["template"], "shared", True), (["template"], "shared", False)])
        self.assertEqual(tries(), [404] * 4)
        self.assertEqual(creates(id_).status, 404)

    def test_a_name_is_a_templates_or_a_snapshots(self):
        built("both", steps=[])
        made = call("POST", "/sandboxes", {"templateID": "both"}).json
        snapshots = f"/sandboxes/{made['sandboxID']}/snapshots"
        # Whoever removes a snapshot by its name must not remove a template.
        for name in ("both", "both:v2", "minimal"):
            refused = call("POST", snapshots, {"name": name, "memory": False})
            self.assertEqual((refused.status, refused.json["code"]), (409, 409), refused)
        self.assertEqual(server.post(f"/v1/sandboxes/{made['sandboxID']}/snapshot", {"name": "both", "memory": False}).status, 409)
        for name in ("kept", "tagged:v2"):
            self.assertEqual(call("POST", snapshots, {"name": name, "memory": False}).status, 201)
        for name in ("kept", "tagged", "tagged:v3"):
            refused = call("POST", "/v3/templates", {"name": name})
            self.assertEqual((refused.status, refused.json["code"]), (409, 409), refused)
        self.assertEqual(server.post("/v1/templates", {"name": "kept", "dockerfile": "FROM minimal\n"}).status, 409)
        self.assertEqual(call("DELETE", "/templates/kept").status, 204)
        self.assertEqual(call("POST", "/v3/templates", {"name": "kept"}).status, 202)
        self.assertEqual(call("POST", "/v3/templates", {"name": "both"}).status, 202, "one that is there is built again")
        for name in ("both", "kept", "tagged:v2"):
            self.assertEqual(call("DELETE", "/templates/" + name).status, 204)

    def test_files(self):
        made = call("POST", "/v3/templates", {"name": "files"}).json
        content = tar_of({"src/a.txt": b"one", "src/deep/b.txt": b"two", "single.txt": b"three"})
        digest = upload(made["templateID"], content)
        reply = call("POST", f"/v2/templates/{made['templateID']}/builds/{made['buildID']}", {
            "fromTemplate": "minimal", "steps": [
                step("COPY", "src", "/opt/tree", "", "", filesHash=digest),
                step("COPY", "single.txt", "/opt/renamed.txt", "root", "0600", filesHash=digest),
                step("COPY", "src/*.txt", "/opt/many/", filesHash=digest)]})
        self.assertEqual(reply.status, 202, reply)
        self.assertEqual(finished(made)["status"], "ready", lines(made))
        box = server.create(template="files")
        self.assertEqual(sh(box, "cat /opt/tree/a.txt /opt/tree/deep/b.txt /opt/many/a.txt"), "onetwoone")
        self.assertEqual(sh(box, "stat -c '%U %a' /opt/renamed.txt /opt/tree/a.txt", user="root"), "root 600\nuser 644\n")
        self.assertEqual(sh(box, "ls -A /tmp"), "", "nothing of the transfer is left")

    def test_relative_paths_begin_at_home(self):
        made = call("POST", "/v3/templates", {"name": "homely"}).json
        digest = upload(made["templateID"], tar_of({"one": b"one"}))
        reply = call("POST", f"/v2/templates/{made['templateID']}/builds/{made['buildID']}", {
            "fromTemplate": "minimal", "steps": [
                step("COPY", "one", "here/", filesHash=digest), step("RUN", "pwd > ran"), step("WORKDIR", "deep"),
                step("COPY", "one", "two", filesHash=digest), step("USER", "root"), step("COPY", "one", "three", filesHash=digest)]})
        self.assertEqual(reply.status, 202, reply)
        self.assertEqual(finished(made)["status"], "ready", lines(made))
        box = server.create(template="homely")
        self.assertEqual(sh(box, "cd /home/user; cat here/one deep/two deep/three ran; stat -c %U here/one deep deep/two deep/three; pwd", user="root"),
                         "oneoneone/home/user\nuser\nuser\nuser\nroot\n/home/user\n")
        # What stands on it goes on where it ended.
        built("homelier", fromTemplate="homely", steps=[step("RUN", "whoami; pwd > /opt/where; whoami >> /opt/where")])
        self.assertEqual(sh(server.create(template="homelier"), "cat /opt/where"), "/home/user/deep\nroot\n")

    def test_files_need_a_token(self):
        made = call("POST", "/v3/templates", {"name": "tokens"}).json
        digest = "0" * 64
        url = call("GET", f"/templates/{made['templateID']}/files/{digest}").json["url"]
        path = url[url.index("/build-files"):]
        for wrong in (path[:-1] + ("0" if path[-1] != "0" else "1"), path.replace(digest, "1" * 64), path.split("?")[0]):
            self.assertEqual(server.request("PUT", wrong, b"x", key="").status, 401, wrong)
        self.assertEqual(call("GET", f"/templates/{made['templateID']}/files/nonsense").status, 400)
        reads = server.post("/v1/keys", {"scope": "read"}).json["secret"]
        asked = server.get(f"/templates/{made['templateID']}/files/{digest}", key="", headers={"X-API-Key": reads})
        self.assertEqual(asked.status, 403, "who may only read is not told where to write")

    def test_what_it_starts_runs_in_every_one(self):
        # The template has the smallest Python, without http.server.
        serve = '''
import socket
listener = socket.create_server(("127.0.0.1", 8000))
while True:
    one = listener.accept()[0]
    if one.recv(4096):
        one.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\nConnection: close\\r\\n\\r\\nhello\\n")
    one.close()
'''
        built("web", steps=[step("RUN", "cat > serve.py <<'END'" + serve + "END")], startCmd="python3 serve.py",
              readyCmd="bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000'")
        births = set()
        for _ in range(3):
            box = server.create(template="web")
            births.add(box["birth"])
            reply = server.get(f"/v1/sandboxes/{box['id']}/ports/8000/")
            self.assertEqual((reply.status, reply.body), (200, b"hello\n"))
            server.delete(f"/v1/sandboxes/{box['id']}")
        self.assertLessEqual(births, {"forked", "pooled"})
        eventually(lambda: server.create(template="web")["birth"] == "pooled", what="a pooled one")

    def test_a_start_command_that_dies(self):
        for ready in ("false", "test -e /never", ""):
            with self.subTest(ready=ready):
                build = begin("dying", startCmd="echo to say; echo last words >&2; exit 3", **({"readyCmd": ready} if ready else {}))
                status = finished(build)
                self.assertEqual((status["status"], status["reason"]["step"]), ("error", "finalize"))
                self.assertIn("ended before it was ready: exit status 3", status["reason"]["message"])
                self.assertLessEqual({"to say", "last words"}, set(lines(build)))
        # Also while the ready command is still at work.
        build = begin("dying", startCmd="echo so far; sleep 0.5; kill -9 $$", readyCmd="sleep 80")
        self.assertIn("ended before it was ready: signal 9", finished(build, 60)["reason"]["message"])
        self.assertIn("so far", lines(build))
        self.assertEqual(server.post("/v1/sandboxes", {"template": "dying"}).status, 404)

    def test_a_start_command_that_leaves_a_daemon(self):
        build = built("daemon", startCmd="echo going; (sleep 0.3; touch /tmp/there; exec sleep 1003) & exit 0",
                      readyCmd="test -e /tmp/there")
        self.assertIn("going", lines(build))
        self.assertEqual(sh(server.create(template="daemon"), "pgrep -cxf 'sleep 1003'"), "1\n")

    def test_the_cache(self):
        first = built("cached", steps=[step("RUN", "echo $RANDOM > n"), step("RUN", "echo a > a")])
        number = sh(server.create(template="cached"), "cat n")
        second = built("cached", steps=[step("RUN", "echo $RANDOM > n"), step("RUN", "echo b > b")])
        box = server.create(template="cached")
        self.assertEqual(sh(box, "cat n; ls"), number + "b\nn\n")
        self.assertIn("CACHED RUN echo $RANDOM > n", lines(second))
        self.assertNotIn("CACHED RUN echo $RANDOM > n", lines(first))
        third = built("cached", steps=[step("RUN", "echo $RANDOM > n"), step("RUN", "echo b > b")], force=True)
        self.assertFalse([line for line in lines(third) if line.startswith("CACHED")])

    def test_a_step_that_was_lost(self):
        steps = [step("RUN", "echo $RANDOM > lost"), step("RUN", "echo a > a")]
        built("lost", steps=steps)
        number = sh(server.create(template="lost"), "cat lost")
        images = os.path.join(server.data, "images")
        before = set(os.listdir(images))
        built("lost", steps=[*steps, step("RUN", "echo b > b")])
        newest = (set(os.listdir(images)) - before).pop()
        server.stop()
        subprocess.run([ISOLA, "launcher", "stop", "--all", "--data", server.data], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(os.path.join(images, newest))
        server.start(server.port)
        again = built("lost", steps=[*steps, step("RUN", "echo b > b")])
        self.assertIn("CACHED RUN echo a > a", lines(again), "what is there serves")
        self.assertNotIn("CACHED RUN echo b > b", lines(again), "what is not is made anew")
        self.assertEqual(sh(server.create(template="lost"), "cat lost b"), number + "b\n")

    def test_a_step_that_fails(self):
        build = begin("broken", steps=[step("RUN", "true"), step("RUN", "echo so far; echo oops >&2; exit 7")])
        status = finished(build)
        self.assertEqual(status["status"], "error")
        self.assertEqual(status["reason"]["step"], "2")
        self.assertIn("exit status 7", status["reason"]["message"])
        self.assertLessEqual({"so far", "oops"}, set(lines(build)))
        self.assertEqual(server.post("/v1/sandboxes", {"template": "broken"}).status, 404)
        eventually(lambda: not [s for s in server.get("/v1/sandboxes?limit=1000").json["sandboxes"]
                                if s["metadata"].get("isola.build") == build["buildID"] and s["state"] != "ended"],
                   what="the end of its sandbox")

    def test_who_runs_it(self):
        status = finished(begin("nobody", steps=[step("RUN", "whoami", "root123")]))
        self.assertEqual(status["reason"]["message"],
                         "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'")

    def test_tags(self):
        one = built("tagged:v1", steps=[step("RUN", "echo 1 > n")])
        two = built("tagged:v2", steps=[step("RUN", "echo 2 > n")])
        self.assertEqual(sh(server.create(template="tagged:v1"), "cat n"), "1\n")
        self.assertEqual(sh(server.create(template="tagged:v2"), "cat n"), "2\n")
        self.assertEqual(server.post("/v1/sandboxes", {"template": "tagged"}).status, 404)
        self.assertEqual(call("POST", "/templates/tags", {"target": "tagged:v2", "tags": ["default", "stable"]}).json["buildID"],
                         two["buildID"])
        self.assertEqual(sh(server.create(template="tagged"), "cat n"), "2\n")
        tags = {t["tag"]: t["buildID"] for t in call("GET", "/templates/tagged/tags").json}
        self.assertEqual(tags, {"v1": one["buildID"], "v2": two["buildID"], "default": two["buildID"], "stable": two["buildID"]})
        self.assertEqual(call("DELETE", "/templates/tags", {"name": "tagged", "tags": ["stable"]}).status, 204)
        self.assertEqual(call("DELETE", "/templates/tags", {"name": "tagged", "tags": ["stable"]}).status, 404)

    def test_one_on_top_of_another(self):
        built("lower", steps=[step("ENV", "WHERE", "below"), step("RUN", "echo below > n")])
        built("upper", fromTemplate="lower", steps=[step("RUN", "echo $WHERE again >> n")])
        self.assertEqual(sh(server.create(template="upper"), "cat n"), "below\nbelow again\n")

    def test_gone(self):
        build = built("gone", steps=[step("RUN", "echo x > x")])
        self.assertIn("gone", [n for t in call("GET", "/templates").json for n in t["names"]])
        box = server.create(template="gone")
        self.assertEqual(call("DELETE", "/templates/" + build["templateID"]).status, 204)
        self.assertEqual(call("GET", "/templates/aliases/gone").status, 404)
        self.assertEqual(server.post("/v1/sandboxes", {"template": "gone"}).status, 404)
        self.assertEqual(sh(box, "cat x"), "x\n", "what runs goes on")

    def test_another_project_sees_nothing(self):
        build = built("mine", steps=[])
        project = server.post("/v1/projects", {"name": "elsewhere"}).json
        key = server.post("/v1/keys", {"project": project["id"], "scope": "admin"}).json["secret"]
        self.assertEqual(server.post("/v1/sandboxes", {"template": "mine"}, key=key).status, 404)
        status = f"/templates/{build['templateID']}/builds/{build['buildID']}/status"
        self.assertEqual(server.get(status, key="", headers={"X-API-Key": key}).status, 404)

    def test_bad_input(self):
        made = call("POST", "/v3/templates", {"name": "bad"}).json
        path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
        for body in ({"steps": "x"}, {"steps": [{"type": "JUMP"}]}, {"steps": [step("ENV", "A")]}, {"fromImage": 5},
                     {"fromImage": "a", "fromTemplate": "b"}, {"steps": [step("COPY", "../etc", "/x", filesHash="0" * 64)]}):
            self.assertEqual(call("POST", path, body).status, 400, body)
        self.assertEqual(call("POST", path, {"fromImage": "ubuntu:22.04"}).status, 501)
        for name in ("", "a b", "x:y z", "/"):
            self.assertEqual(call("POST", "/v3/templates", {"name": name}).status, 400, name)
        self.assertEqual(call("POST", path, {"fromTemplate": "nosuch"}).status, 202)
        status = finished(made)
        self.assertEqual((status["status"], status["reason"]["step"]), ("error", "base"))
        self.assertEqual(call("POST", path, {"fromTemplate": "minimal"}).status, 409, "a build is begun once")

    def test_a_server_that_dies(self):
        build = begin("dies", steps=[step("RUN", "sleep 100")])
        eventually(lambda: "RUN sleep 100" in lines(build))
        server.stop(9)
        server.start(server.port)
        status = finished(build)
        self.assertIn("restarted", status["reason"]["message"])
        self.assertFalse([s for s in server.get("/v1/sandboxes?limit=1000").json["sandboxes"]
                          if s["metadata"].get("isola.build") == build["buildID"] and s["state"] != "ended"])


class Hurried(unittest.TestCase):
    """Builds that are given little time."""

    def serve(self, *flags):
        global server
        usual, server = server, Server(*flags)

        def back():
            global server
            server.close()
            server = usual
        self.addCleanup(back)

    def test_a_step_that_takes_too_long(self):
        self.serve("--builds-timeout", "2s")
        # One limit for all of it: each of them alone would be in time.
        for steps, at in (([step("RUN", "sleep 100")], "1"), ([step("RUN", f"sleep 0.{n + 1}") for n in range(9)], None)):
            build = begin("slow", steps=steps)
            status = finished(build, 60)
            self.assertEqual(status["status"], "error")
            self.assertEqual(status["reason"]["message"], "the build took longer than 2s (builds.timeout)")
            if at:
                self.assertEqual(status["reason"]["step"], at)
        eventually(lambda: not [s for s in server.get("/v1/sandboxes?limit=1000").json["sandboxes"] if s["state"] != "ended"],
                   what="the end of their sandboxes")

    def test_stages_share_the_time(self):
        self.serve("--builds-timeout", "2s")
        stages = "FROM minimal AS one\nRUN sleep 1.2\nFROM minimal\nRUN sleep 1.2\nCOPY --from=one /etc/hostname /copied\n"
        begun = server.post("/v1/templates", {"name": "stages", "dockerfile": stages})
        self.assertEqual(begun.status, 202, begun)
        at = begun.headers["location"]
        eventually(lambda: server.get(at).json["state"] in ("ready", "failed"), 60, "the end of the build")
        self.assertIn("the build took longer than 2s (builds.timeout)", str(server.get(at).json))

    def test_what_never_gets_ready(self):
        self.serve("--builds-ready-timeout", "2s")
        for ready in ("false", "sleep 100"):  # says no, and says nothing
            status = finished(begin("never", startCmd="sleep 1005", readyCmd=ready), 60)
            self.assertEqual((status["status"], status["reason"]["step"]), ("error", "finalize"))
            self.assertEqual(status["reason"]["message"], "the start command was not ready within 2s "
                             f"(builds.ready_timeout): '{ready}' says no")


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
