"""podman inside a sandbox: it works where the sandbox has a Linux kernel of its own, and elsewhere it says that it cannot."""
import subprocess
import unittest

import boundaries

island = None
TEMPLATE = "containers"

# An image of the sandbox's own files: one static program.
IMAGE = """set -e
mkdir -p /root/tree/bin /root/tree/tmp
cp /bin/busybox /root/tree/bin/busybox
for name in sh echo cat hostname id wc; do ln -s busybox /root/tree/bin/$name; done
tar -C /root/tree -c . | podman import -q - local/box >/dev/null
"""


def setUpModule():
    global island
    if TEMPLATE not in subprocess.run([boundaries.os.environ["ISOLA_BINARY"], "template", "ls"], capture_output=True,
                                      text=True).stdout.split():
        print(f"\nskipped: the template {TEMPLATE} is not built on this machine (isola template build {TEMPLATE})", flush=True)
        raise unittest.SkipTest("no template")
    island = boundaries.Island()


def tearDownModule():
    if island:
        island.close()


def inside(boundary, script):
    return subprocess.run([island.isola, "run", "--data", island.data, "--template", TEMPLATE, "--boundary", boundary,
                           "--memory", "1G", "--timeout", "10m", "--", "sh", "-c", script], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=900)


class Containers(unittest.TestCase):
    def works(self, boundary):
        if not island.offers[boundary]["offered"]:
            print(f"\nskipped: boundary {boundary}: {island.offers[boundary]['missing']}", flush=True)
            self.skipTest(boundary)
        done = inside(boundary, IMAGE + """
podman run --rm local/box echo hello from a container
podman run --rm --hostname island local/box hostname
podman run --rm --memory 64m --pids-limit 20 local/box cat /sys/fs/cgroup/memory.max
podman run --rm --user 1000 local/box id -u
mkdir -p /root/shared; echo shared >/root/shared/file
podman run --rm -v /root/shared:/shared:ro local/box sh -c 'cat /shared/file; echo x 2>/dev/null >/shared/file || echo read-only'
podman run -d --name sleeper local/box sh -c 'while :; do echo tick; /bin/busybox sleep 1; done' >/dev/null
podman exec sleeper echo executed
podman stop -t 0 sleeper >/dev/null
podman inspect -f '{{.State.Status}}' sleeper
""")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "hello from a container\nisland\n67108864\n1000\nshared\nread-only\nexecuted\n"
                                      "exited\n", done.stderr)

    def test_uml(self):
        self.works("uml")

    def test_refused_elsewhere(self):
        """Where it does not work, podman says so at once, and what it says is what the documentation says."""
        with open(boundaries.os.path.join(boundaries.HERE, "../../docs/boundaries.md")) as file:
            documented = file.read()
        for boundary in ("jail", "gvisor"):
            with self.subTest(boundary=boundary):
                if not island.offers[boundary]["offered"]:
                    print(f"\nskipped: boundary {boundary}: {island.offers[boundary]['missing']}", flush=True)
                    continue
                done = inside(boundary, IMAGE + "podman run --rm local/box echo hello")
                self.assertNotEqual(done.returncode, 0, done.stdout)
                self.assertNotIn("hello", done.stdout)
                sentence = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
                self.assertTrue(sentence, done.stderr)
                self.assertIn(sentence[-1][:60], documented)


if __name__ == "__main__":
    unittest.main()
