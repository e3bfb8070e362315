import pytest

from tests.flows.cli.conftest import Command
from tests.ports import free_ports, taken_port


@pytest.mark.usefixtures("project")
def test_quickstart_names_a_port_in_use_before_it_starts_to_profile(poolpipe: Command) -> None:
    http, metrics = map(str, free_ports(2))
    with taken_port() as busy:
        ports = (f"--http-port={http}", f"--grpc-port={busy}", f"--metrics-port={metrics}")
        ran = poolpipe("quickstart", *ports)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"poolpipe: --grpc-port {busy}: ")
    assert ran.err.count("\n") == 1
