"""A running system without Triton whose parts are taken away.

No client waits for ever, all heals.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import Answer, LocalSystem, wait_for
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.service import FrontService
from triton_backend.serving.gateway.service import SchedulerService
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER, Arrays, Segment
from triton_backend.serving.transport.wire import Kind, WorkerHello, frame, pack_hello

pytestmark = pytest.mark.slow
PATIENT_US = 2_000_000
IMPATIENT_US = 300_000


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    """Every test leaves it whole again."""
    folder = tmp_path_factory.mktemp("faults") / "serve"
    made = LocalSystem(folder, plan(two_stage()), ServeOptions(emulate_links=False))
    yield made
    made.stop()
    wait_for(lambda: not list(SHARED_FOLDER.glob(f"{made.settings.segment_prefix}*")))


def picture(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "image": rng.normal(size=(1, 3, 16)).astype(np.float32),
        "mask": np.ones((1, 4), dtype=np.uint8),
    }


def scores(answer: Answer) -> list[float]:
    assert not isinstance(answer, Refusal), answer.message
    return answer["scores"].reshape(-1).tolist()


def reference(system: LocalSystem) -> list[list[float]]:
    """The answers to a whole batch, which is run at once."""
    waiting = [system.ask("pair", picture(seed), PATIENT_US) for seed in range(4)]
    return [scores(result()) for result in waiting]


def new_scheduler(system: LocalSystem) -> SchedulerService:
    made = SchedulerService(system.settings, system.deployment, system.clock)
    made.start()
    return made


def all_up(system: LocalSystem) -> bool:
    return system.status()["workers"]["up"] == len(system.deployment.vgpus)


def test_requests_outlive_the_scheduler_they_were_told_to(system: LocalSystem) -> None:
    right = reference(system)
    system.scheduler.stop()
    waiting = [system.ask("pair", picture(seed), PATIENT_US) for seed in range(4)]
    system.scheduler = new_scheduler(system)
    wait_for(lambda: all_up(system))
    assert [scores(result()) for result in waiting] == right


def test_without_a_scheduler_nobody_waits_past_the_deadline(system: LocalSystem) -> None:
    system.scheduler.stop()

    def refused() -> str:
        answer = system.ask("pair", picture(0), IMPATIENT_US)()
        assert isinstance(answer, Refusal)
        assert answer.status == "UNAVAILABLE"
        return answer.message

    assert "deadline" in refused()
    # Once its front has seen the scheduler go, and has notified no client.
    wait_for(lambda: "the deadline cannot be met: no scheduler is there" in refused())
    system.scheduler = new_scheduler(system)
    wait_for(lambda: all_up(system))
    reference(system)


def test_a_pool_without_workers_refuses_and_serves_again_when_one_is_back(
    system: LocalSystem,
) -> None:
    right = reference(system)
    system.stop_worker(1, 0)
    wait_for(lambda: not all_up(system))
    assert isinstance(system.ask("pair", picture(0), IMPATIENT_US)(), Refusal)
    system.start_worker(system.deployment, 0)
    wait_for(lambda: all_up(system))
    assert reference(system) == right


def test_a_new_front_takes_the_place_of_a_dead_one(system: LocalSystem) -> None:
    right = reference(system)
    system.fronts["pair"].stop()
    system.fronts["pair"] = FrontService(system.settings, system.deployment, "pair", system.clock)
    system.fronts["pair"].start()
    assert reference(system) == right


class SilentWorker:
    """Says HELLO as the worker of a vGPU and reads nothing from then on; it may listen."""

    def __init__(self, system: LocalSystem, vgpu: int, *, listens: bool) -> None:
        deployment = system.deployment
        self._sockets = [socket.socket(socket.AF_UNIX)]
        self._segment: Segment | None = None
        if listens:
            layout, slots = deployment.worker_layout(vgpu), deployment.segment_slots(vgpu)
            self._segment = Segment.create(deployment.worker_segment(vgpu), layout, slots)
            listener = socket.socket(socket.AF_UNIX)
            self._sockets.append(listener)
            path = Path(deployment.worker_address(vgpu, same_host=True).removeprefix("unix:"))
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen()
        self._sockets[0].connect(system.settings.scheduler_address().removeprefix("unix:"))
        self._sockets[0].sendall(frame(Kind.HELLO, pack_hello(WorkerHello(1, vgpu))))

    def stop(self) -> None:
        for one in self._sockets:
            one.close()
        if self._segment is not None:
            self._segment.remove()


def test_batches_that_a_worker_swallows_do_not_stay_in_flight(system: LocalSystem) -> None:
    right = reference(system)
    system.stop_worker(1, 0)
    wait_for(lambda: not all_up(system))
    silent = SilentWorker(system, 0, listens=True)
    wait_for(lambda: all_up(system))
    waiting = [system.ask("pair", picture(seed)) for seed in range(6)]
    wait_for(lambda: system.status()["in_flight"] > 0)
    assert all(isinstance(result(), Refusal) for result in waiting)
    wait_for(lambda: system.status()["in_flight"] == 0)
    system.control("flush")
    assert system.status()["state"] == "flushed"
    system.control("abort")
    silent.stop()
    wait_for(lambda: not all_up(system))
    system.start_worker(system.deployment, 0)
    wait_for(lambda: all_up(system))
    assert reference(system) == right


def test_a_worker_that_cannot_be_reached_costs_no_request_where_its_pool_has_another(
    system: LocalSystem,
) -> None:
    right = reference(system)
    system.stop_worker(1, 1)
    wait_for(lambda: not all_up(system))
    silent = SilentWorker(system, 1, listens=False)
    wait_for(lambda: all_up(system))
    lost_before = system.status()["counters"]["batches_lost"]
    assert reference(system) == right
    assert system.status()["counters"]["batches_lost"] == lost_before + 1
    silent.stop()
    system.start_worker(system.deployment, 1)
    wait_for(lambda: all_up(system))
    assert reference(system) == right


def test_a_front_that_cannot_reach_its_only_first_worker_says_so(system: LocalSystem) -> None:
    right = reference(system)
    system.stop_worker(1, 0)
    wait_for(lambda: not all_up(system))
    silent = SilentWorker(system, 0, listens=False)
    wait_for(lambda: all_up(system))
    lost_before = system.status()["counters"]["batches_lost"]
    assert isinstance(system.ask("pair", picture(0))(), Refusal)
    # On a busy machine the front may give the request up before the batch is.
    wait_for(lambda: system.status()["counters"]["batches_lost"] > lost_before)
    silent.stop()
    wait_for(lambda: not all_up(system))
    assert system.status()["in_flight"] == 0
    system.start_worker(system.deployment, 0)
    wait_for(lambda: all_up(system))
    assert reference(system) == right


def test_workers_lost_one_after_the_other_mix_up_no_answers(system: LocalSystem) -> None:
    right = reference(system)
    for vgpu in (1, 2, 0):
        waiting = [system.ask("pair", picture(seed), PATIENT_US) for seed in range(4)]
        system.stop_worker(1, vgpu)
        wait_for(lambda: not all_up(system))
        system.start_worker(system.deployment, vgpu)
        wait_for(lambda: all_up(system))
        for seed, result in enumerate(waiting):
            answer = result()
            assert isinstance(answer, Refusal) or scores(answer) == right[seed]
    assert reference(system) == right
