"""A running system as its state file describes it, and what it is asked.

Requests go over plain HTTP to the address of the state file, with its token. Not here: the system's
processes (`admin`).
"""

import contextlib
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.serve_folder.repository import CONTROL_MODEL

REQUEST_SECONDS = 30


class ServerError(PoolPipeError):
    """The running system refused or failed; the message is its own."""


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
            with contextlib.suppress(ValueError):
                raise ServerError(json.loads(error.read())["error"]) from error
            raise ServerError(str(error)) from error
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
        """A control request: prepare, flush, swap, abort or status; the state reached."""
        return self.ask(CONTROL_MODEL, {"command": command, **fields})

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
    path = folder / "state.json"
    try:
        return ServerState(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise InputError(str(path), "nothing is being served from here") from error


def note_plan(folder: Path, plan_id: str, generation: int) -> None:
    """Write the plan being served into the state file."""
    path = folder / "state.json"
    data = {**json.loads(path.read_text()), "plan_id": plan_id, "generation": generation}
    temporary = path.with_suffix(".noted")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(data, file, indent=1)
    temporary.replace(path)


def status(folder: Path) -> dict[str, Any]:
    """What the system served from a folder says of itself, and where it is reached.

    Raises:
        InputError: nothing is served from here.
        ServerError: it does not answer.
    """
    state = read_state(folder)
    return {"http": state.http_url, "grpc": state.grpc_url, **state.control("status")}


def served_plan_id(folder: Path) -> str | None:
    """The plan in force on the system served from a folder; None where nothing is served."""
    try:
        return str(read_state(folder).control("status")["plan_id"])
    except InputError:
        return None
