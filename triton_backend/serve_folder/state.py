"""The state file of a running system.

Written by its keeper, read by programs that speak to the system. The *keeper* is the process that
starts tritonserver and keeps it well. `state.json` says which process it is, and the server's;
where each endpoint is, and the token. It is gone when the system was stopped, and left over where
the keeper was killed. Keeper and rollouts both change it: each under its lock.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.serve_folder.files import PRIVATE, write_whole

STATE_NAME = "state.json"
_LOCK_NAME = "state.lock"
# Fields to find, reach and end a system. A number that is no process must not be one that
# `kill` takes for many.
_PROCESSES = ("pid", "triton_pid", "process_group")
_TEXTS = (
    *("instance", "folder", "socket_folder", "token", "token_header"),
    *("address", "http_address", "grpc_address"),
)
# Those that are null or not there as yet, and those that rollouts note.
_LATER_NUMBERS = (
    *("restarts", "restarted_us", "retry_us"),
    *("compiled_us", "models_begun", "generation"),
)
_LARGEST = 1 << 62  # instants of the wall clock in µs are above most limits
_LATER_TEXTS = ("boot_id", "plan_id")
_PORTS = ("http", "grpc", "metrics")
_REMEDY = ": remove the file where no system runs"


def read_state_file(folder: Path) -> dict[str, Any] | None:
    """The state file of a serve folder; None if there is none."""
    try:
        return dict(json.loads((folder / STATE_NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def whole_state_file(folder: Path) -> dict[str, Any] | None:
    """The same for a command, whose user may have a file there that no keeper wrote.

    Raises:
        InputError: it is no JSON object, or a field that a state file has is missing or of another
            type.
    """
    path, state = folder / STATE_NAME, read_state_file(folder)
    if state is None and path.exists():
        raise InputError(str(path), f"is no state file of a system{_REMEDY}")
    if state is not None:
        try:
            _check(Fields(state))
        except InputError as error:
            raise InputError(str(path), f"{error}{_REMEDY}") from None
    return state


def _check(state: Fields) -> None:
    """Complain about the first field that is missing or of another type."""
    for name in _PROCESSES:
        state.integer(name, least=1)
    for name in _TEXTS:
        state.text(name)
    state.texts("arguments")
    state.flag("ready")
    for name in _PORTS:
        state.inner("ports").integer(name, most=65_535)
    if state.has("server_group"):
        state.integer("server_group", least=1)
    _check_later(state)
    servers = state.plain().get("servers", [])
    if not isinstance(servers, list):
        raise state.wrong("servers", "is not a list")
    for i, server in enumerate(servers):
        if server is not None:  # one that was not started yet
            _check_server(Fields(server, f"servers[{i}]"))


def _check_server(server: Fields) -> None:
    for name in ("triton_pid", "server_group"):
        server.integer(name, least=1)
    server.integer("metrics_port", most=65_535)
    server.text("repository")
    _check_later(server)


def _check_later(fields: Fields) -> None:
    for name in _LATER_NUMBERS:
        if fields.plain().get(name) is not None:
            fields.integer(name, most=_LARGEST)
    for name in _LATER_TEXTS:
        if fields.plain().get(name) is not None:
            fields.text(name)


def write_state_file(folder: Path, state: dict[str, Any]) -> None:
    """Write the state file, for its owner alone."""
    write_whole(folder / STATE_NAME, json.dumps(state, indent=1), mode=PRIVATE)


@contextlib.contextmanager
def state_file_locked(folder: Path) -> Generator[None]:
    """Keep others from changing the state file between reading and writing it.

    Raises:
        OSError: the folder is gone, or its disk is full.
    """
    fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def remove_state_file(folder: Path) -> None:
    """Remove the state file, if there is one."""
    with contextlib.suppress(FileNotFoundError), state_file_locked(folder):
        (folder / STATE_NAME).unlink()


def keeper_runs(state: dict[str, Any]) -> bool:
    """True if the keeper that wrote a state file still runs under its number."""
    return set(state["arguments"]) <= set(command_line(int(state["pid"])))


def server_runs(state: dict[str, Any]) -> bool:
    """True if a tritonserver of a state file still runs, with a keeper or without."""
    return any(one_server_runs(server) for server in servers_of(state) if server is not None)


def servers_of(state: dict[str, Any]) -> list[dict[str, Any] | None]:
    """The servers of a state file, by gateway; None for one not started yet."""
    group = state.get("server_group", state.get("process_group"))
    only = {
        "server_id": None,
        "triton_pid": state["triton_pid"],
        "server_group": group,
        "metrics_port": state.get("ports", {}).get("metrics"),
        "repository": str(Path(state["folder"]) / "repository"),
        "ready": state.get("ready", False),
        "restarts": state.get("restarts", 0),
        "restarted_us": state.get("restarted_us"),
        "retry_us": state.get("retry_us"),
    }
    return state.get("servers", [only])


def metrics_urls(state: dict[str, Any]) -> list[str]:
    """Where Prometheus reads what each gateway counts."""
    from triton_backend.serve_folder.endpoints import (  # noqa: PLC0415  # no front needs it
        reached_at,
    )

    several = [server["metrics_port"] for server in state.get("servers", ()) if server is not None]
    ports = several or [state["ports"]["metrics"]]
    return [f"http://{reached_at(state['address'])}:{port}/metrics" for port in ports]


def one_server_runs(server: dict[str, Any]) -> bool:
    """True if the tritonserver of an entry of `servers_of` still runs."""
    repository = f"--model-repository={server['repository']}"
    return repository in command_line(int(server["triton_pid"]))


def boot_id() -> str:
    """The host's, another one after every start of it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def command_line(pid: int) -> list[str]:
    """The arguments of a process; none of one that is gone or ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return text.decode(errors="replace").split("\0")[:-1]
