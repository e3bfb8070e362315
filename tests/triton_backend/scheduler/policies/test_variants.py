"""Which variant takes a request: the most accurate for which there is time, evenly spread."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.plans import Own, make_plan
from tests.fakes.variants import CHEAP, NAME, plain_plan, variant_plan, variant_workload, with_rates
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.policies.variants import choose, new_variants, with_lost

SETTLED = 30_000  # requests after which a mean gap is that of the rate


def taken(rows: np.ndarray, rate_rps: float, start_us: int = 0, samples: int = 1) -> list[int]:
    """Queues that take evenly spaced requests for the first name."""
    gap_us = 1e6 / rate_rps
    return [
        choose(rows, 0, samples, start_us + round(number * gap_us), False)  # noqa: FBT003
        for number in range(1, 2 * SETTLED)
    ]


def shares(rows: np.ndarray, rate_rps: float, samples: int = 1) -> dict[int, float]:
    """Of requests by queue, once the rate is known."""
    counts = Counter(taken(rows, rate_rps, samples=samples)[SETTLED:])
    return {queue: count / counts.total() for queue, count in sorted(counts.items())}


def planned_rps(plan: Plan) -> float:
    return plan.own_rate_rps(NAME)


def test_a_name_of_one_model_has_no_rows() -> None:
    assert not len(new_variants(plain_plan()))


@pytest.mark.parametrize(
    ("load", "accurate"), [(0.5, 1.0), (0.99, 1.0), (1.25, 0.6), (1.6, 0.25), (2.01, 0.0), (9, 0.0)]
)
def test_the_accurate_one_takes_what_the_time_allows(load: float, accurate: float) -> None:
    """With half the cost: r (f a + (1 - f) a / 2) = T gives f = 2 / load - 1."""
    plan = variant_plan()
    found = shares(new_variants(plan), load * planned_rps(plan))
    assert found.get(0, 0.0) == pytest.approx(accurate, abs=0.02)


def test_requests_of_several_samples_count_as_many() -> None:
    plan = variant_plan()
    found = shares(new_variants(plan), 1.25 * planned_rps(plan) / 4, samples=4)
    assert found[0] == pytest.approx(0.6, abs=0.02)


def test_shares_are_spread_evenly() -> None:
    plan = variant_plan()
    rows = taken(new_variants(plan), 4 / 3 * planned_rps(plan))[SETTLED:]
    assert {sum(rows[at : at + 20]) for at in range(0, len(rows) - 20, 20)} <= {9, 10, 11}


def test_requests_come_back_to_the_accurate_one_when_load_falls() -> None:
    plan = variant_plan()
    rows, rate_rps = new_variants(plan), planned_rps(plan)
    assert set(taken(rows, 3 * rate_rps)[SETTLED:]) == {1}
    later_us = round(1e6 * 2 * SETTLED / (3 * rate_rps))
    assert set(taken(rows, 0.9 * rate_rps, start_us=later_us)[SETTLED:]) == {0}


def test_of_three_only_neighbours_share() -> None:
    plan = variant_plan(half=0.5, quarter=0.25)
    rows, rate_rps = new_variants(plan), planned_rps(plan)
    assert shares(rows, 1.25 * rate_rps) == pytest.approx({0: 0.6, 1: 0.4}, abs=0.02)
    between = shares(new_variants(plan), 2.5 * rate_rps)
    assert between == pytest.approx({1: 0.6, 2: 0.4}, abs=0.02)
    assert set(shares(new_variants(plan), 5 * rate_rps)) == {2}


def test_the_most_accurate_is_first_whatever_the_order() -> None:
    plan = variant_plan()
    small, large = plan.workload.models[1], plan.workload.models[0]
    swapped = (replace(large, accuracy=0.6), replace(small, accuracy=0.9))
    plan = replace(plan, workload=replace(plan.workload, models=swapped))
    # the variant is cheaper and more accurate: the model of the name takes nothing
    assert shares(new_variants(plan), 2 * planned_rps(plan)) == {1: 1.0}
    dearer = variant_plan(slower=2.0)
    models = (dearer.workload.models[0], replace(dearer.workload.models[1], accuracy=0.9))
    dearer = replace(dearer, workload=replace(dearer.workload, models=models))
    found = shares(new_variants(dearer), 0.75 * planned_rps(dearer))
    assert found == pytest.approx({0: 2 / 3, 1: 1 / 3}, abs=0.02)


def test_one_that_is_less_accurate_and_no_cheaper_takes_nothing() -> None:
    plan = variant_plan(same=1.0, half=0.5)
    assert set(shares(new_variants(plan), 1.3 * planned_rps(plan))) == {0, 2}


def test_low_requests_go_to_the_cheapest_and_count_nothing() -> None:
    rows = new_variants(variant_plan())
    before = rows.copy()
    assert choose(rows, 0, 1, 1_000, True) == 1  # noqa: FBT003
    assert (rows == before).all()


def test_variants_on_gpus_of_their_own_fill_up_in_the_order_of_accuracy() -> None:
    own = [[Own(latency_us=(10_000,), gpus=2)]]
    cheap = [[Own(latency_us=(5_000,), gpus=1)]]
    plan = make_plan(own, cheap, names=(NAME, CHEAP))
    plan = replace(plan, workload=variant_workload())
    rows = new_variants(plan)
    assert shares(rows, 190) == {0: 1.0}
    assert shares(new_variants(plan), 400) == pytest.approx({0: 0.5, 1: 0.5}, abs=0.01)
    assert shares(new_variants(plan), 800) == pytest.approx({0: 0.25, 1: 0.75}, abs=0.01)


def test_gateways_share_the_requests_of_a_name() -> None:
    plan = variant_plan()
    found = shares(new_variants(plan, gateways=2), 1.25 * planned_rps(plan) / 2)
    assert found[0] == pytest.approx(0.6, abs=0.02)


def test_a_plan_of_shares_keeps_them_at_its_rate() -> None:
    plan = variant_plan()
    whole = planned_rps(plan)
    mixed = with_rates(plan, 0.5 * whole, whole)
    found = shares(new_variants(mixed), 1.5 * whole)
    assert found == pytest.approx({0: 1 / 3, 1: 2 / 3}, abs=0.02)


@pytest.mark.long
@pytest.mark.parametrize("part", [0.1, 0.5])
def test_time_that_is_not_planned_serves_the_accurate_one_too(part: float) -> None:
    plan = variant_plan()
    whole = planned_rps(plan)
    little = with_rates(plan, part * whole, 0.0)
    assert shares(new_variants(little), 0.95 * whole) == {0: 1.0}
    beyond = shares(new_variants(little), 1.25 * whole)
    assert beyond == pytest.approx({0: 0.58, 1: 0.42}, abs=0.03)


@pytest.mark.long
def test_free_time_is_dealt_out_by_planned_time() -> None:
    """Where another model of the pool is planned for as much time, a name has half of the pool."""
    plan = variant_plan(half=0.5, other=0.25)
    whole = planned_rps(plan)
    *own, other = plan.workload.models
    apart = replace(other, size_of=None, accuracy=None, weight=1.0)
    plan = replace(plan, workload=replace(plan.workload, models=(*own, apart)))
    alone = with_rates(plan, 0.2 * whole, 0.0, 0.0)
    shared = with_rates(plan, 0.2 * whole, 0.0, 4 * 0.2 * whole)
    assert shares(new_variants(alone), 0.95 * whole) == {0: 1.0}
    assert shares(new_variants(shared), 0.47 * whole) == {0: 1.0}
    beyond = shares(new_variants(shared), 0.62 * whole)
    assert beyond == pytest.approx({0: 0.58, 1: 0.42}, abs=0.03)


def test_what_is_lost_of_a_pool_is_lost_to_its_names() -> None:
    plan = variant_plan()
    pool, rate_rps = plan.pools[0].name, planned_rps(plan)

    def found(load: float) -> dict[int, float]:
        return shares(new_variants(plan, lost={pool: 2}), load * rate_rps)

    assert found(0.49) == {0: 1.0}
    assert found(0.625)[0] == pytest.approx(0.6, abs=0.02)
    assert found(1.02) == {1: 1.0}


def test_losses_and_returns_keep_what_was_measured() -> None:
    plan = variant_plan()
    rows, rate_rps = new_variants(plan), planned_rps(plan)
    assert set(taken(rows, 0.95 * rate_rps)[SETTLED:]) == {0}
    now_us = round(1e6 * 2 * SETTLED / (0.95 * rate_rps))
    less = with_lost(rows, plan, lost={plan.pools[0].name: 2})
    assert choose(less, 0, 1, now_us, False) == 1  # noqa: FBT003
    back = with_lost(less, plan)
    assert [choose(back, 0, 1, now_us + 300 * n, False) for n in range(1, 9)] == [0] * 8  # noqa: FBT003


def test_requests_pass_over_a_variant_whose_own_pool_is_lost() -> None:
    plans = [[[Own(latency_us=(us,))]] for us in (10_000, 5_000)]
    plan = replace(make_plan(*plans, names=(NAME, CHEAP)), workload=variant_workload())
    first, second = (pool.name for pool in plan.pools)
    assert set(shares(new_variants(plan, lost={first: 1}), 50)) == {1}
    assert set(shares(new_variants(plan, lost={second: 1}), 900)) == {0}
    assert set(shares(new_variants(plan, lost={first: 1, second: 1}), 50)) == {0}


def test_queues_of_other_models_stay_as_they_are() -> None:
    plan = variant_plan()
    rows = new_variants(plan)
    assert rows[1]["first"] == NONE
    assert choose(rows, 1, 1, 5, False) == 1  # noqa: FBT003
