"""The commands of @e2b/cli that speak to a server, through the unmodified published package. Run by ../run.py."""
import http.server
import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))
from harness import Skip, eventually, forgotten, run_all, test  # noqa: E402

FOLDER = os.path.join(os.environ["E2B_PACKAGE"], "node_modules/@e2b/cli")
with open(os.path.join(FOLDER, "package.json")) as file:
    PACKAGE = json.load(file)
VERSION = tuple(int(part) for part in PACKAGE["version"].split("."))
PROGRAM = os.path.join(FOLDER, PACKAGE["bin"]["e2b"] if isinstance(PACKAGE["bin"], dict) else PACKAGE["bin"])
TEMPLATE = os.environ["ISOLA_TEMPLATE"]
FOLDER_OF_HOME = tempfile.TemporaryDirectory(prefix="isola-e2b-cli-", ignore_cleanup_errors=True)
HOME = FOLDER_OF_HOME.name


def e2b(*words, code=0, stdin=b""):
    done = subprocess.run([os.environ["ISOLA_NODE"], PROGRAM, *words], input=stdin, capture_output=True, timeout=60,
                          env={**os.environ, "HOME": HOME, "NO_COLOR": "1"})
    assert code is None or done.returncode == code, f"exit {done.returncode}: {done.stdout!r} {done.stderr!r}"
    return done


class Terminal:
    """The program on a terminal, and what it showed."""

    def __init__(self, *words, **changed):
        self.end, theirs = pty.openpty()
        self.seen = b""
        env = {**os.environ, "HOME": HOME, "NO_COLOR": "1", "TERM": "xterm", **changed}
        env.pop("CI", None)
        self.process = subprocess.Popen([os.environ["ISOLA_NODE"], PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs,
                                        start_new_session=True, env=env)
        os.close(theirs)

    def wait_for(self, word, seconds=30):
        until = time.monotonic() + seconds
        while word not in self.seen:
            left = until - time.monotonic()
            assert left > 0, (word, self.seen)
            if select.select([self.end], [], [], left)[0]:
                try:
                    self.seen += os.read(self.end, 65536)
                except OSError as gone:  # the other end was closed
                    raise AssertionError((word, self.seen)) from gone

    def type(self, text):
        os.write(self.end, text)

    def close(self):
        """Its exit code; what it still shows is read, or it would wait for that."""
        while self.process.poll() is None:
            if select.select([self.end], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.end, 65536)
                except OSError:
                    break
        os.close(self.end)
        return self.process.wait(30)


def api(method, path, body=None):
    request = urllib.request.Request(os.environ["E2B_API_URL"] + path, json.dumps(body).encode() if body else None,
                                     {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}, method=method)
    text = urllib.request.urlopen(request).read()
    return json.loads(text) if text else None


class sandbox:
    def __init__(self, **fields):
        self.fields = fields

    def __enter__(self):
        self.id = api("POST", "/v2/sandboxes", {"templateID": TEMPLATE, "timeout": 120, **self.fields})["sandboxID"]
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


def listed(*words):
    return [one.get("sandboxId") or one.get("sandboxID") for one in json.loads(e2b("sandbox", "list", "--format", "json", *words).stdout)]


@test("sandbox list with filters", "by metadata, state, number, and order where there is one")
def _():
    mark = f"cli={os.getpid()}-list"
    fields = dict([mark.split("=")])
    with sandbox(metadata=fields) as first, sandbox(metadata=fields) as second, sandbox():
        assert sorted(listed("--metadata", mark)) == sorted([first, second]), listed("--metadata", mark)
        assert len(listed("--metadata", mark, "--limit", "1")) == 1
        assert listed("--metadata", mark, "--state", "paused") == []
        api("POST", f"/sandboxes/{first}/pause")
        assert listed("--metadata", mark, "--state", "paused") == [first]
        assert listed("--metadata", mark) == [second]
        if b"--order" in e2b("sandbox", "list", "--help").stdout:
            both = ("--metadata", mark, "--state", "running,paused")
            for order, wanted in (("asc", [first, second]), ("desc", [second, first])):
                assert listed(*both, "--order", order) == wanted, (order, wanted, listed(*both, "--order", order))
            assert listed("--metadata", mark, "--template", "no-such-template") == []
            assert listed("--metadata", mark, "--template", TEMPLATE, "--started-after", "2020-01-01T00:00:00Z") == [second]


@test("sandbox kill with --all", "ends those that are meant")
def _():
    mark = f"cli={os.getpid()}-kill"
    fields = dict([mark.split("=")])
    with sandbox(metadata=fields) as first, sandbox(metadata=fields) as second, sandbox() as other:
        said = e2b("sandbox", "kill", "--all", "--metadata", mark).stdout
        assert first.encode() in said and second.encode() in said, said
        assert listed("--metadata", mark) == []
        assert api("GET", f"/sandboxes/{other}")["state"] == "running"


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


@test("sandbox create", "opens a terminal, and ends with it")
def _():
    terminal = Terminal("sandbox", "create", TEMPLATE)
    try:
        terminal.wait_for(b"$ ")
        terminal.type(b"echo seen-$((6*7))\n")
        terminal.wait_for(b"seen-42")
        terminal.type(b"exit\n")
        assert terminal.close() == 0, terminal.seen
    finally:
        terminal.process.kill()
    id_ = re.search(rb"\bi[0-9a-z]{20}\b", terminal.seen)
    if id_ and VERSION < (2, 16):
        api("DELETE", f"/sandboxes/{id_[0].decode()}")


@test("sandbox connect", "opens a terminal in one that is there, and leaves it there")
def _():
    with sandbox() as id_:
        terminal = Terminal("sandbox", "connect", id_)
        try:
            terminal.wait_for(b"$ ")
            terminal.type(b"echo seen-$((6*7)) > /tmp/seen; exit\n")
            assert terminal.close() == 0, terminal.seen
        finally:
            terminal.process.kill()
        assert api("GET", f"/sandboxes/{id_}")["state"] == "running"
        if VERSION >= (2, 8):
            assert e2b("sandbox", "exec", id_, "cat /tmp/seen").stdout == b"seen-42\n"
    assert e2b("sandbox", "connect", "i00000000000000000000", code=None).returncode != 0


@test("sandbox snapshot", "made, listed, used, deleted")
def _():
    if b"snapshot" not in e2b("sandbox", "--help").stdout:
        raise Skip("this line has no such command")
    name = f"cli-{os.getpid()}"
    with sandbox() as id_:
        e2b("sandbox", "snapshot", "create", id_, "--name", name)
        assert name.encode() in e2b("sandbox", "snapshot", "list", id_).stdout
        listed = json.loads(e2b("sandbox", "snapshot", "list", "--format", "json").stdout)
        (snapshot,) = [one["snapshotId"] for one in listed if name in one["snapshotId"]]
        made = api("POST", "/v2/sandboxes", {"templateID": snapshot, "timeout": 60})["sandboxID"]
        api("DELETE", f"/sandboxes/{made}")
        e2b("sandbox", "snapshot", "delete", snapshot)
        assert name.encode() not in e2b("sandbox", "snapshot", "list").stdout


@test("sandbox logs", "prints what happened")
def _():
    with sandbox() as id_:
        out = e2b("sandbox", "logs", id_, "--format", "json").stdout
        assert b"sandbox.created" in out, out


@test("sandbox logs with --follow", "goes on until the sandbox is gone")
def _():
    with sandbox() as id_:
        following = subprocess.Popen([os.environ["ISOLA_NODE"], PROGRAM, "sandbox", "logs", "--follow", "--format", "json", id_],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     env={**os.environ, "HOME": HOME, "NO_COLOR": "1"})
        try:
            seen = b""
            while b"sandbox.created" not in seen:
                line = following.stdout.readline()
                assert line, seen
                seen += line
            api("DELETE", f"/sandboxes/{id_}")
            rest, _ = following.communicate(timeout=60)
            assert following.returncode == 0, seen + rest
        finally:
            following.kill()
            following.wait()


@test("sandbox metrics", "prints a sample")
def _():
    with sandbox() as id_:
        out = e2b("sandbox", "metrics", id_, "--format", "json").stdout
        assert b"cpu" in out.lower(), out


@test(["sandbox pause", "sandbox resume"], "keeps it, and resume brings it back")
def _():
    since(2, 8)
    with sandbox() as id_:
        e2b("sandbox", "pause", id_)
        assert api("GET", f"/sandboxes/{id_}")["state"] == "paused"
        e2b("sandbox", "resume", id_)
        assert api("GET", f"/sandboxes/{id_}")["state"] == "running"
        assert e2b("sandbox", "exec", id_, "echo back").stdout == b"back\n"


@test(["sandbox pause", "sandbox resume", "sandbox metrics", "sandbox logs", "sandbox exec"], "of one that is not there fails, and names it")
def _():
    since(2, 8)
    nowhere = "i00000000000000000000"
    for words in (("pause", nowhere), ("resume", nowhere), ("metrics", nowhere), ("logs", nowhere), ("exec", nowhere, "true")):
        done = e2b("sandbox", *words, code=None)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and nowhere.encode() in said and re.search(rb"not found|wasn't found|doesn't exist", said), (words, done)


@test("template list", "has the templates of this machine")
def _():
    done = e2b("template", "list", "--format", "json", code=None)
    if done.returncode and b"log" in done.stdout + done.stderr and VERSION < (2, 16):
        raise Skip("this line wants a login in a browser for it")
    assert done.returncode == 0, done
    assert TEMPLATE in [name for one in json.loads(done.stdout) for name in one["aliases"]], done


@test("template create", "builds a Dockerfile")
def _():
    if b"build Dockerfile" not in e2b("template", "create", "--help", code=None).stdout.replace(b"\n", b" "):
        raise Skip("this line builds with Docker")
    if TEMPLATE == "minimal":
        raise Skip("there is no template base")
    name = f"cli-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/e2b.Dockerfile", "w") as file:
            file.write("FROM e2bdev/base\nCOPY hello /home/user/hello\nRUN echo built > /home/user/mark\n")
        with open(folder + "/hello", "w") as file:
            file.write("from outside\n")
        done = e2b("template", "create", name, "--path", folder, code=None)
        if b"logged in" in done.stdout + done.stderr:
            raise Skip("this line wants a login in a browser for it")
        assert done.returncode == 0, done
    made = api("POST", "/v2/sandboxes", {"templateID": name, "timeout": 60})["sandboxID"]
    try:
        if VERSION >= (2, 8):
            assert e2b("sandbox", "exec", made, "cat hello mark").stdout == b"from outside\nbuilt\n"
    finally:
        api("DELETE", f"/sandboxes/{made}")
    e2b("template", "delete", name, "--yes", code=None)


@test("template delete", "what was built is gone")
def _():
    made = api("POST", "/v3/templates", {"name": f"cli-gone-{os.getpid()}"})
    done = e2b("template", "delete", made["templateID"], "--yes", code=None)
    if b"logged in" in done.stdout + done.stderr:
        raise Skip("this line wants a login in a browser for it")
    assert done.returncode == 0, done
    assert made["templateID"] not in [one["templateID"] for one in api("GET", "/templates")]


@test(["template publish", "template unpublish"], "opens a template to other projects, and closes it again")
def _():
    name = f"published-{os.getpid()}"
    made = api("POST", "/v3/templates", {"name": name})
    api("POST", f"/v2/templates/{made['templateID']}/builds/{made['buildID']}", {"fromTemplate": TEMPLATE, "steps": []})
    eventually(lambda: api("GET", f"/templates/{made['templateID']}/builds/{made['buildID']}/status")["status"] == "ready", "the build", 60)
    public = lambda: api("GET", f"/templates/aliases/{name}")["public"]  # noqa: E731
    for command, wanted in (("publish", True), ("unpublish", False)):
        done = e2b("template", command, made["templateID"], "--yes", code=None)
        if b"logged in" in done.stdout + done.stderr:
            raise Skip("this line wants a login in a browser for it")
        assert done.returncode == 0, done
        assert public() is wanted, done


@test("template init", "needs no server")
def _():
    if b"--language" not in e2b("template", "init", "--help").stdout:
        raise Skip("this line asks on a terminal")
    with tempfile.TemporaryDirectory() as folder:
        e2b("template", "init", "--path", folder, "--name", "mine", "--language", "python-sync")
        assert os.listdir(folder)


@test("template migrate", "needs no server")
def _():
    if b"migrate" not in e2b("template", "--help").stdout:
        raise Skip("this line has no such command")
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/e2b.Dockerfile", "w") as file:
            file.write("FROM e2bdev/base\nRUN true\n")
        with open(folder + "/e2b.toml", "w") as file:
            file.write('template_id = "x"\ntemplate_name = "mine"\ndockerfile = "e2b.Dockerfile"\n')
        e2b("template", "migrate", "--path", folder, "--language", "python-sync")
        assert len(os.listdir(folder)) > 2


@test("auth logout", "needs no server")
def _():
    assert b"ogged" in e2b("auth", "logout").stdout


@test("auth info", "needs no server")
def _():
    assert b"Not logged in" in e2b("auth", "info").stdout


class Issuer:
    """Stands for E2B's website: gives our key as its token."""

    def __init__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                text = json.dumps({"access_token": os.environ["E2B_API_KEY"]}).encode()
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Kept(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None  # it leads to E2B's website


@test(["auth login", "auth configure"], "with a key of this server as the token",
      partly="the page that asks who you are is E2B's website; `E2B_API_KEY` needs neither")
def _():
    since(2, 16)
    issuer = Issuer()
    with tempfile.TemporaryDirectory() as home:
        changed = {"HOME": home, "PATH": home}  # no browser
        login = Terminal("auth", "login", **changed)
        try:
            login.wait_for(b"next=")
            login.wait_for(b"cliVersion")
            (address,) = set(re.findall(rb"next=([^&\s]+)", login.seen))
            query = {"email": "ada@example.org", "accessToken": os.environ["E2B_API_KEY"], "refreshToken": "r", "tokenEndpoint": issuer.url,
                     "revokeEndpoint": issuer.url, "clientId": "c"}
            try:
                urllib.request.build_opener(Kept).open(urllib.parse.unquote(address.decode()) + "/?" + urllib.parse.urlencode(query), timeout=30)
            except urllib.error.HTTPError as answer:
                assert answer.code == 302, answer
            login.wait_for(b"Logged in as")
            assert login.close() == 0, login.seen
        finally:
            login.process.kill()
        configure = Terminal("auth", "configure", **changed)
        try:
            configure.wait_for(b"default")  # the only project that the key is of
            configure.type(b"\r")
            assert configure.close() == 0, configure.seen
        finally:
            configure.process.kill()
        assert b"default" in e2b_at(home, "auth", "info").stdout
        assert b"Logged out" in e2b_at(home, "auth", "logout").stdout


def e2b_at(home, *words):
    return subprocess.run([os.environ["ISOLA_NODE"], PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True,
                          env={**os.environ, "HOME": home, "NO_COLOR": "1"})


def commands():
    """What the program says that it has."""
    for group in ("auth", "template", "sandbox"):
        listing = e2b(group, "--help").stdout.decode().split("Commands:")[1]
        for name in re.findall(r"^  (\w+)(?:\|\w+)?(?: |$)", listing, re.M):
            if name != "help":
                yield f"{group} {name}"


forgotten(lambda tested: sorted(set(commands()) - tested))
run_all()
