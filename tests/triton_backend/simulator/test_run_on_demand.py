"""Stages that are loaded on demand: a run is reckoned with a load, and is shorter without one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.on_demand import MIB, load_us, on_demand_plan
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.residency import ABSENT, admit
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.world import DROPPED, SERVED

RUN_US = 5_000
SIZE = 100  # MiB; its load takes 24,415 µs


def simulated(plan: Plan, asked: Sequence[tuple[int, int]], **options: Any) -> SimResult:
    """A run in which models are asked for at instants (µs)."""
    at = {
        model.name: np.asarray([at for at, number in asked if number == place], dtype=np.int64)
        for place, model in enumerate(plan.models)
    }
    return simulate(plan, SimOptions(arrivals=Instant(by_model=at), duration_s=10.0, **options))


def spans(result: SimResult) -> list[int]:
    return (result.uses["end_us"] - result.uses["start_us"]).tolist()


def test_a_model_that_is_there_runs_without_its_load() -> None:
    plan = on_demand_plan([SIZE] * 3, 2 * SIZE)
    order = [0, 1, 0, 2, 1]
    result = simulated(plan, [(100_000 * at, model) for at, model in enumerate(order)])
    loaded = load_us(SIZE) + RUN_US
    assert spans(result) == [loaded, loaded, RUN_US, loaded, loaded]
    assert result.pools["gpu-0.0.0"].loads == 4
    assert result.pools["gpu-0.0.0"].to_dict()["loads"] == 4


def test_pinned_models_of_the_pool_are_never_loaded() -> None:
    plan = on_demand_plan([SIZE] * 3, SIZE, pinned=(0,))
    result = simulated(plan, [(100_000 * at, at % 3) for at in range(6)])
    loaded = load_us(SIZE) + RUN_US
    assert spans(result) == [RUN_US, loaded, loaded] * 2


def test_a_lost_worker_has_nothing_loaded_when_it_is_back() -> None:
    plan = on_demand_plan([SIZE], SIZE)
    away = Failure(vgpu=0, start_s=0.15, end_s=0.16)
    result = simulated(plan, [(100_000 * at, 0) for at in range(3)], failures=(away,))
    loaded = load_us(SIZE) + RUN_US
    assert spans(result) == [loaded, RUN_US, loaded]


def test_a_change_of_plan_begins_with_nothing_loaded() -> None:
    plan = on_demand_plan([SIZE], SIZE)
    change = PlanChange(at_s=0.15, plan=replace(plan, plan_id="next"))
    result = simulated(plan, [(100_000 * at, 0) for at in range(3)], changes=(change,))
    loaded = load_us(SIZE) + RUN_US
    assert spans(result) == [loaded, RUN_US, loaded]


def test_a_request_that_a_load_would_make_late_is_refused_at_once() -> None:
    plan = on_demand_plan([SIZE] * 2, SIZE, slo_us=load_us(SIZE) + RUN_US - 1)
    result = simulated(plan, [(0, 0)])
    assert result.requests["outcome"].tolist() == [DROPPED]
    assert result.requests["finish_us"].tolist() == [0]


def test_plans_that_pin_all_models_count_no_loads() -> None:
    plan = on_demand_plan([SIZE] * 2, 0, pinned=(0, 1))
    result = simulated(plan, [(0, 0)])
    assert result.pools["gpu-0.0.0"].loads is None
    assert "loads" not in result.pools["gpu-0.0.0"].to_dict()


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_nothing_is_late_or_lost_and_memory_holds_what_is_there(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(10, 120), min_size=2, max_size=5))
    room = data.draw(st.integers(max(sizes), sum(sizes)))
    vgpus = data.draw(st.integers(1, 2))
    slo_us = load_us(max(sizes)) * data.draw(st.integers(1, 4)) + 2 * RUN_US
    plan = on_demand_plan(sizes, room, slo_us=slo_us, vgpus=vgpus)
    gaps = data.draw(st.lists(st.integers(0, 60_000), min_size=1, max_size=40))
    models = [data.draw(st.integers(0, len(sizes) - 1)) for _ in gaps]
    at = np.cumsum(gaps).tolist()
    result = simulated(plan, list(zip(at, models, strict=True)))
    requests = result.requests
    assert np.isin(requests["outcome"], (SERVED, DROPPED)).all()  # answered in time, or refused
    # Refused only where a load and a run from then on would have been late.
    for one in requests[requests["outcome"] == DROPPED]:
        takes = load_us(sizes[one["model"]]) + RUN_US
        assert one["finish_us"] + takes > one["deadline_us"]
    # Every vGPU in the order of its runs: a load where the stage was evicted or never there.
    for vgpu in range(vgpus):
        used = [ABSENT] * len(sizes)
        runs = result.uses[result.uses["vgpu"] == vgpu]
        for run in runs[np.argsort(runs["start_us"])]:
            absent = admit(used, [size * MIB for size in sizes], room * MIB, int(run["model"]))
            there = [size for size, last in zip(sizes, used, strict=True) if last != ABSENT]
            assert sum(there) <= room
            took = int(run["end_us"] - run["start_us"])
            expected = [RUN_US, 6_000][int(run["samples"]) - 1]
            assert took == expected + absent * load_us(sizes[int(run["model"])])
