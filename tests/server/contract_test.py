"""Every good answer and every refusal that the contract promises was given: what the other server tests saw, taken together.
(That no answer was given which the contract does not have, each of them looks at by itself.)"""
import os
import unittest

from contract import Contract

HERE = os.path.dirname(os.path.abspath(__file__))
# They speak to no server through the contract: the command line alone, and kernels in a sandbox.
OTHERS = {"contract_test", "scan_test", "code_kernels_test", "dev_up_test"}
# Refusals that no test of the fast suite brings about, and why.
UNREACHED = {
    "a limit that is far: thousands of entries, gigabytes of files, so many questions or volumes at once": {
        "get /v1/ledger 429", "get /v1/usage 429", "post /v1/ledger/rotate 429", "post /v1/templates 429", "put /v1/tasks/{task} 429",
        "put /v1/build-files/{hash} 429", "post /v1/secrets 429", "post /v1/bindings 429", "post /v1/sandboxes/{id}/bindings 429",
        "get /v1/volumes/{volume}/files 429", "put /v1/volumes/{volume}/files 429", "delete /v1/volumes/{volume}/files 429",
        "get /v1/volumes/{volume}/files/stat 429", "get /v1/volumes/{volume}/files/list 429",
        "post /v1/volumes/{volume}/files/mkdir 429", "post /v1/volumes/{volume}/snapshot 429"},
    "a limit of the launcher, the gate or the machine, such as open files: needs a fault": {
        "delete /v1/sandboxes/{id} 429", "post /v1/sandboxes/{id}/freeze 429", "put /v1/sandboxes/{id}/network 429",
        "get /v1/volumes/{volume} 429", "delete /v1/volumes/{volume} 429", "put /v1/secrets/{secret} 429",
        "delete /v1/secrets/{secret} 429", "delete /v1/bindings/{binding} 429",
        "delete /v1/sandboxes/{id}/bindings/{binding} 429", "post /v1/sandboxes/{id}/archive 429"},
    "more than 64 KiB where 256 MiB of replies are unread already": {
        "get /v1/sandboxes 429", "get /v1/sandboxes/{id} 429", "get /v1/snapshots 429", "get /v1/snapshots/{snapshot} 429",
        "get /v1/sandboxes/{id}/network 429", "get /v1/keys 429", "get /v1/projects 429", "get /v1/templates 429",
        "get /v1/metrics 429", "get /metrics 429", "get /v1/tasks/{task} 429", "get /v1/volumes 429",
        "get /v1/templates/{template}/builds/{build} 429", "get /v1/secrets 429", "get /v1/secrets/{secret} 429",
        "get /v1/bindings 429", "get /v1/sandboxes/{id}/bindings 429", "patch /v1/sandboxes/{id} 429"},
    "only where two calls meet at one moment": {
        "post /v1/snapshots/{snapshot}/verify 429", "post /v1/sandboxes/{id}/resume 409", "delete /v1/snapshots/{snapshot} 409", "get /v1/volumes/{volume}/files 409",
        "get /v1/volumes/{volume}/files/stat 409", "get /v1/volumes/{volume}/files/list 409"},
    "an image of memory with volumes at other places: needs criu": {"post /v1/sandboxes/{id}/rollback 409"},
    "the machine's folder of templates is gone": {"get /v1/templates 404"},
}
CODE = ("/v1/sandboxes/{id}/code", "/v1/sandboxes/{id}/contexts", "/v1/sandboxes/{id}/languages")


def was_seen(promise, seen):
    verb, path, status = promise.split(" ")
    if status.endswith("XX"):  # of a port: whatever is inside answers
        return "{port}" in path or any(line.startswith(f"{verb} {path} {status[0]}") for line in seen)
    return promise in seen


def promised(kind):
    return {f"{verb} {path} {status}" for path, operations in Contract().all["paths"].items()
            for verb, operation in operations.items() if "responses" in operation
            for status in operation["responses"] if status.startswith(kind)}


class Promises(unittest.TestCase):
    def setUp(self):
        folder = os.environ.get("ISOLA_CONTRACT_SEEN", "")
        built = os.path.getmtime(os.environ["ISOLA_BINARY"])
        # What one saw of an earlier build says nothing of this one.
        reported = {name for name in (os.listdir(folder) if os.path.isdir(folder) else ())
                    if os.path.getmtime(os.path.join(folder, name)) > built}
        silent = {name[:-3] for name in os.listdir(HERE) if name.endswith("_test.py")} - OTHERS - reported
        # Each of them reports, be it that it skipped all that it has: one that did not was not run, or did not come to its end.
        self.assertEqual(sorted(silent), [], "these did not report what they saw: run them before (ctest -R server_)")
        self.seen = set()
        for name in reported:
            with open(os.path.join(folder, name)) as file:
                self.seen.update(file.read().split("\n"))

    def unseen(self, kind):
        return sorted(promise for promise in promised(kind) if not was_seen(promise, self.seen))

    def test_each_good_answer_was_given(self):
        unseen = self.unseen("2")
        if "post /v1/sandboxes/{id}/code 200" in unseen:
            print("skipped: answers about code: the template code-interpreter is not here")
            unseen = [promise for promise in unseen if not promise.split(" ")[1].startswith(CODE)]
        self.assertEqual(unseen, [], f"of {len(promised('2'))} promised answers nobody was given these")

    def test_each_refusal_was_given(self):
        known = {promise for promises in UNREACHED.values() for promise in promises}
        self.assertEqual(sorted(known - promised("4")), [], "of these nothing is promised any more")
        unseen = [promise for promise in self.unseen("4") if promise not in known]
        self.assertEqual(unseen, [], f"of {len(promised('4'))} promised refusals nobody was given these")


if __name__ == "__main__":
    unittest.main(verbosity=1)
