"""Starting and stopping a system, through its state file alone; and whether it could be started.

`start` runs `python -m triton_backend.serving.server.tritonserver` as a process of its own session
and waits until every worker is ready; `stop` ends it and whatever is left of it, also after parts
were killed. Not here: asking one that runs (`running`).
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from flows.release.server.running import ServerError, ServerState, note_plan, read_state
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.endpoints import NO_TRITON, Endpoints
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings
from triton_backend.serve_folder.state import (
    STATE_NAME,
    boot_id,
    command_line,
    keeper_runs,
    remove_state_file,
    server_runs,
    servers_of,
    whole_state_file,
)

START_POLLS = 600
LOCK_PAUSES_SECONDS = (0.05, 0.05)  # `status` looks at the lock, too, for an instant
STARTING = "starting the server"
COMPILING = "loading the scheduler's kernels, which are compiled where no cache has them"
POLL_SECONDS = 0.2
STOP_SECONDS = 15
_KEEPER = "triton_backend.serving.server.tritonserver"
_LAST_STANDARD = 2  # stderr's number
_INSTANCE = re.compile(r"[0-9a-f]{8}")
SHARED_FOLDER = Path("/dev/shm")  # noqa: S108  # Linux's shared memory, not a temporary file


@contextlib.contextmanager
def starting(folder: Path) -> Generator[None]:
    """Keep a serve folder for one process that renders it and starts what is rendered.

    Until that one has a keeper, no state file says that the folder is in use.

    Raises:
        InputError: another process is at it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(fd, folder)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, folder: Path) -> None:
    for patience_s in (*LOCK_PAUSES_SECONDS, None):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if patience_s is None:
                reason = "another `poolpipe serve` is starting from there"
                raise InputError(str(folder), reason) from None
            time.sleep(patience_s)
        else:
            return


def check_can_start(folder: Path, endpoints: Endpoints, gateways: int = 1) -> None:
    """Refuse what `start` would refuse now.

    Args:
        folder: the serve folder.
        endpoints: where its servers would listen.
        gateways: how many there would be.

    Raises:
        InputError: no Triton is installed, something is served from the folder already, an address
            is not safe, a file is no certificate, or a port is in use.
    """
    if find_spec("pytriton") is None:
        raise InputError("Triton", NO_TRITON)
    state = whole_state_file(folder)
    if state is not None and keeper_runs(state):
        raise InputError(
            str(folder / STATE_NAME), "is being served already; `poolpipe stop` ends it"
        )
    if state is not None and server_runs(state):
        raise InputError(
            str(folder / STATE_NAME),
            "is being served already, but its keeper is gone: `poolpipe serve` of the plan in force"
            " takes it over, `poolpipe stop` ends it",
        )
    endpoints.check_can_listen(gateways=gateways)


def start(
    folder: Path,
    endpoints: Endpoints,
    progress: Callable[[str], None] = lambda _: None,
    *,
    wait_for_workers: bool = True,
) -> ServerState:
    """Start the rendered repository in `folder` and wait until every worker is ready.

    What a system that was killed left behind (its machine went down, say) is removed first.

    Args:
        folder: the serve folder.
        endpoints: where the server shall listen.
        progress: called with what is being waited for.
        wait_for_workers: False returns as soon as the server is ready: on a host that has nodes
            only, and on the gateway's before the other hosts are started.

    Raises:
        InputError: as `check_can_start`.
        ServerError: the server or a worker does not come up; what was started is stopped.
    """
    check_can_start(folder, endpoints, ServeSettings.read(folder / SETTINGS_NAME).gateways)
    stop(folder)
    arguments = ["start", f"--folder={folder}", *endpoints.arguments()]
    return _run_keeper(folder, arguments, progress, wait_for_workers=wait_for_workers)


def take_over(folder: Path, progress: Callable[[str], None] = lambda _: None) -> ServerState:
    """Give a server whose keeper is gone another keeper; requests go on meanwhile.

    Raises:
        InputError: nothing is served there, or its keeper runs.
        ServerError: the new keeper does not come up; the server runs on.
    """
    state = whole_state_file(folder)
    if state is None or keeper_runs(state) or not server_runs(state):
        raise InputError(str(folder / STATE_NAME), "no server whose keeper is gone")
    arguments = [*state["arguments"], "--take-over"]
    log_path, begin = _log(folder)
    child = _spawn(arguments, log_path)
    for _ in range(START_POLLS):
        if (code := child.poll()) is not None:
            raise ServerError(
                f"the keeper ended with {code} ({log_path}: {_last_line(log_path, begin)})"
            )
        found = read_state(folder)
        if found.data["pid"] == child.pid:
            return found
        progress("taking the server over")
        time.sleep(POLL_SECONDS)
    raise ServerError(f"the keeper did not take over within {START_POLLS * POLL_SECONDS:.0f} s")


def _run_keeper(
    folder: Path,
    arguments: list[str],
    progress: Callable[[str], None],
    *,
    wait_for_workers: bool,
) -> ServerState:
    log_path, begin = _log(folder)
    child = _spawn(arguments, log_path)
    try:
        return _wait_started(folder, child, progress, wait_for_workers=wait_for_workers)
    except BaseException as error:
        stop(folder)
        child.end()
        if isinstance(error, ServerError):
            reason = _last_line(log_path, begin) or str(error)
            if child.code == 2:  # noqa: PLR2004  # the exit code of wrong input
                where, _, why = reason.partition(": ")
                raise InputError(where, why) from error
            raise ServerError(f"{error} ({log_path}: {reason})") from error
        raise


def _log(folder: Path) -> tuple[Path, int]:
    """The keeper's log, and where in it the next lines begin."""
    path = folder / "logs" / "server.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, path.stat().st_size if path.exists() else 0


def _last_line(log_path: Path, begin: int) -> str:
    lines = log_path.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


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
        with contextlib.suppress(ChildProcessError):  # `stop` has ended it, and taken its code
            if self.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _spawn(arguments: list[str], log_path: Path) -> _Child:
    command = [sys.executable, "-m", _KEEPER, *arguments]
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable,
        command,
        {**os.environ, "PYTHONPATH": _import_path()},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *_closing_inherited(),
        ],
        setsid=True,
    )
    return _Child(pid)


def _closing_inherited() -> list[tuple[int, int]]:
    """Actions that close our caller's files: `flock`'s lock would last as long as the keeper."""
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return [(os.POSIX_SPAWN_CLOSE, number) for number in numbers if number > _LAST_STANDARD]


def _import_path() -> str:
    source = str(Path(__file__).resolve().parents[3])
    return ":".join(filter(None, [source, os.environ.get("PYTHONPATH")]))


def _wait_started(
    folder: Path, child: _Child, progress: Callable[[str], None], *, wait_for_workers: bool
) -> ServerState:
    last, polls, most_up = "", 0, -1
    compiled_us, begun = None, 0  # of models, each of which is a process
    while polls < START_POLLS:
        if child.poll() is not None:
            stopped = child.code in (0, -signal.SIGTERM)  # as `stop` ends a keeper
            how = "was stopped before it was ready" if stopped else f"ended with {child.code}"
            raise ServerError(f"the server {how}")
        text, polls = STARTING if compiled_us is None else COMPILING, polls + 1
        with contextlib.suppress(InputError, ServerError):
            state = read_state(folder)
            said_us, count = state.data.get("compiled_us"), state.data.get("models_begun", 0)
            if said_us != compiled_us or count > begun:  # it gets on, however slowly
                compiled_us, begun, polls = said_us, max(begun, count), 0
                text = STARTING if compiled_us is None else COMPILING
            loading = [n for n, how in state.data.get("beside", {}).items() if how == "loading"]
            if loading:  # a large model takes long; the keeper gives it up
                polls, text = 0, f"loading {loading[0]}, beside the plan"
            if state.data["ready"] and not wait_for_workers:
                return state
            if state.data["ready"]:
                workers = state.control("status")["workers"]
                if workers["up"] == workers["total"]:
                    note_plan(folder, workers["plan_id"], workers["generation"])
                    return read_state(folder)
                text = f"{workers['up']} of {workers['total']} workers are ready"
                if workers["up"] > most_up:  # it comes up, however slowly
                    most_up, polls = workers["up"], 0
        if text != last:
            progress(text)
            last = text
        time.sleep(POLL_SECONDS)
    raise ServerError(f"nothing new for {START_POLLS * POLL_SECONDS:.0f} s: {last}")


def stop(folder: Path) -> bool:
    """End the system served from a folder and everything left of it; False when none was.

    Works also when parts of it were killed: processes are found by the process group that the
    state file names, shared memory by its prefix. Nothing but what a keeper of this folder and user
    can have made is ended or deleted, whatever the file says.

    Raises:
        InputError: the state file is of another folder's system, or no keeper wrote it.
    """
    data = whole_state_file(folder)
    if data is None:
        return False
    if not _INSTANCE.fullmatch(data["instance"]) or Path(data["folder"]) != folder.resolve():
        raise InputError(
            str(folder / STATE_NAME),
            f"is of the system {data['instance']!r} served from {data['folder']}, not from here:"
            " remove the file",
        )
    groups = _groups(data)
    if _keeper_words(data):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(data["pid"]), signal.SIGTERM)
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            psutil.Process(int(data["pid"])).wait(STOP_SECONDS)
    members = [p for p in psutil.process_iter() if _in_group(p, groups)]
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(members, timeout=STOP_SECONDS)
    for path in SHARED_FOLDER.glob(f"poolpipe-{data['instance']}-*"):
        path.unlink(missing_ok=True)
    if _is_socket_folder(Path(data["socket_folder"]), folder, data["instance"]):
        shutil.rmtree(data["socket_folder"], ignore_errors=True)
    remove_state_file(folder)
    return True


def _groups(data: dict[str, Any]) -> set[int]:
    """The process groups of a system: those that its keepers led.

    The kernel gives no number of a group that lives to another process. So the leader of such a
    group is gone, or it is the keeper; where it is another process, a group that ended had this
    number before.
    """
    if data.get("boot_id", boot_id()) != boot_id():
        return set()
    servers = [server for server in servers_of(data) if server is not None]
    # A server is in the group of another keeper where this one took it over.
    groups = {int(data["process_group"]), *(int(server["server_group"]) for server in servers)}
    leaders = {group: set(command_line(group)) for group in groups}
    return {group for group, words in leaders.items() if not words or words == _keeper_words(data)}


def _keeper_words(data: dict[str, Any]) -> set[str]:
    """The command line of a system's keeper; empty where no keeper has its number."""
    words = set(command_line(int(data["pid"])))
    return words if _KEEPER in words and {*data["arguments"]} <= words else set()


def _is_socket_folder(path: Path, folder: Path, instance: str) -> bool:
    """True if a path is that of a system's sockets.

    By its name, its place, and as this user's own.
    """
    places = {Path(tempfile.gettempdir())}
    with contextlib.suppress(InputError):
        places.add(ServeSettings.read(folder / SETTINGS_NAME).socket_folder.parent)
    try:
        found = path.lstat()
    except OSError:
        return False
    named = path.name == f"poolpipe-{instance}" and path.parent in places
    return named and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _in_group(process: psutil.Process, groups: set[int]) -> bool:
    """True if a process is left of the system: same group and user, and a program of ours."""
    try:
        return (
            os.getpgid(process.pid) in groups
            and process.uids().real == os.getuid()
            and any(word in " ".join(process.cmdline()) for word in ("triton", "poolpipe"))
        )
    except (OSError, psutil.Error):
        return False
