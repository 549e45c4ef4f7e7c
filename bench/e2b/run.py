"""bench.mjs against a server of its own: ISOLA_BINARY=build/bin/isola python3 bench/e2b/run.py [--quick] [--keep-log FILE]"""
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path += [os.path.join(ROOT, "tests/server"), os.path.join(ROOT, "tests/conformance/e2b")]

from island import Server  # noqa: E402
import provide  # noqa: E402


def main():
    arguments = sys.argv[1:]
    keep = None
    if "--keep-log" in arguments:
        at = arguments.index("--keep-log")
        keep = arguments[at + 1]
        del arguments[at:at + 2]
    version = provide.versions()["js"][0]
    folder = provide.provide("js", version)
    server = Server("--pool", os.environ.get("ISOLA_BENCH_POOL", "8"))
    try:
        env = {**os.environ, "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": server.key,
               "E2B_PACKAGE": folder, "E2B_TEMPLATE": os.environ.get("E2B_TEMPLATE", "minimal")}
        done = subprocess.run([provide.node(), os.path.join(HERE, "bench.mjs"), *arguments], env=env)
        return done.returncode
    finally:
        if keep:
            shutil.copy(os.path.join(server.data, "test.log"), keep)
        server.close()


if __name__ == "__main__":
    sys.exit(main())
