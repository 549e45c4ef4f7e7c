"""The interpreter over real HTTP: every language of the template code-interpreter, contexts, results, bad input.

Skipped where that template is not built (`isola template build code-interpreter`)."""
import base64
import json
import os
import subprocess
import sys
import threading
import unittest

from island import FULL, ISOLA, Server, built, eventually

CHART, FRAME = "application/vnd.isola.chart+json", "application/vnd.isola.frame+json"
server = None
sandbox = None


def make(**more):
    made = server.create(template="code-interpreter-v1", pids=2048, memory="4G", **more)["id"]
    if tree := os.environ.get("ISOLA_CODE_TREE"):  # while working on what is inside: over what the template has
        tar = subprocess.run(["tar", "-C", tree, "-c", "."], capture_output=True, check=True).stdout
        server.run(made, "base64 -d | tar -x -C / --no-same-owner && cd /usr/local/lib/isola/java && javac Cells.java",
                   stdin=base64.b64encode(tar).decode(), user="root")
    return made


def setUpModule():
    global server, sandbox
    if not built("code-interpreter"):
        raise unittest.SkipTest("the template code-interpreter is not built on this machine")
    server = Server()
    sandbox = make()


def tearDownModule():
    if server:
        server.close()


def ask(code, where=None, **more):
    connection = server.connection(timeout=300)
    reply = server.post(f"/v1/sandboxes/{where or sandbox}/code", {"code": code, **more}, connection=connection)
    connection.close()
    return reply


def run(code, where=None, **more):
    reply = ask(code, where, **more)
    assert reply.status == 200, reply
    return reply.json


def main(result):
    shown = [one for one in result["results"] if one.get("main")]
    assert len(shown) == 1, result
    return shown[0]["data"]


def stream(code, where=None, **more):
    return server.lines("POST", f"/v1/sandboxes/{where or sandbox}/code", {"code": code, "stream": True, **more})


def context(where=None, **fields):
    reply = server.post(f"/v1/sandboxes/{where or sandbox}/contexts", fields)
    assert reply.status == 201, reply
    return reply.json["id"]


# One row per language: set a variable, show it, print to both streams, fail, wait for ever, print until a file is there.
LANGUAGES = {
    "python": dict(set="kept = 40", show="kept + 2", shown="42", out="import sys\nprint('aus ü✓')\nprint('err', file=sys.stderr)",
                   fail="1/0", name="ZeroDivisionError", forever="while True: pass",
                   file="import os, time\nprint('first', flush=True)\nwhile not os.path.exists('{}'): time.sleep(0.01)\nprint('second')",
                   env="import os\nprint(os.environ.get('CELL'))", unset="None"),
    "javascript": dict(set="const kept = 40", show="kept + 2", shown="42", out="console.log('aus ü✓'); console.error('err')",
                       fail="null.x", name="TypeError", forever="for (;;) {}",
                       file="console.log('first'); while (!require('fs').existsSync('{}')) await new Promise((go) => setTimeout(go, 10)); console.log('second')",
                       env="console.log(String(process.env.CELL))", unset="undefined"),
    "typescript": dict(set="interface A { n: number }\nconst kept: A = { n: 40 }", show="(kept.n as number) + 2", shown="42",
                       out="console.log('aus ü✓' as string); console.error('err')", fail="throw new RangeError('no' as string)",
                       name="RangeError", forever="for (;;) {}",
                       file="console.log('first'); while (!require('fs').existsSync('{}')) await new Promise((go) => setTimeout(go, 10)); console.log('second')",
                       env="console.log(String(process.env.CELL))", unset="undefined"),
    "bash": dict(set="kept=42", show="echo $kept", shown=None, out="echo 'aus ü✓'; echo err >&2", fail="false", name="ExitCode",
                 forever="while :; do :; done", file="echo first; while ! [ -e {} ]; do sleep 0.01; done; echo second",
                 env="echo ${CELL-None}", unset="None"),
    "r": dict(set="kept <- 40", show="kept + 2", shown="[1] 42", out="cat('aus ü✓\\n'); message('err')", fail="stop('no')",
              name="", forever="repeat {}",
              file="cat('first\\n'); flush(stdout()); while (!file.exists('{}')) Sys.sleep(0.01); cat('second\\n')",
              env="cat(Sys.getenv('CELL', 'None'), '\\n', sep='')", unset="None"),
    "java": dict(set="int kept = 40;", show="kept + 2", shown="42", out='System.out.println("aus ü✓"); System.err.println("err");',
                 fail='throw new IllegalStateException("no");', name="java.lang.IllegalStateException", forever="while (true) {}",
                 file='System.out.println("first"); while (!new java.io.File("{}").exists()) Thread.sleep(10); System.out.println("second");',
                 env='System.out.println(System.getProperty("CELL", "None"));', unset="None"),
}


class Languages(unittest.TestCase):
    """What every language can, one test per language."""

    def everything(self, language):
        row = LANGUAGES[language]
        first = run(row["set"], language=language)
        self.assertEqual((first["status"], first["language"]), ("ok", language), first)
        result = run(row["show"], language=language)
        if row["shown"] is None:
            self.assertEqual(result["stdout"], "42\n")
        else:
            self.assertEqual(main(result)["text/plain"], row["shown"])
        result = run(row["out"], language=language)
        self.assertEqual((result["stdout"], result["stderr"].strip(), result["status"]), ("aus ü✓\n", "err", "ok"), result)
        result = run(row["fail"], language=language)
        self.assertEqual(result["status"], "error", result)
        if row["name"]:
            self.assertEqual(result["error"]["name"], row["name"])
        # A time limit interrupts, and what was set is still there.
        result = run(row["forever"], language=language, timeout=1)
        self.assertEqual(result["status"], "timeout", result)
        self.assertIn("kept", result["message"])
        result = run(row["show"], language=language)
        self.assertEqual(result["stdout"] if row["shown"] is None else main(result)["text/plain"], row["shown"] or "42\n")
        # The first line is here while the cell still runs.
        flag = f"/tmp/go-{language}"
        lines = stream(row["file"].replace("{}", flag), language=language)
        seen = []
        for event in lines:
            if event["type"] == "stdout":
                seen.append(event["text"])
                if len(seen) == 1:
                    self.assertEqual(event["text"], "first\n")
                    server.run(sandbox, f"touch {flag}; chmod 666 {flag}")
        self.assertEqual("".join(seen), "first\nsecond\n")
        # Variables of one cell.
        self.assertEqual(run(row["env"], language=language, env={"CELL": "it's ü"})["stdout"], "it's ü\n")
        self.assertEqual(run(row["env"], language=language)["stdout"], row["unset"] + "\n")

    def test_python(self):
        self.everything("python")

    def test_javascript(self):
        self.everything("javascript")

    def test_typescript(self):
        self.everything("typescript")

    def test_bash(self):
        self.everything("bash")

    def test_r(self):
        self.everything("r")

    def test_java(self):
        self.everything("java")

    def test_top_level_await(self):
        self.assertEqual(main(run("import asyncio\nawait asyncio.sleep(0.01)\n5"))["text/plain"], "5")
        self.assertEqual(main(run("await Promise.resolve(6)", language="js"))["text/plain"], "6")

    def test_magics_and_shell_lines(self):
        self.assertIn("hello", run("!echo hello")["stdout"])
        self.assertIn("loop", run("%timeit -n1 -r1 1")["stdout"])
        self.assertIn("Usage", run("!pip install --help")["stdout"])

    def test_nobody_to_ask(self):
        result = run("input('name? ')")
        self.assertEqual(result["status"], "error")
        self.assertIn("input", result["error"]["value"])
        self.assertEqual(run("read x; echo $?", language="bash")["stdout"], "1\n")


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

    def test_errors_without_noise(self):
        loud = run("1/0")["error"]
        self.assertIn("\x1b[", "".join(loud["traceback"]))
        quiet = run("1/0", clean=True)["error"]
        self.assertNotIn("\x1b", "".join(quiet["traceback"]))
        self.assertEqual((quiet["name"], quiet["value"]), ("ZeroDivisionError", "division by zero"))

    def test_fifty_megabytes(self):
        events = list(stream("print('z' * 50_000_000)"))
        text = sum(len(event["text"]) for event in events if event["type"] == "stdout")
        self.assertEqual(text, 10 << 20)
        self.assertEqual([event["limit_bytes"] for event in events if event["type"] == "truncated"], [10 << 20])
        self.assertEqual(events[-1]["dropped_bytes"], 50_000_001 - (10 << 20))
        whole = run("print('z' * 50_000_000)", max_output="64M")
        self.assertEqual(len(whole["stdout"]), 50_000_001)


class Contexts(unittest.TestCase):
    def test_their_own_variables(self):
        one, two = context(language="python"), context(language="python", cwd="/tmp")
        run("x = 1", context=one)
        self.assertEqual(run("x", context=two)["error"]["name"], "NameError")
        self.assertEqual(main(run("import os; os.getcwd()", context=two))["text/plain"], "'/tmp'")
        listed = server.get(f"/v1/sandboxes/{sandbox}/contexts").json["contexts"]
        self.assertLessEqual({one, two}, {entry["id"] for entry in listed})
        self.assertEqual(server.post(f"/v1/sandboxes/{sandbox}/contexts/{one}/restart").status, 200)
        self.assertEqual(run("x", context=one)["error"]["name"], "NameError")
        self.assertEqual(server.delete(f"/v1/sandboxes/{sandbox}/contexts/{one}").status, 204)
        self.assertEqual(ask("1", context=one).status, 404)

    def test_in_order_and_side_by_side(self):
        one, two = context(), context()
        # The second cell of `one` waits for the first, which waits for what `two` does meanwhile.
        answers = {}
        cells = [("a", "import os, time\nwhile not os.path.exists('/tmp/side'): time.sleep(0.01)\norder = ['a']"), ("b", "order.append('b'); order")]
        lines = stream(cells[0][1], context=one)
        self.assertEqual(next(lines)["type"], "start")
        late = threading.Thread(target=lambda: answers.update(b=run(cells[1][1], context=one)))
        late.start()
        run("open('/tmp/side', 'w').close()", context=two)
        self.assertEqual(list(lines)[-1]["status"], "ok")
        late.join()
        self.assertEqual(main(answers["b"])["text/plain"], "['a', 'b']")

    def test_interrupt(self):
        one = context()
        run("x = 5", context=one)
        lines = stream("import time\nprint('in', flush=True)\ntime.sleep(1000)", context=one)
        while next(lines)["type"] != "stdout":
            pass
        self.assertEqual(server.post(f"/v1/sandboxes/{sandbox}/contexts/{one}/interrupt").status, 200)
        rest = list(lines)
        self.assertEqual((rest[0]["name"], rest[-1]["status"]), ("KeyboardInterrupt", "interrupted"))
        self.assertEqual(main(run("x", context=one))["text/plain"], "5")

    def test_a_caller_that_leaves(self):
        one = context()
        lines = stream("import time\nprint('in', flush=True)\ntime.sleep(1000)", context=one)
        while next(lines)["type"] != "stdout":
            pass
        lines.close()
        self.assertEqual(main(run("8", context=one))["text/plain"], "8")

    def test_kernels_that_die(self):
        one = context()
        for code in ("import os; os.kill(os.getpid(), 9)", "import os; os._exit(3)", "exit()"):
            result = run(code, context=one)
            self.assertEqual((result["status"], result["error"]["name"]), ("kernel_died", "KernelDied"), result)
            self.assertIn("a new one was started", result["message"])
            self.assertEqual(main(run("1 + 1", context=one))["text/plain"], "2")
        self.assertIn("exited", run("exit 4", language="bash")["error"]["name"].lower())
        self.assertEqual(run("echo on", language="bash")["stdout"], "on\n")

    def test_a_cell_that_does_not_stop(self):
        one = context()
        result = run("import time\nwhile True:\n  try: time.sleep(1000)\n  except KeyboardInterrupt: pass", context=one, timeout=0.5)
        self.assertEqual(result["status"], "kernel_died")
        self.assertIn("did not stop", result["message"])
        self.assertEqual(main(run("3", context=one))["text/plain"], "3")

    def test_many_at_once(self):
        count = 20 if FULL else 5
        where = make()
        answers = {}

        def one(number):
            mine = context(where, language="python")
            run(f"n = {number}", where, context=mine)
            answers[number] = main(run("n * n", where, context=mine))["text/plain"]
        threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(answers, {number: str(number * number) for number in range(count)})
        server.delete(f"/v1/sandboxes/{where}")

    def test_frozen_and_thawed(self):
        where = make()
        run("x = 77", where)
        server.post(f"/v1/sandboxes/{where}/freeze")
        server.post(f"/v1/sandboxes/{where}/thaw")
        self.assertEqual(main(run("x", where))["text/plain"], "77")
        server.delete(f"/v1/sandboxes/{where}")

    def test_the_sandbox_s_own_variables(self):
        where = make(env={"MINE": "yes"})
        self.assertEqual(run("import os; print(os.environ['MINE'])", where)["stdout"], "yes\n")
        server.delete(f"/v1/sandboxes/{where}")


class BadInput(unittest.TestCase):
    def test_unknown_language(self):
        reply = ask("1", language="cobol")
        self.assertEqual(reply.status, 404)
        for language in LANGUAGES:
            self.assertIn(language, reply.json["error"]["message"])

    def test_unknown_context(self):
        for reply in (ask("1", context="nope"), server.post(f"/v1/sandboxes/{sandbox}/contexts/nope/restart"),
                      server.delete(f"/v1/sandboxes/{sandbox}/contexts/nope")):
            self.assertEqual((reply.status, reply.json["error"]["code"]), (404, "not_found"))

    def test_language_and_context(self):
        self.assertEqual(ask("1", context="python", language="python").status, 400)
        self.assertEqual(server.post(f"/v1/sandboxes/{sandbox}/code", {"language": "python"}).status, 400)

    def test_a_cell_of_twenty_megabytes(self):
        result = run("x = '" + "y" * (20 << 20) + "'\nx.length", language="javascript")
        self.assertEqual(main(result)["text/plain"], str(20 << 20))

    def test_nul(self):
        self.assertEqual(run("a = 1\0")["status"], "error")
        self.assertEqual(main(run("1"))["text/plain"], "1")

    def test_a_broken_kernel_names_its_words(self):
        where = make()
        spec = json.dumps({"argv": ["/bin/sh", "-c", "echo no luck today >&2; exit 3"], "display_name": "B", "language": "broken"})
        server.run(where, f"mkdir -p /usr/local/share/jupyter/kernels/broken && cat > /usr/local/share/jupyter/kernels/broken/kernel.json", stdin=spec)
        reply = ask("1", where, language="broken")
        self.assertEqual(reply.status, 500)
        self.assertIn("no luck today", reply.json["error"]["message"])
        self.assertIn("exit code 3", reply.json["error"]["message"])
        server.run(where, "mkdir -p /usr/local/share/jupyter/kernels/worse; echo '{' > /usr/local/share/jupyter/kernels/worse/kernel.json")
        self.assertIn("not JSON", ask("1", where, language="worse").json["error"]["message"])
        server.delete(f"/v1/sandboxes/{where}")

    def test_a_template_without(self):
        plain = server.create()["id"]
        reply = ask("1", plain)
        self.assertEqual((reply.status, "code-interpreter" in reply.json["error"]["message"]), (501, True), reply)
        server.delete(f"/v1/sandboxes/{plain}")


class Cli(unittest.TestCase):
    def isola(self, *words, text="", code=0):
        done = subprocess.run([ISOLA, *words, "--data", server.data], input=text, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_code(self):
        done = self.isola("code", "-", "--sandbox", sandbox, text="print('from the shell')\n6 * 7")
        self.assertEqual(done.stdout, "from the shell\n42\n")
        done = self.isola("code", "-l", "bash", "--sandbox", sandbox, "-", text="echo out; echo err >&2; exit_code() { return 3; }; exit_code", code=1)
        self.assertEqual(done.stdout, "out\n")
        self.assertIn("err\n", done.stderr)
        self.isola("code", "-s", sandbox, "--timeout", "1s", "-", text="while True: pass", code=124)

    def test_code_in_a_sandbox_of_its_own(self):
        before = {one["id"] for one in server.get("/v1/sandboxes?state=running").json["sandboxes"]}
        path = os.path.join(server.data, "cell.js")
        with open(path, "w") as file:
            file.write("console.log([1, 2].map((n) => n + 1))")
        self.assertEqual(self.isola("code", path).stdout, "[ 2, 3 ]\n")
        eventually(lambda: {one["id"] for one in server.get("/v1/sandboxes?state=running").json["sandboxes"]} <= before)

    def test_repl(self):
        done = self.isola("repl", "--sandbox", sandbox, text="x = 3\ndef f(n):\n  return n + x\n\nf(4)\n")
        self.assertIn("7\n", done.stdout)


class Scale(unittest.TestCase):
    @unittest.skipUnless(FULL, "200 sandboxes: only in the full run")
    def test_two_hundred_sandboxes(self):
        answers, gate = [], threading.Semaphore(8)

        def one(number):
            with gate:
                where = make()
                answers.append(main(run(f"{number} + 1", where))["text/plain"] == str(number + 1))
        threads = [threading.Thread(target=one, args=(number,)) for number in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(answers, [True] * 200)


class Budgets(unittest.TestCase):
    """A cell is a command: counted, and in the ledger with its end."""

    def commands(self, where):
        return [e for e in server.get(f"/v1/ledger?sandbox={where}&kind=command.&limit=1000").json["events"]
                if "isola-kernels" not in str(e["data"])]

    def test_cells_count(self):
        where = make(budget={"commands": 2}, task="count")
        self.assertEqual(run("1 + 1", where)["status"], "ok")
        self.assertEqual(ask("2 + 2", where, actor="ada").status, 200)
        over = ask("3 + 3", where)
        self.assertEqual((over.status, over.json["error"]["code"]), (429, "exhausted"))
        eventually(lambda: server.get(f"/v1/sandboxes/{where}").json["state"] == "ended")
        started = [e for e in self.commands(where) if e["kind"] == "command.started" and "context" in e["data"]]
        ended = [e for e in self.commands(where) if e["kind"] == "command.ended" and "status" in e["data"]]
        self.assertEqual([e["data"]["command"] for e in started], ["1 + 1", "2 + 2"])
        self.assertEqual([e["data"]["status"] for e in ended], ["ok", "ok"])
        self.assertEqual({e["task"] for e in started + ended}, {"count"})
        self.assertEqual(started[1]["actor"], "ada")
        self.assertEqual(server.get(f"/v1/usage?sandbox={where}").json["usage"][0]["commands"], 2)

    def test_a_visiting_tasks_cell_is_stopped_alone(self):
        where = make(task="host")
        run("x = 5", where)
        server.request("PUT", "/v1/tasks/visit", {"budget": {"cpu_seconds": 0.5}})
        stopped = ask("while True: pass", where, task="visit")
        self.assertEqual((stopped.status, stopped.json["error"]["message"]), (429, "its task's budget is spent"))
        self.assertEqual(run("x", where)["results"][0]["data"]["text/plain"], "5", "the context lives on")
        last = [e for e in self.commands(where) if e["kind"] == "command.ended" and e["task"] == "visit"]
        self.assertEqual((last[-1]["data"]["reason"], last[-1]["data"]["detail"]), ("limit", "its task's budget is spent"))
        server.delete(f"/v1/sandboxes/{where}")

    def test_one_that_sleeps_is_not_ended_by_a_cell_too_many(self):
        if not server.launcher_status().get("checkpointer"):
            self.skipTest("no criu here; `./dev criu` provides one")
        where = make(budget={"commands": 1}, auto_resume=False)
        run("1", where)
        self.assertEqual(server.post(f"/v1/sandboxes/{where}/pause").status, 200)
        self.assertEqual(ask("2", where).status, 409)
        self.assertEqual(server.get(f"/v1/sandboxes/{where}").json["state"], "paused")
        server.delete(f"/v1/sandboxes/{where}")

    def test_one_whose_caller_leaves_ends_in_the_ledger(self):
        connection = server.connection()
        connection.request("POST", f"/v1/sandboxes/{sandbox}/code", json.dumps({"code": "import time; time.sleep(500) # left"}),
                           {"Authorization": "Bearer " + server.key})
        def cells(kind):
            return [e for e in self.commands(sandbox) if e["kind"] == kind]
        start = eventually(lambda: [e for e in cells("command.started") if "# left" in e["data"]["command"]])[0]
        connection.sock.close()
        connection.close()
        end = eventually(lambda: [e for e in cells("command.ended") if e["data"]["command_id"] == start["data"]["command_id"]])[0]
        self.assertEqual(end["data"]["status"], "abandoned")

    def test_those_of_e2b(self):
        made = server.post("/sandboxes", {"templateID": "code-interpreter-v1"}, key="", headers={"X-API-Key": server.key})
        self.assertEqual(made.status, 201, made)
        inside = {"E2b-Sandbox-Id": made.json["sandboxID"], "E2b-Sandbox-Port": "49999",
                  "X-Access-Token": made.json["envdAccessToken"], "Content-Type": "application/json"}
        said = server.post("/execute", {"code": "20 + 22"}, key="", headers=inside)
        self.assertEqual(said.status, 200, said)
        self.assertIn(b'"42"', said.body)
        events = [e for e in self.commands(made.json["sandboxID"]) if e["data"].get("command") == "20 + 22"]
        self.assertEqual([(e["kind"], e["actor"], e["key"]) for e in events], [("command.started", "sandbox-token", "sandbox-token")])
        server.delete("/sandboxes/" + made.json["sandboxID"], key="", headers={"X-API-Key": server.key})


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
