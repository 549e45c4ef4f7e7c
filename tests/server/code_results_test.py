"""What cells of the interpreter give: events in order, all forms of a result, figures and frames as data, large outputs.

Skipped where the template code-interpreter is not built (`isola template build code-interpreter`)."""
import base64
import sys
import unittest

import cells
from cells import LANGUAGES, main, run, stream
from island import FULL

CHART, FRAME = "application/vnd.isola.chart+json", "application/vnd.isola.frame+json"
setUpModule, tearDownModule = cells.begin, cells.end


class Results(unittest.TestCase):
    def test_order(self):
        events = list(stream("import sys\nprint('a')\nsys.stdout.flush()\nprint('b', file=sys.stderr)\nsys.stderr.flush()\n"
                             "from IPython.display import display, HTML\ndisplay(HTML('<b>c</b>'))\n7"))
        kinds = [event["type"] for event in events]
        self.assertEqual(kinds, ["start", "stdout", "stderr", "result", "result", "end"], events)
        self.assertEqual([event["main"] for event in events if event["type"] == "result"], [False, True])
        self.assertEqual(events[3]["data"]["text/html"], "<b>c</b>")
        self.assertEqual(events[4]["data"]["text/plain"], "7")
        self.assertGreater(events[-1]["execution_count"], 0)

    def test_display_updates(self):
        events = list(stream("from IPython.display import display, HTML\nh = display(HTML('1'), display_id=True)\nh.update(HTML('2'))"))
        first, second = [event for event in events if event["type"] in ("result", "display_update")]
        self.assertEqual((first["type"], second["type"]), ("result", "display_update"))
        self.assertEqual(first["display_id"], second["display_id"])
        self.assertEqual(second["data"]["text/html"], "2")

    def test_rich_types(self):
        data = main(run("import sympy\nx = sympy.Symbol('x')\nsympy.Integral(x**2, x)"))
        self.assertIn("text/latex", data)
        data = main(run("from PIL import Image\nImage.new('RGB', (4, 4), 'red')"))
        self.assertTrue(base64.b64decode(data["image/png"]).startswith(b"\x89PNG"))
        data = main(run("from IPython.display import JSON\nJSON({'a': [1]})"))
        self.assertEqual(data["application/json"], {"a": [1]})

    def test_frames(self):
        data = main(run("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None], 't': pd.to_datetime(['2026-01-01', '2026-01-02'])})"))
        self.assertIn("<table", data["text/html"])
        frame = data[FRAME]
        self.assertEqual([column["name"] for column in frame["columns"]], ["a", "b", "t"])
        self.assertEqual(frame["records"], [{"a": 1, "b": "x", "t": "2026-01-01T00:00:00"},
                                            {"a": 2, "b": None, "t": "2026-01-02T00:00:00"}])
        self.assertEqual(frame["rows"], 2)
        long = main(run("pd.DataFrame({'n': range(5000)})"))[FRAME]
        self.assertEqual((long["rows"], len(long["records"]), long["truncated"]), (5000, 1000, True))

    def test_frames_lose_nothing(self):
        twice = main(run("import pandas as pd\npd.DataFrame([[1, 2, 3], [4, 5, 6]], columns=['a', 'a', 'a.1'], index=['r1', 'r2'])"))[FRAME]
        self.assertEqual([column["name"] for column in twice["columns"]], ["a", "a.2", "a.1"])
        self.assertEqual(twice["records"], [{"a": 1, "a.2": 2, "a.1": 3}, {"a": 4, "a.2": 5, "a.1": 6}])
        self.assertEqual(twice["index"], ["r1", "r2"])
        self.assertNotIn("index", main(run("pd.DataFrame({'a': [1]})"))[FRAME])
        grouped = main(run("pd.DataFrame({'k': ['x', 'y'], 'j': [1, 2], 'v': [3, 4]}).groupby(['k', 'j']).sum()"))[FRAME]
        self.assertEqual((grouped["index"], grouped["index_names"]), ([["x", 1], ["y", 2]], ["k", "j"]))
        self.assertEqual(main(run("pd.DataFrame({'a': [10 ** 400, 1]})"))[FRAME]["records"], [{"a": "1" + "0" * 400}, {"a": 1}])

    def test_what_cannot_be_read_is_said_to_be_lost(self):
        deep = "from IPython.display import JSON, display\nx = 1\nfor _ in range(100): x = [x]\ndisplay({'application/json': x}, raw=True)"
        for code in ("from IPython.display import JSON, display\ndisplay(JSON({'a': 10 ** 400}))", deep,
                     "k = get_ipython().kernel\nd = 100_000\n"
                     "k.session.send(k.iopub_socket, 'display_data', parent=k.get_parent('shell'),\n"
                     "               content=b'{\"data\":{\"application/json\":' + b'[' * d + b']' * d + b'},\"metadata\":{}}')"):
            result = run(code + "\nprint('after')")
            self.assertEqual((result["status"], result.get("lost"), result["stdout"]), ("ok", 1, "after\n"), result)
            (lost,) = [event for event in stream(code) if event["type"] == "lost"]
            self.assertIn("display_data", lost["message"])

    def chart(self, code):
        result = run("import matplotlib.pyplot as plt\n" + code + "\nplt.show()")
        self.assertEqual(result["status"], "ok", result)
        (figure,) = result["results"]
        self.assertTrue(base64.b64decode(figure["data"]["image/png"]).startswith(b"\x89PNG"))
        self.assertIn("<svg", figure["data"]["image/svg+xml"])
        return figure["data"][CHART]

    def test_charts_say_what_was_plotted(self):
        line = self.chart("plt.plot([1, 2, 3], [4, 5, 6.5], label='speed')\nplt.title('Run')\nplt.xlabel('time (s)')\nplt.ylabel('way [m]')\nplt.yscale('log')")
        self.assertEqual((line["type"], line["title"]), ("line", "Run"))
        self.assertEqual([line[key] for key in ("x_label", "x_unit", "y_label", "y_unit", "x_scale", "y_scale")],
                         ["time", "s", "way", "m", "linear", "log"])
        self.assertEqual((line["x_text"], line["y_text"]), ("time (s)", "way [m]"))
        self.assertEqual(line["elements"], [{"label": "speed", "points": [[1, 4], [2, 5], [3, 6.5]]}])
        scatter = self.chart("plt.scatter([1, 2], [3, 4], label='a')\nplt.scatter([5], [6], label='b')")
        self.assertEqual(scatter["type"], "scatter")
        self.assertEqual(scatter["elements"], [{"label": "a", "points": [[1, 3], [2, 4]]}, {"label": "b", "points": [[5, 6]]}])
        bar = self.chart("plt.bar(['x', 'y'], [3, 4], label='g')")
        self.assertEqual((bar["type"], bar["x_scale"]), ("bar", "categorical"))
        self.assertEqual(bar["elements"], [{"label": "x", "group": "g", "value": 3}, {"label": "y", "group": "g", "value": 4}])
        pie = self.chart("plt.pie([1, 3], labels=['a', 'b'])")
        self.assertEqual((pie["type"], pie["elements"]), ("pie", [{"label": "a", "angle": 90, "radius": 1},
                                                                  {"label": "b", "angle": 270, "radius": 1}]))
        box = self.chart("plt.boxplot([[1, 2, 3, 4, 50]])")
        self.assertEqual(box["type"], "box_and_whisker")
        self.assertEqual({key: box["elements"][0][key] for key in ("min", "first_quartile", "median", "third_quartile", "max", "outliers")},
                         {"min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 4, "outliers": [50]})
        both = self.chart("figure, axes = plt.subplots(1, 2)\naxes[0].plot([1, 2])\naxes[1].bar(['q'], [9])\nfigure.suptitle('Both')")
        self.assertEqual((both["type"], both["title"]), ("superchart", "Both"))
        self.assertEqual([one["type"] for one in both["elements"]], ["line", "bar"])
        dates = self.chart("import datetime\nplt.plot([datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2)], [1, 2])")
        self.assertEqual(dates["x_scale"], "datetime")
        self.assertEqual(dates["elements"][0]["points"], [["2026-01-01T00:00:00", 1], ["2026-01-02T00:00:00", 2]])

    def test_a_picture_that_is_saved_is_shown(self):
        new = "from PIL import Image\nimport io\nimage = Image.new('RGB', (4, 4), 'red')\n"
        (shown,) = run(new + "image.save('/tmp/four.png')")["results"]
        self.assertTrue(base64.b64decode(shown["data"]["image/png"]).startswith(b"\x89PNG"))
        self.assertEqual(run(new + "image.save(io.BytesIO(), 'png')\nimport matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('/tmp/fig.png')\nplt.close()")["results"], [])

    def test_charts_say_what_they_leave_out(self):
        long = self.chart("plt.plot(range(20001), label='long')\nplt.plot([1, 2], label='short')")
        one, two = long["elements"]
        self.assertEqual((len(one["points"]), one["truncated"], one["count"]), (20000, True, 20001))
        self.assertNotIn("truncated", two)
        both = self.chart("plt.bar([1, 2], [3, 4], yerr=[1, 1], capsize=2)\nplt.plot([1, 2], [5, 6], label='over')")
        self.assertEqual((both["type"], len(both["elements"])), ("bar", 2))
        self.assertEqual(both["also"], [{"type": "line", "elements": [{"label": "over", "points": [[1, 5], [2, 6]]}]}])
        box = self.chart("plt.boxplot([[1, 2, 3]])")
        self.assertNotIn("also", box)

    def test_errors_without_noise(self):
        loud = run("1/0")["error"]
        self.assertIn("\x1b[", "".join(loud["traceback"]))
        quiet = run("1/0", clean=True)["error"]
        self.assertNotIn("\x1b", "".join(quiet["traceback"]))
        self.assertEqual((quiet["name"], quiet["value"]), ("ZeroDivisionError", "division by zero"))

    def test_svg_and_latex_and_html_by_themselves(self):
        data = main(run("from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')"))
        self.assertIn("<svg", data["image/svg+xml"])
        data = main(run("from IPython.display import Latex\nLatex('$e$')"))
        self.assertEqual(data["text/latex"], "$e$")
        data = main(run("from IPython.display import Markdown\nMarkdown('*m*')"))
        self.assertEqual(data["text/markdown"], "*m*")

    def test_a_plot_of_r_is_a_picture(self):
        (picture,) = run("plot(1:3)", language="r")["results"]
        self.assertTrue(base64.b64decode(picture["data"]["image/png"]).startswith(b"\x89PNG"), picture["data"].keys())

    def test_pictures_of_other_languages(self):
        png = base64.b64encode(base64.b64decode(main(run("from PIL import Image\nImage.new('RGB', (4, 4), 'red')"))["image/png"])).decode()
        shows = {"javascript": f"display.png(Buffer.from('{png}', 'base64'))",
                 "bash": f"base64 -d <<< {png} > /tmp/a.png; display /tmp/a.png",
                 "java": "Display.png(new java.awt.image.BufferedImage(2, 2, java.awt.image.BufferedImage.TYPE_INT_RGB));"}
        for language, code in shows.items():
            with self.subTest(language):
                result = run(code, language=language)
                self.assertEqual(result["status"], "ok", result)
                self.assertTrue(base64.b64decode(result["results"][0]["data"]["image/png"]).startswith(b"\x89PNG"))
        complaint = run("echo '{' | display -t application/json; echo on", language="bash")
        self.assertEqual((complaint["stdout"], "display: " in complaint["stderr"]), ("on\n", True), complaint)

    def test_large_outputs_are_cut_with_a_mark(self):
        size, most = (50_000_000, 10 << 20) if FULL else (5_000_000, 1 << 20)
        if not FULL:
            print("reduced: 5 MB of output per language instead of 50 (tests/server/code_results_test.py)", flush=True)
        for language, row in LANGUAGES.items():
            with self.subTest(language):
                events = list(stream(row["many"].format(size), language=language, max_output=most))
                text = [event["text"] for event in events if event["type"] == "stdout"]
                self.assertEqual((sum(map(len, text)), set("".join(text))), (most, {"z"}))
                self.assertEqual([event["limit_bytes"] for event in events if event["type"] == "truncated"], [most])
                self.assertEqual((events[-1]["status"], events[-1]["dropped_bytes"]), ("ok", size - most))
                whole = run(row["many"].format(size), language=language, max_output="64M")
                self.assertEqual(len(whole["stdout"]), size)
        self.assertEqual(sum(len(event["text"]) for event in stream("print('z' * 11_000_000)") if event["type"] == "stdout"),
                         10 << 20, "the limit of who names none")


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
