"""Running Triton: the keeper, the process that starts tritonserver and keeps it well.

`python -m triton_backend.serving.server.tritonserver start --folder F --http-port N --grpc-port N
--metrics-port N [--address A] [--tls-cert C --tls-key K]` stays in the foreground until SIGTERM. It
1. lays out a backend folder (links into the wheel), or takes the server of a Triton container
   (`--server-root`), and starts `tritonserver` on the rendered repository, with everything but
   inference closed to clients without the token (`serve_folder/endpoints.py`);
2. writes the state file (mode 0600) once the server is ready;
3. reloads models whose stub process died or hangs (Triton does not notice), each in a thread of
   its own, so that a load that takes long hides no other death;
4. restarts the server when it died, or no longer answers `/v2/health/live`: after pauses of up
   to a minute where it keeps dying, but for as long as it takes; where there are two gateways there
   are two servers, each of which is kept so by itself;
5. loads the models beside the plan, again where their processes died (`beside`);
6. at the end stops the server and removes sockets, shared memory and the state file.

A keeper that was killed leaves the server running. With `--take-over` the next keeper goes on with
it.
"""

import argparse
import contextlib
import http.client
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.connect import connect_to
from triton_backend.serve_folder.endpoints import TOKEN_HEADER, Endpoints, reached_at
from triton_backend.serve_folder.files import write_whole
from triton_backend.serve_folder.names import RESERVED_PREFIX
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings
from triton_backend.serve_folder.state import (
    STATE_NAME,
    boot_id,
    command_line,
    keeper_runs,
    one_server_runs,
    read_state_file,
    remove_state_file,
    server_runs,
    servers_of,
    state_file_locked,
    write_state_file,
)
from triton_backend.serve_folder.versions import mark_changed, model_of_process
from triton_backend.serving.liveness.processes import (
    ExitWatch,
    StubWatch,
    compiling,
    is_alive,
    stub_files,
    thread_states,
)
from triton_backend.serving.server.beside import ModelsBeside
from triton_backend.serving.server.command import (
    EXIT_TIMEOUT_SECONDS,
    environment_folders,
    large_stack,
    server_command,
    server_environment,
)
from triton_backend.serving.server.socket_folder import hold, note_environments, remove_abandoned
from triton_backend.serving.transport.backoff import Backoff
from triton_backend.serving.transport.sched_tuning import (
    ask_for_short_slices,
    lower_priority,
    restore_priority,
)
from triton_backend.serving.transport.shared_memory import remove_segments

WATCH_SECONDS = 0.2
READY_SECONDS = 120
# A server that keeps dying is started at once so often in a row, then after pauses that double.
PROMPT_RESTARTS = 5
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0
LASTING_US = 600_000_000  # a server that ran so long died for a new reason
PROGRAM = "tritonserver"
HTTP_OK = 200
NO_ANSWER = 0
# Of a model that cannot be loaded again, for want of memory or of room on a disk.
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0
LOAD_SECONDS = 120
LOAD_BESIDE_SECONDS = 1800  # of a model beside the plan, which may be a large one
# Each probe is a new connection, which the server hands to one of its eight HTTP threads: a few of
# them may be busy with slow loads, so one failure says nothing.
PROBE_SECONDS = 0.5
PROBE_TIMEOUT_SECONDS = 1.0
FAILED_PROBES = 3
# Of a server that wants to run (it is overloaded, or the machine is), or waits for a disk.
SILENT_US = 15_000_000
_ONE_START = threading.Lock()  # the stack's limit is the whole process's
_LOG = logging.getLogger(__name__)


class TritonApi:
    """The server's HTTP endpoint, with the token."""

    def __init__(self, settings: ServeSettings, endpoints: Endpoints) -> None:
        self._address, self._port = reached_at(endpoints.http_address), endpoints.http
        self._metrics_address = reached_at(endpoints.metrics_address)
        self._metrics_port = endpoints.metrics_port(settings.gateway)
        self._server_id = settings.server_id
        self._headers = {TOKEN_HEADER: settings.token}

    def is_there(self, timeout_s: float) -> bool:
        """True if anything is answered.

        Of two servers that share a port the server cannot be chosen, so it is that of metrics
        then.
        """
        if self._server_id is None:
            return self.get("/v2/health/live", timeout_s) != NO_ANSWER
        address, port = self._metrics_address, self._metrics_port
        return (
            self._request("GET", "/v2/health/live", None, timeout_s, (address, port)) != NO_ANSWER
        )

    def get(self, path: str, timeout_s: float) -> int:
        """GET; the status code, or `NO_ANSWER`."""
        return self._request("GET", path, None, timeout_s)

    def load(self, model: str) -> int:
        """Load a model; reload it if its configuration changed: the status code, or `NO_ANSWER`."""
        return self._request("POST", f"/v2/repository/models/{model}/load", b"{}", LOAD_SECONDS)

    def unload(self, model: str) -> int:
        """Unload a model; the status code, or `NO_ANSWER`."""
        return self._request("POST", f"/v2/repository/models/{model}/unload", b"{}", LOAD_SECONDS)

    def load_beside(self, model: str) -> str | None:
        """Load a model beside the plan; Triton's words where it is not loaded."""
        path = f"/v2/repository/models/{model}/load"
        code, text = self._answer("POST", path, b"{}", LOAD_BESIDE_SECONDS)
        return None if code == HTTP_OK else text or "the server does not answer"

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        at: tuple[str, int] | None = None,
    ) -> int:
        return self._answer(method, path, body, timeout_s, at)[0]

    def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        at: tuple[str, int] | None = None,
    ) -> tuple[int, str]:
        address, port = at or (self._address, self._port)
        try:
            if at is None and self._server_id is not None:
                connection = connect_to(address, port, self._server_id, timeout_s)
            else:
                connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
            with contextlib.closing(connection):
                connection.request(method, path, body, self._headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode(errors="replace")
        except (OSError, ValueError, http.client.HTTPException):
            return NO_ANSWER, ""


class HealthProbe:
    """Asks a server whether it is live, again and again, from a thread of its own."""

    def __init__(self, api: TritonApi) -> None:
        self._api = api
        self._clock = SystemClock()
        self._stopping = threading.Event()
        self._failures = 0
        self._answered_us = self._clock.now_us()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopping.set()

    def complaint(self, pid: int) -> str | None:
        """Why the server must be taken for hung, or None."""
        silent_us = self._clock.now_us() - self._answered_us
        if self._failures < FAILED_PROBES:
            return None
        if silent_us < SILENT_US and thread_states(pid) & set("RD"):
            return None
        return f"no answer to {self._failures} probes in {silent_us / 1e6:.1f} s"

    def _run(self) -> None:
        while not self._stopping.wait(PROBE_SECONDS):
            # Any answer is one: what is asked is whether anybody is there.
            if not self._api.is_there(PROBE_TIMEOUT_SECONDS):
                self._failures += 1
            else:
                self._failures, self._answered_us = 0, self._clock.now_us()


class ModelReloads:
    """Reloads models whose stubs died, each in a thread of its own."""

    def __init__(self, settings: ServeSettings, api: TritonApi) -> None:
        self._repository = settings.place / "repository"
        self._api = api
        self._threads: dict[str, threading.Thread] = {}
        self._retries: dict[str, Backoff] = {}
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Try no failed load again."""
        self._stopping.set()

    def begin(self, file: Path) -> None:
        """Reload a model, unless it is being loaded; `file` is that of its dead stub.

        A load that fails (no memory, a full disk) is tried again with the next call after a pause;
        the file stays until the new process writes its own.
        """
        running = self._threads.get(file.name)
        if running is None or not running.is_alive():
            thread = threading.Thread(target=self._reload, args=(file,), daemon=True)
            self._threads[file.name] = thread
            thread.start()

    def is_loading(self, model: str) -> bool:
        """True if a model is being reloaded."""
        thread = self._threads.get(model)
        return thread is not None and thread.is_alive()

    def _reload(self, file: Path) -> None:
        retry = self._retries.setdefault(
            file.name, Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        )
        if not retry.failures:
            _LOG.warning("%s is reloaded", file.name)
        try:
            failure = self._load(file)
        except Exception as error:  # noqa: BLE001  # of this thread alone; it is tried again
            failure = repr(error)
        if failure is None:
            retry.succeeded()
            return
        pause_s = retry.failed()
        if retry.failures == 1:
            _LOG.warning("%s was not loaded, tried again until it is: %s", file.name, failure)
        self._stopping.wait(pause_s)

    def _load(self, file: Path) -> str | None:
        """Load a model again, once; why it was not loaded, if so."""
        model, version = model_of_process(file.name)
        if version is not None:
            return self._load_version(file, model, version)
        if not model.startswith(RESERVED_PREFIX):
            # Until the new process is there, refuse what the dead one would never answer.
            self._api.unload(model)
        config = self._repository / model / "config.pbtxt"
        try:
            text = config.read_text()
        except OSError:  # a rollout took it away
            file.unlink(missing_ok=True)
            return None
        # An unchanged configuration is not loaded again.
        text = re.sub(
            r'(key: "restart"[^"]*string_value: ")(\d+)',
            lambda match: f"{match[1]}{int(match[2]) + 1}",
            text,
        )
        try:
            write_whole(config, text)
        except OSError as error:
            return str(error)
        code = self._api.load(model)
        return None if code == HTTP_OK else f"HTTP {code}"

    def _load_version(self, file: Path, model: str, version: int) -> str | None:
        """The same for one version of a model; the others serve on."""
        try:
            mark_changed(self._repository / model, version)
        except FileNotFoundError:  # a rollout took it away
            file.unlink(missing_ok=True)
            return None
        except OSError as error:
            return str(error)
        code = self._api.load(model)
        return None if code == HTTP_OK else f"HTTP {code}"


class TritonServer:
    """The process of a server: a child of ours, or of a keeper that is gone.

    Args:
        pid: of the process.
        group: the process group that its stubs and workers are in.
        child: None where it is not ours to wait for.
    """

    def __init__(self, pid: int, group: int, child: "subprocess.Popen[bytes] | None") -> None:
        self.pid = pid
        self.group = group
        self._child = child

    def ended(self) -> str | None:
        """Its exit code, or words for an unknown one; None while it runs."""
        if self._child is not None:
            code = self._child.poll()
            return None if code is None else str(code)
        words = command_line(self.pid)  # another program may have its number by now
        runs = bool(words) and Path(words[0]).name == PROGRAM
        return None if runs else "an unknown code"

    def stop(self, signal_number: int, exits: ExitWatch, timeout_s: float) -> None:
        """Send a signal and wait until it has ended, or the time is over."""
        self._signal(signal_number, exits)
        for _ in range(int(timeout_s / WATCH_SECONDS)):
            if self.ended() is not None:
                return
            exits.wait(WATCH_SECONDS)

    def _signal(self, number: int, exits: ExitWatch) -> None:
        exits.watch(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def drain(self, repositories: Sequence[Path], exits: ExitWatch, timeout_s: float) -> None:
        """Answer what is in flight, unload the models, and end when their processes are gone.

        It looks once a second itself whether its models are. It is killed where that takes longer
        than the time given.
        """
        stubs = [pid for repository in repositories for pid in self.stubs(repository)]
        for pid in stubs:
            exits.watch(pid)
        self._signal(signal.SIGTERM, exits)
        looks = int(timeout_s / WATCH_SECONDS) + len(stubs)  # the end of each stub is one, too
        for _ in range(looks):
            if self.ended() is not None:
                return
            if stubs and not any(map(is_alive, stubs)):
                break
            exits.wait(WATCH_SECONDS)
        self.stop(signal.SIGKILL, exits, timeout_s)

    def kill_group(self) -> None:
        """Kill what a dead server left in its process group (stubs and workers)."""
        mine = os.getpid()
        if self._child is not None and self.group != mine:
            return  # started in another's group, which is not ours to clear
        for pid in _processes():
            with contextlib.suppress(OSError):
                if pid != mine and os.getpgid(pid) == self.group and _is_of_triton(pid):
                    os.kill(pid, signal.SIGKILL)

    def kill_stubs(self, repository: Path) -> None:
        """Kill the stubs that a dead server left."""
        for pid in self.stubs(repository):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def restore_priority(self, repository: Path) -> None:
        """Serve at the usual priority, after it was loaded at a lower one."""
        for pid in (self.pid, *self.stubs(repository)):
            restore_priority(pid)

    def stubs(self, repository: Path) -> list[int]:
        """Stubs of a repository or a model of one, which are known by their models' files."""
        found: list[int] = []
        for pid in _processes():
            with contextlib.suppress(OSError):
                ours = any(word.startswith(f"{repository}/") for word in command_line(pid)[1:])
                if ours and os.getpgid(pid) == self.group:
                    found.append(pid)
        return found


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _is_of_triton(pid: int) -> bool:
    """True if a process is a stub or a worker, and no other program has its number."""
    return any(word in " ".join(command_line(pid)) for word in ("triton", "poolpipe"))


class KilledWhileLoadingError(PoolPipeError):
    """A signal ended the server before it was ready: nothing says that it cannot load."""


class KeptServer:
    """One tritonserver, started and kept well: what a gateway has of its own.

    Attributes:
        restarts: how often it was restarted.
        restarted_us: when, the last time.
        retry_us: when it will be, by the wall clock; None where it runs or is being started.
        ready: whether it answers, as far as is known.
        compiled_us: when it was last seen to compile before it became ready.
        models_begun: how many of its models had begun by then.

    Args:
        settings: of the system, as its gateway reads them.
        endpoints: where it listens.
        server_root: of a Triton container; None is the server inside the PyTriton wheel.
        stopping: set when all shall end.
        note: called when any of these has changed.
    """

    def __init__(
        self,
        settings: ServeSettings,
        endpoints: Endpoints,
        server_root: Path | None,
        stopping: threading.Event,
        note: Callable[[], None],
    ) -> None:
        self.restarts = 0
        self.restarted_us: int | None = None
        self.retry_us: int | None = None
        self.ready = False
        self.compiled_us: int | None = None
        self.models_begun = 0
        self._settings = settings
        self._endpoints = endpoints
        self._server_root = server_root
        self._stopping = stopping
        self._note = note
        self._api = TritonApi(settings, endpoints)
        self._server: TritonServer | None = None
        self._probe: HealthProbe | None = None
        self._deaths_in_a_row = 0
        self._temporary: set[Path] = set()
        self._pauses = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._said = ""
        self._clock = SystemClock()
        self._started_us = 0
        self._exits = ExitWatch()
        self._stubs = StubWatch(self._clock, self._exits)
        self._again_us: dict[str, int] = {}  # when a stub's file is to be read again
        self._reloads = ModelReloads(settings, self._api)
        self._beside = ModelsBeside(
            settings, self._api.load_beside, self._api.unload, stopping, note
        )
        self._served = False
        number = f" of {settings.server_id}" if settings.server_id else ""
        self._name = f"tritonserver{number}"

    @property
    def server(self) -> TritonServer | None:
        """Its process now."""
        return self._server

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Go on with a server whose keeper is gone, `state` its part of the state file.

        One that does not run any more is started again, as one that dies.
        """
        self._server = TritonServer(int(state["triton_pid"]), int(state["server_group"]), None)
        self.restarts = int(state["restarts"])
        self.restarted_us = state["restarted_us"]
        self._started_us = self._clock.now_us()
        self.ready = one_server_runs(dict(state))
        if self.ready:
            _LOG.warning("%s %d is taken over", self._name, self._server.pid)
            self._served = True
            self._beside.take_over(
                lambda name: self._api.get(f"/v2/models/{name}/ready", 1) == HTTP_OK
            )
            self._watch_health()
        self._note()

    def run(self) -> None:
        """Start it where it does not run, and keep it well until all shall end.

        Raises:
            InputError: it cannot be started.
            PoolPipeError: it does not become ready, the first time.
        """
        if self._server is None:
            self._start_first()
        while not self._stopping.is_set():
            if self._exits.wait(WATCH_SECONDS):
                self._again_us.clear()  # another process may have its file soon
            for look in (self._watch_server, self._watch_stubs, self._watch_beside):
                try:
                    look()
                except Exception as error:  # noqa: BLE001  # the next look tries again; a server must not end of it
                    self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Log what went wrong, once where it goes on.

        Where from, too, unless it was raised on purpose.
        """
        text = repr(error)
        if text != self._said:
            foreseen = isinstance(error, (PoolPipeError, OSError))
            _LOG.warning("%s: %s", self._name, error if foreseen else text, exc_info=not foreseen)
        self._said = text

    def _start_first(self) -> None:
        """Start it, and once more where a signal ends it.

        Triton 2.51 crashes now and then while models load.
        """
        try:
            self._start()
        except KilledWhileLoadingError as error:
            _LOG.warning("%s, restarted", error)
            self._clear_away()
            self._start()

    def _start(self) -> None:
        settings = self._settings
        self._started_us = self._clock.now_us()
        for former in ("pids", "gauges"):  # of a server that died
            shutil.rmtree(settings.place / former, ignore_errors=True)
        # Of a server that died; a second one goes on with what is the system's.
        remove_segments(settings.segment_prefix if settings.gateways == 1 else settings.stub_prefix)
        logs = settings.folder / "logs"
        logs.mkdir(exist_ok=True)
        command = server_command(settings, self._endpoints, self._server_root)
        before = environment_folders()
        ask_for_short_slices()  # the server inherits them: every request passes its threads twice
        held = hold(settings.socket_folder)
        with (
            _ONE_START,
            self._log_path.open("ab") as log,
            os.fdopen(held),  # the server has its own from then on
            large_stack(),
        ):
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=server_environment(),
                pass_fds=(held,),
            )
        if settings.gateways > 1 and self.restarts:
            lower_priority(child.pid)  # the other one serves all clients meanwhile
        self._server = TritonServer(child.pid, os.getpgid(0), child)
        self._exits.watch(child.pid)
        self.ready = False
        self._note()
        try:
            self._wait_ready(self._server)
        finally:
            made = environment_folders() - before
            self._temporary |= made
            note_environments(settings.socket_folder, made)
        self._server.restore_priority(settings.place / "repository")
        if not self._served:
            self._beside.load_first()
            self._served = True
        self.ready = True
        self._note()
        self._watch_health()

    @property
    def _log_path(self) -> Path:
        number = f"-{self._settings.gateway + 1}" if self._settings.gateway else ""
        return self._settings.folder / "logs" / f"triton{number}.log"

    def _wait_ready(self, server: TritonServer) -> None:
        """Wait; time does not count in which models begin, or one compiles and is not finished."""
        log, looks, hung = self._log_path, 0, None
        while hung is None and looks < READY_SECONDS / WATCH_SECONDS:
            compiled, hung = self._look_at_compiling()
            looks = 0 if self._look_at_models() or compiled else looks + 1
            ended = server.ended()
            if ended is not None:
                kind = KilledWhileLoadingError if ended.startswith("-") else PoolPipeError
                raise kind(f"{log}: {self._name} ended with {ended}")
            # Asked for by its name only when it is there, lest the other one be asked again and
            # again.
            there = self._api.is_there(PROBE_TIMEOUT_SECONDS)
            if there and self._api.get("/v2/health/ready", PROBE_TIMEOUT_SECONDS) == HTTP_OK:
                return
            if self._stopping.wait(WATCH_SECONDS):
                return
        server.stop(signal.SIGKILL, self._exits, EXIT_TIMEOUT_SECONDS)
        raise PoolPipeError(
            f"{log}: {self._name} is not ready"
            + (f" after {READY_SECONDS} s" if hung is None else f": {hung}")
        )

    def _look_at_compiling(self) -> tuple[bool, str | None]:
        """If a model compiled since the last poll, and the model that compiles without end."""
        found = compiling(self._settings.place / "pids")
        hung = next((f"{one.model} {why}" for one in found if (why := one.complaint())), None)
        if not found or found[0].heard_us == self.compiled_us:
            return False, hung
        self.compiled_us = found[0].heard_us
        self._note()
        return True, hung

    def _look_at_models(self) -> bool:
        """If another model has begun since the last poll: hundreds take minutes."""
        begun = len(stub_files(self._settings.place / "pids"))
        before, self.models_begun = self.models_begun, begun
        if begun > before:
            self._note()
        return begun > before

    def _watch_health(self) -> None:
        """Begin to probe a server that has just become ready."""
        self._probe = HealthProbe(self._api)

    def _watch_server(self) -> None:
        server = self._server
        assert server is not None
        hung = None if self._probe is None else self._probe.complaint(server.pid)
        if hung is not None and server.ended() is None:
            _LOG.warning("%s is killed: %s", self._name, hung)
            server.stop(signal.SIGKILL, self._exits, EXIT_TIMEOUT_SECONDS)
        ended = server.ended()
        if ended is None:
            return
        if self._probe is not None:
            self._probe.stop()
            self._probe = None
        pause_s = self._pause_before_start()
        after = f" after {pause_s:g} s" if pause_s else ""
        _LOG.warning("%s ended with %s, restarted%s", self._name, ended, after)
        self._clear_away()
        self.ready = False
        if pause_s:
            self.retry_us = self._clock.wall_us() + int(pause_s * 1e6)
            self._note()
            if self._stopping.wait(pause_s):
                return
            self.retry_us = None
        try:
            self._start()
        except BaseException:
            begun = self._server
            if begun is not None and begun.ended() is None:
                begun.stop(signal.SIGKILL, self._exits, EXIT_TIMEOUT_SECONDS)
            raise
        self._said = ""

    def _pause_before_start(self) -> float:
        """Count a death; seconds until the next start."""
        if self._clock.now_us() - self._started_us > LASTING_US:
            self._deaths_in_a_row = 0
            self._pauses.succeeded()
        self._deaths_in_a_row += 1
        return self._pauses.failed() if self._deaths_in_a_row > PROMPT_RESTARTS else 0.0

    def _clear_away(self) -> None:
        """Remove the remains of an ended server before its restart."""
        assert self._server is not None
        self._beside.forget()
        self.restarts += 1
        self.restarted_us = self._clock.wall_us()
        self._remove_temporary()
        if self._settings.gateways == 1:
            self._server.kill_group()
        else:  # workers belong to the other server's nodes, too
            self._server.kill_stubs(self._settings.place / "repository")

    def _remove_temporary(self) -> None:
        for folder in self._temporary:
            with contextlib.suppress(OSError):  # of another server's, which uses it
                folder.rmdir()
        self._temporary.clear()

    def _watch_stubs(self) -> None:
        now_us = self._clock.now_us()
        for file in stub_files(self._settings.place / "pids"):
            if now_us < self._again_us.get(file.name, 0) or self._reloads.is_loading(file.name):
                continue
            seen = self._stubs.look(file)
            if seen is None:
                continue
            self._again_us[file.name] = seen.again_us
            if seen.complaint is None:
                continue
            _LOG.warning("the process of %s: %s", file.name, seen.complaint)
            if seen.alive:
                with contextlib.suppress(OSError):
                    os.kill(seen.pid, signal.SIGKILL)
            self._reloads.begin(file)

    def _watch_beside(self) -> None:
        if self._server is not None and self.ready:
            self._beside.look()

    @property
    def beside(self) -> dict[str, str]:
        """How the models beside the plan are, by name."""
        return self._beside.described()

    def to_state(self) -> dict[str, Any] | None:
        """Its part of the state file; None before it has been started."""
        if self._server is None:
            return None
        return {
            "server_id": self._settings.server_id,
            "triton_pid": self._server.pid,
            "server_group": self._server.group,
            "metrics_port": self._endpoints.metrics_port(self._settings.gateway),
            "repository": str(self._settings.place / "repository"),
            "ready": self.ready,
            "restarts": self.restarts,
            "restarted_us": self.restarted_us,
            "retry_us": self.retry_us,
            "compiled_us": self.compiled_us,
            "models_begun": self.models_begun,
        }

    def stop(self) -> None:
        """End it; the thread of `run` must have ended."""
        self._reloads.stop()
        if self._probe is not None:
            self._probe.stop()
        if self._server is not None and self._server.ended() is None:
            repositories = (self._settings.place / "repository", self._beside.repository)
            self._server.drain(repositories, self._exits, EXIT_TIMEOUT_SECONDS + 5)
        self._remove_temporary()


class Keeper:
    """Owns the tritonserver of every gateway of a system, each watched by a thread of its own.

    Args:
        settings: of the system.
        endpoints: where its servers listen.
        server_root: of a Triton container; None is the server inside the PyTriton wheel.
        arguments: of this process, by which others find it and another keeper could be started.
    """

    def __init__(
        self,
        settings: ServeSettings,
        endpoints: Endpoints,
        server_root: Path | None,
        arguments: list[str],
    ) -> None:
        self._settings = settings
        self._endpoints = endpoints
        self._arguments = arguments
        self._stopping = threading.Event()
        self._asked_to_stop = False
        self._failed = threading.Event()
        self._failure: Exception | None = None
        self._writing = threading.Lock()
        self._unwritten = False
        self._servers = [
            KeptServer(
                settings.of_gateway(number),
                endpoints,
                server_root,
                self._stopping,
                self._write_state,
            )
            for number in range(settings.gateways)
        ]

    def run(self, *, take_over: bool = False) -> None:
        """Start the servers, or go on with them; keep them well; stop them at SIGTERM or SIGINT.

        Raises:
            InputError: there is no server to go on with, or the folder of the sockets is not ours.
            PoolPipeError: a server does not become ready, the first time.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if take_over:
            self._take_over()
        held = hold(self._settings.socket_folder)
        remove_abandoned(self._settings.socket_folder)
        if not take_over:
            remove_segments(self._settings.segment_prefix)
        threads = [
            threading.Thread(target=self._keep, args=(server,), daemon=True)
            for server in self._servers
        ]
        try:
            for thread in threads:
                thread.start()
            while not self._asked_to_stop and not self._failed.wait(WATCH_SECONDS):
                if self._unwritten:
                    self._write_state()
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()
            self._clean()
            os.close(held)
        if self._failure is not None:
            raise self._failure

    def _keep(self, server: KeptServer) -> None:
        try:
            server.run()
        except Exception as error:  # noqa: BLE001  # raised by the thread that waits for it
            self._failure = error
            self._failed.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked_to_stop = True

    def _take_over(self) -> None:
        path = str(self._settings.folder / STATE_NAME)
        state = read_state_file(self._settings.folder)
        if state is None or not server_runs(state):
            raise InputError(path, "no server to take over")
        if keeper_runs(state):
            raise InputError(path, "its keeper runs")
        for server, kept in zip(self._servers, servers_of(state), strict=True):
            if kept is not None:
                server.take_over(kept)

    def _write_state(self) -> None:
        """Write the state file; where it cannot be written (a full disk), until it can."""
        with self._writing:
            try:
                self._write_state_now()
            except OSError as error:
                if not self._unwritten:
                    _LOG.warning("%s cannot be written, tried again: %s", STATE_NAME, error)
                self._unwritten = True
            else:
                self._unwritten = False

    def _write_state_now(self) -> None:
        kept = [server.to_state() for server in self._servers]
        known = [one for one in kept if one is not None]
        first = known[0]
        state: dict[str, Any] = {
            "ready": len(known) == len(kept) and all(one["ready"] for one in known),
            "instance": self._settings.instance,
            "folder": str(self._settings.folder),
            "socket_folder": str(self._settings.socket_folder),
            "token": self._settings.token,
            "token_header": TOKEN_HEADER,
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "arguments": self._arguments,
            "process_group": os.getpgid(0),
            "server_group": first["server_group"],
            "triton_pid": first["triton_pid"],
            "restarts": sum(one["restarts"] for one in known),
            "restarted_us": max(one["restarted_us"] or 0 for one in known) or None,
            "retry_us": first["retry_us"],
            "compiled_us": max(one["compiled_us"] or 0 for one in known) or None,
            "models_begun": sum(one["models_begun"] for one in known),
            **self._endpoints.to_state(),
        }
        if self._settings.beside is not None:
            state["beside"] = self._servers[0].beside
        if len(kept) > 1:
            state["servers"] = kept
        # Kept over a restart: what others noted (the plan being served).
        with state_file_locked(self._settings.folder):
            noted = read_state_file(self._settings.folder) or {}
            write_state_file(self._settings.folder, {**noted, **state})

    def _clean(self) -> None:
        stops = [threading.Thread(target=server.stop) for server in self._servers]
        for thread in stops:
            thread.start()
        for thread in stops:
            thread.join()
        for process in [server.server for server in self._servers if server.server is not None]:
            process.kill_group()
        remove_segments(self._settings.segment_prefix)
        shutil.rmtree(self._settings.socket_folder, ignore_errors=True)
        remove_state_file(self._settings.folder)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m triton_backend.serving.server.tritonserver")
    start = parser.add_subparsers(dest="command", required=True).add_parser("start")
    start.add_argument("--folder", type=Path, required=True)
    start.add_argument("--server-root", type=Path, help="of a Triton container: /opt/tritonserver")
    start.add_argument("--take-over", action="store_true", help="a server whose keeper is gone")
    Endpoints.add_options(start)
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    logging.basicConfig(format="%(asctime)s %(levelname)s keeper: %(message)s", level=logging.INFO)
    try:
        endpoints = Endpoints.from_options(options)
        settings = ServeSettings.read(options.folder / SETTINGS_NAME)
        if not options.take_over:
            endpoints.check_can_listen(options.server_root, settings.gateways)
        own = [argument for argument in given if argument != "--take-over"]
        keeper = Keeper(settings, endpoints, options.server_root, own)
        keeper.run(take_over=options.take_over)
    except PoolPipeError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
