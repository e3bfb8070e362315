"""The clock of a planning run."""

import time

import numpy as np
import pytest

from flows.clock import Stopwatch
from flows.planning.watch import Progress, Watch
from triton_backend.scheduler.measured.compile_time import CompileTime


def test_without_limit_and_interruption_it_never_ends_a_run() -> None:
    watch = Watch()
    assert watch.left_s() is None
    assert not watch.over()


def test_a_part_is_stopped_with_the_whole_and_tells_nobody() -> None:
    told = list[Progress]()
    watch = Watch(limit_s=1000.0, tell=told.append)
    part = watch.part(0.5)
    part.report(1.0, 2.0)
    assert told == []
    assert part.limit_s is not None
    assert part.limit_s <= 501.0
    watch.stop()
    assert part.over()
    assert part.stopped()


@pytest.mark.parametrize("limit_s", [None, 1000.0])
def test_a_solver_that_is_called_after_a_run_was_ended_ends_at_once(limit_s: float | None) -> None:
    watch = Watch(limit_s=limit_s)
    watch.stop()
    left_s = watch.left_s()
    assert left_s is not None
    assert left_s < 0.1


def test_a_part_that_ends_without_a_plan_names_the_limit_of_the_whole() -> None:
    part = Watch(limit_s=4.0).part(0.3).part(0.5)
    assert str(part.no_plan()) == (
        "planning: no plan under a time limit of 4 s; raise --time-limit"
    )


def test_a_run_that_was_ended_without_a_plan_names_its_seconds() -> None:
    watch = Watch(limit_s=4.0)
    watch.stop()
    assert str(watch.part(0.3).no_plan()) == "planning: no plan in 0.0 s, then it was ended"


class Late(Stopwatch):
    """A clock that began an hour ago."""

    def __init__(self) -> None:
        super().__init__()
        self.before_s = 3600.0

    def seconds(self) -> float:
        return super().seconds() + self.before_s

    def restart(self) -> float:
        self.before_s = 0.0
        return super().restart()


def test_what_came_before_planning_does_not_count() -> None:
    watch = Watch(limit_s=1800.0, _clock=Late())
    assert watch.over()
    watch.begin()
    assert not watch.over()


def test_kernels_that_are_compiled_take_none_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = CompileTime()
    monkeypatch.setattr("flows.planning.watch.COMPILE_TIME", compiled)
    begun = Stopwatch()
    watch = Watch(limit_s=1000.0)
    with compiled.counted():
        time.sleep(0.05)
    assert watch.seconds() <= begun.seconds() - 0.05
    watch.begin()
    assert watch.seconds() >= 0


@pytest.mark.parametrize(
    ("score", "bound", "value", "limit", "gap"),
    [
        (2.0, 3.0, 2.0, 3.0, 0.5),
        (-4.0, -3.0, 4.0, 3.0, 0.25),
        (-np.inf, 3.0, None, 3.0, None),
        (2.0, np.inf, 2.0, None, None),
    ],
)
def test_progress_is_told_in_values_of_the_objective(
    score: float, bound: float, value: float | None, limit: float | None, gap: float | None
) -> None:
    told = list[Progress]()
    Watch(tell=told.append).valuing(abs).report(score, bound)
    (now,) = told
    assert (now.value, now.bound) == (value, limit)
    assert now.gap == (None if gap is None else pytest.approx(gap))
