"""Programs on a terminal, and somebody who types and looks at the screen."""
import os
import pty
import select
import signal
import time


class Terminal:
    """A program on a terminal of the test's own."""

    def __init__(self, command, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, env)
        self.screen, self.seen = b"", 0

    def type(self, text):
        os.write(self.fd, text)

    def shows(self, text, seconds=60):
        until = time.monotonic() + seconds
        while (at := self.screen.find(text, self.seen)) < 0:
            if not self.pump(until - time.monotonic()):
                raise AssertionError(f"no {text!r} on the screen: {self.screen!r}")
        self.seen = at + len(text)

    def pump(self, seconds):
        if seconds <= 0 or not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.screen += data
        return bool(data)

    def finish(self):
        until = time.monotonic() + 60
        while self.pump(until - time.monotonic()):
            pass
        if time.monotonic() >= until:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise AssertionError(f"it does not end: {self.screen!r}")
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return status
