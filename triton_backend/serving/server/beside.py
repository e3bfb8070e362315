"""Models beside the plan: loaded through the repository API once the plan's own are served.

So a model beside the plan that cannot be loaded, or that loads for minutes, keeps no planned model
from being served. Triton neither loads a model again whose Python process died nor says so; the
keeper does, as it does for the plan's.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.clock import Clock, SystemClock
from triton_backend.serve_folder.beside import BESIDE_NAME, link_model
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serve_folder.state import command_line
from triton_backend.serving.transport.backoff import Backoff

WAITING, LOADING, READY = "waits", "loading", "ready"
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
REPEATED_DEATHS = 3  # in a row: from then on a model is not ready for a pause before its next load
LIVES_ON_US = 60_000_000  # after so long a model's next death is the first of a row
END_SECONDS, POLL_SECONDS = 10.0, 0.05  # of the processes of a model that was unloaded
LONGEST_REASON = 300
_LOG = logging.getLogger(__name__)


class ModelsBeside:
    """The models beside the plan in one server.

    Attributes:
        states: `waits`, `loading`, `ready` or the reason why it is not loaded, by model;
            `described` has more.

    Args:
        settings: of the system, as the gateway reads them.
        load: loads a model; what was wrong, if it is not loaded.
        unload: unloads it.
        stopping: set when all shall end.
        note: called when a state has changed.
    """

    def __init__(
        self,
        settings: ServeSettings,
        load: Callable[[str], str | None],
        unload: Callable[[str], object],
        stopping: threading.Event,
        note: Callable[[], None],
    ) -> None:
        self._place = settings.place
        self._folders = {} if settings.beside is None else dict(settings.beside.folders)
        self._load_model, self._unload_model = load, unload
        self._stopping = stopping
        self._note = note
        self.states = dict.fromkeys(self._folders, WAITING)
        self._server = 0  # counts those that had them: what one loaded the next has not
        self._stubs: dict[str, list[int]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._clock: Clock = SystemClock()
        self._loaded_us: dict[str, int] = {}
        self._retries, self._deaths = (
            {name: Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS) for name in self._folders}
            for _ in range(2)
        )

    @property
    def repository(self) -> Path:
        """The folder of the links."""
        return self._place / BESIDE_NAME

    def load_first(self) -> None:
        """Load all, one after the other; return when they are, or when all shall end.

        Raises:
            InputError: one cannot be loaded.
        """
        for name in self._folders:
            self._begin(name, self._load)
            while self._threads[name].is_alive() and not self._stopping.is_set():
                self._threads[name].join(0.1)
            if self._stopping.is_set():
                return
            if self.states[name] != READY:
                raise InputError(f"model {name!r} beside the plan", self.states[name])

    def take_over(self, is_ready: Callable[[str], bool]) -> None:
        """Go on with those that a server has already."""
        self.states = {name: READY if is_ready(name) else WAITING for name in self._folders}
        self._stubs = {name: self._stubs_of(name) for name in self._folders}

    def forget(self) -> None:
        """The server that had them is gone."""
        self._server += 1
        self.states = dict.fromkeys(self._folders, WAITING)

    def look(self) -> None:
        """Begin to load those that are not, or whose processes have died."""
        for name in self._folders:
            thread = self._threads.get(name)
            if thread is not None and thread.is_alive():
                continue
            if self.states[name] != READY:
                self._begin(name, self._load_again)
                continue
            lived_us = self._clock.now_us() - self._loaded_us.get(name, 0)
            if self._deaths[name].failures and lived_us >= LIVES_ON_US:
                self._deaths[name].succeeded()
                self._note()
            if not all(self._is_stub(name, pid) for pid in self._stubs[name]):
                _LOG.warning("a process of %s, beside the plan, has died: it is reloaded", name)
                self._begin(name, self._load_after_death)

    def described(self) -> dict[str, str]:
        """The states, with the deaths of those that are ready again after several."""
        return {
            name: f"{state}, but {self._died(name)}"
            if state == READY and self._deaths[name].failures >= REPEATED_DEATHS
            else state
            for name, state in self.states.items()
        }

    def _died(self, name: str) -> str:
        return f"its process died {self._deaths[name].failures} times in a row"

    def _is_stub(self, name: str, pid: int) -> bool:
        """True if a stub of a model lives, and no other program has its number."""
        folder = f"{self.repository / name}/"
        return any(word.startswith(folder) for word in command_line(pid)[1:])

    def _stubs_of(self, name: str) -> list[int]:
        pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
        return [pid for pid in pids if self._is_stub(name, pid)]

    def _wait_ended(self, name: str) -> None:
        """Wait for the stubs of a model that was unloaded: they are not those of its next load."""
        for _ in range(int(END_SECONDS / POLL_SECONDS)):
            if not self._stubs_of(name) or self._stopping.wait(POLL_SECONDS):
                return

    def _begin(self, name: str, work: Callable[[str], None]) -> None:
        thread = threading.Thread(target=work, args=(name,), daemon=True)
        self._threads[name] = thread
        thread.start()

    def _load_after_death(self, name: str) -> None:
        """Load a model whose process died.

        One that keeps dying is unloaded for a pause first, so that clients and probes see that it
        is not ready.
        """
        pause_s = self._deaths[name].failed()
        if self._deaths[name].failures >= REPEATED_DEATHS:
            server = self._server
            self._unload_model(name)
            self._set(name, f"down: {self._died(name)}, loaded again in {pause_s:g} s", server)
            self._stopping.wait(pause_s)
        self._load_again(name)

    def _load_again(self, name: str) -> None:
        """Load a model; where that fails, return after a pause."""
        self._load(name)
        retry = self._retries[name]
        if self.states[name] == READY:
            retry.succeeded()
            return
        pause_s = retry.failed()
        if retry.failures == 1:
            _LOG.warning("%s, beside the plan, is tried again: %s", name, self.states[name])
        self._stopping.wait(pause_s)

    def _load(self, name: str) -> None:
        server = self._server
        self._set(name, LOADING, server)
        # An unchanged configuration is not loaded again, and files must not change below a model.
        self._unload_model(name)
        self._wait_ended(name)
        try:
            link_model(self._place, name, self._folders[name])
        except (OSError, PoolPipeError) as error:
            failure: str | None = str(error)
        else:
            failure = self._load_model(name)
        self._stubs[name] = self._stubs_of(name)
        self._loaded_us[name] = self._clock.now_us()
        self._set(name, READY if failure is None else in_one_line(failure), server)

    def _set(self, name: str, state: str, server: int) -> None:
        if server == self._server and state != self.states[name]:
            self.states[name] = state
            self._note()


def in_one_line(answer: str) -> str:
    """Triton's answer to a load that failed, without its JSON and Python's trace."""
    text = answer
    with contextlib.suppress(ValueError, LookupError, TypeError):
        text = str(json.loads(answer)["error"])
    text = text.partition("\n\nAt:")[0]
    return " ".join(text.split())[:LONGEST_REASON]
