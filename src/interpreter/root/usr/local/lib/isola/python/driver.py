"""Kernels for languages that have an interpreter but no kernel that can be interrupted without losing its state: Bash,
JavaScript, TypeScript, Java. ipykernel speaks the Jupyter protocol; a driver, one process per kernel, runs the cells.

A driver reads requests on descriptor 3 and writes events on descriptor 4, one line each, words in base64 (`-`: empty):

    run NUMBER CODE [NAME:VALUE …]     set [NAME:VALUE …]     interrupt
    stdout BYTES     stderr BYTES     result JSON     display JSON     error NAME VALUE TRACEBACK     done NUMBER
    + WRITER PIECE   = WRITER PIECE   the beginning and the end of a line that is too long to be written at once

A cell has a number, and its end has the same: whatever goes wrong in between, the next cell does not get its output. `run`
has variables of one cell, `set` has those that stay.

Its standard output and error are the cell's, too: what comes there is in order within each of the two. It gets /dev/null
to read: a program that asks for input sees the end. It ends with this process, whatever it does.
"""
import array
import base64
import ctypes
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios

import isola_session

sys.path[0] = ""
sys.argv[0] = "ipykernel_launcher"

from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from ipykernel.kernelbase import Kernel  # noqa: E402
from traitlets.config import Config  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = os.path.dirname(HERE)
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def encoded(text):
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode() or "-"


def decoded(word):
    return "" if word == "-" else base64.b64decode(word).decode("utf-8", "replace")


def put(fd, data):
    rest = memoryview(data)  # a pipe takes little at once: what is left is not copied each time
    try:
        while rest:
            rest = rest[os.write(fd, rest):]
    except BrokenPipeError:
        pass  # who read there is gone: its end is heard on the other side


class Gone(Exception):
    """The driver ended; how, is the message."""


class Driver:
    """One process, its output as it comes, and its events."""

    def __init__(self, command):
        request_out, self.requests = os.pipe()
        self.events, event_in = os.pipe()

        def settle():
            # A group of its own, to be interrupted, in the kernel's session: it is ended with that.
            os.setpgid(0, 0)
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            # Both ends may have each other's numbers: first out of the way.
            ours, theirs = os.dup(request_out), os.dup(event_in)
            os.dup2(ours, 3)
            os.dup2(theirs, 4)
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.process = subprocess.Popen(command, stdin=self.stdin(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        pass_fds=(3, 4), preexec_fn=settle)
        os.close(request_out)
        os.close(event_in)
        self.out = {self.process.stdout.fileno(): "stdout", self.process.stderr.fileno(): "stderr"}
        for fd in (*self.out, self.events):
            os.set_blocking(fd, False)
        self.pending, self.searched, self.held, self.pieces = bytearray(), 0, {"stdout": b"", "stderr": b""}, {}
        self.sending = self.interrupted = False
        self.number = 0
        self.sources = [self.events]  # of events; the last one ends with the process

    def stdin(self):
        return subprocess.DEVNULL

    def run(self, code, env, lasting):
        """`lasting`: variables that stay."""
        def words(variables):
            return [f"{encoded(name)}:{encoded(value)}" for name, value in variables.items()]

        if lasting:
            self.send(" ".join(["set", *words(lasting)]))
        self.number += 1
        self.send(" ".join(["run", str(self.number), encoded(code), *words(env)]))

    def is_end(self, words):
        """Of this cell, not of one before it."""
        return words[0] == "done" and words[1:] == [str(self.number)]

    def send(self, line):
        self.sending = True
        put(self.requests, line.encode() + b"\n")
        self.sending = False
        if self.interrupted:
            self.interrupt()

    def interrupt(self):
        """Called from a signal's handler: perhaps in the middle of a line."""
        self.interrupted = self.sending
        if not self.sending:
            put(self.requests, b"interrupt\n")

    def text(self, name, data, last=False):
        """Whole characters; the beginning of one waits for its rest."""
        data = self.held[name] + data
        keep = 0
        if not last:
            for back in range(1, min(3, len(data)) + 1):
                byte = data[-back]
                if byte & 0xC0 == 0xC0:
                    need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                    keep = back if need > back else 0
                    break
                if byte & 0x80 == 0:
                    break
        self.held[name] = data[len(data) - keep:] if keep else b""
        return data[:len(data) - keep].decode("utf-8", "replace") if keep else data.decode("utf-8", "replace")

    def drain(self, say, only_now=False):
        """What is there of output, without waiting; said in one piece per stream. `only_now`: and not what comes
        meanwhile, as it does from programs in the background."""
        for fd, name in list(self.out.items()):
            data, most = b"", 1 << 20
            if only_now:
                there = array.array("i", [0])
                fcntl.ioctl(fd, termios.FIONREAD, there)
                most = there[0]
            while len(data) < most:
                try:
                    piece = os.read(fd, min(1 << 16, most - len(data)))
                except BlockingIOError:
                    break
                if not piece:
                    del self.out[fd]
                    break
                data += piece
            if data and (text := self.text(name, data)):
                say(name, text)

    def line(self):
        """The next whole line of events that is there; None: it is not."""
        while (end := self.pending.find(b"\n", self.searched)) >= 0:
            line = bytes(self.pending[:end])
            del self.pending[:end + 1]
            self.searched = 0
            if line[:2] not in (b"+ ", b"= "):
                return line
            sign, writer, piece = line.split(b" ", 2)
            pieces = self.pieces.setdefault(writer, [])
            pieces.append(piece)
            if sign == b"=":
                return b"".join(self.pieces.pop(writer))
        self.searched = len(self.pending)
        return None

    def wait(self, say):
        """The next event as a list of words; output that came before it has been said."""
        name, said = None, []  # what follows each other on one stream is said together
        while True:
            while (line := self.line()) is not None:
                words = line.decode().split(" ")
                if words[0] in ("stdout", "stderr"):
                    if words[0] != name:
                        self.flush(name, said, say)
                        name, said = words[0], []
                    said.append(base64.b64decode(words[1]))
                    continue
                self.flush(name, said, say)
                self.drain(say, only_now=True)  # the driver flushed before it spoke, so all of it is there
                return words
            self.flush(name, said, say)
            name, said = None, []
            ready = select.select([*self.sources, *self.out], [], [])[0]
            if any(fd in self.out for fd in ready):
                self.drain(say)
            for source in [fd for fd in self.sources if fd in ready]:
                piece = os.read(source, 1 << 16)
                if not piece:
                    self.drain(say)
                    code = self.process.wait()
                    raise Gone(f"exit code {code}" if code >= 0 else f"signal {-code}")
                self.pending += piece

    def flush(self, name, said, say):
        if name and (text := self.text(name, b"".join(said))):
            say(name, text)

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for fd in (self.requests, self.events):
            os.close(fd)
        self.process.stdout.close()
        self.process.stderr.close()


def quoted(text):
    """For a shell, in one line."""
    for sign, written in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r"), ("\0", "")):
        text = text.replace(sign, written)
    return f"$'{text}'"


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


# display [-t TYPE] [FILE]: shows a file, or what it reads. The file's name, or its content, says what it is. It waits until
# that was seen: what the cell prints next comes another way, and must not overtake it.
DISPLAY = r"""display() {
  local type= data
  if [ "$1" = -t ]; then type=$2; shift 2; fi
  data=$(mktemp "$__isola_shown/XXXXXX") && cat -- "${1:--}" >"$data" || return
  if [ -z "$type" ]; then
    case $1 in
      *.svg) type=image/svg+xml ;; *.md) type=text/markdown ;; *.html|*.htm) type=text/html ;;
      *.json) type=application/json ;; *.tex) type=text/latex ;; *) type=$(file -b --mime-type "$data") ;;
    esac
  fi
  echo "show $type $data" >"$__isola_shown/events"
  read -r _ <"$__isola_shown/seen"
}"""


def shown(mime, path):
    """Text as it is, all else in base64: as kernels send it."""
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    if mime == "application/json":
        return {mime: json.loads(data)}
    text = mime.startswith("text/") or mime == "image/svg+xml"
    return {mime: data.decode("utf-8", "replace") if text else base64.b64encode(data).decode()}


class Bash(Driver):
    """An interactive shell that reads one line per cell: after SIGINT such a shell goes on with its next line, as at a
    terminal, and keeps its variables."""

    def __init__(self):
        self.source, self.write = os.pipe()
        # Not by descriptor 4: a program that a cell leaves behind would keep it, and the shell's end would not be heard.
        self.folder = tempfile.TemporaryDirectory(prefix="display-")
        for name in ("events", "seen"):
            os.mkfifo(f"{self.folder.name}/{name}", 0o600)
        self.cell = tempfile.NamedTemporaryFile("w", prefix="cell-", suffix=".sh", encoding="utf-8",
                                                errors="surrogateescape")
        super().__init__(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"])
        os.close(self.source)
        # First: what was shown came before the word that the cell is over.
        self.sources.insert(0, os.open(self.folder.name + "/events", os.O_RDWR | os.O_NONBLOCK))
        self.seen = os.open(self.folder.name + "/seen", os.O_RDWR | os.O_NONBLOCK)
        self.tell(f"__isola_shown={self.folder.name}")
        self.tell(DISPLAY)
        self.tell("PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +o histexpand; exec 3<&-; echo done 0 >&4")
        self.wait(lambda name, text: None)  # its complaint that it has no terminal

    def stdin(self):
        return self.source

    def tell(self, line):
        put(self.write, line.encode("utf-8", "surrogateescape") + b"\n")

    def run(self, code, env, lasting):
        env = {name: value for name, value in env.items() if NAME.match(name)}
        for name, value in lasting.items():
            if NAME.match(name):
                self.tell(f"export {name}={quoted(value)}")
        try:
            os.read(self.seen, 1 << 16)  # for one that was interrupted while it waited
        except BlockingIOError:
            pass
        self.cell.seek(0)
        self.cell.truncate()
        self.cell.write(code.replace("\0", "") + "\n")
        self.cell.flush()
        before = "".join(f'[ -n "${{{n}+x}}" ] && __isola_{n}=${n}; export {n}={quoted(v)}; ' for n, v in env.items())
        after = "".join(f'if [ -n "${{__isola_{n}+x}}" ]; then export {n}=$__isola_{n}; unset __isola_{n}; else unset {n}; fi; '
                        for n in env)
        self.number += 1
        self.tell(f"{before}. {self.cell.name} </dev/null 4>&-")
        self.tell(f"__isola_status=$?; {after}echo status $__isola_status {self.number} >&4")

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, say):
        words = super().wait(say)
        if words[0] == "show":
            put(self.seen, b"\n")
            try:
                return ["display", encoded(json.dumps(shown(*words[1:3])))]
            except (OSError, ValueError) as error:
                say("stderr", f"display: {error}\n")
                return self.wait(say)
        if words[0] == "status" and words[1] != "0":
            code = words[1]
            self.pending[:0], self.searched = f"done {words[2]}\n".encode(), 0
            return ["error", encoded("ExitCode"), encoded(code), encoded(f"the last command of the cell ended with {code}")]
        return ["done", words[2]] if words[0] == "status" else words

    def close(self):
        super().close()
        os.close(self.write)
        os.close(self.sources[0])
        os.close(self.seen)
        self.cell.close()
        self.folder.cleanup()


def make(language):
    if language == "bash":
        return Bash()
    if language in ("javascript", "typescript"):
        return Driver(["node", "--no-warnings", OURS + "/node/cells.js", language])
    if language == "java":
        return Driver(["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g", "-cp", OURS + "/java",
                       "Cells"])
    raise SystemExit(f"there is no driver for {language}")


class DriverKernel(Kernel):
    language = "bash"
    implementation = "isola"
    implementation_version = "1"
    banner = "isola"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.language_info = {"name": self.language, "mimetype": "text/plain", "file_extension": "." + self.language}
        self.driver = make(self.language)

    def pre_handler_hook(self):
        """While a cell runs, a signal is for the driver alone: an exception here would lose what was just read."""
        self.saved_sigint_handler = signal.signal(signal.SIGINT, lambda number, frame: self.driver.interrupt())

    def say(self, name, text):
        self.send_response(self.iopub_socket, "stream", {"name": name, "text": text})

    def show(self, kind, text):
        try:
            content = {"data": json.loads(text), "metadata": {}}
        except ValueError:
            return self.say("stderr", "what the cell wanted to show is not JSON\n")
        if kind == "result":
            return self.send_response(self.iopub_socket, "execute_result",
                                      {**content, "execution_count": self.execution_count})
        return self.send_response(self.iopub_socket, "display_data", content)

    def variables(self):
        """Those of this cell, and those that stay from now on."""
        parent = self.get_parent("shell") or {}
        asked = (parent.get("metadata") or {}).get("isola") or {}
        lasting = asked.get("lasting") or {}
        os.environ.update(lasting)  # for a driver that comes after this one
        return asked.get("env") or {}, lasting

    def take(self, words):
        """One event; an error's three words are returned. Nothing that is wrong with it may end the cell before its end."""
        try:
            if words[0] == "error":
                return [decoded(word) for word in words[1:4]]
            if words[0] in ("result", "display"):
                self.show(words[0], decoded(words[1]))
        except Exception as error:
            self.say("stderr", f"something that the cell said was lost ({type(error).__name__}: {error})\n")
        return None

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, **_):
        failure = None
        try:
            self.driver.run(code, *self.variables())
            while not self.driver.is_end(words := self.driver.wait(self.say)):
                failure = self.take(words) or failure
        except Gone as gone:
            self.driver.close()
            self.driver = make(self.language)
            failure = ["InterpreterExited", f"the interpreter ended ({gone}); a new one was started, its variables are gone", ""]
        except Exception as error:  # without a reply nobody would hear of it
            self.driver.close()  # nobody knows how far it is
            self.driver = make(self.language)
            failure = [type(error).__name__, f"the kernel's driver failed: {error}; a new one was started, its variables are gone", ""]
        if failure is None:
            return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}
        lines = failure[2].split("\n") if failure[2] else []
        content = {"ename": failure[0], "evalue": failure[1], "traceback": lines}
        self.send_response(self.iopub_socket, "error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    def do_shutdown(self, restart):
        self.driver.close()
        return {"status": "ok", "restart": restart}


if __name__ == "__main__":
    DriverKernel.language = sys.argv.pop(1)
    config = Config()
    isola_session.use(config)
    IPKernelApp.launch_instance(kernel_class=DriverKernel, config=config)
