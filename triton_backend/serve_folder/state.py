"""The state file of a running system: written by its keeper, read by whoever speaks to the system.

The *keeper* is the process that starts tritonserver and keeps it well. `state.json` says which process
it is, and the server's; where each endpoint is, and the token. It is gone when the system was stopped,
and left over where the keeper was killed.
"""

import json
from pathlib import Path
from typing import Any

from triton_backend.serve_folder.files import PRIVATE, write_whole

STATE_NAME = "state.json"


def read_state_file(folder: Path) -> dict[str, Any] | None:
    """What the state file of a serve folder says; None where there is none."""
    try:
        return dict(json.loads((folder / STATE_NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_state_file(folder: Path, state: dict[str, Any]) -> None:
    """Write the state file, for its owner alone."""
    write_whole(folder / STATE_NAME, json.dumps(state, indent=1), mode=PRIVATE)


def keeper_runs(state: dict[str, Any]) -> bool:
    """Whether the keeper that wrote a state file still runs, and no other process has its number."""
    return set(state["arguments"]) <= set(command_line(int(state["pid"])))


def server_runs(state: dict[str, Any]) -> bool:
    """Whether the tritonserver of a state file still runs, with a keeper or without."""
    repository = f"--model-repository={Path(state['folder']) / 'repository'}"
    return repository in command_line(int(state["triton_pid"]))


def command_line(pid: int) -> list[str]:
    """The arguments of a process; none of one that is gone or ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return text.decode(errors="replace").split("\0")[:-1]
