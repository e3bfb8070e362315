"""Stands in for `nvidia-cuda-mps-control`: a daemon is a file in the pipe directory.

`install` puts it on a PATH of its own; it answers the commands that MPS's documentation names. A
file `clients` beside it holds process ids.
"""

import sys
from pathlib import Path

SCRIPT = """#!{python}
import os, pathlib, sys
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
daemon = pipes / "nvidia-cuda-mps-control.pid"
if sys.argv[1:] == ["-d"]:
    if {broken}:
        sys.exit("Cannot find a GPU")
    daemon.write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    sys.exit(0)
line = sys.stdin.readline().strip()
if not daemon.exists():
    sys.exit("Cannot find MPS control daemon process")
clients = pipes / "clients"
if line == "get_server_list" and clients.exists():
    print(4711)
if line == "get_client_list 4711" and clients.exists():
    print(clients.read_text())
if line == "quit":
    daemon.unlink()
"""


def install(folder: Path, *, broken: bool = False) -> Path:
    """Write the program into `folder` and return the folder for PATH."""
    path = folder / "nvidia-cuda-mps-control"
    path.write_text(SCRIPT.format(python=sys.executable, broken=broken))
    path.chmod(0o755)
    return folder
