"""What our Python kernel does beyond ipykernel: variables of one cell, figures as chart data, frames as records.

An IPython extension. A figure or a frame gets one more MIME type beside those that it has anyway:

    application/vnd.isola.chart+json     isola_charts.chart(figure)
    application/vnd.isola.frame+json     {"columns": [{"name", "type"}], "records": [{…}], "rows": n, "index": […]}
"""
import importlib.abc
import importlib.machinery
import math
import os
import random
import sys

import isola_charts

CHART, FRAME = "application/vnd.isola.chart+json", "application/vnd.isola.frame+json"
MOST_RECORDS, MOST_COLUMNS = 1000, 200


# ---- variables of one cell ----

def draw_anew():
    """Before the first cell: this kernel may have been started once for many sandboxes, and random numbers of two of
    them must not be the same. (OpenSSL sees to itself, and what asks the kernel each time needs nothing.)"""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


class Variables:
    """The environment that a cell's request carries (metadata.isola): set before it, taken back after it."""

    def __init__(self, shell):
        self.shell, self.before, self.first = shell, {}, True

    def asked(self):
        parent = self.shell.kernel.get_parent("shell") or {}
        return (parent.get("metadata") or {}).get("isola") or {}

    def begin(self, *_):
        if self.first:
            self.first = False
            draw_anew()
        asked = self.asked()
        os.environ.update(asked.get("lasting") or {})
        for name, value in (asked.get("env") or {}).items():
            self.before[name] = os.environ.get(name)
            os.environ[name] = value

    def end(self, *_):
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.before = {}


# ---- frames ----

def plain(value):
    """A cell of a frame as JSON has it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return isola_charts.whole(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    if hasattr(value, "item"):
        try:
            return plain(value.item())
        except (TypeError, ValueError):
            return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    text = str(value)
    return None if text in ("<NA>", "NaT", "nan") else text


def distinct(names):
    """Names of columns as keys: a second "a" is "a.1", or the next that nobody has."""
    taken, out = set(names), []
    for name in names:
        number, new = 0, name
        while new in out:
            number += 1
            new = f"{name}.{number}" if f"{name}.{number}" not in taken else new
        out.append(new)
    return out


def frame(table):
    import pandas
    shown = table.iloc[:MOST_RECORDS, :MOST_COLUMNS]
    names = distinct([str(name) for name in shown.columns])
    columns = [[plain(value) for value in shown.iloc[:, i].tolist()] for i in range(shown.shape[1])]
    out = {"columns": [{"name": name, "type": str(shown.dtypes.iloc[i])} for i, name in enumerate(names)],
           "records": [dict(zip(names, row)) for row in zip(*columns)],
           "rows": int(table.shape[0])}
    # Without it, what the rows are called; one that only counts says nothing.
    if not isinstance(table.index, pandas.RangeIndex):
        out["index"] = [plain(value) for value in shown.index.tolist()]
        if any(name is not None for name in table.index.names):
            out["index_names"] = [None if name is None else str(name) for name in table.index.names]
    if shown.shape != table.shape:
        out["truncated"] = True
        out["all_columns"] = int(table.shape[1])
    return out


# ---- figures ----

def show_saved(image):
    """Makes Image.save show what it wrote to a file. What goes to an open file is somebody's way of drawing, and what
    matplotlib writes is a figure, which is shown as one."""
    inner = image.save

    def save(self, fp, *args, **kwargs):
        done = inner(self, fp, *args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__") or ""
        if isinstance(fp, (str, os.PathLike)) and not caller.startswith(("matplotlib", "PIL")):
            from IPython.display import display
            display(self)
        return done

    save.__doc__, save.__name__ = inner.__doc__, inner.__name__
    image.save = save


HOOKS = {"matplotlib.axes._axes": lambda module: isola_charts.remember_boxes(module.Axes),
         "PIL.Image": lambda module: show_saved(module.Image)}


class _Loader(importlib.abc.Loader):
    def __init__(self, inner, hook):
        self.inner, self.hook = inner, hook

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        self.hook(module)


class _Finder(importlib.abc.MetaPathFinder):
    """A box plot is drawn as loose lines: the numbers behind it are kept while matplotlib still has them. And what
    Pillow writes is shown."""

    def find_spec(self, name, path, target=None):
        if name not in HOOKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader = _Loader(spec.loader, HOOKS[name])
        return spec


def watch_imports():
    sys.meta_path.insert(0, _Finder())


def load_ipython_extension(shell):
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    def guarded(make, value):
        # What cannot be read as data is still a picture and a table.
        try:
            return make(value)
        except Exception:
            return None

    # Not by for_type: the inline backend takes the printers of figures out of every formatter.
    def is_a(value, module, name):
        return any(one.__name__ == name and one.__module__.startswith(module) for one in type(value).__mro__)

    class ChartFormatter(BaseFormatter):
        format_type = Unicode(CHART)
        print_method = ObjectName("_repr_isola_chart_")
        _return_type = dict

        def __call__(self, value):
            return guarded(isola_charts.chart, value) if is_a(value, "matplotlib.figure", "Figure") else None

    class FrameFormatter(BaseFormatter):
        format_type = Unicode(FRAME)
        print_method = ObjectName("_repr_isola_frame_")
        _return_type = dict

        def __call__(self, value):
            return guarded(frame, value) if is_a(value, "pandas", "DataFrame") else None

    display = shell.display_formatter
    display.formatters[CHART] = ChartFormatter(parent=display)
    display.formatters[FRAME] = FrameFormatter(parent=display)

    variables = Variables(shell)
    shell.events.register("pre_run_cell", variables.begin)
    shell.events.register("post_run_cell", variables.end)

    for name in os.environ.pop("ISOLA_PREIMPORT", "").split(","):
        if name:
            __import__(name)
