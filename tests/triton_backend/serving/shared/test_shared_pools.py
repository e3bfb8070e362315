"""Shared pools, unequal shares and entries, over real sockets, without Triton."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.unequal_shares import example
from tests.triton_backend.serving.front.test_service_incoming import Incoming
from tests.triton_backend.serving.shared.shared_plans import apart, on_one_pool, sharing, with_tail
from tests.triton_backend.serving.small_plans import BATCH, plan
from tests.triton_backend.serving.system import Answer, LocalSystem, deploy, wait_for
from triton_backend.contract.decisions import Dispatch, Hop
from triton_backend.contract.events import StageDone
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.stage_tensors import complete_tensors, request_tensors
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.gateway.event_log import read_events
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.worker.stage import open_runtimes

pytestmark = pytest.mark.slow
PATIENT_US = 2_000_000
POLICIES = ("eager", "deferred", "turns", "reservation", "reservation-ahead")


def numbers(samples: int, seed: int) -> Arrays:
    values = np.random.default_rng(seed).normal(size=(samples, 3))
    return {"x": values.astype(np.float32)}


EXPECTED: dict[str, Callable[[Any], Any]] = {
    "doubled": lambda x: x * np.float32(2),
    "raised": lambda x: x + np.float32(5),
}


@pytest.fixture(params=POLICIES)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalSystem]:
    """Two models on one pool, as their plan's policy has it."""
    served = sharing(tmp_path / "artifacts", request.param)
    made = LocalSystem(tmp_path / "serve", served, ServeOptions(artifacts=tmp_path / "artifacts"))
    yield made
    made.stop()
    runs = measured_runs(tmp_path / "serve")
    assert runs
    for own in runs.values():  # one at a time, as its worker reported
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(own)))


def measured_runs(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """From when to when every vGPU ran, by the reports in the gateway's log."""
    paths: dict[int, tuple[Hop, ...]] = {}
    runs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for path in sorted((folder / "events").glob("events-*.jsonl")):
        for item in read_events(path.read_text().splitlines()):
            if isinstance(item, Dispatch):
                paths[item.batch_id] = item.hops
            elif isinstance(item, StageDone):
                runs[paths[item.batch_id][item.stage].vgpu].append((item.start_us, item.end_us))
    return runs


def ask_both(system: LocalSystem, count: int) -> list[tuple[str, Arrays, Callable[[], Answer]]]:
    asked: list[tuple[str, Arrays, Callable[[], Answer]]] = []
    for seed in range(count):
        for name in EXPECTED:
            tensors = numbers(1 + seed % BATCH, seed)
            asked.append((name, tensors, system.ask(name, tensors, PATIENT_US)))
    return asked


def refused(asked: list[tuple[str, Arrays, Callable[[], Answer]]]) -> list[Refusal]:
    """Refusals; an answer to anything else than its own request fails at once."""
    refusals: list[Refusal] = []
    for name, tensors, result in asked:
        answer = result()
        if isinstance(answer, Refusal):
            refusals.append(answer)
        else:
            np.testing.assert_array_equal(answer["y"], EXPECTED[name](tensors["x"]))
    return refusals


def test_every_answer_is_that_of_its_own_model(shared: LocalSystem) -> None:
    assert refused(ask_both(shared, 20)) == []
    counters = shared.status()["counters"]
    assert counters["batches"].keys() == EXPECTED.keys()
    assert (counters["batches_failed"], counters["frames_refused"]) == (0, 0)
    stages = counters["stage_runs"]
    assert {key.split("/")[0] for key in stages} == EXPECTED.keys()
    assert len({key.split("/")[-1] for key in stages}) == 1  # one pool
    wait_for(lambda: shared.status()["in_flight"] == 0)


def test_a_lost_worker_takes_nothing_from_either_model(shared: LocalSystem) -> None:
    asked = ask_both(shared, 10)
    shared.stop_worker(1, 0)
    wait_for(lambda: shared.status()["workers"]["up"] == 1)
    told = refused(asked + ask_both(shared, 5))
    # Others keep both models' last batches to the last moment, when one vGPU can run only one.
    policy = shared.deployment.plan.models[0].policy
    assert all("deadline cannot be met" in refusal.message for refusal in told)
    assert not told or policy not in {"eager", "turns"}
    shared.start_worker(shared.deployment, 0)
    wait_for(lambda: shared.status()["workers"]["up"] == 2)
    assert refused(ask_both(shared, 5)) == []


def test_late_binding_fills_batches_beyond_the_planned_one(tmp_path: Path) -> None:
    served = sharing(tmp_path / "artifacts", "deferred")
    small = [
        replace(m, pipelines=tuple(replace(p, batch=2) for p in m.pipelines)) for m in served.models
    ]
    served = replace(served, models=tuple(small))
    options = ServeOptions(artifacts=tmp_path / "artifacts")
    system = LocalSystem(tmp_path / "serve", served, options)
    try:
        tensors = numbers(BATCH, 0)
        answer = system.ask("doubled", tensors, PATIENT_US)()
        assert not isinstance(answer, Refusal)
        np.testing.assert_array_equal(answer["y"], EXPECTED["doubled"](tensors["x"]))
    finally:
        system.stop()


def test_stages_of_one_artifact_have_one_runtime(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    served = plan(with_tail(root))
    system = LocalSystem(tmp_path / "serve", served, ServeOptions(artifacts=root))
    try:
        last = len(system.deployment.vgpus) - 1
        loaded = open_runtimes(system.deployment, last, system.clock)
        assert [one.key.blocks for one in loaded] == [(1, 2)]
        assert len(system.deployment.rows_of(last)) == 2
    finally:
        system.stop()


def test_a_model_is_loaded_into_living_workers_and_dropped_from_them(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    first, options = apart(root, "eager"), ServeOptions(artifacts=root)
    system = LocalSystem(tmp_path / "serve", first, options)
    together = replace(on_one_pool(first), plan_id="together")
    try:
        worker, _ = system.workers[1000]
        assert [one.key.model for one in worker.loaded] == ["doubled"]
        asked = ask_both(system, 5)
        shared = deploy(tmp_path / "serve", together, generation=2)
        assert [origin.generation for origin in shared.origins] == [1, 1]
        change(system, "together", 2)
        asked += ask_both(system, 10)
        assert refused(asked) == []
        assert [one.key.model for one in worker.loaded] == ["doubled", "raised"]
        again = deploy(tmp_path / "serve", replace(first, plan_id="apart"), generation=3)
        assert [origin.generation for origin in again.origins] == [1, 1, 3, 3]
        for vgpu in (2, 3):
            system.start_worker(again, vgpu)
        change(system, "apart", 3)
        wait_for(lambda: len(worker.loaded) == 1)
        assert refused(ask_both(system, 10)) == []
    finally:
        system.stop()


def change(system: LocalSystem, plan_id: str, generation: int) -> None:
    vgpus = system.control("prepare", plan_id=plan_id, generation=generation)["prepared"]["total"]
    wait_for(lambda: system.status()["prepared"]["up"] == vgpus)
    system.control("swap", plan_id=plan_id)


def test_what_was_loaded_for_a_change_that_was_taken_back_is_dropped(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    first = apart(root, "eager")
    system = LocalSystem(tmp_path / "serve", first, ServeOptions(artifacts=root))
    try:
        deploy(tmp_path / "serve", replace(on_one_pool(first), plan_id="next"), generation=2)
        worker, _ = system.workers[1000]
        for _ in range(3):
            system.control("prepare", plan_id="next", generation=2)
            wait_for(lambda: len(worker.loaded) == 2)
            system.control("abort")
            wait_for(lambda: len(worker.loaded) == 1)
        assert refused(ask_both(system, 5)) == []
    finally:
        system.stop()


# Entries


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[LocalSystem]:
    root = tmp_path / "artifacts"
    served = plan(with_tail(root).replaced(split="a"))
    # Requests that fill no batch wait for a fifth of their time then.
    options = ServeOptions(artifacts=root, guard_fraction=0.4)
    made = LocalSystem(tmp_path / "serve", served, options)
    yield made
    made.stop()


def take(system: LocalSystem, model: str, incoming: Incoming) -> Answer:
    """The reply to a request of Triton's."""
    answers: list[Answer] = []

    def reply(result: Result) -> None:
        copied = result
        if not isinstance(result, Refusal):
            copied = {name: array.copy() for name, array in result.items()}
        answers.append(copied)

    system.fronts[model].take(incoming, reply)
    wait_for(lambda: bool(answers))
    return answers[0]


@pytest.mark.parametrize("samples", [1, BATCH])
def test_requests_enter_where_their_tensors_say(cut: LocalSystem, samples: int) -> None:
    x: Any = numbers(samples, 1)["x"]
    half = x.astype(np.float16)
    for tensors, headers, expected in (
        ({"x": x}, '{"cut": 0, "split": "a"}', x * np.float32(2) + np.float32(5)),
        ({"middle": x}, "{}", x + np.float32(5)),
        ({"middle.fp16": half}, '{"cut": 1}', half.astype(np.float32) + np.float32(5)),
    ):
        answer = take(cut, "cut", Incoming(tensors, headers=headers))
        assert not isinstance(answer, Refusal), answer
        np.testing.assert_array_equal(answer["y"], expected)
    runs = cut.status()["counters"]["stage_runs"]
    assert {tuple(key.split("/")[1:4:2]): n for key, n in runs.items()} == {
        ("0", "0"): 1,
        ("0", "1"): 1,
        ("1", "0"): 2,
    }


@pytest.mark.parametrize(
    ("tensors", "headers", "told"),
    [
        ((), "{}", r"inputs [] open no entry (whole: ['x']; tail: ['middle'])"),
        (("x", "middle"), "{}", r"inputs ['middle', 'x'] open no entry"),
        (("x",), '{"entry": "tail"}', "inputs ['x'] open no entry"),
        (("x",), '{"entry": "nobody"}', "parameter 'entry': 'nobody' is none of whole, tail"),
        (("x",), '{"cut": 1}', "inputs ['x'] open no entry (whole: ['x']; tail: ['middle'])"),
        (("x",), '{"cut": 7}', "parameter 'cut': '7' is none of 0, 1"),
        (("x",), '{"cut": 0, "split": "b"}', "parameter 'split': 'b', but blocks of 'a' are"),
        (("x", "x.fp16"), "{}", "inputs 'x' and 'x.fp16' are one tensor"),
    ],
)
def test_wrong_or_surplus_tensors_are_told_the_open_cuts(
    cut: LocalSystem, tensors: tuple[str, ...], headers: str, told: str
) -> None:
    given = {name: numbers(1, 0)["x"] for name in tensors}
    answer = take(cut, "cut", Incoming(given, headers=headers))
    assert isinstance(answer, Refusal)
    assert answer.status == "INVALID_ARG"
    assert told in answer.message


def test_the_front_of_a_model_with_entries_takes_every_cut() -> None:
    model = complete_tensors(Plan.from_dict(example())).models[0]
    names = {spec.name: optional for spec, optional in request_tensors(model).items()}
    assert names == {"input": True, "cut_4": True}


# The plan written by hand: unequal shares, a shared pool, an entry


def test_a_plan_of_unequal_shares_is_served(tmp_path: Path) -> None:
    served = Plan.from_dict(example())
    system = LocalSystem(tmp_path / "serve", served, ServeOptions(guard_fraction=0.4))
    try:
        plan_served = system.deployment.plan
        for model in plan_served.models:
            for entry in model.queues:
                specs = entry.inputs or model.inputs
                tensors: Arrays = {s.name: np.ones((2, *s.shape[1:]), np.uint8) for s in specs}
                answer = take(system, model.name, Incoming(tensors, PATIENT_US))
                assert not isinstance(answer, Refusal), (model.name, entry.name, answer)
        runs = system.status()["counters"]["stage_runs"]
        assert {key.split("/")[-1] for key in runs} == {"p20", "p40", "p60", "p80"}
    finally:
        system.stop()
