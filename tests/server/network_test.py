"""The network of sandboxes that a server has: one writer of their policies, and records that are not lost."""
import glob
import os
import select
import signal
import socket
import subprocess
import threading
import unittest

from island import ISOLA, Server, eventually

server = None


def setUpModule():
    global server
    server = Server()


def tearDownModule():
    server.close()


def isola(*words, code=0, **more):
    clean = {k: v for k, v in os.environ.items() if k not in ("ISOLA_URL", "ISOLA_API_KEY", "E2B_API_KEY")}
    done = subprocess.run([ISOLA, *words], capture_output=True, text=True, timeout=120,
                          env={**clean, "ISOLA_DATA": server.data, **more})
    assert done.returncode == code, f"isola {' '.join(words)}: {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def gate_pid():
    for path in glob.glob(f"/proc/{server.launcher_pid()}/task/*/children"):
        with open(path) as children:
            pids = children.read().split()
        for pid in pids:
            try:
                with open(f"/proc/{pid}/comm") as comm:
                    if comm.read().strip() == "isola-gate":
                        return int(pid)
            except OSError:
                pass
    return 0


def host_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return None


def ledger(sandbox, kind):
    return [e for e in server.get(f"/v1/ledger?sandbox={sandbox}&limit=1000").json["events"] if e["kind"] == kind]


class OneWriter(unittest.TestCase):
    def test_isola_net_goes_through_the_server(self):
        made = server.create(name="written")
        isola("net", "allow", "written", "a.example:443")
        self.assertIn("allow a.example:443", server.get(f"/v1/sandboxes/{made['id']}").json["network"])
        isola("net", "deny", made["id"], "b.example")
        isola("net", "learn", made["id"])
        kept = server.get(f"/v1/sandboxes/{made['id']}").json["network"]
        self.assertEqual(kept, "deny b.example\nallow a.example:443\ndefault deny\nlearn\n")
        # Said again it stands once, and said the other way round it is taken back.
        isola("net", "allow", "written", "b.example")
        isola("net", "deny", "written", "b.example")
        isola("net", "deny", "written", "b.example")
        self.assertEqual(server.get(f"/v1/sandboxes/{made['id']}").json["network"], kept)
        self.assertIn("neither a preset", isola("net", "set", "written", "package-registry", code=125))
        self.assertIn("is a URL", isola("net", "allow", "written", "http://a.example/", code=125))
        self.assertIn("default deny", isola("net", "learn", made["id"]))
        self.assertIn("allow a.example:443", isola("net", "show", made["id"]))
        updates = eventually(lambda: len(found := ledger(made["id"], "sandbox.updated")) >= 3 and found,
                             what="the changes in the ledger")
        self.assertIn("learn", str(updates))
        # What is written down is what a server that comes after this one puts in force.
        server.stop(signal.SIGKILL)
        server.start()
        self.assertEqual(server.get(f"/v1/sandboxes/{made['id']}/network").json["policy"], kept)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_nobody_changes_it_behind_the_servers_back(self):
        project = server.post("/v1/projects", {"name": "apart"}).json
        key = server.post("/v1/keys", {"project": project["id"], "scope": "admin"}).json["secret"]
        made = server.post("/v1/sandboxes", {"network": "allow a.example"}, key=key).json
        # The key that lies in the data directory is another project's: the server knows no such sandbox for it.
        self.assertIn("a server keeps this sandbox's network", isola("net", "set", made["id"], "all", code=125))
        self.assertEqual(server.get(f"/v1/sandboxes/{made['id']}/network", key=key).json["policy"],
                         "allow a.example\ndefault deny\n")
        isola("net", "set", made["id"], "all", ISOLA_API_KEY=key)
        self.assertEqual(server.get(f"/v1/sandboxes/{made['id']}", key=key).json["network"], "default allow\n")
        server.delete(f"/v1/sandboxes/{made['id']}", key=key)

    def test_a_sandbox_that_no_server_has_is_the_launchers(self):
        run = subprocess.Popen([ISOLA, "run", "--template", "minimal", "--latency", "--net", "allow a.example", "--", "sleep", "60"],
                               env={**os.environ, "ISOLA_DATA": server.data}, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        try:
            def alone():
                files = [os.path.basename(f) for f in glob.glob(server.data + "/gate/i*")]
                known = [s["id"] for s in server.get("/v1/sandboxes?limit=1000").json["sandboxes"]]
                return next((i for i in files if i not in known), None)
            id = eventually(alone, what="a sandbox of the launcher alone")
            isola("net", "deny", id, "b.example")
            self.assertIn("deny b.example", isola("net", "show", id))
        finally:
            run.terminate()
            run.wait()

    def test_a_ceiling_reaches_those_that_reach_nothing(self):
        project = server.post("/v1/projects", {"name": "capped"}).json
        key = server.post("/v1/keys", {"project": project["id"], "scope": "admin"}).json["secret"]
        before = server.post("/v1/sandboxes", {}, key=key).json
        server.request("PATCH", f"/v1/projects/{project['id']}", {"ceiling": "allow a.example"})
        after = server.post("/v1/sandboxes", {}, key=key).json
        for made in (before, after):
            with open(f"{server.data}/gate/{made['id']}", "rb") as kept:
                self.assertIn(b"allow a.example", kept.read())
        # Without its server the launcher takes a policy from root, and the ceiling stays above it.
        server.stop()
        try:
            isola("net", "set", before["id"], "all")
            with open(f"{server.data}/gate/{before['id']}", "rb") as kept:
                text = kept.read()
            self.assertIn(b"default allow", text)
            self.assertIn(b"allow a.example", text)
        finally:
            server.start()
        self.assertEqual(server.get(f"/v1/sandboxes/{before['id']}/network", key=key).json["policy"], "default deny\n",
                         "the server's word counts again")
        for made in (before, after):
            server.delete(f"/v1/sandboxes/{made['id']}", key=key)

    def test_many_changes_at_once_end_as_one(self):
        made = server.create(network="allow start.example")
        path = f"/v1/sandboxes/{made['id']}/network"

        statuses = []

        def change(i):
            statuses.append(server.request("PUT", path, {"policy": f"allow n{i}.example"}).status)
        threads = [threading.Thread(target=change, args=(i,)) for i in range(20)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertEqual(statuses, [200] * 20)
        self.assertEqual(server.get(path).json["policy"], server.get(f"/v1/sandboxes/{made['id']}").json["network"])
        with open(f"{server.data}/gate/{made['id']}", "rb") as kept:
            self.assertIn(server.get(f"/v1/sandboxes/{made['id']}").json["network"].encode(), kept.read())
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_a_change_of_what_was_there_is_lost_to_nobody(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}/network"
        self.assertEqual(server.request("PUT", path, {"policy": "allow a.example",
                                                      "replaces": "default deny\n"}).status, 200)
        late = server.request("PUT", path, {"policy": "allow b.example", "replaces": "default deny\n"})
        self.assertEqual(late.status, 409, late)
        now = server.get(path).json["policy"]
        self.assertEqual(now, "allow a.example\ndefault deny\n")
        self.assertEqual(server.request("PUT", path, {"policy": "allow c.example", "replaces": now}).status, 200)

        def allow(i):
            isola("net", "allow", made["id"], f"n{i}.example")
        threads = [threading.Thread(target=allow, args=(i,)) for i in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        now = server.get(path).json["policy"]
        for i in range(4):
            self.assertIn(f"allow n{i}.example\n", now)
        server.delete(f"/v1/sandboxes/{made['id']}")

    def test_registries_that_come_later(self):
        made = server.create()
        path = f"/v1/sandboxes/{made['id']}"
        changed = server.request("PUT", path + "/network", {"policy": "package-registries"})
        if changed.status == 501:
            self.skipTest("no package registry is configured on this machine")
        self.assertEqual(changed.status, 200, changed)
        born = server.create(network="package-registries")

        def env(id):
            return {line for line in server.run(id, "env")["stdout"].splitlines() if not line.startswith(("_=", "PWD="))}
        self.assertEqual(env(made["id"]), env(born["id"]))
        # Also after a resume without memory.
        self.assertEqual(server.post(path + "/pause", {"memory": False}).status, 200)
        self.assertEqual(server.request("PUT", path + "/network", {"policy": "package-registries"}).status, 409)
        self.assertEqual(server.post(path + "/resume", {}).status, 200)
        self.assertEqual(env(made["id"]), env(born["id"]))
        server.delete(path)
        server.delete(f"/v1/sandboxes/{born['id']}")

    def test_asked_while_the_gate_restarts(self):
        made = server.create(network="allow a.example")
        path = f"/v1/sandboxes/{made['id']}/network"
        for i in range(5):
            before = gate_pid()
            os.kill(before, signal.SIGKILL)
            changed = server.request("PUT", path, {"policy": f"allow n{i}.example"})
            self.assertEqual(changed.status, 200, changed)
            os.kill(eventually(lambda: gate_pid() not in (0, before) and gate_pid(), what="a new gate"), signal.SIGKILL)
            report = server.get(path)
            self.assertEqual(report.status, 200, report)
            self.assertIn("destinations", report.json, "the gate's own word, not only what is written down")
            self.assertEqual(report.json["policy"], f"allow n{i}.example\ndefault deny\n")
        server.delete(f"/v1/sandboxes/{made['id']}")


class Nothing(unittest.TestCase):
    """Sandboxes that were given no policy: closed, and what they try is known all the same."""
    def setUp(self):
        self.made = server.create()
        self.path = f"/v1/sandboxes/{self.made['id']}"

    def tearDown(self):
        server.delete(self.path)

    def tried(self):
        return {(e["data"].get("name") or e["data"].get("address"), e["data"]["reason"])
                for e in ledger(self.made["id"], "egress.denied")}

    def known(self):
        return server.get(self.path + "/network").json.get("destinations") is not None

    def test_what_is_refused_is_recorded(self):
        eventually(self.known, what="the gate to know of it")
        self.assertNotEqual(server.run(self.made["id"], "getent hosts a.example")["exit_code"], 0)
        program = "import socket; socket.create_connection(('192.0.2.7', 80), timeout=5).recv(1)"
        ended = server.run(self.made["id"], f'python3 -c "{program}"')
        self.assertIn("ConnectionResetError", ended["stderr"])
        eventually(lambda: self.tried() == {("a.example", "policy"), ("192.0.2.7", "policy")},
                   what="both in the ledger, and nothing else")
        self.assertEqual([e["data"].get("address") for e in server.get(
            f"/v1/ledger?sandbox={self.made['id']}&kind=egress.&order=newest&limit=1").json["events"]], ["192.0.2.7"])
        self.assertIn("there is no sandbox nobody", isola("net", "watch", "nobody", code=125))
        watch = subprocess.Popen([ISOLA, "net", "watch", self.made["id"][:8]], stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "ISOLA_DATA": server.data})
        try:
            wanted = f"{self.made['id']} denied dns c.example:53 policy (default deny)"

            # What was asked before may be told once more, in a sum.
            def told():
                server.run(self.made["id"], "getent hosts c.example")
                return select.select([watch.stdout], [], [], 0.5)[0] and wanted in watch.stdout.readline()
            eventually(told, what="the decision about c.example")
        finally:
            watch.kill()
            watch.wait()
            watch.stdout.close()
        report = isola("net", "show", self.made["id"])
        self.assertIn("a.example", report)
        self.assertIn("192.0.2.7", report)
        # The next gate, and the next server, know of it too; nothing of it is kept in a file.
        before = gate_pid()
        os.kill(before, signal.SIGKILL)
        eventually(lambda: gate_pid() not in (0, before) and self.known(), what="the next gate")
        server.stop(signal.SIGKILL)
        server.start()
        eventually(self.known, what="the gate to know of it")
        self.assertFalse(os.path.exists(f"{server.data}/gate/{self.made['id']}"))

    def test_a_policy_that_comes_at_once_stays(self):
        for i in range(20):
            made = server.create()
            path = f"/v1/sandboxes/{made['id']}/network"
            policy = f"allow n{i}.example\ndefault deny\n"
            self.assertEqual(server.request("PUT", path, {"policy": policy}).status, 200)
            self.assertEqual(server.get(path).json["policy"], policy)
            self.assertIn(f"n{i}.example", isola("net", "show", made["id"]) if i == 0 else policy)
            with open(f"{server.data}/gate/{made['id']}", "rb") as kept:
                self.assertIn(policy.encode(), kept.read())
            server.delete(f"/v1/sandboxes/{made['id']}")


class Sink:
    """Takes what is sent; counts the connections that have ended."""
    def __init__(self, address):
        self.clients, self.ended = [], 0
        self.socket = socket.create_server((address, 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            self.clients.append(client)
            threading.Thread(target=self.drain, args=(client,), daemon=True).start()

    def drain(self, client):
        with client:
            while client.recv(1 << 20):
                pass
        self.ended += 1

    def close(self):
        self.socket.close()


def first_process(sandbox):
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(path) as name, open(path[:-4] + "cgroup") as group:
                if name.read().strip() == ".isola-guest" and sandbox in group.read():
                    return int(path.split("/")[2])
        except OSError:
            pass
    raise AssertionError("no process of " + sandbox)


class Records(unittest.TestCase):
    def setUp(self):
        self.address = host_address()
        if not self.address:
            self.skipTest("this machine has no address but loopback")
        self.sink = Sink(self.address)
        self.made = server.create(network=f"allow {self.address}/32:{self.sink.port}")
        self.path = f"/v1/sandboxes/{self.made['id']}"

    def tearDown(self):
        self.sink.close()
        server.delete(self.path)

    def send(self, count, then):
        program = (f"import socket, time; s = socket.create_connection(('{self.address}', {self.sink.port})); "
                   f"s.sendall(b'x' * {count}); {then}")
        reply = server.post(self.path + "/commands", {"argv": ["python3", "-c", program], "background": True})
        self.assertEqual(reply.status, 202, reply)

    def bytes_out(self):
        return sum(e["data"].get("bytes_out", 0) for kind in ("egress.allowed", "egress.lost")
                   for e in ledger(self.made["id"], kind))

    def test_the_first_command_finds_the_network(self):
        """Right behind the create, by a program that needs no time to start."""
        for _ in range(10):
            made = server.create(network=f"allow {self.address}/32:{self.sink.port}")
            ask = f"exec 3<>/dev/tcp/{self.address}/{self.sink.port} && echo in"
            done = server.post(f"/v1/sandboxes/{made['id']}/commands", {"argv": ["bash", "-c", ask]}).json
            self.assertEqual((done["stdout"], done["stderr"]), ("in\n", ""))
            server.delete(f"/v1/sandboxes/{made['id']}")

    def test_bytes_of_a_connection_that_goes_on_are_known_before_the_gate_dies(self):
        self.send(40 << 20, "time.sleep(600)")
        known = eventually(lambda: self.bytes_out() >= 32 << 20 and self.bytes_out(), what="32 MiB in the ledger")
        moved = [e for e in ledger(self.made["id"], "egress.allowed") if e["data"]["what"] == "moved"]
        self.assertGreaterEqual(len(moved), 2)
        os.kill(gate_pid(), signal.SIGKILL)
        self.assertGreater(known, 0)

    def test_what_a_tenant_asked_for_under_a_ceiling_stays_closed_without_it(self):
        project = server.post("/v1/projects", {"name": "planted"}).json
        key = server.post("/v1/keys", {"project": project["id"], "scope": "admin"}).json["secret"]
        own = f"allow {self.address}/32:{self.sink.port}"

        def ceiling(text):
            reply = server.request("PATCH", f"/v1/projects/{project['id']}", {"ceiling": text})
            self.assertEqual(reply.status, 200, reply)

        def reached(box):
            program = f"import socket; socket.create_connection(('{self.address}', {self.sink.port})).recv(1); print('in')"
            reply = server.post(f"/v1/sandboxes/{box['id']}/commands", {"argv": ["timeout", "3", "python3", "-c", program]},
                                key=key)
            self.assertEqual(reply.status, 200, reply)
            return "ConnectionReset" not in reply.json["stderr"]
        ceiling("allow a.example")
        # Addresses of the host and of its network, neither of which says that it is one of a known inside block.
        box = server.post("/v1/sandboxes", {"network": own}, key=key).json
        self.assertFalse(reached(box))
        ceiling("")
        self.assertFalse(reached(box), "the host itself")
        ceiling(own)
        self.assertTrue(reached(box), "an operator can open it")
        ceiling("")
        # What the operator configured as a registry may lie inside; changing such a policy is not opening anything.
        registries = server.post("/v1/sandboxes", {"network": "package-registries"}, key=key)
        if registries.status == 201:
            path = f"/v1/sandboxes/{registries.json['id']}/network"
            now = server.get(path, key=key).json["policy"]
            reply = server.request("PUT", path, {"policy": "deny b.example\n" + now, "replaces": now}, key=key)
            self.assertEqual(reply.status, 200, reply)
            refused = server.request("PUT", path, {"policy": "allow 10.0.0.0/8\n" + now}, key=key)
            self.assertEqual(refused.status, 403, refused)
            server.delete(f"/v1/sandboxes/{registries.json['id']}", key=key)
        server.delete(f"/v1/sandboxes/{box['id']}", key=key)

    def test_bytes_of_a_connection_that_ends_with_its_sandbox(self):
        self.send(1000, "open('/tmp/sent', 'w'); time.sleep(600)")
        eventually(lambda: server.run(self.made["id"], "ls /tmp/sent")["exit_code"] == 0, what="the connection")
        server.delete(self.path)
        eventually(lambda: self.bytes_out() == 1000, what="its bytes in the ledger")

    def test_its_end_waits_for_the_last_word_of_the_gate(self):
        self.send(1000, "open('/tmp/sent', 'w'); time.sleep(600)")
        eventually(lambda: server.run(self.made["id"], "ls /tmp/sent")["exit_code"] == 0, what="the connection")
        gate = gate_pid()
        os.kill(gate, signal.SIGSTOP)
        try:
            leaving = threading.Thread(target=server.delete, args=(self.path,))
            leaving.start()
            leaving.join(1)
            self.assertTrue(leaving.is_alive(), "it is over, and the gate has not said all")
        finally:
            os.kill(gate, signal.SIGCONT)
        leaving.join()
        eventually(lambda: self.bytes_out() == 1000, what="its bytes in the ledger")

    def test_a_gate_that_hangs_does_not_keep_a_sandbox(self):
        gate = gate_pid()
        os.kill(gate, signal.SIGSTOP)
        try:
            self.assertEqual(server.delete(self.path).status, 204)
        finally:
            os.kill(gate, signal.SIGCONT)
        self.assertEqual(server.get(self.path).json["state"], "ended")

    def test_a_gate_that_hangs_ends_with_its_launcher(self):
        gate, launcher = gate_pid(), server.launcher_pid()
        os.kill(gate, signal.SIGSTOP)
        os.kill(launcher, signal.SIGKILL)
        eventually(lambda: not os.path.exists(f"/proc/{gate}"), what="the end of a gate that nobody has")
        eventually(lambda: server.get("/readyz", key="").status == 200, what="the next launcher")
        eventually(lambda: gate_pid() not in (0, gate), what="the next gate")

    def test_what_a_server_missed_is_told(self):
        # Connections that come and go while no server runs: the first one waits for a byte to begin the others.
        self.send(1000, f"""s.recv(1)
for i in range(20):
  with socket.create_connection(('{self.address}', {self.sink.port})) as t:
    t.sendall(b'y' * 500); t.shutdown(1); t.recv(1)
time.sleep(600)""")
        eventually(lambda: ledger(self.made["id"], "egress.allowed"), what="the first connection")
        server.stop(signal.SIGKILL)
        self.sink.clients[0].send(b"g")
        eventually(lambda: self.sink.ended == 20, what="the connections")
        server.start()
        eventually(lambda: self.bytes_out() == 1000 + 20 * 500, what="all bytes in the ledger, once")
        allowed = [e for e in ledger(self.made["id"], "egress.allowed") if e["data"]["what"] == "allowed"]
        self.assertEqual(len(allowed), 21, "each connection, and not only how many there were")
        self.assertEqual(ledger(self.made["id"], "egress.lost"), [])

    def test_what_one_did_that_ended_while_no_server_ran(self):
        self.send(1000, "time.sleep(600)")
        eventually(lambda: ledger(self.made["id"], "egress.allowed"), what="the connection")
        server.stop(signal.SIGKILL)
        os.kill(first_process(self.made["id"]), signal.SIGKILL)
        eventually(lambda: self.sink.ended == 1, what="its end")
        server.start()
        eventually(lambda: self.bytes_out() == 1000, what="its bytes in the ledger")


class Echo:
    """Sends back what it is sent, and remembers who said what."""
    def __init__(self, address):
        self.heard = {}
        self.socket = socket.create_server((address, 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, peer = self.socket.accept()
            except OSError:
                return
            self.heard[peer] = b""
            threading.Thread(target=self.answer, args=(client, peer), daemon=True).start()

    def answer(self, client, peer):
        with client:
            while word := client.recv(1000):
                self.heard[peer] += word
                client.sendall(word)

    def close(self):
        self.socket.close()


class Forked(unittest.TestCase):
    """Of one connection to the outside there are never two owners."""
    PROGRAM = """
import os, socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
name = sys.argv[3]
s.sendall(name.encode())
assert s.recv(100).decode() == name
open('/tmp/ready-' + name, 'w').close()
def say(text):
    with open('/tmp/.said-' + name, 'w') as file: file.write(text)
    os.rename('/tmp/.said-' + name, '/tmp/said-' + name)
try:
    if name == 'waits':
        s.settimeout(None)
    else:
        while not os.path.exists('/tmp/go'): time.sleep(0.01)
        s.sendall(b'again')
    say('heard ' + s.recv(100).decode())
except OSError as error:
    say('error %d' % error.errno)
time.sleep(600)
"""

    def setUp(self):
        self.address = host_address()
        if not self.address:
            self.skipTest("this machine has no address but loopback")
        if not server.launcher_status().get("checkpointer"):
            self.skipTest("no criu here; `./dev criu` provides one")
        self.echo = Echo(self.address)
        self.made = []

    def tearDown(self):
        for one in self.made:
            server.delete("/v1/sandboxes/" + one)
        if hasattr(self, "echo"):
            self.echo.close()

    def said(self, sandbox, name):
        told = server.run(sandbox, f"cat /tmp/said-{name}")
        return told["stdout"] if told["exit_code"] == 0 else ""

    def test_a_childs_are_closed_and_the_parents_go_on(self):
        parent = server.create(network=f"allow {self.address}/32:{self.echo.port}", timeout=600)["id"]
        self.made.append(parent)
        server.request("PUT", f"/v1/sandboxes/{parent}/files?path=/root/dial.py", self.PROGRAM)
        for name in ("waits", "talks"):
            reply = server.post(f"/v1/sandboxes/{parent}/commands", {
                "argv": ["python3", "/root/dial.py", self.address, str(self.echo.port), name], "background": True})
            self.assertEqual(reply.status, 202, reply)
            eventually(lambda: server.run(parent, f"test -e /tmp/ready-{name}")["exit_code"] == 0, what=name)
        forked = server.post(f"/v1/sandboxes/{parent}/fork", {"count": 2})
        self.assertEqual(forked.status, 201, forked)
        children = [child["id"] for child in forked.json["sandboxes"]]
        self.made += children
        for child in children:
            # Whoever only waits is told, too: 104 is ECONNRESET.
            self.assertEqual(eventually(lambda: self.said(child, "waits"), what="the end of a connection"), "error 104")
            server.run(child, "touch /tmp/go")
            self.assertIn(eventually(lambda: self.said(child, "talks"), what="the end of a connection"),
                          ("error 104", "error 32"))
        self.assertEqual(self.said(parent, "waits"), "")
        server.run(parent, "touch /tmp/go")
        self.assertEqual(eventually(lambda: self.said(parent, "talks"), what="an answer"), "heard again")
        self.assertEqual(sorted(self.echo.heard.values()), [b"talksagain", b"waits"])


if __name__ == "__main__":
    unittest.main()
