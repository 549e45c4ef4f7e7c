import e2b
from flavour import VERSION, NotFound, box, has, stream_input, using
from harness import Skip, eventually, raises, test


def failure(call, type_):
    try:
        call()
    except type_ as error:
        return error
    raise AssertionError(f"no {type_.__name__} was raised")


@test("commands.run", "gives output and exit code")
def _():
    result = box().commands.run("echo out; echo err >&2")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")


@test(["commands.run", "CommandExitException"], "a failing command is a CommandExitException")
def _():
    error = failure(lambda: box().commands.run("echo gone; exit 3"), e2b.CommandExitException)
    assert (error.exit_code, error.stdout, error.error) == (3, "gone\n", "exit status 3")


@test("commands.run", "a killed command says so")
def _():
    error = failure(lambda: box().commands.run("kill -9 $$"), e2b.CommandExitException)
    assert (error.exit_code, error.error) == (-1, "signal: killed")


@test("commands.run", "too slow is a TimeoutException, and the command is gone")
def _():
    with raises(e2b.TimeoutException):
        box().commands.run("sleep 77", timeout=0.5)
    eventually(lambda: not box().commands.run('pgrep -f "sleep 7[7]" || true').stdout, "its end")


@test("commands.run", "runs as user, at home, unless told otherwise")
def _():
    commands = box().commands
    assert commands.run("whoami; pwd; echo $HOME").stdout == "user\n/home/user\n/home/user\n"
    assert commands.run("whoami; pwd", user="root", cwd="/tmp").stdout == "root\n/tmp\n"


@test(["commands.run", "AuthenticationException"], "an unknown user is an AuthenticationException")
def _():
    with raises(e2b.AuthenticationException, "nobody-here"):
        box().commands.run("true", user="nobody-here")


@test(["commands.run", "InvalidArgumentException"], "a folder that is not there is an InvalidArgumentException")
def _():
    with raises(e2b.InvalidArgumentException, "/no/such/folder"):
        box().commands.run("true", cwd="/no/such/folder")


@test("commands.run", "takes environment variables over the sandbox's")
def _():
    with using(envs={"A": "box", "B": "box"}) as sandbox:
        assert sandbox.commands.run("echo $A $B", envs={"B": "call"}).stdout == "box call\n"


@test("commands.run", "streams output as it comes")
def _():
    seen = []
    box().commands.run("for i in 1 2 3; do echo $i; sleep 0.05; done", on_stdout=seen.append)
    assert "".join(seen) == "1\n2\n3\n" and len(seen) >= 2, seen


@test("commands.run", "output of any size arrives whole")
def _():
    lines = box().commands.run("seq 1 200000").stdout.splitlines()
    assert lines == [str(i + 1) for i in range(200000)]


@test("commands.run", "ends when nobody can write to its output any more")
def _():
    assert box().commands.run("(sleep 1; echo late) & echo now").stdout == "now\nlate\n"
    assert box().commands.run("sleep 100 > /dev/null 2>&1 & echo now").stdout == "now\n"
    with raises(e2b.TimeoutException):
        box().commands.run("sleep 100 & echo now", timeout=0.5)


@test("commands.run", "in the background returns a handle at once")
def _():
    handle = box().commands.run("sleep 0.3; echo done; exit 4", background=True)
    assert handle.pid > 0
    error = failure(handle.wait, e2b.CommandExitException)
    assert (error.exit_code, error.stdout) == (4, "done\n")


@test("commands.list", "has what runs, as it was started")
def _():
    handle = box().commands.run("sleep 101", background=True, cwd="/tmp", envs={"K": "v"})
    mine = [one for one in box().commands.list() if one.pid == handle.pid][0]
    assert (mine.cmd, mine.args, mine.cwd, mine.envs) == ("/bin/bash", ["-l", "-c", "sleep 101"], "/tmp", {"K": "v"})
    assert handle.kill() is True
    eventually(lambda: all(one.pid != handle.pid for one in box().commands.list()), "its leaving the list")


@test("commands.kill", "says False for what is not there")
def _():
    assert box().commands.kill(999999) is False


@test("CommandHandle.kill", "ends the command")
def _():
    handle = box().commands.run("sleep 100", background=True)
    assert handle.kill() is True
    assert failure(handle.wait, e2b.CommandExitException).error == "signal: killed"


@test("CommandHandle.disconnect", "leaves the command running")
def _():
    handle = box().commands.run("sleep 100", background=True)
    handle.disconnect()
    box().commands.run(f"kill -0 {handle.pid}")
    assert box().commands.kill(handle.pid) is True


@test("commands.connect", "follows a command that runs")
def _():
    handle = box().commands.run("sleep 0.5; echo late", background=True)
    handle.disconnect()
    assert box().commands.connect(handle.pid).wait().stdout == "late\n"
    with raises(NotFound):
        box().commands.connect(999999)


@test(["CommandHandle.wait", "CommandHandle.send_stdin", "CommandHandle.close_stdin"], "feed a command and wait for its end")
def _():
    handle = box().commands.run("cat; exit 3", background=True, stdin=True) if VERSION >= (2, 45) else None
    if handle is None or not has(handle, "send_stdin"):
        raise Skip("this line has no such call")
    handle.send_stdin("abc")
    handle.close_stdin()
    with raises(e2b.CommandExitException):
        handle.wait()


@test("commands.send_stdin", "is what the command reads")
def _():
    handle = box().commands.run('read line; echo "got $line"', background=True, stdin=True)
    box().commands.send_stdin(handle.pid, "hello wörld\n")
    assert handle.wait().stdout == "got hello wörld\n"
    with raises(NotFound):
        box().commands.send_stdin(999999, "x")


@test("commands.close_stdin", "ends the input")
def _():
    if not hasattr(e2b.Sandbox, "commands") or VERSION < (2, 45):
        raise Skip("this line has no such call")
    handle = box().commands.run("cat", background=True, stdin=True)
    box().commands.send_stdin(handle.pid, "ab")
    box().commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "ab"


@test("commands.stream_input", "feeds piece by piece")
def _():
    if not has(box().commands, "stream_input"):
        raise Skip("this line has no such call")
    handle = box().commands.run("head -c 6", background=True, stdin=True)
    stream_input(box().commands, handle.pid, ["ab", b"cd", "ef"])
    assert handle.wait().stdout == "abcdef"
    with raises(NotFound):
        stream_input(box().commands, 999999, ["x"])
