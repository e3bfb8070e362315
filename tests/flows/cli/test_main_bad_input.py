from pathlib import Path

import pytest

from tests.flows.cli.conftest import Command

REPLAN = ("replan", "--cluster", "cluster.yaml", "--workload", "workload.yaml")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("split", "none.onnx"), "none.onnx: no such file"),
        (("split", "cluster.yaml"), "cluster.yaml: is not an ONNX file"),
        (("profiles", "import", "."), "block_latency_us.csv: no such file"),
        (("profiles", "export", "t"), "poolpipe.duckdb: no such warehouse"),
        (("profile", "--cluster", "cluster.yaml"), "none has a `runtime"),
        (("quickstart", "--slo-ms", "5"), "--model and --slo-ms go together"),
        (("quickstart", "--planner=none"), "'none' is none of"),
        (("quickstart", "--model=none.onnx", "--slo-ms=5"), "none.onnx: no such file"),
        (("report", "x"), "poolpipe.duckdb: no such warehouse"),
        (("status",), "nothing is being served from here"),
        (("advice",), "nothing is being served from here"),
        (("warehouse", "check"), "poolpipe.duckdb: no such warehouse"),
        (("warehouse", "compact"), "poolpipe.duckdb: no such warehouse"),
        (("load", "--plan", "none.json"), "none.json: no such file"),
        (("serve", "none.json"), "none.json: no such file"),
        (("ui", "--address", "999.9.9.9"), "999.9.9.9' is no IPv4 address to listen on"),
        (("replan", "--cluster", "none.yaml", "--workload", "workload.yaml"), "none.yaml: no such"),
        (("ingest", "--folder", "none"), "none: has no event files; `poolpipe serve` writes them"),
        ((*REPLAN, "--peak", "net=5"), "--peak: needs --backtest, the table to replay"),
        ((*REPLAN, "--map", "f1=net"), "--map: needs --backtest, the table to replay"),
        ((*REPLAN, "--warm-up-hours", "3"), "--warm-up-hours: needs --backtest"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: tuple[str, ...], reason: str, poolpipe: Command
) -> None:
    ran = poolpipe(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert ran.err.count("\n") == 1
    assert not Path("poolpipe.duckdb").exists()
