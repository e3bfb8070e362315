"""Quotas keep a client to its rate and its burst, never below, and to no other client's."""

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.plans import Own, make_plan
from triton_backend.contract.units import US_PER_S
from triton_backend.serving.front.quotas import BURST_REQUESTS, BURST_US, Bucket, Quotas
from triton_backend.simulator.run import Stepwise
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import REQUEST_RECORD, SERVED

RATES_MRPS = st.one_of(st.integers(1, 10_000), st.integers(1, 10**9))
GAPS_US = st.lists(
    st.one_of(st.just(0), st.integers(0, 2_000), st.integers(0, 10**8)), min_size=1, max_size=60
)
START_US = 10**12


def burst_of(rate_rps: Fraction) -> Fraction:
    return max(Fraction(BURST_REQUESTS), rate_rps * BURST_US / US_PER_S)


def passed(buckets: list[Bucket], asks: list[tuple[int, int]]) -> list[int]:
    """Instants at which a bucket, named by its number, let a request pass."""
    return [at_us for at_us, number in asks if buckets[number].take(at_us)]


@given(
    rate_mrps=RATES_MRPS, gaps_us=GAPS_US, parts=st.integers(1, 2), turns=st.integers(0, 2**60 - 1)
)
def test_in_no_time_do_more_pass_than_rate_and_burst_allow(
    rate_mrps: int, gaps_us: list[int], parts: int, turns: int
) -> None:
    rate_rps = Fraction(rate_mrps, 1000)
    buckets = [Bucket(rate_mrps / 1000, START_US, parts) for _ in range(parts)]
    asks = [
        (START_US + after_us, (turns >> n) % parts)
        for n, after_us in enumerate(accumulate(gaps_us))
    ]
    # Many at a time, so that bursts end.
    asks = [ask for ask in asks for _ in range(BURST_REQUESTS)]
    instants = passed(buckets, asks)
    for first in range(0, len(instants), 7):
        for last in range(first, len(instants), 5):
            took = Fraction(instants[last] - instants[first], US_PER_S)
            assert last - first + 1 <= rate_rps * took + burst_of(rate_rps)


@given(rate_mrps=RATES_MRPS, parts=st.integers(1, 2))
def test_requests_that_come_evenly_at_the_rate_all_pass(rate_mrps: int, parts: int) -> None:
    bucket = Bucket(rate_mrps / 1000, START_US, parts)
    while bucket.take(START_US):
        pass
    apart_us = -(-1000 * US_PER_S * parts // rate_mrps)
    evenly = [START_US + apart_us * n for n in range(1, 50)]
    assert all(bucket.take(at_us) for at_us in evenly)


@given(rate_mrps=RATES_MRPS, gaps_us=GAPS_US)
def test_it_decides_as_exact_arithmetic_does(rate_mrps: int, gaps_us: list[int]) -> None:
    rate_rps = Fraction(rate_mrps, 1000)
    bucket, level = Bucket(rate_mrps / 1000, START_US), burst_of(rate_rps)
    at_us = START_US
    for gap_us in gaps_us:
        at_us += gap_us
        level = min(burst_of(rate_rps), level + rate_rps * gap_us / US_PER_S)
        for _ in range(3):
            may = level >= 1
            assert bucket.take(at_us) == may
            level -= may


def test_a_rest_allows_one_burst_and_no_more() -> None:
    for rate_rps, burst in ((10.0, BURST_REQUESTS), (1000.0, 1000 * BURST_US // US_PER_S)):
        bucket = Bucket(rate_rps, 0)
        for at_us in (0, 3_600 * US_PER_S):
            assert [bucket.take(at_us) for _ in range(1000)].count(True) == burst


def test_time_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(1.0, US_PER_S)
    while bucket.take(US_PER_S):
        pass
    assert not bucket.take(0)
    assert not bucket.take(US_PER_S)
    assert bucket.take(2 * US_PER_S)


@pytest.mark.parametrize(("refuses", "taken"), [(False, 0), (True, BURST_REQUESTS)])
def test_low_requests_take_tokens_only_where_others_are_refused(refuses: bool, taken: int) -> None:
    quotas = Quotas({"shop": 1.0}, refuses=refuses, now_us=0)
    for _ in range(BURST_REQUESTS):
        assert not quotas.is_over("shop", 0, low=True)
    over = [quotas.is_over("shop", 0, low=False) for _ in range(BURST_REQUESTS)]
    assert over.count(True) == taken
    assert quotas.over == {"shop": taken}


def test_a_client_without_a_quota_has_no_limit_and_uses_no_other_ones() -> None:
    quotas = Quotas({"shop": 1.0, "lab": 1.0}, refuses=True, now_us=0)
    for client in ("", "new", "shop"):
        over = [quotas.is_over(client, 0, low=False) for _ in range(100)]
        assert any(over) == (client == "shop")
    assert not quotas.is_over("lab", 0, low=False)
    assert quotas.over == {"shop": 100 - BURST_REQUESTS, "lab": 0}


def served_beside(quota_rps: float) -> tuple[float, float]:
    """Parts of two clients' requests in time: of one within its rate, and of one far beyond.

    The second part is of requests within the quota.
    """
    seconds, slo_us, rates_rps = 10, 100_000, (80, 240)  # two vGPUs serve 200 a second
    draws = np.random.default_rng(3)
    own = [np.sort(draws.integers(0, seconds * US_PER_S, rate * seconds)) for rate in rates_rps]
    arrivals_us = np.concatenate(own)
    order = np.argsort(arrivals_us, kind="stable")
    beyond = (np.arange(len(order)) >= len(own[0]))[order]
    rows = np.zeros(len(order), dtype=REQUEST_RECORD)
    rows["application"] = rows["dispatch_us"] = rows["batch_id"] = -1
    rows["samples"] = 1
    rows["arrival_us"] = arrivals_us[order]
    rows["deadline_us"] = rows["arrival_us"] + slo_us
    quotas = Quotas({"shop": quota_rps}, refuses=False, now_us=0)
    clients = np.where(beyond, "shop", "lab").tolist()
    for row, client in zip(rows, clients, strict=True):
        row["low"] = quotas.is_over(client, int(row["arrival_us"]), low=False)
    run = Stepwise(make_plan([[Own(latency_us=(10_000,), gpus=2)]], slo_us=slo_us), SimOptions())
    run.offer(rows)
    run.advance(2 * seconds * US_PER_S)
    high = run.requests["low"] == 0
    in_time = run.requests["outcome"] == SERVED
    return float(in_time[~beyond].mean()), float(in_time[beyond & high].mean())


@pytest.mark.long
def test_a_client_beyond_its_quota_takes_nothing_from_another() -> None:
    assert min(served_beside(quota_rps=80)) >= 0.99
    assert max(served_beside(quota_rps=1_000)) < 0.9
