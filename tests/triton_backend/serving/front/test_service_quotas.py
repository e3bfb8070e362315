"""Quotas of clients in front of a scheduler and workers, without Triton."""

import json
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.triton_backend.serving import served_applications, small_plans
from tests.triton_backend.serving.front.requests.test_pending import Asked
from tests.triton_backend.serving.served_applications import application, module, one_stage
from tests.triton_backend.serving.small_plans import BATCH, two_stage
from tests.triton_backend.serving.system import Answer, LocalSystem, wait_for
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_s
from triton_backend.serving.front.quotas import BURST_REQUESTS
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.pending import PendingRequests
from triton_backend.serving.front.service import FrontService

PATIENT_US = 1_000_000
MORE = 4
SLOWLY_RPS = 0.001  # no test lasts until the next token
CLIENTS = {"shop": SLOWLY_RPS, "lab": SLOWLY_RPS}


@contextmanager
def running(folder: Path, plan: Plan, **options: Any) -> Generator[LocalSystem]:
    quotas = {model.name: CLIENTS for model in (*plan.models, *plan.applications)}
    system = LocalSystem(folder / "serve", plan, ServeOptions(quotas=quotas, **options))
    try:
        yield system
    finally:
        system.stop()


def ask(system: LocalSystem, count: int, model: str = "pair", **own: Any) -> list[Answer]:
    """Answers to so many requests, in their order."""
    shapes = system.fronts[model].plan.inputs
    tensors = {
        one.name: np.zeros((BATCH, *one.shape[1:]), NUMPY_DTYPES[one.dtype]) for one in shapes
    }
    asked = [system.ask(model, tensors, PATIENT_US, **own) for _ in range(count)]
    return [answer() for answer in asked]


def refusals(answers: list[Answer]) -> list[Refusal]:
    return [answer for answer in answers if isinstance(answer, Refusal)]


def test_requests_beyond_a_quota_become_low_and_those_of_others_do_not(tmp_path: Path) -> None:
    with running(tmp_path, small_plans.plan(two_stage())) as system:
        front = system.fronts["pair"]
        sent = BURST_REQUESTS + MORE
        assert not refusals(ask(system, sent, client="shop"))
        for client in ("", "new"):
            assert not refusals(ask(system, sent, client=client))
        assert not refusals(ask(system, BURST_REQUESTS, client="lab"))
        assert front.quotas.over == {"shop": MORE, "lab": 0}
        counters = front.counters
        assert (counters.low.offered, counters.low.served) == (MORE, MORE)
        assert counters.offered == counters.served == 3 * sent + BURST_REQUESTS - MORE
        offered = system.status()["counters"]["offered"]
        assert offered == {"pair": counters.offered}  # low ones are no demand


def test_low_requests_leave_the_quota_to_others(tmp_path: Path) -> None:
    with running(tmp_path, small_plans.plan(two_stage())) as system:
        assert not refusals(ask(system, MORE, client="shop", low=True))
        ask(system, BURST_REQUESTS, client="shop")
        assert system.fronts["pair"].quotas.over["shop"] == 0


def test_requests_beyond_a_quota_are_refused_where_that_is_chosen(tmp_path: Path) -> None:
    with running(tmp_path, small_plans.plan(two_stage()), over_quota="refused") as system:
        front = system.fronts["pair"]
        answers = ask(system, BURST_REQUESTS + MORE, client="shop", client_id="mine")
        told = "model 'pair': client 'shop' is over its quota"
        assert refusals(answers) == [Refusal("UNAVAILABLE", told)] * MORE
        assert all(isinstance(answer, Refusal) for answer in answers[BURST_REQUESTS:])
        assert not refusals(ask(system, MORE))
        assert front.counters.dropped == Counter(quota=MORE)
        assert front.counters.offered == front.counters.served + MORE
        assert not front.counters.low.offered
        assert front.quotas.over == {"shop": MORE, "lab": 0}
        (log,) = (tmp_path / "serve" / "logs").glob("requests-*.jsonl")
        wait_for(lambda: len(log.read_text().splitlines()) == MORE)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    found = {(one["client"], one["request_id"], one["outcome"], one["priority"]) for one in lines}
    assert found == {("shop", "mine", "quota", "high")}


def test_what_cannot_be_low_is_refused(tmp_path: Path) -> None:
    graph = application("chain", module("x", model="m"), module("y", "x", model="m"))
    plan = served_applications.with_applications(small_plans.plan(one_stage("m")), graph)
    with running(tmp_path, plan) as system:
        front = system.fronts["chain"]
        assert len(refusals(ask(system, BURST_REQUESTS + MORE, "chain", client="shop"))) == MORE
        assert front.counters.dropped == Counter(quota=MORE)
        assert not front.counters.low.offered


def test_two_gateways_share_a_quota(tmp_path: Path) -> None:
    with running(tmp_path, small_plans.plan(two_stage()), gateways=2) as system:
        second = system.settings.of_gateway(1)
        fronts = (
            system.fronts["pair"],
            FrontService(second, Deployment.read(second, 1), "pair", system.clock),
        )
        fronts[1].start()
        try:
            over: list[int] = []
            for system.fronts["pair"] in fronts:
                # Jobs, as models of two gateways are, are never low.
                over.append(len(refusals(ask(system, BURST_REQUESTS, client="shop"))))
        finally:
            fronts[1].stop()
            system.fronts["pair"] = fronts[0]
        assert over == [front.quotas.over["shop"] for front in fronts] == [BURST_REQUESTS // 2] * 2


def test_no_entry_of_a_canary_is_judged_by_a_quota(tmp_path: Path) -> None:
    counters = FrontCounters(latency_bounds_s(100_000))
    pending = PendingRequests("m", tmp_path, SystemClock(), counters)
    for reason in (DropReason.QUOTA, DropReason.QUEUE_FULL):
        request = Asked().request()
        request.shared_by = "canary"
        pending.turn_away(request, reason, Refusal("UNAVAILABLE", "no"))
    assert (counters.offered, counters.dropped.total()) == (2, 2)
    share = counters.of_share("canary")
    assert (share.offered, share.dropped) == (1, {DropReason.QUEUE_FULL.text: 1})
