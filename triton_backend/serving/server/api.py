"""A server as its keeper asks it: models loaded and unloaded, and whether anything is answered."""

import contextlib
import http.client
import threading

from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.connect import connect_to
from triton_backend.serve_folder.endpoints import TOKEN_HEADER, Endpoints, reached_at
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.liveness.threads import thread_states

HTTP_OK = 200
NO_ANSWER = 0
LOAD_SECONDS = 120
LOAD_BESIDE_SECONDS = 1800  # of a model beside the plan, which may be a large one
# Each probe is a new connection, which the server hands to one of its eight HTTP threads: a few of
# them may be busy with slow loads, so one failure says nothing.
PROBE_SECONDS = 0.5
PROBE_TIMEOUT_SECONDS = 1.0
FAILED_PROBES = 3
# Of a server that wants to run (it is overloaded, or the machine is), or waits for a disk.
SILENT_US = 15_000_000


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
