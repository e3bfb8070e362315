"""A module of several sizes on a whole system in this process, on three hosts' sockets."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.triton_backend.serving.served_applications import sized_answer, sized_plan
from tests.triton_backend.serving.system import Answer, LocalSystem, deploy, wait_for
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.transport.shared_memory import Arrays

pytestmark = pytest.mark.slow
PATIENT_US = 4_000_000
HERE = ServeOptions(guard_fraction=0.4)
APART = ServeOptions(
    hosts={"FAST": "127.0.0.2", "SLOW": "127.0.0.3"},
    gateway_host="127.0.0.1",
    base_port=19_260,
    guard_fraction=0.4,
)


@pytest.fixture(params=[HERE, APART], ids=["one host", "three hosts"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalSystem]:
    made = LocalSystem(tmp_path / "serve", sized_plan(), request.param)
    yield made
    made.stop()


def requests(count: int, first: int = 0) -> list[Arrays]:
    """Of one to three rows."""
    return [
        {"x": np.random.default_rng(seed).random((1 + seed % 3, 8), np.float32)}
        for seed in range(first, first + count)
    ]


def check(asked: list[Arrays], answers: list[Callable[[], Answer]]) -> None:
    for tensors, answer in zip(asked, answers, strict=True):
        found, wanted = answer(), sized_answer(tensors["x"].astype(np.float32))
        assert not isinstance(found, Refusal), found
        assert {name: array.tolist() for name, array in found.items()} == {
            name: array.tolist() for name, array in wanted.items()
        }


def settled(system: LocalSystem) -> bool:
    gateway = system.scheduler.gateway
    return not gateway.jobs and not gateway.retained_slots


def test_every_row_is_run_by_its_size_and_answered_in_its_place(system: LocalSystem) -> None:
    asked = requests(40)
    check(asked, [system.ask("sized", tensors, PATIENT_US) for tensors in asked])
    wait_for(lambda: settled(system))
    rows = system.status()["counters"]["module_rows"]
    assert rows["sized/read@2"] + rows["sized/read@4"] == rows["sized/fit"] == rows["sized/all"]
    assert min(rows.values()) > 0


def test_jobs_in_flight_outlive_a_change_of_plan(tmp_path: Path) -> None:
    folder = tmp_path / "serve"
    system = LocalSystem(folder, sized_plan(), HERE)
    try:
        asked = requests(20)
        answers = [system.ask("sized", tensors, PATIENT_US) for tensors in asked]
        after = deploy(folder, sized_plan("next"), generation=2)
        for vgpu in range(len(after.vgpus)):
            if after.origins[vgpu].generation == after.generation:
                system.start_worker(after, vgpu)
        system.control("prepare", plan_id="next", generation=2)
        wait_for(lambda: system.status()["prepared"]["up"] == len(after.vgpus))
        system.control("swap", plan_id="next", generation=2)
        more = requests(20, first=100)
        answers += [system.ask("sized", tensors, PATIENT_US) for tensors in more]
        check(asked + more, answers)
        wait_for(lambda: settled(system) and not system.status()["former_batches"])
    finally:
        system.stop()
