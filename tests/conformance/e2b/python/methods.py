"""The public methods, functions and exceptions of the package, out of its own modules: one that no test is about fails the run,
so that the matrix has a row for each of them."""
import importlib
import inspect
import json
import os

import e2b

WHERE = {"commands": ("commands.command", "Commands"), "CommandHandle": ("commands.command_handle", "CommandHandle"),
         "pty": ("commands.pty", "Pty"), "files": ("filesystem.filesystem", "Filesystem"),
         "WatchHandle": ("filesystem.watch_handle", "WatchHandle"), "git": ("git", "Git")}
# It prints, and asks no server.
NO_ROW = {"default_build_logger"}
# Of a volume that is there; the others make and find one.
OF_A_VOLUME = {"make_dir", "read_file", "remove", "update_metadata", "write_file", "exists"}


def methods(cls):
    return [name for name, value in inspect.getmembers(cls) if not name.startswith("_") and callable(value) and not inspect.isclass(value)]


def classes():
    for name in ("Sandbox", "Secret", "Template"):
        for flavour in (name, "Async" + name):
            if hasattr(e2b, flavour):
                yield name, getattr(e2b, flavour)
    main = importlib.import_module("e2b.template.main")
    yield "Template", main.TemplateBuilder
    for prefix, (module, name) in WHERE.items():
        for flavour, kind in (("e2b.sandbox_sync", name), ("e2b.sandbox_async", "Async" + name)):
            try:
                found = importlib.import_module(f"{flavour}.{module}")
            except ImportError:
                continue  # an older line
            yield prefix, getattr(found, kind, None) or getattr(found, name)


def options():
    """{method: the options that one of its flavours names}."""
    found = {}
    for prefix, cls in classes():
        for name in methods(cls):
            taken = inspect.signature(getattr(cls, name)).parameters.values()
            found.setdefault(f"{prefix}.{name}", set()).update(one.name for one in taken if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))
    return {name: sorted(taken - {"self", "cls"}) for name, taken in sorted(found.items())}


def new_options():
    """Those that the newest line has and options.json does not: somebody has to look what they do here, and write a test."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "options.json")) as file:
        known = json.load(file)
    return sorted(f"{name} with {option}" for name, taken in options().items() for option in taken if option not in known.get(name, []))


def declared():
    names = {f"{prefix}.{method}" for prefix, cls in classes() for method in methods(cls)}
    for volume in ("Volume", "AsyncVolume"):
        if hasattr(e2b, volume):
            names |= {("volume." if method in OF_A_VOLUME else "Volume.") + method for method in methods(getattr(e2b, volume))}
    for module in (e2b, e2b.exceptions):
        names |= {name for name, value in inspect.getmembers(module, inspect.isclass) if issubclass(value, BaseException)}
    names |= {name.removeprefix("Async") for name in dir(e2b) if name.endswith("Paginator")}
    names |= {name for name, _ in inspect.getmembers(e2b, inspect.isfunction)} - NO_ROW
    return names | ({"E2B"} if hasattr(e2b, "E2B") else set())


def untested(tested):
    """Those without a row of exactly that name: "Template.from_image with credentials" says nothing of Template.from_image."""
    return sorted(declared() - set(tested))
