"""Kernels that are not ours: any installed Jupyter kernel is a language, by whatever road it is spoken to."""
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import cells
from cells import ask, context, drop, main, make, run, stream

tearDownModule = cells.end

FOLDER = "/usr/local/share/jupyter/kernels"
STRANGER = ("xeus-python==0.19.0", "xeus-python-shell==0.8.1")  # written in C++: shares no line with ipykernel


def setUpModule():
    cells.begin()
    # The template may have been built by an earlier version of what is inside.
    if cells.server.run(cells.sandbox, "grep -q 'holds a NUL byte' /usr/local/lib/isola/isola-kernels")["exit_code"]:
        cells.end()
        cells.server = None
        why = "the template code-interpreter is of an earlier version: isola template build code-interpreter"
        assert not cells.FULL, why
        raise unittest.SkipTest(why)


def install(where, name, **spec):
    text = json.dumps({"argv": ["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                       "display_name": name, "language": name, **spec})
    cells.server.run(where, f"mkdir -p {FOLDER}/{name} && cat > {FOLDER}/{name}/kernel.json", stdin=text, user="root")


def wheels(version):
    """The stranger's, fetched by the host's own pip; skipped where there is no package index."""
    folder = tempfile.mkdtemp(prefix="isola-wheels-")
    got = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
                          "--python-version", version, "-d", folder, *STRANGER], capture_output=True, text=True)
    return folder, got


class Foreign(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.box = make()
        cls.addClassCleanup(drop, cls.box)

    def interrupted(self, language):
        """A cell that never ends by itself is interrupted, and what it had done is still there."""
        where = context(self.box, language=language)
        run("kept = 41", self.box, context=where)
        said = []
        for event in stream("kept += 1\nprint('in', flush=True)\nwhile True: pass", self.box, context=where):
            said.append(event)
            if event["type"] == "stdout":
                stopped = cells.server.post(f"/v1/sandboxes/{self.box}/contexts/{where}/interrupt", {})
                self.assertLess(stopped.status, 300, stopped)
        errors = [one for one in said if one["type"] == "error"]
        self.assertEqual([one["name"] for one in errors], ["KeyboardInterrupt"], said)
        self.assertEqual(main(run("kept", self.box, context=where))["text/plain"], "42")

    def test_one_that_is_interrupted_by_a_message(self):
        install(self.box, "messaged", interrupt_mode="message")
        self.interrupted("messaged")

    def test_one_that_is_interrupted_by_a_signal(self):
        install(self.box, "signalled", interrupt_mode="signal")
        self.interrupted("signalled")

    def test_one_over_tcp(self):
        install(self.box, "wired", metadata={"isola": {"transport": "tcp"}})
        run("kept = 6", self.box, language="wired")
        self.assertEqual(main(run("kept * 7", self.box, language="wired"))["text/plain"], "42")
        asked = "from ipykernel.kernelapp import IPKernelApp; IPKernelApp.instance().transport"
        self.assertEqual(main(run(asked, self.box, language="wired"))["text/plain"], "'tcp'")

    def test_one_that_says_nothing_is_spoken_to_by_files(self):
        install(self.box, "usual")
        asked = "from ipykernel.kernelapp import IPKernelApp; IPKernelApp.instance().transport"
        self.assertEqual(main(run(asked, self.box, language="usual"))["text/plain"], "'ipc'")

    def test_its_own_variables_of_the_environment(self):
        install(self.box, "furnished", env={"FROM_SPEC": "so it is"})
        self.assertEqual(run("import os; print(os.environ['FROM_SPEC'])", self.box, language="furnished")["stdout"], "so it is\n")

    def test_one_of_strangers(self):
        version = cells.server.run(self.box, "python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'")["stdout"].strip()
        folder, got = wheels(version)
        self.addCleanup(subprocess.run, ["rm", "-rf", folder])
        if got.returncode:
            self.skipTest("no package index here: " + got.stderr.strip().splitlines()[-1])
        for wheel in glob.glob(folder + "/*.whl"):
            with open(wheel, "rb") as data:
                put = cells.server.request("PUT", f"/v1/sandboxes/{self.box}/files?path=/tmp/{os.path.basename(wheel)}", data.read())
            self.assertLess(put.status, 300, put)
        done = cells.server.run(self.box, "pip install --break-system-packages --no-index --no-deps /tmp/xeus*.whl", user="root")
        self.assertEqual(done["exit_code"], 0, done)
        languages = cells.server.get(f"/v1/sandboxes/{self.box}/languages").json["languages"]
        self.assertIn("xpython", [one["kernel"] for one in languages])
        where = context(self.box, language="xpython")
        run("kept = 40", self.box, context=where)
        self.assertEqual(main(run("kept + 2", self.box, context=where))["text/plain"], "42")
        self.assertEqual(run("print('aus ü')", self.box, context=where)["stdout"], "aus ü\n")
        failed = run("1 / 0", self.box, context=where)
        self.assertEqual(failed["status"], "error")
        self.assertIn("ZeroDivisionError", failed["error"]["name"])
        listed = cells.server.get(f"/v1/sandboxes/{self.box}/contexts").json["contexts"]
        self.assertEqual([one["restarts"] for one in listed if one["id"] == where], [0])


class Agent(unittest.TestCase):
    """isola-kernels, which speaks to the kernels from inside, is as mortal as they are."""

    def test_killed_in_the_middle_of_a_cell(self):
        where = make()
        self.addCleanup(drop, where)
        events = []
        for event in stream("print('in', flush=True)\nimport time\ntime.sleep(600)", where):
            events.append(event)
            if event["type"] == "stdout":
                killed = cells.server.run(where, "pkill -9 -x isola-kernels", user="root")
                self.assertEqual(killed["exit_code"], 0, killed)
        self.assertEqual((events[-1]["type"], events[-1]["code"]), ("failure", "unavailable"), events)
        # The next one finds new kernels.
        deadline = time.monotonic() + 60
        while (reply := ask("6 * 7", where)).status != 200 and time.monotonic() < deadline:
            self.assertIn(reply.status, (500, 502, 503), reply)
        self.assertEqual(main(reply.json)["text/plain"], "42")

    def test_nul_in_names(self):
        for fields in ({"cwd": "/tmp/\0x"}, {"language": "py\0thon"}):
            reply = cells.server.post(f"/v1/sandboxes/{cells.sandbox}/contexts", fields)
            self.assertIn(reply.status, (400, 404), (fields, reply))
        reply = ask("1", context="ab\0cd")
        self.assertIn(reply.status, (400, 404), reply)
        self.assertEqual(main(run("1"))["text/plain"], "1")


if __name__ == "__main__":
    unittest.main()
