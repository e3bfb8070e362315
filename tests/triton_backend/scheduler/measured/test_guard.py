import pytest

from triton_backend.scheduler.measured.guard import COUNTED_EVERY, FEWEST, KEPT, MIN_GUARD_US, Guard

SLO_US = 200_000
TENTH_US = 20_000


def overrun(guard: Guard, overruns_us: list[int]) -> None:
    for number, overrun_us in enumerate(overruns_us):
        guard.answered(1_000 * number, 1_000 * number + overrun_us)


def test_a_tenth_is_kept_back_until_enough_is_known() -> None:
    guard = Guard()
    overrun(guard, [400] * (FEWEST - 1))
    assert guard.guard_us(SLO_US) == TENTH_US
    overrun(guard, [400])
    assert guard.guard_us(SLO_US) == MIN_GUARD_US + 400


def test_one_batch_in_a_thousand_may_overrun_the_guard_and_no_more() -> None:
    guard = Guard()
    overrun(guard, [*[500] * (KEPT - 4), *[9_000] * 4])
    assert guard.guard_us(SLO_US) == MIN_GUARD_US + 500
    overrun(guard, [9_000] * 64)
    assert guard.guard_us(SLO_US) == MIN_GUARD_US + 9_000


def test_what_was_long_ago_is_forgotten() -> None:
    guard = Guard()
    overrun(guard, [9_000] * KEPT)
    assert guard.guard_us(SLO_US) == MIN_GUARD_US + 9_000
    overrun(guard, [100] * KEPT)
    assert guard.guard_us(SLO_US) == MIN_GUARD_US + 100


@pytest.mark.parametrize("allowed_us", [SLO_US, 30_000, 1_000])
def test_rare_overruns_ask_for_no_more_than_what_is_kept_back_unmeasured(allowed_us: int) -> None:
    guard = Guard()
    before_us = guard.guard_us(allowed_us)
    overrun(guard, [0, 0, 1_000_000] * KEPT)
    assert guard.guard_us(allowed_us) == before_us


def test_stages_that_are_slower_than_profiled_are_made_up_for_soon() -> None:
    guard = Guard()
    guard.least_us = SLO_US // 2
    overrun(guard, [2 * TENTH_US] * (COUNTED_EVERY - 1))
    assert guard.guard_us(SLO_US) == TENTH_US
    overrun(guard, [2 * TENTH_US])
    assert guard.guard_us(SLO_US) == 2 * TENTH_US + MIN_GUARD_US
    overrun(guard, [400] * COUNTED_EVERY)
    assert guard.guard_us(SLO_US) == TENTH_US


@pytest.mark.parametrize("least_us", [SLO_US // 2, SLO_US - TENTH_US, SLO_US, 2 * SLO_US])
def test_a_request_that_waits_for_nothing_keeps_its_chance(least_us: int) -> None:
    guard = Guard()
    guard.least_us = least_us
    overrun(guard, [1_000_000] * COUNTED_EVERY)
    room_us = SLO_US - least_us - MIN_GUARD_US
    assert guard.guard_us(SLO_US) == (room_us if room_us > 0 else TENTH_US)


def test_batches_that_end_early_ask_for_no_less_than_the_reply() -> None:
    guard = Guard()
    overrun(guard, [-5_000] * FEWEST)
    assert guard.guard_us(SLO_US) == MIN_GUARD_US


def test_a_part_that_is_given_stays() -> None:
    guard = Guard(0.25)
    guard.least_us = SLO_US - TENTH_US
    overrun(guard, [100] * KEPT)
    assert guard.guard_us(SLO_US) == SLO_US // 4


def test_where_shared_batches_wait_out_of_the_guard_it_is_not_measured() -> None:
    guard = Guard()
    overrun(guard, [100] * KEPT)
    guard.measured = False
    assert guard.guard_us(SLO_US) == TENTH_US
    guard.measured = True
    assert guard.guard_us(SLO_US) == MIN_GUARD_US + 100
