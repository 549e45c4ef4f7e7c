"""What every boundary of this machine answers: the two programs of this folder, run bare and inside. The test and
`./dev boundaries`, which writes down what the test then expects, both ask here."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
DIFFERENCES = os.path.join(HERE, "differences.json")
LEARNED = os.path.join(HERE, "learned.json")
LEVELS = ["nothing", "own", "host"]  # what is learned of a fact, the least first


class Island:
    """A launcher on a data directory of its own."""

    def __init__(self):
        self.isola = os.environ["ISOLA_BINARY"]
        self.folder = os.path.dirname(self.isola)
        self.data = tempfile.mkdtemp(prefix="isola-behaviour-", dir="/var/tmp")
        try:
            # The first command starts the launcher, which knows what the machine has.
            self.run("jail", ["true"])
            status = subprocess.run([self.isola, "launcher", "status", "--json", "--data", self.data],
                                    capture_output=True, text=True, check=True)
            self.offers = {one["boundary"]: one for one in json.loads(status.stdout)["boundaries"]}
        except BaseException:
            self.close()
            raise

    def close(self):
        subprocess.run([self.isola, "launcher", "stop", "--all", "--data", self.data], capture_output=True, timeout=60)
        shutil.rmtree(self.data, ignore_errors=True)

    def offered(self):
        return [name for name, one in self.offers.items() if one["offered"]]

    def engine(self, boundary):
        """The name and the version that a list of differences is good for."""
        one = self.offers[boundary]
        version = one["engine_version"]
        if boundary in ("jail", "uml", "microvm"):  # a Linux: what it does changes with its releases, not with each fix
            version = ".".join(re.findall(r"\d+", version)[:2])
        return f'{one["engine"]} {version}'

    def run(self, boundary, argv, program=None, timeout=1200):
        """Output of a command inside; with `program`, of that file of the build, which is fed to it."""
        command = [self.isola, "run", "--data", self.data, "--template", "minimal", "--boundary", boundary]
        if program:
            argv = ["sh", "-c", 'cat >/root/program && chmod 755 /root/program && exec /root/program "$@"', "sh", *argv]
        with contextlib.ExitStack() as stack:
            given = stack.enter_context(open(os.path.join(self.folder, program), "rb")) if program else subprocess.DEVNULL
            done = subprocess.run([*command, "--", *argv], stdin=given, capture_output=True, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{boundary}: {argv[:4]} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
        return done.stdout.decode(errors="replace")

    def bare(self, program, argv=()):
        # A session of its own, as inside: no terminal.
        done = subprocess.run([os.path.join(self.folder, program), *argv], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=1200, start_new_session=True)
        if done.returncode != 0:
            raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
        return done.stdout.decode(errors="replace")


def checks(island):
    """(topic, name, claim) of each."""
    return [line.split("\t") for line in island.bare("isola-behaviour", ["list"]).splitlines()]


def answers(island, boundary, names=()):
    """What each check answered there; `bare` is this machine itself."""
    text = (island.bare("isola-behaviour", names) if boundary == "bare" else
            island.run(boundary, list(names), program="isola-behaviour"))
    return dict(line.split(" ", 1) for line in text.splitlines())


def differences(island, boundary, known=()):
    """Those that are not ok. One that is not known, and is seen once only, is timing: the machine does other things, too."""
    known = dict(known)
    said = answers(island, boundary)
    doubtful = [name for name, text in said.items() if text != known.get(name, "ok")]
    if doubtful:
        said.update(answers(island, boundary, doubtful))
    return {name: text for name, text in said.items() if text != "ok"}


def learned(island, boundary):
    """What is learned of each fact there, as one of LEVELS."""
    with host_process() as word:
        host = facts(island.bare("isola-learns", [word]))
        inside = facts(island.run(boundary, [word], program="isola-learns"))
    return {name: level(how, host[name][2], found) for name, (_, how, found) in inside.items()}


def facts(text):
    """name -> (what it is, how it is compared, what was found)."""
    rows = [line.split("\t") for line in text.splitlines()]
    return {name: (what, how, found) for name, what, how, found in rows}


def level(how, host, inside):
    if not inside:
        return "nothing"
    if how in ("near", "time"):
        try:
            apart = abs(float(host) - float(inside))
        except ValueError:
            return "own"
        return "host" if apart <= (60 if how == "time" else 0.02 * abs(float(host))) else "own"
    return "host" if inside == host else "own"


@contextlib.contextmanager
def host_process():
    """A process of the host's with a word in its command line."""
    word = "isola-" + uuid.uuid4().hex
    process = subprocess.Popen(["sh", "-c", "read line", word], stdin=subprocess.PIPE)
    try:
        yield word
    finally:
        process.communicate()


def read(path):
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def write(path, what):
    with open(path + ".new", "w") as file:
        file.write(json.dumps(what, indent=1, ensure_ascii=False) + "\n")
    os.rename(path + ".new", path)
