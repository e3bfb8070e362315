"""Scheduler, fronts and workers together, over real sockets and shared memory, without Triton."""

import contextlib
import gc
import json
import re
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.triton_backend.serving.artifacts import FACTOR, OFFSET, affine
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import Answer, LocalSystem, deploy, wait_for
from triton_backend.contract.decisions import Dispatch, Hop
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import Arrival, StageDone, TransferDone
from triton_backend.contract.units import transfer_us
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.service import FrontService
from triton_backend.serving.gateway.event_log import read_events
from triton_backend.serving.liveness import limits
from triton_backend.serving.transport.authentication import CHALLENGE_FRAME_BYTES
from triton_backend.serving.transport.event_loop import make_socket
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER, Arrays
from triton_backend.serving.transport.wire import (
    LOCAL_BITS,
    NONE,
    BatchBody,
    Kind,
    frame,
    pack_batch,
)

pytestmark = pytest.mark.slow

# Lateness of a busy machine must not decide: the guard is a tenth of this.
PATIENT_US = 2_000_000


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    """Shared by the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("system")
    root = folder / "artifacts"
    served = plan(two_stage(), affine(root), affine(root, "halves", "FP16"))
    made = LocalSystem(folder / "serve", served, ServeOptions(artifacts=root))
    yield made
    made.stop()
    assert not list(SHARED_FOLDER.glob(f"{made.settings.segment_prefix}*"))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[LocalSystem]:
    """For tests that change what is served."""
    made = LocalSystem(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    yield made
    made.stop()


def numbers(samples: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(samples, 3)).astype(np.float32)


def picture(samples: int) -> Arrays:
    image = np.arange(samples * 48, dtype=np.float32).reshape(samples, 3, 16)
    return {"image": image, "mask": np.ones((samples, 4), dtype=np.uint8)}


def batches(system: LocalSystem, model: str) -> int:
    return system.status()["counters"]["batches"].get(model, 0)


def test_every_request_gets_the_answer_to_its_own_samples(system: LocalSystem) -> None:
    counters = system.fronts["affine"].counters
    before = counters.offered, counters.served + counters.late
    requests = [numbers(1 + i % 3, seed=i) for i in range(20)]
    results = [system.ask("affine", {"x": x}, PATIENT_US) for x in requests]
    for x, result in zip(requests, results, strict=True):
        answer = result()
        assert not isinstance(answer, Refusal)
        expected = x * np.float32(FACTOR) + np.float32(OFFSET)
        np.testing.assert_array_equal(answer["y"], expected)
    after = counters.offered, counters.served + counters.late
    assert [b - a for a, b in zip(before, after, strict=True)] == [20, 20]


def test_a_boundary_crosses_as_half_precision_where_the_plan_says_so(system: LocalSystem) -> None:
    x = numbers(4)
    answer = system.ask("halves", {"x": x}, PATIENT_US)()
    assert not isinstance(answer, Refusal)
    crossed = (x * np.float32(FACTOR)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(answer["y"], crossed + np.float32(OFFSET))


def test_several_tensors_go_in_and_samples_keep_their_marks(system: LocalSystem) -> None:
    tensors = picture(2)
    both = system.ask("pair", tensors, PATIENT_US)()
    alone = system.ask("pair", {n: array[1:] for n, array in tensors.items()}, PATIENT_US)()
    assert not isinstance(both, Refusal)
    assert not isinstance(alone, Refusal)
    assert both["scores"].shape == (2, 10)
    np.testing.assert_array_equal(both["scores"][1:], alone["scores"])


def test_a_deadline_that_cannot_be_met_is_answered_with_the_numbers(system: LocalSystem) -> None:
    def told_the_numbers() -> bool:
        answer = system.ask("affine", {"x": numbers(1)}, allowed_us=1_000)()
        assert isinstance(answer, Refusal)
        assert answer.status == "UNAVAILABLE"
        parts = ("deadline 1.0 ms", "best possible finish", "queue position 0")
        return all(part in answer.message for part in parts)

    # Where the scheduler's thread gets no turn for 15 ms, the front answers by itself, without
    # them.
    wait_for(told_the_numbers)


def test_more_samples_than_any_batch_are_an_invalid_argument(system: LocalSystem) -> None:
    answer = system.ask("affine", {"x": numbers(5)})()
    assert isinstance(answer, Refusal)
    assert answer.status == "INVALID_ARG"


def test_what_was_not_served_is_logged_with_its_numbers(system: LocalSystem) -> None:
    def lines() -> list[dict[str, Any]]:
        files = (system.settings.folder / "logs").glob("requests-*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def logged() -> bool:
        system.ask("affine", {"x": numbers(1)}, allowed_us=1_000)()
        return "deadline" in {line["outcome"] for line in lines()}

    wait_for(logged)
    line = next(line for line in lines() if line["outcome"] == "deadline")
    assert (line["model"], line["samples"]) == ("affine", 1)
    assert line["deadline_us"] - line["arrival_us"] == 1_000


def test_a_cancelled_request_is_not_run(system: LocalSystem) -> None:
    before = batches(system, "affine")
    answer = system.ask("affine", {"x": numbers(1)}, cancelled=lambda: True)()
    assert isinstance(answer, Refusal)
    assert answer.status == "CANCELLED"
    assert batches(system, "affine") == before


def test_a_lost_worker_costs_no_answer_while_the_pool_has_another(fresh: LocalSystem) -> None:
    fresh.stop_worker(1, 2)
    wait_for(lambda: fresh.status()["workers"]["up"] == 2)
    results = [fresh.ask("pair", picture(2), PATIENT_US) for _ in range(8)]
    assert not [r for r in results if isinstance(r(), Refusal)]
    fresh.start_worker(fresh.deployment, 2)
    wait_for(lambda: fresh.status()["workers"]["up"] == 3)


def test_requests_wait_out_a_flush_and_are_served_by_the_new_plan(fresh: LocalSystem) -> None:
    next_plan = replace(fresh.deployment.plan, plan_id="next")
    deploy(fresh.settings.folder, next_plan, generation=2)
    with pytest.raises(InputError, match="nothing is prepared"):
        fresh.control("swap", plan_id="next")
    fresh.control("prepare", plan_id="next", generation=2)
    wait_for(lambda: fresh.status()["prepared"]["up"] == 3)
    fresh.control("flush")
    waiting = fresh.ask("pair", picture(4), PATIENT_US)
    wait_for(lambda: fresh.status()["state"] == "flushed")
    fresh.control("swap", plan_id="next")
    assert not isinstance(waiting(), Refusal)
    assert fresh.status()["plan_id"] == "next"
    assert fresh.control("swap", plan_id="next")["state"] == "serving"


def answered(asked: list[Callable[[], Answer]]) -> list[bool]:
    return [not isinstance(result(), Refusal) for result in asked]


def test_a_plan_changes_with_work_in_flight_and_workers_that_go_on(fresh: LocalSystem) -> None:
    """Of three workers two go on under other numbers; the third gets larger batches and is new."""
    pair = fresh.deployment.plan
    first, last = (pool for pool in pair.pools)
    assert [first.vgpus, last.vgpus] == [1, 2]
    (pipeline,) = pair.models[0].pipelines
    head, tail = pipeline.stages
    slower = replace(head, latency_us_by_batch=(4_000, 5_000, 6_000, 7_000), latency_us=7_000)
    other = replace(pair.models[0], pipelines=(replace(pipeline, stages=(slower, tail)),))
    new = deploy(
        fresh.settings.folder, replace(pair, plan_id="next", models=(other,)), generation=2
    )
    assert [origin.generation for origin in new.origins] == [2, 1, 1]
    fresh.start_worker(new, 0)
    fresh.control("prepare", plan_id="next", generation=2)
    wait_for(lambda: fresh.status()["prepared"]["up"] == 3)
    asked = [fresh.ask("pair", picture(4), PATIENT_US) for _ in range(5)]
    wait_for(lambda: fresh.status()["in_flight"] > 0)
    state = fresh.control("swap", plan_id="next")
    assert (state["state"], state["generation"]) == ("serving", 2)
    asked += [fresh.ask("pair", picture(4), PATIENT_US) for _ in range(5)]
    assert all(answered(asked))
    wait_for(lambda: fresh.status()["in_flight"] == fresh.status()["former_batches"] == 0)
    fresh.stop_worker(1, 0)
    assert all(answered([fresh.ask("pair", picture(4), PATIENT_US) for _ in range(3)]))
    counters = fresh.status()["counters"]
    assert (counters["workers_lost"], counters["batches_failed"]) == (0, 0)
    # A worker that goes on is lost for the plan in force, and comes back for it.
    fresh.stop_worker(1, 1)
    wait_for(lambda: fresh.status()["workers"]["up"] == 2)
    assert all(answered([fresh.ask("pair", picture(4), PATIENT_US)]))
    fresh.start_worker(new, 1)
    wait_for(lambda: fresh.status()["workers"]["up"] == 3)
    assert all(answered([fresh.ask("pair", picture(4), PATIENT_US) for _ in range(3)]))


def test_a_worker_serves_on_after_rollouts_that_were_aborted(fresh: LocalSystem) -> None:
    served = fresh.deployment
    for generation in range(2, 7):
        following = replace(served.plan, plan_id=f"plan-{generation}")
        deploy(fresh.settings.folder, following, generation=generation)
        fresh.control("prepare", plan_id=following.plan_id, generation=generation)
        wait_for(lambda: fresh.status()["prepared"]["up"] == 3)
        fresh.control("abort")
    assert all(answered([fresh.ask("pair", picture(4), PATIENT_US) for _ in range(3)]))
    fresh.stop_worker(1, 0)
    fresh.start_worker(served, 0)
    wait_for(lambda: fresh.status()["workers"]["up"] == 3)
    assert all(answered([fresh.ask("pair", picture(4), PATIENT_US) for _ in range(3)]))


def test_the_same_plan_again_starts_no_worker(fresh: LocalSystem) -> None:
    for generation in range(2, 6):
        following = replace(fresh.deployment.plan, plan_id=f"plan-{generation}")
        deploy(fresh.settings.folder, following, generation=generation)
        asked = [fresh.ask("pair", picture(4), PATIENT_US) for _ in range(3)]
        fresh.control("prepare", plan_id=following.plan_id, generation=generation)
        wait_for(lambda: fresh.status()["prepared"]["up"] == 3)
        fresh.control("swap", plan_id=following.plan_id)
        asked += [fresh.ask("pair", picture(4), PATIENT_US) for _ in range(3)]
        assert all(answered(asked))
    assert fresh.status()["generation"] == 5
    assert fresh.status()["counters"]["workers_lost"] == 0


def open_files() -> Counter[str]:
    """Targets of this process's descriptors, without numbers.

    A deleted segment that is still mapped is not counted: an idle thread keeps its last batch's
    tensors.
    """
    names: Counter[str] = Counter()
    for place in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            names[re.sub(r"[0-9]+", "#", str(place.readlink()))] += 1
    return Counter({name: n for name, n in names.items() if not name.endswith("(deleted)")})


@pytest.fixture
def deployments(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """Says the generations of the deployments in memory that were read from now on.

    Nothing collects cycles meanwhile, as in a process that has frozen what it loaded.
    """
    made: list[weakref.ref[Deployment]] = []
    create = Deployment.__init__

    def created(self: Deployment, *arguments: Any, **named: Any) -> None:
        create(self, *arguments, **named)
        made.append(weakref.ref(self))

    def generations() -> list[int]:
        return sorted(each.generation for ref in list(made) if (each := ref()) is not None)

    gc.disable()
    monkeypatch.setattr(Deployment, "__init__", created)
    yield generations
    gc.enable()


@pytest.fixture
def brief_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else fronts keep slots for 10 s."""
    monkeypatch.setattr(limits, "DEAD_BY_NOW_US", 0)


@pytest.mark.usefixtures("brief_holds")
def test_changes_of_plan_give_back_what_they_took(
    deployments: Callable[[], list[int]], fresh: LocalSystem
) -> None:
    """Of workers that go on, too: no socket, segment or deployment of a plan that is over stays."""
    processes = 2 + len(fresh.workers)  # the scheduler's and a front's, too
    after: list[Counter[str]] = []
    answers_of_first = f"{fresh.settings.segment_prefix}g1-f*"
    for generation in range(2, 7):
        following = replace(fresh.deployment.plan, plan_id=f"plan-{generation}")
        deploy(fresh.settings.folder, following, generation=generation)
        fresh.control("prepare", plan_id=following.plan_id, generation=generation)
        wait_for(lambda: fresh.status()["prepared"]["up"] == 3)
        fresh.control("swap", plan_id=following.plan_id)
        assert all(answered([fresh.ask("pair", picture(4), PATIENT_US) for _ in range(5)]))
        if after:
            wait_for(lambda: open_files() <= after[0])
        else:
            wait_for(lambda: not list(SHARED_FOLDER.glob(answers_of_first)))
        after.append(open_files())
        # Of a process: its own, and the first, for which its workers were started; one is the
        # test's.
        kept = sorted([1] * (processes + 1) + [generation] * processes)
        wait_for(lambda kept=kept: deployments() == kept)


def test_a_late_batch_of_a_plan_that_is_over_costs_nobody_a_connection(
    fresh: LocalSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the batches that its sender has sent behind it would be lost with it."""
    first = fresh.deployment
    deploy(fresh.settings.folder, replace(first.plan, plan_id="next"), generation=2)
    fresh.control("prepare", plan_id="next", generation=2)
    wait_for(lambda: fresh.status()["prepared"]["up"] == 3)
    fresh.control("swap", plan_id="next")
    wait_for(lambda: fresh.scheduler.gateway.generations.begun_of(1) is None)
    worker, _ = fresh.workers[1000]
    worker.forget_others(2, 2)  # as the scheduler has it do, sooner or later
    hops = (Hop(0, 0, 0, 0, 1), Hop(1, 0, 0, 0, 1))
    late = pack_batch(BatchBody(0, 0, 1, 0, 0, 0, 0, NONE, hops, (0, 0)))
    sock, address = make_socket(first.worker_address(0, same_host=True))
    with sock:
        sock.connect(address)
        sock.sendall(frame(Kind.BATCH, late, batch_id=1, plan_tag=first.tag))
        wait_for(lambda: "batch 1 is not run: its plan is over" in caplog.text)
        sock.sendall(frame(Kind.BATCH, late, batch_id=2, plan_tag=first.tag))
        wait_for(lambda: "batch 2 is not run: its plan is over" in caplog.text)
    assert all(answered([fresh.ask("pair", picture(4), PATIENT_US) for _ in range(3)]))


def test_an_aborted_rollout_leaves_the_old_plan_serving(fresh: LocalSystem) -> None:
    next_plan = replace(fresh.deployment.plan, plan_id="next")
    deploy(fresh.settings.folder, next_plan, generation=2)
    fresh.control("prepare", plan_id="next", generation=2)
    fresh.control("flush")
    waiting = fresh.ask("pair", picture(4), PATIENT_US)
    state = fresh.control("abort")
    assert (state["state"], state["plan_id"], state["prepared"]) == ("serving", "test-plan", None)
    assert not isinstance(waiting(), Refusal)


def test_control_requests_that_make_no_sense_are_refused(system: LocalSystem) -> None:
    for request in ("", "[]", "{}", '{"command": "dance"}', '{"command": "prepare"}'):
        with pytest.raises(InputError):
            system.scheduler.control(request)


def test_transfers_last_as_long_as_on_the_links_and_the_event_file_tells_it(
    tmp_path: Path,
) -> None:
    system = LocalSystem(tmp_path / "slow", plan(two_stage()), ServeOptions(emulate_links=True))
    assert not isinstance(system.ask("pair", picture(4), PATIENT_US)(), Refusal)
    wait_for(lambda: not system.status()["in_flight"])
    system.stop()
    (path,) = (system.settings.folder / "events").iterdir()
    items = list(read_events(path.read_text().splitlines()))
    life = Arrival | Dispatch | StageDone | TransferDone
    # Two workers tell of the first stage's end and of the transfer, so these two may change places.
    assert sorted(type(item).__name__ for item in items if isinstance(item, life)) == [
        "Arrival",
        "Dispatch",
        "StageDone",
        "StageDone",
        "TransferDone",
    ]
    (moved,) = [item for item in items if isinstance(item, TransferDone)]
    assert moved.end_us - moved.start_us == transfer_us(4 * 8 * 16 * 4, 10.0)


def test_hosts_without_common_memory_are_served_over_tcp(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    options = ServeOptions(
        artifacts=root,
        hosts={"FAST": "127.0.0.2", "SLOW": "127.0.0.3"},
        gateway_host="127.0.0.1",
        base_port=18_060,
    )
    system = LocalSystem(tmp_path / "tcp", plan(affine(root, "halves", "FP16")), options)
    for seed in range(3):
        x = numbers(4, seed)
        answer = system.ask("halves", {"x": x}, PATIENT_US)()
        assert not isinstance(answer, Refusal)
        crossed = (x * np.float32(FACTOR)).astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(answer["y"], crossed + np.float32(OFFSET))
    with socket.create_connection(("127.0.0.2", system.deployment.worker_port(0))) as stranger:
        stranger.sendall(frame(Kind.BATCH, b"", payload_bytes=100) + bytes(100))
        with contextlib.suppress(ConnectionResetError):
            assert len(stranger.recv(1000)) == CHALLENGE_FRAME_BYTES
            assert stranger.recv(1) == b""
    assert not isinstance(system.ask("halves", {"x": numbers(4)}, PATIENT_US)(), Refusal)
    system.stop()


def test_a_batch_holds_requests_of_both_gateways_and_each_front_answers_its_own(
    tmp_path: Path,
) -> None:
    root = tmp_path / "artifacts"
    options = ServeOptions(artifacts=root, gateways=2)
    system = LocalSystem(tmp_path / "serve", plan(affine(root)), options)
    second = system.settings.of_gateway(1)
    other = FrontService(second, Deployment.read(second, 1), "affine", system.clock)
    fronts = system.fronts["affine"], other
    other.start()
    try:
        # Announced by both before anything is dispatched, so that batches hold requests of both.
        system.control("flush")
        questions = [(n, numbers(1 + n % 2, n)) for n in range(40)]
        asked: list[tuple[NDArray[np.float32], Callable[[], Answer]]] = []
        for n, question in questions:
            system.fronts["affine"] = fronts[n % 2]
            asked.append((question, system.ask("affine", {"x": question}, PATIENT_US)))
        wait_for(lambda: system.status()["counters"]["offered"] == {"affine": len(asked)})
        system.control("abort")
        for question, answer in asked:
            found = answer()
            assert not isinstance(found, Refusal), found
            assert np.array_equal(found["y"], question * FACTOR + OFFSET)
    finally:
        other.stop()
        system.fronts["affine"] = fronts[0]
        system.stop()
    batches = [
        item.request_ids
        for path in sorted((tmp_path / "serve" / "events").iterdir())
        for item in read_events(path.read_text().splitlines())
        if isinstance(item, Dispatch)
    ]
    mixed = [ids for ids in batches if len({number >> LOCAL_BITS for number in ids}) == 2]
    assert mixed
    assert sorted(number for ids in batches for number in ids) == sorted(
        {number for ids in batches for number in ids}
    )
