"""`./dev up`, as a newcomer types it: it ends with a server, its URL, the key's place and what a first sandbox said."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import urllib.request

from island import FULL, Server

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


class Up(unittest.TestCase):
    def test_and_down_again(self):
        if not FULL:
            print("reduced: ./dev up, which builds the release (0 of 1)", flush=True)
            self.skipTest("it builds the release: only in the full suite")
        data = tempfile.mkdtemp(prefix="isola-up-", dir="/var/tmp")
        environment = {**os.environ, "ISOLA_DATA": data, "ISOLA_LISTEN": f"127.0.0.1:{Server.free_port()}"}
        environment.pop("ISOLA_BINARY")
        dev = [os.path.join(ROOT, "dev")]
        try:
            for again in (False, True):  # the second time the server is there
                up = subprocess.run([*dev, "up"], env=environment, capture_output=True, text=True, timeout=3600)
                self.assertEqual(up.returncode, 0, up.stdout + up.stderr)
                self.assertIn("hello from an island", up.stdout)
                self.assertIn(f"{data}/key", up.stdout)
                url = re.search(r"curl -s (http://\S+)/v1/run", up.stdout)[1]
                self.assertTrue(url.endswith(environment["ISOLA_LISTEN"]), url)
                with open(os.path.join(data, "key")) as file:
                    key = file.read().strip()
                self.assertNotIn(key, up.stdout if again else "", "the key is printed once at most")
                request = urllib.request.Request(url + "/v1/run", data=b'{"command": "echo $((6 * 7))"}',
                                                 headers={"Authorization": "Bearer " + key})
                with urllib.request.urlopen(request, timeout=60) as reply:
                    self.assertIn(b'"stdout":"42\\n"', reply.read())
            down = subprocess.run([*dev, "down"], env=environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(down.returncode, 0, down.stdout + down.stderr)
            self.assertRaises(OSError, urllib.request.urlopen, url + "/readyz", timeout=5)
        finally:
            subprocess.run([*dev, "down"], env=environment, capture_output=True, timeout=120)
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    unittest.main()
