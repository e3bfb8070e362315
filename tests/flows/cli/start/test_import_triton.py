"""A repository that was tuned by hand: planned and served, and left as it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tritonclient import grpc

from tests.flows.cli.conftest import Command
from tests.flows.preparation.triton_repository.repositories import digest, write_repository
from tests.ports import free_ports


@pytest.fixture
def repository(project: Path) -> Path:
    return write_repository(project / "models")


def answered(url: str, name: str, tensor: str, output: str) -> Any:
    given = grpc.InferInput(tensor, [1, 4, 6, 6], "FP32")
    given.set_data_from_numpy(np.ones((1, 4, 6, 6), np.float32))
    with grpc.InferenceServerClient(url) as client:
        answer = client.infer(name, [given])
        assert answer is not None
        return answer.as_numpy(output)


@pytest.mark.slow
def test_a_repository_is_planned_and_served_and_stays_as_it_is(
    poolpipe: Command, repository: Path
) -> None:
    before = digest(repository)
    asked = ("--slo-ms", "400", "--blocks", "2", "-o", "out", "--json")
    found = poolpipe("import-triton", str(repository), *asked).document
    assert found["planned"] == ["classify", "classify@1", "pipeline", "plain", "sharpen"]
    assert sorted(found["beside"]) == ["chat", "tokens"]
    assert found["gpus"] == {"today": 2, "planned": 4, "cluster": 4}
    assert {row["name"]: row["instances"] for row in found["models"]} == {
        "classify": 2,
        "classify@1": 2,
        "pipeline": 0,
        "plain": 2,
        "sharpen": 2,
    }
    assert digest(repository) == before
    http, rpc, metrics = map(str, free_ports(3))
    ports = ("--http-port", http, "--grpc-port", rpc, "--metrics-port", metrics)
    try:
        assert poolpipe("serve", found["plan_id"], *ports).code == 0
        url = f"127.0.0.1:{rpc}"
        for name in ("classify", "classify@1", "plain", "sharpen"):
            assert np.isfinite(answered(url, name, "x", "y")).all()
        scores = answered(url, "pipeline", "PICTURE", "SCORES")
        assert scores.sum() == pytest.approx(1, abs=1e-4)
    finally:
        poolpipe("stop")


def test_files_are_written_for_gpus_that_are_elsewhere(poolpipe: Command, repository: Path) -> None:
    Path("gpus.yaml").write_text(
        "gpu_classes: {L4: {vgpu_divisors: [1, 2]}}\n"
        "nodes: [{count: 2, gpu_class: L4, gpus: 4, nic_gbps: 25}]\n"
    )
    ran = poolpipe(
        "import-triton", str(repository), "--cluster", "gpus.yaml", "--rate", "plain=20",
        "--slo", "pipeline=300", "--blocks", "2", "-o", "out",
    )  # fmt: skip
    assert ran.code == 0
    assert "next: poolpipe profile classify --cluster gpus.yaml --runtime tensorrt" in ran.out
    assert "left beside the plan" in ran.out
    assert "note: SLO: 1000 ms is assumed" in ran.err
    written = yaml.safe_load(Path("out/workload.yaml").read_text())
    assert {m["name"]: m.get("rate_rps") for m in written["models"]}["plain"] == 20.0
    assert written["applications"][0]["slo_ms"] == 300.0
    assert not Path("out/cluster.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("none",), "none: cannot be read"),
        (("models", "-o", "."), "workload.yaml: is there already; give another folder with -o"),
        (("models", "--rate", "chat=5"), "model 'chat': is not among those to plan"),
        (("models", "--slo", "plain"), "--slo: 'plain' is not NAME=VALUE"),
        (("models", "--cluster", "none.yaml"), "none.yaml"),
        (("models", "--slo", "plain=0"), "model 'plain', slo_ms: 0.0 is not positive"),
        (("models", "--rate", "plain=0"), "model 'plain', rate_rps: 0.0 is not a positive number"),
        (("models", "--rate", "*=5"), "model '*': is not among those to plan"),
        (("models", "-o", "models/out"), "models/out: lies in the repository, where nothing"),
        (("models", "-o", "workload.yaml"), "workload.yaml/workload.yaml: cannot be written"),
        (("models", "-o", "/proc/out"), "/proc/out: cannot be made"),
        (("models", "--warehouse", "models/w.duckdb"), "models/w.duckdb: lies in the repository"),
        ((".",), "lies in the repository, where nothing is written"),
    ],
)
def test_bad_input_is_one_line(
    poolpipe: Command, repository: Path, arguments: tuple[str, ...], reason: str
) -> None:
    before = sorted(repository.rglob("*"))
    elsewhere = () if "-o" in arguments else ("-o", "out")
    ran = poolpipe("import-triton", *arguments, *elsewhere, "--blocks", "1")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("poolpipe: ")
    assert reason in ran.err.splitlines()[-1]
    assert sorted(repository.rglob("*")) == before
