"""The README's quick start, as it stands, against a server of the test's own."""
import json
import os
import re
import subprocess
import unittest

from island import Server

README = os.path.join(os.path.dirname(__file__), "../../README.md")


class QuickStart(unittest.TestCase):
    def test_every_line_works(self):
        with open(README) as file:
            block = re.search(r"<!-- quick start[^\n]*-->\n```sh\n(.*?)```", file.read(), re.S)
        self.assertTrue(block, "the README has no quick start")
        lines = block.group(1)
        server = Server()
        try:
            # Only where the server is differs from what a newcomer types.
            self.assertIn("http://127.0.0.1:8080", lines)
            lines = lines.replace("http://127.0.0.1:8080", server.url).replace("/var/lib/isola", server.data)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", lines], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr, "")
            replies = [json.loads(line) for line in done.stdout.replace("}{", "}\n{").splitlines() if line]
            for reply in replies:
                self.assertNotIn("error", reply)
            self.assertEqual(replies[0]["stdout"], "42\n")
            self.assertEqual(replies[1]["name"], "first")
            self.assertEqual(replies[3]["stdout"], "hello from a file\n")
            self.assertEqual([r["data"] for r in replies if r.get("type") == "stdout"], ["1\n", "2\n", "3\n"])
            self.assertEqual(replies[-1]["exit_code"], 0)
        finally:
            server.close()


if __name__ == "__main__":
    unittest.main()
