"""The Python kernel of the template code-interpreter: ipykernel with the hooks of isola_ipython."""
import os
import sys

import isola_ipython
import isola_session

sys.path[0] = ""  # what a notebook has there, instead of the folder of this file
sys.argv[0] = "ipykernel_launcher"
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")

if __name__ == "__main__":
    from ipykernel.kernelapp import IPKernelApp
    from traitlets.config import Config

    config = Config()
    config.InteractiveShellApp.extensions = ["isola_ipython"]
    config.InlineBackend.figure_formats = ["png", "svg"]
    config.HistoryManager.enabled = False  # nobody looks it up, and it would be one more file and thread per kernel
    isola_session.use(config)
    isola_ipython.watch_imports()
    IPKernelApp.launch_instance(config=config)
