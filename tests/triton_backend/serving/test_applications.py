"""Applications on a whole system in this process.

Real sockets, real shared memory, without Triton.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.triton_backend.serving import served_applications, small_plans
from tests.triton_backend.serving.served_applications import (
    OneAfterTheOther,
    application,
    expected,
    module,
    one_stage,
    onnx_plan,
    two_stage,
)
from tests.triton_backend.serving.system import Answer, LocalSystem, deploy, wait_for
from tests.triton_backend.serving.test_replay import replayed
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.transport.fetching import Fetches
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER, Arrays
from triton_backend.serving.transport.wire import NONE, RowSlice

pytestmark = pytest.mark.slow
PATIENT_US = 4_000_000
asked: list[RowSlice] = []  # of other hosts
NAMES = ("actdet", "chain", "fork", "traffic", "alone", "m_a")


def served_plan(plan_id: str = "apps") -> Plan:
    """A diamond, a chain and two forks, one of varying rows, over four models.

    And a detector alone.
    """
    models = [
        one_stage("m_a"),
        two_stage("m_b"),
        one_stage("m_c"),
        one_stage("m_d"),
        one_stage("m_e"),
    ]
    graphs = (
        served_applications.diamond(),
        application("chain", module("x", model="m_a"), module("y", "x", model="m_b")),
        application("fork", module("a"), module("b", "a"), module("c", "a")),
        served_applications.traffic(),
        application("alone", module("find", model="m_e", max_rows_given=5)),
    )
    return served_applications.with_applications(
        small_plans.plan(*models, plan_id=plan_id), *graphs, alone=("m_a",)
    )


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    # Requests that fill no batch wait for a fifth of their time then.
    made = LocalSystem(tmp_path / "serve", served_plan(), ServeOptions(guard_fraction=0.4))
    yield made
    made.stop()
    assert not list(SHARED_FOLDER.glob(f"{made.settings.segment_prefix}*"))


def request(system: LocalSystem, name: str, samples: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        spec.name: rng.integers(0, 256, (samples, *spec.shape[1:])).astype(np.uint8)
        for spec in system.deployment.served[name].inputs
    }


def check(answer: Answer, wanted: Arrays) -> None:
    assert not isinstance(answer, Refusal), answer
    assert answer.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(answer[name], array)


def settled(system: LocalSystem) -> bool:
    gateway = system.scheduler.gateway
    return not gateway.jobs and not gateway.retained_slots


def retained_bytes(deployment: Deployment) -> list[tuple[int, int]]:
    """Of every segment of retained outputs, the memory that it takes and could take."""
    names = [deployment.retained_segment(v.index) for v in deployment.vgpus]
    files = [place.stat() for name in names if (place := SHARED_FOLDER / name).exists()]
    return [(file.st_blocks * 512, file.st_size) for file in files]


def test_every_job_gets_the_answer_to_its_own_rows(system: LocalSystem) -> None:
    assert {taken for taken, _ in retained_bytes(system.deployment)} == {0}
    asked: list[tuple[str, Arrays]] = []
    for i in range(60):
        name = NAMES[i % len(NAMES)]
        asked.append((name, request(system, name, 1 + i % 3, seed=i)))
    results = [system.ask(name, tensors, PATIENT_US) for name, tensors in asked]
    for (name, tensors), result in zip(asked, results, strict=True):
        check(result(), expected(system.deployment, name, tensors))
    wait_for(lambda: settled(system))
    for name in NAMES:  # tensors between modules pass no front
        jobs, mine = system.fronts[name].jobs, [t for n, t in asked if n == name]
        assert jobs.bytes_in == sum(a.nbytes for t in mine for a in t.values())
        answers = [expected(system.deployment, name, t) for t in mine]
        assert jobs.bytes_out == sum(a.nbytes for t in answers for a in t.values())


def test_answers_are_those_of_the_models_one_after_the_other_in_onnxruntime(
    tmp_path: Path,
) -> None:
    root = tmp_path / "artifacts"
    plan = onnx_plan(root)
    options = ServeOptions(artifacts=root, guard_fraction=0.4)
    system = LocalSystem(tmp_path / "serve", plan, options)
    try:
        # Real runtimes write their first results to memory that is there already.
        retained = retained_bytes(system.deployment)
        assert retained
        assert all(taken >= size for taken, size in retained)
        rng = np.random.default_rng(4)
        rows = [rng.integers(0, 5, (1 + i % 4, 3)).astype(np.float32) for i in range(24)]
        rows.append(np.zeros((2, 3), np.float32))  # no crops at all
        asked = [(name, x) for x in rows for name in ("crops", "diamond", "alone")]
        # In time, or an optional module is left out.
        results = [system.ask(name, {"x": x}, PATIENT_US) for name, x in asked]
        chain = OneAfterTheOther(root)
        for (name, x), result in zip(asked, results, strict=True):
            check(result(), chain.answer(name, x))
        wait_for(lambda: settled(system))
    finally:
        system.stop()


def test_a_worker_that_dies_and_comes_back_leaves_no_wrong_answer_and_its_outputs(
    system: LocalSystem,
) -> None:
    deployment = system.deployment
    asked = [request(system, "actdet", 1 + i % 3, seed=i) for i in range(32)]
    results = [system.ask("actdet", tensors) for tensors in asked]
    for vgpu in range(len(deployment.vgpus)):  # one after the other, each while others run
        system.stop_worker(1, vgpu)
        system.start_worker(deployment, vgpu)
    answers = [result() for result in results]
    for tensors, answer in zip(asked, answers, strict=True):
        if not isinstance(answer, Refusal):
            check(answer, expected(deployment, "actdet", tensors))
        else:
            assert answer.status == "UNAVAILABLE", answer
    wait_for(lambda: settled(system))
    wait_for(lambda: system.status()["workers"]["up"] == len(deployment.vgpus))
    last = request(system, "actdet", 2, seed=99)
    check(system.ask("actdet", last)(), expected(deployment, "actdet", last))


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSystem]:
    """Two hosts beside the gateway's; none reaches retained outputs or slots of another."""
    asked.clear()
    ask = Fetches.ask

    def counted(self: Fetches, *arguments: Any) -> None:
        asked.append(arguments[2])
        ask(self, *arguments)

    monkeypatch.setattr(Fetches, "ask", counted)
    options = ServeOptions(
        hosts={"FAST": "127.0.0.2", "SLOW": "127.0.0.3"},
        gateway_host="127.0.0.1",
        base_port=19_060,
        guard_fraction=0.4,
    )
    made = LocalSystem(tmp_path / "serve", served_plan(), options)
    yield made
    made.stop()


def vgpus_on(system: LocalSystem, node: str) -> list[int]:
    deployment = system.deployment
    return [v.index for v in deployment.vgpus if deployment.node_name_of(v.index) == node]


def test_modules_on_several_hosts_have_the_rows_that_they_read_over_tcp(hosts: LocalSystem) -> None:
    jobs = [
        (NAMES[i % len(NAMES)], request(hosts, NAMES[i % len(NAMES)], 1 + i % 3, i))
        for i in range(40)
    ]
    results = [hosts.ask(name, tensors, PATIENT_US) for name, tensors in jobs]
    for (name, tensors), result in zip(jobs, results, strict=True):
        check(result(), expected(hosts.deployment, name, tensors))
    wait_for(lambda: settled(hosts))
    of_fronts = [piece for piece in asked if piece.producer == NONE]
    of_slow = [piece for piece in asked if piece.vgpu in vgpus_on(hosts, "SLOW")]
    assert len(of_fronts) >= len(jobs)  # each request is read by a first module on another host
    assert of_slow  # outputs of `m_b`, read by `m_d` and by fronts
    assert not [piece for piece in asked if piece.producer != NONE and piece.vgpu == NONE]


def test_a_job_that_is_dropped_names_the_module_with_numbers_and_frees_all(
    system: LocalSystem,
) -> None:
    for vgpu, one in enumerate(system.deployment.vgpus):
        if system.deployment.rows_of(vgpu)[0].model == 3:  # m_d
            system.stop_worker(1, one.index)
    answer = system.ask("actdet", request(system, "actdet", 1, seed=1))()
    assert isinstance(answer, Refusal)
    assert answer.status == "UNAVAILABLE"
    assert answer.message.startswith("application 'actdet', module 'd': ")
    assert re.search(r"ms after arrival, .*best possible finish", answer.message)
    wait_for(lambda: settled(system))
    drops = system.status()["counters"]["module_drops"]
    assert drops == {"actdet/d": 1}


def test_a_job_goes_on_without_an_optional_module_that_is_dropped_and_says_so(
    system: LocalSystem,
) -> None:
    for vgpu in range(len(system.deployment.vgpus)):
        if system.deployment.rows_of(vgpu)[0].model == 1:  # m_b, which `cars` runs
            system.stop_worker(1, vgpu)
    seed = next(  # a picture with both cars and people
        seed
        for seed in range(100)
        if (made := expected(system.deployment, "traffic", request(system, "traffic", 1, seed)))
        and len(made["car"])
        and len(made["person"])
    )
    tensors = request(system, "traffic", 1, seed)
    wanted = expected(system.deployment, "traffic", tensors)
    check(
        system.ask("traffic", tensors)(),
        wanted | {"car": wanted["car"][:0], "cars.dropped": np.array([True])},
    )
    wait_for(lambda: settled(system))


def test_without_a_scheduler_jobs_are_given_up_when_none_could_do_them_in_time(
    system: LocalSystem,
) -> None:
    system.scheduler.stop()
    least_ms = {name: system.deployment.least_us(name) / 1000 for name in NAMES}
    # Of the longest path; what a request may have no rows for takes no time.
    assert least_ms == {"actdet": 8, "chain": 6, "fork": 6, "traffic": 2, "alone": 2, "m_a": 2}
    answer = system.ask("actdet", request(system, "actdet", 1, seed=1))()
    assert isinstance(answer, Refusal)
    assert answer.status == "UNAVAILABLE"
    left = re.search(r"no scheduler is there, and more than the ([\d.]+) ms left", answer.message)
    assert left, answer.message
    assert float(left[1]) <= least_ms["actdet"]


def test_a_cancelled_job_leaves_nothing_behind(system: LocalSystem) -> None:
    gone: list[bool] = []
    results = [
        system.ask("actdet", request(system, "actdet", 1, seed=i), cancelled=lambda: bool(gone))
        for i in range(8)
    ]
    gone.append(True)
    for result in results:
        answer = result()
        assert not isinstance(answer, Refusal) or answer.status == "CANCELLED", answer
    wait_for(lambda: settled(system))


def test_jobs_in_flight_outlive_a_change_of_plan_and_the_log_is_answered_alike(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "serve"
    system = LocalSystem(folder, served_plan())
    try:
        asked = [(n, request(system, n, 1, seed=i)) for i, n in enumerate(NAMES * 5)]
        results = [system.ask(*one, PATIENT_US) for one in asked]
        after = deploy(folder, served_plan("next"), generation=2)
        for vgpu in range(len(after.vgpus)):
            if after.origins[vgpu].generation == after.generation:
                system.start_worker(after, vgpu)
        system.control("prepare", plan_id="next", generation=2)
        wait_for(lambda: system.status()["prepared"]["up"] == len(after.vgpus))
        system.control("swap", plan_id="next", generation=2)
        more = [(n, request(system, n, 1, seed=i)) for i, n in enumerate(NAMES * 3, 100)]
        results += [system.ask(*one, PATIENT_US) for one in more]
        for (name, tensors), result in zip(asked + more, results, strict=True):
            check(result(), expected(system.deployment, name, tensors))
        wait_for(lambda: settled(system) and not system.status()["former_batches"])
    finally:
        system.stop()
    done = replayed(folder)
    assert done.returncode == 0, done.stderr
    assert "decisions alike" in done.stdout
