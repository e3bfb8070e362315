"""Loops of the running system: how long they go on."""

from flows.operations.replanning.options import AutoscaleOptions
from flows.operations.running import time_over


def test_hours_count_from_when_the_loop_begins() -> None:
    assert not time_over(AutoscaleOptions())()
    assert not time_over(AutoscaleOptions(hours=1.0))()
