import pytest

from tests.flows.cli.conftest import Command
from tests.ports import free_ports, taken_port


@pytest.mark.usefixtures("project")
def test_stopping_nothing_is_fine(poolpipe: Command) -> None:
    assert poolpipe("stop", "--json").document == {"stopped": False}


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_a_port_in_use_is_named_and_nothing_stays_behind(poolpipe: Command) -> None:
    http, metrics = map(str, free_ports(2))
    with taken_port() as busy:
        ran = poolpipe(
            "serve",
            "plan.json",
            "--http-port",
            http,
            "--grpc-port",
            busy,
            "--metrics-port",
            metrics,
        )
    assert (ran.code, ran.out) == (2, "")
    assert f"--grpc-port {busy}" in ran.err
    assert ran.err.count("\n") == 1
    assert poolpipe("status").code == 2
