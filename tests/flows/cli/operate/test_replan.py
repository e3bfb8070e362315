from pathlib import Path

import pytest

from flows.cli.operate.replan import Backtest
from flows.deployments import replan
from flows.deployments.orchestration import home, server
from flows.release.rollout.guarded import DONE, ROLLED_BACK
from tests.flows.cli.conftest import Command, giving
from triton_backend.contract.errors import InputError


@pytest.mark.usefixtures("profiled")
@pytest.mark.slow
def test_replanning_is_tried_on_a_table_of_counts(poolpipe: Command) -> None:
    minutes = [30 + 20 * (minute // 30 % 2) for minute in range(180)]
    rows = "".join(f"{minute},{count}\n" for minute, count in enumerate(minutes))
    Path("counts.csv").write_text("minute,f1\n" + rows)
    ran = poolpipe(
        "replan", "--cluster", "cluster.yaml", "--workload", "workload.yaml", "--json",
        "--backtest", "counts.csv", "--map", "f1=net", "--warm-up-hours", "1",
        "--period-hours", "1", "--chart", "chart.png",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert (ran.document["periods"], ran.document["models"]) == (2, ["net"])
    assert 0 < ran.document["served_fraction"] <= 1
    assert Path("chart.png").stat().st_size > 1000
    refused = poolpipe(
        "replan", "--cluster", "cluster.yaml", "--workload", "workload.yaml",
        "--backtest", "counts.csv",
    )  # fmt: skip
    assert refused.code == 2
    assert "no column 'net'; it has f1" in refused.err
    for option, value, reason in (
        ("--peak", "moon=5", "'moon' is not in the workload; it has net"),
        ("--map", "f1=moon", "'moon' is not in the workload; it has net"),
        ("--chart", "chart.moon", "cannot be drawn: its type is none of"),
    ):
        refused = poolpipe(
            "replan", "--cluster", "cluster.yaml", "--workload", "workload.yaml",
            "--backtest", "counts.csv", option, value,
        )  # fmt: skip
        assert refused.code == 2
        assert reason in refused.err


def test_columns_of_one_model_are_all_replayed() -> None:
    replayed = Backtest(backtest=Path("counts.csv"), trace_names=["f=a", "g=b", "h=a"])
    found = replayed.asked(Path("counts.csv"), {}, {})
    assert found.series == {"a": ("f", "h"), "b": ("g",)}


@pytest.mark.parametrize("interval", [0.4, 1.5])
def test_a_replay_takes_intervals_of_whole_seconds(interval: float) -> None:
    with pytest.raises(InputError, match=f"--trace-interval: {interval} is no whole number"):
        Backtest(backtest=Path("counts.csv"), trace_interval=interval)


@pytest.mark.long
@pytest.mark.parametrize(("outcome", "code"), [(DONE, 0), (ROLLED_BACK, 1), ("kept", 0)])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_plan_that_was_taken_back_is_no_success(
    poolpipe: Command,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    code: int,
    form: tuple[str, ...],
) -> None:
    found = {
        "plan_id": "new",
        "roll_out": outcome != "kept",
        "reason": "serves +10.0% more in time",
        "outcome": outcome,
        "forecast_rps": {"net": 1.0},
        "share_shift": 0.0,
    }
    monkeypatch.setattr(home, "prepare_prefect", giving(None))
    monkeypatch.setattr(server, "start_prefect_server", giving(None))
    monkeypatch.setattr(replan, "replan_flow", giving(found))
    files = ("--cluster", "cluster.yaml", "--workload", "workload.yaml")
    ran = poolpipe("replan", *files, *form)
    assert (ran.code, outcome in ran.out) == (code, True)
