"""Plans compared on a real Triton before the change: clients see the former one alone."""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from flows.release.rollout.change import Step, StepDone, change_plan
from flows.release.rollout.comparing import STAND_IN, DifferenceError, check_comparable
from flows.release.rollout.options import CLIENTS, RANDOM, RolloutOptions
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.flows.release.server.test_running import line, server_ports
from tests.triton_backend.serving.artifacts import (
    FACTOR,
    OFFSET,
    affine,
    write_slow_stage,
    write_stage,
)
from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions

PATIENT_US = 4_000_000
COMPARED = RolloutOptions(compare_requests=4)
MIRRORED = RolloutOptions(compare_requests=4, compare_from=CLIENTS, compare_seconds=10.0)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def served(artifacts: Path) -> Plan:
    return plan(affine(artifacts), plan_id="served")


@pytest.fixture(scope="module")
def state(
    tmp_path_factory: pytest.TempPathFactory, artifacts: Path, served: Plan
) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("serve")
    render_repository(folder, served, ServeOptions(artifacts=artifacts))
    yield start(folder, server_ports())
    stop(folder)


def with_second(served: Plan, artifact: str, plan_id: str) -> Plan:
    """The same plan, but for the artifact of its model's second stage."""
    (model,) = served.models
    (pipeline,) = model.pipelines
    stages = (pipeline.stages[0], replace(pipeline.stages[1], artifact=artifact))
    changed = replace(model, pipelines=(replace(pipeline, stages=stages),))
    return replace(served, plan_id=plan_id, models=(changed,))


def another(artifacts: Path) -> str:
    """A name that no artifact has."""
    return f"another-{len(list(artifacts.iterdir()))}"


def wrong(artifacts: Path, served: Plan) -> Plan:
    """Another weight in the second stage."""
    name = write_stage(artifacts, another(artifacts), "Add", OFFSET + 0.5, ("middle", "y"))
    return with_second(served, name, "wrong")


def slow(artifacts: Path, served: Plan) -> Plan:
    """The same weights, and much work for nothing."""
    name = write_slow_stage(artifacts, another(artifacts), OFFSET, ("middle", "y"))
    return with_second(served, name, "slow")


@contextlib.contextmanager
def clients(state: ServerState) -> Generator[list[np.ndarray]]:
    """A client that asks until the end; every answer, in order. One that fails ends the test."""
    answers: list[np.ndarray] = []
    failures: list[Exception] = []
    over = threading.Event()

    def ask() -> None:
        given = grpc_client.InferInput("x", [4, 3], "FP32")
        given.set_data_from_numpy(line(4))
        with contextlib.closing(grpc_client.InferenceServerClient(state.grpc_url)) as client:
            try:
                while not over.is_set():
                    answer: Any = client.infer("affine", [given], timeout=PATIENT_US)
                    answers.append(answer.as_numpy("y"))
            except Exception as error:  # noqa: BLE001 - raised below, in the test's thread
                failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()
    assert not failures
    assert answers


@pytest.mark.slow
@pytest.mark.parametrize("options", [COMPARED, MIRRORED], ids=[RANDOM, CLIENTS])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (wrong, r"affine, pipeline 0: 'y' differs by .* from the plan in force"),
        (slow, r"affine, pipeline 0: one sample takes .* planned 4\.0 ms"),
    ],
)
def test_a_plan_that_answers_otherwise_or_late_never_serves(
    state: ServerState,
    artifacts: Path,
    served: Plan,
    make: Callable[[Path, Plan], Plan],
    told: str,
    options: RolloutOptions,
) -> None:
    before = state.control("status")
    steps: list[StepDone] = []
    with clients(state) as answers, pytest.raises(DifferenceError, match=told):
        change_plan(state.folder, make(artifacts, served), steps.append, options=options)
    for answer in answers:
        np.testing.assert_array_equal(answer, line(4) * FACTOR + OFFSET)
    assert [one.step for one in steps] == [Step.RENDER, Step.PRELOAD, Step.PREPARE, Step.ABORT]
    now = state.control("status")
    assert (now["plan_id"], now["generation"], now["prepared"]) == (
        before["plan_id"],
        before["generation"],
        None,
    )


@pytest.mark.slow
def test_a_plan_that_answers_alike_follows(
    state: ServerState, artifacts: Path, served: Plan
) -> None:
    name = write_stage(artifacts, "alike-1", "Add", OFFSET, ("middle", "y"))
    alike = with_second(served, name, "alike")
    steps: list[StepDone] = []
    with clients(state) as answers:
        change_plan(state.folder, alike, steps.append, options=COMPARED)
    for answer in answers:
        np.testing.assert_array_equal(answer, line(4) * FACTOR + OFFSET)
    (compared,) = next(one.compared for one in steps if one.step is Step.COMPARE)
    assert (compared.model, compared.largest, compared.mean) == ("affine", 0.0, 0.0)
    assert compared.planned_us == 4_000
    assert state.control("status")["plan_id"] == "alike"


@pytest.mark.slow
def test_requests_of_clients_are_compared_within_a_tolerance(
    state: ServerState, artifacts: Path, served: Plan
) -> None:
    # The client asks for the same line, so answers differ by 0.5 of its largest value.
    largest = float(np.abs(line(4)[0] * FACTOR + OFFSET).max())
    options = replace(MIRRORED, compare_tolerance=0.9)
    steps: list[StepDone] = []
    with clients(state):
        change_plan(state.folder, wrong(artifacts, served), steps.append, options=options)
    (compared,) = next(one.compared for one in steps if one.step is Step.COMPARE)
    assert (compared.requests, compared.source) == (4, CLIENTS)
    assert compared.largest == compared.mean == pytest.approx(0.5 / largest, rel=1e-5)
    assert not list((state.folder / "mirror").iterdir())


@pytest.mark.slow
def test_random_requests_stand_in_where_clients_send_none(state: ServerState, served: Plan) -> None:
    options = replace(MIRRORED, compare_seconds=1.0, compare_tolerance=0.9)
    steps: list[StepDone] = []
    change_plan(state.folder, replace(served, plan_id="quiet"), steps.append, options=options)
    (compared,) = next(one.compared for one in steps if one.step is Step.COMPARE)
    assert (compared.requests, compared.source) == (4, STAND_IN)
    assert "random requests (clients sent none with its inputs)" in str(compared)


def test_what_cannot_be_compared_is_refused(served: Plan) -> None:
    whole = complete_tensors(served)
    emulated = complete_tensors(plan(two_stage("affine"), plan_id="emulated"))
    for old, new in ((whole, emulated), (emulated, whole)):
        with pytest.raises(InputError, match="'affine' is emulated: its answers mean nothing"):
            check_comparable(old, new, {})
    with pytest.raises(InputError, match="the plans have no model in common"):
        check_comparable(whole, complete_tensors(plan(two_stage("pair"), plan_id="other")), {})
    with pytest.raises(InputError, match="node SLOW is on another host"):
        check_comparable(whole, whole, {"SLOW": "10.0.0.2"})
