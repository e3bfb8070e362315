"""A rollout cut off anywhere ends with the old plan or the new one serving, on a real Triton."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from flows.clock import now_utc
from flows.planning import PlanOptions, make_plan
from flows.release.rollout import guarded as rollout
from flows.release.rollout import outcomes
from flows.release.rollout.guarded import (
    DONE,
    FAILED,
    ROLLED_BACK,
    RolloutOptions,
    finish_interrupted,
    roll_back,
    roll_out,
)
from flows.release.rollout.outcomes import Outcomes
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerError, ServerState
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.flows.deployments.crashing import STEPS, Moment, crash
from tests.flows.planning.small import profile
from tests.flows.release.server.test_running import server_ports
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder import repository
from triton_backend.serve_folder.repository import (
    is_node_model,
    node_model,
    read_node_generations,
    read_workers,
    render_repository,
    rendered_generations,
    used_nodes,
)
from triton_backend.serve_folder.settings import ServeOptions
from warehouse.observations import list_rollouts, rollout_steps, unfinished_rollout
from warehouse.plans import add_plan

pytestmark = pytest.mark.slow
NOT_WATCHED = RolloutOptions(bake_seconds=0.0)
PATIENT_US = 5_000_000
SLO_US = 400_000
AFTER_SWAP = STEPS[STEPS.index("swap") :]


def emulated(slo_margin: float) -> Plan:
    """A real plan of one model on one emulated GPU; the margin gives it an id of its own."""
    slow = profile("pair", fast_us=(10_000.0, 10_000.0, 10_000.0))
    demand = ModelDemand(name="pair", slo_us=SLO_US, batch_building_rate_rps=1e9)
    options = PlanOptions(slo_margin=slo_margin)
    one_node = Cluster(
        name="one",
        gpu_classes=(GpuClass(name="fast"),),
        nodes=(NodeGroup(count=1, gpu_class="fast", gpus=1, nic_gbps=10),),
    )
    return make_plan({"pair": slow}, one_node, Workload(models=(demand,)), options)


class System:
    """The server, its project, and two plans that take turns."""

    def __init__(self, work: Workspace, state: ServerState, plans: tuple[Plan, Plan]) -> None:
        self.work, self.state = work, state
        self.plans = plans

    @property
    def in_force(self) -> str:
        return str(self.state.control("status")["plan_id"])

    @property
    def batch(self) -> int:
        """Samples that every plan takes at once."""
        (batch,) = {plan.models[0].pipelines[0].batch for plan in self.plans}
        return batch

    def other(self) -> Plan:
        return next(plan for plan in self.plans if plan.plan_id != self.in_force)

    def infer(self, timeout_us: int = PATIENT_US) -> np.ndarray:
        """The first output for a batch of zeros; a smaller one would wait for company."""
        model = complete_tensors(self.plans[0]).models[0]
        client = http_client.InferenceServerClient(self.state.http_url)
        inputs: list[http_client.InferInput] = []
        for spec in model.inputs:
            array = np.zeros((self.batch, *spec.shape[1:]), triton_to_np_dtype(spec.dtype))
            given = http_client.InferInput(spec.name, list(array.shape), spec.dtype)
            given.set_data_from_numpy(array)
            inputs.append(given)
        try:
            answer = client.infer("pair", inputs, timeout=timeout_us)
            return np.asarray(answer.as_numpy(model.outputs[0].name))
        finally:
            client.close()

    def answers(self) -> bool:
        """True if a request is served; fronts need a moment to find a gateway that came back."""
        with contextlib.suppress(InferenceServerException):
            return len(self.infer()) == self.batch
        return False

    def check_serving(self, plan_id: str) -> None:
        """One plan, whole, nothing left of another, and it answers."""

        def up() -> bool:
            with contextlib.suppress(ServerError):
                workers = self.state.control("status")["workers"]
                return workers["up"] == workers["total"]
            return False

        wait_for(up)
        status = self.state.control("status")
        assert (status["plan_id"], status["state"]) == (plan_id, "serving")
        assert status["prepared"] is None
        names = [entry.name for entry in (self.state.folder / "repository").iterdir()]
        (node,) = used_nodes(self.plans[0])
        assert [name for name in names if is_node_model(name)] == [node_model(node)]
        (generation,) = read_node_generations(self.state.folder, node)
        assert generation == status["generation"]
        assert self.state.ask(node_model(node), {})["generations"] == [generation]
        assert len(self.infer()) == self.batch
        with self.work.open() as warehouse:
            assert unfinished_rollout(warehouse) is None


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("project")
    work = Workspace(state=ProjectState(home=folder), warehouse=folder / "w.duckdb")
    plans = (emulated(0.4), emulated(0.3))
    with work.open() as warehouse:
        add_plan(warehouse, plans[0], now_utc())
    render_repository(work.state.serve, plans[0], ServeOptions())
    state = start(work.state.serve, server_ports())
    yield System(work, state, plans)
    stop(work.state.serve)


@pytest.mark.parametrize(
    "moment",
    [
        Moment(step="checked", recorded=True),
        *(Moment(step=step, recorded=True) for step in STEPS),
        Moment(step="flush", recorded=False),
        Moment(step="swap", recorded=False),
    ],
    ids=lambda m: f"{'after' if m.recorded else 'within'}-{m.step}",
)
def test_a_killed_flow_leaves_one_plan_and_the_next_one_finishes(
    system: System, moment: Moment
) -> None:
    old, new = system.in_force, system.other()
    crash(system.work, new, moment)
    expected = new.plan_id if moment.step in AFTER_SWAP else old
    for _ in range(2):  # twice is harmless
        assert finish_interrupted(system.work).plan_id == expected
    system.check_serving(expected)
    with system.work.open() as warehouse:
        last = list_rollouts(warehouse)[0]
    assert last.state == (DONE if expected == new.plan_id else FAILED)
    assert "interrupted" in str(last.outcome)


def test_a_rollout_after_a_killed_one_needs_nobody_to_clear_up(system: System) -> None:
    new = system.other()
    crash(system.work, new, Moment(step="prepare", recorded=True))
    assert roll_out(system.work, new, NOT_WATCHED).state == DONE
    system.check_serving(new.plan_id)


def test_the_plan_in_force_again_changes_nothing(system: System) -> None:
    generation = system.state.control("status")["generation"]
    with system.work.open() as warehouse:
        before = list_rollouts(warehouse)
    (same,) = (plan for plan in system.plans if plan.plan_id == system.in_force)
    without_warehouse = replace(system.work, warehouse=Path("/nowhere/w.duckdb"))
    again = roll_out(without_warehouse, same, NOT_WATCHED)
    assert (again.state, again.rollout_id) == (DONE, None)
    assert system.state.control("status")["generation"] == generation
    with system.work.open() as warehouse:
        assert list_rollouts(warehouse) == before


def test_a_comparison_that_means_nothing_is_refused_and_nothing_changes(system: System) -> None:
    before = system.in_force
    with system.work.open(read_only=True) as warehouse:
        recorded = list_rollouts(warehouse)
    with pytest.raises(InputError, match="'pair' is emulated: its answers mean nothing"):
        roll_out(system.work, system.other(), RolloutOptions(compare_requests=1))
    system.check_serving(before)
    with system.work.open(read_only=True) as warehouse:
        assert list_rollouts(warehouse) == recorded


def test_the_plan_in_force_again_ends_a_killed_rollout_to_it(system: System) -> None:
    new = system.other()
    crash(system.work, new, Moment(step="swap", recorded=True))
    again = roll_out(system.work, new, NOT_WATCHED)
    assert (again.state, again.rollout_id) == (DONE, None)
    system.check_serving(new.plan_id)
    with system.work.open() as warehouse:
        last = list_rollouts(warehouse)[0]
    assert (last.plan_id, last.state) == (new.plan_id, DONE)


def test_a_second_rollout_ends_no_rollout_that_lives(
    system: System, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    old, new = (next(p for p in system.plans if p.plan_id == system.in_force), system.other())
    baking, baked = threading.Event(), threading.Event()

    def bake(*_: object) -> tuple[dict[str, Outcomes], None]:
        baking.set()
        baked.wait()
        return {}, None

    monkeypatch.setattr(rollout, "bake", bake)
    watched = replace(NOT_WATCHED, bake_seconds=1.0)
    done: dict[str, str] = {}

    def bring(plan: Plan) -> None:
        done[plan.plan_id] = roll_out(system.work, plan, watched).outcome

    threads = [threading.Thread(target=bring, args=(plan,)) for plan in (new, old)]
    threads[0].start()
    assert baking.wait(60)
    with pytest.raises(
        InputError, match=f"another change of plan is under way: process {os.getpid()}"
    ):
        roll_out(system.work, old, replace(NOT_WATCHED, wait=False))
    with pytest.raises(InputError, match="another change of plan is under way"):
        roll_back(system.work, replace(NOT_WATCHED, wait=False))
    threads[1].start()
    said: list[str] = []

    def waits() -> bool:
        said.append(capfd.readouterr().err)
        return "waiting for another change of plan: process" in "".join(said)

    wait_for(waits)
    assert system.in_force == new.plan_id
    baked.set()
    for thread in threads:
        thread.join()
    assert set(done.values()) == {"attained its targets for 1 s"}
    system.check_serving(old.plan_id)
    with system.work.open() as warehouse:
        assert [r.state for r in list_rollouts(warehouse)[:2]] == [DONE, DONE]


def test_generations_that_no_process_reads_go_and_other_files_are_no_matter(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "KEPT_GENERATIONS", 1)
    (system.state.folder / "generations" / "9.partial").touch()
    for _ in range(2):
        assert roll_out(system.work, system.other(), NOT_WATCHED).state == DONE
        generation = int(system.state.control("status")["generation"])
        origins = {
            origin.generation for origin in read_workers(system.state.folder, generation).origins
        }
        assert set(rendered_generations(system.state.folder)) == origins | {generation}
    system.check_serving(system.in_force)


def test_rolling_back_brings_the_former_plan_and_its_history(system: System) -> None:
    old, new = system.in_force, system.other()
    roll_out(system.work, new, replace(NOT_WATCHED, reason="to be undone"))
    done = roll_back(system.work, replace(NOT_WATCHED, reason="undone"))
    assert (done.state, done.plan_id) == (DONE, old)
    system.check_serving(old)
    with system.work.open() as warehouse:
        reasons = [r.reason for r in list_rollouts(warehouse)[:2]]
        steps = [s.step for s in rollout_steps(warehouse, str(done.rollout_id))]
    assert reasons == ["undone", "to be undone"]
    assert steps == ["checked", *(step for step in STEPS if step != "flush")]


def test_a_breach_while_watched_puts_the_former_plan_back(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = system.in_force, system.other()
    monkeypatch.setattr(outcomes, "ENOUGH_REQUESTS", 5)
    over = threading.Event()

    def hurry() -> None:
        while not over.is_set():
            with contextlib.suppress(InferenceServerException):
                system.infer(timeout_us=1_000)  # none can be so fast

    clients = [threading.Thread(target=hurry) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        watched = RolloutOptions(bake_seconds=30.0, poll_seconds=0.1)
        done = roll_out(system.work, new, watched)
    finally:
        over.set()
        for client in clients:
            client.join()
    assert (done.state, done.plan_id) == (ROLLED_BACK, old)
    assert "pair attains" in done.outcome
    system.check_serving(old)


@pytest.mark.parametrize("step", ["flush", "swap"])  # before and after the one that counts
def test_a_gateway_killed_during_a_rollout_comes_back_with_one_plan(
    system: System, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    old, new = system.in_force, system.other()
    record = rollout.record_step

    def kill_gateway(warehouse: object, going: rollout.Rollout, name: str, *rest: object) -> None:
        record(warehouse, going, name, *rest)  # type: ignore[arg-type]  # handed on as it came
        if name == step:
            active = system.state.control("status")["scheduler"]["active"]
            pid = Path(system.state.folder / "pids" / active).read_text().split()[0]
            os.kill(int(pid), signal.SIGKILL)

    monkeypatch.setattr(rollout, "record_step", kill_gateway)
    with contextlib.suppress(ServerError):
        roll_out(system.work, new, NOT_WATCHED)
    monkeypatch.undo()

    def back() -> bool:
        with contextlib.suppress(ServerError):
            finish_interrupted(system.work)
            return True
        return False

    wait_for(back)
    wait_for(system.answers)
    system.check_serving(system.in_force)
    assert system.in_force in {old, new.plan_id}
