"""A scheduler of two stages whose tables are checked afterwards."""

from collections.abc import Iterator

import pytest

from tests.fakes.plans import two_stages
from triton_backend.scheduler.scheduler import Scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(two_stages())
    yield scheduler
    scheduler.check_invariants()
