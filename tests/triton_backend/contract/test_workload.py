"""Workloads."""

from typing import Any

import pytest

from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import ModelDemand, Workload

DEMAND = ModelDemand(name="m", slo_us=50_000, weight=0.3, batch_building_rate_rps=1_300.0)


def test_gathering_a_batch_takes_its_members_time() -> None:
    assert DEMAND.gathering_us(1) == 0
    assert DEMAND.gathering_us(3) == pytest.approx(2_000)
    assert ModelDemand(name="m", slo_us=1).gathering_us(8) == 0


def test_what_throughput_is_divided_by() -> None:
    assert DEMAND.normaliser() == 0.3
    assert ModelDemand(name="m", slo_us=1, rate_rps=7.0).normaliser() == 7.0
    assert ModelDemand(name="m", slo_us=1).normaliser() == 1.0
    assert ModelDemand(name="m", slo_us=1, weight=2.0, rate_rps=7.0).normaliser("cost") == 7.0


def test_the_plain_form_goes_there_and_back() -> None:
    workload = Workload(models=(DEMAND, ModelDemand(name="n", slo_us=1_500, rate_rps=5.0)))
    assert Workload.from_dict(workload.to_dict()) == workload


def test_bad_demands_are_named() -> None:
    with pytest.raises(InputError, match="slo_ms"):
        ModelDemand(name="m", slo_us=0)
    with pytest.raises(InputError, match="weight"):
        ModelDemand(name="m", slo_us=1, weight=-1.0)
    with pytest.raises(InputError, match="names no model"):
        Workload(models=())
    with pytest.raises(InputError, match="listed twice"):
        Workload(models=(DEMAND, DEMAND))


def demand(name: str, **known: Any) -> ModelDemand:
    return ModelDemand(name=name, slo_us=1, **known)


@pytest.mark.parametrize("field", ["weight", "rate_rps"])
def test_numbers_that_a_solver_would_lose_are_named(field: str) -> None:
    for value in (1e-12, 1e12):
        with pytest.raises(InputError, match=f"model 'm', {field}: 1e.12 is not within 1e-06 and"):
            demand("m", **{field: value})
    apart = [demand(n, **{field: v}) for n, v in (("m", 1e-3), ("n", 1e4))]
    with pytest.raises(InputError, match=f"workload, {field}: from 0.001 to 10000, more than 1e"):
        Workload(models=tuple(apart))


ENTRIES = (
    Entry(name="all", block=0, budget_us=20_500, rate_rps=30.0, clients=3),
    Entry(name="tail", block=2, budget_us=9_000, rate_rps=0.1, dtype="fp16"),
)


def test_a_model_with_entries_needs_no_rate_and_is_asked_for_all_of_theirs() -> None:
    workload = Workload(models=(demand("m", entries=ENTRIES),))
    data = workload.to_dict()
    assert data["models"][0]["entries"][0] == {
        "name": "all",
        "block": 0,
        "budget_ms": 20.5,
        "rate_rps": 30.0,
        "clients": 3,
    }
    assert Workload.from_dict(data) == workload
    assert workload.has_entries
    assert workload.models[0].normaliser("share") == workload.models[0].normaliser() == 30.1


def test_entries_of_rate_0_and_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="model 'm', entry all, rate_rps: 0 is not within"):
        demand("m", entries=(Entry(name="all", block=0, budget_us=1, rate_rps=0.0),))
    with pytest.raises(InputError, match="a name is listed twice"):
        demand("m", entries=(ENTRIES[0], ENTRIES[0]))
