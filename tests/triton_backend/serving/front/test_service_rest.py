"""A front at rest waits for frames, and does not look around every few milliseconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import alone, plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, wait_for
from tests.triton_backend.serving.test_system import PATIENT_US, picture
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.service import ALONE_TICK_US, REST_TICK_US, TICK_US
from triton_backend.serving.transport.event_loop import EventLoop

pytestmark = pytest.mark.slow


class Waits:
    """How long the thread of a front that polls is ready to wait, now (µs)."""

    def __init__(self, system: LocalSystem, monkeypatch: pytest.MonkeyPatch) -> None:
        poll, loop = EventLoop.poll, system.fronts["pair"]._loop
        self.now_us = 0

        def noted(self_: EventLoop, timeout_s: float | None = None) -> bool:
            if self_ is loop:
                self.now_us = round((timeout_s or 0.0) * 1e6)
            return poll(self_, timeout_s)

        monkeypatch.setattr(EventLoop, "poll", noted)

    def is_about(self, tick_us: int) -> bool:
        return 0.9 * tick_us < self.now_us <= tick_us


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    made = LocalSystem(
        tmp_path / "serve", plan(alone(two_stage())), ServeOptions(emulate_links=False)
    )
    yield made
    made.stop()


@pytest.fixture
def waits(system: LocalSystem, monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(system, monkeypatch)


def test_a_front_rests_until_a_request_comes_and_again_after_it(
    system: LocalSystem, waits: Waits
) -> None:
    for _ in range(3):
        wait_for(lambda: waits.is_about(REST_TICK_US))
        assert not isinstance(system.ask("pair", picture(1), PATIENT_US)(), Refusal)
        assert waits.now_us <= TICK_US or waits.is_about(REST_TICK_US)
    assert system.fronts["pair"].unanswered == 0


def test_a_request_given_up_wakes_the_front_to_hold_its_slot(
    system: LocalSystem, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scheduler says nothing, so no frame does."""
    front = system.fronts["pair"]
    wait_for(lambda: waits.is_about(REST_TICK_US))

    def ignore(*_: object) -> None:
        """Say nothing."""

    monkeypatch.setattr(system.scheduler.gateway.requests, "arrival", ignore)
    assert isinstance(system.ask("pair", picture(1), 1)(), Refusal)
    wait_for(lambda: 0 < waits.now_us <= TICK_US)
    assert front.unanswered == 0


def test_a_front_without_a_scheduler_asks_for_it_rarely_until_a_request_comes(
    system: LocalSystem, waits: Waits
) -> None:
    system.scheduler.stop()
    wait_for(lambda: waits.is_about(ALONE_TICK_US))
    answer = system.ask("pair", picture(1), PATIENT_US)
    wait_for(lambda: waits.is_about(TICK_US))
    assert isinstance(answer(), Refusal)
    wait_for(lambda: waits.is_about(ALONE_TICK_US))
