"""`isola scan` on files, folders and real git repositories, and the hooks of examples/git-hooks."""
import base64
import json
import os
import random
import subprocess
import tempfile
import unittest

ISOLA = os.environ["ISOLA_BINARY"]
HOOKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/git-hooks")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def token(seed=1):
    """Nothing in this file may look like one."""
    return "gh" + "p_" + "".join(random.Random(seed).choices(LETTERS, k=36))


class Scan(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = self.folder.name

    def write(self, name, text, folder=None):
        path = os.path.join(folder or self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return path

    def scan(self, *words, ok, input="", cwd=None):
        out = subprocess.run([ISOLA, "scan", *words], input=input, capture_output=True, text=True, cwd=cwd or self.path)
        self.assertEqual(out.returncode, ok, (out.stdout, out.stderr))
        return out

    def test_shapes(self):
        self.write("clean.txt", "nothing here\n")
        self.scan(self.path, ok=0)
        found = self.write("deep/er/config.env", "A=1\nTOKEN=" + token() + "\n")
        out = self.scan(self.path, ok=1)
        self.assertEqual(out.stdout, f"{found}:2: GitHub personal access token\n")
        self.assertNotIn(token(), out.stdout + out.stderr)
        listed = json.loads(self.scan(self.path, "--json", ok=1).stdout)
        self.assertEqual(listed["findings"], [{"where": found, "line": 2, "what": "GitHub personal access token"}])
        self.assertEqual(listed["looked_at"], 2)

    def test_values(self):
        value = "correct horse/battery+staple"
        secrets = self.write("../" + os.path.basename(self.path) + "-secrets", "\nshort\n" + value + "\n")
        self.addCleanup(os.unlink, secrets)
        self.write("a", value)
        self.write("b", "\n\n" + base64.b64encode(b"xx" + value.encode() + b"yy").decode())
        self.write("c", "x" * 1048570 + value.encode().hex().upper() + "\n")  # across the border of two reads
        out = self.scan("a", "b", "c", "--secrets-file", secrets, ok=1)
        self.assertEqual(out.stdout.splitlines(), ["a:1: value 3 of the secrets file (raw)",
                                                   "b:3: value 3 of the secrets file (base64)",
                                                   "c:1: value 3 of the secrets file (hex)"])
        self.assertIn("value 2 of the secrets file is too short", out.stderr)
        self.assertNotIn(value, out.stdout + out.stderr)
        self.scan("a", "--secrets-file", "-", input=value, ok=1)
        self.scan("a", "--secrets-file", "-", input=value[:-1] + "!", ok=0)

    def test_large_files(self):
        text = bytearray(random.Random(2).choices(b"abcdefgh \n", k=20 << 20))
        places = [0, 8 * 1024 * 1024 - 20, 12345678, len(text) - 41]
        for i, at in enumerate(places):
            text[at:at + 42] = b"\n" + token(i).encode() + b"\n"
        lines = [bytes(text[:at + 1]).count(b"\n") + 1 for at in places]
        self.write("large", bytes(text))
        out = self.scan("large", ok=1)
        self.assertEqual(out.stdout.splitlines(), [f"large:{line}: GitHub personal access token" for line in lines])

    def test_what_cannot_be_looked_at(self):
        for words in (["no/such/file"], [], ["--secrets-file", "/no/such/file", "."], ["--staged"], ["--push", "--secrets-file", "-"]):
            out = self.scan(*words, ok=2)
            self.assertTrue(out.stderr, words)

    # ---- git ----

    def git(self, *words, ok=True, cwd=None, **env):
        out = subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main", *words],
                             cwd=cwd or self.path, capture_output=True, text=True, env={**os.environ, "ISOLA": ISOLA, **env})
        if ok is not None:
            self.assertEqual(out.returncode == 0, ok, (words, out.stdout, out.stderr))
        return out

    def repository(self):
        self.git("init", "-q")
        self.git("config", "core.hooksPath", HOOKS)

    def test_pre_commit(self):
        self.repository()
        self.write("clean", "fine\n")
        self.git("add", "clean")
        self.git("commit", "-q", "-m", "the first of all")
        self.write("it's a \"file\"\n", "x\nkey: " + token() + "\n")
        self.git("add", "-A")
        out = self.git("commit", "-q", "-m", "oops", ok=False)
        self.assertIn("GitHub personal access token", out.stderr + out.stdout)
        self.assertNotIn(token(), out.stderr + out.stdout)
        # What counts is what is staged, not what lies about.
        self.git("rm", "-q", "--cached", "it's a \"file\"\n")
        self.write("clean", "finer\n")
        self.git("add", "clean")
        self.git("commit", "-q", "-m", "without it")
        self.write("clean", "value: sesame-open-1\n")
        self.git("add", "clean")
        self.write("clean", "nothing\n")
        secrets = self.write("../" + os.path.basename(self.path) + "-secrets", "sesame-open-1\n")
        self.addCleanup(os.unlink, secrets)
        self.git("commit", "-q", "-m", "oops", ok=False, ISOLA_SECRETS_FILE=secrets)
        self.git("commit", "-q", "-m", "no secret to anybody else")
        self.git("rm", "-q", "-f", "clean")
        self.git("commit", "-q", "-m", "removing is no offence", ISOLA_SECRETS_FILE=secrets)

    def test_a_hook_that_cannot_look_refuses(self):
        self.repository()
        self.write("clean", "fine\n")
        self.git("add", "clean")
        out = self.git("commit", "-q", "-m", "x", ok=False, ISOLA="/no/such/program")
        self.assertIn("could not be looked through", out.stderr)

    def test_pre_push(self):
        with tempfile.TemporaryDirectory() as far:
            self.git("init", "-q", "--bare", cwd=far)
            self.repository()
            self.git("remote", "add", "origin", far)
            self.write("clean", "fine\n")
            self.git("add", "clean")
            self.git("commit", "-q", "-m", "first")
            self.git("push", "-q", "origin", "main")
            # Committed and removed again: it would be sent all the same.
            self.write("config", token() + "\n")
            self.git("add", "config")
            self.git("commit", "-q", "--no-verify", "-m", "oops")
            self.git("rm", "-q", "config")
            self.git("commit", "-q", "-m", "removed")
            out = self.git("push", "-q", "origin", "main", ok=False)
            self.assertIn("config", out.stdout + out.stderr)
            self.git("push", "-q", "--no-verify", "origin", "main")
            # What is there already does not count again; a message does.
            self.write("clean", "finer\n")
            self.git("commit", "-q", "-am", "second")
            self.git("push", "-q", "origin", "main")
            self.git("commit", "-q", "--allow-empty", "-m", "the token is " + token(5))
            out = self.git("push", "-q", "origin", "main", ok=False)
            self.assertIn("commit ", out.stdout + out.stderr)
            self.git("reset", "-q", "--hard", "HEAD~1")
            self.git("push", "-q", "origin", "main:other")
            self.git("push", "-q", "origin", ":other")


if __name__ == "__main__":
    unittest.main()
