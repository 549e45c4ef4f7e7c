"""Every boundary of this machine does what Linux does, but for what is listed; and tells no more of the host than is
listed. `./dev boundaries` writes both lists, and the parts of the documents that are made of them."""
import unittest

import boundaries

island = None


def setUpModule():
    global island
    island = boundaries.Island()


def tearDownModule():
    island.close()


class Behaviour(unittest.TestCase):
    maxDiff = None

    def compare(self, boundary, found, listed):
        new = {name: said for name, said in found.items() if listed.get(name) != said}
        gone = sorted(set(listed) - set(found))
        self.assertFalse(new, f"{boundary} differs from Linux in what is not listed, or in another way")
        self.assertFalse(gone, f"{boundary} no longer differs in these: ./dev boundaries takes them off the list")

    def test_bare(self):
        """Linux itself: the checks are right. A kernel may be built without something, or be told to refuse it."""
        found = boundaries.differences(island, "bare")
        checks = boundaries.checks(island)
        self.assertGreaterEqual(len(checks), 150)
        features = {name for topic, name, _ in checks if topic == "kernel features"}
        wrong = {name: said for name, said in found.items() if not said.startswith("not there") and name not in features}
        self.assertFalse(wrong, "Linux does not do what a check says that it does")
        for name, said in found.items():
            print(f"\nreduced: {name}: this machine's kernel answers {said}", flush=True)

    def test_boundaries(self):
        listed = boundaries.read(boundaries.DIFFERENCES)
        bare = boundaries.differences(island, "bare")
        for boundary, offer in island.offers.items():
            with self.subTest(boundary=boundary):
                if not offer["offered"]:
                    print(f"\nskipped: boundary {boundary}: {offer['missing']}", flush=True)
                    continue
                known = listed.get(boundary)
                if known is None:
                    print(f"\nskipped: there is no list of {boundary} yet: ./dev boundaries makes it", flush=True)
                    continue
                # Another version of an engine may do more or less.
                if boundary != "jail" and known["engine"] != island.engine(boundary):
                    print(f"\nskipped: the list of {boundary} is of {known['engine']}, here is {island.engine(boundary)}",
                          flush=True)
                    continue
                found = boundaries.differences(island, boundary, known["differences"])
                if boundary == "jail":  # the same kernel: what it lacks says nothing of the jail
                    lacking = {name for name in bare if name not in known["differences"]}
                    found = {name: said for name, said in found.items() if name not in lacking}
                self.compare(boundary, found, known["differences"])

    def test_what_is_learned(self):
        listed = boundaries.read(boundaries.LEARNED)
        for boundary, offer in island.offers.items():
            with self.subTest(boundary=boundary):
                if not offer["offered"]:
                    print(f"\nskipped: boundary {boundary}: {offer['missing']}", flush=True)
                    continue
                if boundary not in listed:
                    print(f"\nskipped: there is no list of {boundary} yet: ./dev boundaries makes it", flush=True)
                    continue
                found = boundaries.learned(island, boundary)
                rank = boundaries.LEVELS.index
                more = {name: f"{said}, listed is {listed[boundary].get(name, 'nothing')}" for name, said in found.items()
                        if rank(said) > rank(listed[boundary].get(name, "nothing"))}
                self.assertFalse(more, f"{boundary} tells more of the host than docs/threat-model.md says")

    def test_a_fact_of_the_host_is_seen(self):
        """The comparison can fail: bare, everything that is there is the host's."""
        with boundaries.host_process() as word:
            host = boundaries.facts(island.bare("isola-learns", [word]))
        self.assertEqual(host["processes"][2], "seen")
        for name, (_, how, found) in host.items():
            self.assertEqual(boundaries.level(how, found, found), "host" if found else "nothing", name)


if __name__ == "__main__":
    unittest.main()
