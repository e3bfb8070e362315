"""A canary: its plans, its judgement, its steps and ways back on a real Triton."""

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from flows.clock import now_utc
from flows.release.rollout import guarded
from flows.release.rollout.canary import CANARY, FORMER, Judged, canary_plan, canary_plans, judged
from flows.release.rollout.change import change_plan
from flows.release.rollout.generations import plan_in_force, plan_served_before
from flows.release.rollout.guarded import (
    DONE,
    FAILED,
    ROLLED_BACK,
    RolloutResult,
    finish_interrupted,
    roll_back,
    roll_out,
)
from flows.release.rollout.options import RolloutOptions
from flows.release.rollout.outcomes import Outcomes, outcomes_of, shared_outcomes_of
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerError, ServerState
from flows.state import ProjectState
from flows.system_metrics import MetricsError, parse_metrics
from flows.workspace import Workspace
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.flows.release.server.test_running import line, server_ports
from tests.triton_backend.serving.artifacts import FACTOR, OFFSET, affine, write_stage
from tests.triton_backend.serving.one_name.variant_plans import variant_plan
from tests.triton_backend.serving.small_plans import plan, tensor, two_stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    ModelPlan,
    Plan,
    Pool,
    PoolInterference,
    SeatInterference,
    StageMemory,
)
from triton_backend.contract.transition.memory import transition
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.repository import for_clients, render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions
from warehouse.db import WarehouseInUseError
from warehouse.observations import Rollout, begin_rollout, list_rollouts, rollout_steps

PATIENT_US = 4_000_000
CLIENTS = 4
SAMPLES = 4  # a whole batch, which waits for no others
OTHER = 0.5  # a changed second stage adds it beside OFFSET
RATE_RPS = 800.0  # which the plan below delivers
OPTIONS = RolloutOptions(canary="10,50", canary_seconds=4.0, bake_seconds=1.0, poll_seconds=0.2)
# Where the canary's share is not looked at.
BRIEF = replace(OPTIONS, canary_seconds=2.0, canary_requests=1)


def verified(made: Plan) -> Plan:
    """The plan with what its stages deliver promised, and moves counted."""
    (model,) = made.models
    (pipeline,) = model.pipelines
    first = replace(pipeline.stages[0], transfer_us=14)
    whole = replace(
        pipeline,
        stages=(first, *pipeline.stages[1:]),
        latency_us=pipeline.latency_us + 14,
        throughput_rps=RATE_RPS,
    )
    objective = replace(made.objective, value=RATE_RPS, upper_bound=RATE_RPS)
    changed = replace(model, pipelines=(whole,), throughput_rps=RATE_RPS)
    return replace(made, models=(changed,), objective=objective)


def of_model(made: Plan, plan_id: str = "new", **fields: Any) -> Plan:
    """The same plan with other fields of its only model."""
    return replace(made, plan_id=plan_id, models=(replace(made.models[0], **fields),))


def of_stages(made: Plan, plan_id: str = "new", **fields: Any) -> Plan:
    """The same plan with other fields of every second stage."""
    (model,) = made.models
    pipelines = tuple(
        replace(p, stages=(p.stages[0], replace(p.stages[1], **fields))) for p in model.pipelines
    )
    return of_model(made, plan_id, pipelines=pipelines)


def shares(served: ModelPlan) -> dict[str, float]:
    return {entry.name: entry.share or 0.0 for entry in served.entries}


# Plans


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def served(home: Path) -> Plan:
    return verified(plan(affine(home / "artifacts"), plan_id="served"))


def test_a_step_has_the_pipelines_of_both_plans_on_the_same_pools(served: Plan) -> None:
    new = of_stages(served, artifact="other")
    step = canary_plan(served, new, 0.1)
    (model,) = step.models
    assert (step.plan_id, step.pools, step.workload) == (
        "new-canary-10",
        served.pools,
        served.workload,
    )
    assert shares(model) == {FORMER: 0.9, CANARY: 0.1}
    assert [p.entry for p in model.pipelines] == [FORMER, CANARY]
    assert [p.stages[1].artifact for p in model.pipelines] == ["affine-1", "other"]
    assert [p.throughput_rps for p in model.pipelines] == pytest.approx([720.0, 80.0])
    assert model.throughput_rps == RATE_RPS
    assert Plan.from_dict(step.to_dict()) == step
    assert step.shares_requests
    assert not served.shares_requests


def test_a_slower_plan_promises_what_full_pools_carry(served: Plan) -> None:
    last = served.models[0].pipelines[0].stages[1]
    pool = served.pool_of(last)
    full_rps = pool.vgpus * 1e6 * SAMPLES / last.latency_us
    (pipeline,) = served.models[0].pipelines
    filled = of_model(
        served,
        "full",
        pipelines=(replace(pipeline, throughput_rps=full_rps),),
        throughput_rps=full_rps,
    )
    slower = of_stages(filled, latency_us=2 * last.latency_us, artifact="other")
    (model,) = canary_plan(filled, slower, 0.5).models
    assert [p.throughput_rps for p in model.pipelines] == pytest.approx([full_rps / 3] * 2)
    assert model.throughput_rps == pytest.approx(full_rps / 1.5)
    assert [entry.rate_rps for entry in model.entries] == pytest.approx([full_rps / 3] * 2)
    assert shares(model) == {FORMER: 0.5, CANARY: 0.5}


def test_workers_go_on_through_a_canary_and_load_what_differs_once(served: Plan) -> None:
    new = of_stages(served, artifact="other")
    before, last = complete_tensors(served), complete_tensors(new)
    first, second = canary_plans(served, new, OPTIONS, 1)
    begin, more, end = (
        transition(one, other) for one, other in ((before, first), (first, second), (second, last))
    )
    assert [len(keys) for keys in begin.loads.values()] == [1]
    assert more.nothing
    assert [len(keys) for keys in end.drops.values()] == [1]
    assert not any(change.starts or change.ends for change in (begin, more, end))


def test_clients_get_no_models_of_cuts_by_a_canary(served: Plan) -> None:
    step = canary_plan(served, of_stages(served, artifact="other"), 0.1)
    assert for_clients(complete_tensors(step), cut_models=True) == ()


def test_models_that_do_not_differ_keep_all_their_requests(home: Path) -> None:
    both = plan(affine(home / "two", "one"), affine(home / "two", "two"))
    one, two = both.models
    (pipeline,) = two.pipelines
    stages = (pipeline.stages[0], replace(pipeline.stages[1], artifact="other"))
    changed = replace(two, pipelines=(replace(pipeline, stages=stages),))
    step = canary_plan(both, replace(both, plan_id="new", models=(one, changed)), 0.25)
    assert [shares(model) for model in step.models] == [{}, {FORMER: 0.75, CANARY: 0.25}]


@pytest.mark.long
def test_a_simulated_canary_takes_its_share_of_the_same_arrivals(served: Plan) -> None:
    options = SimOptions(rate_rps=200.0, duration_s=10.0, seed=3)
    step = canary_plan(served, of_stages(served, artifact="other"), 0.1)
    alone, both = simulate(complete_tensors(served), options), simulate(step, options)
    arrivals = both.requests["arrival_us"]
    np.testing.assert_array_equal(arrivals, alone.requests["arrival_us"])
    taken = both.entries["affine"][CANARY].outcome.offered
    assert taken == pytest.approx(0.1 * len(arrivals), abs=1)
    assert both.least_attainment == 1.0


def pool_of(made: Plan, **fields: Any) -> tuple[Pool, ...]:
    return (made.pools[0], replace(made.pools[1], **fields))


def moved(made: Plan) -> Plan:
    (run,) = made.pools[1].placement
    other = of_stages(made, artifact="other")
    return replace(other, pools=pool_of(made, placement=(replace(run, gpu=run.gpu + 1),)))


UNLIKE: list[tuple[Callable[[Plan], Plan], str]] = [
    (lambda p: replace(p, plan_id="new"), "no model differs from the plan in force"),
    (lambda p: of_model(p, slo_us=1_000_000), "not the SLO of the plan in force"),
    (lambda p: of_model(p, policy="timeout"), "not the policy of the plan in force"),
    (lambda p: of_model(p, inputs=(tensor("z", 3),)), "not the inputs of the plan in force"),
    (lambda p: of_stages(p, blocks=(1, 3)), "not the number of blocks of the plan in force"),
    (lambda p: of_stages(p, artifact=None), "is emulated: there is nothing to compare"),
    (moved, r"pool 'slow-1\.0\.0\+0' is not the same in both plans"),
    (lambda p: canary_plan(p, of_stages(p, artifact="o"), 0.5), "a canary's step itself"),
]


@pytest.mark.parametrize(("change", "told"), UNLIKE)
def test_plans_that_cannot_share_requests_are_refused_in_one_line(
    served: Plan, change: Callable[[Plan], Plan], told: str
) -> None:
    with pytest.raises(InputError, match=told) as refused:
        canary_plan(served, change(served), 0.1)
    assert str(refused.value).count("\n") == 0
    assert "--canary" in str(refused.value)


def test_a_plan_of_other_models_or_clusters_is_refused(served: Plan, home: Path) -> None:
    other = plan(affine(home / "others", "other"), plan_id="new")
    with pytest.raises(InputError, match="only one of the plans has model 'affine'"):
        canary_plan(served, other, 0.1)
    cluster = replace(served.cluster, name="elsewhere")
    with pytest.raises(InputError, match="the plans are of other clusters"):
        canary_plan(served, replace(of_stages(served, artifact="o"), cluster=cluster), 0.1)


def test_prices_and_power_of_a_cluster_are_no_matter_of_a_canary(served: Plan) -> None:
    classes = (replace(c, hourly_cost=1.0, power_w=70.0) for c in served.cluster.gpu_classes)
    priced = replace(served.cluster, gpu_classes=tuple(classes))
    made = canary_plan(served, replace(of_stages(served, artifact="o"), cluster=priced), 0.1)
    assert made.cluster == served.cluster


def test_interference_is_stated_for_other_stages_than_a_canary_has(served: Plan) -> None:
    seats = (SeatInterference(susceptibility=0.0, pressure=0.0, factor=1.0),)
    stated = PoolInterference(pressure=0.0, felt=0.0, inflation=1.0, seats=seats)
    pressed = replace(served, pools=pool_of(served, interference=stated))
    with pytest.raises(InputError, match=r"pool 'slow-1\.0\.0\+0' states interference"):
        canary_plan(pressed, of_stages(pressed, artifact="other"), 0.1)


def test_applications_entries_and_variants_are_refused(served: Plan) -> None:
    (model,) = served.models
    entry = Entry(name="e", block=0, budget_us=model.slo_us, rate_rps=1.0)
    lines = tuple(replace(p, entry="e") for p in model.pipelines)
    listed = of_model(served, "listed", entries=(entry,), pipelines=lines)
    with pytest.raises(InputError, match="has entries, which already divide its requests"):
        canary_plan(listed, of_stages(listed, artifact="other"), 0.1)
    whole = plan(two_stage("m0"))
    asked = with_applications(whole, hand_application("a", [hand_module("only", "m0")]))
    with pytest.raises(InputError, match=r"a plan has applications; roll it out without --canary$"):
        canary_plan(asked, of_stages(asked, artifact="other"), 0.1)
    variants = variant_plan()
    with pytest.raises(InputError, match="a model has variants, which divide its requests"):
        canary_plan(variants, replace(variants, plan_id="new"), 0.1)


def test_two_gateways_are_refused(served: Plan) -> None:
    with pytest.raises(InputError, match="two gateways"):
        canary_plans(served, of_stages(served, artifact="other"), OPTIONS, 2)
    assert canary_plans(served, of_stages(served, artifact="other"), RolloutOptions(), 2) == ()


def test_gpus_that_cannot_hold_both_are_named(served: Plan) -> None:
    classes = tuple(replace(c, memory_gib=1.0) for c in served.cluster.gpu_classes)
    small = replace(served, cluster=replace(served.cluster, gpu_classes=classes))
    memory = StageMemory(static=600 << 20, dynamic=0)
    former, new = of_stages(small, "former", memory=memory), of_stages(small, memory=memory)
    with pytest.raises(InputError, match=r"beside the plan in force: .*memory.* GiB needed"):
        canary_plan(former, of_stages(new, artifact="other"), 0.1)


def test_emulated_models_are_refused() -> None:
    emulated = plan(two_stage("pair"))
    with pytest.raises(InputError, match="model 'pair': is emulated"):
        canary_plan(emulated, of_stages(emulated, latency_us_by_batch=(1, 1, 1, 1)), 0.1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "101",
        "10,1",
        "10,10",
        "nan",
        "inf",
        "1,,2",
        "one",
        "-1",
        "1;2",
        "1e-9",
        "99.99",
        "1,",
    ],
)
def test_what_are_no_ascending_percents_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no list of ascending percents"):
        RolloutOptions(canary=text)


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"canary_seconds": 5.0}, "canary"),
        ({"canary_requests": 1}, "canary"),
        ({"compare_from": "clients"}, "compare_requests"),
        ({"compare_tolerance": 0.1}, "compare_requests"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(given: dict[str, Any], needed: str) -> None:
    (name,) = given
    with pytest.raises(InputError, match=f"option {name}: has no effect without {needed}"):
        RolloutOptions(**given)
    whole = RolloutOptions(**given, compare_requests=4, canary="10")
    assert whole.following().compare_requests == 0


def test_the_last_hundred_percent_is_the_plan_itself() -> None:
    assert RolloutOptions(canary="0.5, 10,100").canary_shares == (0.005, 0.1)
    assert RolloutOptions(canary="100").canary_shares == RolloutOptions().canary_shares == ()


# Judgement


def seen(canary: tuple[int, int], former: tuple[int, int] = (0, 0)) -> Judged:
    """Served and failed requests of each."""
    one, other = (Outcomes(served=s, failed=f) for s, f in (canary, former))
    whole = Outcomes(served=one.served + other.served, failed=one.failed + other.failed)
    return Judged(model="m", slo_ms=100.0, whole=whole, former=other, canary=one)


@pytest.mark.parametrize(
    ("canary", "former", "fails"),
    [
        ((0, 3), (100, 0), True),  # all of the first three
        ((0, 2), (100, 0), False),  # too few to say
        ((97, 3), (1_000, 0), False),  # 1 % allowed, three of 100 by chance
        ((90, 10), (1_000, 0), True),
        ((90, 10), (920, 80), False),  # as bad as before
        ((9_800, 200), (100_000, 0), True),  # twice the tolerance, of many
        ((9_890, 110), (100_000, 0), False),
    ],
)
def test_more_failures_than_chance_explains_are_a_breach(
    canary: tuple[int, int], former: tuple[int, int], fails: bool
) -> None:
    options = RolloutOptions(attainment_target=0.5)
    assert (seen(canary, former).breach(options) is not None) == fails


def test_a_breach_says_both_in_one_line() -> None:
    assert seen((90, 10), (1_000, 0)).breach(RolloutOptions()) == (
        "m: 10 of the canary's 100 requests failed, late or dropped (10.00%),"
        " 0.00% of the former plan's 1000"
    )


def test_a_canary_that_slows_both_down_is_a_breach_too() -> None:
    said = seen((50, 50), (500, 500)).breach(RolloutOptions())
    assert said == "m attains 50.00% of 1100 requests, under 95.00%"


def test_a_whole_says_nothing_while_metrics_show_no_request_of_the_canary() -> None:
    whole = Outcomes(served=90, failed=10)
    early = Judged(model="m", slo_ms=100.0, whole=whole, former=Outcomes(), canary=Outcomes())
    assert early.breach(RolloutOptions()) is None


def test_too_few_requests_are_named() -> None:
    assert seen((50, 0)).too_few(RolloutOptions()) is None
    said = seen((49, 0)).too_few(RolloutOptions())
    assert said is not None
    assert said.startswith("m: the canary took 49 requests in 60 s, 50 are needed to judge it")


def test_outcomes_are_those_of_the_step(served: Plan) -> None:
    step = canary_plan(served, of_stages(served, artifact="other"), 0.1)

    def at(canary: int, former: int) -> Any:
        name = 'poolpipe_shared_requests_total{model="affine",entry="%s",outcome="%s"} %d\n'
        text = name % (CANARY, "served", canary) + name % (CANARY, "failed", 1)
        text += name % (FORMER, "late", former) + name % (FORMER, "offered", 9)
        metrics = parse_metrics(text)
        return outcomes_of(metrics), shared_outcomes_of(metrics)

    (one,) = judged(step, at(10, 100), at(30, 150))
    assert one.canary == Outcomes(served=20)
    assert one.former == Outcomes(late=50)


# On a real Triton


@pytest.fixture(scope="module")
def work(home: Path) -> Workspace:
    return Workspace(state=ProjectState(home=home), warehouse=home / "w.duckdb")


@pytest.fixture(scope="module")
def state(work: Workspace, served: Plan) -> Iterator[ServerState]:
    options = ServeOptions(artifacts=work.state.artifacts)
    render_repository(work.state.serve, served, options)
    yield start(work.state.serve, server_ports())
    stop(work.state.serve)


def write_raising(root: Path, name: str) -> str:
    """An artifact that adds OFFSET to zeros, and raises for anything above."""
    write_stage(root, name, "Add", OFFSET, ("middle", "y"))
    rows = [
        helper.make_tensor_value_info(one, TensorProto.FLOAT, ["batch", 3])
        for one in ("middle", "y")
    ]
    nodes = [
        helper.make_node("Cast", ["middle"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["found"]),
        helper.make_node("Add", ["middle", "found"], ["y"]),
    ]
    table = numpy_helper.from_array(np.array([OFFSET], dtype=np.float32), "table")
    graph = helper.make_graph(nodes, name, rows[:1], rows[1:], [table])
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=9)
    onnx.save(made, root / name / "model.onnx")
    assert (root / name / MANIFEST_NAME).exists()
    return name


def write_slow(root: Path, name: str) -> str:
    """An artifact of the same weights, whose runs take longer than the SLO."""
    write_stage(root, name, "Add", OFFSET, ("middle", "y"))
    manifest = root / name / MANIFEST_NAME
    data = json.loads(manifest.read_text())
    data["options"]["stretch"] = 20_000.0
    manifest.write_text(json.dumps(data))
    return name


class Told:
    """Answers to a client, in order: their offset, or None where it was refused."""

    def __init__(self) -> None:
        self.offsets: list[float | None] = []

    def ask(self, client: grpc_client.InferenceServerClient) -> None:
        given = grpc_client.InferInput("x", [SAMPLES, 3], "FP32")
        given.set_data_from_numpy(line(SAMPLES))
        try:
            answer: Any = client.infer("affine", [given], timeout=PATIENT_US)
        except InferenceServerException:
            self.offsets.append(None)
        else:
            found = answer.as_numpy("y") - line(SAMPLES) * FACTOR
            np.testing.assert_allclose(found, found[0, 0], atol=1e-4)
            self.offsets.append(round(float(found[0, 0]), 3))


@contextlib.contextmanager
def clients(state: ServerState) -> Generator[list[Told]]:
    """Clients that ask until the end."""
    told = [Told() for _ in range(CLIENTS)]
    over = threading.Event()

    def ask(one: Told) -> None:
        with contextlib.closing(grpc_client.InferenceServerClient(state.grpc_url)) as client:
            while not over.wait(0.005):
                one.ask(client)

    threads = [threading.Thread(target=ask, args=(one,)) for one in told]
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        over.set()
        for thread in threads:
            thread.join()


def offsets(told: list[Told]) -> list[float | None]:
    return [offset for one in told for offset in one.offsets]


def canary_steps(work: Workspace, result: RolloutResult) -> list[str]:
    """Steps of a canary in the history, one for each share."""
    with work.open(read_only=True) as warehouse:
        steps = rollout_steps(warehouse, str(result.rollout_id))
    return [one.detail for one in steps if one.step == "canary"]


@pytest.mark.slow
def test_a_canary_that_fails_is_taken_back_and_only_its_share_was_failed(
    state: ServerState, work: Workspace, served: Plan
) -> None:
    new = of_stages(served, "raises", artifact=write_raising(work.state.artifacts, "raises"))
    with clients(state) as told:
        result = roll_out(work, new, OPTIONS)
    assert (result.state, result.plan_id) == (ROLLED_BACK, "served")
    assert "of the canary's" in result.outcome
    assert "\n" not in result.outcome
    assert plan_in_force(work.state.serve).models == complete_tensors(served).models
    answers = offsets(told)
    assert {*answers} == {OFFSET, None}
    assert answers.count(None) <= 0.1 * len(answers) + CLIENTS
    assert len(canary_steps(work, result)) == 1
    assert all(one.offsets[-1] == OFFSET for one in told)


@pytest.mark.slow
@pytest.mark.usefixtures("state")
def test_a_canary_that_took_too_few_requests_is_taken_back(work: Workspace, served: Plan) -> None:
    name = write_stage(work.state.artifacts, "quiet", "Add", OFFSET, ("middle", "y"))
    options = replace(OPTIONS, canary_seconds=1.0)
    result = roll_out(work, of_stages(served, "quiet", artifact=name), options)
    assert (result.state, result.plan_id) == (ROLLED_BACK, "served")
    assert re.match(
        r"quiet-canary-10: affine: the canary took \d requests in 1 s, 50 are needed",
        result.outcome,
    )
    assert plan_in_force(work.state.serve).plan_id == "served"


def begin_and_die(work: Workspace, former: Plan, new: Plan, rollout_id: str) -> None:
    """Leave what a rollout leaves whose process dies before its first change."""
    begun = Rollout(
        rollout_id=rollout_id,
        plan_id=new.plan_id,
        former_plan_id=former.plan_id,
        state="begun",
        requested_by="test",
        reason="test",
        outcome=None,
        started_at=now_utc(),
        changed_at=now_utc(),
    )
    with work.open() as warehouse:
        begin_rollout(warehouse, begun)
    work.state.rollout_under_way.write_text(json.dumps(new.to_dict()))


@pytest.mark.slow
def test_a_canary_whose_rollout_died_takes_its_way_back(
    state: ServerState, work: Workspace, served: Plan
) -> None:
    name = write_stage(work.state.artifacts, "died", "Add", OFFSET, ("middle", "y"))
    new = of_stages(served, "served", artifact=name)  # plans of other artifacts have one id
    begin_and_die(work, served, new, "rollout-died")
    for step in canary_plans(served, new, OPTIONS, 1):
        change_plan(state.folder, step)
    assert plan_in_force(state.folder).plan_id == "served-canary-50"
    with clients(state) as told:
        assert finish_interrupted(work).models == complete_tensors(served).models
    assert {*offsets(told)} == {OFFSET}
    assert plan_in_force(state.folder).models == complete_tensors(served).models
    assert not work.state.rollout_under_way.exists()


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_rollout_of_other_artifacts_that_died_before_its_change_has_failed(
    state: ServerState, work: Workspace, served: Plan, *, whole: bool
) -> None:
    new = of_stages(served, "served", artifact="other")  # plans of other artifacts have one id
    begin_and_die(work, served, new, f"rollout-{whole}")
    if not whole:
        work.state.rollout_under_way.write_text("{")
    assert finish_interrupted(work).models == complete_tensors(served).models
    with work.open(read_only=True) as warehouse:
        last = list_rollouts(warehouse)[0]
    assert (last.rollout_id, last.state) == (f"rollout-{whole}", FAILED)
    assert last.outcome == "interrupted after 'begun'; plan served is in force"
    assert plan_in_force(state.folder).models == complete_tensors(served).models


@pytest.mark.slow
def test_a_plan_that_never_came_into_force_does_not_come_by_a_way_back(
    state: ServerState, work: Workspace, served: Plan
) -> None:
    broken = of_stages(served, "broken", artifact="is-not-there")
    with pytest.raises(ServerError):
        change_plan(state.folder, broken, ready_seconds=0.5)
    name = write_stage(work.state.artifacts, "next", "Add", OFFSET, ("middle", "y"))
    canary = canary_plan(served, of_stages(served, "next", artifact=name), 0.1)
    change_plan(state.folder, canary)
    former = plan_served_before(state.folder, "served")
    assert former is not None
    assert former.models == complete_tensors(served).models
    assert plan_served_before(state.folder, "broken") is None
    change_plan(state.folder, served)


@pytest.mark.slow
@pytest.mark.usefixtures("state")
def test_rolling_back_brings_the_artifacts_that_were_in_force(
    work: Workspace, served: Plan
) -> None:
    name = write_stage(work.state.artifacts, "rebuilt", "Add", OFFSET, ("middle", "y"))
    rebuilt = of_stages(served, "served", artifact=name)  # plans of other artifacts have one id
    options = RolloutOptions(bake_seconds=0.2, poll_seconds=0.1)
    assert roll_out(work, rebuilt, options).state == DONE
    assert plan_in_force(work.state.serve).models == complete_tensors(rebuilt).models
    done = roll_back(work, options)
    assert (done.state, done.rollout_id is None) == (DONE, False)
    assert plan_in_force(work.state.serve).models == complete_tensors(served).models


@pytest.mark.slow
@pytest.mark.parametrize("call", ["watch_canary", "look_before"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MetricsError("no metrics from h"), "no metrics from h"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "interrupted"),  # a SIGTERM
        (OSError("the disk is full"), "the disk is full"),
    ],
)
def test_a_canary_that_is_not_watched_to_its_end_is_taken_back(
    state: ServerState,
    work: Workspace,
    served: Plan,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    error: BaseException,
    said: str,
) -> None:
    real: Callable[..., object] = getattr(guarded, call)
    name = f"blind-{call}-{type(error).__name__}"

    def unseen(*given: object) -> object:
        if plan_in_force(state.folder).plan_id == f"{name}-canary-10":
            raise error
        return real(*given)

    monkeypatch.setattr(guarded, call, unseen)
    new = of_stages(
        served,
        name,
        artifact=write_stage(work.state.artifacts, name, "Add", OFFSET, ("middle", "y")),
    )
    with clients(state), pytest.raises(type(error)):
        roll_out(work, new, BRIEF)
    assert plan_in_force(state.folder).plan_id == "served"
    with work.open(read_only=True) as warehouse:
        last = list_rollouts(warehouse)[0]
    assert (last.plan_id, last.state, last.outcome) == (name, ROLLED_BACK, said)
    assert not work.state.rollout_under_way.exists()


@pytest.mark.slow
def test_a_canary_is_taken_back_while_another_process_keeps_the_warehouse(
    state: ServerState, work: Workspace, served: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = guarded.watch_canary
    begins = "import duckdb, sys, time; held = duckdb.connect(sys.argv[1]); print(flush=True)"
    command = [sys.executable, "-c", f"{begins}; time.sleep(600)", str(work.warehouse)]
    holders: list[subprocess.Popen[bytes]] = []

    def watch(*given: Any) -> object:
        seen = real(*given)
        holders.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert holders[0].stdout is not None
        holders[0].stdout.readline()
        return seen

    monkeypatch.setattr(guarded, "watch_canary", watch)
    name = write_stage(work.state.artifacts, "held", "Add", OFFSET, ("middle", "y"))
    new = of_stages(served, "held", artifact=name)
    try:
        with clients(state), pytest.raises(WarehouseInUseError):
            roll_out(replace(work, patience_seconds=0.0), new, BRIEF)
        assert plan_in_force(state.folder).plan_id == "served"
    finally:
        for holder in holders:
            with holder:
                holder.kill()
    assert finish_interrupted(work).plan_id == "served"
    with work.open(read_only=True) as warehouse:
        last = list_rollouts(warehouse)[0]
    assert (last.plan_id, last.state) == ("held", FAILED)


@pytest.mark.slow
def test_a_slow_canary_is_taken_back(state: ServerState, work: Workspace, served: Plan) -> None:
    new = of_stages(served, "slow", artifact=write_slow(work.state.artifacts, "slow"))
    with clients(state) as told:
        result = roll_out(work, new, OPTIONS)
        # Batches of the canary that the worker still has end first.
        wait_for(lambda: all({*one.offsets[-10:]} == {OFFSET} for one in told))
    assert (result.state, result.plan_id) == (ROLLED_BACK, "served")
    assert re.search(r"of the canary's \d+ requests failed|affine attains", result.outcome)


@pytest.mark.slow
def test_a_good_canary_takes_its_shares_and_then_all_requests(
    state: ServerState, work: Workspace, served: Plan
) -> None:
    name = write_stage(work.state.artifacts, "good", "Add", OFFSET + OTHER, ("middle", "y"))
    new = of_stages(served, "good", artifact=name)
    with clients(state) as told:
        result = roll_out(work, new, OPTIONS)
        at = [len(one.offsets) for one in told]
        wait_for(lambda: all(len(one.offsets) > n + 9 for one, n in zip(told, at, strict=True)))
    assert (result.state, result.plan_id) == (DONE, "good")
    answers = offsets(told)
    assert {*answers} == {OFFSET, OFFSET + OTHER}
    for one, n in zip(told, at, strict=True):
        assert {*one.offsets[n + 1 :]} == {OFFSET + OTHER}
    tenth, half = canary_steps(work, result)
    assert tenth.startswith("plan good-canary-10; affine: 0 of ")
    # Counts are published once a second: those of a step begin with the end of the one before.
    for detail, least, most in ((tenth, 0.05, 0.15), (half, 0.3, 0.55)):
        canary, former = (int(words.split()[-1]) for words in detail.split(" requests")[:2])
        assert least <= canary / (canary + former) <= most
