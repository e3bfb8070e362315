"""Prometheus metrics: values are gathered here and published a few times a second.

Publishing one value through Triton costs 20-30 µs, so nothing is published per request. A value is
keyed by metric name and labels; a counter is published by what it grew since the last time.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from triton_backend.serving.front.counters import FrontCounters
from triton_backend.serving.gateway.counters import Pool
from triton_backend.serving.gateway.rollout import State

if TYPE_CHECKING:  # fronts and nodes publish too, and need no scheduler and its compiler
    from triton_backend.serving.gateway.state import Gateway

Labels = tuple[tuple[str, str], ...]
Values = dict[tuple[str, Labels], float]

METRICS: Mapping[str, tuple[str, str]] = {
    "poolpipe_requests_offered": ("counter", "Requests that reached the front"),
    "poolpipe_requests_served": ("counter", "Requests answered within their deadline"),
    "poolpipe_requests_late": ("counter", "Requests answered after their deadline"),
    "poolpipe_requests_failed": ("counter", "Requests answered with an error of ours"),
    "poolpipe_requests_refused": ("counter", "Requests refused as invalid"),
    "poolpipe_requests_held": ("gauge", "Requests that a front has taken and not answered"),
    "poolpipe_requests_dropped": ("counter", "Requests dropped, by reason"),
    "poolpipe_frames_refused": ("counter", "Frames refused, with their connections"),
    "poolpipe_latency_ms_bucket": ("counter", "Answered requests by latency, cumulative (le, ms)"),
    "poolpipe_latency_ms_sum": ("counter", "Sum of latencies of answered requests (ms)"),
    "poolpipe_queue_requests": ("gauge", "Requests waiting in the scheduler"),
    "poolpipe_in_flight_batches": ("gauge", "Batches dispatched and not ended"),
    "poolpipe_batches": ("counter", "Batches dispatched"),
    "poolpipe_batch_samples": ("counter", "Samples in dispatched batches"),
    "poolpipe_batches_failed": ("counter", "Batches a runtime could not run"),
    "poolpipe_batches_lost": ("counter", "Batches lost on their way, whose requests ran again"),
    "poolpipe_internal_errors": ("counter", "Errors of ours that a loop survived, by loop"),
    "poolpipe_stage_runs": ("counter", "Batches run by a pool"),
    "poolpipe_stage_busy_us": ("counter", "Time the vGPUs of a pool were busy (µs)"),
    "poolpipe_pool_vgpus": ("gauge", "vGPUs of a pool"),
    "poolpipe_workers_lost": ("counter", "Workers lost"),
    "poolpipe_workers_drained": ("counter", "Workers renewed because they stayed slow"),
    "poolpipe_workers_up": ("gauge", "Workers ready"),
    "poolpipe_worker_restarts": ("counter", "Worker processes restarted by their node"),
    "poolpipe_decisions": ("counter", "Frames handled by the scheduler"),
    "poolpipe_decision_us": ("counter", "Time the scheduler took for them (µs)"),
    "poolpipe_plan": ("gauge", "1 for the plan and generation being served"),
    "poolpipe_rollout_state": ("gauge", "1 for the state a rollout is in"),
}


class Publisher:
    """Publishes values through a metric library.

    Args:
        family: makes a family (name, description, kind) whose `Metric(labels)` has `set` for
            gauges and `increment` for counters.
    """

    def __init__(self, family: Callable[[str, str, str], Any]) -> None:
        self._family = family
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._last: Values = {}

    def publish(self, values: Values) -> None:
        """Publish what changed; a gauge that is not among the values any more becomes 0."""
        gone = (key for key in self._last if key not in values and METRICS[key[0]][0] == "gauge")
        for key, value in {**dict.fromkeys(gone, 0.0), **values}.items():
            before = self._last.get(key)
            if value == before:
                continue
            metric = self._metric(key)
            if METRICS[key[0]][0] == "counter":
                metric.increment(value - (before or 0.0))
            else:
                metric.set(value)
        self._last = dict(values)

    def _metric(self, key: tuple[str, Labels]) -> Any:
        if key not in self._metrics:
            name, labels = key
            if name not in self._families:
                kind, description = METRICS[name]
                self._families[name] = self._family(name, description, kind)
            self._metrics[key] = self._families[name].Metric(labels=dict(labels))
        return self._metrics[key]


def front_values(model: str, counters: FrontCounters, held: int) -> Values:
    """Requests of one front by outcome, their latency, and how many are not answered yet."""
    own: Labels = (("model", model),)
    values: Values = {
        ("poolpipe_requests_offered", own): counters.offered,
        ("poolpipe_requests_served", own): counters.served,
        ("poolpipe_requests_late", own): counters.late,
        ("poolpipe_requests_failed", own): counters.failed,
        ("poolpipe_requests_refused", own): counters.refused,
        ("poolpipe_frames_refused", (("peer", model),)): counters.frames_refused,
        ("poolpipe_requests_held", own): held,
        ("poolpipe_latency_ms_sum", own): counters.latency_sum_ms,
    }
    for reason, count in dict(counters.dropped).items():
        values["poolpipe_requests_dropped", (*own, ("reason", reason))] = count
    total = 0
    bounds = [*(f"{bound:.4g}" for bound in counters.bounds_ms), "+Inf"]
    for bound, count in zip(bounds, counters.latency, strict=True):
        total += count
        values["poolpipe_latency_ms_bucket", (*own, ("le", bound))] = total
    return values


def gateway_values(gateway: "Gateway") -> Values:
    """Queues, batches, pools and the plan of the scheduler."""
    counters, deployment = gateway.counters, gateway.deployment
    status = gateway.status()
    values: Values = {
        ("poolpipe_in_flight_batches", ()): gateway.in_flight,
        ("poolpipe_batches_failed", ()): counters.batches_failed,
        ("poolpipe_batches_lost", ()): counters.batches_lost,
        ("poolpipe_internal_errors", (("loop", "scheduler"),)): counters.internal_errors,
        ("poolpipe_workers_lost", ()): counters.workers_lost,
        ("poolpipe_workers_drained", ()): counters.workers_drained,
        ("poolpipe_workers_up", ()): status["workers"]["up"],
        ("poolpipe_decisions", ()): counters.decisions,
        ("poolpipe_decision_us", ()): counters.decision_us,
        ("poolpipe_frames_refused", (("peer", "scheduler"),)): counters.frames_refused,
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
        values["poolpipe_batches", (("model", model),)] = counters.batches[model]
        values["poolpipe_batch_samples", (("model", model),)] = counters.samples[model]
    busy_us = counters.busy_us
    for pool, count in counters.stages.items():
        values["poolpipe_stage_runs", _labels(pool)] = count
        values["poolpipe_stage_busy_us", _labels(pool)] = busy_us[pool]
    return values | _pool_sizes(gateway)


def _labels(pool: Pool) -> Labels:
    return (
        ("model", pool.model),
        ("pipeline", str(pool.pipeline)),
        ("gpu_class", pool.gpu_class),
        ("stage", str(pool.stage)),
    )


def _pool_sizes(gateway: "Gateway") -> Values:
    return {
        ("poolpipe_pool_vgpus", _labels(Pool(model.name, p, stage.gpu_class, s))): stage.vgpus
        for model in gateway.deployment.plan.models
        for p, pipeline in enumerate(model.pipelines)
        for s, stage in enumerate(pipeline.stages)
    }


def node_values(status: Mapping[str, Any]) -> Values:
    """Restarts of a node's workers."""
    labels = (("node", status["node"]), ("generation", str(status["generation"])))
    restarts = sum(worker["restarts"] for worker in status["workers"])
    return {("poolpipe_worker_restarts", labels): restarts}
