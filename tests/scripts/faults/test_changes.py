"""Plans that take turns as a fault: the same models and answers, other stages, applications that count as others."""

from scripts.benchmarks.applications.plans import faulty_application
from scripts.faults.bench_pauses import paused_plan
from scripts.faults.changes import following
from triton_backend.contract.plan import Plan


def cuts(plan: Plan) -> list[tuple[tuple[int, int], ...]]:
    return [tuple(s.blocks for s in m.pipelines[0].stages) for m in plan.models]


def test_the_next_plan_is_cut_a_block_away_and_the_one_after_it_as_the_first() -> None:
    first = paused_plan("faults", quick=True)
    second, third = (following(first, number) for number in (1, 2))
    assert cuts(first) == [((0, 5), (5, 10)), ((0, 5), (5, 10)), ((0, 10),)]
    assert cuts(second) == [((0, 4), (4, 10)), ((0, 4), (4, 10)), ((0, 10),)]
    assert cuts(third) == cuts(first)
    assert [second.plan_id, third.plan_id] == ["faults-1", "faults-2"]
    assert second.pools == first.pools
    assert [m.inputs for m in second.models] == [m.inputs for m in first.models]


def test_an_application_is_another_one_in_the_next_plan() -> None:
    first = faulty_application()
    second, third = (following(first, number) for number in (1, 2))
    (was,), (other,), (back,) = (p.applications for p in (first, second, third))
    assert other.application.slo_us == was.application.slo_us + 1_000
    assert back == was
    assert second.workload.applications == (other.application,)
