"""Shared batches on a whole system in one process: answers, faults, changes of plan, the log."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.triton_backend.serving.front.test_service_incoming import Incoming
from tests.triton_backend.serving.served_applications import (
    diamond,
    expected,
    one_stage,
    with_applications,
)
from tests.triton_backend.serving.shared.shared_plans import with_tail
from tests.triton_backend.serving.shared.test_shared_pools import change, numbers
from tests.triton_backend.serving.small_plans import plan
from tests.triton_backend.serving.system import LocalSystem, deploy, wait_for
from tests.triton_backend.serving.test_faults import new_scheduler
from tests.triton_backend.serving.test_replay import replayed
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.worker.stage import LoadedStage

pytestmark = pytest.mark.slow
SLO_US = 400_000
HEAD, TAIL = 0, 2  # the vGPU of the first stage, the first of the tail's


def boarding(root: Path) -> Plan:
    """Requests that enter at either block meet in the tail, on two vGPUs."""
    return plan(with_tail(root, boards=True, vgpus=2).replaced(policy="reservation-ahead"))


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    root = tmp_path / "artifacts"
    options = ServeOptions(artifacts=root)
    made = LocalSystem(tmp_path / "serve", boarding(root), options)
    yield made
    made.stop()


class Asked:
    """Requests of both entries, of one sample or two, and their answers."""

    def __init__(self, system: LocalSystem) -> None:
        self.front = system.fronts["cut"]
        self.asked: list[tuple[Any, list[Result]]] = []

    def ask(self, count: int) -> "Asked":
        for seed in range(len(self.asked), len(self.asked) + count):
            values: Any = numbers(1 + seed % 4 // 3, seed)["x"]
            name, factor = ("x", np.float32(2)) if seed % 2 else ("middle", np.float32(1))
            answers: list[Result] = []
            self.asked.append((values * factor + np.float32(5), answers))
            self.front.take(Incoming({name: values}), keeping(answers))
        return self

    def refused(self) -> list[str]:
        """Messages of refusals, when all are answered; a wrong answer fails at once."""
        wait_for(lambda: all(answers for _, answers in self.asked))
        refusals: list[str] = []
        for right, (answer,) in self.asked:
            if isinstance(answer, Refusal):
                refusals.append(answer.message)
            else:
                np.testing.assert_array_equal(answer["y"], right)
        return refusals


def keeping(answers: list[Result]) -> Callable[[Result], None]:
    def reply(result: Result) -> None:
        copied = result
        if not isinstance(result, Refusal):
            copied = {name: array.copy() for name, array in result.items()}
        answers.append(copied)

    return reply


def is_late(refusal: str) -> bool:
    """True where no time was left to run it, to retry it, or to end what ran."""
    return any(text in refusal for text in ("cannot be met", "its worker died", "given up"))


def counted(system: LocalSystem, name: str) -> int:
    return system.status()["counters"][name].get("cut", 0)


def nothing_is_left(system: LocalSystem) -> None:
    """No batch in flight, no shared batch, and every slot that is not resting is free."""
    wait_for(lambda: system.status()["in_flight"] == 0)
    counters = system.status()["counters"]
    assert (counters["internal_errors"], counters["frames_refused"]) == (0, 0)
    gateway = system.scheduler.gateway
    shared = gateway.batches.shared
    assert (shared._by_number, shared._that_ran, shared._unsaid) == ({}, [], {})
    assert gateway.batches.sent == {}
    gateway.hub.core.check_invariants()
    for worker, _ in system.workers.values():
        wait_for(lambda worker=worker: worker._queue.idle)


def test_batches_of_both_entries_shared_batch_together_and_get_their_own_answers(
    system: LocalSystem,
) -> None:
    asked = Asked(system)
    for _ in range(4):  # a machine that stands still may make some late
        assert [m for m in asked.ask(30).refused() if not is_late(m)] == []
    shared_batches, batches = (
        counted(system, "shared_batches"),
        counted(system, "shared_batch_members"),
    )
    assert counted(system, "batches") >= batches > shared_batches
    assert counted(system, "shared_batch_entries") > shared_batches  # both entries, now and then
    assert counted(system, "samples") >= counted(system, "shared_batch_samples") > shared_batches
    nothing_is_left(system)


@pytest.mark.parametrize("gateways", [1, 2])
def test_a_request_that_allows_more_than_the_slo_waits_for_company_and_is_answered(
    tmp_path: Path, gateways: int
) -> None:
    root = tmp_path / "artifacts"
    options = ServeOptions(artifacts=root, gateways=gateways)
    system = LocalSystem(tmp_path / "serve", boarding(root), options)
    try:
        for entry, name in enumerate(("x", "middle")):
            value: Any = numbers(1, 3)["x"]
            answer = system.ask("cut", {name: value}, 5 * SLO_US, entry=entry)()
            assert not isinstance(answer, Refusal), answer.message
            factor = np.float32(2 if name == "x" else 1)
            np.testing.assert_array_equal(answer["y"], value * factor + np.float32(5))
        nothing_is_left(system)
    finally:
        system.stop()


@pytest.mark.parametrize("vgpu", [HEAD, TAIL])
def test_a_lost_worker_takes_no_answer_with_it(system: LocalSystem, vgpu: int) -> None:
    asked = Asked(system).ask(40)
    wait_for(lambda: counted(system, "shared_batches") > 0)
    system.stop_worker(1, vgpu)
    asked.ask(10)
    if vgpu == HEAD:  # requests of the first entry have nowhere to run
        wait_for(lambda: system.status()["workers"]["up"] == len(system.deployment.vgpus) - 1)
        system.start_worker(system.deployment, vgpu)
        wait_for(lambda: system.status()["workers"]["up"] == len(system.deployment.vgpus))
    assert [m for m in asked.refused() if not is_late(m)] == []
    ridden = counted(system, "shared_batches")
    assert Asked(system).ask(20).refused() == []
    assert counted(system, "shared_batches") > ridden
    nothing_is_left(system)


def test_a_run_that_fails_fails_its_members_and_the_next_shared_batch_runs(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        message = "the runtime's own"
        raise KeyError(message)

    with monkeypatch.context() as patched:
        patched.setattr(LoadedStage, "run_together", broken)
        messages = Asked(system).ask(12).refused()
    assert len(messages) == 12
    assert all("the runtime's own" in message for message in messages)
    nothing_is_left(system)
    assert Asked(system).ask(12).refused() == []


def test_shared_batches_go_on_over_a_change_of_plan_and_the_log_is_answered_alike(
    system: LocalSystem, tmp_path: Path
) -> None:
    asked = Asked(system).ask(30)
    after = replace(system.deployment.plan, plan_id="next")
    deploy(tmp_path / "serve", after, generation=2)
    change(system, "next", 2)
    assert asked.ask(30).refused() == []
    worker, _ = system.workers[1000 + TAIL]
    asked.ask(30)
    system.stop_worker(1, TAIL)
    assert [m for m in asked.refused() if not is_late(m)] == []
    assert worker not in {one for one, _ in system.workers.values()}
    nothing_is_left(system)
    system.scheduler.stop()
    done = replayed(tmp_path / "serve")
    assert done.returncode == 0, done.stderr
    text = "".join(path.read_text() for path in (tmp_path / "serve" / "events").iterdir())
    assert text.count('"t":"SharedBatchDone"') >= counted_in(text, "SharedBatchDone") > 0


def counted_in(text: str, kind: str) -> int:
    return sum(f'"t":"{kind}"' in line for line in text.splitlines())


def test_a_new_scheduler_dispatches_on_while_shared_batches_of_the_last_end(
    system: LocalSystem,
) -> None:
    asked = Asked(system).ask(30)
    system.scheduler.stop()
    system.scheduler = new_scheduler(system)
    wait_for(lambda: system.status()["workers"]["up"] == len(system.deployment.vgpus))
    asked.ask(20)
    assert [m for m in asked.refused() if not is_late(m)] == []
    assert Asked(system).ask(20).refused() == []
    nothing_is_left(system)


def test_shared_batches_meet_in_the_tail_of_another_host_over_tcp(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    options = ServeOptions(
        artifacts=root,
        hosts={"FAST": "127.0.0.2", "SLOW": "127.0.0.3"},
        gateway_host="127.0.0.1",
        base_port=18_360,
    )
    system = LocalSystem(tmp_path / "tcp", boarding(root), options)
    try:
        asked = Asked(system)
        for _ in range(4):
            assert [m for m in asked.ask(30).refused() if not is_late(m)] == []
        assert counted(system, "shared_batch_members") > counted(system, "shared_batches") > 0
        assert counted(system, "shared_batch_entries") > counted(system, "shared_batches")
        nothing_is_left(system)
        asked.ask(40)
        wait_for(lambda: counted(system, "shared_batches") > 0)
        system.stop_worker(1, TAIL)  # of two in the pool
        assert [m for m in asked.refused() if not is_late(m)] == []
        nothing_is_left(system)
    finally:
        system.stop()


def test_shared_batches_end_before_a_flush_does_and_go_on_under_the_new_plan(
    system: LocalSystem, tmp_path: Path
) -> None:
    asked = Asked(system).ask(30)
    deploy(tmp_path / "serve", replace(system.deployment.plan, plan_id="next"), generation=2)
    total = system.control("prepare", plan_id="next", generation=2)["prepared"]["total"]
    wait_for(lambda: system.status()["prepared"]["up"] == total)
    asked.ask(10)
    system.control("flush")
    asked.ask(10)  # new requests wait
    wait_for(lambda: system.status()["state"] == "flushed")
    gateway = system.scheduler.gateway
    shared = gateway.batches.shared
    assert (len(shared), gateway.batches.sent, shared._unsaid) == (0, {}, {})
    system.control("swap", plan_id="next")
    assert [m for m in asked.refused() if not is_late(m)] == []
    ridden = counted(system, "shared_batches")
    assert [m for m in asked.ask(30).refused() if not is_late(m)] == []
    assert counted(system, "shared_batches") > ridden
    nothing_is_left(system)


def test_shared_batches_and_jobs_of_an_application_are_served_side_by_side(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    cut = with_tail(root, boards=True, vgpus=2).replaced(policy="reservation-ahead")
    modules = [one_stage(f"m_{name}") for name in "abcd"]
    both = with_applications(plan(cut, *modules), diamond(), alone=("cut",))
    system = LocalSystem(tmp_path / "serve", both, ServeOptions(artifacts=root))
    try:
        (spec,) = system.deployment.served["actdet"].inputs
        random = np.random.default_rng(0)
        asked = Asked(system)
        for _ in range(4):
            asked.ask(20)
            jobs: list[dict[str, Any]] = [
                {spec.name: random.integers(0, 256, (2, *spec.shape[1:])).astype(np.uint8)}
                for _ in range(10)
            ]
            results = [system.ask("actdet", tensors) for tensors in jobs]
            asked.ask(10)
            for tensors, result in zip(jobs, results, strict=True):
                answer, wanted = result(), expected(system.deployment, "actdet", tensors)
                if isinstance(answer, Refusal):
                    assert is_late(answer.message)
                    continue
                assert answer.keys() == wanted.keys()
                for name, array in wanted.items():
                    np.testing.assert_array_equal(answer[name], array)
            assert [m for m in asked.refused() if not is_late(m)] == []
        assert counted(system, "shared_batch_entries") > counted(system, "shared_batches") > 0
        nothing_is_left(system)
        assert not system.scheduler.gateway.jobs
    finally:
        system.stop()
