"""Pause, connect, fork and snapshots: what ran goes on, and what was made of it is its own."""
import datetime
import http.server
import json
import os
import threading

import e2b
from flavour import ASYNC, NEWEST, TEMPLATE, VERSION, Face, NotFound, Sandbox, named, own, using
from harness import Skip, eventually, raises, test

NOWHERE = "i00000000000000000000"
COUNT = "python3 -uc 'import time\nn = 0\nwhile True:\n  n += 1\n  open(\"/tmp/count\", \"w\").write(str(n))\n  time.sleep(0.01)'"


def needs(name):
    if not hasattr(e2b.Sandbox, name):
        raise Skip(f"this line has no {name}")


def counting(sandbox):
    """A program whose memory holds a number; it never goes back."""
    handle = sandbox.commands.run(COUNT, background=True)
    eventually(lambda: sandbox.files.exists("/tmp/count"), "the first number")
    return handle.pid


def number(sandbox):
    return int(sandbox.commands.run("cat /tmp/count || true; sleep 0.05; cat /tmp/count").stdout or "0")


@test("Sandbox.pause", "what ran goes on after connect")
def _():
    needs("pause")
    with using() as sandbox:
        pid = counting(sandbox)
        before = number(sandbox)
        sandbox.pause()
        assert not sandbox.is_running()
        assert Sandbox.get_info(sandbox.sandbox_id).state == "paused" if hasattr(e2b.Sandbox, "get_info") else True
        back = Sandbox.connect(sandbox.sandbox_id, timeout=60)
        assert back.sandbox_id == sandbox.sandbox_id
        assert sandbox.is_running()
        sandbox.commands.run(f"kill -0 {pid}")
        eventually(lambda: number(sandbox) > before, "a number more")


@test("Sandbox.pause", "again is not an error")
def _():
    needs("pause")
    with using() as sandbox:
        sandbox.pause()
        assert sandbox.pause() in (False, None, sandbox.sandbox_id)


@test("Sandbox.pause", "one that is not there is a not-found exception")
def _():
    needs("pause")
    with raises(NotFound):
        Sandbox.pause(NOWHERE)


@test("Sandbox.beta_pause", "is the same")
def _():
    needs("beta_pause")
    with using() as sandbox:
        sandbox.files.write("/home/user/note", "kept")
        sandbox.beta_pause()
        assert not sandbox.is_running()
        assert Sandbox.connect(sandbox.sandbox_id).files.read("/home/user/note") == "kept"


@test("Sandbox.kill", "ends a paused one")
def _():
    needs("pause")
    sandbox = own()
    sandbox.pause()
    assert sandbox.kill() is True
    assert Sandbox.kill(sandbox.sandbox_id) is False
    with raises(NotFound):
        Sandbox.connect(sandbox.sandbox_id)


@test("Sandbox.list", "shows a paused one as paused")
def _():
    needs("pause")
    with using(metadata={"list": "paused"}) as sandbox:
        sandbox.pause()
        query = e2b.SandboxQuery(metadata={"list": "paused"}, state=[e2b.SandboxState.PAUSED])
        assert [one.sandbox_id for one in Sandbox.list(query=query).next_items()] == [sandbox.sandbox_id]
        query = e2b.SandboxQuery(metadata={"list": "paused"}, state=[e2b.SandboxState.RUNNING])
        assert Sandbox.list(query=query).next_items() == []


@test("Sandbox.beta_create", "is a create that pauses at its timeout")
def _():
    needs("beta_create")
    sandbox = Sandbox.beta_create(TEMPLATE, timeout=2, auto_pause=True)
    try:
        sandbox.files.write("/home/user/note", "kept")
        eventually(lambda: not sandbox.is_running(), "its pause")
        assert Sandbox.connect(sandbox.sandbox_id).files.read("/home/user/note") == "kept"
    finally:
        sandbox.kill()


@test("Sandbox.create", "pauses at its timeout, and the next call brings it back")
def _():
    needs("fork")
    sandbox = own(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        assert sandbox.get_info().lifecycle["on_timeout"] == "pause"
        sandbox.files.write("/home/user/note", "kept")
        eventually(lambda: not sandbox.is_running(), "its pause")
        assert sandbox.files.read("/home/user/note") == "kept"
        assert sandbox.is_running()
    finally:
        sandbox.kill()


@test("Sandbox.create", "paused without auto-resume it stays paused")
def _():
    needs("fork")
    sandbox = own(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": False})
    try:
        eventually(lambda: not sandbox.is_running(), "its pause")
        with raises(named("SandboxNotRunningException", "TimeoutException"), exactly=NEWEST):
            sandbox.commands.run("true")
        assert Sandbox.connect(sandbox.sandbox_id, timeout=60).commands.run("echo back").stdout == "back\n"
    finally:
        sandbox.kill()


def mark(sandbox):
    """A process is in memory, a note on the disk."""
    sandbox.files.write("/home/user/note", "kept")
    sandbox.commands.run("touch /dev/shm/mark")  # the numbers of processes begin anew, and mean others
    return counting(sandbox)


def rebooted(sandbox):
    assert sandbox.files.read("/home/user/note") == "kept"
    with raises(e2b.CommandExitException):
        sandbox.commands.run("test -e /dev/shm/mark")


def needs_modes():
    if VERSION < (2, 49):
        raise Skip("this line has no such option")


@test("Sandbox.pause with keep_memory=False", "keeps the files, and nothing runs afterwards")
def _():
    needs_modes()
    with using() as sandbox:
        mark(sandbox)
        sandbox.pause(keep_memory=False)
        sandbox.connect(timeout=60)
        rebooted(sandbox)


class Seen(http.server.BaseHTTPRequestHandler):
    """Takes what it is asked: what the option says on the wire; that the server does it shows tests/server/e2b_test.py."""
    bodies = []

    def do_POST(self):
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"{}"))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@test("Sandbox.pause with strict", "asks for what the server looks at, and one that answers is paused")
def _():
    if VERSION < (2, 60):
        raise Skip("this line has no such option")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Seen) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        Sandbox.pause(NOWHERE, strict=True, api_url=f"http://127.0.0.1:{listener.server_port}")
        listener.shutdown()
    assert Seen.bodies.pop().get("requireHealthyGuest") is True
    with using() as sandbox:
        sandbox.pause(strict=True)
        assert sandbox.get_info().state == "paused"


@test("Sandbox.connect with on_resume", "reboot leaves the memory behind, restore does not")
def _():
    needs_modes()
    with using() as sandbox:
        pid = mark(sandbox)
        sandbox.pause()
        sandbox.connect(timeout=60, on_resume="restore")
        sandbox.commands.run(f"kill -0 {pid}")
        sandbox.pause()
        sandbox.connect(timeout=60, on_resume="reboot")
        rebooted(sandbox)


@test("Sandbox.create with on_timeout", "a pause without memory, which no call ends by itself")
def _():
    needs_modes()
    sandbox = own(lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}})
    try:
        mark(sandbox)
        sandbox.set_timeout(1)
        eventually(lambda: not sandbox.is_running(), "its pause")
        with raises(named("SandboxNotRunningException", "TimeoutException"), exactly=NEWEST):
            sandbox.commands.run("true")
        sandbox.connect(timeout=60)
        rebooted(sandbox)
    finally:
        sandbox.kill()


@test("Sandbox.create with auto_resume", "what a call brings back has five minutes")
def _():
    needs("fork")
    sandbox = own(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        eventually(lambda: not sandbox.is_running(), "its pause")
        sandbox.commands.run("true")
        left = (sandbox.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
        assert 200 < left <= 301, left
    finally:
        sandbox.kill()


@test("Sandbox.fork", "children have what runs, and go their own ways")
def _():
    needs("fork")
    with using() as sandbox:
        pid = counting(sandbox)
        children = [Face(child) if ASYNC else child for child in sandbox.fork(count=2)]
        try:
            ids = {one.sandbox_id for one in children}
            assert len(ids) == 2 and sandbox.sandbox_id not in ids
            for child in children:
                child.commands.run(f"kill -0 {pid}")
                child.files.write("/home/user/mine", child.sandbox_id)
            for child in children:
                assert child.files.read("/home/user/mine") == child.sandbox_id
                assert child.commands.run("echo $E2B_SANDBOX_ID").stdout.strip() == child.sandbox_id
            assert not sandbox.files.exists("/home/user/mine")
            sandbox.commands.run(f"kill -0 {pid}")
        finally:
            for child in children:
                child.kill()


@test("Sandbox.fork", "a child that cannot be made is an error of its own")
def _():
    needs("fork")
    sandbox = Sandbox.create(TEMPLATE, api_key=os.environ["ISOLA_FEW_KEY"], timeout=60)
    children = []
    try:
        children = sandbox.fork(count=3)
        assert len(children) == 3, children
        refused = [one for one in children if isinstance(one, Exception)]
        assert len(refused) == 2 and all(type(one) is e2b.RateLimitException for one in refused), children
    finally:
        for child in children:
            if not isinstance(child, Exception):
                (Face(child) if ASYNC else child).kill()
        sandbox.kill()


@test("Sandbox.fork", "of one that is not there is a not-found exception")
def _():
    needs("fork")
    with raises(NotFound):
        Sandbox.fork(NOWHERE)


@test("Sandbox.create_snapshot", "is a template for new sandboxes")
def _():
    needs("create_snapshot")
    with using() as sandbox:
        pid = counting(sandbox)
        made = sandbox.create_snapshot()
        sandbox.files.write("/home/user/later", "x")
        other = Sandbox.create(made.snapshot_id, timeout=60)
        try:
            other.commands.run(f"kill -0 {pid}")
            assert not other.files.exists("/home/user/later")
        finally:
            other.kill()
        assert Sandbox.delete_snapshot(made.snapshot_id) is True
        assert Sandbox.delete_snapshot(made.snapshot_id) is False
        sandbox.commands.run(f"kill -0 {pid}")


@test("Sandbox.create_snapshot", "a name that is used again means the newest")
def _():
    needs("create_snapshot")
    if VERSION < (2, 45):
        raise Skip("snapshots of this line have no names")
    with using() as sandbox:
        name = f"again-py{os.getpid()}"
        for text in ("one", "two"):
            sandbox.files.write("/home/user/n", text)
            made = sandbox.create_snapshot(name=name)
        other = Sandbox.create(name, timeout=60)
        try:
            assert other.files.read("/home/user/n") == "two"
        finally:
            other.kill()
        assert Sandbox.delete_snapshot(made.snapshot_id) is True


@test(["Sandbox.list_snapshots", "SnapshotPaginator"], "has those of a sandbox")
def _():
    needs("list_snapshots")
    with using() as sandbox:
        made = [sandbox.create_snapshot() for _ in range(2)]
        listed = {one.snapshot_id for one in sandbox.list_snapshots().next_items()}
        assert listed == {one.snapshot_id for one in made}, listed
        assert listed <= {one.snapshot_id for one in Sandbox.list_snapshots().next_items()}
        for one in made:
            assert Sandbox.delete_snapshot(one.snapshot_id) is True


@test("Sandbox.delete_snapshot", "says False for what is not there")
def _():
    needs("delete_snapshot")
    assert Sandbox.delete_snapshot("nothing:default") is False
