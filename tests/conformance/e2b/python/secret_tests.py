"""Secrets, and rules that set them in requests on their way out: a program inside reaches a server that demands a key which is
nowhere inside. The server is run.py's (tests/server/demanding.py)."""
import contextlib
import hashlib
import itertools
import json
import os

import e2b
from flavour import ASYNC, TEMPLATE, Sandbox, _settle, own, using
from harness import Skip, raises, test

Secret = getattr(e2b, "AsyncSecret" if ASYNC else "Secret", None)
NAME, ADDRESS, KEY = (os.environ.get(f"ISOLA_OUTSIDE_{word}") for word in ("NAME", "ADDRESS", "KEY"))
NUMBERS = itertools.count()
FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode(), end="")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode(), end="")
except Exception as error:
    print("failed:", error, end="")"""


def fresh():
    return f"py{os.getpid()}-{next(NUMBERS)}"


def needs():
    if Secret is None:
        raise Skip("this line has no secrets")


@contextlib.contextmanager
def secret(value):
    needs()
    made = _settle(Secret.create(fresh(), value, metadata={"team": "a"}))
    try:
        yield made
    finally:
        _settle(Secret.destroy(made.secret_id))


@test(["Secret.create", "Secret.get_info", "Secret.exists", "Secret.destroy", "SecretNotFoundException"], "a life of one, by id and by name")
def _():
    with secret("hunter2") as made:
        assert (made.version, made.metadata) == (1, {"team": "a"}), made
        for word in (made.name, made.secret_id):
            assert _settle(Secret.get_info(word)) == made
        assert _settle(Secret.exists(made.name)) is True
        with raises(e2b.SecretException, "409"):
            _settle(Secret.create(made.name, "other"))
        assert _settle(Secret.destroy(made.name)) is True
        assert _settle(Secret.destroy(made.name)) is False
        assert _settle(Secret.exists(made.name)) is False
        with raises(e2b.SecretNotFoundException):
            _settle(Secret.get_info(made.secret_id))


@test("Secret.update", "is another version, and keeps what is not said")
def _():
    with secret("one") as made:
        changed = _settle(Secret.update(made.name, "two"))
        assert (changed.version, changed.metadata, changed.secret_id) == (2, {"team": "a"}, made.secret_id), changed
        assert _settle(Secret.update(made.secret_id, "three", metadata={"b": "c"})).metadata == {"b": "c"}
        with raises(e2b.SecretNotFoundException):
            _settle(Secret.update("nobody-has-this", "x"))


@test(["Secret.list", "SecretPaginator"], "gives pages, and no values")
def _():
    with secret("hunter-in-a-list") as first, secret("hunter-in-a-list") as second:
        pages, seen = Secret.list(limit=1), []
        while pages.has_next:
            seen += _settle(pages.next_items())
        assert {first.secret_id, second.secret_id} <= {one.secret_id for one in seen}
        assert "hunter-in-a-list" not in str(seen)


@test(["Secret.create", "SecretException"], "an empty value raises SecretException")
def _():
    needs()
    with raises(e2b.SecretException, "400"):
        _settle(Secret.create(fresh(), ""))


@test("Secret.create", "a key that may not raises")
def _():
    needs()
    with raises(e2b.SecretException, "403"):
        _settle(Secret.create(fresh(), "x", api_key=os.environ["ISOLA_LIMITED_KEY"]))
    with raises(e2b.AuthenticationException):
        _settle(Secret.list(api_key="e2b_" + "0" * 40).next_items())


@test("Secret.fill", "needs no server")
def _():
    if not hasattr(Secret, "fill"):
        raise Skip("this line has no such helper")
    assert Secret.fill("x") == "${e2b.secrets.x}"


# ---- rules -----------------------------------------------------------------------------------------------------------


def network(headers=None):
    rules = {NAME: [{"transform": {"headers": headers}}]} if headers else {}
    return {"allow_out": [NAME, ADDRESS], "deny_out": ["0.0.0.0/0"], "rules": rules}


def fetched(sandbox, path="/"):
    sandbox.files.write("/tmp/fetch.py", FETCH)
    return sandbox.commands.run(f"python3 /tmp/fetch.py 'https://{NAME}{path}'").stdout


def rules():
    if not hasattr(e2b.Sandbox, "update_network"):
        raise Skip("this line has no rules")
    if not NAME or TEMPLATE == "minimal":
        raise Skip("the template has no client for TLS")


@test("Sandbox.create with network.rules", "a secret goes out")
def _():
    rules()
    with secret(KEY) as made, using(network=network({"Authorization": "Bearer ${e2b.secrets.%s}" % made.name})) as sandbox:
        assert fetched(sandbox) == "welcome"


@test("Sandbox.create with network.rules", "a header that is written out")
def _():
    rules()
    with using(network=network({"Authorization": f"Bearer {KEY}", "X-Mine": "my own"})) as sandbox:
        assert fetched(sandbox) == "welcome"
        assert fetched(sandbox, "/hash?of=X-Mine") == hashlib.sha256(b"my own").hexdigest()
        assert KEY not in str(sandbox.get_info().network), "what is given is not given back"


@test("Sandbox.create with network.rules", "a secret that is not there raises")
def _():
    rules()
    with raises(e2b.SandboxException, "400"):
        own(network=network({"A": "${e2b.secrets.nobody-has-this}"}))


@test(["Secret.iam_token", "Sandbox.create with iam"], "a token that is made when a request needs it",
      partly="where the operator sets `issuer`; the subject is `project:P:sandbox:ID`, not a SPIFFE ID")
def _():
    rules()
    if not hasattr(Secret, "iam_token"):
        raise Skip("this line has no workload identity")
    tokens = {"aws": Secret.iam_token(audience="sts.example", token_type="JWT-SVID")}
    headers = {"Authorization": "Bearer ${e2b.identity.tokens.aws}"}
    with using(iam={"tokens": tokens}, network=network(headers)) as sandbox:
        claims = json.loads(fetched(sandbox, "/claims"))
        assert (claims["aud"], claims["sandbox"]) == ("sts.example", sandbox.sandbox_id), claims


@test("Sandbox.update_network", "sets rules and takes them away")
def _():
    rules()
    with using(network=network()) as sandbox:
        assert fetched(sandbox) != "welcome"
        sandbox.update_network(network({"Authorization": f"Bearer {KEY}"}))
        assert fetched(sandbox) == "welcome"
        sandbox.update_network(network())
        assert fetched(sandbox) != "welcome"
