"""Looks at a running system: those that fail between others, and an end that was not seen."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from flows.release.rollout import guarded, outcomes
from flows.release.rollout.options import RolloutOptions
from flows.release.rollout.outcomes import Outcomes, judgement, looks
from flows.release.server.running import ServerState
from flows.system_metrics import MetricsError
from tests.fakes.plans import two_stages

GONE = MetricsError("no metrics from h")
GOOD = Outcomes(served=100)


@pytest.fixture(autouse=True)
def _three_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch of three seconds sees three looks, whatever the machine is doing."""

    class Watch:
        def __init__(self) -> None:
            self._seconds = count()

        def seconds(self) -> float:
            return next(self._seconds)

    def sleep(_: float) -> None:
        pass

    monkeypatch.setattr(outcomes, "Stopwatch", Watch)
    monkeypatch.setattr(outcomes.time, "sleep", sleep)


def answering(*answers: Outcomes | MetricsError) -> Callable[..., Outcomes]:
    given: Iterator[Outcomes | MetricsError] = iter(answers)

    def look(*_: object) -> Outcomes:
        answer = next(given)
        if isinstance(answer, MetricsError):
            raise answer
        return answer

    return look


@pytest.mark.parametrize(
    ("answers", "seen"),
    [
        ((GOOD, GOOD, GOOD), 3),
        ((GONE, GOOD, GOOD), 2),
        ((GOOD, GOOD, GONE, GOOD), 3),
    ],
)
def test_a_look_that_fails_is_passed_over(
    answers: tuple[Outcomes | MetricsError, ...], seen: int
) -> None:
    assert list(looks(answering(*answers), 3, 1)) == [GOOD] * seen


def test_a_time_that_was_over_at_once_is_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late:
        def seconds(self) -> float:
            return 5.0

    monkeypatch.setattr(outcomes, "Stopwatch", Late)
    assert list(looks(answering(GOOD), 3, 1)) == [GOOD]
    assert list(looks(answering(), 0, 1)) == []


def test_an_end_that_is_not_seen_is_no_success() -> None:
    sights = looks(answering(GOOD, GONE, GONE, GONE), 3, 1)
    assert next(sights) == GOOD
    with pytest.raises(MetricsError, match="no metrics from h"):
        next(sights)


def test_a_plan_whose_end_was_not_seen_has_not_attained_its_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = two_stages()
    look = answering(GOOD, GONE, GONE, GONE)

    def read(_: object) -> dict[str, Outcomes]:
        return {plan.models[0].name: look()}

    monkeypatch.setattr(guarded, "read_outcomes", read)
    state = ServerState({"address": "127.0.0.1", "ports": {"metrics": 9}})
    options = RolloutOptions(bake_seconds=3, poll_seconds=1)
    with pytest.raises(MetricsError, match="no metrics from h"):
        guarded.bake(state, plan, {}, options)


@pytest.mark.parametrize(
    ("ended", "stated"),
    [
        ({"a": 50, "b": 90}, "attained its targets for 30 s"),
        (
            {"a": 50, "b": 3},
            "attained its targets for 30 s; too few requests to judge (under 50): b 3",
        ),
        (
            dict.fromkeys("abcde", 0),
            "in force for 30 s; too few requests to judge (under 50): a 0, b 0, c 0 and 2 more",
        ),
    ],
)
def test_models_without_enough_requests_attain_no_target(
    ended: dict[str, int], stated: str
) -> None:
    seen = {name: Outcomes(served=count) for name, count in ended.items()}
    assert judgement(seen, 30.0) == stated
