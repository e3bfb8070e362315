"""The policy `triton`: sizes, delays and instances of the dynamic batcher, by hand."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.triton_backend.simulator.papers import plain_triton
from tests.triton_backend.simulator.papers.whole_runs import Use, one_pool, outcomes, run, uses
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import Integers, Records
from triton_backend.simulator.cluster.workers import ONE
from triton_backend.simulator.offered import Instant, Offer, offered_requests
from triton_backend.simulator.papers.triton import simulate
from triton_backend.simulator.scenario import SimOptions

TABLE = (10, 12, 14, 16)


def test_without_a_delay_a_free_instance_takes_what_there_is() -> None:
    # Of the three that wait at 10 the preferred two go first, then the one that is left.
    result = run(one_pool([TABLE], [90], planned=[2]), "triton", [0, 1, 2, 3])
    assert uses(result) == [Use(0, 0, 1, 0, 10), Use(0, 0, 2, 10, 22), Use(0, 0, 1, 22, 32)]


def test_the_largest_preferred_size_goes_first() -> None:
    result = run(one_pool([TABLE], [90], planned=[2]), "triton", [0, 1, 2, 3, 4, 5])
    assert uses(result)[1] == Use(0, 0, 4, 10, 26)


def test_a_batch_waits_for_the_delay_of_its_oldest() -> None:
    result = run(one_pool([TABLE], [90]), "triton", [0, 5], batch_timeout_ms=0.02)
    assert uses(result) == [Use(0, 0, 2, 20, 32)]


def test_a_preferred_size_ends_the_wait() -> None:
    plan = one_pool([TABLE], [90], planned=[2])
    result = run(plan, "triton", [0, 5, 6], batch_timeout_share=0.5)
    assert uses(result) == [Use(0, 0, 2, 5, 17), Use(0, 0, 1, 51, 61)]


def test_deadlines_change_nothing_but_who_waits_past_his_own_is_rejected() -> None:
    # 1 ends at 20, 3 late; 2 would have headed a batch at 20, when its 18 µs are over.
    result = run(one_pool([(10,)], [18]), "triton", [0, 1, 1, 3])
    assert uses(result) == [Use(0, 0, 1, 0, 10), Use(0, 0, 1, 10, 20), Use(0, 0, 1, 20, 30)]
    assert outcomes(result) == ["served", "late", "dropped", "late"]


def test_of_two_models_the_one_whose_oldest_came_first_goes() -> None:
    result = run(one_pool([(10,), (7,)], [90, 90]), "triton", [0, 2], [1])
    assert [use.model for use in uses(result)] == [0, 1, 0]


def test_every_vgpu_is_an_instance_the_lowest_number_first() -> None:
    result = run(one_pool([(10,)], [90], vgpus=2), "triton", [0, 1, 2])
    assert uses(result) == [Use(0, 0, 1, 0, 10), Use(1, 0, 1, 1, 11), Use(0, 0, 1, 10, 20)]


@pytest.mark.parametrize("seed", range(12))
def test_the_compiled_rules_are_the_plain_ones(seed: int) -> None:
    # Requests of several samples, models in turns, delays, run times that vary, one overload.
    rng = np.random.default_rng(seed)
    models = int(rng.integers(1, 4))
    sizes = rng.integers(1, 6, size=models).tolist()
    tables = [np.sort(rng.integers(5, 60, size=size)).tolist() for size in sizes]
    slos_us = rng.integers(40, 200, size=models).tolist()
    planned = [int(rng.integers(1, len(table) + 1)) for table in tables]
    plan = one_pool(tables, slos_us, vgpus=int(rng.integers(1, 4)), planned=planned)
    options = SimOptions(
        policy="triton",
        batch_timeout_share=float(rng.choice([0.0, 0.1, 0.5])),
        latency_noise_cv=float(rng.choice([0.0, 0.3])),
        seed=seed,
    )
    times = [np.sort(rng.integers(0, 4_000, size=300)) for _ in range(models)]
    requests = offered(plan, times, rng)
    factors = rng.integers(ONE // 2, 2 * ONE, size=7)
    kept = requests.copy(), requests.copy()
    compiled = simulate(plan, options, kept[0], factors, None)
    read = plain_triton.simulate(plan, options, kept[1], factors, None)
    assert compiled.requests.tolist() == read.requests.tolist()
    assert compiled.uses.tolist() == read.uses.tolist()
    assert compiled.steps == read.steps
    assert 0 < sum(outcome == "served" for outcome in outcomes(compiled)) < len(requests)


def offered(plan: Plan, times: Sequence[Integers], rng: np.random.Generator) -> Records:
    """Requests of one or two samples by arrival."""
    arrivals = {f"m{number}": own for number, own in enumerate(times)}
    offer = Offer(
        arrivals=Instant(by_model=arrivals), rates_rps={}, low_rates_rps={}, duration_us=1, seed=0
    )
    requests = offered_requests(plan, offer)
    requests["samples"] = rng.integers(1, 3, size=len(requests))
    return requests
