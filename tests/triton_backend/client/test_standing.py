"""What is expected of the server: the part of the spare time that it used, for as long as that says something."""

from triton_backend.client.decide import Cut, Link
from triton_backend.client.standing import SpareTime, standing


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
