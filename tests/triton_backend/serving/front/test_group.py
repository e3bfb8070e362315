"""The fronts of a name while plans come and go: none of its requests is lost."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from tests.triton_backend.serving.front.test_service_incoming import Incoming
from tests.triton_backend.serving.one_name.sized_plans import NAME, sized_plan
from tests.triton_backend.serving.one_name.variant_plans import CHEAP, variant_plan
from tests.triton_backend.serving.one_name.variant_plans import NAME as NET
from tests.triton_backend.serving.small_plans import BATCH
from tests.triton_backend.serving.system import LocalSystem, deploy, wait_for
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.names import PRIORITY_PARAMETER, VARIANT_OUTPUT
from triton_backend.serving.front import group as groups
from triton_backend.serving.front.group import FrontGroup
from triton_backend.serving.front.replies import Refusal, Result

pytestmark = pytest.mark.slow
PATIENT_US = 60_000_000
Begin = Callable[[Plan], LocalSystem]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    begun: list[LocalSystem] = []

    def system(plan: Plan) -> LocalSystem:
        begun.append(LocalSystem(tmp_path, plan, names_variants=bool(plan.workload.variants)))
        return begun[-1]

    yield system
    for one in begun:
        one.stop()


def prepare(system: LocalSystem, plan: Plan, generation: int = 2) -> None:
    """Up to the swap, as a rollout does it."""
    made = deploy(system.settings.folder, plan, generation=generation)
    for vgpu, origin in enumerate(made.origins):
        if origin.generation == generation:
            system.start_worker(made, vgpu)
    system.control("prepare", plan_id=plan.plan_id, generation=generation)
    vgpus = len(made.vgpus)
    wait_for(lambda: system.status()["prepared"]["up"] == vgpus)
    wait_for(lambda: not system.status()["missing_fronts"])


def swap(system: LocalSystem, plan: Plan, generation: int = 2) -> None:
    prepare(system, plan, generation)
    system.control("swap", plan_id=plan.plan_id, generation=generation)


def ask(group: FrontGroup, *shape: int) -> Result:
    answers: list[Result] = []
    group.take(Incoming({"x": np.ones(shape, np.float32)}), answers.append)
    wait_for(lambda: len(answers) == 1)
    return answers[0]


def width_of(answer: Result) -> int | str:
    return answer.message if isinstance(answer, Refusal) else answer["y"].shape[1] * 4


class Load:
    """Requests of one size, one after the other, until the end of the block."""

    def __init__(self, group: FrontGroup, *shape: int) -> None:
        self.answers: list[Result] = []
        self._group, self._shape = group, shape
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.answers.append(ask(self._group, *self._shape))

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: bool(self.answers))
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def refused(self) -> list[str]:
        return [answer.message for answer in self.answers if isinstance(answer, Refusal)]


def test_what_a_plan_has_under_a_name_is_not_looked_up_every_second(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = begin(sized_plan((32, 64))).groups[NAME]
    monkeypatch.setattr(groups, "answering", None)
    group.look()
    assert width_of(ask(group, 4, 3, 64)) == 64


def test_a_size_is_served_from_the_swap_on_that_has_it_and_no_longer(begin: Begin) -> None:
    system = begin(sized_plan((32, 64)))
    group = system.groups[NAME]
    other = "model 'reader': x=3x128 is none of the sizes served: x=3x32; x=3x64"
    with Load(group, 4, 3, 64) as load:
        prepare(system, more := sized_plan((32, 64, 128), "more"))
        assert width_of(ask(group, 4, 3, 128)) == other
        system.control("swap", plan_id=more.plan_id)
        wait_for(lambda: width_of(ask(group, 4, 3, 128)) == 128)
        swap(system, sized_plan((64, 128), "fewer"), 3)
        gone = "model 'reader': x=3x32 is none of the sizes served: x=3x64; x=3x128"
        wait_for(lambda: width_of(ask(group, 4, 3, 32)) == gone)
        assert width_of(ask(group, 4, 3, 128)) == 128
    assert not load.refused()


def test_all_sizes_may_be_other_ones(begin: Begin) -> None:
    system = begin(sized_plan((32, 64)))
    group = system.groups[NAME]
    swap(system, sized_plan((16, 8), "others"))
    wait_for(lambda: width_of(ask(group, 4, 3, 16)) == 16)
    assert "none of the sizes served: x=3x16; x=3x8" in str(width_of(ask(group, 4, 3, 32)))


def test_an_aborted_change_closes_its_fronts_which_end(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = begin(sized_plan((32, 64)))
    group = system.groups[NAME]
    prepare(system, sized_plan((32, 64, 128), "more"))
    group.look()
    assert len(group.fronts) == 3
    system.control("abort")
    monkeypatch.setattr(groups, "CLOSED_KEPT_US", 0)

    def ended() -> bool:
        group.look()
        return len(group.fronts) == 2

    wait_for(ended)
    assert width_of(ask(group, 4, 3, 64)) == 64


def test_a_size_that_is_gone_comes_back(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    system = begin(sized_plan((32, 64)))
    group = system.groups[NAME]
    swap(system, sized_plan((32,), "fewer"))
    monkeypatch.setattr(groups, "CLOSED_KEPT_US", 0)

    def ended() -> bool:
        group.look()
        return len(group.fronts) == 1

    wait_for(ended)
    assert width_of(ask(group, 4, 3, 64)) == (
        "model 'reader': x=3x64 is none of the sizes served: x=3x32"
    )
    swap(system, sized_plan((32, 64), "again"), 3)
    wait_for(lambda: width_of(ask(group, 4, 3, 64)) == 64)


def test_a_front_that_could_not_be_made_is_made_later(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = begin(sized_plan((32, 64)))
    group = system.groups[NAME]
    with monkeypatch.context() as patched:
        patched.setattr(groups, "FrontService", None)
        plan = sized_plan((32, 64, 128), "more")
        deployment = deploy(system.settings.folder, plan, generation=2)
        for vgpu, origin in enumerate(deployment.origins):
            if origin.generation == 2:
                system.start_worker(deployment, vgpu)
        system.control("prepare", plan_id=plan.plan_id, generation=2)
        wait_for(lambda: system.status()["prepared"]["up"] == len(deployment.vgpus))
        assert system.status()["missing_fronts"] == ["reader@3x128"]
        system.control("swap", plan_id=plan.plan_id)
        assert width_of(ask(group, 4, 3, 64)) == 64
    group.look()
    wait_for(lambda: width_of(ask(group, 4, 3, 128)) == 128)


def patient(plan: Plan) -> Plan:
    """The same with SLOs in which a busy machine gives nothing up."""
    models = tuple(replace(model, slo_us=PATIENT_US) for model in plan.models)
    demands = tuple(replace(demand, slo_us=PATIENT_US) for demand in plan.workload.models)
    return replace(plan, models=models, workload=replace(plan.workload, models=demands))


def low_request() -> Incoming:
    headers = f'{{"{PRIORITY_PARAMETER}": "2"}}'
    """It fills a batch, so that it waits for no other."""
    return Incoming({"x": np.ones((BATCH, 3), np.float32)}, timeout_us=PATIENT_US, headers=headers)


def variant_of(answer: Result) -> str:
    return answer.message if isinstance(answer, Refusal) else answer[VARIANT_OUTPUT][0].decode()


def test_a_variant_comes_and_goes_and_what_waits_for_it_is_answered_by_another(
    begin: Begin,
) -> None:
    system = begin(patient(variant_plan("two")))
    named = system.groups[NET]

    def answering() -> str:
        answers: list[Result] = []
        named.take(low_request(), answers.append)
        wait_for(lambda: len(answers) == 1)
        return variant_of(answers[0])

    # Low requests go there once the scheduler has said that no vGPU of it is lost.
    wait_for(lambda: answering() == CHEAP)
    prepare(system, patient(variant_plan("one", (NET,))))
    system.control("flush")
    waiting: list[Result] = []
    for _ in range(8):
        named.take(low_request(), waiting.append)
    wait_for(lambda: system.status()["queued"][CHEAP] == 8)
    wait_for(lambda: system.status()["state"] == "flushed")
    system.control("swap", plan_id="one")
    wait_for(lambda: len(waiting) == 8)
    assert [variant_of(answer) for answer in waiting] == [NET] * 8
    swap(system, patient(variant_plan("two-again")), 3)
    wait_for(lambda: answering() == CHEAP)
