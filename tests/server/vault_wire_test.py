"""A secret on its way: real clients inside reach a TLS server of ours that demands it, and it is nowhere inside."""
import http.server
import json
import os
import secrets
import signal
import subprocess
import unittest

from island import FULL, ISOLA, Server, built, eventually
from tls_world import Authority, Names

TEMPLATE = next((name for name in ("base", "code-interpreter") if built(name)), None)  # with Python inside
NAME = "api.wire.example"
OTHER = "other.wire.example"
FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=dict(
        word.split("=", 1) for word in sys.argv[2:])), timeout=20).read().decode(), end="")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode(), end="")
except Exception as error:
    print("failed:", error, end="")
"""


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = []

    def do_GET(self):
        given = self.headers.get("Authorization", "")
        type(self).seen.append((self.headers["Host"], self.path, given))
        good = given == "Bearer " + Wire.value
        text = (b"welcome" if good else b"who are you?") + (given.encode() if self.path == "/echo" else b"")
        self.send_response(200 if good else 401)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@unittest.skipUnless(TEMPLATE or FULL, "no template with Python is built")
class Wire(unittest.TestCase):
    value = "wire-" + secrets.token_hex(16)

    @classmethod
    def setUpClass(cls):
        assert TEMPLATE, "a full run has a template with Python: nothing was tried"
        cls.authority = Authority(NAME, OTHER)
        cls.web = cls.authority.serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream))
        cls.port = cls.web.server_port
        cls.server = Server(env={"ISOLA_NAME_SERVERS": f"127.0.0.1:{Names().port}",
                                 "ISOLA_AUTHORITIES": cls.authority.ca})

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.web.shutdown()
        cls.authority.close()

    def box(self, **more):
        policy = f"allow {NAME}:{self.port}\nallow {OTHER}:{self.port}\nallow 127.0.0.1/32:{self.port}\n"
        origin = {} if "snapshot" in more else {"template": TEMPLATE}
        box = self.server.create(network=policy, **origin, **more)["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{box}"))
        return box

    def secret(self, value=None):
        name = "w" + secrets.token_hex(4)
        self.assertEqual(self.server.post("/v1/secrets", {"name": name, "value": value or self.value}).status, 201)
        return name

    def bind(self, box, name, **more):
        reply = self.server.post(f"/v1/sandboxes/{box}/bindings",
                                 {"secret": name, "names": [NAME], "ports": str(self.port), **more})
        self.assertEqual(reply.status, 201, reply)
        return reply.json["id"]

    def fetch(self, box, host=NAME, path="/", headers=()):
        """By a Python program inside."""
        url = f"https://{host}:{self.port}{path}"
        reply = self.server.post(f"/v1/sandboxes/{box}/commands", {"argv": ["python3", "-c", FETCH, url, *headers]})
        return reply.json["stdout"] if reply.status == 200 else str(reply)

    def test_clients_inside_get_through_and_find_nothing(self):
        box = self.box()
        self.assertNotEqual(self.fetch(box), "welcome")
        self.bind(box, self.secret())
        self.assertEqual(self.fetch(box), "welcome", self.server.log())
        url = f"https://{NAME}:{self.port}/"
        for tool, line in (("curl", f"curl -sS -m 20 {url}"),
                           ("node", f"node -e \"fetch('{url}').then(r => r.text()).then(t => console.log(t))\"")):
            if self.server.run(box, f"command -v {tool} || true")["stdout"]:
                self.assertEqual(self.server.run(box, line)["stdout"].strip(), "welcome", tool)
        # What the server sends back of it is blotted out on the way in.
        self.assertNotIn(self.value, self.fetch(box, path="/echo"))
        # Nowhere: written in two halves, so that the search does not find itself.
        half = len(self.value) // 2
        hunt = (f"word={self.value[:half]}; word=$word''{self.value[half:]}; "
                "(env; cat /proc/[0-9]*/environ) | tr '\\0' '\\n' | grep -v ^word= | grep -c -F \"$word\"; "
                "grep -rlF \"$word\" /home /root /tmp /etc /run /var /usr/local 2>/dev/null | wc -l")
        self.assertEqual(self.server.run(box, hunt)["stdout"].split(), ["0", "0"])
        # At another name it is not set, and what the sandbox says of itself is not what the server sees.
        self.assertNotIn("welcome", self.fetch(box, host=OTHER))
        self.assertEqual(self.fetch(box, headers=["Authorization=Bearer mine"]), "welcome")

    def test_a_revocation_is_in_force_when_it_returns(self):
        box = self.box()
        made = self.bind(box, self.secret())
        self.assertEqual(self.fetch(box), "welcome")
        self.assertEqual(self.server.delete(f"/v1/bindings/{made}").status, 204)
        self.assertNotIn("welcome", self.fetch(box))

    def test_a_name_stays_closed_while_the_next_launcher_has_no_value_for_it(self):
        path = f"/var/tmp/isola-wire-{secrets.token_hex(6)}"
        with open(path, "w") as file:
            file.write(self.value)
        os.chmod(path, 0o644)
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))
        name = "w" + secrets.token_hex(4)
        self.assertEqual(self.server.post("/v1/secrets", {"name": name, "source": {"type": "file", "path": path}}).status, 201)
        box = self.box()
        self.bind(box, name)
        self.assertEqual(self.fetch(box), "welcome", self.server.log())
        os.unlink(path)
        os.kill(self.server.launcher_pid(), signal.SIGKILL)  # a gate alone gets again what the launcher has for it
        eventually(lambda: self.server.get("/readyz", key="").status == 200, what="the next launcher")
        seen = len(Upstream.seen)
        # Its output is not to be had either, as it cannot be searched now: what became of it stands in the ledger.
        self.fetch(box)
        denied = lambda: self.server.get(f"/v1/ledger?sandbox={box}&kind=secret.denied").json["events"]
        eventually(denied, what="the refusal")
        self.assertEqual(denied()[0]["data"]["reason"], "locked")
        self.assertEqual(len(Upstream.seen), seen, "it passed by unseen")

    def test_another_value_is_used_from_the_next_request_on(self):
        box = self.box()
        name = self.secret("an old value that opens nothing")
        self.bind(box, name)
        self.assertIn("who are you", self.fetch(box))
        self.assertEqual(self.server.request("PUT", f"/v1/secrets/{name}", {"value": self.value}).status, 200)
        self.assertEqual(self.fetch(box), "welcome")

    def test_the_authority_of_a_sandbox_is_its_own(self):
        box, other = self.box(), self.box()
        name = self.secret()
        for one in (box, other):
            self.bind(one, name)
        read = "cat /usr/local/share/ca-certificates/isola.crt"
        first, second = (self.server.run(one, read)["stdout"] for one in (box, other))
        self.assertIn("BEGIN CERTIFICATE", first)
        self.assertNotEqual(first, second)
        self.assertEqual(self.server.run(box, "grep -c 'isola: begin' /etc/ssl/certs/ca-certificates.crt")["stdout"].strip(),
                         "1")
        reply = self.server.post(f"/v1/sandboxes/{box}/pause")
        if reply.status == 501:
            return
        self.assertEqual(self.server.post(f"/v1/sandboxes/{box}/resume", {"keep_grants": True}).status, 200)
        self.assertNotEqual(self.server.run(box, read)["stdout"], first, "another life, another authority")
        self.assertEqual(self.server.run(box, "grep -c 'isola: begin' /etc/ssl/certs/ca-certificates.crt")["stdout"].strip(),
                         "1")
        self.assertEqual(self.fetch(box), "welcome")

    def test_the_authority_stands_where_other_distributions_look(self):
        box = self.box()
        there = "/etc/pki/tls/certs/ca-bundle.crt"
        self.server.run(box, f"mkdir -p /etc/pki/tls/certs && cp /etc/ssl/certs/ca-certificates.crt {there} && "
                             "ln -s certs/ca-certificates.crt /etc/ssl/cert.pem", user="root")
        self.bind(box, self.secret())
        for path in (there, "/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt"):
            self.assertEqual(self.server.run(box, f"grep -c 'isola: begin' {path}")["stdout"].strip(), "1", path)
        self.assertEqual(self.server.run(box, "readlink /etc/ssl/cert.pem")["stdout"].strip(), "certs/ca-certificates.crt")
        self.assertEqual(self.server.run(box, "ls /etc/pki/ca-trust 2>&1 || true")["stdout"].count("No such file"), 1)
        look = "import socket, ssl; c = ssl.create_default_context(capath='/etc/ssl/certs')\n" \
               f"s = c.wrap_socket(socket.create_connection(('{NAME}', {self.port}), 20), server_hostname='{NAME}')\n" \
               "print('trusted')"
        out = self.server.run(box, f"python3 -c \"{look}\" 2>&1")["stdout"]
        self.assertIn("trusted", out)

    def test_a_template_build_has_no_credentials(self):
        shared = self.server.post("/v1/bindings", {"secret": self.secret(), "names": [NAME], "ports": str(self.port)})
        self.assertEqual(shared.status, 201, shared)
        self.addCleanup(lambda: self.server.delete(f"/v1/bindings/{shared.json['id']}"))
        self.assertEqual(self.fetch(self.box()), "welcome", "a sandbox of the project has it")
        name = "built" + secrets.token_hex(4)
        ask = "import ssl, urllib.request as u; c = ssl._create_unverified_context()"
        ask += f"; r = u.Request('https://{NAME}:{self.port}/of-{name}')"
        ask += "; open('/said', 'w').write(str(getattr(u.build_opener(u.HTTPSHandler(context=c)), 'open')(r).status))"
        network = f"allow {NAME}:{self.port}\nallow 127.0.0.1/32:{self.port}\n"
        begun = self.server.post("/v1/templates", {"name": name, "network": network, "dockerfile":
                                 f"FROM {TEMPLATE}\nRUN python3 -c \"{ask}\" || echo refused > /said\n"})
        self.assertEqual(begun.status, 202, begun)
        self.addCleanup(lambda: self.server.delete(f"/v1/templates/{name}"))
        at = begun.headers["location"]
        done = eventually(lambda: (b := self.server.get(at).json)["state"] in ("ready", "failed") and b, 120, "the build")
        self.assertEqual(done["state"], "ready", done)
        made = self.server.create(template=name, grants=False)["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{made}"))
        self.assertEqual(self.server.run(made, "cat /said")["stdout"].strip(), "refused")
        # By the server that it asked, and not by whatever else there is on the way.
        self.assertEqual([given for _, path, given in Upstream.seen if path == f"/of-{name}"], [""])

    def images_with(self, value):
        found = []
        for path, _, names in os.walk(os.path.join(self.server.data, "images")):
            for one in names:
                with open(os.path.join(path, one), "rb") as file:
                    if value.encode() in file.read():
                        found.append(os.path.join(path, one))
        return found

    def gate_pid(self):
        launcher = self.server.launcher_pid()
        with open(f"/proc/{launcher}/task/{launcher}/children") as file:
            for pid in file.read().split():
                with open(f"/proc/{pid}/comm") as comm:
                    if comm.read().strip() == "isola-gate":
                        return int(pid)
        return 0

    def test_who_used_it_is_one_command(self):
        box = self.box()
        name = self.secret()
        made = self.bind(box, name, path_prefix="/yes")
        reply = self.server.post(f"/v1/sandboxes/{box}/commands", {
            "argv": ["python3", "-c", FETCH, f"https://{NAME}:{self.port}/yes"], "task": "task-7"})
        self.assertEqual(reply.json["stdout"], "welcome", reply)
        # Many at once become few entries, and their number is told.
        many = ("import http.client, ssl\nc = http.client.HTTPSConnection('%s', %d, context=ssl.create_default_context())\n"
                "for i in range(400):\n    c.request('GET', '/yes'); c.getresponse().read()\n" % (NAME, self.port))
        reply = self.server.post(f"/v1/sandboxes/{box}/commands", {"argv": ["python3", "-c", many]})
        self.assertEqual(reply.json["exit_code"], 0, reply)
        self.assertEqual(self.server.delete(f"/v1/bindings/{made}").status, 204)

        def used():
            self.server.get("/v1/ledger")
            out = subprocess.run([ISOLA, "audit", "secret", name, "--json", "--data", self.server.data], check=True,
                                 capture_output=True, text=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
            return [e for e in json.loads(out.stdout) if e["kind"] == "secret.used"]
        eventually(lambda: sum(e["data"].get("count", 1) for e in used()) >= 401, what="401 uses")
        self.assertEqual(sum(e["data"].get("count", 1) for e in used()), 401)
        self.assertEqual({(e["sandbox"], e["data"]["name"]) for e in used()}, {(box, NAME)})
        # For which task: that of the command, though it is told when that may be over. The others had none.
        first, *others = used()
        self.assertEqual((first["task"], first["data"].get("count", 1)), ("task-7", 1), first)
        self.assertEqual({e["task"] for e in others}, {""}, others)
        self.assertEqual([e for e in others if "tasks" in e["data"] and e["data"].get("count", 1) == 1], [])
        shown = subprocess.run([ISOLA, "audit", "secret", name, "--data", self.server.data], check=True, capture_output=True,
                               text=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}).stdout
        self.assertRegex(shown, r"secret\.used +\S+ +%s .* %s +GET /yes" % (box, NAME))
        self.assertRegex(shown, r"secret\.used +\S+ +%s +task-7 .* %s +GET /yes" % (box, NAME))
        if any(e["data"].get("count", 1) > 1 for e in used()):  # told together, when they come faster than they are told
            self.assertRegex(shown, r"secret\.used .* \d+ times")
        self.assertNotIn(self.value, shown)

    def test_a_gate_that_aborts_leaves_no_core(self):
        box = self.box()
        self.bind(box, self.secret())
        self.assertEqual(self.fetch(box), "welcome")
        gate = self.gate_pid()
        with open(f"/proc/{gate}/limits") as file:
            self.assertRegex(file.read(), r"Max core file size +0 +0 ")
        places = {os.readlink(f"/proc/{gate}/cwd"), self.server.data, os.getcwd(), "/tmp", "/var/tmp"}
        with open("/proc/sys/kernel/core_pattern") as file:
            pattern = file.read().strip()
        if pattern.startswith("/"):
            places.add(os.path.dirname(pattern))

        def cores():
            return {os.path.join(place, name) for place in places if os.path.isdir(place) for name in os.listdir(place)
                    if "core" in name}
        before = cores()
        os.kill(gate, signal.SIGABRT)
        eventually(lambda: self.gate_pid() not in (0, gate), what="the next gate")
        for path in cores() - before:
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    self.assertNotIn(self.value.encode(), file.read(), path)
        eventually(lambda: self.fetch(box) == "welcome", what="a credential again")

    def test_what_a_failing_hook_says_is_in_no_record(self):
        """It may be anything, a value included: whoever asked is told, and nobody else."""
        said = "said-" + secrets.token_hex(8)
        half = len(said) // 2
        say = f"echo {said[:half]}''{said[half:]}"
        reply = self.server.post("/v1/sandboxes", {"template": TEMPLATE, "on_create": [f"{say}; exit 3"]})
        self.assertGreaterEqual(reply.status, 400, reply)
        self.assertIn(said.encode(), reply.body, "whoever asked hears it")
        box = self.box(on_resume=[f"{say}; exit 3"])
        slept = self.server.post(f"/v1/sandboxes/{box}/pause", {"memory": False})
        self.assertEqual(slept.status, 200, slept)
        self.server.post(f"/v1/sandboxes/{box}/resume", {})
        told = eventually(lambda: [e for e in self.server.get(f"/v1/ledger?sandbox={box}&kind=sandbox.resumed").json["events"]
                                   if "hook_error" in e["data"]], what="the hook's error in the ledger")
        self.assertIn("ended with 3", told[0]["data"]["hook_error"])
        ends = [e for e in self.server.get("/v1/ledger?kind=sandbox.&limit=1000").json["events"]
                if e["kind"] in ("sandbox.ended", "sandbox.resumed")]
        self.assertGreaterEqual(len(ends), 2)
        self.assertNotIn(said, json.dumps(ends))
        self.assertNotIn(said, json.dumps(self.server.get("/v1/sandboxes?state=ended&limit=1000").json))

    def test_neither_forks_nor_images_have_it(self):
        box = self.box()
        self.bind(box, self.secret())
        self.assertEqual(self.fetch(box), "welcome")
        fork = self.server.post(f"/v1/sandboxes/{box}/fork", {})
        if fork.status == 501:
            self.skipTest("no memory images on this machine")
        child = fork.json["sandboxes"][0]["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{child}"))
        self.assertNotIn("welcome", self.fetch(child), "a fork is granted nothing")
        made = self.server.post(f"/v1/sandboxes/{box}/snapshot", {})
        self.assertEqual(made.status, 201, made)
        self.assertEqual(self.images_with(self.value), [])
        # The search would find it: where a command was given the value, it is in the image.
        subprocess.run([ISOLA, "vault", "expose", "--data", self.server.data], check=True, capture_output=True)
        self.server.request("PATCH", "/v1/projects/default", {"allow_exposed": True})
        open_box = self.box()
        reply = self.server.post(f"/v1/sandboxes/{open_box}/commands",
                                 {"argv": ["sleep", "600"], "secrets": {"TOKEN": self.secret()}, "background": True})
        self.assertEqual(reply.status, 202, reply)
        exposed = self.server.post(f"/v1/sandboxes/{open_box}/snapshot", {"allow_exposed": True})
        self.assertEqual(exposed.status, 201, exposed)
        self.assertNotEqual(self.images_with(self.value), [], "a search that finds nothing anywhere shows nothing")
        other = self.box(snapshot=made.json["id"])
        self.assertNotIn("welcome", self.fetch(other), "nor is what is made of a snapshot")

    def test_it_goes_on_after_every_kill(self):
        box = self.box()
        self.bind(box, self.secret())
        self.assertEqual(self.fetch(box), "welcome")
        launcher = self.server.launcher_pid()
        os.kill(self.gate_pid(), 9)
        eventually(lambda: self.fetch(box) == "welcome", what="the next gate")
        os.kill(launcher, 9)
        eventually(lambda: self.fetch(box) == "welcome", what="the next launcher")
        self.server.stop(9)
        self.server.start(self.server.port)
        self.assertEqual(self.fetch(box), "welcome")


if __name__ == "__main__":
    unittest.main()
