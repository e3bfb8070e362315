"""Expectations of the server.

The part of the spare time that it used, for as long as that says something.
"""

from triton_backend.client.decide import Cut, Link
from triton_backend.client.standing import Rests, SpareTime, standing


def test_of_the_spare_time_the_server_uses_the_median_part() -> None:
    spare = SpareTime()
    assert spare.tail_us(5, 105, 0) == 5
    for used in (0, 20, 100):
        spare.note(1_000, 10 + used, 10, 110)
    assert spare.tail_us(5, 105, 2_000) == 25
    assert spare.tail_us(5, 1, 2_000) == 5
    assert spare.tail_us(5, 105, 5_001_001) == 5  # heard nothing since


def test_a_cut_expects_the_part_of_what_is_left_after_head_upload_and_round_trip() -> None:
    spare = SpareTime()
    spare.note(0, 60, 10, 110)  # half of the spare time
    cut = Cut(block=1, upload_bytes=1_000, head_us=20_000, least_tail_us=10_000)
    found = standing(cut, Link(mbit_per_s=8.0, rtt_us=5_000), 56_000, spare, 1_000)
    assert found == Cut(
        block=1, upload_bytes=1_000, head_us=20_000, least_tail_us=10_000, tail_us=20_000
    )


def test_a_refused_cut_rests_twice_as_long_each_time_until_it_is_answered() -> None:
    rests = Rests()
    now_us = 0
    for lasts_us in (50_000, 100_000, 200_000, 400_000, 800_000, 1_000_000, 1_000_000):
        assert rests.over(now_us, 1)
        rests.refused(now_us, 1, closed=False)
        assert not rests.over(now_us + lasts_us - 1, 1)
        now_us += lasts_us
    rests.answered(1)
    rests.refused(now_us, 1, closed=False)
    assert rests.over(now_us + 50_000, 1)
    rests.refused(now_us, 2, closed=True)
    assert not rests.over(now_us + 4_999_999, 2)
    assert rests.over(now_us + 5_000_000, 2)
