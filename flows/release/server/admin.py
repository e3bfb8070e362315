"""Starting and stopping a system, through its state file alone; and whether it could be started.

`start` runs `python -m triton_backend.serving.server.tritonserver` as a process of its own session and waits
until every worker is ready; `stop` ends it and whatever is left of it, also after parts were
killed. Not here: asking one that runs (`running`).
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.release.server.exposure import LOOPBACK, Tls
from flows.release.server.running import ServerError, ServerState, note_plan, read_state
from triton_backend.contract.errors import InputError

START_POLLS = 600
POLL_SECONDS = 0.2
STOP_SECONDS = 15
SHARED_FOLDER = Path("/dev/shm")  # noqa: S108  # Linux's shared memory, not a temporary file


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPorts:
    """Where the server shall listen; `address` is that of inference.

    Raises:
        InputError: a port is given twice.
    """

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002
    address: str = LOOPBACK
    metrics_address: str = LOOPBACK
    tls: Tls | None = None

    def __post_init__(self) -> None:
        taken: dict[int, str] = {}
        for name in ("http", "grpc", "metrics"):
            port = getattr(self, name)
            if port in taken:
                raise InputError(f"--{name}-port {port}", f"is --{taken[port]}-port too")
            taken[port] = name


def check_can_start(folder: Path, ports: ServerPorts) -> None:
    """Refuse what `admin.start` would refuse now.

    Raises:
        InputError: something is served from the folder already, or a port is in use.
    """
    if (folder / "state.json").exists():
        raise InputError(
            str(folder / "state.json"), "is being served already; `poolpipe stop` ends it"
        )
    listening = (
        ("http", ports.http, ports.address),
        ("grpc", ports.grpc, ports.address),
        ("metrics", ports.metrics, ports.metrics_address),
    )
    for name, port, address in listening:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                raise InputError(
                    f"--{name}-port {port}", f"cannot be listened on at {address}: {error}"
                ) from error


def start(
    folder: Path,
    ports: ServerPorts,
    progress: Callable[[str], None] = lambda _: None,
    *,
    wait_for_workers: bool = True,
) -> ServerState:
    """Start the rendered repository in `folder` and wait until every worker is ready.

    Args:
        folder: the serve folder.
        ports: where the server shall listen.
        progress: told what is being waited for.
        wait_for_workers: False returns as soon as the server is ready: on a host that has nodes
            only, and on the gateway's before the other hosts are started.

    Raises:
        InputError: something is served from here already, or a port is in use.
        ServerError: the server or a worker does not come up; what was started is stopped.
    """
    if (folder / "state.json").exists():
        raise InputError(str(folder / "state.json"), "is being served already; stop it first")
    log_path = folder / "logs" / "server.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    begin = log_path.stat().st_size if log_path.exists() else 0
    child = _spawn(folder, ports, log_path)
    try:
        return _wait_started(folder, child, progress, wait_for_workers=wait_for_workers)
    except BaseException as error:
        stop(folder)
        child.end()
        if isinstance(error, ServerError):
            lines = log_path.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else str(error)
            if child.code == 2:  # noqa: PLR2004  # the exit code of wrong input
                where, _, why = reason.partition(": ")
                raise InputError(where, why) from error
            raise ServerError(f"{error} ({log_path}: {reason})") from error
        raise


@dataclass(slots=True)
class _Child:
    """The server's process while it starts. It outlives us, so it is no `Popen`."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def end(self) -> None:
        """Make sure it is gone."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _spawn(folder: Path, ports: ServerPorts, log_path: Path) -> _Child:
    command = [
        sys.executable,
        "-m",
        "triton_backend.serving.server.tritonserver",
        "start",
        f"--folder={folder}",
        f"--address={ports.address}",
        f"--metrics-address={ports.metrics_address}",
        *(() if ports.tls is None else ports.tls.arguments()),
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
    ]
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable,
        command,
        {**os.environ, "PYTHONPATH": _import_path()},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return _Child(pid)


def _import_path() -> str:
    source = str(Path(__file__).resolve().parents[3])
    return ":".join(filter(None, [source, os.environ.get("PYTHONPATH")]))


def _wait_started(
    folder: Path, child: _Child, progress: Callable[[str], None], *, wait_for_workers: bool
) -> ServerState:
    last = ""
    for _ in range(START_POLLS):
        if child.poll() is not None:
            raise ServerError(f"the server ended with {child.code}")
        text = "starting the server"
        with contextlib.suppress(InputError, ServerError):
            state = read_state(folder)
            if state.data["ready"] and not wait_for_workers:
                return state
            if state.data["ready"]:
                workers = state.control("status")["workers"]
                if workers["up"] == workers["total"]:
                    note_plan(folder, workers["plan_id"], workers["generation"])
                    return read_state(folder)
                text = f"{workers['up']} of {workers['total']} workers are ready"
        if text != last:
            progress(text)
            last = text
        time.sleep(POLL_SECONDS)
    raise ServerError(f"not ready after {START_POLLS * POLL_SECONDS:.0f} s: {last}")


def stop(folder: Path) -> bool:
    """End the system served from a folder and everything left of it; False when none was.

    Works also when parts of it were killed: processes are found by the process group that the
    state file names, shared memory by its prefix.
    """
    try:
        data = read_state(folder).data
    except InputError:
        return False
    group = int(data["process_group"])
    with contextlib.suppress(ProcessLookupError):
        if _is_ours(int(data["pid"]), folder):
            os.kill(int(data["pid"]), signal.SIGTERM)
    _wait_gone(int(data["pid"]), folder)
    members = [p for p in psutil.process_iter() if _in_group(p, group)]
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(members, timeout=STOP_SECONDS)
    for path in SHARED_FOLDER.glob(f"poolpipe-{data['instance']}-*"):
        path.unlink(missing_ok=True)
    shutil.rmtree(data["socket_folder"], ignore_errors=True)
    (folder / "state.json").unlink(missing_ok=True)
    return True


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether a process is the server of this folder, not a later one under the same number."""
    try:
        return f"--folder={folder}" in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _wait_gone(pid: int, folder: Path) -> None:
    if _is_ours(pid, folder):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            psutil.Process(pid).wait(STOP_SECONDS)


def _in_group(process: psutil.Process, group: int) -> bool:
    """Whether a process is left of the system: same group, and no other program took the number."""
    try:
        return os.getpgid(process.pid) == group and any(
            word in " ".join(process.cmdline()) for word in ("triton", "poolpipe")
        )
    except (OSError, psutil.Error):
        return False
