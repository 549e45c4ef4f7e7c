"""Sandboxes of the template code-interpreter that begin with a started kernel.

Skipped where that template is not built, or nothing can make memory images."""
import json
import os
import shutil
import signal
import sys
import unittest

import cells
from island import Server, eventually

server = None


def setUpModule():
    global server
    cells.needs_template()
    server = Server("--sweep", "1s")
    if not server.launcher_status().get("checkpointer"):
        raise unittest.SkipTest("no criu here; `./dev criu` provides one")


def tearDownModule():
    if server:
        server.close()


def make(**more):
    return server.create(template="code-interpreter", **more)


def contexts(where):
    return server.get(f"/v1/sandboxes/{where['id']}/contexts").json["contexts"]


def run(where, code, **more):
    reply = server.post(f"/v1/sandboxes/{where['id']}/code", {"code": code, **more})
    assert reply.status == 200, reply
    return reply.json


def shown(cell):
    assert cell["status"] == "ok", cell
    return cell["results"][-1]["data"]["text/plain"]


def drop(where):
    server.delete("/v1/sandboxes/" + where["id"])


def image_of(where):
    """The image that it was made of, as the ledger has it."""
    events = server.get(f"/v1/ledger?sandbox={where['id']}&kind=sandbox.created").json["events"]
    return events[0]["data"].get("image", "")


def warm_one(**more):
    """The first creates of a server are made of the template, while the image is made."""
    def once():
        made = make(**more)
        if made["birth"] == "pooled" and image_of(made):
            return made
        drop(made)
        return None
    return eventually(once, 60, "a create from the warm pool")


class Warm(unittest.TestCase):
    def test_a_kernel_waits_in_it(self):
        made = warm_one()
        self.assertEqual([(c["language"], c["state"]) for c in contexts(made)], [("python", "idle")])
        cell = run(made, "import sys; ('numpy' in sys.modules, 'pandas' in sys.modules, 'np' in globals())")
        self.assertEqual(shown(cell), "(True, True, False)")
        self.assertEqual(cell["execution_count"], 1, "what was done ahead does not count")
        self.assertEqual(shown(run(made, "import os; [n for n in os.environ if 'ISOLA' in n]")), "[]")
        self.assertEqual(shown(run(made, "import socket; socket.gethostname()")).strip("'"),
                         server.run(made["id"], "hostname")["stdout"].strip())
        drop(made)

    def test_two_are_not_twins(self):
        draw = "import random, numpy, uuid, ssl\n(random.random(), float(numpy.random.rand()), str(uuid.uuid4()), ssl.RAND_bytes(8).hex())"
        one, two = warm_one(), warm_one()
        first, second = eval(shown(run(one, draw))), eval(shown(run(two, draw)))
        for a, b in zip(first, second):
            self.assertNotEqual(a, b)
        run(one, "kept = 1")
        self.assertEqual(run(two, "kept")["status"], "error")
        drop(one)
        drop(two)

    def test_what_the_create_asks_for_reaches_the_kernel(self):
        made = warm_one(env={"GREETING": "hello"}, memory="3G", cpus=1, metadata={"a": "b"})
        self.assertEqual(shown(run(made, "import os; os.environ['GREETING']")), "'hello'")
        self.assertEqual(made["memory"], 3 << 30)
        drop(made)

    def test_a_plot_is_as_ever(self):
        made = warm_one()
        cell = run(made, "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]); plt.title('up')\nplt.show()")
        data = cell["results"][-1]["data"]
        self.assertIn("image/png", data)
        self.assertIn("up", json.dumps(data["application/vnd.isola.chart+json"]))
        drop(made)

    def test_who_asks_for_less_gets_a_plain_one(self):
        drop(warm_one())
        for fields in ({"memory": "256M"}, {"cold": True}):
            made = make(**fields)
            self.assertEqual(image_of(made), "", fields)
            drop(made)

    def test_the_server_that_comes_next_finds_it(self):
        made = warm_one()
        image = image_of(made)
        server.stop(signal.SIGKILL)
        server.start(server.port)
        again = make()
        self.assertEqual(image_of(again), image)
        self.assertEqual(shown(run(again, "6 * 7")), "42")
        self.assertEqual(shown(run(made, "1 + 1")), "2")
        drop(again)
        drop(made)

    def test_one_that_is_gone_is_made_anew(self):
        made = warm_one()
        image = image_of(made)
        drop(made)
        folders = [os.path.join(top, image) for top, names, _ in os.walk(server.data) if image in names]
        self.assertTrue(folders)
        for folder in folders:
            shutil.rmtree(folder)
        plain = make()
        self.assertEqual((plain["birth"] in ("cold", "pooled"), image_of(plain)), (True, ""))
        drop(plain)
        self.assertNotEqual(image_of(warm_one()), image)

    def test_paused_and_forked(self):
        made = warm_one()
        run(made, "kept = 40")
        self.assertEqual(server.post(f"/v1/sandboxes/{made['id']}/pause").status, 200)
        self.assertEqual(shown(run(made, "kept + 2")), "42")
        forked = server.post(f"/v1/sandboxes/{made['id']}/fork", {"count": 2})
        self.assertIn(forked.status, (200, 201), forked)
        for child in forked.json["sandboxes"]:
            self.assertEqual(shown(run(child, "kept + 3")), "43")
            drop(child)
        drop(made)


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
