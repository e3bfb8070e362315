"""Frames after a right proof, at the TCP sockets of a system in this process.

Good requests are answered right meanwhile.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from scripts.benchmarks.served import emulated_answer
from scripts.fuzz.made import MODEL, fuzzed_plan
from scripts.fuzz.serving import ELSEWHERE, GOOD, Address, proven
from tests.triton_backend.serving.system import Answer, LocalSystem
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal

pytestmark = pytest.mark.slow
PATIENT_US = 10_000_000
FRAMES = 120


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    folder = tmp_path_factory.mktemp("fuzz") / "serve"
    options = ServeOptions(hosts={"THERE": ELSEWHERE}, base_port=18_420)
    system = LocalSystem(folder, fuzzed_plan(), options)
    yield system
    system.stop()


def doors(system: LocalSystem) -> list[Address]:
    deployment = system.deployment
    gateway, base = deployment.settings.gateway_host, deployment.settings.base_port
    worker = deployment.vgpus_on("THERE")[0]
    return [
        (gateway, base),
        (gateway, deployment.front_port(MODEL)),
        (ELSEWHERE, deployment.worker_port(worker)),
    ]


def is_right(answer: Answer, given: np.ndarray, boundaries: list[int]) -> bool:
    assert not isinstance(answer, Refusal), answer
    (mark,) = emulated_answer(given, boundaries)
    return bool((answer["output"] == mark).all())


def test_proven_peers_that_say_nonsense_change_no_answer(system: LocalSystem) -> None:
    draws = np.random.default_rng(0)
    throw = proven(doors(system), system.settings.token)
    asked = []
    for _ in range(4):
        for name, (size, boundaries) in GOOD.items():
            given = draws.integers(0, 256, (1, size), dtype=np.uint8)
            asked.append((system.ask(name, {"input": given}, PATIENT_US), given, boundaries))
        assert throw(FRAMES // 4, draws) == {"closed": FRAMES // 4}
    assert all(is_right(ask(), given, boundaries) for ask, given, boundaries in asked)
    workers = system.status()["workers"]
    assert workers["up"] == workers["total"]
    assert system.status()["counters"]["frames_refused"] > 0
