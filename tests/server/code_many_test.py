"""The interpreter in numbers, and through the lives of a sandbox: contexts side by side, sandboxes side by side, variables
of every language over pauses and in forks.

Skipped where the template code-interpreter is not built (`isola template build code-interpreter`)."""
import concurrent.futures
import sys
import unittest

import cells
from cells import LANGUAGES, context, drop, kept, main, make, run, shown, stream
from island import FULL

CONTEXTS, SANDBOXES = (20, 200) if FULL else (5, 6)


def setUpModule():
    cells.begin()
    if not FULL:
        print(f"reduced: {CONTEXTS} contexts at once instead of 20, {SANDBOXES} sandboxes with a cell each instead of 200 "
              "(tests/server/code_many_test.py)", flush=True)


tearDownModule = cells.end


def at_once(threads, work, items):
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


class Many(unittest.TestCase):
    def test_contexts_at_once(self):
        where = make()

        def one(number):
            mine = context(where, language="python")
            run(f"n = {number}", where, context=mine)
            return mine
        made = at_once(CONTEXTS, one, range(CONTEXTS))
        self.assertEqual(len(set(made)), CONTEXTS)
        # All of them run at the same time: each waits until it has seen the others.
        meet = (f"import os, time\nopen(f'/tmp/here-{{n}}', 'w').close()\n"
                f"while not all(os.path.exists(f'/tmp/here-{{i}}') for i in range({CONTEXTS})): time.sleep(0.01)\nn * n")
        squares = at_once(CONTEXTS, lambda mine: main(run(meet, where, context=mine, timeout=120))["text/plain"], made)
        self.assertEqual(squares, [str(number * number) for number in range(CONTEXTS)])
        drop(where)

    def test_sandboxes_with_a_cell_each(self):
        """All of them alive at the end, each with what it was told."""
        made = at_once(8, lambda _: make(memory="256M"), range(SANDBOXES))
        self.assertEqual(len(set(made)), SANDBOXES)
        at_once(8, lambda number: run(f"n = {number}", made[number]), range(SANDBOXES))
        squares = at_once(8, lambda where: main(run("n * n", where))["text/plain"], made)
        self.assertEqual(squares, [str(number * number) for number in range(SANDBOXES)])
        at_once(8, drop, made)


class Lives(unittest.TestCase):
    """What a cell set is there after a pause, and in every fork, for every language; and the kernels are the same ones."""

    @classmethod
    def setUpClass(cls):
        cells.needs_memory_images()

    def remembers(self, where, language):
        result = run(LANGUAGES[language]["show"], where, language=language)
        self.assertEqual(shown(language, result), kept(language), result)
        return result["execution_count"]

    def lives(self, *languages):
        where = make()
        for language in languages:
            self.assertEqual(run(LANGUAGES[language]["set"], where, language=language)["status"], "ok")
        counts = {language: self.remembers(where, language) for language in languages}
        self.assertEqual(cells.server.post(f"/v1/sandboxes/{where}/pause").status, 200)
        self.assertEqual(cells.server.get(f"/v1/sandboxes/{where}").json["state"], "paused")
        self.assertEqual(cells.server.post(f"/v1/sandboxes/{where}/resume").status, 200)
        for language in languages:
            self.assertEqual(self.remembers(where, language), counts[language] + 1)
        forked = cells.server.post(f"/v1/sandboxes/{where}/fork", {"count": 2})
        self.assertIn(forked.status, (200, 201), forked)
        for child in forked.json["sandboxes"]:
            for language in languages:
                self.assertEqual(self.remembers(child["id"], language), counts[language] + 2)
            # What it does from now on is its own.
            for language in languages:
                self.assertEqual(run(LANGUAGES[language]["out"], child["id"], language=language)["stdout"], "aus ü✓\n")
            drop(child["id"])
        for language in languages:
            self.assertEqual(self.remembers(where, language), counts[language] + 2)
        drop(where)

    def test_python_and_bash(self):
        self.lives("python", "bash")

    def test_javascript_and_typescript(self):
        self.lives("javascript", "typescript")

    def test_r(self):
        self.lives("r")

    def test_java(self):
        self.lives("java")

    def test_a_cell_that_runs_goes_on_after_the_pause(self):
        """Its caller is gone by then: what it did is there."""
        where = make()
        lines = stream("import os, time\nprint('in', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\ndone = 42", where)
        while next(lines)["type"] != "stdout":
            pass
        self.assertEqual(cells.server.post(f"/v1/sandboxes/{where}/pause").status, 200)
        lines.close()
        cells.server.run(where, "touch /tmp/go")
        self.assertEqual(main(run("done", where))["text/plain"], "42")
        drop(where)


if __name__ == "__main__":
    unittest.main(verbosity=2 if "-v" in sys.argv else 1)
