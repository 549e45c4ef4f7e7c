"""A test names the public method that it is about; results go out as one JSON object per line.

    @test("files.read", "gives back what was written")
    def _(): ...

One that is about several names them all: @test(["Volume.create", "Volume.list"], "a life of one"). `absent` and `partly`
say why a method is not there, or less of it than E2B has; the matrix shows that.
"""
import contextlib
import json
import os
import sys
import time
import traceback

TESTS = []
FILTER = os.environ.get("ISOLA_FILTER", "")


class Skip(Exception):
    pass


def test(method, name, absent=None, partly=None):
    def keep(body):
        TESTS.append(([method] if isinstance(method, str) else method, name, {"absent": absent, "partly": partly}, body))
        return body

    return keep


def forgotten(untested):
    """Says which methods no test is about."""
    if not FILTER:
        for method in untested({method for methods, *_ in TESTS for method in methods}):
            print(json.dumps({"method": method, "test": "is tested", "result": "failed", "why": "no test is about it", "ms": 0}))


def run_all(known=lambda name: True):
    """known: whether this line has an exception of that name. One that it lacks has no result here, whatever was raised instead."""
    for methods, name, marks, body in TESTS:
        if FILTER and FILTER not in name and not any(FILTER in method for method in methods):
            continue
        line = {"test": name, **marks}
        lacks = [method for method in methods if method.endswith("Exception") and not known(method)]
        methods = [method for method in methods if method not in lacks]
        for at, method in enumerate(lacks):
            print(json.dumps({"method": method, **line, "result": "skipped", "why": f"this line has no {method}", "ms": 0,
                              "again": bool(methods) or at > 0}), flush=True)
        if not methods:
            continue
        begun = time.monotonic()
        try:
            body()
            line["result"] = "passed"
        except Skip as why:
            line["result"], line["why"] = "skipped", str(why)
        except BaseException:  # pylint: disable=broad-except
            line["result"], line["why"] = "failed", traceback.format_exc()[-2000:]
        line["ms"] = round((time.monotonic() - begun) * 1000)
        for at, method in enumerate(methods):
            print(json.dumps({"method": method, **line, "again": at > 0}), flush=True)


@contextlib.contextmanager
def raises(type_, *words, exactly=False):
    """exactly: this class and none below it."""
    try:
        yield
    except type_ as error:
        assert not exactly or type(error) is type_, f"{type(error).__name__}: {error} is below {type_.__name__}"
        for word in words:
            assert word in str(error), f"{word!r} is not in {error!r}"
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__}: {error} is no {type_}") from error
    else:
        raise AssertionError(f"nothing was raised, {type_} was expected")


def eventually(look, what, seconds=15):
    until = time.monotonic() + seconds
    while True:
        if value := look():
            return value
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)
