from dataclasses import replace

import pytest

from flows.planning import PlanOptions, sweep
from flows.planning.sweep import Situation, what_if
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.workload import ModelDemand, Workload

DEMAND = ModelDemand(name="net", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)
SITUATION = Situation(
    profiles={"net": profile()},
    cluster=cluster(),
    workload=workload(DEMAND),
    options=PlanOptions(),
)


def curve(vary: str, *values: float) -> list[float | None]:
    """Objectives for the values."""
    return [point.objective for point in what_if(SITUATION, vary, values)]


@pytest.mark.parametrize(
    ("vary", "values"),
    [
        ("gpus", (0.5, 1, 2)),
        ("gpus:slow", (0, 4, 40)),
        ("ratio", (0.0, 0.5, 1.0)),
        ("slo-scale", (2, 5, 10)),
        ("slo", (1, 2, 4)),
        ("bandwidth", (1e-5, 1, 10)),
        ("classes", (1, 2)),
    ],
)
def test_more_of_a_good_thing_is_never_worse(vary: str, values: tuple[float, ...]) -> None:
    known = [value or 0.0 for value in curve(vary, *values)]
    assert known == sorted(known)
    assert known[-1] > known[0]


def test_a_larger_margin_is_never_better() -> None:
    known = [value or 0.0 for value in curve("margin", 0.0, 0.4, 0.7)]
    assert known == sorted(known, reverse=True)


@pytest.mark.parametrize(
    ("vary", "budgets_us"), [("slo", (24_000, 8_000)), ("slo-scale", (6_000, 2_000))]
)
def test_budgets_of_entries_go_with_the_slo(
    monkeypatch: pytest.MonkeyPatch, vary: str, budgets_us: tuple[int, ...]
) -> None:
    whole = Entry(name="whole", block=0, budget_us=12_000, rate_rps=1.0)
    tails = Entry(name="tails", block=2, budget_us=4_000, rate_rps=1.0)
    asked = workload(ModelDemand(name="net", slo_us=12_000, entries=(whole, tails)))
    planned: list[Workload] = []

    def note(
        _profiles: object, _cluster: object, asked: Workload, *_: object, **__: object
    ) -> None:
        planned.append(asked)
        raise InfeasibleError("net", "seen")

    monkeypatch.setattr(sweep, "make_plan", note)
    what_if(replace(SITUATION, workload=asked), vary, [2.0])
    assert [e.budget_us for e in planned[0].models[0].entries] == list(budgets_us)


def test_a_value_without_a_plan_says_why() -> None:
    (point,) = what_if(SITUATION, "slo-scale", [1.0])
    assert point.objective is None
    assert "no pipeline" in str(point.reason)


@pytest.mark.parametrize(
    ("vary", "value"), [("weather", 1.0), ("gpus:fast", 1.5), ("classes", 3), ("gpus:none", 1)]
)
def test_what_cannot_be_varied_is_refused(vary: str, value: float) -> None:
    with pytest.raises(InputError):
        what_if(SITUATION, vary, [value])


@pytest.mark.parametrize(
    ("vary", "value", "reason"),
    [
        ("gpus", 1e308, "1e+308 is not within 1e-06 and 1e+06"),
        ("gpus:fast", 1e300, "1e+300 is not within 0 and 1e+07"),
        ("gpus:fast", 1.5, "1.5 is not a whole number"),
        ("slo", 1e308, "1e+308 is not within 1e-06 and 1e+06"),
        ("slo-scale", 1e308, "1e+308 is not within 1e-06 and 1e+06"),
        ("bandwidth", 0.0, "0 is not within 1e-06 and 1e+06"),
    ],
)
def test_a_value_beyond_its_range_is_refused_with_the_range(
    vary: str, value: float, reason: str
) -> None:
    with pytest.raises(InputError) as refused:
        what_if(SITUATION, vary, [value])
    assert str(refused.value) == f"option vary: {vary.partition(':')[0]}: {reason}"


@pytest.mark.parametrize(("vary", "values"), [("gpus:fast", [1.0, 1.5]), ("margin", [0.1, 2.0])])
def test_all_values_are_checked_before_one_is_planned(
    monkeypatch: pytest.MonkeyPatch, vary: str, values: list[float]
) -> None:
    planned: list[object] = []

    def plan(*asked: object, **_: object) -> None:
        planned.append(asked)
        raise InfeasibleError("net", "seen")

    monkeypatch.setattr(sweep, "make_plan", plan)
    with pytest.raises(InputError, match="is not"):
        what_if(SITUATION, vary, values)
    assert planned == []
