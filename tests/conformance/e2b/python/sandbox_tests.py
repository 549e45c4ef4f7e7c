import datetime
import os
import random
import threading
import urllib.error
import urllib.request

import e2b
from flavour import ASYNC, NEWEST, OUTSIDE, TEMPLATE, VERSION, Face, NotFound, Sandbox, _settle, box, finds, named, own, reaches, using
from harness import Skip, eventually, raises, test

NOWHERE = "i00000000000000000000"
Gone = named("SandboxNotFoundException", "NotFoundException")


@test("Sandbox.create", "makes a sandbox that answers")
def _():
    with using() as sandbox:
        assert sandbox.sandbox_id.startswith("i")
        assert sandbox.commands.run("echo hi").stdout == "hi\n"


@test("Sandbox.create", "keeps metadata and environment")
def _():
    with using(metadata={"who": "ada & co=1", "ü": "ß"}, envs={"COLOUR": "blue"}) as sandbox:
        assert sandbox.get_info().metadata == {"who": "ada & co=1", "ü": "ß"}
        assert sandbox.commands.run("echo $COLOUR").stdout == "blue\n"


@test("Sandbox.create", "an unknown template is an error with its name")
def _():
    with raises(e2b.SandboxException, "no-such-template"):
        Sandbox.create("no-such-template")


@test("Sandbox.create", "a wrong key is an AuthenticationException")
def _():
    with raises(e2b.AuthenticationException):
        Sandbox.create(TEMPLATE, api_key="e2b_" + "0" * 40)


@test("Sandbox.create", "over the project limit is a RateLimitException")
def _():
    key = os.environ["ISOLA_LIMITED_KEY"]
    first = Sandbox.create(TEMPLATE, api_key=key)
    try:
        with raises(e2b.RateLimitException):
            Sandbox.create(TEMPLATE, api_key=key)
    finally:
        first.kill()


@test("Sandbox.create", "ends at its timeout")
def _():
    sandbox = own(timeout=1)
    eventually(lambda: not sandbox.is_running(), "its end")


def needs_outside():
    if not OUTSIDE or TEMPLATE == "minimal":
        raise Skip("the template has no client for TLS")


@test("Sandbox.create", "without internet nothing outside is reached but what is allowed")
def _():
    needs_outside()
    with using() as sandbox:
        assert finds(sandbox)
    with using(allow_internet_access=False) as sandbox:
        assert not finds(sandbox)
        assert not reaches(sandbox)
    with using(allow_internet_access=False, network={"allow_out": OUTSIDE}) as sandbox:
        assert reaches(sandbox)


@test("E2B", "a client with settings of its own")
def _():
    if not hasattr(e2b, "E2B"):
        raise Skip("this line has no clients")
    client = e2b.E2B(api_key=os.environ["E2B_API_KEY"])
    Bound, Templates = (client.AsyncSandbox, client.AsyncTemplate) if ASYNC else (client.Sandbox, client.Template)
    sandbox = _settle(Bound.create(TEMPLATE, timeout=60))
    sandbox = Face(sandbox) if ASYNC and not isinstance(sandbox, Face) else sandbox
    try:
        assert sandbox.commands.run("echo hi").stdout == "hi\n"
        assert _settle(Templates.exists(TEMPLATE)) is True
    finally:
        sandbox.kill()
    nobody = e2b.E2B(api_key="e2b_" + "0" * 40)
    with raises(e2b.AuthenticationException):
        _settle((nobody.AsyncSandbox if ASYNC else nobody.Sandbox).create(TEMPLATE))


@test("Sandbox.connect", "joins a running sandbox, and extends only")
def _():
    with using(timeout=60) as sandbox:
        sandbox.files.write("mark", "x")
        before = sandbox.get_info().end_at
        other = Sandbox.connect(sandbox.sandbox_id, timeout=5)
        assert other.files.read("mark") == "x"
        assert sandbox.get_info().end_at == before
        Sandbox.connect(sandbox.sandbox_id, timeout=600)
        assert sandbox.get_info().end_at > before


@test("Sandbox.connect", "one that is not there is a not-found exception")
def _():
    with raises(NotFound):
        Sandbox.connect(NOWHERE)


@test(["Sandbox.list", "SandboxPaginator"], "has the running ones, newest first, page by page")
def _():
    mark = {"list & co": str(random.random())}
    made = [own(metadata=mark) for _ in range(3)]
    try:
        pages = Sandbox.list(query=e2b.SandboxQuery(metadata=mark), limit=2)
        first = pages.next_items()
        assert len(first) == 2 and pages.has_next
        second = pages.next_items()
        assert len(second) == 1 and not pages.has_next
        assert [one.sandbox_id for one in first + second] == [one.sandbox_id for one in reversed(made)]
    finally:
        for one in made:
            one.kill()


@test("Sandbox.list", "finds by time, in either order")
def _():
    if VERSION < (2, 45):
        raise Skip("this line cannot ask for it")
    with using() as sandbox:
        started = sandbox.get_info().started_at
        query = e2b.SandboxQuery(started_after=started, template=TEMPLATE)
        found = Sandbox.list(query=query, order="asc").next_items()
        assert found[0].sandbox_id == sandbox.sandbox_id


@test("Sandbox.get_info", "says what the sandbox is")
def _():
    info = Sandbox.get_info(box().sandbox_id)
    assert info.sandbox_id == box().sandbox_id
    assert info.started_at < info.end_at and info.started_at.tzinfo is not None
    assert info.cpu_count >= 1 and info.memory_mb >= 64


@test("Sandbox.get_info", "one that is not there is a not-found exception")
def _():
    with raises(Gone):
        Sandbox.get_info(NOWHERE)


@test("Sandbox.kill", "ends it, once")
def _():
    sandbox = own()
    assert sandbox.is_running() is True
    assert Sandbox.kill(sandbox.sandbox_id) is True
    assert Sandbox.kill(sandbox.sandbox_id) is False
    assert sandbox.is_running() is False


@test("Sandbox.kill", "a command in progress fails with a TimeoutException")
def _():
    sandbox = own()
    seen = []

    def work():
        try:
            sandbox.commands.run("sleep 100")
        except Exception as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: sandbox.commands.list(), "the command")
    sandbox.kill()
    thread.join(20)
    assert seen, "it did not end"
    if VERSION >= (2, 45):
        assert isinstance(seen[0], e2b.TimeoutException), repr(seen[0])


@test("Sandbox.kill", "later calls fail with a TimeoutException")
def _():
    sandbox = own()
    sandbox.kill()
    gone = named("SandboxNotRunningException", "TimeoutException")
    with raises(gone, exactly=NEWEST):
        sandbox.files.read("x")
    with raises(gone, exactly=NEWEST):
        sandbox.commands.run("true")


@test("Sandbox.set_timeout", "moves the end, also to an earlier time")
def _():
    sandbox = own(timeout=600)
    sandbox.set_timeout(20)
    left = sandbox.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)
    assert 5 < left.total_seconds() < 25, left
    Sandbox.set_timeout(sandbox.sandbox_id, 1)
    eventually(lambda: not sandbox.is_running(), "its end")
    with raises(NotFound):
        Sandbox.set_timeout(NOWHERE, 5)


@test("Sandbox.is_running", "is true while it runs")
def _():
    assert box().is_running() is True


@test("Sandbox.get_metrics", "has a sample", partly="a history of half an hour, from the first question on")
def _():
    sample = box().get_metrics()[0]
    assert sample.cpu_count >= 1 and sample.mem_total > 0 and sample.disk_total > 0


@test("Sandbox.update_network", "closes and opens what is outside")
def _():
    if not hasattr(e2b.Sandbox, "update_network"):
        raise Skip("this line has no such call")
    needs_outside()
    with using(network={"deny_out": [e2b.ALL_TRAFFIC], "allow_out": OUTSIDE}) as sandbox:
        assert reaches(sandbox)
        sandbox.update_network({"deny_out": [e2b.ALL_TRAFFIC]})
        assert not reaches(sandbox)
        assert sandbox.get_info().network["deny_out"] == [e2b.ALL_TRAFFIC]
        sandbox.update_network({"deny_out": [e2b.ALL_TRAFFIC], "allow_out": OUTSIDE})
        assert reaches(sandbox)
        with raises(e2b.SandboxException, "400"):
            sandbox.update_network({"deny_out": ["not a network"]})
        assert reaches(sandbox)


@test("Sandbox.update_network", "says of the internet what holds")
def _():
    if not hasattr(e2b.Sandbox, "update_network"):
        raise Skip("this line has no such call")
    needs_outside()
    with using(allow_internet_access=False) as sandbox:
        assert sandbox.get_info().allow_internet_access is False
        assert not finds(sandbox)
        sandbox.update_network({})
        assert finds(sandbox)
        assert sandbox.get_info().allow_internet_access is not False
        sandbox.update_network({"allow_internet_access": False})
        assert not finds(sandbox)
        assert sandbox.get_info().allow_internet_access is False


@test("Sandbox.get_host", "names port and sandbox")
def _():
    assert box().get_host(8123).startswith(f"8123-{box().sandbox_id}.")


@test("Sandbox.download_url", "is good for whoever has it, as long as it says")
def _():
    sandbox = box()
    sandbox.files.write("signed.txt", "for you")
    url = sandbox.download_url("signed.txt", use_signature_expiration=60)
    assert urllib.request.urlopen(url).read() == b"for you"
    with raises(urllib.error.HTTPError, "401"):
        urllib.request.urlopen(url.replace("signed.txt", "other.txt"))
    with raises(urllib.error.HTTPError, "401"):
        urllib.request.urlopen(sandbox.download_url("signed.txt", use_signature_expiration=-60))


@test("Sandbox.upload_url", "takes a form with a file")
def _():
    sandbox = box()
    url = sandbox.upload_url("up.txt", use_signature_expiration=60)
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="up.txt"\r\n\r\nsent\r\n--b--\r\n'
    request = urllib.request.Request(url, form, {"Content-Type": "multipart/form-data; boundary=b"})
    assert urllib.request.urlopen(request).status == 200
    assert sandbox.files.read("up.txt") == "sent"


@test("Sandbox as a context manager", "ends it")
def _():
    if ASYNC:
        raise Skip("the asynchronous form has another syntax")
    with Sandbox.create(TEMPLATE, timeout=60) as sandbox:
        assert sandbox.is_running()
    assert not sandbox.is_running()
