#!/usr/bin/env python3
"""The guide and the examples, as they stand: docs/guides/from-e2b.md with its settings and snippets, examples/e2b. Only where
the server is differs from what a reader has."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests/server")]
os.environ.setdefault("ISOLA_BINARY", os.path.join(ROOT, "build/dev/bin/isola"))

import island  # noqa: E402
from demanding import Demanding  # noqa: E402
from provide import Unreachable, node, provide, versions  # noqa: E402
from run import TlsServer, provide_base, templates  # noqa: E402

SKIPPED = 77
with open(os.path.join(ROOT, "docs/guides/from-e2b.md")) as file:
    GUIDE = file.read()


def section(title):
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", GUIDE, re.M | re.S).group(1)


def block(text, language):
    return re.search(rf"```{language}\n(.*?)```", text, re.S).group(1)


def exports(lines, **changed):
    """The settings of a block of shell, with what differs here."""
    for before, after in changed.items():
        lines = lines.replace(before, after)
    names = " ".join(re.findall(r"^export (\w+)=", lines, re.M))
    only = "\n".join(line for line in lines.splitlines() if line.startswith("export "))
    said = subprocess.run(["bash", "-euc", f"{only}\nfor name in {names}; do echo \"$name=${{!name}}\"; done"], capture_output=True,
                          text=True, check=True).stdout
    return dict(line.split("=", 1) for line in said.splitlines())


class Reader:
    """Somebody who installed the packages in a folder of his own."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="isola-guide-", dir="/var/tmp")
        os.chmod(self.folder, 0o755)  # certificates in it are read by the server's user
        os.symlink(os.path.join(provide("js", versions()["js"][0]), "node_modules"), self.folder + "/node_modules")
        self.python = os.path.join(provide("python", versions()["python"][0]), "bin/python")

    def close(self):
        shutil.rmtree(self.folder)

    def run(self, words, env):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        done = subprocess.run(words, env={**kept, "NO_PROXY": "*", "no_proxy": "*", **env}, capture_output=True, text=True,
                              timeout=120, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def js(self, code, env, *options):
        with open(self.folder + "/snippet.mjs", "w") as file:
            file.write(code)
        return self.run([node(), *options, self.folder + "/snippet.mjs"], env)

    def py(self, code, env):
        return self.run([self.python, "-c", code], env)


class Guide(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reader = Reader()
        cls.outside = Demanding("api.github.example")
        cls.server = island.Server(env=cls.outside.environment)
        provide_base(cls.server)
        cls.env = exports(block(section("On one machine"), "sh"), **{"http://127.0.0.1:8080": cls.server.url,
                                                                    "/var/lib/isola": cls.server.data})

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.outside.close()
        cls.reader.close()

    def test_the_settings(self):
        self.assertEqual(self.env, {"E2B_API_KEY": self.server.key, "E2B_API_URL": self.server.url,
                                    "E2B_SANDBOX_URL": self.server.url, "E2B_VOLUME_API_URL": self.server.url})

    def test_javascript(self):
        self.assertEqual(self.reader.js(block(section("On one machine"), "js"), self.env), "hello\n\nkept\n")

    def test_python(self):
        self.assertEqual(self.reader.py(block(section("On one machine"), "python"), self.env), "hello\n\nkept\n")

    def test_secrets(self):
        code = block(section("Secrets that are never inside"), "js")
        allowed = "allowOut: ['api.github.example'],"
        self.assertIn(allowed, code)
        # Here it lies on this machine, which a policy has to say.
        code = code.replace(allowed, f"allowOut: ['api.github.example', '{self.outside.address}'],")
        self.assertEqual(self.reader.js(code, {**self.env, "GITHUB_TOKEN": self.outside.key}), "welcome\n")

    def test_a_domain(self):
        lines = block(section("With a domain, over TLS"), "sh").replace("\\\n", "")
        port = str(island.Server.free_port())
        folder = self.reader.folder + "/certs"
        lines = lines.replace("/etc/isola/certs", folder).replace("8443", port)
        certs = next(line for line in lines.splitlines() if line.startswith("isola certs"))
        serve = next(line for line in lines.splitlines() if line.startswith("isola serve"))
        subprocess.run([island.ISOLA, *shlex.split(certs, comments=True)[1:]], check=True, stdout=subprocess.DEVNULL)
        flags = shlex.split(serve, comments=True)[2:]
        at = flags.index("--listen")
        self.assertEqual(flags[at + 1], "127.0.0.1:" + port)
        del flags[at:at + 2]

        server = TlsServer(int(port), *flags)
        try:
            provide_base(server)
            env = {**exports(lines), "E2B_API_KEY": server.key, "ISOLA_TEST_DOMAIN": "isola.test"}
            self.assertEqual(env["E2B_DOMAIN"], "isola.test:" + port)
            said = self.reader.js(block(section("On one machine"), "js"), env, "--import", os.path.join(HERE, "js/resolve.mjs"))
            self.assertEqual(said, "hello\n\nkept\n")
        finally:
            server.close()

    def test_examples(self):
        with open(os.path.join(ROOT, "examples/e2b/agent.mjs")) as file:
            self.assertEqual(self.reader.js(file.read(), self.env), "There are 168.\n")
        with open(os.path.join(ROOT, "examples/e2b/agent.py")) as file:
            self.assertEqual(self.reader.py(file.read(), self.env), "There are 168.\n")


if __name__ == "__main__":
    try:
        provide("js", versions()["js"][0])
        provide("python", versions()["python"][0])
    except Unreachable as why:
        print(f"reduced: the guide's snippets did not run: {why}")
        sys.exit(SKIPPED)
    if not {"base", "code-interpreter"} & set(templates()):
        print("reduced: the guide's snippets did not run: the template base is not built")
        sys.exit(SKIPPED)
    unittest.main()
