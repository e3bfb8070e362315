"""Old or exposed parts of a served system, on a real one and on files alone."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.clock import now_utc
from flows.operations.doctor import system
from flows.operations.doctor.registry import Severity, Surroundings
from flows.release.server import admin
from flows.state import ProjectState
from tests.ports import free_ports
from tests.triton_backend.serve_folder.state_files import LEFT
from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.serve_folder.endpoints import EVERYWHERE, Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeOptions
from triton_backend.serve_folder.state import STATE_NAME, write_state_file

NOW = now_utc()


def at(folder: Path) -> Surroundings:
    state = ProjectState(home=folder)
    state.serve.mkdir(exist_ok=True)
    return Surroundings(state=state, warehouse=folder / "w.duckdb", now=NOW)


def test_where_nothing_is_served_there_is_nothing_to_complain_of(tmp_path: Path) -> None:
    looks = (system.server_version, system.open_addresses, system.token_age, system.keeper)
    assert {f.severity for look in looks for f in look(at(tmp_path))} == {Severity.GOOD}


def test_a_token_that_others_may_read_is_a_problem(tmp_path: Path) -> None:
    here = at(tmp_path)
    for name, mode in ((STATE_NAME, 0o644), (SETTINGS_NAME, 0o600)):
        (here.state.serve / name).write_text("{}")
        (here.state.serve / name).chmod(mode)
    (found,) = system.file_modes(here)
    path = here.state.serve / STATE_NAME
    assert (found.severity, found.remedy) == (Severity.PROBLEM, f"chmod 600 {path}")
    path.chmod(0o600)
    assert [f.severity for f in system.file_modes(here)] == [Severity.GOOD]


@pytest.mark.parametrize("name", ["", "models", "artifacts", "w.duckdb"])
def test_what_others_may_write_is_a_problem(tmp_path: Path, name: str) -> None:
    here = at(tmp_path)
    path = tmp_path / name
    if name.endswith(".duckdb"):
        path.touch()
    else:
        path.mkdir(exist_ok=True)
    path.chmod(0o775)
    (found,) = system.file_modes(here)
    assert found.seen == f"{path} may be written by others"


def test_an_old_token_is_worth_another(tmp_path: Path) -> None:
    here = at(tmp_path)
    path = here.state.serve / SETTINGS_NAME
    path.write_text("{}")
    severities: list[Severity] = []
    for age in (timedelta(days=89), timedelta(days=91)):
        instant = (NOW - age).timestamp()
        os.utime(path, (instant, instant))
        severities += [finding.severity for finding in system.token_age(here)]
    assert severities == [Severity.GOOD, Severity.ADVICE]


def test_a_state_file_of_a_killed_system_is_said(tmp_path: Path) -> None:
    here = at(tmp_path)
    write_state_file(here.state.serve, LEFT)
    (found,) = system.keeper(here)
    assert (found.severity, found.seen) == (
        Severity.ADVICE,
        "the state file is left of a system that was killed",
    )


def test_a_state_file_that_no_keeper_wrote_is_a_problem(tmp_path: Path) -> None:
    here = at(tmp_path)
    write_state_file(here.state.serve, {**LEFT, "arguments": "x"})
    (found,) = system.keeper(here)
    assert (found.severity, "arguments: 'x' is not a list" in found.seen) == (
        Severity.PROBLEM,
        True,
    )


def test_addresses_of_two_gateways_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = [{"metrics_port": port} for port in (8002, 8003)]
    served = {**LEFT, "tls": False, "servers": servers}
    listening = [("::ffff:127.0.0.1", 8001), ("0.0.0.0", 8003), ("0.0.0.0", 9000)]

    def serves(_: Surroundings) -> dict[str, Any]:
        return served

    def listens(_: object) -> list[tuple[str, int]]:
        return listening

    monkeypatch.setattr(Surroundings, "served", serves)
    monkeypatch.setattr(system, "_listening", listens)
    assert [found.seen for found in system.open_addresses(at(tmp_path))] == [
        "port 8003 listens at 0.0.0.0, metrics, unencrypted",
        "port 9000 listens at 0.0.0.0, transport between hosts",
    ]


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    """A server whose HTTP and gRPC anybody reaches, with statistics open."""
    here = at(tmp_path_factory.mktemp("exposed"))
    http, grpc, metrics = free_ports(3)
    ports = Endpoints(
        http=http,
        grpc=grpc,
        metrics=metrics,
        address=EVERYWHERE,
        accept_old_server=True,
        opened=("statistics",),
    )
    render_repository(here.state.serve, plan(two_stage()), ServeOptions())
    try:
        admin.start(here.state.serve, ports)
        yield here
    finally:
        admin.stop(here.state.serve)


@pytest.mark.slow
def test_an_exposed_old_server_is_a_problem_by_port_and_by_version(exposed: Surroundings) -> None:
    (version,) = system.server_version(exposed)
    assert version.severity is Severity.PROBLEM
    assert version.seen.startswith("Triton 2.51.0, older than")
    served = exposed.served()
    assert served is not None
    found = list(system.open_addresses(exposed))
    # gRPC binds the wildcard of both families.
    seen = {f.seen.replace(" ::,", " 0.0.0.0,") for f in found if f.severity is Severity.PROBLEM}
    assert seen == {
        f"port {served['ports'][name]} listens at 0.0.0.0, {name}, unencrypted"
        for name in ("http", "grpc")
    }
    assert [f.seen for f in found if f.severity is Severity.ADVICE] == [
        "statistics is answered without the token"
    ]
    assert {f.severity for f in system.file_modes(exposed)} == {Severity.GOOD}


@pytest.mark.slow
def test_a_dead_keeper_is_a_problem(exposed: Surroundings) -> None:
    assert [f.severity for f in system.keeper(exposed)] == [Severity.GOOD]
    served = exposed.served()
    assert served is not None
    os.kill(served["pid"], signal.SIGKILL)
    psutil.wait_procs([psutil.Process(served["pid"])], timeout=10)
    (found,) = system.keeper(exposed)
    assert found.severity is Severity.PROBLEM
    assert found.remedy.startswith("`poolpipe serve`")
