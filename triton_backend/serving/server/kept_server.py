"""One server, started and kept well.

It is restarted when it died, or answers no more: after pauses of up to a minute where it keeps
dying, but for as long as it takes. Its models are loaded again where their processes die.
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import PoolPipeError
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serve_folder.state import one_server_runs
from triton_backend.serving.liveness.ends import ExitWatch
from triton_backend.serving.liveness.stubs import StubWatch, compiling, stub_files
from triton_backend.serving.server.api import (
    HTTP_OK,
    PROBE_TIMEOUT_SECONDS,
    HealthProbe,
    TritonApi,
)
from triton_backend.serving.server.beside import ModelsBeside
from triton_backend.serving.server.command import (
    EXIT_TIMEOUT_SECONDS,
    environment_folders,
    large_stack,
    server_command,
    server_environment,
)
from triton_backend.serving.server.process import WATCH_SECONDS, TritonServer
from triton_backend.serving.server.reloads import ModelReloads
from triton_backend.serving.server.socket_folder import hold, note_environments
from triton_backend.serving.transport.backoff import Backoff
from triton_backend.serving.transport.sched_tuning import ask_for_short_slices, lower_priority
from triton_backend.serving.transport.shared_memory import remove_segments

READY_SECONDS = 120
# A server that keeps dying is started at once so often in a row, then after pauses that double.
PROMPT_RESTARTS = 5
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0
LASTING_US = 600_000_000  # a server that ran so long died for a new reason
_ONE_START = threading.Lock()  # the stack's limit is the whole process's
_LOG = logging.getLogger(__name__)


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
