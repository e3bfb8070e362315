"""A stage on another host: served over TCP, cut off, behind a slow link."""

import contextlib
import subprocess
from collections.abc import Generator, Iterator

import pytest

from tests.flows.release.far import FarHost, namespace, shaped
from tests.triton_backend.serving.artifacts import affine
from tests.triton_backend.serving.small_plans import model, plan, stage, tensor
from tests.triton_backend.serving.system import wait_for

pytestmark = pytest.mark.slow
# Less than any packet: nothing gets through.
NOTHING = ("rate", "8kbit", "burst", "20", "limit", "40")
# A batch of `wide` is 256 KB: a second on the way, where its SLO is 0.4 s.
SLOW = ("rate", "2mbit", "burst", "16kb", "latency", "500ms")
REQUESTS = 5


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarHost]:
    folder = tmp_path_factory.mktemp("far")
    artifacts = folder / "artifacts"
    x, y = (tensor("x", 3),), (tensor("y", 3),)
    near = model("near", (stage((0, 10), "FAST", 0),), inputs=x, outputs=y)
    halves = (
        stage((0, 5), "FAST", 0, boundary=(tensor("middle", 16_384),)),
        stage((5, 10), "SLOW", 1),
    )
    served = plan(affine(artifacts), near, model("wide", halves, inputs=x, outputs=y))
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(namespace())
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        made = FarHost(folder, served, artifacts)
        stack.callback(made.stop)
        yield made


@contextlib.contextmanager
def link_as(*words: str) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(shaped(*words))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no token bucket filter (tc) here: {error}")
        yield


def test_a_stage_on_another_host_is_served_over_tcp(far: FarHost) -> None:
    for name in ("affine", "wide", "near"):
        wait_for(lambda name=name: far.ask(name))
    wait_for(lambda: far.ask("affine", samples=1))


def test_a_host_that_is_cut_off_is_missed_and_taken_back(far: FarHost) -> None:
    wait_for(lambda: far.ask("affine"))
    with link_as(*NOTHING):
        wait_for(lambda: not far.ask("affine"))
        wait_for(lambda: far.ask("near"))
        wait_for(lambda: not far.is_whole())
        # No worker is up to run it: refused at once, not at the deadline.
        assert not far.ask("affine")
        wait_for(lambda: far.state.control("status")["in_flight"] == 0)
    wait_for(far.is_whole)
    wait_for(lambda: all(far.ask("affine") for _ in range(REQUESTS)))


def test_behind_a_slow_link_every_request_is_answered(far: FarHost) -> None:
    wait_for(lambda: far.ask("wide"))
    with link_as(*SLOW):
        served = [far.ask("wide", patient=False) for _ in range(REQUESTS)]
        assert not all(served)
        wait_for(lambda: far.ask("near"))
    wait_for(lambda: all(far.ask(name) for name in ("wide", "affine") for _ in range(REQUESTS)))
    assert far.is_whole()
