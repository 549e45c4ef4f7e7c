"""kill -9 of the server, and of the launcher, at random moments while clients work: nothing acknowledged is lost, and
nothing is left behind that nobody knows."""
import glob
import os
import random
import re
import signal
import threading
import time
import unittest

from island import FULL, Server, eventually

ROUNDS = 200 if FULL else 6
SPARE = (".", "template-", "lost+found")  # of a store, not of a sandbox


def guests_of(data):
    """Living processes whose pid-1 program is ours, whatever launcher made them."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(path) as file:
                if file.read().strip() == ".isola-guest":
                    found.add(int(path.split("/")[2]))
        except OSError:
            pass
    return found


def guests_since(before):
    """Ids of the sandboxes on this machine whose process 1 was not there before, parked ones too: whatever launcher made
    them, and whether or not anybody still knows them."""
    found = set()
    for pid in guests_of(None) - before["guests"]:
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                found.update(re.findall(r"\bi[a-z0-9]{20}\b", file.read()))
        except OSError:
            pass
    return found


def settled(server, before):
    """Whether store, launcher and machine agree on what lives. Nobody may create or delete meanwhile."""
    living = set()
    for state in ("creating", "running", "frozen", "ending"):
        living |= {s["id"] for s in server.get(f"/v1/sandboxes?state={state}&limit=1000").json["sandboxes"]}
    try:
        launcher = server.launcher_status()
    except ValueError:
        return False  # it is being restarted
    inside = guests_since(before)
    # Its processes, control groups and journal, and whoever has a network namespace.
    groups = {os.path.basename(path) for path in control_groups() - before["groups"]}
    journal = {name for name in os.listdir(server.data + "/run") if not name.startswith(".")}  # and spare files
    files = files_of(server.data, launcher["pid"])
    return (files["layers"] == inside and files["ranges"] == inside and files["policies"] <= living and
            launcher["live"] == len(living) and living <= inside and
            len(inside) == len(living) + launcher["parked"] and launcher["cleaning"] == 0 and
            groups == inside and journal == inside and
            networks() - before["networks"] <= len(inside) + 1 and mounts_of(server.data) <= before["own_mounts"])


ID = re.compile(r"i[a-z0-9]{20}$")


def files_of(data, launcher):
    """Ids of sandboxes that have something on disk: a layer (in the launcher's own mounts), a policy of the gate's, a range
    of ids."""
    storage = f"/proc/{launcher}/root{data}/storage"

    def names(folder):
        try:
            return {name.removesuffix(".ext4") for name in os.listdir(folder)}
        except FileNotFoundError:
            return set()

    return {"layers": {name for name in names(storage + "/layers") | names(storage + "/files") if not name.startswith(SPARE)},
            "policies": {name for name in names(data + "/gate") if ID.match(name)}, "ranges": ranges_of(data)}


def ranges_of(data):
    ranges = set()
    for path in glob.glob("/run/isola/ids/[0-9]*"):
        try:
            with open(path) as file:
                owner, _, sandbox = file.read().partition("\n")
        except OSError:
            continue  # given back meanwhile
        if owner == data:
            ranges.add(sandbox)
    return ranges


def control_groups():
    groups = set()
    for folder, folders, _ in os.walk("/sys/fs/cgroup"):
        groups.update(os.path.join(folder, f) for f in folders if f.startswith("i") and len(f) == 21)
    return groups


def networks():
    """How many network namespaces there are that a process is in."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/ns/net"):
        try:
            found.add(os.readlink(path))
        except OSError:
            pass
    return len(found)


def mounts_of(data):
    with open("/proc/mounts") as file:
        return sum(data in line for line in file)


def left_behind():
    with open("/proc/mounts") as file:
        mounts = sum("isola-server-" in line for line in file)
    return {"guests": guests_of(None), "groups": control_groups(), "mounts": mounts, "networks": networks()}


class Client(threading.Thread):
    """Creates, runs, kills; remembers what it was told."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stopping = server, False
        self.working = threading.Lock()  # whoever holds it, keeps the client from beginning anything new
        self.acknowledged, self.deleted = set(), set()
        self.ran = {}  # a command of each, whose answer came
        self.wrong = []
        self.count = 0

    def run(self):
        while not self.stopping:
            with self.working:
                self.once()
            time.sleep(0.001)  # a lock is not fair by itself

    def wish(self):
        """Each of the ways that a create goes: alone, with variables, with a policy that the gate has to take, and findable."""
        self.count += 1
        unique = f"{self.name}-{self.count}".lower()
        marked = {"env": {"MARK": "marked"}, "metadata": {"mark": "yes"}}
        return {"timeout": 3600, **random.choice([{}, marked, {**marked, "network": "all"}, {**marked, "network": "all", "name": unique},
                                                  {"network": "all", "key": unique}])}

    def once(self):
        try:
            body = self.wish()
            reply = self.server.post("/v1/sandboxes", body)
            if reply.status == 201:
                made = reply.json["id"]
                self.acknowledged.add(made)
                done = self.server.post(f"/v1/sandboxes/{made}/commands", {"command": "echo $((6*7))$MARK"})
                if done.status == 200 and done.json["stdout"] != f"42{body.get('env', {}).get('MARK', '')}\n":
                    self.wrong.append(done.body)
                if done.status == 200:
                    self.ran[made] = done.json["command_id"]
                elif done.status not in (404, 502, 503):  # it went with its launcher, or that is being restarted
                    self.wrong.append(done.body)
                if random.random() < (0.95 if FULL else 0.7):  # what stays is looked at in every round
                    if self.server.delete(f"/v1/sandboxes/{made}").status == 204:
                        self.deleted.add(made)
            elif reply.status != 503:
                self.wrong.append(reply.body)
        except (OSError, ValueError, AssertionError, Exception) as error:  # the server is being killed
            if "HTTP" not in type(error).__name__ and not isinstance(error, OSError):
                if not isinstance(error, (ValueError,)):
                    self.wrong.append(repr(error))
            time.sleep(0.02)


class Crash(unittest.TestCase):
    def known(self, server, sandbox):
        """What was acknowledged is there, or has ended with a reason."""
        reply = server.get(f"/v1/sandboxes/{sandbox}")
        self.assertEqual(reply.status, 200, sandbox)
        if reply.json["state"] == "ended":
            self.assertIn("end_reason", reply.json)

    def crash(self, victim):
        before = left_behind()
        server = Server("--pool", "1", "--log-access", "false")
        port = server.port
        before["own_mounts"] = mounts_of(server.data)
        clients = [Client(server) for _ in range(3)]
        try:
            [c.start() for c in clients]
            for _ in range(ROUNDS):
                time.sleep(random.uniform(0.05, 0.5))
                if victim == "server":
                    server.process.send_signal(signal.SIGKILL)
                    server.process.wait()
                    server.start(port)
                else:
                    try:
                        os.kill(server.launcher_pid(), signal.SIGKILL)
                    except (KeyError, ValueError, ProcessLookupError):
                        pass  # it is just being restarted
                # Before anybody sweeps it away: nothing lives that the store does not know, nor the other way round.
                [c.working.acquire() for c in clients]
                try:
                    eventually(lambda: server.get("/readyz", key="").status == 200)
                    eventually(lambda: settled(server, before), seconds=90, what="one view of what lives")
                    for client in clients:
                        for sandbox in random.sample(sorted(client.acknowledged), min(3, len(client.acknowledged))):
                            self.known(server, sandbox)
                    # Also what nobody was told of is what was asked for.
                    marked = server.get("/v1/sandboxes?state=running&metadata.mark=yes").json["sandboxes"]
                    for one in random.sample(marked, min(2, len(marked))):
                        eventually(lambda: server.post(f"/v1/sandboxes/{one['id']}/commands", {"command": "echo $MARK"}).json.get("stdout") == "marked\n",
                                   what=f"the variables of {one['id']}")
                finally:
                    [c.working.release() for c in clients]
            for client in clients:
                client.stopping = True
            [c.join(60) for c in clients]
            eventually(lambda: server.get("/readyz", key="").status == 200)
            for client in clients:
                self.assertEqual(client.wrong, [])
                self.assertGreater(len(client.acknowledged), 0)
                for sandbox in client.acknowledged:
                    reply = server.get(f"/v1/sandboxes/{sandbox}")
                    self.assertEqual(reply.status, 200, sandbox)
                    record = reply.json
                    if sandbox in client.deleted:
                        self.assertEqual(record["state"], "ended")
                    elif record["state"] == "running":
                        eventually(lambda: server.post(f"/v1/sandboxes/{sandbox}/commands", {"command": "true"}).status == 200)
                    else:
                        self.assertIn("end_reason", record)
                # What was answered is in the ledger, whoever was killed after it.
                for sandbox, command in random.sample(sorted(client.ran.items()), min(20, len(client.ran))):
                    events = server.get(f"/v1/ledger?sandbox={sandbox}&kind=command.").json["events"]
                    self.assertIn(command, {event["data"].get("command_id") for event in events}, sandbox)
            alive = {s["id"] for s in server.get("/v1/sandboxes?state=running&limit=1000").json["sandboxes"]}
            for sandbox in alive:
                self.assertEqual(server.delete(f"/v1/sandboxes/{sandbox}").status, 204)
            # Counted before closing, which ends whatever there is: only what is parked may be left.
            eventually(lambda: settled(server, before), seconds=90, what="one view of what lives")
            self.assertEqual(server.launcher_status()["live"], 0)
        finally:
            for client in clients:
                client.stopping = True
            server.close()
        def clean():
            now = left_behind()
            return (now["guests"] <= before["guests"] and now["groups"] <= before["groups"] and
                    now["mounts"] <= before["mounts"] and now["networks"] <= before["networks"] and
                    not ranges_of(server.data))
        eventually(clean, what="a clean machine")

    def test_a_half_made_sandbox_is_not_handed_out(self):
        server = Server("--log-access", "false")
        try:
            asked = {"key": "k", "env": {"A": "b"}, "on_create": ["touch /hooked; sleep 600"]}

            def create():
                try:
                    server.post("/v1/sandboxes", asked)
                except OSError:
                    pass  # the server is killed under it
                except Exception as error:
                    assert "Remote" in type(error).__name__ or "HTTP" in type(error).__name__, error

            caller = threading.Thread(target=create)
            caller.start()
            made = eventually(lambda: server.get("/v1/sandboxes").json["sandboxes"])[0]
            eventually(lambda: server.get(f"/v1/sandboxes/{made['id']}/files/stat?path=/hooked").status == 200)
            # Nor kept: its maker would end what somebody was told is there.
            self.assertEqual(server.post(f"/v1/sandboxes/{made['id']}/pause").status, 409)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            caller.join()
            server.start(server.port)
            record = server.get(f"/v1/sandboxes/{made['id']}").json
            self.assertEqual((record["state"], record["end_reason"]), ("ended", "host-restart"))
            again = server.create(key="k", env={"A": "b"})
            self.assertFalse(again["existed"])
            self.assertEqual(server.run(again["id"], "echo $A")["stdout"], "b\n")
        finally:
            server.close()

    def test_commands_outlive_the_server(self):
        server = Server("--log-access", "false")
        try:
            sandbox = server.create()["id"]
            commands = f"/v1/sandboxes/{sandbox}/commands"
            wait = "until [ -e /go ]; do sleep 0.02; done; exit 7"
            asked = {"command": wait, "background": True, "task": "errand", "actor": "alice"}
            command = server.post(commands, asked).json["id"]
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            server.start(server.port)
            # Nobody asks for it.
            self.assertEqual(server.request("PUT", f"/v1/sandboxes/{sandbox}/files?path=/go", "x").status, 200)

            def ended():
                events = server.get(f"/v1/ledger?sandbox={sandbox}&kind=command.ended").json["events"]
                return [e for e in events if e["data"]["command_id"] == command]

            event, = eventually(ended, what="the command's end in the ledger")
            self.assertEqual((event["data"]["exit_code"], event["task"], event["actor"]), (7, "errand", "alice"))
            self.assertTrue(event["key"].startswith("k"))
            again = server.get(f"{commands}/{command}").json
            self.assertEqual((again["task"], again["actor"], again["exit_code"]), ("errand", "alice", 7))
            # The next server finds it among the guest's, and its end in the ledger.
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            server.start(server.port)
            server.get(commands)
            server.get("/v1/usage")  # what was recorded is in the file
            self.assertEqual(len(ended()), 1)
        finally:
            server.close()

    def test_what_was_acknowledged_holds(self):
        server = Server("--log-access", "false")
        try:
            made = server.create()["id"]
            for number in range(ROUNDS):
                gone = server.post("/v1/keys", {"scope": "read"}).json
                kept = {}

                def patch():
                    said = server.request("PATCH", f"/v1/sandboxes/{made}", {"metadata": {"round": str(number)}})
                    self.assertEqual(said.status, 200, said)

                def issue():
                    kept.update(server.post("/v1/keys", {"scope": "use"}).json)

                def revoke():
                    self.assertEqual(server.delete(f"/v1/keys/{gone['id']}").status, 204)
                changes = [patch, issue, revoke]
                random.shuffle(changes)  # each of them is the last before the end now and then
                for change in changes:
                    change()
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
                server.start(server.port)
                self.assertEqual(server.get(f"/v1/sandboxes/{made}").json["metadata"], {"round": str(number)})
                self.assertEqual(server.get("/v1/sandboxes", key=kept["secret"]).status, 200)
                self.assertEqual(server.get("/v1/sandboxes", key=gone["secret"]).status, 401)
        finally:
            server.close()

    def test_killing_the_server(self):
        self.crash("server")

    def test_killing_the_launcher(self):
        self.crash("launcher")


if __name__ == "__main__":
    if not FULL:
        print(f"reduced: {ROUNDS} kills of each kind instead of 200 (tests/server/crash_test.py)")
    unittest.main()
