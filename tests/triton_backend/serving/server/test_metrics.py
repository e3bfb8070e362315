"""Metrics: what is published of the values, and whether Prometheus calls them well-formed."""

import re
import shutil
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tritonclient.utils import InferenceServerException

from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.ports import free_ports
from tests.triton_backend.serving.gateway.gateways import (
    HeldGateway,
    arrive,
    dispatches,
    finish,
    serving,
)
from tests.triton_backend.serving.small_plans import BATCH, model, on_gpus, plan, stage, two_stage
from tests.triton_backend.serving.system import deploy, wait_for
from triton_backend.contract.decisions import DropReason
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.newest_profiles import write_ratios
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.buckets import Buckets
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_s
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.server.metrics import (
    METRICS,
    VALUES_AT_ONCE,
    Histogram,
    Publisher,
    Values,
    front_values,
    gateway_values,
    node_values,
    profile_values,
)
from triton_backend.serving.transport.wire import TimesBody

SLO_US = 100_000


class Family:
    """A metric family that notes what is done to it."""

    def __init__(self, name: str, done: list[tuple[str, dict[str, str], str, float]]) -> None:
        self._name = name
        self._done = done

    def Metric(self, labels: dict[str, str], **_: Any) -> Any:  # noqa: N802  # Triton's name
        done, name = self._done, self._name

        class Metric:
            def __del__(self) -> None:
                done.append((name, labels, "delete", 0.0))

            def set(self, value: float) -> None:
                done.append((name, labels, "set", value))

            def increment(self, value: float) -> None:
                done.append((name, labels, "increment", value))

            def observe(self, value: float) -> None:
                done.append((name, labels, "observe", value))

        return Metric()


def test_counters_are_published_by_growth_and_gauges_by_value() -> None:
    done: list[tuple[str, dict[str, str], str, float]] = []
    publisher = Publisher(lambda name, _description, _kind: Family(name, done))
    queue = ("poolpipe_queue_requests", (("model", "m"),))
    served = ("poolpipe_requests_served_total", (("model", "m"),))
    publisher.publish({queue: 3, served: 10})
    publisher.publish({queue: 3, served: 14})
    publisher.publish({served: 14})
    assert done == [
        ("poolpipe_queue_requests", {"model": "m"}, "set", 3),
        ("poolpipe_requests_served_total", {"model": "m"}, "increment", 10),
        ("poolpipe_requests_served_total", {"model": "m"}, "increment", 4),
        ("poolpipe_queue_requests", {"model": "m"}, "set", 0.0),
        ("poolpipe_queue_requests", {"model": "m"}, "delete", 0.0),
    ]


def test_others_have_their_turn_after_a_few_values() -> None:
    done: list[tuple[str, dict[str, str], str, float]] = []
    paused: list[int] = []
    publisher = Publisher(
        lambda name, _description, _kind: Family(name, done), pause=lambda: paused.append(len(done))
    )
    times = ("poolpipe_stage_seconds", ())
    values: Values = {
        ("poolpipe_queue_requests", (("model", f"m{n}"),)): n + 1 for n in range(VALUES_AT_ONCE)
    }
    publisher.publish(values | {times: Histogram((1.0,), (3, 40), (1.5, 80.0))})
    assert len(done) == VALUES_AT_ONCE + 43
    assert paused == [*range(VALUES_AT_ONCE, len(done) + 1, VALUES_AT_ONCE)]


def test_an_error_costs_the_figures_of_one_time_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[tuple[str, dict[str, str], str, float]] = []
    publisher = Publisher(lambda name, _description, _kind: Family(name, done))

    def raising(error: Exception) -> Callable[[], Values]:
        def values() -> Values:
            raise error

        return values

    publisher.publish_from(raising(TimeoutError()))
    assert not caplog.records
    for _ in range(2):
        publisher.publish_from(raising(KeyError("node")))
    publisher.publish_from(lambda: {("poolpipe_workers_up", ()): 3})
    assert done == [("poolpipe_workers_up", {}, "set", 3)]
    publisher.publish_from(raising(OSError()))
    assert len(caplog.records) == 2


def test_a_metric_that_cannot_be_published_has_no_other_counted_twice() -> None:
    done: list[tuple[str, dict[str, str], str, float]] = []

    def family(name: str, _about: str, _kind: str) -> Family:
        if name == "poolpipe_workers_up":
            raise RuntimeError(name)
        return Family(name, done)

    publisher = Publisher(family)
    lost, up = ("poolpipe_workers_lost_total", ()), ("poolpipe_workers_up", ())
    for count in (2, 2, 3):
        publisher.publish_from(lambda count=count: {lost: count, up: 1})
    assert [value for *_, value in done] == [2, 1]


def test_gauges_that_are_over_leave_the_page_although_their_family_keeps_what_it_made() -> None:
    """As that of the bundled server: every change of plan would leave a series, for ever."""
    page: dict[tuple[str, str], float] = {}

    class KeepingFamily:
        def __init__(self, name: str) -> None:
            self._name = name
            self._made: list[str] = []

        def Metric(self, labels: dict[str, str]) -> Any:  # noqa: N802  # Triton's name
            made = ",".join(labels.values())
            self._made.append(made)
            return SimpleNamespace(
                set=partial(page.__setitem__, (self._name, made)),
                increment=partial(page.__setitem__, (self._name, made)),
            )

        def __del__(self) -> None:
            for made in self._made:
                del page[self._name, made]

    publisher = Publisher(lambda name, _description, _kind: KeepingFamily(name))
    lost = ("poolpipe_workers_lost_total", ())
    for number in range(5):
        plans: Values = {("poolpipe_plan", (("plan_id", f"p{n}"),)): 1 for n in (number, 9)}
        publisher.publish(plans | {lost: 3})
        assert page == {
            ("poolpipe_plan", f"p{number}"): 1,
            ("poolpipe_plan", "p9"): 1,
            ("poolpipe_workers_lost_total", ""): 3,
        }


def test_gauges_that_a_dead_process_published_are_0_with_the_next_one(tmp_path: Path) -> None:
    """The bundled server keeps them as they last were.

    A scheduler that is the standby now would have workers.
    """
    up, active = ("poolpipe_workers_up", ()), ("poolpipe_scheduler_active", ())
    queue = ("poolpipe_queue_requests", (("model", "m"),))
    file = tmp_path / "gauges"
    done: list[tuple[str, dict[str, str], str, float]] = []

    def published(*times: Values) -> list[tuple[str, dict[str, str], str, float]]:
        done.clear()
        publisher = Publisher(lambda name, _description, _kind: Family(name, done), file)
        for values in times:
            publisher.publish(values)
        return [one for one in done if one[2] != "delete"]

    batches = ("poolpipe_batches_failed_total", ())
    published({up: 3, active: 1, queue: 7, batches: 2}, {up: 4, active: 1, queue: 7, batches: 2})
    second = published({active: 0}, {active: 0})
    assert {(name, value) for name, _, _, value in second} == {
        ("poolpipe_workers_up", 0),
        ("poolpipe_queue_requests", 0),
        ("poolpipe_scheduler_active", 0),
    }
    assert ("poolpipe_queue_requests", {"model": "m"}, "set", 0) in second
    assert [*map(str, file.parent.iterdir())] == [str(file)]
    assert published({active: 1}) == [("poolpipe_scheduler_active", {}, "set", 1)]
    for text in ("{", "[1]", '[["nobody", []]]', '[["poolpipe_workers_up", [1]]]'):
        file.write_text(text)
        assert published({active: 1}) == [("poolpipe_scheduler_active", {}, "set", 1)]
    file.unlink()
    file.mkdir()  # nothing can be written
    assert published({active: 1}) == [("poolpipe_scheduler_active", {}, "set", 1)]


def test_latencies_are_observed_bucket_by_bucket_and_their_sum_is_right() -> None:
    bounds = latency_bounds_s(SLO_US)
    assert (bounds[0], bounds[-1], len(bounds)) == (0.1 / 32, 0.4, 29)
    assert 0.1 in bounds
    counters = FrontCounters(bounds)
    done: list[tuple[str, dict[str, str], str, float]] = []
    publisher = Publisher(lambda name, _description, _kind: Family(name, done))
    key = ("poolpipe_latency_seconds", (("model", "m"),))

    def observed() -> list[float]:
        done.clear()
        publisher.publish({key: front_values("m", counters, held=0)[key]})
        return [value for *_, value in done]

    for latency_us, late in ((3_000, False), (100_000, False), (99_000, False), (9_000_000, True)):
        counters.answered(latency_us, late)
    assert observed() == [0.003, 0.0995, 0.0995, 9.0]
    assert observed() == []
    counters.answered(100_000, late=False)
    assert observed() == [pytest.approx(0.1)]


def test_a_front_has_a_series_of_every_reason_before_the_first_drop() -> None:
    counters = FrontCounters(latency_bounds_s(SLO_US))

    def drops() -> dict[str, float | Histogram]:
        name = "poolpipe_requests_dropped_total"
        values = front_values("m", counters, held=0)
        return {dict(of)["reason"]: values[key, of] for key, of in values if key == name}

    assert drops() == {reason.text: 0 for reason in DropReason}
    counters.dropped["worker_lost"] += 2
    assert drops() == {reason.text: 0 for reason in DropReason} | {"worker_lost": 2}


def test_a_sum_that_is_ahead_of_its_count_stays_in_its_bucket() -> None:
    """The front goes on counting while its numbers are read."""
    done: list[tuple[str, dict[str, str], str, float]] = []
    publisher = Publisher(lambda name, _description, _kind: Family(name, done))
    torn = Histogram((1.0, 2.0), (1, 0, 0), (1.7, 0.0, 0.0))
    values: Values = {("poolpipe_latency_seconds", ()): torn}
    publisher.publish(values)
    assert [value for *_, value in done] == [1.0]


def test_what_takes_no_time_is_observed_as_0() -> None:
    done: list[tuple[str, dict[str, str], str, float]] = []
    publisher = Publisher(lambda name, _description, _kind: Family(name, done))
    publisher.publish({("poolpipe_queue_wait_seconds", ()): Histogram((1.0,), (3, 0), (0.0, 0.0))})
    assert {value for *_, value in done} == {0.0}


def test_pools_of_two_pipelines_are_told_apart(tmp_path: Path) -> None:
    model = two_stage()
    again = on_gpus(model, 2)
    pipelines = (*model.model.pipelines, *again.model.pipelines)
    twice = replace(model.replaced(pipelines=pipelines), pools=(*model.pools, *again.pools))
    deployment = deploy(tmp_path, plan(twice, gpus=4), ServeOptions())
    gateway = HeldGateway(deployment)
    for pipeline, busy_us in ((0, 1_000), (1, 4_000)):
        gateway.counters.serve(deployment.plan)[0, pipeline, 0].ran(1, busy_us)
    values = gateway_values(gateway, 1_000_000)
    pools = {
        (name, dict(labels)["pipeline"], dict(labels)["gpu_class"]): value
        for (name, labels), value in values.items()
        if "pipeline" in dict(labels) and not isinstance(value, Histogram)
    }
    assert pools["poolpipe_stage_busy_seconds_total", "0", "FAST"] == 0.001
    assert pools["poolpipe_stage_busy_seconds_total", "1", "FAST"] == 0.004
    slow = (("pool", deployment.plan.pools[3].name), ("gpu_class", "SLOW"))
    names = ("pool_vgpus", "pool_idle_fraction", "pool_bad_fraction", "advised_gpus")
    assert [values[f"poolpipe_{name}", slow] for name in names] == [2, 1.0, 0.0, 2.0]


def test_runs_waits_and_what_links_carried_outlive_a_change_of_plan(
    tmp_path: Path,
) -> None:
    """Batches of the plan before are counted as that plan expects them."""
    first = deploy(tmp_path, plan(two_stage()), ServeOptions(time_stretch=2.0))
    gateway = serving(first)

    def run(now_us: int, took_us: int) -> None:
        """A full batch, whose first request came 6 ms before the others; the move lasts 1 ms."""
        arrive(gateway, now_us, now_us=now_us - 6_000)
        arrive(gateway, *range(now_us + 1, now_us + BATCH), now_us=now_us)
        ((batch, body),) = dispatches(gateway.frames())
        here, there = (hop.vgpu for hop in body.hops)
        end_us = now_us + took_us
        gateway.reports.stage_done(batch, 0, TimesBody(here, now_us, end_us), end_us)
        gateway.reports.transfer_done(
            batch, 1, TimesBody(there, end_us, end_us + 1_000), end_us + 1_000
        )
        now_us, end_us = end_us + 1_000, end_us + 1_000 + took_us
        gateway.reports.stage_done(batch, 1, TimesBody(there, now_us, end_us), end_us)

    def found(stage: int) -> tuple[float, ...]:
        values = gateway_values(gateway, 10_000_000)
        own = {
            name: value
            for (name, labels), value in values.items()
            if dict(labels).get("stage") == str(stage)
        }
        times = own["poolpipe_stage_seconds"]
        assert isinstance(times, Histogram)
        assert sum(times.counts) == own["poolpipe_stage_runs_total"]
        assert sum(times.sums) == own["poolpipe_stage_busy_seconds_total"]
        planned = own["poolpipe_stage_planned_seconds_total"]
        assert isinstance(planned, float)
        return sum(times.counts), round(sum(times.sums), 6), planned

    def waited() -> tuple[int, float]:
        values = gateway_values(gateway, 10_000_000)
        waits = values["poolpipe_queue_wait_seconds", (("model", "pair"),)]
        assert isinstance(waits, Histogram)
        return sum(waits.counts), sum(waits.sums)

    def carried() -> dict[tuple[str, ...], float | Histogram]:
        return {
            tuple(of for _, of in labels): value
            for (name, labels), value in gateway_values(gateway, 10_000_000).items()
            if name == "poolpipe_link_busy_seconds_total"
        }

    assert carried() == {}
    assert waited() == (0, 0)
    run(1_000_000, 15_000)
    assert found(0) == found(1) == (1, 0.015, 0.01)
    assert carried() == {("FAST", "up"): 0.001, ("SLOW", "down"): 0.001}
    quicker = two_stage()
    (pipeline,) = quicker.model.pipelines
    stages = tuple(replace(s, latency_us_by_batch=(500, 600, 800, 1_000)) for s in pipeline.stages)
    changed = plan(quicker.replaced(pipelines=(replace(pipeline, stages=stages),)), plan_id="quick")
    gateway.prepare(deploy(tmp_path, changed, ServeOptions(time_stretch=2.0), generation=2))
    for vgpu in range(3):
        gateway.workers.up(WorkerAddress(2, vgpu), 2_000_000)
    gateway.swap(2_000_000)
    gateway.frames()
    run(3_000_000, 3_000)
    assert waited() == (2, 0.012)
    assert found(0) == found(1) == (2, 0.018, 0.012)
    assert carried() == {("FAST", "up"): 0.002, ("SLOW", "down"): 0.002}


def test_changes_of_plan_leave_no_series_behind(tmp_path: Path) -> None:
    """Of stages, whose labels are those of a plan, there are those of the plan before, too."""
    done: list[tuple[str, dict[str, str], str, float]] = []
    publisher = Publisher(lambda name, _description, _kind: Family(name, done))
    gateway = serving(deploy(tmp_path, plan(two_stage()), ServeOptions()))
    found: list[Counter[str]] = []
    for generation in range(2, 8):
        moved = plan(on_gpus(two_stage(), generation), plan_id=f"plan-{generation}", gpus=9)
        gateway.prepare(deploy(tmp_path, moved, generation=generation))
        now_us = generation * 1_000_000
        for vgpu in range(3):
            gateway.workers.up(WorkerAddress(generation, vgpu), now_us)
        gateway.swap(now_us)
        gateway.frames()
        arrive(gateway, *range(BATCH * generation, BATCH * generation + BATCH), now_us=now_us)
        for batch, body in dispatches(gateway.frames()):
            finish(gateway, batch, body, now_us + 10_000)
        gateway.look(now_us + 20_000)
        publisher.publish(gateway_values(gateway, now_us))
        last = {(name, *sorted(labels.items())): did for name, labels, did, _ in done}
        found.append(Counter(name for (name, *_), did in last.items() if did != "delete"))
    assert found[1:] == [found[1]] * 5
    assert (found[1]["poolpipe_plan"], found[1]["poolpipe_stage_runs_total"]) == (1, 4)
    assert len(gateway.status()["counters"]["stage_runs"]) == 4


def test_values_have_the_labels_that_are_documented(tmp_path: Path) -> None:
    counters = FrontCounters(latency_bounds_s(SLO_US))
    counters.dropped["deadline"] += 1
    counters.sizes.observe(4)
    counters.of_share("canary").served += 1
    deployment = deploy(tmp_path, plan(two_stage()), ServeOptions())
    gateway = HeldGateway(deployment)
    gateway.counters.serve(deployment.plan)[0, 0, 0].ran(1, 1_000)
    gateway.counters.batches["pair"] += 1
    gateway.link_busy_us = lambda: {("FAST", "up"): 1_000}
    gateway.counters.shared_batches["pair"] += 1
    gateway.counters.module_rows["app", "cars"] += 1
    gateway.counters.module_times["app", "cars"] = Buckets.of_times()
    values = gateway_values(gateway, 1_000_000) | front_values("pair", counters, 0, (1, 1))
    values |= node_values({"node": "n", "restarts": 0})
    found = {name: tuple(label for label, _ in labels) for name, labels in values}
    write_ratios(tmp_path, deployment.plan.plan_id, {deployment.plan.pools[0].name: 1.25})
    noted = profile_values(tmp_path, deployment)
    assert list(noted.values()) == [1.25]
    found |= {name: tuple(label for label, _ in labels) for name, labels in noted}
    assert found == {name: METRICS[name].labels for name in found}
    assert len(found) > 30


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("serve")
    served = plan(model("bare", (stage((0, 10), "FAST", 0),), policy="deferred"))
    render_repository(folder, served, ServeOptions())
    http, grpc, metrics = free_ports(3)
    yield start(folder, Endpoints(http=http, grpc=grpc, metrics=metrics))
    stop(folder)


def page(state: ServerState) -> str:
    with urllib.request.urlopen(state.metrics_url) as answer:
        return answer.read().decode()


def samples(text: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("poolpipe_"):
            found[f"{family.type} {family.name}"] = family.samples
    return found


def counted(text: str, histogram: str) -> float:
    """Observations of a histogram of one series; 0 while it is not published."""
    found = samples(text).get(f"histogram poolpipe_{histogram}", [])
    return sum(s.value for s in found if s.name.endswith("_count"))


def is_served(client: grpc_client.InferenceServerClient, given: grpc_client.InferInput) -> bool:
    """True if a request is served.

    One that waits for its last moment is late where the machine is.
    """
    try:
        client.infer("bare", [given], timeout=2_000_000)
    except InferenceServerException:
        return False
    return True


@pytest.mark.slow
def test_every_metric_is_well_formed_and_late_binding_tells_its_batches(
    state: ServerState,
) -> None:
    with grpc_client.InferenceServerClient(state.grpc_url) as client:
        # One waits for others until its last moment; the next are whole batches, which do not
        # wait.
        for rows in (1, *(BATCH,) * 4):
            given = grpc_client.InferInput("input", [rows, 4096], "UINT8")
            given.set_data_from_numpy(np.zeros((rows, 4096), np.uint8))
            wait_for(lambda given=given: is_served(client, given))
    wait_for(lambda: 'poolpipe_latency_seconds_count{model="bare"} 5' in page(state))
    wait_for(lambda: "poolpipe_keeper_up 1" in page(state))
    histograms = ("batch_size", "deferred_seconds", "queue_wait_seconds", "stage_seconds")
    wait_for(lambda: [counted(page(state), name) for name in histograms] == [5] * 4)
    text = page(state)
    found = samples(text)
    latency = found["histogram poolpipe_latency_seconds"]
    buckets = [s.value for s in latency if s.name.endswith("_bucket")]
    (total,) = (s.value for s in latency if s.name.endswith("_sum"))
    assert buckets == sorted(buckets)
    assert (buckets[-1], 0 < total < 5 * 2) == (5, True)  # two seconds were allowed
    (only,) = found["gauge poolpipe_advised_gpus"]
    assert (only.labels["gpu_class"], only.value) == ("FAST", 1.0)
    told = state.control("advice")
    pool = told["pools"][only.labels["pool"]]
    assert (pool["gpu_class"], pool["vgpus"], pool["advised"]) == ("FAST", 1, 1)
    assert 0 < pool["busy_by_vgpu"][0] < 1
    assert told["gpu_classes"]["FAST"] == {"gpus": 1, "advised": 1}
    for kind in found:
        type_, name = kind.split()
        published = f"{name}_total" if type_ == "counter" else name
        assert METRICS[published].kind == type_, kind
        own = {*METRICS[published].labels, "le"}
        assert [s.name for s in found[kind] if not set(s.labels) <= own] == []
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool (Debian: prometheus) is not installed")
    # Triton's own do not pass, and name our models.
    own = "".join(re.findall(r"^(?:# \w+ )?poolpipe_.*\n", text, flags=re.MULTILINE))
    done = subprocess.run(
        [promtool, "check", "metrics"], input=own, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
