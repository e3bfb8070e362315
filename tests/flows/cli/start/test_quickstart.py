import sys

import pytest

from tests.flows.cli.conftest import Command
from tests.ports import free_ports, taken_port
from triton_backend.runtimes.python_step import ocr


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


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("ocr",), "quickstart ocr: a name goes with --application"),
        (("--application", "ocrs"), "quickstart --application ocrs: there are traffic, ocr"),
    ],
)
def test_an_application_is_named_behind_its_option(
    poolpipe: Command, given: tuple[str, ...], said: str
) -> None:
    ran = poolpipe("quickstart", *given)
    assert (ran.code, ran.out, ran.err) == (2, "", f"poolpipe: {said}\n")


@pytest.mark.usefixtures("project")
def test_an_application_whose_package_is_missing_says_what_to_install(
    poolpipe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocr._reader.cache_clear()
    monkeypatch.setitem(sys.modules, "rapidocr_onnxruntime.main", None)
    ran = poolpipe("quickstart", "--application", "ocr")
    ocr._reader.cache_clear()
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("poolpipe: rapidocr_onnxruntime: is not installed: ")
    assert 'pip install "poolpipe[ocr]"' in ran.err
    assert ran.err.count("\n") == 1
