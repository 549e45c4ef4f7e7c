"""Options of calls that are tested elsewhere without them: each through the SDK, with what it changes on the server."""
import contextlib
import datetime
import inspect
import itertools
import os
import random
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import e2b
from flavour import ASYNC, TEMPLATE, VERSION, Sandbox, _settle, box, fresh, named, own, using
from harness import Skip, eventually, raises, test

Template = getattr(e2b, "AsyncTemplate" if ASYNC else "Template", None)
Volume = getattr(e2b, "AsyncVolume" if ASYNC else "Volume", None)
NUMBERS = itertools.count()


def needs(*version):
    if VERSION < version:
        raise Skip("this line has no such option")


# ---- the network of a sandbox ------------------------------------------------------------------------------------------

HOST = """import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = self.headers['Host'].encode()
        self.send_response(200); self.send_header('Content-Length', str(len(said))); self.end_headers(); self.wfile.write(said)
http.server.HTTPServer(('127.0.0.1', %d), Handler).serve_forever()
"""


def serve(sandbox, port):
    """A service inside, asked through the address that all sandboxes share: says which host it was asked as."""
    if TEMPLATE == "minimal":
        raise Skip("the template has no http.server")
    sandbox.files.write("/tmp/host.py", HOST % port)
    sandbox.commands.run("exec python3 /tmp/host.py", background=True)

    def ask(token=None):
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port), **({"e2b-traffic-access-token": token} if token else {})}
        try:
            with urllib.request.urlopen(urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/", headers=headers)) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code

    eventually(lambda: isinstance(ask(getattr(sandbox, "traffic_access_token", None)), str), "the service")
    return ask


@test("Sandbox.create with network.mask_request_host", "is what a service inside is asked as")
def _():
    with using(network={"mask_request_host": "masked.example:${PORT}"}) as sandbox:
        assert serve(sandbox, 8126)() == "masked.example:8126"


@test("Sandbox.create with network.allow_public_traffic", "False: a service inside wants the token")
def _():
    with using(network={"allow_public_traffic": False}) as sandbox:
        ask = serve(sandbox, 8127)
        assert ask() == 403 and ask("another") == 403
        assert isinstance(ask(sandbox.traffic_access_token), str)


def refused(first, field, value):
    def body():
        needs(*first)
        with raises(e2b.SandboxException, "501", field):
            own(network={"deny_out": ["0.0.0.0/0"], **value})
    return body


for name, first, field, value, why in (
        ("egress_proxy", (2, 45), "egressProxy", {"egress_proxy": {"address": "proxy.example:1080"}}, "this server passes traffic on to no other proxy"),
        ("dns_servers", (2, 63), "dnsServers", {"dns_servers": ["1.1.1.1"]}, "names are looked up by this server's gate")):
    test(f"Sandbox.create with network.{name}", "says that it is not there", absent=why)(refused(first, field, value))


SERVE_TLS = """
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = str(isinstance(self.connection, ssl.SSLSocket)).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(said))); self.end_headers(); self.wfile.write(said)
server = http.server.HTTPServer(('127.0.0.1', 8443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('/tmp/cert.pem', '/tmp/key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@test("Sandbox.create with network.https_ports", "a port that speaks TLS is asked with TLS, whoever signed its certificate")
def _():
    needs(2, 60)
    if TEMPLATE == "minimal":
        raise Skip("the template has no Python")
    with using(network={"https_ports": [8443]}) as sandbox:
        sandbox.commands.run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /tmp/key.pem -out /tmp/cert.pem -days 1 -subj /CN=x")
        sandbox.files.write("/tmp/serve.py", SERVE_TLS)
        sandbox.commands.run("exec python3 /tmp/serve.py", background=True)

        def ask():
            request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/", headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8443"})
            try:
                return urllib.request.urlopen(request).read()
            except urllib.error.HTTPError:
                return None

        assert eventually(ask, "the answer over TLS") == b"True"


# ---- making, pausing, keeping ------------------------------------------------------------------------------------------


def takes(call, option):
    if option not in inspect.signature(getattr(e2b.Sandbox, call, None) or (lambda: None)).parameters:
        raise Skip("this line has no such option")


@test("Sandbox.create with idempotency_key", "there is one sandbox under a key, and another body is a conflict")
def _():
    takes("create", "idempotency_key")
    key = f"py-{os.getpid()}-{random.randrange(1 << 30)}" + "x" * 220  # of at most 255
    with using(idempotency_key=key, metadata={"a": "1"}) as first:
        assert own(idempotency_key=key, metadata={"a": "1"}).sandbox_id == first.sandbox_id
        with raises(e2b.SandboxException, "409"):
            own(idempotency_key=key, metadata={"a": "2"})


def left(sandbox):
    """What a restart leaves behind, and what it does not."""
    return sandbox.commands.run("test -e /dev/shm/mark && echo memory; cat /home/user/note").stdout.split()


def marked(sandbox):
    sandbox.files.write("/home/user/note", "files")
    sandbox.commands.run("touch /dev/shm/mark")


@test("Sandbox.pause with mode", "full keeps what runs, filesystem the files alone")
def _():
    takes("pause", "mode")
    for mode, kept in (("full", ["memory", "files"]), ("filesystem", ["files"])):
        with using() as sandbox:
            marked(sandbox)
            sandbox.pause(mode=mode)
            sandbox.connect(timeout=60)
            assert left(sandbox) == kept, mode


@test("Sandbox.create_snapshot with mode", "full keeps what runs, filesystem the files alone")
def _():
    takes("create_snapshot", "mode")
    for mode, kept in (("full", ["memory", "files"]), ("filesystem", ["files"])):
        with using() as sandbox:
            marked(sandbox)
            snapshot = sandbox.create_snapshot(mode=mode).snapshot_id
        try:
            made = Sandbox.create(snapshot, timeout=60)
            assert left(made) == kept, mode
            made.kill()
        finally:
            Sandbox.delete_snapshot(snapshot)


@test("Sandbox.create with on_timeout and mode", "filesystem: a pause without memory")
def _():
    takes("pause", "mode")
    with using(lifecycle={"on_timeout": {"action": "pause", "mode": "filesystem"}}) as sandbox:
        marked(sandbox)
        sandbox.set_timeout(1)
        eventually(lambda: not sandbox.is_running(), "its pause")
        sandbox.connect(timeout=60)
        assert left(sandbox) == ["files"]


# ---- lists and times ----------------------------------------------------------------------------------------------------


@test("Sandbox.list with next_token", "goes on where another list was")
def _():
    needs(2, 45)
    query = e2b.SandboxQuery(metadata={"token": str(random.random())})
    made = [own(metadata=query.metadata) for _ in range(3)]
    try:
        first = Sandbox.list(query=query, limit=1, order="asc")
        ids = [one.sandbox_id for one in first.next_items()]
        ids += [one.sandbox_id for one in Sandbox.list(query=query, order="asc", next_token=first.next_token).next_items()]
        assert ids == [one.sandbox_id for one in made], ids
        with raises(e2b.SandboxException, "400"):
            Sandbox.list(next_token="nonsense").next_items()
    finally:
        for one in made:
            one.kill()


@test(["Sandbox.list_snapshots with name", "Sandbox.list_snapshots with limit", "Sandbox.list_snapshots with next_token"], "has those that were asked for")
def _():
    needs(2, 45)
    name = f"listed-py{os.getpid()}"
    with using() as sandbox:
        made = [sandbox.create_snapshot(name=name).snapshot_id, sandbox.create_snapshot().snapshot_id]
        try:
            assert [one.snapshot_id for one in Sandbox.list_snapshots(name=name).next_items()] == made[:1]
            assert Sandbox.list_snapshots(name="nothing-is-called-that").next_items() == []
            first = sandbox.list_snapshots(limit=1)
            ids = [one.snapshot_id for one in first.next_items()]
            assert len(ids) == 1 and first.has_next and first.next_token
            ids += [one.snapshot_id for one in sandbox.list_snapshots(next_token=first.next_token).next_items()]
            assert sorted(ids) == sorted(made), ids
        finally:
            for one in made:
                Sandbox.delete_snapshot(one)


@test("Sandbox.get_metrics with start and end", "has what lies between them", partly="a history of half an hour, from the first question on")
def _():
    def ago(seconds):
        return datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=seconds)

    box().get_metrics()
    eventually(lambda: len(box().get_metrics(start=ago(60))) > 1, "a second step", 20)
    assert len(box().get_metrics(start=ago(60), end=ago(-60))) > 1
    assert box().get_metrics(start=ago(7200), end=ago(3600)) == []
    assert box().get_metrics(start=ago(-60)) == []
    with raises(e2b.SandboxException, "400"):
        box().get_metrics(start=ago(60), end=ago(120))


@test(["Sandbox.create with request_timeout", "commands.run with request_timeout", "files.write with request_timeout"], "bounds the request, not the work")
def _():
    with using(request_timeout=30) as sandbox:
        assert sandbox.commands.run("sleep 6; echo done", request_timeout=5).stdout == "done\n"
        sandbox.files.write("timed", "x", request_timeout=10)
        assert sandbox.files.read("timed", request_timeout=10) == "x"


# ---- files --------------------------------------------------------------------------------------------------------------


def watch(folder, **options):
    """What a watch tells of a write, both flavours of it."""
    seen = []
    box().files.make_dir(folder)
    if ASYNC:
        handle = box().files.watch_dir(folder, on_event=seen.append, **options)
    else:
        handle = box().files.watch_dir(folder, **options)
    box().files.write(folder + "/a", "four")

    def written():
        if not ASYNC:
            seen.extend(handle.get_new_events())
        return next((event for event in seen if event.name == "a" and event.type == e2b.FilesystemEventType.WRITE), None)

    try:
        return eventually(written, "the write")
    finally:
        handle.stop()


@test("files.watch_dir with include_entry", "has what was written")
def _():
    needs(2, 45)
    folder = fresh()
    event = watch(folder, include_entry=True)
    assert (event.entry.path, event.entry.size) == (folder + "/a", 4), event


@test("files.watch_dir with allow_network_mounts", "is a watch like any other where there is no such mount")
def _():
    needs(2, 45)
    assert watch(fresh(), allow_network_mounts=True).name == "a"


@test("get_signature", "makes addresses that the server believes")
def _():
    box().files.write("by-hand.txt", "for you")
    url = urllib.parse.urlsplit(box().download_url("by-hand.txt", user="user", use_signature_expiration=60))
    inner = box().inner if ASYNC else box()
    token = getattr(inner, "envd_access_token", None) or getattr(inner, "_envd_access_token")

    def ask(operation):
        made = e2b.get_signature("by-hand.txt", operation, "user", token, 60)
        query = {**dict(urllib.parse.parse_qsl(url.query)), "signature": made["signature"], "signature_expiration": made["expiration"]}
        return urllib.request.urlopen(url._replace(query=urllib.parse.urlencode(query)).geturl()).read()

    assert ask("read") == b"for you"
    with raises(urllib.error.HTTPError, "401"):
        ask("write")


# ---- volumes ------------------------------------------------------------------------------------------------------------


@test(["volume.write_file with uid, gid, mode and force", "volume.make_dir with force"], "are what the files have")
def _():
    if Volume is None:
        raise Skip("this line has no volumes")
    made = _settle(Volume.create(f"options-py{os.getpid()}"))
    try:
        _settle(made.make_dir("/a/b/c", force=True, uid=5, gid=6, mode=0o750))
        folder = _settle(made.get_info("/a/b/c"))
        assert (folder.uid, folder.gid, folder.mode & 0o777) == (5, 6, 0o750), folder
        with raises(named("VolumePathNotFoundException", "NotFoundException")):
            _settle(made.make_dir("/p/q"))
        _settle(made.write_file("/a/file", "one", uid=7, gid=8, mode=0o640))
        file = _settle(made.get_info("/a/file"))
        assert (file.uid, file.gid, file.mode & 0o777) == (7, 8, 0o640), file
        changed = _settle(made.update_metadata("/a/file", gid=9))
        assert (changed.uid, changed.gid) == (7, 9), changed
        _settle(made.write_file("/a/file", "two", force=True))
        assert _settle(made.read_file("/a/file")) == "two"
    finally:
        _settle(Volume.destroy(made.volume_id))


# ---- builds -------------------------------------------------------------------------------------------------------------


def unused():
    if Template is None:
        raise Skip("this line has no templates")
    return f"options-py-{os.getpid()}-{next(NUMBERS)}"


def build(steps, name, **options):
    return _settle(Template.build(steps, alias=name, **options))


@contextlib.contextmanager
def started(name):
    sandbox = Sandbox.create(name, timeout=60)
    try:
        yield sandbox
    finally:
        sandbox.kill()


def said(name, line):
    with started(name) as sandbox:
        return sandbox.commands.run(line).stdout


@test(["Template.build with cpu_count", "Template.build with memory_mb"], "are what its sandboxes have")
def _():
    name = unused()
    build(Template().from_template(TEMPLATE).run_cmd("true"), name, cpu_count=1, memory_mb=384)
    with started(name) as sandbox:
        info = sandbox.get_info()
        assert (info.cpu_count, info.memory_mb) == (1, 384), info


@test("Template.build with tags", "each means the build")
def _():
    needs(2, 45)
    name = unused()
    build(Template().from_template(TEMPLATE).run_cmd("echo tagged > /home/user/n"), name, tags=["v1", "stable"])
    for tag in ("v1", "stable"):
        assert said(f"{name}:{tag}", "cat n") == "tagged\n"


@test("Template.build with skip_cache", "runs again what was run")
def _():
    step = f"cat /proc/sys/kernel/random/uuid > /home/user/n # {unused()}"

    def result(**options):
        name = unused()
        build(Template().from_template(TEMPLATE).run_cmd(step), name, **options)
        return said(name, "cat n")

    first = result()
    assert result() == first
    assert result(skip_cache=True) != first


@test("Template.build with min_free_disk_mb", "is taken")
def _():
    needs(2, 60)
    name = unused()
    build(Template().from_template(TEMPLATE).run_cmd("true"), name, min_free_disk_mb=64)
    assert said(name, "echo hi") == "hi\n"


@test("Template with file_ignore_patterns", "leaves out what they mean")
def _():
    name = unused()
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/app")
        for one in ("kept.txt", "left.log"):
            with open(f"{folder}/app/{one}", "w") as file:
                file.write(one)
        steps = Template(file_context_path=folder, file_ignore_patterns=["**/*.log"]).from_template(TEMPLATE)
        build(steps.copy("app", "/home/user/app"), name)
    assert said(name, "ls app") == "kept.txt\n"


@test("Template.copy with force_upload", "sends again what is there")
def _():
    text = unused()
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/one", "w") as file:
            file.write(text)
        for options in ({}, {"force_upload": True}, {"force_upload": True}):
            name = unused()
            build(Template(file_context_path=folder).from_template(TEMPLATE).copy("one", "/home/user/one", **options), name)
            assert said(name, "cat one") == text


@test("Template.copy with resolve_symlinks", "a link is what it leads to, or a link")
def _():
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/app")
        with open(folder + "/app/real", "w") as file:
            file.write("real")
        os.symlink("real", folder + "/app/link")
        for resolve, kind in ((True, "regular file"), (False, "symbolic link")):
            name = unused()
            build(Template(file_context_path=folder).from_template(TEMPLATE).copy("app", "/home/user/app", resolve_symlinks=resolve), name)
            assert said(name, "stat -c %F app/link; cat app/link") == f"{kind}\nreal"
