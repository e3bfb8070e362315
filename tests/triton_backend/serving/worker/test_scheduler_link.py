from tests.fakes.clock import VirtualClock
from triton_backend.serving.worker.scheduler_link import ENOUGH_BEATS, WINDOW_BEATS, GatewayTime


def test_until_a_beat_is_heard_both_hosts_count_alike() -> None:
    time = GatewayTime(VirtualClock(at_us=500))
    assert (time.now_us(), time.local_us(600), time.known) == (500, 600, False)


def test_the_fastest_beat_tells_the_difference_of_the_clocks() -> None:
    clock = VirtualClock()
    time = GatewayTime(clock)
    ahead_us = 1_000_000
    for sent_us, way_us in ((100, 900), (200, 60), (300, 5_000)):
        clock.at_us = sent_us + way_us + ahead_us
        time.heartbeat(sent_us)
    assert time.known == (ENOUGH_BEATS == 3)
    clock.at_us = 10_000 + ahead_us
    assert time.now_us() == 10_000 - 60
    assert time.local_us(time.now_us()) == clock.at_us


def test_a_drifting_clock_is_followed() -> None:
    clock = VirtualClock()
    time = GatewayTime(clock)
    for beat in range(3 * WINDOW_BEATS):
        clock.at_us = beat * 1_000 + beat
        time.heartbeat(beat * 1_000)
    assert time.now_us() == clock.at_us - 2 * WINDOW_BEATS
    time.forget()
    assert not time.known
