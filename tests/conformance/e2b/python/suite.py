"""Every public method of the Python SDK, through an unmodified published package. Run by ../run.py."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import harness  # noqa: E402
import flavour  # noqa: E402
import sandbox_tests  # noqa: E402,F401
import command_tests  # noqa: E402,F401
import file_tests  # noqa: E402,F401
import pty_git_tests  # noqa: E402,F401
import image_tests  # noqa: E402,F401
import build_tests  # noqa: E402,F401
import volume_tests  # noqa: E402,F401
import secret_tests  # noqa: E402,F401
import error_tests  # noqa: E402,F401
import mcp_tests  # noqa: E402,F401
import option_tests  # noqa: E402,F401

import methods  # noqa: E402

harness.forgotten(methods.untested)
if flavour.NEWEST:  # older lines have others, which their rows are about
    harness.forgotten(lambda _: methods.new_options())
harness.run_all(flavour.found)
flavour.finish()
sys.stdout.flush()
os._exit(0)  # the loop of the asynchronous flavour has threads of its own
