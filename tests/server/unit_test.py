"""The systemd unit: systemd itself has nothing to complain of, and what it would run is a server that works."""
import configparser
import os
import resource
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.request

from island import ISOLA, Server, eventually

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy")
INSTALLED = "/usr/local/bin/isola"


def unit():
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str
    parsed.read(os.path.join(DEPLOY, "isola.service"))
    return parsed


class Unit(unittest.TestCase):
    def test_systemd_takes_it(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("there is no systemd-analyze here")
        with tempfile.TemporaryDirectory() as folder, open(os.path.join(DEPLOY, "isola.service")) as file:
            text = file.read()
            self.assertIn(INSTALLED, text)
            path = os.path.join(folder, "isola.service")
            # Only where the program lies differs: here it is not installed.
            for content, good in ((text.replace(INSTALLED, ISOLA), True),
                                  (text.replace(INSTALLED, ISOLA).replace("KillMode=process", "KilMode=process"), False)):
                with open(path, "w") as copy:
                    copy.write(content)
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
                said = [line for line in done.stderr.splitlines() if "isola" in line]
                self.assertEqual((done.returncode == 0 and not said), good, done.stderr)

    def test_users(self):
        if not shutil.which("systemd-sysusers"):
            self.skipTest("there is no systemd-sysusers here")
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(os.path.join(root, "etc"))
            done = subprocess.run(["systemd-sysusers", "--root", root, os.path.abspath(os.path.join(DEPLOY, "isola.sysusers.conf"))],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(root, "etc/passwd")) as file:
                self.assertEqual({line.split(":")[0] for line in file} & {"isola", "isola-gate"}, {"isola", "isola-gate"})

    def test_what_it_runs(self):
        service = unit()["Service"]
        program, *words = shlex.split(service["ExecStart"])
        self.assertEqual(program, INSTALLED)
        data = tempfile.mkdtemp(prefix="isola-unit-", dir="/var/tmp")
        port = Server.free_port()
        # Places and the port are the test's; options are the unit's. As systemd does: nothing else of our environment.
        environment = {"PATH": os.environ["PATH"], "ISOLA_DATA": data, "ISOLA_LISTEN": f"127.0.0.1:{port}",
                       "ISOLA_DEFAULTS_TEMPLATE": "minimal"}
        with open("/proc/sys/fs/nr_open") as file:
            files = min(int(service["LimitNOFILE"]), int(file.read()))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        log = open(os.path.join(data, "unit.log"), "ab")

        def limit():
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
            except ValueError:  # a root that may not raise limits: then what there is
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

        def start():
            return subprocess.Popen([ISOLA, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/",
                                    preexec_fn=limit)

        def ask(path, body=None):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body)
            if os.path.exists(os.path.join(data, "key")):
                with open(os.path.join(data, "key")) as file:
                    request.add_header("Authorization", "Bearer " + file.read().strip())
            try:
                with urllib.request.urlopen(request, timeout=20) as reply:
                    return reply.status, reply.read()
            except OSError:
                return 0, b""

        def said(words):
            with open(os.path.join(data, "unit.log")) as file:
                return words in file.read()

        server = None
        try:
            server = start()
            eventually(lambda: ask("/readyz")[0] == 200, what="a server that is ready")
            self.assertEqual(ask("/v1/sandboxes", b'{"name": "lasting"}')[0], 201)
            with open(f"/proc/{server.pid}/limits") as file:
                self.assertRegex(file.read(), rf"Max open files +({files} +{files}|{most} +{most}) ")
            reload = [word.replace("$MAINPID", str(server.pid)) for word in shlex.split(service["ExecReload"])]
            self.assertEqual(subprocess.run(reload).returncode, 0)
            eventually(lambda: said("reloaded keys"), what="the reload")
            # KillMode=process: the server alone gets the signal, and what it made lives on.
            self.assertEqual(service["KillMode"], "process")
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(30), 0)
            server = start()
            eventually(lambda: ask("/readyz")[0] == 200, what="the next server")
            status, body = ask("/v1/sandboxes/lasting/commands", b'{"command": "echo here"}')
            self.assertEqual(status, 200)
            self.assertIn(b'"here\\n"', body)
        finally:
            if server:
                server.terminate()
                server.wait(30)
            log.close()
            subprocess.run([ISOLA, "launcher", "stop", "--all", "--data", data], capture_output=True, timeout=60)
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    unittest.main()
