"""Prometheus metrics: values are gathered here and published once a second.

Publishing one value through Triton costs 20-30 µs, so nothing is published while a request waits,
and after a few values the threads that serve requests have their turn before the next few. A value
is keyed by metric name and labels; a counter is published by what it grew since the last time.
Triton's histograms take one observation at a time: the answers of a bucket are observed as its
mean, so that buckets, sum and count are right without a list of all latencies.

Names are as Prometheus wants them: counters end in `_total`, times are in seconds.
"""

import contextlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.units import US_PER_S
from triton_backend.serve_folder.files import write_whole
from triton_backend.serve_folder.newest_profiles import read_ratios
from triton_backend.serve_folder.repository import STANDBY_MODEL
from triton_backend.serve_folder.state import keeper_runs, read_state_file
from triton_backend.serving.buckets import Buckets
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.counters import FrontCounters
from triton_backend.serving.front.group import FrontGroup
from triton_backend.serving.front.quotas import Quotas
from triton_backend.serving.gateway.counters import StageLabels
from triton_backend.serving.gateway.rollout import State

if TYPE_CHECKING:  # fronts and nodes publish too, and need no scheduler and its compiler
    from triton_backend.serving.gateway.service import SchedulerService
    from triton_backend.serving.gateway.state import Gateway

_LOG = logging.getLogger(__name__)
VALUES_AT_ONCE = 16
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Running totals by bucket: upper bounds (one bucket more lies above them), counts and sums."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sums: tuple[float, ...]

    @classmethod
    def of(cls, buckets: Buckets) -> "Histogram":
        """As they are now."""
        sums = tuple(total / buckets.per_unit for total in buckets.sums)
        return cls(buckets.bounds, tuple(buckets.counts), sums)


Values = dict[tuple[str, Labels], float | Histogram]


class MetricFamily(NamedTuple):
    """Kind, description and labels of one metric.

    Metrics of the standby's process have the label `scheduler` beside these.
    """

    kind: str
    about: str
    labels: tuple[str, ...] = ()


_MODEL = ("model",)
_POOL = ("pool", "gpu_class")

METRICS: Mapping[str, MetricFamily] = {
    "poolpipe_offload_leases": MetricFamily("gauge", "Clients that announced where they cut"),
    "poolpipe_requests_offered_total": MetricFamily(
        "counter", "Requests that reached the front", _MODEL
    ),
    "poolpipe_requests_served_total": MetricFamily(
        "counter", "Requests answered within their deadline", _MODEL
    ),
    "poolpipe_requests_late_total": MetricFamily(
        "counter", "Requests answered after their deadline", _MODEL
    ),
    "poolpipe_requests_failed_total": MetricFamily(
        "counter", "Requests that failed with a server-side error", _MODEL
    ),
    "poolpipe_requests_refused_total": MetricFamily(
        "counter", "Requests refused as invalid", _MODEL
    ),
    "poolpipe_requests_dropped_total": MetricFamily(
        "counter", "Requests dropped, by reason", ("model", "reason")
    ),
    "poolpipe_low_requests_total": MetricFamily(
        "counter",
        "Low requests, by what became of them; no other counter of requests has them",
        ("model", "outcome"),
    ),
    "poolpipe_shared_requests_total": MetricFamily(
        "counter",
        "Requests during a canary, by entry (former or canary) and what became of them",
        ("model", "entry", "outcome"),
    ),
    "poolpipe_requests_over_quota_total": MetricFamily(
        "counter",
        "Requests beyond their client's quota, by the name that they asked for",
        ("model", "client"),
    ),
    "poolpipe_requests_held": MetricFamily(
        "gauge", "Requests that a front has taken and not answered", _MODEL
    ),
    "poolpipe_latency_seconds": MetricFamily("histogram", "Answered requests by latency", _MODEL),
    "poolpipe_batch_size": MetricFamily("histogram", "Batches of late binding by samples", _MODEL),
    "poolpipe_deferred_seconds": MetricFamily(
        "histogram", "Batches of late binding by the waiting time of their first request", _MODEL
    ),
    "poolpipe_guard_seconds": MetricFamily(
        "gauge", "Time kept back from every request for delays", _MODEL
    ),
    "poolpipe_frames_refused_total": MetricFamily(
        "counter", "Frames refused, with their connections", ("peer",)
    ),
    "poolpipe_queue_requests": MetricFamily("gauge", "Requests waiting in the scheduler", _MODEL),
    "poolpipe_queue_wait_seconds": MetricFamily(
        "histogram",
        "Batches by the waiting time of their first request, from its arrival to the dispatch",
        _MODEL,
    ),
    "poolpipe_in_flight_batches": MetricFamily("gauge", "Batches dispatched and not ended"),
    "poolpipe_batches_total": MetricFamily("counter", "Batches dispatched", _MODEL),
    "poolpipe_batch_samples_total": MetricFamily(
        "counter", "Samples in dispatched batches", _MODEL
    ),
    "poolpipe_shared_batches_total": MetricFamily(
        "counter", "Shared batches: joint runs of batches of several pipelines", _MODEL
    ),
    "poolpipe_shared_batch_members_total": MetricFamily(
        "counter", "Batches that ran in shared batches", _MODEL
    ),
    "poolpipe_shared_batch_samples_total": MetricFamily(
        "counter", "Samples that ran in shared batches", _MODEL
    ),
    "poolpipe_shared_batch_entries_total": MetricFamily(
        "counter", "Entries in each shared batch, summed", _MODEL
    ),
    "poolpipe_batches_failed_total": MetricFamily("counter", "Batches a runtime could not run"),
    "poolpipe_batches_lost_total": MetricFamily(
        "counter", "Batches lost on their way, whose requests ran again"
    ),
    "poolpipe_internal_errors_total": MetricFamily(
        "counter", "Server-side errors that a loop survived, by loop", ("loop",)
    ),
    "poolpipe_front_bytes_total": MetricFamily(
        "counter",
        "Tensors of an application that its front wrote or read: requests in, answers out",
        ("model", "direction"),
    ),
    "poolpipe_jobs": MetricFamily("gauge", "Jobs of applications in progress"),
    "poolpipe_retained_output_slots": MetricFamily(
        "gauge", "Slots that hold retained outputs of modules"
    ),
    "poolpipe_module_rows_total": MetricFamily(
        "counter", "Rows that modules of applications were to run", ("application", "module")
    ),
    "poolpipe_module_drops_total": MetricFamily(
        "counter",
        "Jobs dropped, or continued without an optional module, by module",
        ("application", "module"),
    ),
    "poolpipe_module_seconds": MetricFamily(
        "histogram",
        "Tasks of modules by time, from their rows' being there to their end",
        ("application", "module"),
    ),
    "poolpipe_stage_runs_total": MetricFamily(
        "counter", "Batches run at a stage", StageLabels._fields
    ),
    "poolpipe_stage_busy_seconds_total": MetricFamily(
        "counter", "Time that vGPUs were busy with a stage", StageLabels._fields
    ),
    "poolpipe_stage_planned_seconds_total": MetricFamily(
        "counter",
        "Time that these batches take by the profile in the plan",
        StageLabels._fields,
    ),
    "poolpipe_stage_seconds": MetricFamily(
        "histogram", "Batches run at a stage by run time", StageLabels._fields
    ),
    "poolpipe_stage_loads_total": MetricFamily(
        "counter", "Loads of a stage on demand", StageLabels._fields
    ),
    "poolpipe_stage_evictions_total": MetricFamily(
        "counter", "Times that a stage on demand made room for another", StageLabels._fields
    ),
    "poolpipe_pool_loaded_bytes": MetricFamily(
        "gauge", "Weights of stages on demand that a pool's vGPUs hold", _POOL
    ),
    "poolpipe_link_busy_seconds_total": MetricFamily(
        "counter",
        "Time in which a node's uplink or downlink carried tensors between stages",
        ("node", "direction"),
    ),
    "poolpipe_pool_vgpus": MetricFamily("gauge", "vGPUs of a pool", _POOL),
    "poolpipe_pool_idle_fraction": MetricFamily(
        "gauge", "Share of the last minute in which a pool ran nothing, low requests apart", _POOL
    ),
    "poolpipe_pool_bad_fraction": MetricFamily(
        "gauge", "Share of a pool's requests of the last minute not answered in time", _POOL
    ),
    "poolpipe_pool_profile_ratio": MetricFamily(
        "gauge",
        "Latencies of the newest profiles over those in the plan, as of the last `poolpipe ingest`",
        _POOL,
    ),
    "poolpipe_advised_gpus": MetricFamily("gauge", "GPUs that a pool should have", _POOL),
    "poolpipe_workers_lost_total": MetricFamily("counter", "Workers lost"),
    "poolpipe_workers_drained_total": MetricFamily(
        "counter", "Workers renewed because they stayed slow"
    ),
    "poolpipe_workers_up": MetricFamily("gauge", "Workers ready"),
    "poolpipe_worker_restarts_total": MetricFamily(
        "counter", "Worker processes restarted by their node", ("node",)
    ),
    "poolpipe_decisions_total": MetricFamily("counter", "Frames handled by the scheduler"),
    "poolpipe_decision_seconds_total": MetricFamily(
        "counter", "Time that the scheduler took to handle frames"
    ),
    "poolpipe_plan": MetricFamily(
        "gauge", "1 for the plan and generation being served", ("plan_id", "generation")
    ),
    "poolpipe_planned_requests_per_second": MetricFamily(
        "gauge", "Rate that the plan promises to answer in time", _MODEL
    ),
    "poolpipe_rollout_state": MetricFamily("gauge", "1 for the state a rollout is in", ("state",)),
    "poolpipe_scheduler_active": MetricFamily(
        "gauge", "1 for the scheduler's process that dispatches", ("scheduler",)
    ),
    "poolpipe_standby_ready": MetricFamily(
        "gauge", "1 while a standby would take over from the scheduler"
    ),
    "poolpipe_keeper_up": MetricFamily("gauge", "1 while the keeper of tritonserver runs"),
}


class Publisher:
    """Publishes values through a metric library.

    Args:
        family: makes a family (name, description, kind) whose `Metric(labels)` has `set` for
            gauges and `increment` for counters.
        pause: called after every `VALUES_AT_ONCE` values.
        noted: a file that says which gauges are published. Those that a process before this one
            left there are 0 with the first values: the bundled server keeps what a process that
            died had set.
    """

    def __init__(
        self,
        family: Callable[[str, str, str], Any],
        noted: Path | None = None,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        self._family = family
        self._pause = pause
        self._values = 0
        self._noted = noted
        self._gauges = frozenset[tuple[str, Labels]]() if noted is None else _read_gauges(noted)
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._last: dict[tuple[str, Labels], float] = {}
        self._observed: dict[tuple[str, Labels], _Observed] = {}
        self._fails = False

    def publish_from(self, values: Callable[[], Values]) -> None:
        """Publish what a function gives.

        An error costs the figures of this time, and is logged when it begins. A scheduler that has
        no time for them just now raises `TimeoutError`, which is no error.
        """
        try:
            self.publish(values())
        except TimeoutError:
            pass
        except Exception:  # noqa: BLE001  # files of others may hold anything; the next figures are published
            if not self._fails:
                _LOG.exception("no metrics are published until this ends")
            self._fails = True
        else:
            self._fails = False

    def publish(self, values: Values) -> None:
        """Publish what changed; remove the series that are not among the values any more.

        Else every change of plan would leave some, and the page of metrics would grow for ever.
        Triton frees a metric that nothing refers to, but in the bundled server its family does:
        gauges are let go with all of their family, and the others made again. A counter, which
        would begin at 0 again, stays on the page there.
        """
        gauges = frozenset(key for key in values if METRICS[key[0]].kind == "gauge")
        if gauges != self._gauges:
            left = self._gauges - values.keys() - self._metrics.keys()
            self._note(gauges)
            for key in left:  # by a process before this one
                self._metric(key)
        gone = self._metrics.keys() - values.keys()
        for key in gone:
            if METRICS[key[0]].kind == "gauge":
                self._metrics[key].set(0.0)  # where a server keeps it all the same
        for key in gone:
            self._let_go(key)
        for key, value in values.items():
            if isinstance(value, Histogram):
                self._observe(key, value)
                continue
            before = self._last.get(key)
            if value == before:
                continue
            metric = self._metric(key)
            if METRICS[key[0]].kind == "counter":
                metric.increment(value - (before or 0.0))
            else:
                metric.set(value)
            self._last[key] = value
            self._published()

    def _let_go(self, gone: tuple[str, Labels]) -> None:
        """Refer to a metric no more, and of a gauge to none of its family, nor to the family."""
        name, of_gauge = gone[0], METRICS[gone[0]].kind == "gauge"
        for key in [k for k in self._metrics if k == gone or (of_gauge and k[0] == name)]:
            del self._metrics[key]
            self._last.pop(key, None)
            self._observed.pop(key, None)
        if of_gauge:
            self._families.pop(name, None)

    def _note(self, gauges: frozenset[tuple[str, Labels]]) -> None:
        """Write down what is published, for a process after this one."""
        self._gauges = gauges
        if self._noted is not None:
            with contextlib.suppress(OSError):  # a full disk: that process leaves some as they were
                write_whole(self._noted, json.dumps(sorted(gauges)))

    def _observe(self, key: tuple[str, Labels], value: Histogram) -> None:
        metric = self._metric(key, buckets=list(value.bounds))
        observed = self._observed.setdefault(key, _Observed())
        for mean, times in observed.grown(value):
            for _ in range(times):
                metric.observe(mean)
                self._published()

    def _published(self) -> None:
        """One more value has gone to Triton."""
        self._values += 1
        if self._values % VALUES_AT_ONCE == 0:
            self._pause()

    def _metric(self, key: tuple[str, Labels], **more: Any) -> Any:
        if key not in self._metrics:
            name, labels = key
            if name not in self._families:
                kind, description, _ = METRICS[name]
                self._families[name] = self._family(name, description, kind)
            self._metrics[key] = self._families[name].Metric(labels=dict(labels), **more)
        return self._metrics[key]


def _read_gauges(noted: Path) -> frozenset[tuple[str, Labels]]:
    """Metrics of an earlier process; none of an unreadable file."""
    try:
        found = [
            (str(name), tuple((str(label), str(value)) for label, value in labels))
            for name, labels in json.loads(noted.read_text())
        ]
    except (OSError, ValueError, TypeError):
        return frozenset()
    return frozenset(key for key in found if key[0] in METRICS and METRICS[key[0]].kind == "gauge")


@dataclass(slots=True)
class _Observed:
    """The published part of a histogram, by bucket."""

    counts: list[int] = field(default_factory=list[int])
    sums: list[float] = field(default_factory=list[float])

    def grown(self, value: Histogram) -> list[tuple[float, int]]:
        """A value and how often it is observed, for every bucket that grew."""
        if not self.counts:
            self.counts, self.sums = [0] * len(value.counts), [0.0] * len(value.counts)
        found: list[tuple[float, int]] = []
        edges = (0.0, *value.bounds, math.inf)
        for bucket, count in enumerate(value.counts):
            times = count - self.counts[bucket]
            if times <= 0:
                continue
            mean = (value.sums[bucket] - self.sums[bucket]) / times
            # The front counts on meanwhile: a sum that is ahead of its count must not leave the
            # bucket.
            # An answer at once counts as 0, not as the least number above it.
            low = math.nextafter(edges[bucket], math.inf) if bucket else 0.0
            high = edges[bucket + 1]
            found.append((min(max(mean, low), high), times))
            self.counts[bucket], self.sums[bucket] = count, value.sums[bucket]
        return found


def front_values(
    model: str, counters: FrontCounters, held: int, job_bytes: tuple[int, int] = (0, 0)
) -> Values:
    """Requests of one front by outcome, their latency, and how many are not answered yet.

    `job_bytes`: of requests and of answers, where outputs are retained.
    """
    own: Labels = (("model", model),)
    values: Values = {
        ("poolpipe_requests_offered_total", own): counters.offered,
        ("poolpipe_requests_served_total", own): counters.served,
        ("poolpipe_requests_late_total", own): counters.late,
        ("poolpipe_requests_failed_total", own): counters.failed,
        ("poolpipe_requests_refused_total", own): counters.refused,
        ("poolpipe_frames_refused_total", (("peer", model),)): counters.frames_refused,
        ("poolpipe_internal_errors_total", (("loop", model),)): counters.internal_errors,
        ("poolpipe_requests_held", own): held,
        ("poolpipe_guard_seconds", own): counters.guard_us / US_PER_S,
        ("poolpipe_latency_seconds", own): Histogram.of(counters.latencies),
    }
    if any(counters.sizes.counts):
        values["poolpipe_deferred_seconds", own] = Histogram.of(counters.deferred)
        values["poolpipe_batch_size", own] = Histogram.of(counters.sizes)
    for direction, count in zip(("in", "out"), job_bytes, strict=True):
        if count:
            values["poolpipe_front_bytes_total", (*own, ("direction", direction))] = count
    if counters.low.offered:
        values |= _outcome_values("poolpipe_low_requests_total", own, counters.low)
    for name, share in counters.shares.copy().items():  # other threads add some
        labels: Labels = (*own, ("entry", name))
        values |= _outcome_values("poolpipe_shared_requests_total", labels, share)
    for reason in DropReason:  # those of none, too: a rate begins at 0, and no series comes later
        series = "poolpipe_requests_dropped_total", (*own, ("reason", reason.text))
        values[series] = counters.dropped[reason.text]
    return values


def _outcome_values(name: str, own: Labels, counters: FrontCounters) -> Values:
    """Requests of one metric by outcome."""
    outcomes = {
        "offered": counters.offered,
        "served": counters.served,
        "late": counters.late,
        "dropped": counters.dropped.total(),
        "failed": counters.failed,
        "refused": counters.refused,
    }
    return {(name, (*own, ("outcome", outcome))): count for outcome, count in outcomes.items()}


def group_values(group: FrontGroup) -> Values:
    """Of every front of a name, and requests that went to none."""
    values: Values = {}
    for front in group.fronts:
        job_bytes = front.jobs.bytes_in, front.jobs.bytes_out
        values |= front_values(front.model, front.counters, front.unanswered, job_bytes)
    refused = "poolpipe_requests_refused_total", (("model", group.name),)
    own = values.get(refused, 0)
    assert not isinstance(own, Histogram)
    return values | {refused: own + group.refused} | quota_values(group.name, group.quotas)


def quota_values(name: str, quotas: Quotas) -> Values:
    """Requests over the quotas of a served name; 0 of a client that keeps to its own."""
    return {
        ("poolpipe_requests_over_quota_total", (("model", name), ("client", client))): count
        for client, count in quotas.over.items()
    }


def gateway_values(gateway: "Gateway", now_us: int) -> Values:
    """Queues, batches, pools and the plan of the scheduler."""
    counters, deployment = gateway.counters, gateway.deployment
    gateway.count_times()
    status = gateway.status()
    values: Values = {
        ("poolpipe_in_flight_batches", ()): gateway.in_flight,
        ("poolpipe_batches_failed_total", ()): counters.batches_failed,
        ("poolpipe_batches_lost_total", ()): counters.batches_lost,
        ("poolpipe_internal_errors_total", (("loop", "scheduler"),)): counters.internal_errors,
        ("poolpipe_workers_lost_total", ()): counters.workers_lost,
        ("poolpipe_workers_drained_total", ()): counters.workers_drained,
        ("poolpipe_workers_up", ()): status["workers"]["up"],
        ("poolpipe_decisions_total", ()): counters.decisions,
        ("poolpipe_decision_seconds_total", ()): counters.decision_us / US_PER_S,
        ("poolpipe_frames_refused_total", (("peer", "scheduler"),)): counters.frames_refused,
        (
            "poolpipe_plan",
            (("plan_id", deployment.plan.plan_id), ("generation", str(deployment.generation))),
        ): 1,
    }
    for state in State:
        values["poolpipe_rollout_state", (("state", state),)] = state is gateway.state
    for model, queued in status["queued"].items():
        values["poolpipe_queue_requests", (("model", model),)] = queued
    for model in counters.batches:
        values["poolpipe_batches_total", (("model", model),)] = counters.batches[model]
        values["poolpipe_batch_samples_total", (("model", model),)] = counters.samples[model]
    for model in counters.shared_batches:
        own: Labels = (("model", model),)
        values["poolpipe_shared_batches_total", own] = counters.shared_batches[model]
        values["poolpipe_shared_batch_members_total", own] = counters.shared_batch_members[model]
        values["poolpipe_shared_batch_samples_total", own] = counters.shared_batch_samples[model]
        values["poolpipe_shared_batch_entries_total", own] = counters.shared_batch_entries[model]
    for name, served in deployment.served.items():
        values["poolpipe_planned_requests_per_second", (("model", name),)] = served.throughput_rps
    if deployment.plan.applications:
        values["poolpipe_jobs", ()] = gateway.jobs
        values["poolpipe_retained_output_slots", ()] = gateway.retained_slots
    for (application, module), rows in counters.module_rows.items():
        labels = (("application", application), ("module", module))
        values["poolpipe_module_rows_total", labels] = rows
        values["poolpipe_module_drops_total", labels] = counters.module_drops[application, module]
    return values | _resource_values(gateway, now_us)


def _resource_values(gateway: "Gateway", now_us: int) -> Values:
    """Queues, modules, stages, links and pools."""
    values: Values = {}
    for model, waits in gateway.counters.waits.items():
        values["poolpipe_queue_wait_seconds", (("model", model),)] = Histogram.of(waits)
    for (application, module), times in gateway.counters.module_times.items():
        labels: Labels = (("application", application), ("module", module))
        values["poolpipe_module_seconds", labels] = Histogram.of(times)
    for stage, use in gateway.counters.stages.items():
        labels = tuple((name, str(value)) for name, value in stage._asdict().items())
        values["poolpipe_stage_runs_total", labels] = use.runs
        values["poolpipe_stage_busy_seconds_total", labels] = use.busy_us / US_PER_S
        values["poolpipe_stage_planned_seconds_total", labels] = use.planned_us / US_PER_S
        values["poolpipe_stage_seconds", labels] = Histogram.of(use.times)
    for name, counted in (
        ("poolpipe_stage_loads_total", gateway.counters.loads),
        ("poolpipe_stage_evictions_total", gateway.counters.evictions),
    ):
        for stage, count in counted.items():
            labels = tuple((label, str(value)) for label, value in stage._asdict().items())
            values[name, labels] = count
    for pool, held in gateway.loaded_bytes().items():
        labels = (("pool", pool.name), ("gpu_class", pool.gpu_class))
        values["poolpipe_pool_loaded_bytes", labels] = held
    for (node, direction), busy_us in gateway.link_busy_us().items():
        if busy_us:  # nodes whose links no plan uses have none
            labels = (("node", node), ("direction", direction))
            values["poolpipe_link_busy_seconds_total", labels] = busy_us / US_PER_S
    for advice in gateway.advice(now_us):
        labels = (("pool", advice.pool.name), ("gpu_class", advice.pool.gpu_class))
        values["poolpipe_pool_vgpus", labels] = advice.pool.vgpus
        values["poolpipe_pool_idle_fraction", labels] = advice.idle_fraction
        values["poolpipe_pool_bad_fraction", labels] = advice.bad_rate
        values["poolpipe_advised_gpus", labels] = advice.advised_gpus
    return values


def scheduler_values(service: "SchedulerService", name: str, folder: Path, now_us: int) -> Values:
    """Metrics of a scheduler process; a standby states only that it is one.

    The standby's model has its name among the labels: Triton frees a metric with the first of two
    models that publish it under the same labels, and the other would write into freed memory.
    """
    own: Labels = (("scheduler", name),)
    values: Values = {("poolpipe_scheduler_active", own): float(service.is_active)}
    if not service.is_active:
        return values
    own_values: Values = service.call(lambda: gateway_values(service.gateway, now_us))
    more = own_values | keeper_values(folder) | profile_values(folder, service.gateway.deployment)
    standby = service.place()["standby"]
    if standby != "off":
        more["poolpipe_standby_ready", ()] = float(standby == "ready")
    added = own if name == STANDBY_MODEL else ()
    return values | {(metric, (*labels, *added)): value for (metric, labels), value in more.items()}


def node_values(status: Mapping[str, Any]) -> Values:
    """Restarts of a node's workers."""
    return {("poolpipe_worker_restarts_total", (("node", status["node"]),)): status["restarts"]}


def profile_values(folder: Path, deployment: Deployment) -> Values:
    """The newest profiles against the plan in force, by pool; nothing where none were noted."""
    ratios = read_ratios(folder, deployment.plan.plan_id)
    return {
        (
            "poolpipe_pool_profile_ratio",
            (("pool", pool.name), ("gpu_class", pool.gpu_class)),
        ): ratios[pool.name]
        for pool in deployment.plan.pools
        if pool.name in ratios
    }


def keeper_values(folder: Path) -> Values:
    """A gauge: 1 if the keeper of a serve folder runs.

    Nothing where there is none, in a program of its own.
    """
    state = read_state_file(folder)
    return {} if state is None else {("poolpipe_keeper_up", ()): float(keeper_runs(state))}
