"""Rows per request as measured: what takes them, and what goes on to pair up."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.clock import now_utc
from flows.operations.replanning.demands import requests_of
from flows.operations.replanning.rows import (
    Measured,
    as_measured,
    counted_rows,
    measured_rows,
    since,
    with_rows,
)
from tests.fakes.applications import diamond, hand_application, hand_module, with_applications
from tests.fakes.plans import Own, make_plan
from tests.flows.operations.fake_gateway import workspace_of
from triton_backend.contract.applications import Application, Module
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.policies.demand import planned_rates
from warehouse.observations import ModuleMinute, StatisticsFile, add_statistics


def graph(*modules: Module) -> Application:
    return hand_application("app", modules).application


def means(application: Application, measured: dict[str, tuple[int, int]]) -> dict[str, float]:
    """Mean rows of modules where so many samples and rows of each were measured."""
    known: Measured = {("app", module): counts for module, counts in measured.items()}
    (found,) = with_rows([application], known)
    return {module.name: module.rows_per_request for module in found.modules}


def test_modules_whose_rows_vary_have_the_mean_that_was_measured() -> None:
    pair = (
        hand_module("detect", "m0"),
        hand_module("cars", "m1", "detect", rows=2.0, max_rows=8),
        hand_module("people", "m2", "detect", rows=3.0, max_rows=4),
    )
    counts = {"detect": (200, 900), "cars": (200, 900), "people": (200, 20)}
    assert means(graph(*pair), counts) == {"detect": 1.0, "cars": 4.5, "people": 0.1}


def test_too_few_requests_say_nothing() -> None:
    as_before = {"detect": 1.0, "cars": 2.0, "people": 2.0, "join": 1.0}
    assert means(graph(*diamond()), {"cars": (40, 300), "people": (40, 300)}) == as_before
    assert means(graph(*diamond()), {}) == as_before


def test_modules_whose_rows_pair_up_go_on_to_do_so() -> None:
    """One was skipped for some requests, so that their own means differ."""
    chain = (
        hand_module("detect", "m0"),
        hand_module("crop", "m1", "detect", rows=2.0, max_rows=8),
        hand_module("left", "m2", "crop", rows=2.0, max_rows=8),
        hand_module("right", "m3", "crop", rows=2.0, max_rows=8),
        hand_module("both", "m3", "left", "right", rows=2.0, max_rows=8),
    )
    counts = {"crop": (200, 600), "left": (200, 600), "right": (100, 350), "both": (100, 350)}
    mean = pytest.approx(1900 / 600)
    assert means(graph(*chain), counts) == {
        "detect": 1.0,
        **dict.fromkeys(("crop", "left", "right", "both"), mean),
    }


def test_rows_stay_within_what_a_module_may_run() -> None:
    """Rows that always were the most do not become a number that is run whatever comes."""
    application = graph(*diamond(rows=2.0, max_rows=8))
    (found,) = with_rows([application], {("app", name): (100, 800) for name in ("cars", "people")})
    assert 7.99 < found.module("cars").rows_per_request < 8
    assert found.rows_vary(found.module("cars"))
    assert means(application, {"cars": (100, 0), "people": (100, 0)})["cars"] > 0


def test_a_plan_is_looked_at_with_the_rows_that_were_measured(tmp_path: Path) -> None:
    work, now = workspace_of(tmp_path), now_utc()
    minute = now.replace(second=0, microsecond=0)
    rows = [
        ModuleMinute(
            instance="i",
            application="app",
            module=module,
            minute=minute,
            plan_id=plan_id,
            samples=60,
            rows=360,
        )
        for module in ("cars", "people")
        for plan_id in ("one", "two")
    ]
    with work.open() as warehouse:
        add_statistics(warehouse, StatisticsFile(path="f", digest="1", modules=rows), now)
    measured = measured_rows(work, minute, now)
    assert measured == {("app", "cars"): (120, 720), ("app", "people"): (120, 720)}
    plan = with_applications(
        make_plan(*([[Own(latency_us=(1_000,) * 8)]] for _ in range(4))),
        hand_application("app", diamond()),
    )
    (seen,) = as_measured(plan, measured).applications
    assert seen.application.module("cars").rows_per_request == pytest.approx(6.0)
    assert as_measured(plan, {}) == plan


def test_models_that_modules_alone_run_have_no_clients_of_their_own() -> None:
    plan = make_plan([[Own(latency_us=(1_000,) * 8)]], [[Own(latency_us=(1_000,) * 8)]])
    assert planned_rates(plan) == {m.name: m.throughput_rps for m in plan.models}
    graph = hand_application("app", [hand_module("x", "m1")], rate_rps=10.0)
    served = with_applications(plan, graph)
    only_first = Workload(models=plan.workload.models[:1], applications=(graph.application,))
    rates = planned_rates(replace(served, workload=only_first))
    assert rates == {"m0": plan.model("m0").throughput_rps, "app": 10.0}


def test_a_gateways_counters_say_rows_by_module() -> None:
    counters = {"module_samples": {"app/cars": 9, "app/none": 4}, "module_rows": {"app/cars": 30}}
    assert counted_rows(counters) == {("app", "cars"): (9, 30), ("app", "none"): (4, 0)}
    assert since({("app", "cars"): (9, 30)}, {("app", "cars"): (4, 10)}) == {
        ("app", "cars"): (5, 20)
    }
    with pytest.raises(InputError, match="does not count by name"):
        requests_of({"offered": {"net": 3}})


def test_each_size_of_a_module_has_its_measured_share() -> None:
    sizes = (
        Module(
            name=f"read@{n}",
            model=f"m{n}",
            rows_per_request=1.0,
            max_rows=8,
            inputs={"x": "lines.x"},
            size_of="read",
            size_by="lines.x",
        )
        for n in (2, 3)
    )
    spell = Module(
        name="spell", model="m4", rows_per_request=2.0, max_rows=8, inputs={"y": "read.y"}
    )
    find, lines = hand_module("find", "m0"), hand_module("lines", "m1", "find", rows=2, max_rows=8)
    counts = {"lines": (200, 600), "read@2": (200, 500), "read@3": (200, 100), "spell": (200, 600)}
    assert means(graph(find, lines, *sizes, spell), counts) == {
        "find": 1.0,
        "lines": 3.0,
        "read@2": 2.5,
        "read@3": 0.5,
        "spell": 3.0,
    }
