"""The unmodified e2b-code-interpreter package on port 49999."""
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))
import e2b  # noqa: E402
import e2b_code_interpreter  # noqa: E402
import httpx  # noqa: E402
from flavour import ASYNC, Face, _settle  # noqa: E402
from harness import Skip, forgotten, raises, run_all, test  # noqa: E402

VERSION = tuple(int(part) for part in __import__("importlib.metadata").metadata.version("e2b-code-interpreter").split(".")[:3])
if ASYNC:
    box = Face(_settle(e2b_code_interpreter.AsyncSandbox.create(timeout=600)))
else:
    box = e2b_code_interpreter.Sandbox.create(timeout=600)


def needs(name):
    if not hasattr(e2b_code_interpreter.Sandbox, name):
        raise Skip(f"this line has no {name}")


@test("run_code", "gives the value, and variables stay")
def _():
    box.run_code("x = 41")
    assert box.run_code("x += 1; x").text == "42"


@test("run_code", "output comes while the cell runs")
def _():
    seen = []
    done = box.run_code("import sys\nprint('a')\nprint('b', file=sys.stderr)", on_stdout=lambda m: seen.append(m.line),
                        on_stderr=lambda m: seen.append(m.line))
    assert seen == ["a\n", "b\n"], seen
    assert done.logs.stdout == ["a\n"] and done.logs.stderr == ["b\n"], done.logs


@test("run_code", "errors have name, value and traceback")
def _():
    error = box.run_code("1/0").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero"), error
    assert "ZeroDivisionError" in error.traceback


@test("run_code", "environment variables for one cell")
def _():
    assert box.run_code("import os; os.getenv('CELL')", envs={"CELL": "one"}).text == "one"
    assert box.run_code("os.getenv('CELL')").text is None


@test("run_code", "a chart as data")
def _():
    (result,) = box.run_code("import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.title('T')\nplt.show()").results
    assert result.png and result.svg
    assert result.chart.type.value == "bar" and result.chart.title == "T", result.chart
    assert [(one.label, one.value) for one in result.chart.elements] == [("a", 1), ("b", 2)], result.chart.elements


@test("run_code", "pies, boxes and several axes are charts")
def _():
    for code, wanted in (("plt.pie([1, 2], labels=['a', 'b'])", "pie"), ("plt.boxplot([[1, 2, 3]])", "box_and_whisker"),
                         ("plt.scatter([1], [2])", "scatter"), ("_, axes = plt.subplots(1, 2); axes[0].plot([1]); axes[1].plot([2])", "superchart")):
        (result,) = box.run_code("import matplotlib.pyplot as plt\n" + code + "\nplt.show()").results
        assert result.chart.type.value == wanted, result.chart


@test("run_code", "a frame as columns")
def _():
    done = box.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
    assert done.results[0].data == {"a": [1, 2], "b": ["x", "y"]}, done.results[0].data


@test("run_code", "every language")
def _():
    for language, code, text in (("js", "const k = 40; k + 2", "42"), ("ts", "const k: number = 40; k + 2", "42"),
                                 ("r", "x <- 40; x + 2", "[1] 42"), ("java", "int k = 40; k + 2", "42")):
        done = box.run_code(code, language=language)
        assert done.text == text, (language, done)
    assert box.run_code("echo hi", language="bash").logs.stdout == ["hi\n"]


@test("run_code", "a client that gives up interrupts the cell")
def _():
    with raises(e2b.TimeoutException):
        box.run_code("import time; time.sleep(600)", timeout=1.5)
    assert box.run_code("'on'").text == "on"


@test("run_code", "a sandbox that ends under a cell is no end of the cell")
def _():
    kind = e2b_code_interpreter.AsyncSandbox if ASYNC else e2b_code_interpreter.Sandbox
    other = _settle(kind.create(timeout=120))
    other = Face(other) if ASYNC and not isinstance(other, Face) else other
    killer = threading.Timer(0, lambda: None)

    def heard(_):
        nonlocal killer
        killer = threading.Thread(target=other.kill)
        killer.start()

    try:
        with raises(e2b.TimeoutException if VERSION >= (2, 9) else httpx.TransportError):  # older lines pass on what the library says
            other.run_code("import time\nprint('on', flush=True)\ntime.sleep(600)", on_stdout=heard)
    finally:
        killer.join()
    with raises(e2b.TimeoutException):
        other.run_code("1")


@test("run_code", "dates have their offset, and labels are as they were written")
def _():
    code = "import datetime\nplt.plot([datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2)], [1, 2])\nplt.ylabel('Way (m)')"
    (result,) = box.run_code("import matplotlib.pyplot as plt\n" + code + "\nplt.show()").results
    assert result.chart.y_label == "Way (m)" and result.chart.y_unit == "m", vars(result.chart)
    assert str(result.chart.elements[0].points[0][0]).startswith("2026-01-01T00:00:00+00:00"), result.chart.elements[0].points


@test("create_code_context", "has its own variables and folder")
def _():
    context = box.create_code_context(cwd="/tmp")
    box.run_code("mine = 1", context=context)
    assert box.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert box.run_code("mine").error.name == "NameError"


@test("restart_code_context", "forgets the variables")
def _():
    needs("restart_code_context")
    context = box.create_code_context()
    box.run_code("y = 1", context=context)
    box.restart_code_context(context)
    assert box.run_code("y", context=context).error.name == "NameError"


@test("remove_code_context", "it is gone")
def _():
    needs("remove_code_context")
    context = box.create_code_context()
    assert context.id in [one.id for one in box.list_code_contexts()]
    box.remove_code_context(context)
    assert context.id not in [one.id for one in box.list_code_contexts()]


@test("list_code_contexts", "has the default ones")
def _():
    needs("list_code_contexts")
    languages = [one.language for one in box.list_code_contexts()]
    assert {"python", "javascript"} <= set(languages), languages


own = {name for name in dir(e2b_code_interpreter.Sandbox) if not name.startswith("_")} - set(dir(e2b.Sandbox))
forgotten(lambda tested: sorted(own - tested))
run_all()
box.kill()
sys.stdout.flush()
os._exit(0)  # the loop of the asynchronous flavour has threads of its own
