"""isola code and isola repl: as a program that is given a file, and at a terminal.

Skipped where the template code-interpreter is not built (`isola template build code-interpreter`)."""
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

import cells
from island import ISOLA, eventually
from terminal import Terminal

setUpModule, tearDownModule = cells.begin, cells.end


def environment(**more):
    ours = ("ISOLA_URL", "ISOLA_API_KEY", "KITTY_WINDOW_ID", "TERM_PROGRAM", "TMUX")
    return {**{k: v for k, v in os.environ.items() if k not in ours}, "ISOLA_DATA": cells.server.data, "TERM": "xterm", **more}


def sandboxes():
    return {one["id"] for one in cells.server.get("/v1/sandboxes?state=running").json["sandboxes"]}


class Code(unittest.TestCase):
    def isola(self, *words, text="", code=0):
        done = subprocess.run([ISOLA, *words], input=text, capture_output=True, text=True, timeout=300, env=environment())
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_code(self):
        done = self.isola("code", "-", "--sandbox", cells.sandbox, text="print('from the shell')\n6 * 7")
        self.assertEqual(done.stdout, "from the shell\n42\n")
        done = self.isola("code", "-l", "bash", "--sandbox", cells.sandbox, "-", text="echo out; echo err >&2; exit_code() { return 3; }; exit_code", code=1)
        self.assertEqual(done.stdout, "out\n")
        self.assertIn("err\n", done.stderr)
        self.isola("code", "-s", cells.sandbox, "--timeout", "1s", "-", text="while True: pass", code=124)

    def test_code_in_a_sandbox_of_its_own(self):
        before = sandboxes()
        path = os.path.join(cells.server.data, "cell.js")
        with open(path, "w") as file:
            file.write("console.log([1, 2].map((n) => n + 1))")
        self.assertEqual(self.isola("code", path).stdout, "[ 2, 3 ]\n")
        eventually(lambda: sandboxes() <= before)

    def test_repl(self):
        done = self.isola("repl", "--sandbox", cells.sandbox, text="x = 3\ndef f(n):\n  return n + x\n\nf(4)\n")
        self.assertIn("7\n", done.stdout)

    def test_all_languages_by_the_file_s_name(self):
        programs = {"a.py": "print(1 + 1)", "a.js": "console.log(1 + 1)", "a.ts": "console.log((1 as number) + 1)", "a.sh": "echo $((1 + 1))",
                    "a.R": "cat(1 + 1, '\\n', sep = '')", "a.java": "System.out.println(1 + 1);"}
        for name, code in programs.items():
            with self.subTest(name):
                path = os.path.join(cells.server.data, name)
                with open(path, "w") as file:
                    file.write(code)
                self.assertEqual(self.isola("code", "-s", cells.sandbox, path).stdout, "2\n")

    def test_json(self):
        lines = self.isola("code", "--json", "-s", cells.sandbox, "-", text="6 * 7").stdout.splitlines()
        self.assertEqual([json.loads(line)["type"] for line in lines], ["start", "result", "end"])

    def test_bad_input(self):
        self.assertIn("python", self.isola("code", "-l", "cobol", "-s", cells.sandbox, "-", text="1", code=125).stderr)
        self.assertIn("No such file", self.isola("code", "/nowhere/cell.py", code=125).stderr)
        self.assertIn("ZeroDivisionError", self.isola("code", "-s", cells.sandbox, "-", text="1/0", code=1).stderr)

    def test_stopped_by_a_signal_it_leaves_nothing(self):
        before = sandboxes()
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                program = subprocess.Popen([ISOLA, "code", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                           env=environment(), text=True)
                program.stdin.write("import time\nprint('in', flush=True)\ntime.sleep(1000)")
                program.stdin.close()
                self.assertEqual(program.stdout.readline(), "in\n")
                program.send_signal(number)
                self.assertEqual((program.stdout.read(), program.wait(60)), ("", 128 + number))
                program.stdout.close()
                eventually(lambda: sandboxes() <= before, 60, "the end of its sandbox")


class Repl(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.home.cleanup()

    def repl(self, *words, **env):
        return Terminal([ISOLA, "repl", *words], environment(HOME=self.home.name, **env))

    def test_cells_history_and_interrupts(self):
        terminal = self.repl("-s", cells.sandbox)
        terminal.shows(b"python> ")
        terminal.type(b"x = 6\r")
        terminal.shows(b"python> ")
        terminal.type(b"for i in range(2):\r")
        terminal.shows(b"....... ")
        terminal.type(b"  print('row', i * x)\r\r")
        terminal.shows(b"row 0\r\nrow 6\r\n")
        terminal.type(b"import time; print('in'.upper(), flush=True); time.sleep(1000)\r")
        terminal.shows(b"IN\r\n")
        terminal.type(b"\x03")
        terminal.shows(b"KeyboardInterrupt")
        terminal.shows(b"python> ")
        # At the prompt it drops what was typed, as everywhere.
        terminal.type(b"never sent\x03")
        terminal.shows(b"python> ")
        terminal.type(b"x * 7\r")
        terminal.shows(b"42\r\n")
        terminal.shows(b"python> ")
        terminal.type(b"\x04")
        self.assertEqual(terminal.finish(), 0)
        self.assertNotIn(b"NameError", terminal.screen)
        file = os.path.join(self.home.name, ".local/state/isola/repl_history")
        self.assertEqual(stat.S_IMODE(os.stat(file).st_mode), 0o600)
        # The next one knows the cells of this one: the last is one key away, the block of three lines is whole.
        again = self.repl("-s", cells.sandbox)
        again.shows(b"python> ")
        again.type(b"x = 8\r")
        again.shows(b"python> ")
        again.type(b"\x1b[A\x1b[A\r")
        again.shows(b"56\r\n")
        again.shows(b"python> ")
        again.type(b"\x04")
        self.assertEqual(again.finish(), 0)

    def test_pictures_where_the_terminal_can(self):
        plot = b"from PIL import Image; Image.new('RGB', (4, 4), 'red')\r"
        for env, wanted in (({"KITTY_WINDOW_ID": "1"}, b"\x1b_Ga=T,f=100,m=0;iVBOR"), ({"TERM": "xterm-ghostty"}, b"\x1b_Ga=T,f=100,m=0;iVBOR"),
                            ({"TERM_PROGRAM": "iTerm.app"}, b"\x1b]1337;File=inline=1:iVBOR"), ({}, b"<PIL.Image.Image"),
                            ({"KITTY_WINDOW_ID": "1", "TMUX": "/tmp/t,1,0", "TERM": "screen"}, b"<PIL.Image.Image")):
            with self.subTest(env=env):
                terminal = self.repl("-s", cells.sandbox, "--context", "python", **env)
                terminal.shows(b"python> ")
                terminal.type(plot)
                terminal.shows(wanted)
                terminal.shows(b"python> ")
                terminal.type(b"\x04")
                self.assertEqual(terminal.finish(), 0)

    def test_another_language_in_a_sandbox_of_its_own(self):
        before = sandboxes()
        terminal = self.repl("-l", "bash")
        terminal.shows(b"bash> ")
        terminal.type(b"echo $((6 * 7))\r")
        terminal.shows(b"42\r\n")
        terminal.shows(b"bash> ")
        terminal.type(b"\x04")
        self.assertEqual(terminal.finish(), 0)
        eventually(lambda: sandboxes() <= before, 60, "the end of its sandbox")


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
