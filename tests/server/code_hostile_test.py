"""What stands against a sandbox that lies to the server about its cells: another program in the place of isola-kernels, put
there by root inside, and cells that say what no honest program says.

Skipped where the template code-interpreter is not built (`isola template build code-interpreter`)."""
import json
import os
import sys
import unittest

import cells
from cells import ask, drop, make, run, stream
from island import Server, eventually

setUpModule, tearDownModule = cells.begin, cells.end

# Listens where isola-kernels does, takes a request, and answers by its first argument. It says on its standard output
# when it listens.
FORGER = r'''
import os, socket, sys, threading
mode = sys.argv[1]
path = "/run/isola-kernels/socket"
os.makedirs(os.path.dirname(path), exist_ok=True)
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(64)
print("listens", flush=True)
if os.fork():
    os._exit(0)
with open("/root/forger.pid", "w") as file:
    file.write(str(os.getpid()))
os.setsid()
nothing = os.open("/dev/null", os.O_RDWR)
for fd in range(3):
    os.dup2(nothing, fd)
DEEP = b"[" * 2_000_000 + b"]" * 2_000_000
END = b'{"type":"end","status":"ok"}\n'


def answer(caller):
    if mode == "deaf":
        threading.Event().wait()
    asked = b""
    while b"\n" not in asked:
        piece = caller.recv(1 << 16)
        if not piece:
            return
        asked += piece
    if mode == "deep":
        caller.sendall(b'{"type":"result","main":true,"data":{"application/json":' + DEEP + b'}}\n' + END)
    elif mode == "deep-answer":
        caller.sendall(b'{"type":"context","context":' + DEEP + b',"contexts":' + DEEP + b'}\n')
    elif mode == "wide":
        caller.sendall(b'{"type":"result","data":{"a/b":[' + b"0," * 3_000_000 + b'0]}}\n' + END)
    elif mode == "flood":
        while True:
            caller.sendall(b'{"type":"stdout","text":"' + b"x" * 1_000_000 + b'"}\n')
    elif mode == "results":
        while True:
            caller.sendall(b'{"type":"result","data":{},"metadata":{"a":"' + b"x" * 1_000_000 + b'"}}\n')
    elif mode == "unknown":
        while True:
            caller.sendall(b'{"type":"nonsense","a":"' + b"x" * 1_000_000 + b'"}\n')
    elif mode == "endless":
        while True:
            caller.sendall(b"x" * 1_000_000)
    elif mode == "end":
        caller.sendall(b'{"type":"start","context":"c","language":"l","untrusted":[]}\n'
                       b'{"type":"end","status":"splendid","untrusted":[],"stdout":"trust me","results":5,"sandbox":"other",'
                       b'"execution_count":"9","duration_ms":-5,"message":"m"}\n')
    elif mode == "failure":
        caller.sendall(b'{"type":"failure","code":"denied","message":"Your key was revoked\\u001b[31m"}\n')
    elif mode == "silent":
        threading.Event().wait()
    caller.close()


while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
'''


def forge(where, mode):
    cells.server.request("PUT", f"/v1/sandboxes/{where}/files?path=/root/forger.py&user=root", FORGER.encode())
    said = cells.server.run(where, f"[ -e /root/forger.pid ] && kill -9 $(cat /root/forger.pid); python3 /root/forger.py {mode}", user="root")
    assert said["stdout"] == "listens\n", said


def memory():
    with open(f"/proc/{cells.server.process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


class AnotherProgram(unittest.TestCase):
    """In the place of isola-kernels."""

    def setUp(self):
        self.box = make()
        self.addCleanup(drop, self.box)

    def still_serves(self):
        self.assertIsNone(cells.server.process.poll(), "the server has ended")
        self.assertEqual(run("1 + 1")["status"], "ok", "another sandbox")

    def test_deep_values_are_not_read(self):
        for mode in ("deep", "wide"):
            forge(self.box, mode)
            for stream_it in (False, True):
                reply = ask("1", self.box, stream=stream_it)
                self.assertEqual((reply.status, reply.json["error"]["code"]), (500, "corrupt"), reply)
        forge(self.box, "deep-answer")
        for reply in (cells.server.get(f"/v1/sandboxes/{self.box}/contexts"), cells.server.get(f"/v1/sandboxes/{self.box}/languages"),
                      cells.server.post(f"/v1/sandboxes/{self.box}/contexts", {}),
                      cells.server.post(f"/v1/sandboxes/{self.box}/contexts/python/restart")):
            self.assertEqual((reply.status, reply.json["error"]["code"]), (500, "corrupt"), reply)
        self.still_serves()

    def test_more_than_a_cell_may_say(self):
        for mode in ("flood", "results"):
            forge(self.box, mode)
            before = memory()
            result = run("1", self.box, max_output="1M")
            self.assertEqual((result["status"], result["truncated"]), ("interrupted", True), result["status"])
            self.assertLess(len(json.dumps(result)), 16 << 20)
            self.assertLess(memory() - before, 256 << 20)
            events = list(stream("1", self.box, max_output="1M"))
            self.assertEqual([event["type"] for event in events[-2:]], ["truncated", "end"])
            self.assertEqual(events[-1]["status"], "interrupted")
        forge(self.box, "unknown")
        self.assertEqual(run("1", self.box, max_output="1M")["status"], "interrupted")
        forge(self.box, "endless")
        self.assertEqual(ask("1", self.box, max_output="1M").json["error"]["code"], "corrupt")
        self.still_serves()

    def test_an_end_cannot_unmark_what_came_from_inside(self):
        forge(self.box, "end")
        result = run("1", self.box)
        self.assertLessEqual({"stdout", "stderr", "results", "error", "message"}, set(result["untrusted"]))
        self.assertEqual((result["stdout"], result["results"], result["status"]), ("", [], "error"))
        self.assertLessEqual(set(result), {"stdout", "stderr", "results", "status", "untrusted", "context", "language", "message"})
        (start, end) = list(stream("1", self.box))
        self.assertEqual(start, {"type": "start", "context": "c", "language": "l"})
        self.assertEqual(end, {"type": "end", "status": "error", "message": "m"})

    def test_failures_say_who_says_it(self):
        forge(self.box, "failure")
        for reply in (ask("1", self.box), ask("1", self.box, stream=True), cells.server.get(f"/v1/sandboxes/{self.box}/contexts"),
                      cells.server.post(f"/v1/sandboxes/{self.box}/contexts", {}),
                      cells.server.delete(f"/v1/sandboxes/{self.box}/contexts/python")):
            self.assertEqual((reply.status, reply.json["error"]["code"]), (500, "internal"), "what it names is not its to say")
            self.assertEqual(reply.json["error"]["message"], "the interpreter inside says: Your key was revoked")
            self.assertEqual(reply.headers.get("x-isola-untrusted"), "data")

    def callers_that_leave(self, path, body):
        """The server keeps nothing of them."""
        def open_files():
            return len(os.listdir(f"/proc/{cells.server.process.pid}/fd"))

        before = open_files()
        for _ in range(8):
            connection = cells.server.connection()
            connection.request("POST", path, json.dumps(body), {"Authorization": "Bearer " + cells.server.key})
            connection.sock.shutdown(1)
            connection.close()
        eventually(lambda: open_files() <= before + 1, seconds=25, what="that they are released")

    def test_callers_that_leave_one_that_says_nothing(self):
        forge(self.box, "silent")
        self.callers_that_leave(f"/v1/sandboxes/{self.box}/code", {"code": "1"})
        self.callers_that_leave(f"/v1/sandboxes/{self.box}/contexts", {})

    def test_callers_that_leave_one_that_does_not_start(self):
        cells.server.run(self.box, "printf '#!/bin/sh\\nexec sleep 100000\\n' > /usr/local/lib/isola/isola-kernels; rm -rf /run/isola-kernels",
                         user="root")
        self.callers_that_leave(f"/v1/sandboxes/{self.box}/code", {"code": "1"})
        # And who stays hears of it.
        reply = ask("1", self.box)
        self.assertEqual((reply.status, "does not start" in reply.json["error"]["message"]), (500, True), reply)
        self.assertEqual(reply.headers.get("x-isola-untrusted"), "data")

    def test_what_may_have_run_is_in_the_ledger(self):
        # Parts of it are inside, and it is not yet all there.
        forge(self.box, "deaf")
        connection = cells.server.connection()
        connection.request("POST", f"/v1/sandboxes/{self.box}/code", json.dumps({"code": "mischief()" + " " * (16 << 20)}),
                           {"Authorization": "Bearer " + cells.server.key})

        def entries(kind):
            return [e for e in cells.server.get(f"/v1/ledger?sandbox={self.box}&kind=command.&limit=1000").json["events"]
                    if e["kind"] == kind and ("mischief" in e["data"].get("command", "") or "status" in e["data"])]

        eventually(lambda: entries("command.started"))
        connection.close()
        eventually(lambda: [e for e in entries("command.ended") if e["data"].get("status") == "abandoned"])


class E2B(unittest.TestCase):
    """The same through that dialect, whose events are translated."""

    def setUp(self):
        made = cells.server.post("/sandboxes", {"templateID": "code-interpreter-v1"}, key="", headers={"X-API-Key": cells.server.key})
        self.assertEqual(made.status, 201, made)
        self.box = made.json["sandboxID"]
        self.inside = {"E2b-Sandbox-Id": self.box, "E2b-Sandbox-Port": "49999", "Content-Type": "application/json"}
        self.token = {**self.inside, "X-Access-Token": made.json["envdAccessToken"]}
        self.addCleanup(lambda: cells.server.delete("/sandboxes/" + self.box, key="", headers={"X-API-Key": cells.server.key}))

    def execute(self, code, **more):
        return cells.server.post("/execute", {"code": code, **more}, key="", headers=self.token)

    def test_frames_of_any_size(self):
        said = self.execute("from IPython.display import display\n"
                            "display({'text/plain': 'x', 'application/vnd.isola.frame+json':\n"
                            "  {'columns': [{}] * 100000, 'records': [{}] * 100000}}, raw=True)")
        events = [json.loads(line) for line in said.body.splitlines()]
        (result,) = [event for event in events if event["type"] == "result"]
        self.assertEqual(result.get("data"), None)
        said = self.execute("display({'application/vnd.isola.frame+json':\n"
                            "  {'columns': [{'name': 'a'}] * 200, 'records': [{'a': 'x' * 1000}] * 1000}}, raw=True)")
        self.assertLess(len(said.body), 4 << 20, "one column, however often it is named")

    def test_types_are_no_fields(self):
        said = self.execute("from IPython.display import display\ndisplay({'type': 'end_of_execution', 'is_main_result': True, 'a/b': 1}, raw=True)")
        (result,) = [event for line in said.body.splitlines() if "a/b" in (event := json.loads(line))]
        self.assertEqual((result["type"], result["is_main_result"]), ("result", False))

    def test_deep_values_and_failures(self):
        forge(self.box, "deep")
        said = self.execute("1")
        self.assertEqual((said.status, said.headers.get("x-isola-untrusted")), (500, "data"))
        forge(self.box, "deep-answer")
        self.assertEqual(cells.server.get("/contexts", key="", headers=self.token).status, 500)
        forge(self.box, "failure")
        said = self.execute("1")
        self.assertEqual((said.status, said.body, said.headers.get("x-isola-untrusted")),
                         (500, b"the interpreter inside says: Your key was revoked", "data"))
        forge(self.box, "flood")
        said = self.execute("1")
        self.assertIn(b"cut here", said.body)
        self.assertLess(len(said.body), 32 << 20)
        self.assertIsNone(cells.server.process.poll(), "the server has ended")

    def test_bodies_of_any_depth(self):
        deep = '{"code":"1","env_vars":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}"
        said = cells.server.request("POST", "/execute", deep, key="", headers=self.token)
        self.assertEqual(said.status, 422)
        self.assertEqual(self.execute("1").status, 200)

    def test_a_wrong_token_is_refused_everywhere(self):
        wrong = {**self.inside, "X-Access-Token": "nonsense"}
        for method, path in (("GET", "/contexts"), ("POST", "/contexts"), ("POST", "/contexts/python/restart"), ("DELETE", "/contexts/python")):
            said = cells.server.request(method, path, "{}" if method == "POST" else None, key="", headers=wrong)
            self.assertEqual(said.status, 401, (method, path))
        self.assertEqual(cells.server.get("/contexts", key="", headers=self.token).status, 200)
        self.assertEqual(cells.server.get("/contexts", key="", headers=self.inside).status, 200, "their packages send none")
        self.assertEqual(cells.server.post("/execute", {"code": "1"}, key="", headers=self.inside).status, 401)

    def test_contexts_that_demand_a_token(self):
        server = Server("--pool", "0", "--e2b-context-token", "true")
        self.addCleanup(server.close)
        made = server.post("/sandboxes", {"templateID": "code-interpreter-v1"}, key="", headers={"X-API-Key": server.key}).json
        inside = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49999", "Content-Type": "application/json"}
        token = {**inside, "X-Access-Token": made["envdAccessToken"]}
        for method, path in (("GET", "/contexts"), ("POST", "/contexts"), ("DELETE", "/contexts/python")):
            body = "{}" if method == "POST" else None
            self.assertEqual(server.request(method, path, body, key="", headers=inside).status, 401, (method, path))
            self.assertEqual(server.request(method, path, body, key="", headers=token).status, 200, (method, path))
        self.assertEqual(server.get("/health", key="", headers=inside).status, 200)


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
