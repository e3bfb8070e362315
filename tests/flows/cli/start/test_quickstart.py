import pytest

from tests.flows.cli.conftest import Command
from tests.ports import free_ports, taken_port


@pytest.mark.usefixtures("project")
def test_quickstart_names_a_port_in_use_before_it_starts_to_profile(poolpipe: Command) -> None:
    pytest.importorskip("pytriton", reason="needs the extra `local`")
    http, metrics = map(str, free_ports(2))
    with taken_port() as busy:
        ports = (f"--http-port={http}", f"--grpc-port={busy}", f"--metrics-port={metrics}")
        ran = poolpipe("quickstart", *ports)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"poolpipe: --grpc-port {busy}: ")
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "more", [("--model=m.onnx", "--slo-ms=80"), ("--slo-ms=80",), ("--planner=subclusters",)]
)
def test_the_application_has_models_and_a_planner_of_its_own(
    poolpipe: Command, more: tuple[str, ...]
) -> None:
    ran = poolpipe("quickstart", "--application", *more)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("poolpipe: quickstart --application: has models of its own")
    assert ran.err.count("\n") == 1
