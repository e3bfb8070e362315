"""A running system as its state file describes it, and what it is asked.

Requests go over plain HTTP to the address of the state file, with its token. Not here: the system's
processes (`admin`).
"""

import contextlib
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.clock import Stopwatch
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.units import US_PER_S
from triton_backend.serve_folder.repository import CONTROL_MODEL, STANDBY_MODEL
from triton_backend.serve_folder.state import (
    STATE_NAME,
    keeper_runs,
    read_state_file,
    server_runs,
    write_state_file,
)

REQUEST_SECONDS = 30
BAD_REQUEST, UNAVAILABLE = 400, 503
TAKEOVER_SECONDS, TAKEOVER_POLL_SECONDS = 2.0, 0.05


class ServerError(PoolPipeError):
    """The running system refused or failed; the message is its own."""


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
        """Where Prometheus reads."""
        return f"http://{self.data['address']}:{self.data['ports']['metrics']}/metrics"

    @property
    def folder(self) -> Path:
        """The serve folder."""
        return Path(self.data["folder"])

    def post(self, path: str, body: object) -> dict[str, Any]:
        """POST JSON with the token.

        Raises:
            ServerError: the server answers with an error, or not at all.
        """
        request = urllib.request.Request(
            f"http://{self.http_url}{path}",
            data=json.dumps(body).encode(),
            headers={self.data["token_header"]: self.data["token"]},
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:  # noqa: S310  # http, an address of our own state file
                text = answer.read()
        except urllib.error.HTTPError as error:
            kind = {BAD_REQUEST: RefusedError, UNAVAILABLE: UnavailableError}.get(
                error.code, ServerError
            )
            with contextlib.suppress(ValueError):
                raise kind(json.loads(error.read())["error"]) from error
            raise kind(str(error)) from error
        except OSError as error:
            raise ServerError(f"no answer from {self.http_url}: {error}") from error
        return json.loads(text) if text else {}

    def ask(self, model: str, request: dict[str, Any]) -> dict[str, Any]:
        """An infer on one of the JSON models (control, nodes).

        Raises:
            ServerError: the request was refused.
        """
        texts = {"request": json.dumps(request), "token": self.data["token"]}
        body = {
            "inputs": [
                {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}
                for name, text in texts.items()
            ]
        }
        answer = self.post(f"/v2/models/{model}/infer", body)
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
        """Load a model of the repository, or load it anew if its configuration changed."""
        self.post(f"/v2/repository/models/{model}/load", {})

    def unload(self, model: str) -> None:
        """Unload a model; its process ends."""
        self.post(f"/v2/repository/models/{model}/unload", {})


def read_state(folder: Path) -> ServerState:
    """The system that runs from a serve folder.

    Raises:
        InputError: none does.
    """
    data = read_state_file(folder)
    if data is None:
        raise InputError(str(folder / STATE_NAME), "nothing is being served from here")
    return ServerState(data)


def note_plan(folder: Path, plan_id: str, generation: int) -> None:
    """Write the plan being served into the state file."""
    data = read_state(folder).data
    write_state_file(folder, {**data, "plan_id": plan_id, "generation": generation})


def status(folder: Path) -> dict[str, Any]:
    """What the system served from a folder says of itself, and where it is reached.

    Raises:
        InputError: nothing is served from here; or what was, was killed with its machine.
        ServerError: it does not answer.
    """
    state = read_state(folder)
    if not keeper_runs(state.data) and not server_runs(state.data):
        raise InputError(
            str(folder / STATE_NAME),
            "is left of a system that was killed, nothing is being served: `poolpipe serve` begins"
            " anew",
        )
    return {
        "http": state.http_url,
        "grpc": state.grpc_url,
        "keeper": keeper_of(state.data),
        "restarts": state.data.get("restarts", 0),
        "restarted": _instant(state.data.get("restarted_us")),
        **state.control("status"),
    }


def keeper_of(state: dict[str, Any]) -> str:
    """Whether anybody keeps the server well: `runs`, or what to do."""
    if keeper_runs(state):
        return "runs"
    return (
        "is gone, nobody would start the server anew: `poolpipe serve` of this plan takes it over"
    )


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
    data = read_state_file(folder)
    if data is None or keeper_runs(data) or not server_runs(data):
        return None
    return str(ServerState(data).control("status")["plan_id"])


def served_plan_id(folder: Path) -> str | None:
    """The plan in force on the system served from a folder; None where nothing is served."""
    try:
        return str(read_state(folder).control("status")["plan_id"])
    except InputError:
        return None
