"""Versions of a name are planned, verified and simulated as models of their own."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import cluster, profile
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

RATES = {"net-2025": 60.0, "net-2026": 240.0}
PROFILES = {name: profile(name) for name in RATES}
WORKLOAD = Workload.from_dict(
    {
        "models": [
            {
                "name": "net",
                "slo_ms": 15,
                "rate_rps": sum(RATES.values()),
                "versions": [
                    {"version": 1, "name": "net-2025", "share": 0.2},
                    {"version": 2, "name": "net-2026", "share": 0.8},
                ],
            }
        ]
    }
)


def alone(demand: ModelDemand) -> ModelDemand:
    return replace(demand, size_of=None, version=None)


def test_versions_with_other_tensors_are_refused_before_they_are_planned() -> None:
    tensors = {
        name: (TensorSpec(name="x", dtype="FP32", shape=(-1, size)),)
        for name, size in zip(RATES, (4, 8), strict=True)
    }
    profiles = {
        name: replace(PROFILES[name], inputs=x, outputs=tensors["net-2025"])
        for name, x in tensors.items()
    }
    with pytest.raises(InputError, match=r"'net-2026', version of 'net-2025': shape of input 'x'"):
        make_plan(profiles, cluster(), WORKLOAD)


@pytest.mark.parametrize("planner", ["pool", "subclusters"])
def test_versions_are_planned_as_models_with_rates_of_their_own(planner: str) -> None:
    options = PlanOptions(planner=planner)
    plan = make_plan(PROFILES, cluster(), WORKLOAD, options)
    old, new = (plan.model(name).throughput_rps for name in RATES)
    assert new == pytest.approx(4 * old, rel=1e-3)
    assert verify_plan(plan, PROFILES) == []
    again = Plan.from_dict(plan.to_dict()).workload.versions["net"]
    assert {version: demand.name for version, demand in again.items()} == dict(enumerate(RATES, 1))
    plain = Workload(models=tuple(map(alone, WORKLOAD.models)))
    assert plan.models == make_plan(PROFILES, cluster(), plain, options).models
    result = simulate(plan, SimOptions(load_factor=0.5, duration_s=2.0))
    assert [one.name for one in result.models] == [*RATES]
    assert all(one.offered for one in result.models)
