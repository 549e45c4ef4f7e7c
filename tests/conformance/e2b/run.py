#!/usr/bin/env python3
"""Drives the published E2B packages against a server of this build.

    run.py                    all pinned versions, the matrix to docs/compat/e2b.md
    run.py --fast             the newest of each, nothing written: what ./dev test runs
    run.py --only js --version 2.45.0 --filter watchDir
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests/server")]
os.environ.setdefault("ISOLA_BINARY", os.path.join(ROOT, "build/dev/bin/isola"))

import island  # noqa: E402
import matrix  # noqa: E402
from provide import Unreachable, node, provide, versions  # noqa: E402

DOMAIN = "isola.test"
SKIPPED = 77


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def limited_key(server):
    """A key of a project that may have one sandbox at a time."""
    project = server.post("/v1/projects", {"name": "one at a time", "limits": {"live_sandboxes": 1}}).json
    return server.post("/v1/keys", {"project": project["id"], "scope": "use"}).json["secret"]


def templates():
    listed = subprocess.run([island.ISOLA, "template", "ls", "--json"], capture_output=True, text=True)
    return [one["name"] for one in json.loads(listed.stdout or "[]")] if listed.returncode == 0 else []


def template():
    """base where the machine has built it, else minimal, which lacks git."""
    return "base" if "base" in templates() and "ISOLA_CONFORMANCE_MINIMAL" not in os.environ else "minimal"


class World:
    """A server in plain mode, and one in TLS domain mode where that is asked for."""

    def __init__(self):
        self.plain = island.Server()
        self.template = template()
        self.limited = limited_key(self.plain)
        self.tls = None

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        return {**kept, "E2B_API_KEY": self.plain.key, "E2B_API_URL": self.plain.url, "E2B_SANDBOX_URL": self.plain.url,
                "E2B_VOLUME_API_URL": self.plain.url, "ISOLA_TEMPLATE": self.template, "ISOLA_MODE": "http",
                "ISOLA_LIMITED_KEY": self.limited, "NO_PROXY": "*", "no_proxy": "*"}

    def tls_environment(self):
        if not self.tls:
            folder = os.path.join(self.plain.data, "certs")
            subprocess.run([island.ISOLA, "certs", "--domain", DOMAIN, "--out", folder], check=True,
                           stdout=subprocess.DEVNULL)
            self.port, self.ca = free_port(), os.path.join(folder, "ca.pem")
            self.tls = TlsServer(self.port, folder)
        return {**self.environment(), "E2B_API_KEY": self.tls.key, "E2B_DOMAIN": f"{DOMAIN}:{self.port}",
                "ISOLA_MODE": "tls", "ISOLA_TEST_DOMAIN": DOMAIN, "NODE_EXTRA_CA_CERTS": self.ca, "SSL_CERT_FILE": self.ca}

    def close(self):
        if self.tls:
            self.tls.close()
        self.plain.close()


class TlsServer(island.Server):
    def __init__(self, port, folder):
        self.fixed = port
        super().__init__("--domain", DOMAIN, "--tls-certificate", os.path.join(folder, "server.pem"), "--tls-key",
                         os.path.join(folder, "server-key.pem"))

    def start(self, port=0):
        super().start(port or self.fixed)


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
    tls = {**world.tls_environment(), "E2B_PACKAGE": folder}
    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"):
        del tls[name]
    again = []
    for filter_ in TLS_FILTERS if not os.environ.get("ISOLA_FILTER") else [os.environ["ISOLA_FILTER"]]:
        tls["ISOLA_FILTER"] = filter_
        again += lines_of([node(), "--import", os.path.join(HERE, "js/resolve.mjs"), suite], tls)
    seen = {(line["method"], line["test"]): line for line in again}
    return [seen.pop((line["method"], line["test"]), line) if line["result"] == "skipped" else line for line in lines] + \
        [{**line, "test": line["test"] + " (TLS domain)"} for key, line in seen.items() if line["result"] != "skipped"]


TLS_FILTERS = ["Sandbox.getHost", "downloadUrl", "and read give the same back", "gives output and exit code", "a command in progress"]


def run_python(world, version):
    folder = provide("python", version)
    lines = []
    for flavour in ("sync", "async"):
        env = {**world.environment(), "ISOLA_FLAVOUR": flavour}
        name = " (asynchronous)" if flavour == "async" else ""
        for line in lines_of([os.path.join(folder, "bin/python"), os.path.join(HERE, "python/suite.py")], env):
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
    env = {**world.environment(), "E2B_PACKAGE": folder}
    if kind == "interpreter-js":
        return lines_of([node(), os.path.join(HERE, "interpreter/suite.mjs")], env)
    return lines_of([os.path.join(folder, "bin/python"), os.path.join(HERE, "interpreter/suite.py")], env)


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
                counts = {word: sum(line["result"] == word for line in lines) for word in ("passed", "failed", "skipped")}
                print(f"{kind} {version}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} did not apply "
                      f"({time.monotonic() - begun:.0f} s)", flush=True)
    finally:
        world.close()
    for line in missing:
        print(f"reduced: conformance of {line}")
    if not results:
        return SKIPPED
    whole = not (options.fast or options.only or options.version or options.filter or missing)
    if whole:
        os.makedirs(os.path.dirname(options.page), exist_ok=True)
        about = f"Server {subprocess.run([island.ISOLA, '--version'], capture_output=True, text=True).stdout.strip()}, boundary jail, " \
                f"template `{world.template}`, node {subprocess.run([node(), '--version'], capture_output=True, text=True).stdout.strip()}."
        with open(options.page, "w") as file:
            file.write(matrix.page(results, about))
        print(f"written to {os.path.relpath(options.page, ROOT)}")
    return int(any(line["result"] == "failed" for lines in results.values() for line in lines))


if __name__ == "__main__":
    sys.exit(main())
