"""Clients that run the first blocks themselves, before two real servers of which either may die."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.operations.running import SteeredServer
from flows.release.rollout.change import change_plan
from flows.release.server.admin import start, stop
from flows.release.server.running import read_state
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.fakes.plans import HandModel
from tests.triton_backend.serving.server.test_tritonserver_two_gateways import (
    OWN_CONNECTION,
    RETRY_SECONDS,
    endpoints,
    is_whole,
    kill_server,
    offered,
)
from tests.triton_backend.serving.shared.shared_plans import with_tail
from tests.triton_backend.serving.small_plans import plan
from tests.triton_backend.serving.system import wait_for
from triton_backend.serve_folder.repository import OFFLOAD_MODEL, render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
TRIES = 10
ALLOWED_US = 1_000_000  # batches wait for company up to half of it
FACTORS = {"x": 2.0, "middle": 1.0}  # y = 2 x + 5, of which `middle` is 2 x
PAUSE_SECONDS = 0.05


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    home = tmp_path_factory.mktemp("home")
    return Workspace(state=ProjectState(home=home), warehouse=home / "w.duckdb")


@pytest.fixture(scope="module")
def cut(work: Workspace) -> HandModel:
    """Requests that enter at either block meet in the tail."""
    model = with_tail(work.state.artifacts, boards=True, vgpus=2)
    return model.replaced(policy="reservation-ahead")


@pytest.fixture(scope="module")
def folder(work: Workspace, cut: HandModel) -> Iterator[Path]:
    options = ServeOptions(artifacts=work.state.artifacts, gateways=2, cut_models=True)
    render_repository(work.state.serve, plan(cut, plan_id="first"), options)
    start(work.state.serve, endpoints())
    yield work.state.serve
    assert stop(work.state.serve)


class Clients:
    """One client per cut, with a connection for each request, and again where that fails."""

    def __init__(self, folder: Path) -> None:
        self._url, self._over = read_state(folder).grpc_url, threading.Event()
        asked = [("cut", "x"), ("cut", "middle"), ("cut_cut_1", "middle")]
        self._threads = [threading.Thread(target=self._run, args=each) for each in asked]
        self.answered = dict.fromkeys(asked, 0)
        self.failed: list[str] = []

    def _run(self, model: str, name: str) -> None:
        number = 0
        while not self._over.wait(PAUSE_SECONDS):
            number += 1
            rows = np.full((1, 3), number % 1000, np.float32)
            answer = self._answer(model, name, rows)
            right = rows * np.float32(FACTORS[name]) + np.float32(5)
            if isinstance(answer, str) or not np.array_equal(answer, right):
                self.failed.append(f"{model} {name}: {answer}")
            self.answered[model, name] += 1

    def _answer(self, model: str, name: str, rows: np.ndarray) -> np.ndarray | str:
        """The rows of the answer, or why there is none."""
        given = grpc_client.InferInput(name, [1, 3], "FP32")
        given.set_data_from_numpy(rows)
        reason = ""
        for _ in range(TRIES):
            try:
                with grpc_client.InferenceServerClient(
                    self._url, channel_args=OWN_CONNECTION
                ) as client:
                    answer = client.infer(model, [given], timeout=ALLOWED_US)
            except InferenceServerException as error:
                reason = str(error)
                self._over.wait(RETRY_SECONDS)
            else:
                assert answer is not None
                return np.asarray(answer.as_numpy("y"))
        return reason

    def wait_for_answers(self, more: int = 8) -> None:
        wanted = {each: count + more for each, count in self.answered.items()}
        wait_for(lambda: all(self.answered[each] >= count for each, count in wanted.items()))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert self.failed == []


@pytest.mark.parametrize("killed", [0, 1])
def test_every_cut_is_answered_while_a_server_is_away_and_by_both_after(
    folder: Path, killed: int
) -> None:
    wait_for(lambda: is_whole(folder))
    with Clients(folder) as clients:
        clients.wait_for_answers()
        kill_server(folder, killed)
        clients.wait_for_answers()
        wait_for(lambda: is_whole(folder))
        wait_for(lambda: min(offered(folder, 0), offered(folder, 1)) > 0)


def announce(folder: Path, gateway: int, client: str, rate_rps: float, cut: int = 1) -> None:
    request = {"command": "announce", "client": client, "model": "cut", "cut": cut}
    told = request | {"rate_rps": rate_rps, "budget_ms": 200}
    read_state(folder).ask(OFFLOAD_MODEL, told, gateway)


def test_clients_announce_to_either_and_a_client_that_moves_counts_once(
    work: Workspace, folder: Path
) -> None:
    wait_for(lambda: is_whole(folder))
    steered = SteeredServer(work, None)
    announce(folder, 0, "a", 3.0)
    announce(folder, 1, "b", 4.0)
    assert [tuple(one) for one in steered.announced()] == [("cut", 1, 200_000, 7.0)]
    announce(folder, 1, "a", 5.0)
    assert [one.rate_rps for one in steered.announced()] == [9.0]
    announce(folder, 0, "a", 6.0, cut=0)
    assert {one.block: one.rate_rps for one in steered.announced()} == {0: 6.0, 1: 4.0}
    kill_server(folder, 0)
    wait_for(lambda: [one.rate_rps for one in steered.announced()] == [9.0])  # the other's table
    announce(folder, 1, "a", 0.0)
    announce(folder, 1, "b", 0.0)
    assert list(steered.announced()) == []


def test_a_plan_follows_in_both(folder: Path, cut: HandModel) -> None:
    wait_for(lambda: is_whole(folder))
    with Clients(folder) as clients:
        clients.wait_for_answers()
        change_plan(folder, plan(cut, plan_id="second"))
        clients.wait_for_answers()
    offer = {"command": "offer", "model": "cut"}
    plans = [read_state(folder).ask(OFFLOAD_MODEL, offer, each)["plan_id"] for each in (0, 1)]
    assert plans == ["second", "second"]
