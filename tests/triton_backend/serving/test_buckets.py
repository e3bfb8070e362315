"""Observations by bucket."""

import random

from triton_backend.contract.units import TIME_BOUNDS_US, US_PER_S
from triton_backend.serving.buckets import TIME_BOUNDS_S, Buckets


def test_many_observed_at_once_are_the_same_as_one_by_one() -> None:
    draw = random.Random(0)
    values = [round(10 ** draw.uniform(0, 7.5)) for _ in range(500)]
    values += [*TIME_BOUNDS_US, *(bound + 1 for bound in TIME_BOUNDS_US), 0]
    one_by_one, at_once = Buckets.of_times(), Buckets.of_times()
    for value in values:
        one_by_one.observe(value)
    at_once.observe_all(values[:200])
    at_once.observe_all(values[200:])
    assert at_once == one_by_one
    assert sum(at_once.counts) == len(values)
    assert sum(at_once.sums) == sum(values)


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    buckets = Buckets.of_times()
    buckets.observe_all(TIME_BOUNDS_US)
    assert buckets.counts == [1] * len(TIME_BOUNDS_US) + [0]
    assert TIME_BOUNDS_S[0] * US_PER_S == TIME_BOUNDS_US[0] == 200
    assert list(TIME_BOUNDS_US) == sorted(set(TIME_BOUNDS_US))
