"""Applications on parts of unequal size beside each other: against trying everything.

Plans that equal parts do not allow, what is refused, and what such a plan attains.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.pool.unequal import SPACE
from flows.planning.verify.numbers import verify_plan
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, ProfileKey, ProfileTable
from triton_backend.contract.shares import SOLO
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.transition.memory import transition
from triton_backend.contract.workload import Workload
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

PERCENTS = (25, 30, 50, 70, 100)
SLO_MS = 9.0
NAMES = ("a", "b")


def profiles(seed: int, names: tuple[str, ...] = NAMES) -> dict[str, ModelProfile]:
    """Models of two blocks, batches to 2."""
    random = np.random.default_rng(seed)
    found: dict[str, ModelProfile] = {}
    for name in names:
        whole = random.integers(300, 900, (2, 2)).cumsum(axis=1)
        tables = {
            ProfileKey("g", 3 * percent, SOLO): ProfileTable(
                latency_us=np.ceil(whole * (100 / percent) ** random.uniform(0.4, 0.9))
            )
            for percent in PERCENTS
        }
        found[name] = ModelProfile(name=name, boundary_bytes=(0,), tables=tables)
    return found


def gpus(count: int) -> Cluster:
    kind = GpuClass(
        name="g",
        vgpu_divisors=(),
        vgpu_percents=PERCENTS,
        max_vgpus_per_gpu=4,
        hourly_cost=2.0,
    )
    nodes = (NodeGroup(count=1, gpu_class="g", gpus=count, nic_gbps=10.0),)
    return Cluster(name="cut", gpu_classes=(kind,), nodes=nodes)


def chain(
    rate_rps: float, names: tuple[str, ...] = NAMES, slo_ms: float = SLO_MS, **more: Any
) -> Workload:
    """Modules one after the other; batches gather at once unless told otherwise."""
    more = {"batch_building_rate_rps": 1e9, **more}
    modules = [
        {"name": f"{name}1", "model": name, "after": [f"{names[at - 1]}1"] if at else []} | more
        for at, name in enumerate(names)
    ]
    app = {"name": "app", "slo_ms": slo_ms, "rate_rps": rate_rps, "modules": modules}
    return Workload.from_dict({"applications": [app]})


def planned(
    known: dict[str, ModelProfile], on: Cluster, workload: Workload, **options: Any
) -> Plan:
    given: dict[str, Any] = {"gap": 0.0, "slo_margin": 0.0, "max_partitions": 1} | options
    plan = make_plan(known, on, workload, PlanOptions(**given))
    assert verify_plan(plan, known) == []
    assert Plan.from_dict(plan.to_dict()).to_dict() == plan.to_dict()
    return plan


def per_type(profile: ModelProfile, limit_us: float) -> dict[int, float]:
    """Rows/s of a part of every size within a time."""
    found: dict[int, float] = dict.fromkeys(PERCENTS, 0.0)
    for key, table in profile.tables.items():
        for batch in (1, 2):
            took = float(np.ceil(table.latency_us[:, batch - 1].sum() - 1e-6))
            if took <= limit_us:
                percent = key.share // 3
                found[percent] = max(found[percent], batch * 1e6 / took)
    return found


def rooms(count: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """GPUs used, and parts by size, for every way to cut them."""
    one = [
        cut
        for n in (1, 2, 3, 4)
        for cut in combinations_with_replacement(PERCENTS, n)
        if sum(cut) <= 100
    ]
    for used in range(1, count + 1):
        flat = {
            tuple(sum(cut.count(p) for cut in chosen) for p in PERCENTS)
            for chosen in combinations_with_replacement(one, used)
        }
        yield from ((used, room) for room in flat)


def best(known: dict[str, ModelProfile], count: int, rate_rps: float | None) -> float:
    """The least GPUs for a rate, or the highest rate on all of them, over all times and cuts."""
    first, second = (known[name] for name in NAMES)
    times = {
        float(np.ceil(table.latency_us[:, b].sum())) for table in first.tables.values()
        for b in (0, 1)
    }  # fmt: skip
    tables = [
        [np.array(list(per_type(model, limit).values())) for model, limit in pair]
        for pair in (((first, t), (second, 1_000 * SLO_MS - t)) for t in times)
    ]
    scores: list[float] = []
    for used, room in rooms(count):
        for mine in product(*(range(parts + 1) for parts in room)):
            left = np.array(room) - mine
            level = max(min(float(one @ mine), float(two @ left)) for one, two in tables)
            if rate_rps is None:
                scores.append(level)
            elif level >= rate_rps * (1 - 1e-9):
                scores.append(-used)
    return max(scores)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_cost_is_the_least_of_all_times_and_cuts(seed: int) -> None:
    known = profiles(seed)
    rate_rps = (0.3 + 0.1 * seed) * best(known, 2, None)
    plan = planned(known, gpus(2), chain(rate_rps), objective="cost")
    assert plan.objective.value == pytest.approx(-2.0 * best(known, 2, rate_rps))
    assert plan.objective.gap == 0
    assert plan.objective.space == SPACE


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_throughput_is_the_highest_of_all_times_and_cuts(seed: int) -> None:
    known = profiles(seed)
    plan = planned(known, gpus(2), chain(1.0))
    assert plan.objective.value == pytest.approx(best(known, 2, None), rel=1e-6)
    assert plan.objective.gap <= 1e-6
    assert plan.certificate["over_equal_parts"] >= 1


@pytest.mark.long
def test_of_a_hundred_sizes_as_many_are_combined_as_can_be() -> None:
    """All of them in four parts a GPU are too many cuts; 20 are, too."""
    known = {name: replace(one, tables=dict(finely(one))) for name, one in profiles(1).items()}
    (kind,) = gpus(1).gpu_classes
    fine = replace(kind, vgpu_percents=tuple(range(1, 101)), max_vgpus_per_gpu=6)
    plan = planned(known, replace(gpus(1), gpu_classes=(fine,)), chain(60.0), objective="cost")
    assert sharing(plan) == {(0, 0): {"a", "b"}}
    assert any("of 100 sizes" in note for note in plan.certificate["notes"])


def finely(profile: ModelProfile) -> Iterator[tuple[ProfileKey, ProfileTable]]:
    """Tables of every percent, each as the next smaller one that there is."""
    for percent in range(1, 101):
        least = max((p for p in PERCENTS if p <= percent), default=PERCENTS[0])
        table = profile.table("g", 3 * least, SOLO)
        assert table is not None
        yield ProfileKey("g", 3 * percent, SOLO), table


def sharing(plan: Plan) -> dict[tuple[int, int], set[str]]:
    """Models by GPU."""
    found: dict[tuple[int, int], set[str]] = {}
    for model, _, _, pool in plan.placed_stages():
        for slot in pool.slots():
            found.setdefault((slot.node, slot.gpu), set()).add(model.name)
    return found


@pytest.mark.long
def test_three_modules_share_one_gpu_where_equal_parts_have_no_plan() -> None:
    names = ("a", "b", "c")
    plan = planned(profiles(1, names), gpus(1), chain(60.0, names, 40.0), objective="cost")
    assert sharing(plan) == {(0, 0): {"a", "b", "c"}}
    assert plan.certificate["over_equal_parts"] is None
    assert (plan.objective.value, plan.objective.upper_bound) == (2.0, 2.0)
    assert plan.options["gathering"] == "fixed"


@pytest.mark.long
def test_rates_at_which_batches_gather_are_those_of_parts_where_equal_parts_have_no_plan() -> None:
    names = ("a", "b", "c")
    workload = chain(60.0, names, 40.0, batch_building_rate_rps=None)
    plan = planned(profiles(1, names), gpus(1), workload, objective="cost")
    assert plan.options["batch_building_rates"] == "pool without gathering"
    rates = {m.batch_building_rate_rps for m in plan.workload.applications[0].modules}
    assert len(rates) == 1
    assert (rates.pop() or 0.0) > 60.0


def test_what_no_cut_reaches_is_refused() -> None:
    names = ("a", "b", "c")
    with pytest.raises(
        InfeasibleError, match=r"application 'app': .* the GPUs are too few for its"
    ):
        planned(profiles(1, names), gpus(1), chain(5_000.0, names, 40.0), objective="cost")
    with pytest.raises(InfeasibleError, match=r"application 'app': SLO less margin is 1\.000 ms"):
        planned(profiles(1, names), gpus(1), chain(60.0, names, 1.0), objective="cost")


def test_accountings_of_equal_parts_are_refused() -> None:
    with pytest.raises(InputError, match="gathering: tc-padded plans equal parts, class g is cut"):
        planned(profiles(1), gpus(2), chain(60.0), objective="cost", own={"gathering": "tc-padded"})


def test_rules_of_equal_parts_are_refused() -> None:
    with pytest.raises(InputError, match="planner: piccolo plans equal parts, class g is cut"):
        planned(profiles(1), gpus(2), chain(60.0), objective="cost", planner="piccolo")


@pytest.mark.long
def test_every_job_of_such_a_plan_is_in_time_at_its_rate() -> None:
    names = ("a", "b", "c")
    plan = planned(profiles(1, names), gpus(1), chain(60.0, names, 40.0), objective="cost")
    options = SimOptions(arrivals=Deterministic(), duration_s=3.0, applications=("app",))
    jobs = simulate(plan, options).applications["app"].outcome
    assert jobs.offered >= 170
    assert jobs.served == jobs.offered


@pytest.mark.long
def test_gpus_that_are_paid_are_filled_so_that_rows_that_vary_are_in_time() -> None:
    """25, 30 and 25 % carry the rates, of which 99.1 % would be in time: there is room for more."""
    names = ("a", "b", "c")
    varying = {"rows_per_request": 2.0, "max_rows": 6}
    workload = chain(150.0, names, 40.0)
    (app,) = workload.applications
    modules = tuple(
        replace(module, **varying) if module.parents else module for module in app.modules
    )
    workload = replace(workload, applications=(replace(app, modules=modules),))
    plan = planned(profiles(1, names), gpus(1), workload, objective="cost")
    how = SimOptions(arrivals=Deterministic(), duration_s=5.0, applications=("app",))
    assert simulate(plan, how).applications["app"].outcome.attainment > 0.995


@pytest.mark.long
@pytest.mark.parametrize(("rows", "batches"), [(1, [1, 1]), (2, [1, 2])])
def test_a_batch_that_the_rates_asked_for_do_not_fill_is_made_smaller(
    rows: int, batches: list[int]
) -> None:
    """Requests come every 50 ms, and jobs have 20: what does not come at once is not waited for."""
    workload = chain(20.0, slo_ms=20.0)
    (app,) = workload.applications
    modules = tuple(
        replace(m, rows_per_request=rows, max_rows=rows) if m.parents else m for m in app.modules
    )
    workload = replace(workload, applications=(replace(app, modules=modules),))
    plan = planned(profiles(0), gpus(1), workload, objective="cost")
    assert [model.pipelines[0].batch for model in plan.models] == batches


@pytest.mark.long
def test_a_plan_of_more_gpus_follows_within_the_cluster() -> None:
    """Workers whose part, place and stage stay go on: the change needs no second GPU."""
    names = ("a", "b", "c")
    known = profiles(1, names)
    before = planned(known, gpus(2), chain(60.0, names, 40.0), objective="cost")
    options = PlanOptions(objective="cost", slo_margin=0.0, max_partitions=1, previous=before)
    after = make_plan(known, gpus(2), chain(90.0, names, 40.0), options)
    assert verify_plan(after, known) == []
    change = transition(before, after)
    stated = after.certificate["change"]
    assert (stated["stay"], stated["start"]) == (len(change.inherited), len(change.starts))
    assert stated["at_once"]


@pytest.mark.long
def test_models_alone_share_gpus_with_modules() -> None:
    names = ("a", "b", "c")
    known = profiles(1, names)
    both = chain(60.0, names[:2], 40.0)
    alone = {"name": "c", "slo_ms": 20, "rate_rps": 50, "batch_building_rate_rps": 1e9}
    workload = replace(both, models=Workload.from_dict({"models": [alone]}).models)
    plan = planned(known, gpus(1), workload, objective="cost")
    assert sharing(plan) == {(0, 0): {"a", "b", "c"}}


@pytest.mark.long
def test_parts_on_several_nodes_pay_for_what_modules_give_each_other() -> None:
    """1 kB a row at 1 Gbit/s is 8 µs; a vGPU's part of the NIC is by its share."""
    tensor = (TensorSpec(name="x", dtype="FP32", shape=(-1, 250)),)
    known = {name: replace(one, inputs=tensor, outputs=tensor) for name, one in profiles(1).items()}
    apart = NodeGroup(count=2, gpu_class="g", gpus=1, nic_gbps=1.0)
    first = {"batch_building_rate_rps": 1e9, "name": "one", "model": "a"}
    second = {**first, "name": "two", "model": "b", "after": ["one"], "inputs": {"x": "one.x"}}
    modules = [{**first, "inputs": {"x": "request.x"}}, second]
    app = {"name": "app", "slo_ms": 20.0, "rate_rps": 1_000.0, "modules": modules}
    workload = Workload.from_dict({"applications": [app]})
    plan = planned(known, replace(gpus(2), nodes=(apart,)), workload, objective="cost")
    assert len({node for node, _ in sharing(plan)}) == 2
    (model,) = (model for model in plan.models if model.name == "b")
    assert {p.input_transfer_us for p in model.pipelines} == {8 * p.batch for p in model.pipelines}
