"""What E2B has and this server does not yet: the call fails, with the type that users catch and a word about why."""
import e2b
from flavour import ASYNC, TEMPLATE, Sandbox, _settle
from harness import Skip, raises, test

NOT_YET = "not available"


def needs(name):
    if not hasattr(e2b.Sandbox, name):
        raise Skip(f"this line has no {name}")


@test("Sandbox.delete_snapshot", "says False for what is not there")
def _():
    needs("delete_snapshot")
    assert Sandbox.delete_snapshot("nothing:default") is False


@test("Template.exists", "knows what is there")
def _():
    kind = getattr(e2b, "AsyncTemplate" if ASYNC else "Template", None)
    if not hasattr(kind, "exists"):
        raise Skip("this line has no such call")
    assert _settle(kind.exists(TEMPLATE)) is True
    assert _settle(kind.exists("no-such-template")) is False


@test("Secret", "says that it is not there yet", absent="the vault is not built yet")
def _():
    kind = getattr(e2b, "AsyncSecret" if ASYNC else "Secret", None)
    if kind is None:
        raise Skip("this line has no secrets")
    with raises(Exception, NOT_YET):
        _settle(kind.create("x", "y"))
