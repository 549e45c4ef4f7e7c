"""The SDK under test: its blocking classes, or its asynchronous ones behind a face that blocks, so that the same tests
drive both. Nothing of the package is changed: every call below ends in one of its public methods."""
import asyncio
import inspect
import os
import threading

import e2b

ASYNC = os.environ.get("ISOLA_FLAVOUR") == "async"
VERSION = tuple(int(part) for part in __import__("importlib.metadata").metadata.version("e2b").split(".")[:3])
TEMPLATE = os.environ["ISOLA_TEMPLATE"]

_loop = asyncio.new_event_loop()
threading.Thread(target=_loop.run_forever, daemon=True).start()


def _settle(value):
    if inspect.isawaitable(value):
        async def wait():
            return await value
        value = asyncio.run_coroutine_threadsafe(wait(), _loop).result(120)
    return Face(value) if type(value).__module__.startswith("e2b.sandbox_async") else value


class Face:
    """What it shows blocks; what is behind it does not."""

    def __init__(self, inner):
        self.__dict__["inner"] = inner

    def __getattr__(self, name):
        value = getattr(self.inner, name)
        if callable(value) and not isinstance(value, type):
            return lambda *args, **kwargs: _settle(value(*args, **kwargs))
        return _settle(value)


def stream_input(module, pid, pieces):
    """Both flavours of it: pieces at once, or through a handle."""
    if not ASYNC:
        return module.stream_input(pid, pieces)

    async def feed():
        handle = module.inner.stream_input(pid)
        for piece in pieces:
            await handle.send(piece)
        await handle.close()

    return _settle(feed())


def has(module, name):
    return hasattr(module.inner if ASYNC else module, name)


NEWEST = VERSION >= (2, 63)
Sandbox = Face(e2b.AsyncSandbox) if ASYNC else e2b.Sandbox


def found(name):
    return getattr(e2b, name, None) or getattr(e2b.exceptions, name, None)


def named(name, otherwise):
    """An exception class that older lines do not have, and what they raise instead: the row of the class itself is skipped there."""
    return found(name) or getattr(e2b, otherwise)


NotFound = e2b.NotFoundException
_shared = None


def own(**options):
    options.setdefault("timeout", 60)
    return Sandbox.create(TEMPLATE, **options)


def box():
    global _shared
    if _shared is None:
        _shared = own(timeout=300)
    return _shared


def finish():
    if _shared is not None:
        _shared.kill()


class using:
    def __init__(self, **options):
        self.options = options

    def __enter__(self):
        self.sandbox = own(**self.options)
        return self.sandbox

    def __exit__(self, *_):
        self.sandbox.kill()


# A server outside (tests/server/demanding.py), which asks who it is. It lies on this machine, and its address is the sandbox's
# own inside: it is asked by its name, and a policy that opens it names both.
OUTSIDE_NAME = os.environ.get("ISOLA_OUTSIDE_NAME")
OUTSIDE = OUTSIDE_NAME and [OUTSIDE_NAME, os.environ["ISOLA_OUTSIDE_ADDRESS"]]


def reaches(sandbox):
    """Whether a program inside gets an answer from it."""
    ask = f"curl -sk --max-time 20 -o /dev/null -w '%{{http_code}}' https://{OUTSIDE_NAME}/ || true"
    return sandbox.commands.run(ask).stdout == "401"


def finds(sandbox):
    """Names are looked up where the internet is open, and only there: that a connection fails says nothing on a machine without it."""
    return OUTSIDE_NAME in sandbox.commands.run(f"getent hosts {OUTSIDE_NAME} || true").stdout


_count = 0


def fresh():
    global _count
    _count += 1
    return f"/home/user/p{os.getpid()}-{_count}"
