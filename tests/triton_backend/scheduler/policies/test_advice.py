"""Advice on GPUs: the paper's formulas, and the damped ones that come to rest."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_backend.contract.errors import InputError
from triton_backend.scheduler.policies.advice import (
    Epoch,
    bad_rate,
    change,
    damped_change,
    idle_fraction,
)


def test_figures_of_an_epoch() -> None:
    assert idle_fraction(3_000, vgpus=4, span_us=1_000) == 0.25
    assert idle_fraction(0, vgpus=4, span_us=0) == 1.0
    assert idle_fraction(5_000, vgpus=4, span_us=1_000) == 0.0  # a batch may end after the epoch
    assert bad_rate(offered=200, served=150) == 0.25
    assert bad_rate(offered=0, served=0) == 0.0


@pytest.mark.parametrize(
    ("gpus", "idle", "bad", "wanted"),
    [
        (10, 0.0, 0.5, 10),  # N r / (1 - r)
        (10, 0.0, 0.02, 1),  # 0.2, rounded up
        (10, 0.0, 0.01, 0),  # at the threshold: no overload
        (10, 0.47, 0.0, -4),  # 4.7, rounded down
        (2.5, 0.5, 0.0, -1),  # parts of GPUs
        (10, 0.6, 0.2, 3),  # never both
        (10, 1.0, 0.0, -9),  # one stays
        (10, 0.0, 1.0, 90),  # at most ten times as many
    ],
)
def test_the_formulas_of_the_paper(gpus: float, idle: float, bad: float, wanted: int) -> None:
    assert change(Epoch(gpus=gpus, idle=idle, bad=bad)) == wanted


def test_damped_advice_keeps_a_tenth_free() -> None:
    assert damped_change(Epoch(gpus=10, idle=0.55, bad=0.0)) == -5
    assert damped_change(Epoch(gpus=9, idle=0.0, bad=0.1)) == 3  # 10 carry all at full use
    assert damped_change(Epoch(gpus=10, idle=0.05, bad=0.0)) == 1
    assert damped_change(Epoch(gpus=10, idle=1.0, bad=0.0)) == -9


def test_damped_advice_waits_before_it_turns_round_but_not_under_overload() -> None:
    assert damped_change(Epoch(gpus=10, idle=0.5, bad=0.0), last_change=3) == 0
    assert damped_change(Epoch(gpus=10, idle=0.5, bad=0.0), last_change=-3) == -4
    assert damped_change(Epoch(gpus=10, idle=0.0, bad=0.0), last_change=-3) == 0
    assert damped_change(Epoch(gpus=10, idle=0.0, bad=0.3), last_change=-3) == 6


@given(needed=st.floats(2, 500), start=st.sampled_from([0.5, 2.0]))
def test_damped_advice_comes_to_rest_within_three_epochs(needed: float, start: float) -> None:
    """On an ideal pool: `needed` GPUs carry the load at full use."""
    right = needed / 0.9
    gpus, last = max(1, round(start * right)), 0
    sizes: list[int] = []
    for _ in range(5):
        bad = max(0.0, 1 - gpus / needed)
        idle = max(0.0, 1 - needed / gpus)
        last = damped_change(Epoch(gpus=gpus, idle=idle, bad=bad), last)
        gpus += last
        sizes.append(gpus)
    assert all(right <= size <= 1.1 * right + 1 for size in sizes[2:])
    assert all(one == other for one, other in pairwise(sizes[2:]))


@pytest.mark.parametrize("wrong", [{"gpus": 0}, {"idle": 1.2}, {"bad": -0.1}])
def test_what_cannot_have_been_measured_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="epoch"):
        Epoch(**{"gpus": 1, "idle": 0.0, "bad": 0.0} | wrong)
