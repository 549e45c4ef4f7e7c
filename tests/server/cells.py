"""What tests of the interpreter share: a server with a sandbox of the template code-interpreter, cells in it, and one row
of programs per language.

    import cells
    from cells import run, main
    setUpModule, tearDownModule = cells.begin, cells.end
    main(run("6 * 7"))["text/plain"]
"""
import base64
import os
import subprocess
import unittest

from island import FULL, Server, built

server = None
sandbox = None


def begin(*flags):
    """A server, and one sandbox of its that most tests use. Without started kernels in the pool, unless `flags` say so:
    tests are about what cells do, and who starts them ahead has a test of its own."""
    global server, sandbox
    needs_template()
    server = Server(*(flags or ("--pool", "0")))
    sandbox = make()


def end():
    if server:
        server.close()


def needs_template():
    if built("code-interpreter"):
        return
    if FULL:
        raise AssertionError("the full run needs the template: isola template build code-interpreter")
    raise unittest.SkipTest("the template code-interpreter is not built on this machine")


def needs_memory_images():
    if not server.launcher_status().get("checkpointer"):
        raise unittest.SkipTest("no criu here; `./dev criu` provides one")


def make(**more):
    made = server.create(**{"template": "code-interpreter-v1", "pids": 2048, "memory": "4G", **more})["id"]
    if tree := os.environ.get("ISOLA_CODE_TREE"):  # while working on what is inside: over what the template has
        tar = subprocess.run(["tar", "-C", tree, "-c", "."], capture_output=True, check=True).stdout
        java = "/usr/local/lib/isola/java"
        server.run(made, "rm -rf /usr/local/lib/isola/python/__pycache__; base64 -d | tar -x -C / --no-same-owner && "
                         f"javac -d {java} -sourcepath {java} {java}/Cells.java",
                   stdin=base64.b64encode(tar).decode(), user="root")
    return made


def drop(where):
    server.delete(f"/v1/sandboxes/{where}")


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


def shown(language, result):
    """What the program `show` of a language gave: its value, or what it printed."""
    return result["stdout"].strip() if LANGUAGES[language]["shown"] is None else main(result)["text/plain"]


def kept(language):
    return LANGUAGES[language]["shown"] or "42"


JS_FILE = ("console.log('first'); while (!require('fs').existsSync('{}')) await new Promise((go) => setTimeout(go, 10)); "
           "console.log('second')")

# One row per language:
#   set, show     a variable, and its value; `shown` is None where the program prints it
#   out           something on both streams
#   fail, name    an error, and its name
#   forever       never ends; `wait` prints `in` and waits
#   file          prints a line, waits for the file {}, prints another
#   env, unset    prints the variable CELL, and what it prints without
#   asks          wants input: `told` is in what it gets instead
#   many          prints {} times `z` in lines, or in one
#   rich, forms   shows something, and which forms that has
#   mixed         out, error, something shown, out: in this order
#   say           prints {} and a line's end
#   half          prints and shows half a character, then `after`; where there is no such thing: none
LANGUAGES = {
    "python": dict(
        say="print('{}')", half="print('a\\ud800b')\nfrom IPython.display import HTML, display\ndisplay(HTML('x\\ud800'))\nprint('after')",
        set="kept = 40", show="kept + 2", shown="42",
        out="import sys\nprint('aus ü✓')\nprint('err', file=sys.stderr)",
        fail="1/0", name="ZeroDivisionError",
        forever="while True: pass", wait="import time\nprint('in', flush=True)\ntime.sleep(1000)",
        file="import os, time\nprint('first', flush=True)\nwhile not os.path.exists('{}'): time.sleep(0.01)\nprint('second')",
        env="import os\nprint(os.environ.get('CELL'))", unset="None",
        asks="input('name? ')", told="input",
        many="print('z' * {}, end='')",
        rich="from IPython.display import HTML, display\ndisplay(HTML('<b>ü</b>'))", forms={"text/html": "<b>ü</b>"},
        mixed="import sys\nprint('a', flush=True)\nprint('b', file=sys.stderr, flush=True)\n"
              "from IPython.display import HTML, display\ndisplay(HTML('c'))\nprint('d')"),
    "javascript": dict(
        say="console.log('{}')", half="console.log('a\\ud800b'); display({a: '\\ud800'}); console.log('after')",
        set="const kept = 40", show="kept + 2", shown="42", out="console.log('aus ü✓'); console.error('err')",
        fail="null.x", name="TypeError",
        forever="for (;;) {}", wait="console.log('in'); await new Promise(() => {})", file=JS_FILE,
        env="console.log(String(process.env.CELL))", unset="undefined",
        asks="require('fs').readFileSync(0, 'utf8') === '' ? 'nobody' : 'somebody'", told="nobody",
        many="void process.stdout.write('z'.repeat({}))",
        rich="display.html('<b>ü</b>')", forms={"text/html": "<b>ü</b>"},
        mixed="console.log('a'); console.error('b'); display.html('c'); console.log('d')"),
    "typescript": dict(
        say="console.log('{}')", half="console.log('a\\ud800b'); display({a: '\\ud800'}); console.log('after')",
        set="interface A { n: number }\nconst kept: A = { n: 40 }", show="(kept.n as number) + 2", shown="42",
        out="console.log('aus ü✓' as string); console.error('err')",
        fail="throw new RangeError('no' as string)", name="RangeError",
        forever="for (;;) {}", wait="console.log('in' as string); await new Promise<void>(() => {})", file=JS_FILE,
        env="console.log(String(process.env.CELL))", unset="undefined",
        asks="require('fs').readFileSync(0, 'utf8') === '' ? 'nobody' : 'somebody'", told="nobody",
        many="void process.stdout.write('z'.repeat({}))",
        rich="const o: object = { n: [1, 'ü'] }; display(o)", forms={"application/json": {"n": [1, "ü"]}},
        mixed="console.log('a'); console.error('b'); display.html('c'); console.log('d')"),
    "bash": dict(
        say='echo {}', half='printf \'a\\xed\\xa0\\x80b\\n\'; printf \'"\\\\ud800"\' | display -t application/json; echo after',
        set="kept=42", show="echo $kept", shown=None, out="echo 'aus ü✓'; echo err >&2", fail="false", name="ExitCode",
        forever="while :; do :; done", wait="echo in; sleep 1000",
        file="echo first; while ! [ -e {} ]; do sleep 0.01; done; echo second",
        env="echo ${CELL-None}", unset="None",
        asks="read x || echo nobody", told="nobody",
        many="head -c {} /dev/zero | tr '\\0' z",
        rich="echo '<b>ü</b>' > /tmp/rich.html; display /tmp/rich.html", forms={"text/html": "<b>ü</b>\n"},
        # Two pipes of a shell have no order between them; each has its own.
        mixed="echo a; display -t text/html <<< c; echo d"),
    "r": dict(
        say="cat('{}\\n')", half="cat('a\\xed\\xa0\\x80b\\n'); cat('after\\n')",
        set="kept <- 40", show="kept + 2", shown="[1] 42", out="cat('aus ü✓\\n'); message('err')",
        fail="stop('no')", name="",
        forever="repeat {}", wait="cat('in\\n'); flush(stdout()); Sys.sleep(1000)",
        file="cat('first\\n'); flush(stdout()); while (!file.exists('{}')) Sys.sleep(0.01); cat('second\\n')",
        env="cat(Sys.getenv('CELL', 'None'), '\\n', sep='')", unset="None",
        asks="readline('name? ')", told="input",
        many="cat(strrep('z', {}))",
        rich="data.frame(n = c(1, 2), s = c('x', 'ü'))", forms={"text/html": "<table"},
        mixed="cat('a\\n'); message('b'); IRdisplay::display_html('c'); cat('d\\n')"),
    "java": dict(
        say='System.out.println("{}");', half='System.out.println("a" + (char) 0xd800 + "b"); Display.html("" + (char) 0xd800); '
                                              'Display.json("\\"\\\\ud800\\""); System.out.println("after");',
        set="int kept = 40;", show="kept + 2", shown="42",
        out='System.out.println("aus ü✓"); System.err.println("err");',
        fail='throw new IllegalStateException("no");', name="java.lang.IllegalStateException",
        forever="while (true) {}", wait='System.out.println("in"); Thread.sleep(1000000);',
        file='System.out.println("first"); while (!new java.io.File("{}").exists()) Thread.sleep(10); System.out.println("second");',
        env='System.out.println(System.getProperty("CELL", "None"));', unset="None",
        asks='System.in.read() < 0 ? "nobody" : "somebody"', told="nobody",
        many='System.out.print("z".repeat({}));',
        rich='Display.html("<b>ü</b>");', forms={"text/html": "<b>ü</b>"},
        mixed='System.out.println("a"); System.err.println("b"); Display.html("c"); System.out.println("d");'),
}
