"""Every type of exception that the SDK has, by the situation that makes it: users catch types, not sentences. Those of single
calls stand with the calls; here are the ones that have no call of their own."""
import json
import os
import socket
import tempfile
import urllib.request

import e2b
from flavour import ASYNC, NEWEST, TEMPLATE, VERSION, Sandbox, _settle, box, named, using
from harness import Skip, raises, test

NOBODY = {"api_key": "e2b_" + "0" * 40}
NOWHERE = "i00000000000000000000"
Volume = getattr(e2b, "AsyncVolume" if ASYNC else "Volume", None)
Template = getattr(e2b, "AsyncTemplate" if ASYNC else "Template", None)


def native(method, path, body=None):
    request = urllib.request.Request(os.environ["E2B_API_URL"] + path, None if body is None else json.dumps(body).encode(),
                                     {"Authorization": "Bearer " + os.environ["E2B_API_KEY"], "Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as reply:
        return json.loads(reply.read() or b"null")


WANTS = """import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401); self.send_header("WWW-Authenticate", 'Basic realm="x"'); self.send_header("Content-Length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8766), Handler).serve_forever()"""


def type_(name):
    found = getattr(e2b, name, None) or getattr(e2b.exceptions, name, None)
    if found is None:
        raise Skip(f"this line has no {name}")
    return found


@test("AuthenticationException", "401: whatever is called with a key that nobody has")
def _():
    wrong = type_("AuthenticationException")
    for call in (lambda: Sandbox.create(TEMPLATE, **NOBODY), lambda: Sandbox.connect(NOWHERE, **NOBODY),
                 lambda: _settle(e2b.Sandbox.list(**NOBODY).next_items() if not ASYNC else e2b.AsyncSandbox.list(**NOBODY).next_items())):
        with raises(wrong):
            call()


@test("AuthenticationException", "401: an access token that ended with the key it was given to")
def _():
    wrong = type_("AuthenticationException")
    key = native("POST", "/v1/keys", {"scope": "use"})
    sandbox = Sandbox.create("minimal", api_key=key["secret"], timeout=60)
    native("DELETE", "/v1/keys/" + key["id"])
    for call in (lambda: sandbox.commands.run("true"), lambda: sandbox.files.list("/"), lambda: sandbox.files.read("/etc/hostname"),
                 lambda: sandbox.files.write("/tmp/x", "y")):
        with raises(wrong):
            call()
    Sandbox.kill(sandbox.sandbox_id)


@test("ServiceBusyException", "503: the server cannot just now")
def _():
    with raises(type_("ServiceBusyException")):
        Sandbox.create("minimal", api_url=os.environ["ISOLA_BUSY_URL"], api_key=os.environ["ISOLA_BUSY_KEY"],
                       network={"rules": {"api.example.org": [{"transform": {"headers": {"A": "b"}}}]}})


@test("SandboxException", "400 and 403 name their status")
def _():
    with raises(e2b.SandboxException, "400"):
        Sandbox.create(TEMPLATE, timeout=-1)
    with raises(e2b.SandboxException, "403"):
        Sandbox.create(TEMPLATE, api_key=os.environ["ISOLA_READING_KEY"])


@test("SandboxNotFoundException", "404: a sandbox that is not there")
def _():
    with raises(named("SandboxNotFoundException", "NotFoundException")):
        Sandbox.connect(NOWHERE)
    with raises(e2b.NotFoundException):
        box().commands.connect(999_999)


@test(["SandboxNotRunningException", "TimeoutException"], "502: a sandbox that is gone, whatever is asked of it")
def _():
    wrong = named("SandboxNotRunningException", "TimeoutException")
    with using() as sandbox:
        sandbox.kill()
        for call in (lambda: sandbox.commands.run("true"), lambda: sandbox.files.list("/"),
                     lambda: sandbox.files.read("/etc/hostname"), lambda: sandbox.files.write("/tmp/x", "y")):
            with raises(wrong, exactly=NEWEST):
                call()


@test("NotEnoughSpaceException", "507: a full disk")
def _():
    fill = "fallocate -l 100G /tmp/huge 2>/dev/null || dd if=/dev/zero of=/tmp/huge bs=1M 2>/dev/null || true"
    box().commands.run(fill, timeout=180)
    try:
        with raises(type_("NotEnoughSpaceException")):
            box().files.write("/tmp/one-more", b"\0" * (8 << 20))
    finally:
        box().commands.run("rm -f /tmp/huge /tmp/one-more")


@test("FileUploadException", "files of a build that there is no room for")
def _():
    if Template is None:
        raise Skip("this line has no templates")
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/one", "w") as file:
            file.write("x")
        steps = Template(file_context_path=folder).from_template("minimal").copy("one", "/home/user/one")
        with raises(type_("FileUploadException")):
            _settle(Template.build(steps, alias=f"upload-py{os.getpid()}", api_key=os.environ["ISOLA_FULL_KEY"]))


@test("GitAuthException", "a repository that wants a password")
def _():
    if not box().commands.run("command -v git && command -v python3 || true").stdout:
        raise Skip("the template has no git")
    box().files.write("/tmp/wants.py", WANTS)
    running = box().commands.run("exec python3 /tmp/wants.py", background=True)
    try:
        box().commands.run("for i in $(seq 200); do curl -s -o /dev/null http://127.0.0.1:8766/ && exit 0; sleep 0.05; done; exit 1")
        with raises(type_("GitAuthException")):
            box().git.clone("http://127.0.0.1:8766/x.git", path="/tmp/never-py")
    finally:
        running.kill()


@test("RateLimitException", "429: over the limit of the project")
def _():
    key = os.environ["ISOLA_LIMITED_KEY"]
    first = Sandbox.create(TEMPLATE, api_key=key)
    try:
        with raises(type_("RateLimitException")):
            Sandbox.create(TEMPLATE, api_key=key, **({"retries": 0} if VERSION >= (2, 50) else {}))
    finally:
        first.kill()


@test("NotFoundException", "404: a process that is not there")
def _():
    with raises(e2b.NotFoundException):
        box().commands.connect(999_999)


@test("GuestUnresponsiveException", "is a type that nothing raises",
      absent="nothing here raises it: no paused sandbox is marked as one whose inside did not answer, and so no resume is refused for that")
def _():
    assert issubclass(type_("GuestUnresponsiveException"), Exception)


@test("SandboxUnreachableException", "where nobody listens")
def _():
    wrong = type_("SandboxUnreachableException")
    with socket.socket() as nobody, using() as sandbox:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        lost = Sandbox.connect(sandbox.sandbox_id, sandbox_url=f"http://127.0.0.1:{nobody.getsockname()[1]}")
        for call in (lambda: lost.commands.run("true"), lambda: lost.files.list("/"), lambda: lost.files.read("/etc/hostname")):
            with raises(wrong, exactly=True):
                call()


@test("RateLimitException", "429: a command more than the budget of the project has")
def _():
    project = native("POST", "/v1/projects", {"name": f"one command {os.getpid()}", "budget": {"commands": 1}})["id"]
    key = native("POST", "/v1/keys", {"project": project, "scope": "use"})["secret"]
    sandbox = Sandbox.create("minimal", api_key=key, timeout=60)
    sandbox.commands.run("true")
    with raises(type_("RateLimitException"), exactly=True):
        sandbox.commands.run("true")


@test("GitUpstreamException", "a push that knows no other side")
def _():
    wrong = type_("GitUpstreamException")
    if not box().commands.run("command -v git || true").stdout:
        raise Skip("the template has no git")
    path = f"/home/user/upstream-{os.getpid()}"
    git = box().git
    git.init(path, initial_branch="main")
    git.configure_user("Ada", "ada@example.org", scope="local", path=path)
    box().commands.run(f"git -C {path} commit -q --allow-empty -m first && git -C {path} remote add origin /tmp/nowhere")
    with raises(wrong):
        git.pull(path)


@test(["VolumeException", "VolumePathNotFoundException"], "a name that is taken, a path that is not there")
def _():
    if Volume is None:
        raise Skip("this line has no volumes")
    made = _settle(Volume.create(f"errors-py{os.getpid()}"))
    try:
        with raises(named("VolumeException", "SandboxException")):
            _settle(Volume.create(made.name))
        with raises(named("VolumePathNotFoundException", "NotFoundException")):
            _settle(made.read_file("/no/such"))
    finally:
        _settle(Volume.destroy(made.volume_id))


@test("VolumeException", "507: a volume that is full")
def _():
    if Volume is None:
        raise Skip("this line has no volumes")
    small = _settle(Volume.connect(os.environ["ISOLA_SMALL_VOLUME"]))
    with raises(named("VolumeException", "SandboxException"), "not enough space"):
        _settle(small.write_file("/large", b"\0" * (32 << 20)))
    _settle(small.write_file("/little", "x"))


@test("NotEnoughSpaceException", "507: also of what is larger than a server reads for nothing")
def _():
    wrong = type_("NotEnoughSpaceException")
    box().commands.run("fallocate -l 100G /tmp/huge 2>/dev/null || dd if=/dev/zero of=/tmp/huge bs=1M 2>/dev/null || true", timeout=180)
    try:
        with raises(wrong):
            box().files.write("/tmp/one-more", b"\0" * (80 << 20))
    finally:
        box().commands.run("rm -f /tmp/huge /tmp/one-more")


@test("TemplateException", "tags of a template that is not there")
def _():
    if not hasattr(Template, "get_tags"):
        raise Skip("this line has no tags")
    with raises(e2b.TemplateException):
        _settle(Template.get_tags("no-such-template"))
