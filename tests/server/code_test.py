"""The interpreter over real HTTP: every language of the template code-interpreter, contexts, bad input.

Skipped where that template is not built (`isola template build code-interpreter`)."""
import json
import sys
import threading
import unittest

import cells
from cells import LANGUAGES, ask, context, drop, kept, main, make, run, shown, stream
from island import eventually

setUpModule, tearDownModule = cells.begin, cells.end


class Languages(unittest.TestCase):
    """What every language can, one test per language and thing."""

    def state_and_errors(self, language):
        row = LANGUAGES[language]
        first = run(row["set"], language=language)
        self.assertEqual((first["status"], first["language"], first["context"]), ("ok", language, language), first)
        self.assertEqual(shown(language, run(row["show"], language=language)), kept(language))
        result = run(row["out"], language=language)
        self.assertEqual((result["stdout"], result["stderr"].strip(), result["status"]), ("aus ü✓\n", "err", "ok"), result)
        result = run(row["fail"], language=language, clean=True)
        self.assertEqual(result["status"], "error", result)
        self.assertNotIn("\x1b", json.dumps(result["error"]))
        if row["name"]:
            self.assertEqual(result["error"]["name"], row["name"])
        self.assertEqual(shown(language, run(row["show"], language=language)), kept(language), "after an error")

    def a_time_limit_and_an_interrupt_keep_the_state(self, language):
        row = LANGUAGES[language]
        mine = context(language=language)
        run(row["set"], context=mine)
        result = run(row["forever"], context=mine, timeout=1)
        self.assertEqual(result["status"], "timeout", result)
        self.assertIn("kept", result["message"])
        self.assertEqual(shown(language, run(row["show"], context=mine)), kept(language))
        lines = stream(row["wait"], context=mine)
        while next(lines)["type"] != "stdout":
            pass
        self.assertEqual(cells.server.post(f"/v1/sandboxes/{cells.sandbox}/contexts/{mine}/interrupt").status, 200)
        self.assertEqual(list(lines)[-1]["status"], "interrupted")
        self.assertEqual(shown(language, run(row["show"], context=mine)), kept(language))
        # A new kernel knows nothing of it.
        answer = cells.server.post(f"/v1/sandboxes/{cells.sandbox}/contexts/{mine}/restart")
        self.assertEqual((answer.status, answer.json["restarts"]), (200, 1))
        result = run(row["show"], context=mine)
        if language == "bash":
            self.assertEqual(result["stdout"], "\n")
        else:
            self.assertEqual(result["status"], "error", result)
        self.assertEqual(cells.server.delete(f"/v1/sandboxes/{cells.sandbox}/contexts/{mine}").status, 204)

    def a_first_line_is_here_while_the_cell_runs(self, language):
        flag, seen = f"/tmp/go-{language}", []
        for event in stream(LANGUAGES[language]["file"].replace("{}", flag), language=language):
            if event["type"] == "stdout":
                seen.append(event["text"])
                if len(seen) == 1:
                    self.assertEqual(event["text"], "first\n")
                    cells.server.run(cells.sandbox, f"touch {flag}; chmod 666 {flag}")
        self.assertEqual("".join(seen), "first\nsecond\n")

    def variables_of_one_cell(self, language):
        row = LANGUAGES[language]
        self.assertEqual(run(row["env"], language=language, env={"CELL": "it's ü"})["stdout"], "it's ü\n")
        self.assertEqual(run(row["env"], language=language)["stdout"], row["unset"] + "\n")

    def nobody_to_ask(self, language):
        row = LANGUAGES[language]
        result = run(row["asks"], language=language, timeout=60)
        self.assertIn(result["status"], ("ok", "error"), result)
        self.assertIn(row["told"], json.dumps([result["stdout"], result["results"], result.get("error", {}).get("value")]))

    def something_rich(self, language):
        row = LANGUAGES[language]
        result = run(row["rich"], language=language)
        self.assertEqual(result["status"], "ok", result)
        for form, wanted in row["forms"].items():
            given = result["results"][-1]["data"][form]
            if isinstance(wanted, str):
                self.assertIn(wanted, given)
            else:
                self.assertEqual(given, wanted)

    def in_order(self, language):
        row, seen = LANGUAGES[language], []
        for event in stream(row["mixed"], language=language):
            if event["type"] in ("stdout", "stderr"):
                seen.append((event["type"], event["text"].strip()))
            elif event["type"] == "result":
                seen.append(("result", event["data"]["text/html"].strip()))
        wanted = [("stdout", "a"), ("stderr", "b"), ("result", "c"), ("stdout", "d")]
        self.assertEqual(seen, [one for one in wanted if language != "bash" or one[0] != "stderr"])


    def half_a_character(self, language):
        """Costs itself, not what stands beside it, nor the cells that follow."""
        row = LANGUAGES[language]
        if "half" not in row:
            return
        result = run(row["half"], language=language)
        self.assertEqual(result["status"], "ok", result)
        self.assertIn("after", result["stdout"])
        self.assertNotIn("lost", result)
        for word in ("one", "two"):
            self.assertEqual(run(row["say"].replace("{}", word), language=language)["stdout"], word + "\n")

    def nothing_is_left_running(self, language):
        """After a delete, a restart, and the end of a lost kernel, whatever the cell did."""
        row, where = LANGUAGES[language], make()
        self.addCleanup(drop, where)
        left = "ps -u user -o stat=,args= | grep -v '^Z' | grep -v isola-kernels; true"
        for what in ("delete", "restart", "lost"):
            mine = context(where, language=language)
            if language == "bash":
                run("(yes > /dev/null &) ; yes > /dev/null &", where, context=mine)
            lines = stream(row["forever"], where, context=mine)
            self.assertEqual(next(lines)["type"], "start")
            path = f"/v1/sandboxes/{where}/contexts/{mine}"
            if what == "delete":
                self.assertEqual(cells.server.delete(path).status, 204)
            elif what == "restart":
                self.assertEqual(cells.server.post(path + "/restart").status, 200)
            else:
                cells.server.run(where, "pkill -9 -f '[c]onnection.json'", user="root")
            self.assertIn(list(lines)[-1]["status"], ("interrupted", "kernel_died"))
            if what != "delete":
                self.assertEqual(run(row["say"].replace("{}", "on"), where, context=mine)["stdout"], "on\n", what)
                self.assertEqual(cells.server.delete(path).status, 204)
            # Nothing of this context is there any more: not even what the shell had in the background.
            eventually(lambda: cells.server.run(where, left, user="root")["stdout"] == "", what=f"the end of everything after {what}")


def of(language, thing):
    return lambda self: getattr(self, thing)(language)


for language in LANGUAGES:
    for thing in ("state_and_errors", "a_time_limit_and_an_interrupt_keep_the_state", "a_first_line_is_here_while_the_cell_runs",
                  "variables_of_one_cell", "nobody_to_ask", "something_rich", "in_order", "half_a_character", "nothing_is_left_running"):
        setattr(Languages, f"test_{language}_{thing}", of(language, thing))


class Python(unittest.TestCase):
    def test_top_level_await(self):
        self.assertEqual(main(run("import asyncio\nawait asyncio.sleep(0.01)\n5"))["text/plain"], "5")
        self.assertEqual(main(run("await Promise.resolve(6)", language="js"))["text/plain"], "6")

    def test_magics_and_shell_lines(self):
        self.assertIn("hello", run("!echo hello")["stdout"])
        self.assertIn("loop", run("%timeit -n1 -r1 1")["stdout"])
        self.assertEqual(run("%%bash\necho from $((6 * 7))")["stdout"], "from 42\n")

    def test_pip_installs_into_the_running_kernel(self):
        wheel = """
import zipfile
with zipfile.ZipFile('/tmp/islet-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('islet.py', 'size = 42')
    wheel.writestr('islet-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: islet\\nVersion: 1.0\\n')
    wheel.writestr('islet-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('islet-1.0.dist-info/RECORD', '')
"""
        run(wheel)
        self.assertIn("Successfully installed islet-1.0", run("!pip install --no-index /tmp/islet-1.0-py3-none-any.whl")["stdout"])
        self.assertEqual(main(run("import islet; islet.size"))["text/plain"], "42")

    def test_the_science_stack_works(self):
        code = """
import io, numpy, pandas, scipy.optimize, sklearn.linear_model, sympy, openpyxl, PIL.Image
x = numpy.arange(5.0)
model = sklearn.linear_model.LinearRegression().fit(x.reshape(-1, 1), 3 * x + 1)
book = io.BytesIO()
pandas.DataFrame({'a': [1, 2]}).to_excel(book, index=False)
(round(float(model.coef_[0]), 6), round(scipy.optimize.brentq(lambda v: v * v - 2, 0, 2), 6), str(sympy.diff(sympy.Symbol('t') ** 3)),
 int(pandas.read_excel(book)['a'].sum()), openpyxl.load_workbook(book).active['A3'].value, PIL.Image.fromarray(numpy.zeros((2, 3), 'uint8')).size)
"""
        self.assertEqual(main(run(code))["text/plain"], "(3.0, 1.414214, '3*t**2', 3, 2, (3, 2))")


class Contexts(unittest.TestCase):
    def test_their_own_variables(self):
        one, two = context(language="python"), context(language="python", cwd="/tmp")
        run("x = 1", context=one)
        self.assertEqual(run("x", context=two)["error"]["name"], "NameError")
        self.assertEqual(main(run("import os; os.getcwd()", context=two))["text/plain"], "'/tmp'")
        listed = cells.server.get(f"/v1/sandboxes/{cells.sandbox}/contexts").json["contexts"]
        self.assertLessEqual({one, two}, {entry["id"] for entry in listed})
        self.assertEqual(cells.server.post(f"/v1/sandboxes/{cells.sandbox}/contexts/{one}/restart").status, 200)
        self.assertEqual(run("x", context=one)["error"]["name"], "NameError")
        self.assertEqual(cells.server.delete(f"/v1/sandboxes/{cells.sandbox}/contexts/{one}").status, 204)
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

    def test_one_that_runs_out_of_memory(self):
        where = make(memory="512M")
        run("x = 1", where)
        result = run("held = []\nwhile True: held.append(bytearray(b'1') * (16 << 20))", where)
        self.assertEqual((result["status"], result["error"]["name"]), ("kernel_died", "KernelDied"), result)
        self.assertIn("out of memory", result["message"])
        self.assertEqual(run("x", where)["error"]["name"], "NameError")
        drop(where)

    def test_a_cell_that_does_not_stop(self):
        one = context()
        result = run("import time\nwhile True:\n  try: time.sleep(1000)\n  except KeyboardInterrupt: pass", context=one, timeout=0.5)
        self.assertEqual(result["status"], "kernel_died")
        self.assertIn("did not stop", result["message"])
        self.assertEqual(main(run("3", context=one))["text/plain"], "3")

    def test_frozen_and_thawed(self):
        where = make()
        run("x = 77", where)
        cells.server.post(f"/v1/sandboxes/{where}/freeze")
        cells.server.post(f"/v1/sandboxes/{where}/thaw")
        self.assertEqual(main(run("x", where))["text/plain"], "77")
        drop(where)

    def test_variables_that_come_with_a_snapshot_last(self):
        """The kernels run already when the sandbox gets them."""
        cells.needs_memory_images()
        where = make()
        self.addCleanup(drop, where)
        for language, row in LANGUAGES.items():
            run(row["set"], where, language=language)
        made = cells.server.post(f"/v1/sandboxes/{where}/snapshot", {})
        self.assertEqual(made.status, 201, made)
        copy = cells.server.create(snapshot=made.json["id"], env={"CELL": "lasts"}, timeout=3600)["id"]
        self.addCleanup(drop, copy)
        for language, row in LANGUAGES.items():
            with self.subTest(language):
                self.assertEqual(shown(language, run(row["show"], copy, language=language)), kept(language), "the same kernel")
                for _ in range(2):
                    self.assertEqual(run(row["env"], copy, language=language)["stdout"], "lasts\n")
                self.assertEqual(run(row["env"], copy, language=language, env={"CELL": "once"})["stdout"], "once\n")
                self.assertEqual(run(row["env"], copy, language=language)["stdout"], "lasts\n")

    def test_interrupts_in_a_row_do_not_put_off_the_end(self):
        one = context()
        lines = stream("import time\nprint('in', flush=True)\nwhile True:\n  try: time.sleep(1000)\n  except KeyboardInterrupt: pass", context=one)
        while next(lines)["type"] != "stdout":
            pass
        over, ends = threading.Event(), []
        reader = threading.Thread(target=lambda: (ends.extend(lines), over.set()))
        reader.start()
        for _ in range(200):  # each of them well before the kernel's time is up
            if over.wait(0.25):
                break
            self.assertEqual(cells.server.post(f"/v1/sandboxes/{cells.sandbox}/contexts/{one}/interrupt").status, 200)
        reader.join(1)
        self.assertEqual(ends[-1]["status"], "kernel_died", ends)

    def test_a_default_one_is_not_made_by_ending_it(self):
        where = make()
        self.addCleanup(drop, where)
        path = f"/v1/sandboxes/{where}/contexts"
        self.assertEqual(cells.server.delete(path + "/r").status, 204)
        for op in ("interrupt", "restart"):
            reply = cells.server.post(f"{path}/java/{op}")
            self.assertEqual((reply.status, reply.json["id"], reply.json["state"]), (200, "java", "off"), reply)
        self.assertEqual(cells.server.get(path).json["contexts"], [])

    def test_all_of_sixty_four(self):
        where = make(memory="4G", pids=8192)
        self.addCleanup(drop, where)
        # Kernels that are none, but answer as one: sixty-four real ones would be much for a small machine.
        run("1", where, language="bash")
        spec = json.dumps({"argv": ["/bin/sh", "-c", "exec sleep 100000"], "display_name": "S", "language": "slow"})
        cells.server.run(where, "d=/usr/local/share/jupyter/kernels/slow; mkdir -p $d && cat > $d/kernel.json", stdin=spec, user="root")
        path = f"/v1/sandboxes/{where}/contexts"
        waiting = [cells.server.connection() for _ in range(63)]
        for connection in waiting:
            connection.request("POST", path, json.dumps({"language": "slow"}), {"Authorization": "Bearer " + cells.server.key})
        eventually(lambda: len(cells.server.get(path).json["contexts"]) == 64)
        over = cells.server.post(path, {"language": "python"})
        self.assertEqual((over.status, over.json["error"]["code"]), (429, "exhausted"))
        self.assertEqual(run("echo on", where, language="sh")["stdout"], "on\n", "by another name of its language")
        for connection in waiting:
            connection.close()

    def test_the_sandbox_s_own_variables(self):
        where = make(env={"MINE": "yes"})
        self.assertEqual(run("import os; print(os.environ['MINE'])", where)["stdout"], "yes\n")
        drop(where)


class BadInput(unittest.TestCase):
    def test_unknown_language(self):
        reply = ask("1", language="cobol")
        self.assertEqual(reply.status, 404)
        for language in LANGUAGES:
            self.assertIn(language, reply.json["error"]["message"])

    def test_unknown_context(self):
        for reply in (ask("1", context="nope"), cells.server.post(f"/v1/sandboxes/{cells.sandbox}/contexts/nope/restart"),
                      cells.server.delete(f"/v1/sandboxes/{cells.sandbox}/contexts/nope")):
            self.assertEqual((reply.status, reply.json["error"]["code"]), (404, "not_found"))

    def test_language_and_context(self):
        self.assertEqual(ask("1", context="python", language="python").status, 400)
        self.assertEqual(cells.server.post(f"/v1/sandboxes/{cells.sandbox}/code", {"language": "python"}).status, 400)

    def test_a_cell_of_twenty_megabytes(self):
        result = run("x = '" + "y" * (20 << 20) + "'\nx.length", language="javascript")
        self.assertEqual(main(result)["text/plain"], str(20 << 20))

    def test_nul(self):
        self.assertEqual(run("a = 1\0")["status"], "error")
        self.assertEqual(main(run("1"))["text/plain"], "1")

    def test_a_broken_kernel_names_its_words(self):
        where = make()
        spec = json.dumps({"argv": ["/bin/sh", "-c", "echo no luck today >&2; exit 3"], "display_name": "B", "language": "broken"})
        cells.server.run(where, f"mkdir -p /usr/local/share/jupyter/kernels/broken && cat > /usr/local/share/jupyter/kernels/broken/kernel.json", stdin=spec)
        reply = ask("1", where, language="broken")
        self.assertEqual(reply.status, 500)
        self.assertIn("no luck today", reply.json["error"]["message"])
        self.assertIn("exit code 3", reply.json["error"]["message"])
        cells.server.run(where, "mkdir -p /usr/local/share/jupyter/kernels/worse; echo '{' > /usr/local/share/jupyter/kernels/worse/kernel.json")
        self.assertIn("not JSON", ask("1", where, language="worse").json["error"]["message"])
        drop(where)

    def test_a_pipe_in_the_place_of_a_kernel_spec(self):
        where = make()
        self.addCleanup(drop, where)
        run("1", where)
        cells.server.run(where, "mkdir -p ~/.local/share/jupyter/kernels/pipe && mkfifo ~/.local/share/jupyter/kernels/pipe/kernel.json", user="user")
        listed = cells.server.get(f"/v1/sandboxes/{where}/languages").json["languages"]
        self.assertIn("no file", next(one for one in listed if one["kernel"] == "pipe")["broken"])

    def test_a_template_without(self):
        plain = cells.server.create()["id"]
        reply = ask("1", plain)
        self.assertEqual((reply.status, "code-interpreter" in reply.json["error"]["message"]), (501, True), reply)
        cells.server.delete(f"/v1/sandboxes/{plain}")


class Floods(unittest.TestCase):
    """Cells that say much, and programs that do not stop saying it."""

    def test_one_that_displays_for_ever_has_its_time_limit(self):
        result = run("from IPython.display import display\nwhile True: display({}, raw=True)", timeout=2, max_output=10)
        self.assertIn(result["status"], ("timeout", "kernel_died"), result["status"])
        self.assertEqual(main(run("1 + 1"))["text/plain"], "2")

    def test_programs_in_the_background_of_a_shell(self):
        one = context(language="bash")
        result = run("yes & echo done", context=one, max_output="1M")
        self.assertEqual(result["status"], "ok")
        self.assertIn("done", result["stdout"])
        self.assertEqual(run("kill %1 2>/dev/null || pkill -x yes; true", context=one, max_output="1M")["status"], "ok")
        self.assertEqual(cells.server.delete(f"/v1/sandboxes/{cells.sandbox}/contexts/{one}").status, 204)

    def test_programs_that_r_starts_are_heard(self):
        result = run('invisible(system("echo hi; echo ü >&2"))', language="r")
        self.assertEqual(sorted(result["stdout"].split()), ["hi", "ü"], result)
        result = run('invisible(system("yes", wait = FALSE)); cat("started\\n")', language="r", max_output="1M")
        self.assertIn("started", result["stdout"])
        self.assertEqual(main(run("1 + 1"))["text/plain"], "2", "others are served")
        self.assertEqual(cells.server.delete(f"/v1/sandboxes/{cells.sandbox}/contexts/r").status, 204)
        eventually(lambda: cells.server.run(cells.sandbox, "pgrep -xc yes; true")["stdout"] == "0\n", what="yes is gone, too")


class Budgets(unittest.TestCase):
    """A cell is a command: counted, and in the ledger with its end."""

    def commands(self, where):
        return [e for e in cells.server.get(f"/v1/ledger?sandbox={where}&kind=command.&limit=1000").json["events"]
                if "isola-kernels" not in str(e["data"])]

    def test_cells_count(self):
        where = make(budget={"commands": 2}, task="count")
        self.assertEqual(run("1 + 1", where)["status"], "ok")
        self.assertEqual(ask("2 + 2", where, actor="ada").status, 200)
        over = ask("3 + 3", where)
        self.assertEqual((over.status, over.json["error"]["code"]), (429, "exhausted"))
        eventually(lambda: cells.server.get(f"/v1/sandboxes/{where}").json["state"] == "ended")
        started = [e for e in self.commands(where) if e["kind"] == "command.started" and "context" in e["data"]]
        ended = [e for e in self.commands(where) if e["kind"] == "command.ended" and "status" in e["data"]]
        self.assertEqual([e["data"]["command"] for e in started], ["1 + 1", "2 + 2"])
        self.assertEqual([e["data"]["status"] for e in ended], ["ok", "ok"])
        self.assertEqual({e["task"] for e in started + ended}, {"count"})
        self.assertEqual(started[1]["actor"], "ada")
        self.assertEqual(cells.server.get(f"/v1/usage?sandbox={where}").json["usage"][0]["commands"], 2)

    def test_a_visiting_tasks_cell_is_stopped_alone(self):
        where = make(task="host")
        run("x = 5", where)
        cells.server.request("PUT", "/v1/tasks/visit", {"budget": {"cpu_seconds": 0.5}})
        stopped = ask("while True: pass", where, task="visit")
        self.assertEqual((stopped.status, stopped.json["error"]["message"]), (429, "its task's budget is spent"))
        self.assertEqual(run("x", where)["results"][0]["data"]["text/plain"], "5", "the context lives on")
        last = [e for e in self.commands(where) if e["kind"] == "command.ended" and e["task"] == "visit"]
        self.assertEqual((last[-1]["data"]["reason"], last[-1]["data"]["detail"]), ("limit", "its task's budget is spent"))
        drop(where)

    def test_one_that_sleeps_is_not_ended_by_a_cell_too_many(self):
        if not cells.server.launcher_status().get("checkpointer"):
            self.skipTest("no criu here; `./dev criu` provides one")
        where = make(budget={"commands": 1}, auto_resume=False)
        run("1", where)
        self.assertEqual(cells.server.post(f"/v1/sandboxes/{where}/pause").status, 200)
        self.assertEqual(ask("2", where).status, 409)
        self.assertEqual(cells.server.get(f"/v1/sandboxes/{where}").json["state"], "paused")
        drop(where)

    def test_one_whose_caller_leaves_ends_in_the_ledger(self):
        connection = cells.server.connection()
        connection.request("POST", f"/v1/sandboxes/{cells.sandbox}/code", json.dumps({"code": "import time; time.sleep(500) # left"}),
                           {"Authorization": "Bearer " + cells.server.key})
        def entries(kind):
            return [e for e in self.commands(cells.sandbox) if e["kind"] == kind]
        start = eventually(lambda: [e for e in entries("command.started") if "# left" in e["data"]["command"]])[0]
        connection.sock.close()
        connection.close()
        end = eventually(lambda: [e for e in entries("command.ended") if e["data"]["command_id"] == start["data"]["command_id"]])[0]
        self.assertEqual(end["data"]["status"], "abandoned")

    def test_those_of_e2b(self):
        made = cells.server.post("/sandboxes", {"templateID": "code-interpreter-v1", "envVars": {"E2B_SANDBOX_ID": "forged"}}, key="",
                                 headers={"X-API-Key": cells.server.key})
        self.assertEqual(made.status, 201, made)
        inside = {"E2b-Sandbox-Id": made.json["sandboxID"], "E2b-Sandbox-Port": "49999",
                  "X-Access-Token": made.json["envdAccessToken"], "Content-Type": "application/json"}
        said = cells.server.post("/execute", {"code": "20 + 22"}, key="", headers=inside)
        self.assertEqual(said.status, 200, said)
        self.assertIn(b'"42"', said.body)
        which = cells.server.post("/execute", {"code": "import os; print(os.environ['E2B_SANDBOX_ID'])"}, key="", headers=inside)
        self.assertIn(made.json["sandboxID"].encode(), which.body)
        events = [e for e in self.commands(made.json["sandboxID"]) if e["data"].get("command") == "20 + 22"]
        self.assertEqual([(e["kind"], e["actor"], e["key"]) for e in events], [("command.started", "sandbox-token", "sandbox-token")])
        cells.server.delete("/sandboxes/" + made.json["sandboxID"], key="", headers={"X-API-Key": cells.server.key})


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
