"""`simulate --epoch`: advice after every epoch, followed where that is asked for."""

from pathlib import Path

import pytest

from tests.flows.cli.conftest import PLAN, Command

SIMULATE = ("simulate", "--plan", "plan.json", "--load-factor", "0.3", "--duration", "2.5")


@pytest.fixture(autouse=True)
def shared(profiled: Path, poolpipe: Command) -> None:
    """A plan of sub-clusters on the four slow GPUs."""
    del profiled
    planner = ("--planner", "subclusters", "--exclude", "*=fast")
    assert poolpipe(*PLAN, *planner, "-o", "plan.json").code == 0


def test_epochs_are_told_and_pools_follow_their_advice(poolpipe: Command) -> None:
    told = poolpipe(*SIMULATE, "--policy", "deferred", "--epoch", "1", "--json").document
    assert [epoch["end_s"] for epoch in told["epochs"]] == [1.0, 2.0, 2.5]
    assert {p["vgpus"] for epoch in told["epochs"] for p in epoch["pools"].values()} == {4}
    assert told["gpu_hours"] == pytest.approx(4 * 2.5 / 3600)
    first = told["epochs"][0]["pools"]["slow-0"]
    assert first["advice_gpus"] == -int(4 * first["idle_fraction"])
    followed = (*SIMULATE, "--policy", "deferred", "--epoch", "1", "--autoscale")
    document = poolpipe(*followed, "--json").document
    assert document["epochs"][1]["pools"]["slow-0"]["vgpus"] < 4
    assert document["gpu_hours"] < told["gpu_hours"]
    assert "GPU-hours" in poolpipe(*followed).out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--autoscale",), "--autoscale: needs --epoch"),
        (("--epoch", "1", "--find-goodput", "0.9"), "--find-goodput: does not go with --epoch"),
        (("--epoch", "1", "--fail", "vgpu:0@1-2"), "know no failures"),
    ],
)
def test_what_does_not_go_together_is_said(
    poolpipe: Command, arguments: tuple[str, ...], reason: str
) -> None:
    ran = poolpipe(*SIMULATE, *arguments)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert reason in ran.err
