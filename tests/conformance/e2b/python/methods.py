"""The public methods and exceptions of the package, out of its own modules: one that no test is about fails the run, so that
the matrix has a row for each of them."""
import importlib
import inspect

import e2b

WHERE = {"commands": ("commands.command", "Commands"), "CommandHandle": ("commands.command_handle", "CommandHandle"),
         "pty": ("commands.pty", "Pty"), "files": ("filesystem.filesystem", "Filesystem"),
         "WatchHandle": ("filesystem.watch_handle", "WatchHandle"), "git": ("git", "Git")}
# Of a volume that is there; the others make and find one.
OF_A_VOLUME = {"make_dir", "read_file", "remove", "update_metadata", "write_file", "exists"}


def methods(cls):
    return [name for name, value in inspect.getmembers(cls) if not name.startswith("_") and callable(value) and not inspect.isclass(value)]


def classes():
    for name in ("Sandbox", "Secret", "Template"):
        if hasattr(e2b, name):
            yield name, getattr(e2b, name)
    main = importlib.import_module("e2b.template.main")
    yield "Template", main.TemplateBuilder
    for prefix, (module, name) in WHERE.items():
        for flavour, kind in (("e2b.sandbox_sync", name), ("e2b.sandbox_async", "Async" + name)):
            try:
                found = importlib.import_module(f"{flavour}.{module}")
            except ImportError:
                continue  # an older line
            yield prefix, getattr(found, kind, None) or getattr(found, name)


def declared():
    names = {f"{prefix}.{method}" for prefix, cls in classes() for method in methods(cls)}
    if hasattr(e2b, "Volume"):
        names |= {("volume." if method in OF_A_VOLUME else "Volume.") + method for method in methods(e2b.Volume)}
    for module in (e2b, e2b.exceptions):
        names |= {name for name, value in inspect.getmembers(module, inspect.isclass)
                  if name.endswith("Exception") and issubclass(value, BaseException)}
    return names


def untested(tested):
    """Those without a row. "Sandbox.create with iam" is about Sandbox.create."""
    return sorted(declared() - {name.split(" ")[0] for name in tested})
