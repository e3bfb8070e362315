"""A running system as its state file describes it, and what it is asked.

Requests go over plain HTTP to the address of the state file, with its token. Not here: the system's
processes (`admin`).
"""

import contextlib
import fcntl
import http.client
import json
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.clock import Stopwatch
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.units import US_PER_S
from triton_backend.serve_folder.connect import connect_to
from triton_backend.serve_folder.repository import CONTROL_MODEL, STANDBY_MODEL
from triton_backend.serve_folder.state import (
    STATE_NAME,
    keeper_runs,
    metrics_urls,
    one_server_runs,
    server_runs,
    servers_of,
    state_file_locked,
    whole_state_file,
    write_state_file,
)

REQUEST_SECONDS = 30
HTTP_OK, BAD_REQUEST, UNAVAILABLE = 200, 400, 503
# A server that was killed is back within seconds.
GATEWAY_SECONDS = 60.0
TAKEOVER_SECONDS, TAKEOVER_POLL_SECONDS = 2.0, 0.05


class ServerError(PoolPipeError):
    """The running system refused or failed; the message is its own."""


class AbsentError(ServerError):
    """There is no answer."""


class RefusedError(ServerError):
    """The running system did not take a request for a good one (HTTP 400)."""


class UnavailableError(ServerError):
    """It cannot be answered now (HTTP 503): by a scheduler that is the standby, for one."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """A running system, as its state file describes it."""

    data: dict[str, Any]

    @property
    def http_url(self) -> str:
        """Host and port of KServe over HTTP."""
        return f"{self.data['http_address']}:{self.data['ports']['http']}"

    @property
    def grpc_url(self) -> str:
        """Host and port of KServe over gRPC."""
        return f"{self.data['grpc_address']}:{self.data['ports']['grpc']}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus reads; of two gateways, the first one's."""
        return self.metrics_urls[0]

    @property
    def metrics_urls(self) -> list[str]:
        """Where Prometheus reads what each gateway counts."""
        return metrics_urls(self.data)

    @property
    def folder(self) -> Path:
        """The serve folder."""
        return Path(self.data["folder"])

    def post(self, path: str, body: object, gateway: int = 0) -> dict[str, Any]:
        """POST JSON with the token, to the server of a gateway.

        Raises:
            AbsentError: that does not answer.
            ServerError: it answers with an error.
        """
        headers = {self.data["token_header"]: self.data["token"]}
        try:
            with contextlib.closing(self._connected(gateway)) as connection:
                connection.request("POST", path, json.dumps(body).encode(), headers)
                answer = connection.getresponse()
                code, text = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise AbsentError(f"no answer from {self.http_url}: {error}") from error
        if code != HTTP_OK:
            kind = {BAD_REQUEST: RefusedError, UNAVAILABLE: UnavailableError}.get(code, ServerError)
            with contextlib.suppress(ValueError, LookupError, TypeError):
                raise kind(json.loads(text)["error"])
            raise kind(f"HTTP {code} {answer.reason}")
        return json.loads(text) if text else {}

    def _connected(self, gateway: int) -> http.client.HTTPConnection:
        """A connection to the server of a gateway, which may share its port with another."""
        address, port = self.data["http_address"], int(self.data["ports"]["http"])
        servers = self.data.get("servers")
        if servers is None:
            return http.client.HTTPConnection(address, port, timeout=REQUEST_SECONDS)
        server = servers[gateway]
        if server is None or not server["ready"] or not one_server_runs(server):
            raise ConnectionError(f"the server of gateway {gateway + 1} is not there")
        return connect_to(address, port, server["server_id"], REQUEST_SECONDS)

    @property
    def gateways(self) -> range:
        """Numbers of the gateways."""
        return range(len(self.data.get("servers", [None])))

    def ask(
        self, model: str, request: dict[str, Any], gateway: int | None = None
    ) -> dict[str, Any]:
        """An infer on one of the JSON models (control, nodes).

        Args:
            model: its name.
            request: what is asked, as JSON.
            gateway: whose model is asked; None: the standby is that of the last gateway, each other
                model that of the first.

        Raises:
            ServerError: the request was refused.
        """
        if gateway is None:
            gateway = self.gateways[-1] if model == STANDBY_MODEL else 0
        texts = {"request": json.dumps(request), "token": self.data["token"]}
        body = {
            "inputs": [
                {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}
                for name, text in texts.items()
            ]
        }
        answer = self.post(f"/v2/models/{model}/infer", body, gateway)
        return json.loads(answer["outputs"][0]["data"][0])

    def control(self, command: str, **fields: Any) -> dict[str, Any]:
        """A control request: prepare, flush, swap, abort or status; the state reached. Or advice.

        Raises:
            ServerError: the scheduler refused it, or neither of its processes is the scheduler.
        """
        request = {"command": command, **fields}
        waited = Stopwatch()
        while True:
            errors: list[ServerError] = []
            for model in (CONTROL_MODEL, STANDBY_MODEL):
                try:
                    return self.ask(model, request)
                except RefusedError:
                    raise
                except ServerError as error:  # it is the standby, or dead
                    errors.append(error)
            # A standby that lives will be the scheduler in a moment; each command may come twice.
            taking_over = any(isinstance(error, UnavailableError) for error in errors)
            if not taking_over or waited.seconds() > TAKEOVER_SECONDS:
                raise errors[0]
            time.sleep(TAKEOVER_POLL_SECONDS)

    def load(self, model: str) -> None:
        """Load a model in every gateway; reload it if its configuration changed."""
        self._post_to_all(f"/v2/repository/models/{model}/load")

    def unload(self, model: str) -> None:
        """Unload a model from every gateway; its processes end."""
        self._post_to_all(f"/v2/repository/models/{model}/unload")

    def _post_to_all(self, path: str) -> None:
        """One of two servers that has died is waited for.

        It comes back with what the repository has now.
        """
        for gateway in self.gateways:
            state, waited = self, Stopwatch()
            while True:
                try:
                    state.post(path, {}, gateway)
                    break
                except AbsentError:
                    if len(self.gateways) == 1 or waited.seconds() > GATEWAY_SECONDS:
                        raise
                time.sleep(TAKEOVER_POLL_SECONDS)
                state = read_state(self.folder)


def read_state(folder: Path) -> ServerState:
    """The system that runs from a serve folder.

    Raises:
        InputError: none does.
    """
    data = whole_state_file(folder)
    if data is None:
        raise InputError(str(folder / STATE_NAME), "nothing is being served from here")
    return ServerState(data)


def note_plan(folder: Path, plan_id: str, generation: int) -> None:
    """Write the plan being served into the state file."""
    with state_file_locked(folder):
        data = read_state(folder).data
        write_state_file(folder, {**data, "plan_id": plan_id, "generation": generation})


def being_started(folder: Path) -> bool:
    """True while a process has the folder to itself and no keeper's state file is there yet."""
    data = whole_state_file(folder)
    if data is not None and (keeper_runs(data) or server_runs(data)):
        return False
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def status(folder: Path) -> dict[str, Any]:
    """State and addresses of the system served from a folder.

    Raises:
        InputError: nothing is served from here; or what was, was killed with its machine.
        ServerError: it does not answer, because it starts for one, or keeps dying and is not yet
            started again.
    """
    if being_started(folder):
        reason = "`poolpipe serve` is starting from there, no server is up yet"
        raise ServerError(f"{folder}: {reason}")
    state = read_state(folder)
    if not keeper_runs(state.data) and not server_runs(state.data):
        raise InputError(
            str(folder / STATE_NAME),
            "is left of a system that was killed, nothing is being served: `poolpipe serve` begins"
            " again",
        )
    (only, *others) = servers_of(state.data)
    if not others and only is not None and only.get("retry_us") is not None:
        raise ServerError(f"the server {_gone(only)}, restarted {only['restarts']} times")
    try:
        answer = state.control("status")
    except AbsentError as error:
        if state.data["ready"]:
            raise
        raise ServerError(_starting(state.data, folder)) from error
    return {
        "http": state.http_url,
        "grpc": state.grpc_url,
        "keeper": keeper_of(state.data),
        "restarts": state.data.get("restarts", 0),
        "restarted": _instant(state.data.get("restarted_us")),
        **({"gateways": gateways_of(state.data)} if len(state.gateways) > 1 else {}),
        **({"beside": state.data["beside"]} if "beside" in state.data else {}),
        **answer,
    }


def _starting(state: dict[str, Any], folder: Path) -> str:
    """How far a system is that is not ready yet, and where to look."""
    begun, restarts = state.get("models_begun"), state.get("restarts")
    how = f" ({begun} models begun)" if begun else ""
    how = f"{how} again, restarted {restarts} times," if restarts else how
    return f"the server starts{how} and does not answer yet; its log: {folder / 'logs/triton.log'}"


def gateways_of(state: dict[str, Any]) -> dict[str, str]:
    """How the server of each of two gateways is."""
    found: dict[str, str] = {}
    for number, server in enumerate(servers_of(state), 1):
        if server is None or not one_server_runs(server):
            how = _gone(server)
        elif not server["ready"]:
            how = "starts"
        else:
            how = "runs"
        restarts = 0 if server is None else server["restarts"]
        found[f"gateway {number}"] = how if not restarts else f"{how}, restarted {restarts} times"
    return found


def _gone(server: dict[str, Any] | None) -> str:
    """How a server is that does not run.

    Its keeper pauses before it starts one again that keeps dying.
    """
    retry_us = None if server is None else server.get("retry_us")
    return "is gone" if retry_us is None else f"ended, starts at {_instant(retry_us)}"


def keeper_of(state: dict[str, Any]) -> str:
    """State of the keeper: `runs`, or what to do."""
    if keeper_runs(state):
        return "runs"
    return "is gone, nothing would restart the server: `poolpipe serve` of this plan takes it over"


def _instant(at_us: int | None) -> str | None:
    """An instant in words; None where there was none."""
    if at_us is None:
        return None
    return datetime.fromtimestamp(at_us / US_PER_S, UTC).isoformat(timespec="seconds")


def served_without_keeper(folder: Path) -> str | None:
    """The plan in force on a server that runs on without a keeper; None where none does.

    Raises:
        ServerError: it does not answer.
    """
    data = whole_state_file(folder)
    if data is None or keeper_runs(data) or not server_runs(data):
        return None
    return str(ServerState(data).control("status")["plan_id"])


def noted_plan_id(folder: Path) -> str | None:
    """The plan in force by the state file, also while the system does not answer.

    None where nothing is served.
    """
    state = whole_state_file(folder)
    return None if state is None else state.get("plan_id")


def served_plan_id(folder: Path) -> str | None:
    """The plan in force on the system served from a folder; None where nothing is served."""
    try:
        return str(read_state(folder).control("status")["plan_id"])
    except InputError:
        return None
