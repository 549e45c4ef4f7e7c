"""A test names the public method that it is about; results go out as one JSON object per line.

    @test("files.read", "gives back what was written")
    def _(box): ...
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


def test(method, name, absent=None):
    def keep(body):
        TESTS.append((method, name, absent, body))
        return body

    return keep


def run_all():
    for method, name, absent, body in TESTS:
        if FILTER and FILTER not in method and FILTER not in name:
            continue
        line = {"method": method, "test": name, "absent": absent}
        begun = time.monotonic()
        try:
            body()
            line["result"] = "passed"
        except Skip as why:
            line["result"], line["why"] = "skipped", str(why)
        except BaseException:  # pylint: disable=broad-except
            line["result"], line["why"] = "failed", traceback.format_exc()[-2000:]
        line["ms"] = round((time.monotonic() - begun) * 1000)
        print(json.dumps(line), flush=True)


@contextlib.contextmanager
def raises(type_, *words):
    try:
        yield
    except type_ as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error!r}"
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__}: {error} is no {type_.__name__}") from error
    else:
        raise AssertionError(f"nothing was raised, {type_.__name__} was expected")


def eventually(look, what, seconds=15):
    until = time.monotonic() + seconds
    while True:
        if value := look():
            return value
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)
