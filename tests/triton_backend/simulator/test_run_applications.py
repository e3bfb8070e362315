"""Simulated applications: every job has an outcome, and it is the one that a plain model finds."""

import heapq
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.applications import diamond, hand_application, hand_module, with_applications
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.applications import Module
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.counted import request_columns
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.goodput import goodput_report
from triton_backend.simulator.offered import POISSON, Arrivals, Deterministic, Instant
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.world import DROPPED, LATE, SERVED

LATENCY_US = (4_000, 5_000, 6_000, 7_000)  # 571 rows/s of a GPU at batch 4


def plan_of(
    modules: tuple[Module, ...],
    *,
    gpus: int = 1,
    latency_us: tuple[int, ...] = LATENCY_US,
    slo_us: int = 120_000,
    rate_rps: float = 100.0,
) -> Plan:
    pools = [[Own(latency_us=latency_us, gpus=gpus)] for _ in range(4)]
    plan = make_plan(*([pool] for pool in pools), slo_us=slo_us // 3)
    application = hand_application("app", modules, slo_us=slo_us, rate_rps=rate_rps)
    return with_applications(plan, application)


def run(
    plan: Plan, load_factor: float = 1.0, arrivals: Arrivals = POISSON, **more: object
) -> SimResult:
    options: dict[str, object] = {"duration_s": 3.0, "applications": ("app",), **more}
    options |= {"load_factor": load_factor, "arrivals": arrivals}
    return simulate(plan, SimOptions(**options))  # pyright: ignore[reportArgumentType]


def check(result: SimResult) -> None:
    """Offered = served + late + dropped, none late; no rows are lost or run twice."""
    for application in result.applications.values():
        jobs = application.outcome
        assert jobs.offered == jobs.served + jobs.late + jobs.dropped
        assert jobs.late == 0
    for pool in result.pools.values():
        assert 0 <= pool.idle_fraction <= 1


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("load_factor", [0.5, 1.0, 3.0])
def test_every_job_has_an_outcome_and_none_is_late(*, optional: bool, load_factor: float) -> None:
    result = run(plan_of(diamond(optional=optional)), load_factor)
    check(result)
    app = result.applications["app"]
    assert app.outcome.offered > 100
    assert (app.outcome.attainment > 0.99) == (load_factor < 3)
    detect, cars = app.modules["detect"], app.modules["cars"]
    assert detect.rows == detect.tasks
    mean_rows = cars.rows / detect.done
    assert mean_rows == pytest.approx(2.0, abs=0.4)


def served_by_hand(
    modules: tuple[Module, ...], took_us: Mapping[str, int], arrivals: list[int], rows: int
) -> list[int]:
    """Ends of jobs if every module has one server, a row at a time, first come first served."""
    free = dict.fromkeys((m.model for m in modules), 0)
    left = {(job, m.name): len(m.parents) for job in range(len(arrivals)) for m in modules}
    open_rows: dict[tuple[int, str], int] = {}
    ends = [0] * len(arrivals)
    ready = [(at, job, m.name) for job, at in enumerate(arrivals) for m in modules if not m.parents]
    heapq.heapify(ready)
    finished: list[tuple[int, int, str]] = []
    while ready or finished:
        if finished and (not ready or finished[0][0] <= ready[0][0]):
            at, job, name = heapq.heappop(finished)
            open_rows[job, name] -= 1
            ends[job] = max(ends[job], at)
            for child in modules:
                if open_rows[job, name] == 0 and name in child.parents:
                    left[job, child.name] -= 1
                    if left[job, child.name] == 0:
                        heapq.heappush(ready, (at, job, child.name))
            continue
        at, job, name = heapq.heappop(ready)
        module = next(m for m in modules if m.name == name)
        count = rows if module.max_rows != 1 else 1
        open_rows[job, name] = count
        for _ in range(count):
            free[module.model] = max(at, free[module.model]) + took_us[module.model]
            heapq.heappush(finished, (free[module.model], job, name))
    return ends


@pytest.mark.parametrize("seed", range(4))
def test_ends_are_those_of_a_plain_model(seed: int) -> None:
    """One server a module, batches of one, four rows a job: nothing is left to choose."""
    modules = diamond(rows=4.0, max_rows=4)
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.choice(400_000, 40, replace=False)).tolist()
    plan = plan_of(modules, latency_us=(1_003,), slo_us=100_000_000)
    given = Instant(by_model={"app": np.asarray(arrivals, dtype=np.int64)})
    result = run(plan, arrivals=given)
    expected = served_by_hand(modules, {f"m{k}": 1_003 for k in range(4)}, arrivals, 4)
    assert result.requests["finish_us"].tolist() == expected


def test_no_rows_are_served_at_once_and_drawn_rows_keep_their_mean() -> None:
    modules = (hand_module("a", "m0"), hand_module("b", "m1", "a", rows=0.3, max_rows=3))
    for rows in ("poisson", "fixed"):
        result = run(plan_of(modules), rows=rows, duration_s=10.0)
        check(result)
        app = result.applications["app"]
        assert app.modules["b"].tasks < app.outcome.offered / 2
        assert app.modules["b"].rows / app.outcome.offered == pytest.approx(0.3, abs=0.08)


def of_sizes() -> tuple[Module, ...]:
    """find -> lines (rows that vary) -> read, in two sizes -> spell (the rows of lines)."""
    sizes = [
        Module(
            name=f"read@{size}",
            model=model,
            rows_per_request=rows,
            max_rows=16,
            inputs={"x": "lines.line"},
            size_of="read",
            size_by="lines.line",
        )
        for size, model, rows in ((1, "m1", 3.0), (2, "m2", 1.0))
    ]
    spell = Module(
        name="spell", model="m3", rows_per_request=4.0, max_rows=16, inputs={"y": "read.y"}
    )
    lines = hand_module("lines", "m0", "find", rows=4.0, max_rows=16)
    return (hand_module("find", "m0"), lines, *sizes, spell)


@pytest.mark.parametrize("rows", ["poisson", "fixed"])
def test_every_row_runs_in_one_size_and_once_behind_them(rows: str) -> None:
    result = run(plan_of(of_sizes(), gpus=3), 0.5, rows=rows)
    check(result)
    app = result.applications["app"]
    assert app.outcome.attainment > 0.99
    ran = {name: module.rows for name, module in app.modules.items()}
    assert ran["lines"] == ran["read@1"] + ran["read@2"] == ran["spell"]
    assert ran["read@1"] / ran["lines"] == pytest.approx(0.75, abs=0.06)


def test_a_change_of_plan_keeps_jobs_whose_sizes_have_other_shares() -> None:
    find, lines, narrow, wide, spell = of_sizes()
    even = (replace(one, rows_per_request=2.0) for one in (narrow, wide))
    other = plan_of((find, lines, *even, spell), gpus=3)
    changes = (PlanChange(at_s=1.0, plan=other),)
    result = run(plan_of(of_sizes(), gpus=3), 0.5, changes=changes)
    check(result)
    assert result.applications["app"].outcome.dropped == 0


def test_a_run_is_the_same_again_and_equal_gaps_are_kept() -> None:
    plan = plan_of(diamond())
    first, second = (run(plan, arrivals=Deterministic(), rows="fixed") for _ in range(2))
    assert (first.requests == second.requests).all()
    assert set(np.diff(first.requests["arrival_us"]).tolist()) == {10_000}
    assert first.applications["app"].modules["cars"].rows == 2 * len(first.requests)


def test_overload_holds_no_half_done_jobs_and_keeps_goodput() -> None:
    """A diamond beside models that take half of its vGPUs' time, at three times their rates."""
    plan = plan_of(diamond(), gpus=4, rate_rps=500.0)
    served: dict[float, float] = {}
    for load_factor in (0.8, 0.9, 1.0, 3.0):
        options = SimOptions(load_factor=load_factor, duration_s=4.0, admission=True)
        result = simulate(plan, options)
        check(result)
        assert (result.requests["outcome"] != 0).all()
        served[load_factor] = result.applications["app"].outcome.served / 4.0
    assert served[3.0] >= 0.95 * max(served.values())


def test_a_lost_worker_loses_no_job_that_still_has_time() -> None:
    plan = plan_of(diamond(), gpus=3, slo_us=400_000)
    failure = Failure(start_s=1.0, end_s=1.5, vgpu=0)
    other = Failure(start_s=2.0, end_s=None, vgpu=4)
    result = run(plan, 0.8, failures=(failure, other))
    check(result)
    assert result.applications["app"].outcome.dropped == 0


@pytest.mark.parametrize("flush", [False, True])
def test_a_change_of_plan_keeps_jobs_of_the_same_application(*, flush: bool) -> None:
    plan, more = plan_of(diamond(), slo_us=400_000), plan_of(diamond(), gpus=2, slo_us=400_000)
    changes = (PlanChange(at_s=1.0, plan=more, flush=flush),)
    result = run(plan, 0.8, changes=changes)
    check(result)
    assert result.applications["app"].outcome.dropped == 0


def test_jobs_of_an_application_that_goes_or_changes_are_dropped_for_that() -> None:
    plan = plan_of(diamond())
    gone = make_plan(*([[Own(latency_us=LATENCY_US, gpus=1)]] for _ in range(4)))
    for other in (gone, plan_of(diamond(max_rows=5))):
        result = run(plan, 0.8, changes=(PlanChange(at_s=1.0, plan=other),))
        check(result)
        rows = result.requests
        dropped = rows[rows["outcome"] == DROPPED]
        assert set(dropped["reason"].tolist()) == {int(DropReason.MODEL_REMOVED)}
        assert (dropped["finish_us"] >= 1_000_000).all()


def test_records_name_the_application_and_results_its_modules() -> None:
    result = simulate(plan_of(diamond()), SimOptions(duration_s=1.0, rate_rps=400.0))
    columns = request_columns(result)
    named = set(zip(columns["application"].tolist(), columns["model"].tolist(), strict=True))
    assert named == {("app", ""), ("", "m0"), ("", "m1"), ("", "m2"), ("", "m3")}
    plain = result.to_dict()["applications"]["app"]
    assert {"offered", "served", "late", "dropped", "attainment", "latency_ms"} <= plain.keys()
    assert list(plain["modules"]) == ["detect", "cars", "people", "join"]
    answered = np.isin(result.requests["outcome"], (SERVED, LATE))
    jobs = result.requests["application"] == 0
    assert (result.requests["dispatch_us"][answered & jobs] >= 0).all()
    found = goodput_report(plan_of(diamond()), SimOptions(duration_s=0.5, applications=("app",)))
    assert found["models"]["app"]["rps"] > 0


def test_what_does_not_fit_is_refused() -> None:
    plan = plan_of(diamond())
    with pytest.raises(InputError, match="no application 'x'; it has app"):
        run(plan, applications=("x",))
    with pytest.raises(InputError, match="'many' is none of poisson, fixed"):
        run(plan, rows="many")
    with pytest.raises(InputError, match="knows no applications"):
        run(plan, policy="reactive")
