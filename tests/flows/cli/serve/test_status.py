import os
from pathlib import Path
from typing import Any

import pytest

from flows.release.server import running
from flows.release.server.admin import starting
from flows.state import project_state
from tests.flows.cli.conftest import Command
from tests.ports import free_ports
from triton_backend.serve_folder.state import write_state_file

FOUND: dict[str, Any] = {
    "state": "serving",
    "workers": {"plan_id": "a", "up": 2, "total": 2},
    "prepared": None,
    "counters": {
        "offered": {"net": 25, "sub": 3},
        "dropped": {},
        "stage_busy_us": {"net/0": 1_413_405},
        "decision_mean_us": 1020.0,
    },
}


@pytest.mark.usefixtures("project")
def test_counters_stand_one_a_line_and_durations_have_units(
    monkeypatch: pytest.MonkeyPatch, poolpipe: Command
) -> None:
    def status(_: object) -> dict[str, Any]:
        return FOUND

    monkeypatch.setattr(running, "status", status)
    lines = poolpipe("status").out.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert [line.rstrip() for line in lines] == [
        "state: serving",
        "workers: plan_id a, up 2, total 2",
        "prepared: -",
        "counters:",
        "  offered: net 25, sub 3",
        "  stage_busy: net/0 1.41 s",
        "  decision_mean: 1.02 ms",
    ]
    assert poolpipe("status", "--json").document == FOUND


def starting_state(folder: Path, **more: Any) -> dict[str, Any]:
    """The state file of a server that this process keeps and whose port nothing listens on."""
    texts = ("token", "token_header", "address")
    return {
        "ready": False,
        "instance": "0123abcd",
        "folder": str(folder),
        "socket_folder": str(folder),
        **dict.fromkeys(texts, "a"),
        "http_address": "127.0.0.1",
        "grpc_address": "127.0.0.1",
        "ports": {"http": free_ports(1)[0], "grpc": 1, "metrics": 2},
        "arguments": [],
        "pid": os.getpid(),
        "process_group": os.getpid(),
        "triton_pid": os.getpid(),
        **more,
    }


@pytest.mark.parametrize(
    ("more", "how"),
    [
        ({}, "the server starts and does not answer yet"),
        ({"models_begun": 3}, "the server starts (3 models begun) and does not answer yet"),
        ({"restarts": 2}, "the server starts again, restarted 2 times, and does not answer yet"),
    ],
)
def test_a_server_that_starts_is_said_to_start(
    project: Path, poolpipe: Command, more: dict[str, Any], how: str
) -> None:
    folder = project_state().serve
    folder.mkdir(parents=True)
    write_state_file(folder, starting_state(project, **more))
    ran = poolpipe("status")
    assert (ran.code, ran.out) == (1, "")
    log = folder / "logs" / "triton.log"
    assert ran.err == f"poolpipe: {how}; its log: {log}\n"


def test_a_server_that_was_ready_and_is_silent_is_no_server_that_starts(
    project: Path, poolpipe: Command
) -> None:
    folder = project_state().serve
    folder.mkdir(parents=True)
    write_state_file(folder, starting_state(project, ready=True))
    ran = poolpipe("status")
    assert ran.code == 1
    assert ran.err.startswith("poolpipe: no answer from 127.0.0.1:")


@pytest.mark.usefixtures("project")
def test_a_server_that_starts_and_has_no_state_file_yet_is_no_server_that_is_not_there(
    poolpipe: Command,
) -> None:
    folder = project_state().serve
    with starting(folder):
        ran = poolpipe("status")
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert f"{folder}: `poolpipe serve` is starting from there, no server is up yet" in ran.err
    assert "nothing is being served from here" in poolpipe("status").err
