"""When a new scheduler begins to dispatch."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.roll_call import (
    LONGEST_US,
    MOMENT_US,
    PATIENCE_US,
    StartupBarrier,
)

BEGAN_US = 1_000_000


@pytest.fixture
def call(tmp_path: Path) -> StartupBarrier:
    """Of one worker of the first stage (0) and two of the second (1, 2)."""
    return StartupBarrier(deploy(tmp_path, plan(two_stage()), ServeOptions()), BEGAN_US)


@pytest.mark.parametrize(
    ("idle", "busy", "over_after_us"),
    [
        ({0, 1, 2}, set[int](), 0),
        ({0}, {1, 2}, 0),
        ({0, 1}, set[int](), MOMENT_US),
        ({0}, {1}, MOMENT_US),
        (set[int](), {0, 1}, MOMENT_US),
        ({1, 2}, set[int](), PATIENCE_US),
        (set[int](), set[int](), PATIENCE_US),
    ],
)
def test_whoever_is_left_is_waited_for_as_long_as_a_pool_has_nobody(
    call: StartupBarrier, idle: set[int], busy: set[int], over_after_us: int
) -> None:
    call.busy = dict.fromkeys(busy, BEGAN_US + 80_000)
    assert call.is_over(idle, BEGAN_US + over_after_us)
    assert over_after_us == 0 or not call.is_over(idle, BEGAN_US + over_after_us - 1)


def test_who_reports_one_after_the_other_is_waited_for_a_while(call: StartupBarrier) -> None:
    up: set[int] = {0, 1}
    for at_us in range(BEGAN_US, BEGAN_US + LONGEST_US, MOMENT_US - 1):
        assert not call.is_over(up, at_us)
        call.heard_us = at_us
    assert not call.is_over(up, BEGAN_US + LONGEST_US - 1)
    assert call.is_over(up, BEGAN_US + LONGEST_US)
