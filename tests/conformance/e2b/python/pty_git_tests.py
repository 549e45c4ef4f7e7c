import threading

import e2b
from flavour import ASYNC, VERSION, NotFound, box, fresh, has, stream_input
from harness import Skip, eventually, raises, test


class Terminal:
    """What is on the screen, read as it comes."""

    def __init__(self, read=True, **options):
        self.text = ""
        pty, size = box().pty, e2b.PtySize(rows=31, cols=91)
        if ASYNC:
            self.handle = pty.create(size, on_data=self.see, **options)
        else:
            self.handle = pty.create(size, **options)
            if read:  # a handle that somebody reads cannot be let go of
                threading.Thread(target=self.read, daemon=True).start()

    def see(self, data):
        self.text += bytes(data).decode(errors="replace")

    def read(self):
        try:
            for _, _, data in self.handle:
                if data:
                    self.see(data)
        except Exception:
            pass

    def type(self, text):
        box().pty.send_stdin(self.handle.pid, text.encode())

    def wait_for(self, text):
        eventually(lambda: text in self.text, repr(text))


@test("pty.create", "is a terminal of the size asked for")
def _():
    terminal = Terminal(envs={"MARK": "here"}, cwd="/tmp")
    terminal.type('echo "$(stty size) $TERM $MARK $(pwd)"\n')
    terminal.wait_for("31 91 xterm-256color here /tmp")
    assert box().pty.kill(terminal.handle.pid) is True


@test("pty.resize", "is seen inside")
def _():
    terminal = Terminal()
    box().pty.resize(terminal.handle.pid, e2b.PtySize(rows=40, cols=120))
    terminal.type("stty size\n")
    terminal.wait_for("40 120")
    box().pty.kill(terminal.handle.pid)


@test("pty.send_stdin", "reaches what runs")
def _():
    terminal = Terminal()
    terminal.type('read x; echo "<$x>"\n')
    terminal.type("typed\n")
    terminal.wait_for("<typed>")
    box().pty.kill(terminal.handle.pid)
    with raises(NotFound):
        box().pty.send_stdin(999999, b"x")


@test("pty.stream_input", "types piece by piece")
def _():
    if not has(box().pty, "stream_input"):
        raise Skip("this line has no such call")
    terminal = Terminal()
    stream_input(box().pty, terminal.handle.pid, [b"echo str", b"eam-$((6*7))\n"])
    terminal.wait_for("stream-42")
    box().pty.kill(terminal.handle.pid)


@test("pty.kill", "says False for what is not there")
def _():
    assert box().pty.kill(999999) is False


@test("pty.connect", "joins a terminal that is there")
def _():
    if VERSION < (2, 45):
        raise Skip("this line has no such call")
    terminal = Terminal(read=False)
    terminal.handle.disconnect()
    if ASYNC:
        terminal.handle = box().pty.connect(terminal.handle.pid, on_data=terminal.see)
    else:
        terminal.handle = box().pty.connect(terminal.handle.pid)
        threading.Thread(target=terminal.read, daemon=True).start()
    terminal.type("echo back-$((6*7))\n")
    terminal.wait_for("back-42")
    box().pty.kill(terminal.handle.pid)


def repository():
    if not hasattr(e2b.Sandbox, "git"):
        raise Skip("this line has no git helpers")
    if not box().commands.run("command -v git || true").stdout:
        raise Skip("the template has no git")
    git, path = box().git, fresh()
    git.init(path, initial_branch="main")
    git.configure_user("Ada", "ada@example.org", scope="local", path=path)
    box().files.write(f"{path}/a.txt", "one\n")
    git.add(path)
    git.commit(path, "first")
    return git, path


@test(["git." + name for name in ("init", "configure_user", "add", "commit", "status", "create_branch", "checkout_branch", "delete_branch",
                                  "branches", "restore", "reset", "remote_add", "remote_get", "push", "pull", "clone", "set_config",
                                  "get_config")], "a life of a repository")
def _():
    git, path = repository()
    files, commands, bare = box().files, box().commands, fresh()
    assert git.status(path).current_branch == "main"
    git.create_branch(path, "side")
    git.checkout_branch(path, "main")
    git.delete_branch(path, "side")
    assert git.branches(path).branches == ["main"]
    files.write(f"{path}/a.txt", "changed\n")
    git.restore(path, paths=["a.txt"], worktree=True)
    assert files.read(f"{path}/a.txt") == "one\n"
    files.write(f"{path}/a.txt", "changed\n")
    git.reset(path, mode="hard", target="HEAD")
    assert files.read(f"{path}/a.txt") == "one\n"
    commands.run(f"git init -q --bare -b main {bare}")
    git.remote_add(path, "origin", bare)
    assert git.remote_get(path, "origin") == bare
    git.push(path, remote="origin", branch="main")
    git.pull(path, remote="origin", branch="main")
    other = fresh()
    git.clone(bare, path=other)
    assert files.read(f"{other}/a.txt") == "one\n"
    git.set_config("core.editor", "ed", scope="local", path=path)
    assert git.get_config("core.editor", scope="local", path=path) == "ed"


@test("git.dangerously_authenticate", "is what git asks with")
def _():
    git, path = repository()
    git.dangerously_authenticate("ada", "hunter2", host="git.example", protocol="https")
    asked = "printf 'protocol=https\\nhost=git.example\\n\\n' | git credential fill"
    assert "password=hunter2" in box().commands.run(asked).stdout
