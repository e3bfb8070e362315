"""The scheduler's thread and sockets, in a system whose parts are threads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, wait_for
from tests.triton_backend.serving.test_system import PATIENT_US, picture
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    made = LocalSystem(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    yield made
    made.stop()


def test_requests_are_served_again_after_errors(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = system.scheduler

    def fail(_now_us: int) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(scheduler.gateway, "look", fail)
    wait_for(lambda: scheduler.gateway.counters.internal_errors >= 3)
    monkeypatch.undo()
    assert not isinstance(system.ask("pair", picture(4), PATIENT_US)(), Refusal)
    assert system.status()["counters"]["internal_errors"] >= 3
