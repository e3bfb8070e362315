"""Promises of `subclusters` hold: models of unlike SLOs on few GPUs, simulated at equal gaps."""

from dataclasses import replace

import pytest

from scripts.golden.attainment import EVEN
from scripts.golden.problems import Problem
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

OFFERED = SimOptions(arrivals=Deterministic(), duration_s=10.0, keep_uses=False)


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpulets", "open-seats", "percents", "scarce"])
@pytest.mark.parametrize("seed", range(9000, 9006))
def test_every_model_is_in_time_at_the_rates_of_its_plan(family: str, seed: int) -> None:
    made = Problem(name="drawn", family=family, seed=seed).make()
    asked = replace(made.options, planner="subclusters", objective="throughput", own={})
    plan = replace(made, options=replace(asked, slo_margin=float("nan"))).plan()
    assert simulate(plan, OFFERED).least_attainment >= EVEN
