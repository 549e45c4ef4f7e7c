"""What E2B's clients cannot show of the wire: they unpack and retry on their own."""
import base64
import gzip
import hashlib
import json
import os
import signal
import unittest
import urllib.parse

from island import Server, eventually

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

    def test_a_large_file_comes_back_whole_and_in_parts(self):
        script = "for i in $(seq 1 400000); do echo line $i of many; done >/tmp/large; sha256sum </tmp/large; wc -c </tmp/large"
        told = server.run(self.box["sandboxID"], script)["stdout"].split()
        whole = self.read("/tmp/large")
        self.assertEqual((len(whole.body), hashlib.sha256(whole.body).hexdigest()), (int(told[2]), told[0]))
        for first, last in ((1, 99_999), (65_535, 1_000_001), (4096, 4096 + 65_535), (len(whole.body) - 70_001, len(whole.body) - 1)):
            part = self.read("/tmp/large", Range=f"bytes={first}-{last}")
            self.assertEqual(part.status, 206)
            self.assertTrue(part.body == whole.body[first:last + 1], (first, last, len(part.body)))
        endless = self.read("/tmp/large", Range=f"bytes=1-{2**64 - 1}")
        self.assertEqual((endless.status, endless.body == whole.body[1:]), (206, True))

    def test_a_copy_that_is_still_good_is_not_sent_again(self):
        self.write("/tmp/copy", b"0123456789")
        first = self.read("/tmp/copy")
        tag, time = first.headers["etag"], first.headers["last-modified"]
        self.assertRegex(tag, r'^W/"[0-9a-f]+-[0-9a-f]+"$')
        self.assertEqual(self.read("/tmp/copy", **{"If-None-Match": '"other"', "If-Modified-Since": time}).status, 200, "the tag decides")
        for headers in ({"If-None-Match": tag}, {"If-None-Match": f'"other", {tag}'}, {"If-None-Match": "*"}, {"If-Modified-Since": time}):
            same = self.read("/tmp/copy", **headers)
            self.assertEqual((same.status, same.body, same.headers["etag"], same.headers["last-modified"]), (304, b"", tag, time), headers)
        # A part is one of what the client has, or it gets the whole.
        part = self.read("/tmp/copy", **{"Range": "bytes=2-4", "If-Range": time})
        self.assertEqual((part.status, part.body, part.headers["etag"]), (206, b"234", tag))
        for other in (tag, '"other"', "Sun, 06 Nov 1994 08:49:37 GMT"):
            whole = self.read("/tmp/copy", **{"Range": "bytes=2-4", "If-Range": other})
            self.assertEqual((whole.status, whole.body), (200, b"0123456789"), other)
        server.run(self.box["sandboxID"], "printf abcdefghij > /tmp/copy; touch -d '2030-01-01 00:00:00 UTC' /tmp/copy", user="root")
        new = self.read("/tmp/copy", **{"If-None-Match": tag})
        self.assertEqual((new.status, new.body), (200, b"abcdefghij"))
        self.assertEqual(new.headers["last-modified"], "Tue, 01 Jan 2030 00:00:00 GMT")
        self.assertEqual(self.read("/tmp/copy", **{"If-Modified-Since": time}).status, 200)
        # The address is that of every sandbox's file: no cache on the way may answer for another one, or without asking.
        for answer in (first, part, self.read("/tmp/copy", **{"If-None-Match": "*"})):
            self.assertEqual(answer.headers["cache-control"], "private, no-cache", answer.status)
            vary = {word.strip().lower() for word in answer.headers["vary"].split(",")}
            self.assertEqual(vary, {"accept-encoding", "e2b-sandbox-id", "e2b-sandbox-port", "x-access-token"}, answer.status)
        # What says that it is empty may be something else the next time.
        self.assertNotIn("etag", self.read("/proc/uptime").headers)
        self.assertEqual(self.read("/proc/uptime", **{"If-None-Match": "*"}).status, 200)

    def test_a_command_waits_for_whoever_reads_it(self):
        size = 48 << 20
        body = json.dumps({"process": {"cmd": "/usr/bin/head", "args": ["-c", str(size), "/dev/zero"]}}).encode()
        connection = server.connection()
        self.addCleanup(connection.close)
        connection.request("POST", "/process.Process/Start", b"\0" + len(body).to_bytes(4, "big") + body,
                           {**self.inside, "Content-Type": "application/connect+json", "Authorization": "Basic cm9vdDo="})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200)

        def message():
            head = reply.read(5)
            return head[0], json.loads(reply.read(int.from_bytes(head[1:], "big")))

        flags, first = message()
        pid = first["event"]["start"]["pid"]
        # Nobody reads: after a while it has written what it can, and no more.
        written, same = "", 0
        while same < 20:
            now = server.run(self.box["sandboxID"], f"grep wchar /proc/{pid}/io || echo over")["stdout"]
            self.assertNotIn("over", now, "it did not wait")
            same = same + 1 if now == written else 0
            written = now
        self.assertLess(int(written.split()[1]), 32 << 20)
        got, end = 0, None
        while not flags & 2:
            flags, one = message()
            event = one.get("event", {})
            if "data" in event:
                got += len(base64.b64decode(event["data"]["stdout"]))
            end = event.get("end", end)
        self.assertEqual((got, one), (size, {}))
        self.assertEqual(end["status"], "exit status 0")

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

    def control(self, method, path, body=None, **headers):
        return server.request(method, path, body, key="", headers={"X-API-Key": server.key, **headers})

    def test_an_idempotency_key_means_one_sandbox(self):
        body = {"templateID": "minimal", "timeout": 60, "metadata": {"a": "1"}}
        once = {"Idempotency-Key": "once"}
        made = self.control("POST", "/v2/sandboxes", body, **once)
        self.assertEqual(made.status, 201, made)
        again = self.control("POST", "/v2/sandboxes", body, **once)
        self.assertEqual((again.status, again.json), (201, made.json))
        other = self.control("POST", "/v2/sandboxes", {**body, "metadata": {"a": "2"}}, **once)
        self.assertEqual((other.status, other.json["code"]), (409, 409), other)
        self.assertNotEqual(self.control("POST", "/v2/sandboxes", body, **{"Idempotency-Key": "twice"}).json["sandboxID"], made.json["sandboxID"])
        longest = [self.control("POST", "/v2/sandboxes", body, **{"Idempotency-Key": last + "x" * 254}) for last in "aab"]
        self.assertEqual([one.status for one in longest], [201] * 3, longest)
        self.assertEqual(longest[0].json, longest[1].json)
        self.assertNotEqual(longest[1].json["sandboxID"], longest[2].json["sandboxID"])
        self.assertEqual(self.control("POST", "/v2/sandboxes", body, **{"Idempotency-Key": "x" * 256}).status, 400)
        for one in longest[1:]:
            self.control("DELETE", "/sandboxes/" + one.json["sandboxID"])
        self.assertEqual(self.control("GET", f"/sandboxes/{made.json['sandboxID']}").json["metadata"], {"a": "1"})
        # It is free when that one is gone.
        self.assertEqual(self.control("DELETE", f"/sandboxes/{made.json['sandboxID']}").status, 204)
        fresh = self.control("POST", "/v2/sandboxes", {**body, "metadata": {"a": "2"}}, **once)
        self.assertEqual(fresh.status, 201, fresh)
        self.assertNotEqual(fresh.json["sandboxID"], made.json["sandboxID"])

    def test_a_snapshot_is_told_as_one(self):
        path = f"/sandboxes/{self.box['sandboxID']}"
        self.assertEqual(self.control("POST", path + "/snapshots", {"memory": False}).status, 201)
        self.assertEqual(self.control("POST", path + "/timeout", {"timeout": 70}).status, 204)
        events = lambda types: self.control("GET", f"/events{path}?{types}")  # noqa: E731
        all_ = events("limit=100").json
        self.assertEqual(len({one["id"] for one in all_}), len(all_))
        for one in all_:
            self.assertRegex(one["id"], r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        word = "sandbox.lifecycle."
        self.assertEqual([one["type"] for one in events(f"types={word}snapshotted").json], [word + "snapshotted"])
        for both in (f"types={word}created,{word}updated", f"types={word}created&types={word}updated"):
            self.assertEqual({one["type"] for one in events(both).json}, {word + "created", word + "updated"})
        self.assertEqual(events("types=sandbox.lifecycle").status, 400)

    def test_a_refresh_extends_and_never_cuts(self):
        path = f"/sandboxes/{self.box['sandboxID']}"
        end = lambda: self.control("GET", path).json["endAt"]  # noqa: E731
        before = end()
        self.assertEqual(self.control("POST", path + "/refreshes", {"duration": 5}).status, 204)
        self.assertEqual(end(), before)
        self.assertEqual(self.control("POST", path + "/refreshes", {"duration": 600}).status, 204)
        self.assertGreater(end(), before)
        self.assertEqual(self.control("POST", path + "/refreshes", {"duration": "600"}).status, 400)
        self.assertEqual(self.control("POST", "/sandboxes/i00000000000000000000/refreshes", {"duration": 5}).status, 404)

    def test_events_of_all_sandboxes_and_of_one(self):
        other = self.control("POST", "/v2/sandboxes", {"templateID": "minimal", "metadata": {"of": "events"}}).json["sandboxID"]
        self.assertEqual(self.control("DELETE", "/sandboxes/" + other).status, 204)
        word = "sandbox.lifecycle."

        def ended():  # its end is told when all of it is gone
            told = self.control("GET", f"/events/sandboxes/{other}?orderAsc=true").json
            return told if told[-1]["type"] == word + "killed" else None

        told = eventually(ended, what="its end")
        self.assertEqual([one["type"] for one in told], [word + "created", word + "killed"])
        self.assertEqual({one["sandboxId"] for one in told}, {other})
        fields = {"version", "id", "type", "timestamp", "eventData", "sandboxId", "sandboxExecutionId", "sandboxTemplateId", "sandboxBuildId",
                  "sandboxTeamId"}
        self.assertEqual([set(one) for one in told], [fields] * 2)
        self.assertEqual({(one["sandboxTemplateId"], one["sandboxTeamId"]) for one in told}, {("minimal", "default")})
        self.assertEqual(len({(one["sandboxExecutionId"], one["sandboxBuildId"]) for one in told}), 1)
        self.assertEqual(told[0]["eventData"], {"sandbox_metadata": {"of": "events"}})
        execution = told[1]["eventData"]["execution"]
        self.assertEqual(set(execution), {"started_at", "vcpu_count", "memory_mb", "execution_time"})
        newest = self.control("GET", "/events/sandboxes?limit=100").json
        self.assertEqual([one["id"] for one in newest if one["sandboxId"] == other], [one["id"] for one in reversed(told)])
        self.assertIn(self.box["sandboxID"], {one["sandboxId"] for one in newest})
        self.assertEqual([one["id"] for one in self.control("GET", "/events/sandboxes?limit=1&offset=1").json], [newest[1]["id"]])
        self.assertEqual(self.control("GET", "/events/sandboxes?limit=101").status, 400)
        # Those of other projects are nobody's business.
        project = server.post("/v1/projects", {"name": "events"}).json["id"]
        key = server.post("/v1/keys", {"project": project, "scope": "use"}).json["secret"]
        for path in ("/events/sandboxes", f"/events/sandboxes/{other}"):
            self.assertEqual(server.get(path, key="", headers={"X-API-Key": key}).json, [])

    def test_events_behind_many_others(self):
        path, connection = f"/sandboxes/{self.box['sandboxID']}", server.connection()
        for i in range(1100):  # more than one page of the ledger
            done = server.request("POST", path + "/timeout", {"timeout": 600 + i % 2}, key="", headers={"X-API-Key": server.key}, connection=connection)
            self.assertEqual(done.status, 204, done)
        connection.close()
        told = self.control("GET", f"/events{path}?orderAsc=true&offset=1050&limit=10").json
        self.assertEqual([one["type"] for one in told], ["sandbox.lifecycle.updated"] * 10)
        oldest = self.control("GET", f"/events{path}?types=sandbox.lifecycle.created&limit=1").json
        self.assertEqual([one["type"] for one in oldest], ["sandbox.lifecycle.created"])
        self.assertEqual(self.control("GET", f"/events{path}?offset=5000").json, [])

    def test_what_a_client_started_is_listed_as_it_was_after_a_restart(self):
        body = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", "sleep 4321; true"]}, "tag": "t"}).encode()
        connection = server.connection()
        self.addCleanup(connection.close)
        connection.request("POST", "/process.Process/Start", b"\0" + len(body).to_bytes(4, "big") + body,
                           {**self.inside, "Content-Type": "application/connect+json", "Authorization": "Basic cm9vdDo="})
        self.assertEqual(connection.getresponse().read(5)[0], 0)

        def listed():
            answer = server.request("POST", "/process.Process/List", body="{}", key="", headers={**self.inside, "Content-Type": "application/json"})
            self.assertEqual(answer.status, 200, answer)
            return [one["config"] for one in answer.json["processes"]]

        self.assertEqual([(one["cmd"], one["args"]) for one in listed()], [("/bin/bash", ["-l", "-c", "sleep 4321; true"])])
        server.stop()
        server.start(server.port)
        self.assertEqual([(one["cmd"], one.get("args")) for one in listed()], [("/bin/bash", ["-l", "-c", "sleep 4321; true"])])

    def test_a_strict_pause_asks_what_is_inside(self):
        own = Server("--patience", "1s")
        self.addCleanup(own.close)
        headers = {"X-API-Key": own.key}
        box = own.post("/sandboxes", {"templateID": "minimal"}, key="", headers=headers).json["sandboxID"]
        with open(os.path.join(own.data, "run", box)) as file:
            guest = int(file.read().split()[4])
        os.kill(guest, signal.SIGSTOP)
        try:
            refused = own.post(f"/sandboxes/{box}/pause", {"requireHealthyGuest": True}, key="", headers=headers)
            self.assertEqual(refused.status, 503, refused)
            self.assertIn("does not answer", refused.json["message"])
            self.assertEqual(own.get(f"/sandboxes/{box}", key="", headers=headers).json["state"], "running")
        finally:
            os.kill(guest, signal.SIGCONT)
        asked = eventually(lambda: (r := own.post(f"/sandboxes/{box}/pause", {"requireHealthyGuest": True}, key="", headers=headers)).status == 204 and r)
        self.assertEqual(asked.status, 204)

    def test_metrics_of_many(self):
        other = self.control("POST", "/v2/sandboxes", {"templateID": "minimal"}).json["sandboxID"]
        ids = [self.box["sandboxID"], other]
        many = self.control("GET", "/sandboxes/metrics?sandbox_ids=" + ",".join([*ids, "i00000000000000000000"]))
        self.assertEqual((many.status, set(many.json["sandboxes"])), (200, set(ids)), many)
        for one in many.json["sandboxes"].values():
            self.assertGreater(one["memTotal"], 0)
            self.assertGreater(one["memUsed"], 0)
            self.assertGreaterEqual(one["memCache"], 0)
        self.assertEqual(self.control("GET", "/sandboxes/metrics").json, {"sandboxes": {}})
        self.assertEqual(self.control("GET", "/sandboxes/metrics?sandbox_ids=" + ",".join(["x"] * 101)).status, 400)
        self.control("DELETE", "/sandboxes/" + other)

    def test_metrics_have_a_past(self):
        path = f"/sandboxes/{self.box['sandboxID']}"
        look = lambda query="": self.control("GET", path + "/metrics" + query).json  # noqa: E731
        first = look()[0]
        self.assertLess(first["cpuUsedPct"], 50, "it does nothing")
        # Of what is copied from a file most is the cache's.
        server.run(self.box["sandboxID"], "head -c 48M /dev/urandom > /tmp/cached; cat /tmp/cached > /dev/null; (while :; do :; done) >/dev/null 2>&1 &")
        full = eventually(lambda: (m := look()[-1])["memCache"] > 40 << 20 and m, 20, "the cache")
        self.assertLess(full["memUsed"], 40 << 20)
        busy = eventually(lambda: (m := look()[-1])["cpuUsedPct"] > 10 and m, 30, "a busy processor")
        past = eventually(lambda: (all_ := look()) and len(all_) >= 3 and all_, 40, "a past")
        self.assertEqual([one["timestampUnix"] for one in past], sorted(one["timestampUnix"] for one in past))
        self.assertEqual(past[0], first)
        middle = past[1]["timestampUnix"]
        self.assertEqual({one["timestampUnix"] for one in look(f"?start={middle}&end={middle}")}, {middle})
        self.assertEqual(look(f"?end={first['timestampUnix'] - 60}"), [])
        self.assertEqual(look(f"?start={past[-1]['timestampUnix'] + 3600}"), [])
        self.assertGreater(busy["timestampUnix"], 0)
        # One that is paused is looked at no more, and is asked for what there was.
        self.assertEqual(self.control("POST", path + "/pause", {"memory": False}).status, 204)
        before = look()
        self.assertEqual(before[:3], past[:3])
        self.assertEqual(look(), before)
        many = self.control("GET", "/sandboxes/metrics?sandbox_ids=" + self.box["sandboxID"]).json["sandboxes"]
        self.assertEqual(many, {self.box["sandboxID"]: before[-1]})

    def test_a_list_goes_on_where_it_was(self):
        made = [self.control("POST", "/v2/sandboxes", {"templateID": "minimal", "metadata": {"page": "x"}}).json["sandboxID"] for _ in range(4)]
        page = lambda more="": self.control("GET", "/v2/sandboxes?metadata=page%3Dx&order=asc&limit=2" + more)  # noqa: E731
        first = page()
        self.assertEqual([one["sandboxID"] for one in first.json], made[:2])
        # The last one that was shown goes away, and with it nobody's place.
        self.assertEqual(self.control("DELETE", "/sandboxes/" + made[1]).status, 204)
        second = page("&nextToken=" + urllib.parse.quote(first.headers["x-next-token"]))
        self.assertEqual([one["sandboxID"] for one in second.json], made[2:], second)
        self.assertNotIn("x-next-token", second.headers)
        self.assertEqual(page("&nextToken=nonsense").status, 400)
        for one in made:
            self.control("DELETE", "/sandboxes/" + one)

    def test_times_have_bounds_everywhere(self):
        path = f"/sandboxes/{self.box['sandboxID']}"
        for timeout in (1e12, -1, "1"):
            self.assertEqual(self.control("POST", path + "/fork", {"timeout": timeout}).status, 400)
        self.assertEqual(self.control("POST", path + "/pause", {"memory": False}).status, 204)
        for timeout in (1e12, -1, "1"):
            self.assertEqual(self.control("POST", path + "/resume", {"timeout": timeout}).status, 400)

    def test_a_resume_of_the_old_kind_takes_what_it_is_asked(self):
        path = f"/sandboxes/{self.box['sandboxID']}"
        server.run(self.box["sandboxID"], "echo kept >/tmp/mark; nohup sleep 987654 >/dev/null 2>&1 &")
        self.assertEqual(self.control("POST", path + "/pause").status, 204)
        self.assertEqual(self.control("POST", path + "/resume", {"autoPause": 1}).status, 400)
        resumed = self.control("POST", path + "/resume", {"timeout": 60, "memory": False, "autoPause": True})
        self.assertEqual((resumed.status, resumed.json["sandboxID"]), (201, self.box["sandboxID"]), resumed)
        told = server.run(self.box["sandboxID"], "cat /tmp/mark; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")["stdout"]
        self.assertIn("kept", told)
        self.assertNotIn("sleep 987654", told, "its memory was to be left behind")
        self.assertEqual(self.control("GET", path).json["lifecycle"]["onTimeout"], "pause")
        again = self.control("POST", path + "/resume", {"timeout": 60})
        self.assertEqual((again.status, again.json["code"]), (409, 409), again)

    def test_what_was_put_away_comes_back_by_itself_only_with_its_memory(self):
        for memory in (True, False):
            made = self.control("POST", "/v2/sandboxes", {"templateID": "minimal", "timeout": 600, "autoPause": True, "autoResume": {"enabled": True}}).json
            box, inside = made["sandboxID"], {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}
            self.assertEqual(self.control("POST", f"/sandboxes/{box}/pause", {"memory": memory}).status, 204)
            self.assertEqual(server.post(f"/v1/sandboxes/{box}/archive").json["state"], "archived")
            calls = [lambda: server.get("/envs", headers=inside, key=""), lambda: server.get("/files?path=/etc/hostname&username=root", headers=inside, key=""),
                     lambda: server.post("/filesystem.Filesystem/Stat", {"path": "/etc"}, headers=inside, key=""),
                     lambda: server.get("/", headers={"E2b-Sandbox-Id": box, "E2b-Sandbox-Port": "8000"}, key="")]
            if memory:
                self.assertEqual(calls[0]().status, 200)
            else:
                for call in calls:
                    refused = call()
                    self.assertEqual((refused.status, refused.json["message"]), (502, "The sandbox was not found"), refused)
            self.assertEqual(server.get(f"/v1/sandboxes/{box}").json["state"], "running" if memory else "archived")
            if not memory:  # but whoever connects has it
                self.assertEqual(self.control("POST", f"/v2/sandboxes/{box}/connect", {}).status, 201)
                self.assertEqual(calls[0]().status, 200)
            self.control("DELETE", f"/sandboxes/{box}")

    def inside_call(self, method, body):
        return server.request("POST", f"/filesystem.Filesystem/{method}", body=json.dumps(body), key="",
                              headers={**self.inside, "Content-Type": "application/json", "Authorization": "Basic cm9vdDo="})

    def test_a_watched_folder_that_is_removed_keeps_its_last_events(self):
        server.run(self.box["sandboxID"], "mkdir /tmp/watched")
        made = self.inside_call("CreateWatcher", {"path": "/tmp/watched"})
        self.assertEqual(made.status, 200, made)
        server.run(self.box["sandboxID"], "touch /tmp/watched/a; rm -r /tmp/watched")
        server.run(self.box["sandboxID"], "true")  # the guest has seen its end by now
        told = self.inside_call("GetWatcherEvents", made.json)
        self.assertEqual(told.status, 200, told)
        self.assertEqual({(one["name"], one["type"]) for one in told.json["events"]} & {("a", "EVENT_TYPE_CREATE"), ("a", "EVENT_TYPE_REMOVE")},
                         {("a", "EVENT_TYPE_CREATE"), ("a", "EVENT_TYPE_REMOVE")})
        self.assertEqual((self.inside_call("GetWatcherEvents", made.json).json), {})
        self.assertEqual(self.inside_call("RemoveWatcher", made.json).status, 200)
        self.assertEqual(self.inside_call("RemoveWatcher", made.json).status, 404)

    def test_input_of_any_shape(self):
        envelope = lambda *messages: b"".join(b"\0" + len(one).to_bytes(4, "big") + one for one in messages)  # noqa: E731
        for wrong in (b'{"start":5}', b'{"start":{"process":{"pid":4294967296}}}', b'{"data":5}'):
            reply = server.request("POST", "/process.Process/StreamInput", body=envelope(wrong), key="",
                                   headers={**self.inside, "Content-Type": "application/connect+json"})
            self.assertIn(b'"invalid_argument"', reply.body, (wrong, reply))
        listed = server.request("POST", "/process.Process/SendSignal", body=b'{"process":{"pid":99999999999},"signal":"SIGNAL_SIGKILL"}',
                                key="", headers={**self.inside, "Content-Type": "application/json"})
        self.assertEqual((listed.status, listed.json["code"]), (400, "invalid_argument"))

    def test_a_refused_upload_is_read_to_its_end(self):
        for type_, user, size in (("text/plain", "root", 8), ("application/octet-stream", "nobody-is-called-that", 80)):
            reply = server.request("POST", f"/files?path=/tmp/x&username={user}", body=b"x" * (size << 20), key="",
                                   headers={**self.inside, "Content-Type": type_})
            self.assertIn(reply.status, (400, 401), reply)

    def test_a_volume_that_is_full(self):
        made = server.post("/v1/volumes", {"name": "small", "size": "16M"})
        self.assertEqual(made.status, 201, made)
        volume = self.control("GET", "/volumes/" + made.json["id"])
        self.assertEqual(volume.status, 200, volume)
        bearer = {"Authorization": "Bearer " + volume.json["token"]}
        path = f"/volumecontent/{volume.json['volumeID']}/"
        full = server.request("PUT", path + "file?path=/large", body=b"x" * (32 << 20), key="", headers=bearer)
        self.assertEqual((full.status, full.json["code"]), (507, "disk_full"), full)
        self.assertIn("not enough space", full.json["message"])
        self.assertEqual(server.request("PUT", path + "file?path=/little", body=b"x", key="", headers=bearer).status, 201)
        for wrong in ({"uid": 1 << 32}, {"gid": -1}, {"mode": 0o10000}, {"mode": "0644"}):
            reply = server.request("PATCH", path + "path?path=/little", body=wrong, key="", headers=bearer)
            self.assertEqual(reply.status, 400, (wrong, reply))
        self.assertEqual(server.request("PATCH", path + "path?path=/little", body={"mode": 0o600}, key="", headers=bearer).json["mode"] & 0o777, 0o600)
        self.assertEqual(self.control("DELETE", "/volumes/" + made.json["id"]).status, 204)

    def test_a_place_for_files_of_a_build_is_one_for_a_time(self):
        made = self.control("POST", "/v3/templates", {"name": "mine"})
        self.assertIn(made.status, (201, 202), made)
        place = self.control("GET", f"/templates/{made.json['templateID']}/files/{'a' * 64}")
        self.assertEqual(place.status, 201, place)
        url = urllib.parse.urlsplit(place.json["url"])
        asked = dict(urllib.parse.parse_qsl(url.query))
        for wrong in ({**asked, "expires": str(int(asked["expires"]) + 60)}, {**asked, "expires": ""}, {**asked, "token": "0" * 40}):
            self.assertEqual(server.request("PUT", url.path + "?" + urllib.parse.urlencode(wrong), body=b"", key="").status, 401, wrong)
        self.assertEqual(server.request("PUT", url.path + "?" + url.query, body=b"an archive", key="").status, 200)

    def test_the_state_of_one(self):
        envs = server.get("/envs", headers=self.inside, key="")
        self.assertEqual((envs.status, envs.json["E2B_SANDBOX_ID"], envs.json["E2B_SANDBOX"]), (200, self.box["sandboxID"], "true"))
        state = server.get("/metrics", headers=self.inside, key="")
        self.assertEqual(state.status, 200, state)
        self.assertEqual(set(state.json), {"ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "disk_used", "disk_total"})
        self.assertGreater(state.json["ts"], 1_700_000_000)
        self.assertGreaterEqual(state.json["cpu_count"], 1)
        for part in ("mem", "disk"):
            self.assertTrue(0 <= state.json[part + "_used"] <= state.json[part + "_total"], state)
            self.assertGreater(state.json[part + "_total"], 0)

    def test_silent_streams_say_that_they_live(self):
        for path, body, found in (("/process.Process/Start", {"process": {"cmd": "sleep", "args": ["1000"]}}, lambda m: "keepalive" in m["event"]),
                                  ("/filesystem.Filesystem/WatchDir", {"path": "/tmp"}, lambda m: "keepalive" in m)):
            text = json.dumps(body).encode()
            connection = server.connection()
            connection.request("POST", path, b"\0" + len(text).to_bytes(4, "big") + text,
                               {**self.inside, "Content-Type": "application/connect+json", "Keepalive-Ping-Interval": "1"})
            reply = connection.getresponse()

            def message():
                head = reply.read(5)
                return json.loads(reply.read(int.from_bytes(head[1:], "big")))
            message()  # the start
            self.assertTrue(found(message()), path)
            connection.close()

    def test_calls_of_the_control_plane_with_a_sandbox_in_their_headers(self):
        for path in ("/templates", "/v2/sandboxes", "/volumes", "/secrets", "/events/sandboxes"):
            self.assertEqual(self.control("GET", path, **self.inside).status, 200, path)

    def test_a_limit_counts_what_was_found(self):
        for word in ("first", "second"):
            server.run(self.box["sandboxID"], f"echo {word}")
        path = f"/v2/sandboxes/{self.box['sandboxID']}/logs?limit=1"
        self.assertEqual(len(self.control("GET", path).json["logs"]), 1)
        told = self.control("GET", path + "&search=second").json["logs"]
        self.assertEqual(len(told), 1)
        self.assertIn("second", json.dumps(told[0]))

    def test_port_49999_is_a_port_like_others_without_an_interpreter(self):
        headers = {"E2b-Sandbox-Id": self.box["sandboxID"], "E2b-Sandbox-Port": "49999"}
        closed = server.get("/health", headers=headers, key="")
        self.assertEqual((closed.status, closed.json["message"]), (502, "The sandbox is running but port is not open"))

    def test_a_fork_is_made_as_far_as_there_is_room(self):
        project = server.post("/v1/projects", {"name": "few", "limits": {"live_sandboxes": 3}}).json["id"]
        headers = {"X-API-Key": server.post("/v1/keys", {"project": project, "scope": "use"}).json["secret"]}
        parent = server.post("/sandboxes", {"templateID": "minimal"}, headers=headers, key="").json["sandboxID"]
        fork = lambda: server.post(f"/sandboxes/{parent}/fork", {"count": 4}, headers=headers, key="")  # noqa: E731
        made = fork()
        self.assertEqual((made.status, len(made.json)), (201, 4), made)
        ids = [one["sandbox"]["sandboxID"] for one in made.json if "sandbox" in one]
        self.assertEqual((len(ids), [one["error"]["code"] for one in made.json if "error" in one]), (2, [429, 429]), made)
        for one in ids:
            self.assertEqual(server.get(f"/sandboxes/{one}", headers=headers, key="").json["state"], "running")
        listed = server.get("/v2/sandboxes", headers=headers, key="").json
        self.assertEqual({one["sandboxID"] for one in listed}, {parent, *ids})
        full = fork()
        self.assertEqual((full.status, [one["error"]["code"] for one in full.json]), (201, [429] * 4), full)
        for one in (parent, *ids):
            server.delete(f"/sandboxes/{one}", headers=headers, key="")

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
