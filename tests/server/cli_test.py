"""The isola command against a server: what a person types, and what comes back."""
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import unittest

from island import ISOLA, Server, eventually
from terminal import Terminal

server = None


def setUpModule():
    global server
    server = Server("--sample", "300ms")


def tearDownModule():
    server.close()


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if k not in ("ISOLA_URL", "ISOLA_API_KEY", "E2B_API_KEY")}
    return {**clean, "ISOLA_DATA": server.data, **more}


def isola(*words, input=b"", env=None, code=0):
    done = subprocess.run([ISOLA, *words], input=input, capture_output=True, env=environment(**(env or {})), timeout=120)
    if code is not None:
        assert done.returncode == code, f"isola {' '.join(words)}: {done.returncode}, not {code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def start(*words, **more):
    return subprocess.Popen([ISOLA, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), **more)


def create(*words):
    return isola("sandbox", "create", *words).stdout.decode().strip()


class WithSandbox(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.id = create()

    @classmethod
    def tearDownClass(cls):
        isola("sandbox", "kill", cls.id)


class Life(unittest.TestCase):
    def test_create_list_get_kill(self):
        id = create("--name", "boxy", "-l", "team=red", "--task", "t1", "--timeout", "10m", "--memory", "256M")
        self.assertRegex(id, "^i[a-z0-9]{20}$")
        table = isola("sandbox", "ls").stdout.decode()
        self.assertRegex(table, rf"{id}  boxy +running +minimal +jail .* ago|now")
        self.assertIn(id, isola("sandbox", "ls", "-q", "-l", "team=red").stdout.decode().split())
        self.assertNotIn(id, isola("sandbox", "ls", "-q", "-l", "team=blue").stdout.decode().split())
        for name in (id, "boxy", id[:12]):
            self.assertEqual(json.loads(isola("sandbox", "get", name, "--json").stdout)["id"], id)
        self.assertIn("256.0 MiB", isola("sandbox", "get", "boxy").stdout.decode())
        self.assertIn("ends in", isola("sandbox", "extend", "boxy", "2h").stdout.decode())
        self.assertEqual(json.loads(isola("sandbox", "freeze", "boxy", "--json").stdout)["state"], "frozen")
        self.assertEqual(json.loads(isola("sandbox", "thaw", "boxy", "--json").stdout)["state"], "running")
        isola("sandbox", "kill", "boxy")
        self.assertNotIn(id, isola("sandbox", "ls", "-q").stdout.decode())
        self.assertIn("ended (killed)", isola("sandbox", "ls", "--all").stdout.decode())
        gone = isola("exec", id, "true", code=125)
        self.assertRegex(gone.stderr.decode(), r"^isola: sandbox i.* has ended \(killed\).*\(request .*\)\n$")

    def test_who_may_and_who_answers(self):
        wrong = isola("sandbox", "ls", env={"ISOLA_API_KEY": "e2b_" + "0" * 40}, code=125)
        self.assertIn(b"does not accept the API key of ISOLA_API_KEY (request", wrong.stderr)
        with tempfile.TemporaryDirectory() as empty:
            none = isola("sandbox", "ls", "--data", empty, "--url", server.url, code=125)
            self.assertIn(b"wants an API key", none.stderr)
        nobody = isola("sandbox", "ls", "--url", "http://127.0.0.1:1", code=125)
        self.assertIn(b"no server answers at http://127.0.0.1:1: `isola up` starts one", nobody.stderr)
        second = isola("serve", "--data", server.data, "--listen", "127.0.0.1:0", code=125)
        self.assertIn(b"a server runs on", second.stderr)

    def test_keys_and_projects(self):
        made = isola("project", "create", "cli-project", "--sandboxes", "3").stdout.decode()
        project = made.split(":")[0]
        self.assertIn("3 sandboxes", made)
        limited = isola("project", "limit", "cli-project", "--memory", "1G").stdout.decode()
        self.assertIn("memory 1.0 GiB", limited)
        self.assertIn("3 sandboxes", limited)
        key = isola("key", "create", "--name", "mine", "--project", "cli-project", "--scope", "use")
        secret = key.stdout.decode().strip()
        self.assertRegex(secret, "^e2b_[0-9a-f]{40}$")
        id = re.search(r"key (k\w+)", key.stderr.decode())[1]
        listed = isola("key", "ls").stdout.decode()
        self.assertRegex(listed, rf"{id} +mine +{project} +use")
        self.assertNotIn(secret, listed)
        self.assertRegex(listed, rf"{id} .* never")
        self.assertEqual(isola("sandbox", "ls", "-q", env={"ISOLA_API_KEY": secret}).stdout, b"")
        self.assertNotRegex(isola("key", "ls").stdout.decode(), rf"{id} .* never")
        isola("key", "revoke", id)
        isola("sandbox", "ls", env={"ISOLA_API_KEY": secret}, code=125)


class Exec(WithSandbox):
    def test_exit_codes(self):
        for code in (0, 1, 3, 125, 255):
            isola("exec", self.id, "--", "sh", "-c", f"exit {code}", code=code)
        isola("sandbox", "exec", self.id, "sh", "-c", "kill -TERM $$", code=143)
        isola("exec", self.id, "no-such-program", code=127)
        isola("exec", self.id, "/etc/passwd", code=126)
        isola("exec", self.id, "-n", "--timeout", "300ms", "sleep", "100", code=124)

    def test_streams_are_exact(self):
        noise = os.urandom(3 << 20)
        echoed = isola("exec", self.id, "cat", input=noise)
        self.assertEqual(echoed.stdout, noise)
        both = isola("exec", self.id, "-e", "A=x y", "-w", "/tmp", "sh", "-c", 'echo "$A $PWD"; echo err >&2')
        self.assertEqual((both.stdout, both.stderr), (b"x y /tmp\n", b"err\n"))
        self.assertEqual(isola("exec", self.id, "echo", "a", "--", "--user", "-n").stdout, b"a -- --user -n\n")
        self.assertEqual(isola("exec", self.id, "true", input=noise).stdout, b"")
        clean = isola("exec", self.id, "-n", "--clean", "printf", r"a\033[2Jb\n")
        self.assertEqual(clean.stdout, b"ab\n")

    def test_json(self):
        done = json.loads(isola("exec", self.id, "--json", "sh", "-c", "echo out; exit 4", code=4).stdout)
        self.assertEqual((done["stdout"], done["exit_code"]), ("out\n", 4))

    def test_signals_go_inside(self):
        # Not a shell: what it has just forked has its traps, too, and the signal goes to all of them.
        waits = ("import os, signal, time\n"
                 "signal.signal(signal.SIGINT, lambda *_: (os.write(1, b'caught\\n'), os._exit(9)))\n"
                 "os.write(1, b'ready\\n')\n"
                 "while True: time.sleep(0.05)\n")
        program = start("exec", self.id, "python3", "-c", waits)
        self.assertEqual(program.stdout.readline(), b"ready\n")
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.communicate(timeout=60)[0], b"caught\n")
        self.assertEqual(program.returncode, 9)

    def test_detached_and_its_logs(self):
        command = isola("exec", "-d", self.id, "sh", "-c", "echo one; sleep 1000").stdout.decode().strip()
        self.assertRegex(command, "^c[a-z0-9]{12}$")
        eventually(lambda: isola("sandbox", "logs", self.id, command[:8]).stdout == b"one\n", what="output")
        self.assertRegex(isola("sandbox", "logs", self.id).stdout.decode(), rf"{command} .* running +sh -c")
        follower = start("sandbox", "logs", "-f", self.id, command)
        self.assertEqual(follower.stdout.readline(), b"one\n")
        server.post(f"/v1/sandboxes/{self.id}/commands/{command}/signal", {"signal": "KILL"})
        follower.communicate(timeout=60)
        self.assertEqual(follower.returncode, 0)

    def test_what_could_not_be_printed_is_said(self):
        for words in (("sandbox", "ls"), ("key", "create", "--name", "unheard"), ("run", "--help")):
            with open("/dev/full", "w") as full:
                done = subprocess.run([ISOLA, *words], stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=60)
            self.assertEqual(done.returncode, 125, words)
            self.assertIn(b"cannot write the output: No space left", done.stderr)

    def test_a_folder_that_is_named_means_its_server(self):
        elsewhere = {"ISOLA_URL": "http://127.0.0.1:1", "ISOLA_API_KEY": "e2b_nobodys"}
        isola("sandbox", "ls", "--data", server.data, env=elsewhere)
        with tempfile.TemporaryDirectory() as empty:
            done = isola("sandbox", "ls", "--data", empty, env=elsewhere, code=125)
        self.assertIn(f"no server runs on {empty}".encode(), done.stderr)

    def test_a_lost_server_is_waited_for(self):
        program = start("exec", "-n", self.id, "sh", "-c", "echo before; while ! test -e /tmp/go; do sleep 0.1; done; echo after; exit 6")
        self.assertEqual(program.stdout.readline(), b"before\n")
        port = server.port
        server.stop(signal.SIGKILL)
        server.start(port)
        isola("exec", "-n", self.id, "touch", "/tmp/go")
        out, err = program.communicate(timeout=60)
        self.assertEqual((out, program.returncode), (b"after\n", 6), err)


class Copies(WithSandbox):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="isola-cp-")
        self.here = self.folder.name

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.here, name)

    def test_files_both_ways(self):
        noise = os.urandom(2 << 20)
        with open(self.path("in"), "wb") as file:
            file.write(noise)
        os.chmod(self.path("in"), 0o750)
        isola("cp", self.path("in"), f"{self.id}:/tmp/")
        self.assertEqual(isola("exec", self.id, "stat", "-c", "%a %s", "/tmp/in").stdout, b"750 %d\n" % len(noise))
        isola("cp", f"{self.id}:/tmp/in", self.here + "/out")
        with open(self.path("out"), "rb") as file:
            self.assertEqual(file.read(), noise)
        self.assertEqual(sorted(os.listdir(self.here)), ["in", "out"])
        isola("cp", "-", f"{self.id}:/tmp/piped", input=b"from a pipe")
        self.assertEqual(isola("cp", f"{self.id}:/tmp/piped", "-").stdout, b"from a pipe")
        told = json.loads(isola("cp", "--json", self.path("in"), f"{self.id}:/tmp/again").stdout)
        self.assertEqual(told, {"path": "/tmp/again", "bytes": len(noise)})

    def test_folders_both_ways(self):
        os.makedirs(self.path("tree/deep"))
        with open(self.path("tree/deep/file"), "w") as file:
            file.write("x")
        os.symlink("deep/file", self.path("tree/link"))
        isola("cp", self.path("tree"), f"{self.id}:/tmp")
        self.assertEqual(isola("exec", self.id, "sh", "-c", "cd /tmp/tree && cat deep/file link").stdout, b"xx")
        isola("cp", "-r", f"{self.id}:/tmp/tree", self.path("back"))
        self.assertEqual(os.readlink(self.path("back/link")), "deep/file")
        archive = isola("cp", f"{self.id}:/tmp/tree", "-").stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            self.assertIn("./deep/file", tar.getnames())

    def test_what_comes_out_has_no_power(self):
        isola("exec", self.id, "sh", "-c", "mkdir -p /tmp/bad && cp /bin/sh /tmp/bad/sh && chmod 6755 /tmp/bad/sh")
        isola("cp", f"{self.id}:/tmp/bad", self.path("bad"))
        self.assertEqual(os.stat(self.path("bad/sh")).st_mode & 0o7000, 0)

    def test_bad_input(self):
        for words, says in ((("a", "b"), b"one side must be in a sandbox"),
                            ((f"{self.id}:/a", f"{self.id}:/b"), b"from one sandbox to another"),
                            ((self.path("none"), f"{self.id}:/a"), b"No such file"),
                            ((f"{self.id}:/none", self.here), b"(request "),
                            (("x", f"{self.id}:"), b"where in the sandbox?")):
            self.assertIn(says, isola("cp", *words, code=125).stderr)


def on_terminal(*words):
    return Terminal([ISOLA, *words], environment(TERM="xterm"))


class Shell(WithSandbox):
    def test_feels_like_ssh(self):
        import fcntl
        import struct
        import termios
        terminal = on_terminal("shell", self.id)
        terminal.type(b"echo here-$((6*7))\r")
        terminal.shows(b"here-42\r\n")
        fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 43, 117, 0, 0))
        terminal.type(b"until stty size | grep '43 117'; do :; done\r")
        terminal.shows(b"\r43 117\r\n")
        # Not a shell's own words before the sleep: between its last echo and the exec it may swallow an interrupt.
        terminal.type(b"python3 -c \"import signal; signal.signal(2, signal.SIG_DFL); print('star' + 'ted', flush=True); signal.pause()\"\r")
        terminal.shows(b"started\r\n")
        terminal.type(b"\x03")
        terminal.type(b"echo interrupted-$?\r")
        terminal.shows(b"interrupted-130\r\n")
        terminal.type(b"exit 5\r")
        self.assertEqual(terminal.finish(), 5)

    def test_leaving_and_coming_back(self):
        terminal = on_terminal("shell", self.id)
        terminal.type(b"STAYS=yes; echo re-ady | tr -d -\r")
        terminal.shows(b"ready\r\n")
        terminal.type(b"\r~.")
        terminal.shows(b"--attach ")
        terminal.shows(b"\n")
        self.assertEqual(terminal.finish(), 0)
        command = re.search(rb"--attach (c\w+)", terminal.screen)[1].decode()
        again = on_terminal("shell", self.id, "--attach", command)
        again.type(b"echo stays-$STAYS\r")
        again.shows(b"stays-yes\r\n")
        again.type(b"exit\r")
        self.assertEqual(again.finish(), 0)

    def test_without_any_input(self):
        for words in ((), ("cat",)):  # one that prompts, and one that says nothing
            isola("shell", self.id, *words)

    def test_exec_with_a_terminal(self):
        terminal = on_terminal("exec", "-t", "-e", "A=it's", self.id, "sh", "-c", "tty; echo \"$A\"; exit 8")
        terminal.shows(b"/dev/pts/")
        terminal.shows(b"it's\r\n")
        self.assertEqual(terminal.finish(), 8)

    def test_no_such_sandbox(self):
        done = isola("shell", "nobody", code=125)
        self.assertIn(b"there is no sandbox", done.stderr)
        other = create()  # beside the class's own
        self.assertIn(b"i is ambiguous", isola("exec", "i", "true", code=125).stderr)
        isola("sandbox", "kill", other)

    def test_no_such_command(self):
        self.assertIn(b"did you mean 'sandbox ls'?", isola("sandbox", "list", code=125).stderr)
        self.assertIn(b"did you mean 'sandbox create'?", isola("create", code=125).stderr)
        listed = json.loads(subprocess.run([os.path.join(os.path.dirname(ISOLA), "isola-hostile"), "list", "--json"],
                                           capture_output=True, check=True).stdout)
        shown = isola("prove", "--help").stdout.decode()
        for program in listed:
            self.assertIn(" " + program["name"], shown)


class Ports(WithSandbox):
    def test_forward(self):
        # As little Python as the smallest template has: no http.server there.
        service = ("import socket\n"
                   "listener = socket.socket()\n"
                   "listener.bind(('127.0.0.1', 3000))\n"
                   "listener.listen(8)\n"
                   "while True:\n"
                   "  peer, _ = listener.accept()\n"
                   "  head = b''\n"
                   "  while b'\\r\\n\\r\\n' not in head: head += peer.recv(65536)\n"
                   "  lines = head.decode().split('\\r\\n')\n"
                   "  body = (lines[0].split()[1] + ' ' + str(sorted(l.split(':')[0].lower() for l in lines[1:] if l))).encode()\n"
                   "  peer.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n' % len(body) + body)\n"
                   "  peer.close()\n")
        isola("exec", "-d", self.id, "python3", "-c", service)
        eventually(lambda: re.search(rb"^3000 +loopback", isola("sandbox", "port", self.id).stdout, re.M), what="the service")
        forward = start("sandbox", "port", self.id, "3000")
        try:
            said = forward.stdout.readline().decode()
            local = int(re.search(r"127\.0\.0\.1:(\d+)", said)[1])
            for path in ("/a?b=c", "/d%2Fe"):
                connection = http.client.HTTPConnection("127.0.0.1", local, timeout=60)
                connection.request("GET", path)
                body = connection.getresponse().read().decode()
                self.assertTrue(body.startswith(path + " "), body)
                self.assertNotIn("x-isola", body)
                connection.close()
        finally:
            forward.send_signal(signal.SIGINT)
            forward.communicate(timeout=60)
        self.assertEqual(forward.returncode, 0)


class Run(unittest.TestCase):
    def sandboxes(self):
        return json.loads(isola("ledger", "--json", "--kind", "sandbox.created", "--limit", "1000").stdout)["events"]

    def test_through_the_server(self):
        before = len(self.sandboxes())
        self.assertEqual(isola("run", "--", "sh", "-c", "cat; exit 3", input=b"in\n", code=3).stdout, b"in\n")
        self.assertEqual(len(self.sandboxes()), before + 1)
        isola("run", "no-such-program", code=127)
        isola("run", "--template", "", "true", code=125)
        isola("run", "--template", "no-such", "true", code=125)
        isola("run", "--timeout", "500ms", "sleep", "100", code=124)
        eventually(lambda: not re.search(rb" run-", isola("sandbox", "ls").stdout), what="the end of runs")

    def test_a_late_reader_gets_every_byte(self):
        box = create()
        for words in (["run"], ["exec", box]):
            with self.subTest(words[0]):
                self.late_reader(*words)
        isola("sandbox", "kill", box)

    def late_reader(self, *words):
        flood = 64 << 20
        command = start(*words, "--", "sh", "-c", f"echo begin; head -c {flood} /dev/zero | tr '\\0' x; echo end; exit 3",
                        stdin=subprocess.DEVNULL)
        try:
            out = os.read(command.stdout.fileno(), 6)
            self.assertEqual(out, b"begin\n")
            [id] = words[1:] or [one["id"] for one in server.get("/v1/sandboxes").json["sandboxes"] if one.get("name", "").startswith("run-")]
            # Nobody reads until nothing moves inside any more: it waits, or it is over.
            used = []

            def still():
                used.append(server.get(f"/v1/sandboxes/{id}/metrics").json.get("cpu_usec"))
                return len(used) > 30 and len(set(used[-30:])) == 1
            eventually(still, what="standing still")
            out, err = command.communicate(timeout=120)
            self.assertEqual((len(out), out[-6:], err, command.returncode), (flood + 4, b"xxend\n", b"", 3))
        finally:
            command.kill()

    def test_a_reader_that_leaves(self):
        id = create()
        for words in ("run", f"exec -n {id}"):
            done = subprocess.run(["bash", "-c", f"{ISOLA} {words} -- yes | head -1; exit ${{PIPESTATUS[0]}}"],
                                  capture_output=True, env=environment(), timeout=60)
            self.assertEqual((done.stdout, done.stderr, done.returncode), (b"y\n", b"", 128 + signal.SIGPIPE), words)
        isola("sandbox", "kill", id)

    def test_one_json_result(self):
        for words in (("run",), ("run", "--template", "minimal", "--allow-unquotaed-disk")):  # the second: by the launcher
            done = isola("--json", *words, "--", "sh", "-c", "cat; echo no >&2; exit 3", input=b"in\n", code=3)
            result = json.loads(done.stdout)
            self.assertEqual((result["stdout"], result["stderr"], result["exit_code"]), ("in\n", "no\n", 3))
            self.assertEqual((result["untrusted"], done.stderr), (["stdout", "stderr"], b""))
            self.assertRegex(result["sandbox"], "^i[a-z0-9]{20}$")
        isola("--json", "run", "no-such-program", code=127)

    def test_without_it_where_it_must(self):
        before = len(self.sandboxes())
        done = isola("run", "--template", "minimal", "--latency", "echo", "direct")
        self.assertEqual(done.stdout, b"direct\n")
        self.assertEqual(len(self.sandboxes()), before)
        self.assertIn(b"works only without a server", isola("run", "--url", server.url, "--latency", "true", code=125).stderr)


class Records(unittest.TestCase):
    def test_events_ledger_usage(self):
        watcher = start("events")
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(iter(watcher.stdout.readline, b"")))
        reader.start()
        try:
            # Whoever listens hears what happens from then on: make things happen until one is heard.
            def heard():
                id = create("--task", "audited")
                isola("exec", "-n", id, "echo", "x")
                isola("sandbox", "kill", id)
                return any(id.encode() in line and b"sandbox.ended" in line for line in list(lines)) and id
            id = eventually(heard, what="an event")
        finally:
            watcher.send_signal(signal.SIGTERM)
            reader.join(60)
            watcher.communicate(timeout=60)
        table = isola("ledger", "--sandbox", id).stdout.decode()
        for kind in ("sandbox.created", "command.started", "command.ended", "sandbox.ended"):
            self.assertRegex(table, rf"{kind} +{id} +audited")
        self.assertEqual(json.loads(isola("ledger", "--sandbox", id, "--to", "1h", "--json").stdout)["events"], [])
        self.assertIn(id, isola("usage", "--task", "audited", "--from", "1h").stdout.decode())
        self.assertRegex(isola("usage", "--by", "task").stdout.decode(), r"^TASK +LIVED")
        named = create("--name", "called-so")
        isola("sandbox", "kill", named)
        listed = eventually(lambda: named in (out := isola("usage").stdout.decode()) and out)
        self.assertRegex(listed, r"^SANDBOX +NAME +LIVED")
        self.assertRegex(listed, rf"{named} +called-so ")
        self.assertRegex(isola("usage", "--by", "project").stdout.decode(), r"\ndefault +default ")


class Completion(unittest.TestCase):
    def test_bash_reads_it(self):
        script = isola("completion", "bash").stdout.decode()
        done = subprocess.run(["bash", "--norc", "-c", script + '\nCOMP_WORDS=(isola sandbox ext); COMP_CWORD=2; _isola; echo "${COMPREPLY[*]}"'],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stdout, "extend\n", done.stderr)
        self.assertEqual(isola("help").stdout, isola("--help").stdout)
        for shell in ("zsh", "fish"):
            self.assertIn(b"sandbox", isola("completion", shell).stdout)
        isola("completion", "tcsh", code=125)


class UpAndDown(unittest.TestCase):
    def test_one_command_and_there_is_a_server(self):
        data = tempfile.mkdtemp(prefix="isola-up-", dir="/var/tmp")
        try:
            env = environment(ISOLA_DATA=data)
            up = subprocess.run([ISOLA, "up", "--listen", f"127.0.0.1:{server.free_port()}", "--defaults-template", "minimal"],
                                capture_output=True, env=env, timeout=60)
            self.assertEqual(up.returncode, 0, up)
            with open(data + "/key") as file:
                key = file.read().strip()
            self.assertEqual(os.stat(data + "/key").st_mode & 0o777, 0o600)
            self.assertIn(key, up.stdout.decode(), "the first key, printed once")
            url = re.search(r"http://127.0.0.1:(\d+)", up.stdout.decode())
            connection = http.client.HTTPConnection("127.0.0.1", int(url[1]), timeout=20)
            connection.request("GET", "/readyz")
            self.assertEqual(connection.getresponse().status, 200)
            again = subprocess.run([ISOLA, "up"], capture_output=True, env=env, timeout=60)
            self.assertNotIn(key, again.stdout.decode())
            said = subprocess.run([ISOLA, "run", "--", "echo", "there"], capture_output=True, env=env, timeout=60)
            self.assertEqual(said.stdout, b"there\n", said)
            down = subprocess.run([ISOLA, "--json", "down"], capture_output=True, env=env, timeout=60)
            self.assertEqual(json.loads(down.stdout), {"down": True, "data": data})
            with self.assertRaises(OSError):
                http.client.HTTPConnection("127.0.0.1", int(url[1]), timeout=5).request("GET", "/readyz")
        finally:
            subprocess.run([ISOLA, "down", "--data", data], capture_output=True)
            shutil.rmtree(data, ignore_errors=True)


    def test_one_that_does_not_start_leaves_no_launcher(self):
        data = tempfile.mkdtemp(prefix="isola-up-", dir="/var/tmp")
        os.mkdir(data + "/server")
        with open(data + "/server/store.db", "w") as file:
            file.write("no database\n" * 1000)
        try:
            up = subprocess.run([ISOLA, "up", "--listen", "127.0.0.1:0", "--defaults-template", "minimal"],
                                capture_output=True, env=environment(ISOLA_DATA=data), timeout=60)
            self.assertNotEqual(up.returncode, 0, up)
            self.assertIn(b"did not start", up.stderr)
            self.assertTrue(os.path.isdir(data + "/run"), "it came as far as the launcher")
            # By itself it would go after a minute without callers.
            until = time.monotonic() + 30
            while time.monotonic() < until:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                    if line.connect_ex(data + "/launcher.sock") != 0:
                        return
                time.sleep(0.05)
            self.fail("the launcher is still there")
        finally:
            subprocess.run([ISOLA, "down", "--data", data], capture_output=True)
            shutil.rmtree(data, ignore_errors=True)

    def test_one_whose_address_is_taken_starts_no_launcher(self):
        data = tempfile.mkdtemp(prefix="isola-up-", dir="/var/tmp")
        taken = socket.create_server(("127.0.0.1", 0))
        try:
            up = subprocess.run([ISOLA, "up", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--defaults-template", "minimal"],
                                capture_output=True, env=environment(ISOLA_DATA=data), timeout=60)
            self.assertNotEqual(up.returncode, 0, up)
            self.assertIn(b"did not start", up.stderr)
            self.assertFalse({"run", "launcher.sock"} & set(os.listdir(data)), os.listdir(data))
        finally:
            taken.close()
            subprocess.run([ISOLA, "down", "--data", data], capture_output=True)
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    unittest.main(verbosity=1)
