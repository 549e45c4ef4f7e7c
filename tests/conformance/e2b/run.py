#!/usr/bin/env python3
"""Drives the published E2B packages against a server of this build.

    run.py                    all pinned versions, the matrix to docs/compat/e2b.md
    run.py --fast             the newest of each, nothing written: what ./dev test runs; fails where the matrix says something else
    run.py --only js --version 2.45.0 --filter watchDir
    run.py --only js          its section of the matrix; with --version and --keep FOLDER when the folder has all versions
"""
import argparse
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests/server")]
os.environ.setdefault("ISOLA_BINARY", os.path.join(ROOT, "build/dev/bin/isola"))

import island  # noqa: E402
from demanding import Demanding  # noqa: E402
import matrix  # noqa: E402
from provide import Unreachable, node, provide, versions  # noqa: E402

DOMAIN = "isola.test"
OUTSIDE = "api.outside.example"
SKIPPED = 77


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def limited_key(server, most=1):
    """A key of a project that may have so many sandboxes at a time."""
    project = server.post("/v1/projects", {"name": f"{most} at a time", "limits": {"live_sandboxes": most}}).json
    return server.post("/v1/keys", {"project": project["id"], "scope": "use"}).json["secret"]


def full_key(server):
    """A key of a project whose files of builds have taken all the room that they may."""
    project = server.post("/v1/projects", {"name": "full"}).json["id"]
    owner = os.stat(os.path.join(server.data, "server"))
    folder = os.path.join(server.data, "server/contexts", project)
    os.makedirs(folder)
    for path in (os.path.dirname(folder), folder):
        os.chown(path, owner.st_uid, owner.st_gid)
    with open(os.path.join(folder, "f" * 64), "w") as file:
        file.truncate(16 << 30)  # nothing of it is on the disk
    return server.post("/v1/keys", {"project": project, "scope": "use"}).json["secret"]


def standing_for_images():
    """Images that are not here, and what stands for them."""
    there = "minimal" if "ISOLA_CONFORMANCE_MINIMAL" in os.environ or not {"base", "code-interpreter"} & set(templates()) else "base"
    images = ("debian", "ubuntu", "fedora", "alpine", "archlinux", "python", "node", "oven/bun")
    return ["--e2b-images", ",".join(f"{image}:mapped={there}" for image in images)]


def templates():
    listed = subprocess.run([island.ISOLA, "template", "ls", "--json"], capture_output=True, text=True)
    return [one["name"] for one in json.loads(listed.stdout or "[]")] if listed.returncode == 0 else []


def provide_base(server, key=None):
    """What the SDKs take where nobody names a template. A machine that has built the larger one alone has it under that name,
    too. False: there is none, and `minimal` has to do, which lacks git."""
    there = templates()
    if "ISOLA_CONFORMANCE_MINIMAL" in os.environ or not {"base", "code-interpreter"} & set(there):
        return False
    if "base" not in there:
        begun = server.post("/v1/templates", {"name": "base", "dockerfile": "FROM code-interpreter\nUSER user\n"}, key=key)
        assert begun.status == 202, begun
        look = lambda: server.get(begun.headers["location"], key=key).json["state"]  # noqa: E731
        island.eventually(lambda: look() in ("ready", "failed"), 300, "the template base")
        assert look() == "ready", server.log()
    return True


class World:
    """A server in plain mode, and one in TLS domain mode where that is asked for."""

    def __init__(self):
        # Outside: a server that demands a key, under the only name that there is.
        self.outside = Demanding(OUTSIDE)
        self.plain = island.Server("--issuer", "https://isola.conformance.example", *standing_for_images(), env=self.outside.environment)
        self.template = "base" if provide_base(self.plain) else "minimal"
        self.limited = limited_key(self.plain)
        provide_base(self.plain, self.limited)
        self.few = limited_key(self.plain, 2)
        provide_base(self.plain, self.few)
        self.full = full_key(self.plain)
        self.small = self.plain.post("/v1/volumes", {"name": "small", "size": "16M"}).json["id"]
        self.reading = self.plain.post("/v1/keys", {"scope": "read"}).json["secret"]
        probe = self.plain.create(template=self.template)
        self.boundary = probe["boundary"]
        self.plain.delete(f"/v1/sandboxes/{probe['id']}")
        # One that cannot grant anything just now: its vault waits for a passphrase since its launcher was started anew.
        self.busy = island.Server()
        for words, text in ((["vault", "protect"], "a passphrase\n"), (["launcher", "stop", "--all"], "")):
            subprocess.run([island.ISOLA, *words, "--data", self.busy.data], input=text, text=True, check=True, stdout=subprocess.DEVNULL)
        island.eventually(lambda: "locked" in subprocess.run([island.ISOLA, "vault", "status", "--data", self.busy.data],
                                                             capture_output=True, text=True).stdout, what="the lock")
        self.tls = None
        self.names = None  # who resolves the domain for clients that ask the network

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        return {**kept, "E2B_API_KEY": self.plain.key, "E2B_API_URL": self.plain.url, "E2B_SANDBOX_URL": self.plain.url,
                "E2B_VOLUME_API_URL": self.plain.url, "ISOLA_TEMPLATE": self.template, "ISOLA_MODE": "http",
                "ISOLA_LIMITED_KEY": self.limited, "ISOLA_FEW_KEY": self.few, "ISOLA_READING_KEY": self.reading, "ISOLA_FULL_KEY": self.full,
                "ISOLA_SMALL_VOLUME": self.small, "ISOLA_BUSY_URL": self.busy.url, "ISOLA_BUSY_KEY": self.busy.key, "NO_PROXY": "*", "no_proxy": "*", "ISOLA_OUTSIDE_NAME": OUTSIDE,
                "ISOLA_OUTSIDE_ADDRESS": self.outside.address, "ISOLA_OUTSIDE_KEY": self.outside.key}

    def tls_environment(self):
        if not self.tls:
            folder = os.path.join(self.plain.data, "certs")
            subprocess.run([island.ISOLA, "certs", "--domain", DOMAIN, "--out", folder], check=True,
                           stdout=subprocess.DEVNULL)
            self.port, self.ca = free_port(), os.path.join(folder, "ca.pem")
            self.tls = TlsServer(self.port, "--domain", DOMAIN, "--tls-certificate", os.path.join(folder, "server.pem"), "--tls-key",
                                 os.path.join(folder, "server-key.pem"))
            if self.template == "base":
                provide_base(self.tls)
        return {**self.environment(), "E2B_API_KEY": self.tls.key, "E2B_DOMAIN": f"{DOMAIN}:{self.port}",
                "ISOLA_MODE": "tls", "ISOLA_TEST_DOMAIN": DOMAIN, "NODE_EXTRA_CA_CERTS": self.ca, "SSL_CERT_FILE": self.ca}

    def domain_environment(self):
        """Nothing but the domain says where the server is."""
        return {name: value for name, value in self.tls_environment().items()
                if name not in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL")}

    def close(self):
        if self.names:
            self.names.kill()
            self.names.wait()
        if self.tls:
            self.tls.close()
        self.busy.close()
        self.plain.close()
        self.outside.close()


class TlsServer(island.Server):
    def __init__(self, port, *flags):
        self.fixed = port
        super().__init__(*flags)

    def start(self, port=0):
        super().start(port or self.fixed)

    def connection(self, timeout=60):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=ssl._create_unverified_context())


def kind_of(command):
    """Where the sentence stands in a trace: first with Node, last with Python."""
    return "node" if "node" in os.path.basename(command[0]) else "python"


def lines_of(command, env, extra=None):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=env)
    lines = []
    for text in process.stdout:
        try:
            line = json.loads(text)
        except ValueError:
            print("   ?", text.rstrip())
            continue
        line.update(extra or {})
        lines.append(line)
        if line["result"] == "failed":
            why = "\n".join(line["why"].splitlines()[:6] if kind_of(command) == "node" else line["why"].splitlines()[-6:])
            print(f"   FAILED {line['method']}: {line['test']}\n{why}", flush=True)
    _, errors = process.communicate(timeout=600)
    if process.returncode != 0:
        lines.append({"method": "(the suite itself)", "test": "runs to its end", "result": "failed",
                      "why": f"exit {process.returncode}: {errors[-2000:]}", "ms": 0})
        print(lines[-1]["why"])
    return lines


def run_js(world, version):
    folder = provide("js", version)
    suite = os.path.join(HERE, "js/suite.mjs")
    env = {**world.environment(), "E2B_PACKAGE": folder}
    lines = lines_of([node(), suite], env)
    # What needs host names is run again where there are some.
    tls = {**world.domain_environment(), "E2B_PACKAGE": folder}
    again = []
    for filter_ in TLS_FILTERS if not os.environ.get("ISOLA_FILTER") else [os.environ["ISOLA_FILTER"]]:
        tls["ISOLA_FILTER"] = filter_
        again += lines_of([node(), "--import", os.path.join(HERE, "js/resolve.mjs"), suite], tls)
    seen = {(line["method"], line["test"]): line for line in again}
    return [seen.pop((line["method"], line["test"]), line) if line["result"] == "skipped" else line for line in lines] + \
        [{**line, "test": line["test"] + " (TLS domain)"} for key, line in seen.items() if line["result"] != "skipped"]


TLS_FILTERS = ["Sandbox.getHost", "downloadUrl", "and read give the same back", "gives output and exit code", "a command in progress", "Volume.create",
               "volume.list"]


def run_python(world, version):
    folder = provide("python", version)
    lines = both_flavours(folder, "python/suite.py", world.environment())
    # Where nothing but a domain says where the server is: a few of everything.
    private = python_domain(world) if not os.environ.get("ISOLA_FILTER") else None
    for filter_ in PYTHON_TLS_FILTERS if private else []:
        again = both_flavours(folder, "python/suite.py", {**world.domain_environment(), "ISOLA_FILTER": filter_}, private)
        lines += [{**line, "test": line["test"] + " (TLS domain)"} for line in again if line["result"] != "skipped"]
    return lines


PYTHON_TLS_FILTERS = ["gives output and exit code", "and read give the same back", "has files without a sandbox", "gives ids at once"]


NAME_SERVER = "127.83.1.1"


def python_domain(world):
    """The words before a command for which all names below the domain lead here, whatever it asks them with."""
    if not shutil.which("dnsmasq") or not shutil.which("unshare"):
        print("reduced: conformance of Python over a TLS domain: there is no dnsmasq or unshare here")
        return None
    if not world.names:
        world.names = subprocess.Popen(["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces", "--user=root",
                                        "--conf-file=/dev/null", "--pid-file=", f"--listen-address={NAME_SERVER}", f"--address=/{DOMAIN}/127.0.0.1"],
                                       stderr=subprocess.DEVNULL)
    said = os.path.join(world.plain.data, "resolv.conf")
    with open(said, "w") as file:
        file.write(f"nameserver {NAME_SERVER}\n")
    private = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', said]
    look = [sys.executable, "-c", f"import socket; socket.getaddrinfo('x.{DOMAIN}', 1)"]
    try:
        island.eventually(lambda: subprocess.run([*private, *look], capture_output=True).returncode == 0, seconds=10)
    except AssertionError:
        print("reduced: conformance of Python over a TLS domain: names cannot be resolved privately here")
        return None
    return private


def both_flavours(folder, suite, env, private=None):
    lines = []
    for flavour in ("sync", "async"):
        name = " (asynchronous)" if flavour == "async" else ""
        command = [*(private or []), os.path.join(folder, "bin/python"), os.path.join(HERE, suite)]
        for line in lines_of(command, {**env, "ISOLA_FLAVOUR": flavour}):
            lines.append({**line, "test": line["test"] + name})
    return lines


def run_cli(world, version):
    folder = provide("cli", version)
    env = {**world.environment(), "E2B_PACKAGE": folder, "ISOLA_NODE": node(), "CI": "1"}
    return lines_of([sys.executable, os.path.join(HERE, "cli/suite.py")], env)


def run_interpreter(world, version, kind):
    """On the template code-interpreter, which those packages ask for by its alias."""
    if "code-interpreter" not in templates():
        raise Unreachable("the template code-interpreter is not built (isola template build code-interpreter)")
    folder = provide(kind, version)
    # Older lines know sandboxes by their host names alone.
    plain = version == versions()[kind][0]
    env = {**(world.environment() if plain else world.domain_environment()), "E2B_PACKAGE": folder}
    if kind == "interpreter-js":
        hook = [] if plain else ["--import", os.path.join(HERE, "js/resolve.mjs")]
        return lines_of([node(), *hook, os.path.join(HERE, "interpreter/suite.mjs")], env)
    private = None if plain else python_domain(world)
    if not plain and not private:
        raise Unreachable("names of a domain cannot be resolved here")
    return both_flavours(folder, "interpreter/suite.py", env, private)


KINDS = {"js": run_js, "python": run_python, "cli": run_cli,
         "interpreter-js": lambda world, version: run_interpreter(world, version, "interpreter-js"),
         "interpreter-python": lambda world, version: run_interpreter(world, version, "interpreter-python")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--version")
    parser.add_argument("--filter", default="")
    parser.add_argument("--page", default=os.path.join(ROOT, "docs/compat/e2b.md"))
    parser.add_argument("--keep", help="a folder for the results of each version")
    options = parser.parse_args()
    os.environ["ISOLA_FILTER"] = options.filter
    results, missing = {}, []
    world = World()
    try:
        for kind, pinned in versions().items():
            if options.only not in (None, kind):
                continue
            for version in [options.version] if options.version else pinned[:1] if options.fast else pinned:
                begun = time.monotonic()
                try:
                    lines = KINDS[kind](world, version)
                except Unreachable as why:
                    missing.append(f"{kind} {version}: {why}")
                    continue
                results[kind, version] = lines
                if options.keep and not options.filter:
                    keep(options.keep, kind, version, lines)
                counts = {word: sum(line["result"] == word for line in lines if not line.get("again"))
                          for word in ("passed", "failed", "skipped")}
                print(f"{kind} {version}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} did not apply "
                      f"({time.monotonic() - begun:.0f} s)", flush=True)
    finally:
        world.close()
    for line in missing:
        print(f"reduced: conformance of {line}")
    if not results:
        return SKIPPED
    failed = any(line["result"] == "failed" for lines in results.values() for line in lines)
    if options.fast and not (options.filter or failed):
        with open(options.page) as file:
            differs = matrix.differs(file.read(), results, world.template)
        for line in differs:
            print(f"   docs/compat/e2b.md is not what was seen: {line}")
        return int(bool(differs))
    pinned = [(kind, version) for kind, versions_ in versions().items() for version in versions_]
    if options.keep and not options.filter:
        results = {**kept(options.keep, pinned), **results}
    whole = {kind for kind, _ in pinned if all(each in results for each in pinned if each[0] == kind)}
    results = {each: results[each] for each in pinned if each[0] in whole}
    if results and not (options.fast or options.filter):
        before = ""
        if os.path.exists(options.page):
            with open(options.page) as file:
                before = file.read()
        os.makedirs(os.path.dirname(options.page), exist_ok=True)
        about = f"Run on {time.strftime('%Y-%m-%d', time.gmtime())} at commit {commit()}. Server {subprocess.run([island.ISOLA, '--version'], capture_output=True, text=True).stdout.strip()}, boundary {world.boundary}, " \
                f"template `{world.template}`, node {subprocess.run([node(), '--version'], capture_output=True, text=True).stdout.strip()}."
        with open(options.page, "w") as file:
            file.write(matrix.page(results, about, before))
        print(f"written to {os.path.relpath(options.page, ROOT)}")
    return int(failed)


def commit():
    """What was run; the page itself does not count, which an earlier part of the run may have written."""
    git = ["git", "-c", "safe.directory=*", "-C", ROOT]
    name = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"], capture_output=True, text=True).stdout
    return f"`{name}{'-modified' if changed.strip() else ''}`" if name else "unknown"


def keep(folder, kind, version, lines):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{kind}-{version}.json"), "w") as file:
        json.dump(lines, file)


def kept(folder, wanted):
    found = {}
    for kind, version in wanted:
        path = os.path.join(folder, f"{kind}-{version}.json")
        if os.path.exists(path):
            with open(path) as file:
                found[kind, version] = json.load(file)
    return found


if __name__ == "__main__":
    sys.exit(main())
