"""How many models find a place at all: against every choice of one pipeline per model."""

from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.pool.at_prices.blocks import placeable
from flows.planning.pool.columns import enumerate_columns
from flows.planning.pool.integer import gpus_in_use
from tests.flows.planning.brute import Config, configurations
from tests.flows.planning.pool.test_plan_brute_force import problems
from tests.flows.planning.small import cluster, problem_of, profile
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand, Workload

OPTIONS = PlanOptions(slo_margin=0.0)


def gpus_of(config: Config) -> dict[str, int]:
    """Whole GPUs per class of a pipeline with one vGPU per stage."""
    vgpus: dict[tuple[str, int], int] = {}
    for kind, _ in config:
        vgpus[kind] = vgpus.get(kind, 0) + 1
    used: dict[str, int] = {}
    for (name, divisor), count in vgpus.items():
        used[name] = used.get(name, 0) + ceil(count / divisor)
    return used


def most_placed(
    profiles: dict[str, ModelProfile], tiny: Cluster, workload: Workload, stages: int
) -> int:
    """The most models that run a pipeline each at once, by trying every choice."""
    ways = [
        {
            tuple(sorted(gpus_of(config).items()))
            for config in configurations(profiles[m.name], m, tiny, stages, 0.0)
        }
        for m in workload.models
    ]
    best = 0
    for choice in product(*([None, *own] for own in ways)):
        taken = [dict(way) for way in choice if way is not None]
        if all(
            sum(way.get(c.name, 0) for way in taken) <= tiny.gpus(c.name) for c in tiny.gpu_classes
        ):
            best = max(best, len(taken))
    return best


@pytest.mark.long
@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(problem=problems(), copies=st.integers(1, 3), stages=st.integers(1, 2))
def test_as_many_models_are_placed_as_by_trying_everything(
    problem: tuple[dict[str, ModelProfile], Cluster, Workload], copies: int, stages: int
) -> None:
    profiles, tiny, workload = problem
    several = Workload(
        models=tuple(
            ModelDemand(
                name=f"{m.name}{copy}", slo_us=m.slo_us, weight=m.weight,
                batch_building_rate_rps=m.batch_building_rate_rps,
            )
            for copy in range(copies)
            for m in workload.models
        )
    )  # fmt: skip
    named = {
        m.name: ModelProfile(
            name=m.name,
            boundary_bytes=profiles[m.name[:-1]].boundary_bytes,
            tables=profiles[m.name[:-1]].tables,
        )
        for m in several.models
    }
    arrays = problem_of(named, tiny, several, OPTIONS)
    try:
        columns = enumerate_columns(arrays, stages)
    except InfeasibleError:
        return
    vgpus, out, proven = placeable(arrays, columns)
    assert proven
    assert np.all(gpus_in_use(arrays, columns, vgpus) <= arrays.gpus)
    placed = set(columns.model[vgpus.any(axis=1)].tolist())
    assert placed.isdisjoint(out)
    assert len(placed) + len(out) == len(several.models)
    assert len(placed) == most_placed(named, tiny, several, stages)


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize("rate", [None, 1e9])
def test_models_without_a_place_are_named(count: int, rate: float | None) -> None:
    """Every model needs a fast GPU of its own.

    Whole models alone, and of one class, meet the SLO.
    """
    names = [f"m{number}" for number in range(count)]
    demands = (
        ModelDemand(name=n, slo_us=6_000, weight=1.0, batch_building_rate_rps=rate) for n in names
    )
    profiles = {name: profile(name) for name in names}
    with pytest.raises(InfeasibleError) as raised:
        make_plan(profiles, cluster(2, 4), Workload(models=tuple(demands)), PlanOptions())
    text = str(raised.value)
    assert "\n" not in text
    assert "2 can be placed" in text
    assert sum(name in text.replace(",", "").split() for name in names) == count - 2
