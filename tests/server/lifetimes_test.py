"""Ends: from every state, by whoever asks, and of those whose time passed while no server looked."""
import signal
import threading
import time
import unittest

from island import Server, eventually


class Lifetimes(unittest.TestCase):
    def setUp(self):
        self.server = Server("--sample", "300ms", "--prices-cpu-hour", "3600", "--log-access", "false")
        self.addCleanup(self.server.close)

    def record(self, sandbox):
        return self.server.get(f"/v1/sandboxes/{sandbox}").json

    def test_one_that_is_still_being_made_can_be_ended(self):
        answers = []
        asked = {"name": "slow", "on_create": ["sleep 600"]}
        connection = self.server.connection(300)
        self.addCleanup(connection.close)
        caller = threading.Thread(target=lambda: answers.append(self.server.post("/v1/sandboxes", asked, connection=connection)))
        caller.start()
        made = eventually(lambda: self.server.get("/v1/sandboxes?state=creating").json["sandboxes"])[0]["id"]
        self.assertEqual(self.server.delete(f"/v1/sandboxes/{made}").status, 204)
        caller.join()
        self.assertGreaterEqual(answers[0].status, 400, "nobody is told that it was made")
        self.assertEqual(self.record(made)["state"], "ended")
        # Its name is free, and nothing of it is left.
        again = self.server.create(name="slow")
        self.assertNotEqual(again["id"], made)

    def test_one_that_is_archived_can_be_ended(self):
        made = self.server.create()["id"]
        path = f"/v1/sandboxes/{made}"
        self.assertEqual(self.server.post(path + "/pause", {"memory": False}).status, 200)
        packed = self.server.post(path + "/archive")
        self.assertEqual(packed.json["state"], "archived", packed)
        self.assertEqual(self.server.delete(path).status, 204)
        self.assertEqual((self.record(made)["state"], self.record(made)["end_reason"]), ("ended", "killed"))

    def test_whose_time_passed_while_no_server_looked(self):
        short, long = self.server.create(timeout=1)["id"], self.server.create(timeout=3600)["id"]
        port = self.server.port
        self.server.process.send_signal(signal.SIGKILL)
        self.server.process.wait()
        time.sleep(1.1)  # not for something to happen: for the time to pass
        self.server.start(port)
        eventually(lambda: self.record(short)["state"] == "ended")
        self.assertEqual(self.record(short)["end_reason"], "deadline")
        self.assertEqual(self.record(long)["state"], "running")

    def test_a_key_of_a_conversation_has_its_own_idle_limit_and_size(self):
        asked = {"key": "talk-1", "idle_timeout": 900, "memory": "128M", "disk": "64M"}
        first = self.server.create(**asked)
        again = self.server.create(**asked)
        other = self.server.create(key="talk-2")
        self.assertEqual(first["id"], again["id"])
        self.assertEqual(again["idle_timeout"], 900)
        self.assertEqual((again["memory"], again["disk"]), (128 << 20, 64 << 20))
        self.assertNotEqual((other["id"], other["memory"]), (again["id"], again["memory"]))
        full = self.server.run(first["id"], "head -c 200M /dev/zero > /root/fill; echo $?; stat -c %s /root/fill", user="root")
        self.assertLess(int(full["stdout"].split()[1]), 64 << 20)

    def test_what_it_took_is_written_down_with_its_price(self):
        made = self.server.create(task="dear")["id"]
        self.server.run(made, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
        self.server.delete(f"/v1/sandboxes/{made}")
        born = self.server.get(f"/v1/ledger?sandbox={made}&kind=sandbox.created").json["events"][0]["data"]
        self.assertGreaterEqual(len(born["latency_us"]), 1, born)  # by steps
        self.assertTrue(all(step > 0 for step in born["latency_us"].values()), born)
        usage = self.server.get("/v1/usage?task=dear&by=task").json["usage"][0]
        self.assertAlmostEqual(usage["cost"], usage["cpu_seconds"], places=3)  # 3600 an hour: one a second


class Readers(unittest.TestCase):
    """A key that may only read sees records, and nothing of what is inside."""

    def test_they_do_not_see_inside(self):
        server = Server("--log-access", "false")
        self.addCleanup(server.close)
        made = server.create()["id"]
        path = f"/v1/sandboxes/{made}"
        command = server.run(made, "echo secret")["command_id"]
        reader = server.post("/v1/keys", {"scope": "read"}).json["secret"]
        inside = ["/files?path=/etc/hostname", "/files/list?path=/", "/files/tar?path=/etc", f"/commands/{command}/output",
                  "/files/watch?path=/tmp"]
        for one in inside:
            self.assertEqual(server.get(path + one, key=reader).status, 403, one)
        for verb, body in (("commands", {"command": "true"}), ("code", {"code": "1"}), ("pause", {}), ("fork", {"count": 1})):
            self.assertEqual(server.post(f"{path}/{verb}", body, key=reader).status, 403, verb)
        shown = server.get(path, key=reader)
        self.assertEqual(shown.status, 200)
        token = server.get(path).json.get("port_token")
        self.assertTrue(token)
        self.assertNotIn(token, shown.body.decode())


if __name__ == "__main__":
    unittest.main()
