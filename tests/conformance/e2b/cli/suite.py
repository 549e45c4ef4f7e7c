"""The commands of @e2b/cli that speak to a server, through the unmodified published package. Run by ../run.py."""
import json
import os
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))
from harness import Skip, run_all, test  # noqa: E402

FOLDER = os.path.join(os.environ["E2B_PACKAGE"], "node_modules/@e2b/cli")
with open(os.path.join(FOLDER, "package.json")) as file:
    PACKAGE = json.load(file)
VERSION = tuple(int(part) for part in PACKAGE["version"].split("."))
PROGRAM = os.path.join(FOLDER, PACKAGE["bin"]["e2b"] if isinstance(PACKAGE["bin"], dict) else PACKAGE["bin"])
TEMPLATE = os.environ["ISOLA_TEMPLATE"]
HOME = tempfile.mkdtemp(prefix="isola-e2b-cli-")


def e2b(*words, code=0, stdin=b""):
    done = subprocess.run([os.environ["ISOLA_NODE"], PROGRAM, *words], input=stdin, capture_output=True, timeout=60,
                          env={**os.environ, "HOME": HOME, "NO_COLOR": "1"})
    assert code is None or done.returncode == code, f"exit {done.returncode}: {done.stdout!r} {done.stderr!r}"
    return done


def api(method, path, body=None):
    request = urllib.request.Request(os.environ["E2B_API_URL"] + path, json.dumps(body).encode() if body else None,
                                     {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}, method=method)
    text = urllib.request.urlopen(request).read()
    return json.loads(text) if text else None


class sandbox:
    def __enter__(self):
        self.id = api("POST", "/v2/sandboxes", {"templateID": TEMPLATE, "timeout": 120})["sandboxID"]
        return self.id

    def __exit__(self, *_):
        try:
            api("DELETE", f"/sandboxes/{self.id}")
        except OSError:
            pass


def since(*version):
    if VERSION < version:
        raise Skip("this line has no such command")


@test("sandbox list", "has the running ones")
def _():
    with sandbox() as id_:
        listed = json.loads(e2b("sandbox", "list", "--format", "json").stdout)
        assert id_ in [one.get("sandboxId") or one.get("sandboxID") for one in listed], listed
        assert id_.encode() in e2b("sandbox", "list").stdout


@test("sandbox info", "says what it is")
def _():
    since(2, 4)
    with sandbox() as id_:
        assert json.loads(e2b("sandbox", "info", id_, "--format", "json").stdout)["sandboxId"] == id_
    gone = e2b("sandbox", "info", "i00000000000000000000", code=1)
    assert b"found" in gone.stderr


@test("sandbox kill", "ends it")
def _():
    with sandbox() as id_:
        assert b"killed" in e2b("sandbox", "kill", id_).stdout
        assert b"found" in e2b("sandbox", "kill", id_, code=None).stderr


@test("sandbox exec", "runs, and gives the exit code back")
def _():
    since(2, 8)
    with sandbox() as id_:
        done = e2b("sandbox", "exec", id_, "echo out; echo err >&2; exit 3", code=3)
        assert (done.stdout, b"err" in done.stderr) == (b"out\n", True), done
        assert e2b("sandbox", "exec", "-u", "root", "-c", "/tmp", "-e", "A=b", id_, "whoami; pwd; echo $A").stdout == b"root\n/tmp\nb\n"


@test("sandbox exec", "feeds what is piped in")
def _():
    since(2, 8)
    with sandbox() as id_:
        assert e2b("sandbox", "exec", id_, "cat", stdin=b"piped").stdout == b"piped"


@test("sandbox create", "makes one without a terminal")
def _():
    since(2, 10)
    done = e2b("sandbox", "create", TEMPLATE, "--detach", code=None)
    if b"unknown option" in done.stderr:
        raise Skip("this line always opens a terminal")
    assert done.returncode == 0, done
    words = done.stdout.decode().split()
    (id_,) = [word for word in words if word.startswith("i") and len(word) == 21]
    api("DELETE", f"/sandboxes/{id_}")


@test("sandbox logs", "prints what happened")
def _():
    with sandbox() as id_:
        out = e2b("sandbox", "logs", id_, "--format", "json").stdout
        assert b"sandbox.created" in out, out


@test("sandbox metrics", "prints a sample")
def _():
    with sandbox() as id_:
        out = e2b("sandbox", "metrics", id_, "--format", "json").stdout
        assert b"cpu" in out.lower(), out


@test("sandbox pause", "keeps it, and resume brings it back")
def _():
    since(2, 8)
    with sandbox() as id_:
        e2b("sandbox", "pause", id_)
        e2b("sandbox", "resume", id_)


@test("template list", "has the templates of this machine")
def _():
    done = e2b("template", "list", "--format", "json", code=None)
    if done.returncode and b"log" in done.stdout + done.stderr and VERSION < (2, 16):
        raise Skip("this line wants a login in a browser for it")
    assert done.returncode == 0, done
    assert TEMPLATE in [one["templateID"] for one in json.loads(done.stdout)], done


@test("auth info", "needs no server")
def _():
    assert b"Not logged in" in e2b("auth", "info").stdout


run_all()
