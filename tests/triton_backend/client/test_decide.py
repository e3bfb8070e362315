"""The rule of a client's cut, by its named cases and against one written out again."""

from fractions import Fraction

import numpy as np
import pytest

from triton_backend.client.decide import Cut, Decision, Link, Power, decide

LINK = Link(mbit_per_s=8.0, rtt_us=1_000)  # a byte per µs
DEVICE = Cut(block=4, upload_bytes=0, head_us=90_000)


def cut(block: int, size: int, head_us: int, tail_us: int = 5_000, least_us: int = 0) -> Cut:
    return Cut(
        block=block,
        upload_bytes=size,
        head_us=head_us,
        tail_us=tail_us,
        least_tail_us=least_us,
    )


CUTS = [cut(0, 60_000, 0), cut(2, 20_000, 40_000), cut(3, 5_000, 70_000)]


def kept(block: int) -> Decision:
    return Decision(block=block, budget_us=0, feasible=True)


def test_the_least_time_is_taken_and_the_rest_of_the_slo_is_the_servers() -> None:
    chosen = decide(CUTS, DEVICE, LINK, 100_000)
    assert chosen == Decision(block=0, budget_us=39_000, feasible=True)


@pytest.mark.parametrize(
    ("cuts", "device_us", "chosen"),
    [
        ([cut(3, 0, 10_000), cut(1, 10_000, 0)], 99_000, 1),  # 16 ms each: the earlier
        ([cut(1, 10_000, 0)], 16_000, 1),  # the device is the last of all cuts
        ([cut(1, 10_001, 0)], 16_000, 4),
        ([], 16_000, 4),
    ],
)
def test_equal_times_are_the_earlier_blocks(cuts: list[Cut], device_us: int, chosen: int) -> None:
    device = Cut(block=4, upload_bytes=0, head_us=device_us)
    assert decide(cuts, device, LINK, 100_000).block == chosen


@pytest.mark.parametrize(("slo_us", "feasible"), [(71_000, True), (70_999, False)])
def test_a_cut_needs_twice_its_least_tail(slo_us: int, *, feasible: bool) -> None:
    one = [cut(0, 60_000, 0, least_us=5_000)]
    chosen = decide(one, DEVICE, LINK, slo_us)
    assert (chosen.block, chosen.feasible) == ((0, True) if feasible else (4, False))


@pytest.mark.parametrize("mbit_per_s", [None, 0.0])
def test_without_bandwidth_it_is_the_device_or_a_trial(mbit_per_s: float | None) -> None:
    link = Link(mbit_per_s=mbit_per_s, rtt_us=1_000)
    assert decide(CUTS, DEVICE, link, 90_000) == Decision(block=4, budget_us=0, feasible=True)
    trial = decide(CUTS, DEVICE, link, 89_999)
    assert trial == Decision(block=4, budget_us=0, feasible=False, trial=3)
    assert decide([], DEVICE, link, 89_999) == Decision(block=4, budget_us=0, feasible=False)


def test_what_is_not_feasible_is_tried_where_the_least_bandwidth_would_do() -> None:
    """60, 20 and 5 KB in 79, 39 and 9 ms; with tails of 4 ms, the last one in 1 ms."""
    slow = Link(mbit_per_s=0.1, rtt_us=1_000)
    assert decide(CUTS, DEVICE, slow, 80_000).trial == 2
    longer = [cut(c.block, c.upload_bytes, c.head_us, least_us=4_000) for c in CUTS]
    assert decide(longer, DEVICE, slow, 80_000).trial == 2
    assert decide(longer[2:], DEVICE, slow, 79_001).trial == 3
    assert decide(longer[2:], DEVICE, slow, 79_000).trial is None  # no bandwidth would do
    assert decide(CUTS, DEVICE, LINK, 89_000).trial is None


def test_the_last_cut_stays_until_ten_percent_are_saved_twice_in_a_row() -> None:
    slo_us = 200_000  # cut 0 takes 66 ms, cut 2 also: 40 + 20 + 1 + 5
    assert decide(CUTS, DEVICE, LINK, slo_us, last=kept(2)).block == 2
    slower = Link(mbit_per_s=4.0, rtt_us=1_000)  # 126, 86, 86 ms
    first = decide(CUTS, DEVICE, slower, slo_us, last=kept(0))
    assert (first.block, first.better) == (0, 1)
    between = decide(CUTS, DEVICE, LINK, slo_us, last=first)
    assert between == Decision(block=0, budget_us=139_000, feasible=True)
    second = decide(CUTS, DEVICE, slower, slo_us, last=first)
    assert (second.block, second.better) == (2, 0)


@pytest.mark.parametrize(("best_us", "better"), [(90_000, 0), (89_999, 1)])
def test_exactly_ten_percent_are_not_more(best_us: int, better: int) -> None:
    cuts = [cut(0, 0, 99_000, tail_us=0), cut(1, 0, best_us - 1_000, tail_us=0)]  # 100 ms
    device = Cut(block=4, upload_bytes=0, head_us=500_000)
    assert decide(cuts, device, LINK, 300_000, last=kept(0)).better == better


def test_a_last_cut_that_is_closed_or_infeasible_is_left_at_once() -> None:
    slower = Link(mbit_per_s=4.0, rtt_us=1_000)
    assert decide(CUTS[1:], DEVICE, slower, 200_000, last=kept(0)).block == 2
    assert decide(CUTS, DEVICE, slower, 100_000, last=kept(0)).block == 2
    device = Cut(block=4, upload_bytes=0, head_us=100_001)
    assert decide(CUTS, device, LINK, 100_000, last=kept(4)).block == 0


def test_energy_is_least_among_what_meets_the_slo() -> None:
    power = Power(cpu_w=5.0, radio_w=2.0)  # mJ: 120, 240, 360; the device 450
    assert decide(CUTS, DEVICE, LINK, 100_000, power=power).block == 0
    thirsty = Power(cpu_w=1.0, radio_w=2.0)  # mJ: 120, 80, 80; the device 90
    assert decide(CUTS, DEVICE, LINK, 100_000, power=thirsty).block == 2
    assert decide(CUTS, DEVICE, LINK, 65_999, power=thirsty).feasible is False


def written_out_again(
    cuts: list[Cut], device: Cut, link: Link, slo_us: int, power: Power | None
) -> int:
    """By exact fractions, without a last cut: cost of every block, then the least."""
    costs: list[tuple[Fraction, int]] = []
    for one in cuts:
        upload_us = -(-Fraction(8 * one.upload_bytes) // Fraction(link.mbit_per_s or 1))
        left_us = slo_us - one.head_us - upload_us - link.rtt_us
        total_us = one.head_us + upload_us + link.rtt_us + one.tail_us
        if left_us < 2 * one.least_tail_us or (power and total_us > slo_us):
            continue
        energy = power and Fraction(power.cpu_w) * one.head_us + Fraction(power.radio_w) * upload_us
        costs.append(
            (energy or Fraction(total_us) if not power else energy or Fraction(0), one.block)
        )
    if device.head_us <= slo_us:
        watts = Fraction(power.cpu_w) if power else Fraction(1)
        costs.append((watts * device.head_us, device.block))
    return min(costs)[1] if costs else device.block


@pytest.mark.parametrize("power", [None, Power(cpu_w=4.0, radio_w=1.5)])
def test_random_cases_are_those_written_out_again(power: Power | None) -> None:
    rng = np.random.default_rng(5)
    for _ in range(500):
        blocks = sorted(rng.choice(9, size=rng.integers(0, 5), replace=False))
        cuts = [
            cut(int(b), *(int(rng.integers(0, 9)) * 4_000 for _ in range(3)), least_us=2_000)
            for b in blocks
        ]
        device = Cut(block=9, upload_bytes=0, head_us=int(rng.integers(1, 9)) * 8_000)
        link = Link(mbit_per_s=float(rng.choice([2.0, 8.0, 64.0])), rtt_us=1_000)
        slo_us = int(rng.integers(1, 20)) * 4_000
        rng.shuffle(cuts)  # pyright: ignore[reportArgumentType]
        expected = written_out_again(cuts, device, link, slo_us, power)
        assert decide(cuts, device, link, slo_us, power=power).block == expected
