"""Pause, connect, fork and snapshots: what ran goes on, and what was made of it is its own."""
import urllib.request

import e2b
from flavour import ASYNC, Face, NotFound, Sandbox, own, using
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
        with raises(Exception):
            sandbox.commands.run("true")
        assert Sandbox.connect(sandbox.sandbox_id, timeout=60).commands.run("echo back").stdout == "back\n"
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


@test("Sandbox.list_snapshots", "has those of a sandbox")
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
