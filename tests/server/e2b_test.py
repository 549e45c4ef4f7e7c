"""What E2B's clients cannot show of the wire: they unpack and retry on their own."""
import gzip
import unittest

from island import Server

server = None


def setUpModule():
    global server
    server = Server()


def tearDownModule():
    server.close()


class E2b(unittest.TestCase):
    def setUp(self):
        reply = server.post("/sandboxes", {"templateID": "minimal", "timeout": 60}, headers={"X-API-Key": server.key}, key="")
        self.assertEqual(reply.status, 201, reply)
        self.box = reply.json
        self.inside = {"E2b-Sandbox-Id": self.box["sandboxID"], "X-Access-Token": self.box["envdAccessToken"]}

    def tearDown(self):
        server.delete(f"/sandboxes/{self.box['sandboxID']}", headers={"X-API-Key": server.key}, key="")

    def write(self, path, data):
        reply = server.request("POST", f"/files?path={path}&username=root", body=data, key="",
                               headers={**self.inside, "Content-Type": "application/octet-stream"})
        self.assertEqual(reply.status, 200, reply)

    def read(self, path, **headers):
        return server.get(f"/files?path={path}&username=root", headers={**self.inside, **headers}, key="")

    def test_a_download_is_packed_for_who_asks_for_it(self):
        data = b"again and " * 100_000
        self.write("/tmp/text", data)
        packed = self.read("/tmp/text", **{"Accept-Encoding": "gzip"})
        self.assertEqual(packed.status, 200)
        self.assertEqual(packed.headers["content-encoding"], "gzip")
        self.assertLess(len(packed.body), len(data) // 10)
        self.assertEqual(gzip.decompress(packed.body), data)
        # A list is what libraries send by themselves; a range counts bytes of the file.
        for headers in ({}, {"Accept-Encoding": "gzip, deflate"}, {"Accept-Encoding": "gzip", "Range": "bytes=0-9"}):
            plain = self.read("/tmp/text", **headers)
            self.assertNotIn("content-encoding", plain.headers)
            self.assertEqual(plain.body, data[:10] if "Range" in headers else data)

    def test_an_empty_file_and_one_that_says_it_is(self):
        self.write("/tmp/empty", b"")
        self.assertEqual(self.read("/tmp/empty", **{"Accept-Encoding": "gzip"}).body, b"")
        packed = self.read("/proc/version", **{"Accept-Encoding": "gzip"})
        self.assertTrue(gzip.decompress(packed.body).startswith(b"Linux"), packed)

    def test_a_killed_one_is_gone_at_once(self):
        headers = {"X-API-Key": server.key}
        path = f"/sandboxes/{self.box['sandboxID']}"
        self.assertEqual(server.get(path, headers=headers, key="").status, 200)
        self.assertEqual(server.delete(path, headers=headers, key="").status, 204)
        self.assertEqual(server.get(path, headers=headers, key="").status, 404)
        self.assertEqual(server.delete(path, headers=headers, key="").status, 404)
        self.assertEqual(server.get("/health", headers=self.inside, key="").status, 502)
        listed = server.get("/v2/sandboxes", headers=headers, key="").json
        self.assertNotIn(self.box["sandboxID"], [one["sandboxID"] for one in listed])

    def test_whoever_leaves_makes_room(self):
        project = server.post("/v1/projects", {"name": "small", "limits": {"live_sandboxes": 1}}).json["id"]
        key = server.post("/v1/keys", {"project": project, "scope": "use"}).json["secret"]
        headers = {"X-API-Key": key}
        for _ in range(10):  # its kill is answered before everything of it is gone
            made = server.post("/sandboxes", {"templateID": "minimal"}, headers=headers, key="")
            self.assertEqual(made.status, 201, made)
            self.assertEqual(server.post("/sandboxes", {"templateID": "minimal"}, headers=headers, key="").status, 429)
            self.assertEqual(server.delete(f"/sandboxes/{made.json['sandboxID']}", headers=headers, key="").status, 204)


if __name__ == "__main__":
    unittest.main()
