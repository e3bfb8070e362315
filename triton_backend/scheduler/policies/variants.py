"""Variants: which of the models that answer for one name takes a request.

A name keeps the GPU time T that the plan gives its variants together, and its part of the time that
a plan leaves free of their pools, up to `FILLED` of each; GPUs that are lost take their part of T
with them. At a measured rate r the share f of the
more accurate of two neighbours is as large as T allows; with a and b for the GPU time that a
request takes of each:

    r (f a + (1 - f) b) = T        f = (1/r - b/T) / (a/T - b/T), from 0 to 1

The mean time between requests 1/r is measured, a/T and b/T are those at which one variant alone
fills T. What the first does not take is offered to the second with longer times between requests,
and so on; the last takes all that is left. A share is spread evenly: requests leave a remainder
each, and at a whole one the variant takes the request.

One rule for the front and the simulator, over one row of integers per queue. Not here: what is
dropped where even the cheapest variant is too slow (`admission`, `policies`).
"""

from collections.abc import Mapping
from itertools import zip_longest
from types import MappingProxyType

import numpy as np

from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.scheduler.compiled import NONE, Record, Records, entry, inlined
from triton_backend.scheduler.queues import MEMORY_REQUESTS
from triton_backend.scheduler.topology import LONGEST_GAP_US, RATE_SHIFT

GAP_SHIFT = 10  # times between requests are compared in 2^-10 µs
LONGEST_GAP = LONGEST_GAP_US << GAP_SHIFT
WHOLE_SHIFT = 16
WHOLE = 1 << WHOLE_SHIFT  # all requests, as a share
FILLED = 0.8  # of a pool's time; sub-clusters of few GPUs are planned up to 0.81 of theirs

VARIANT = np.dtype(
    [
        (name, np.int64)
        for name in (
            "first",  # of the name that this queue's model has: the most accurate; NONE of others
            "next",  # the next cheaper variant's queue, or NONE
            "whole_gap",  # between requests from which on this one takes all, in 2^-10 µs
            "none_gap",  # and up to which it takes none
            "remainder",  # of its share
            "gap",  # of a name, measured, in 2^-24 µs
            "size",  # of its requests, in 2^-24 samples
            "arrived_us",
            "memory_us",  # of the mean gap, where that is more than so many requests
        )
    ]
)

MEASURED = ("gap", "size", "arrived_us")


def new_variants(
    plan: Plan, gateways: int = 1, lost: Mapping[str, int] = MappingProxyType({})
) -> Records:
    """`VARIANT` rows [queue]; none where every name has one model.

    A variant that is no cheaper than a more accurate one takes no request, and one of which a whole
    pool is lost neither. Where that leaves none, the model of the name takes all.

    Args:
        plan: what is served.
        gateways: that share the requests of a name evenly.
        lost: vGPUs without a worker, by pool.
    """
    models = {model.name: number for number, model in enumerate(plan.models)}
    rows = np.zeros(sum(len(model.queues) for model in plan.models), dtype=VARIANT)
    rows["first"] = rows["next"] = NONE
    found = False
    for name, demands in plan.workload.variants.items():
        accuracy = {models[d.name]: d.accuracy or 0.0 for d in demands if d.name in models}
        if name not in models or len(accuracy) == 1:
            continue
        found = True
        chain = _chain(plan, accuracy, lost)
        if not chain:
            continue
        queues = [plan.queues()[number][0] for number in chain]
        gaps = [round(min(gap * gateways, LONGEST_GAP)) for gap, _ in chain.values()]
        own = rows[plan.queues()[models[name]][0]]
        own["first"] = queues[0]
        own["memory_us"] = plan.models[models[name]].slo_us  # more waits in no queue
        own["size"] = 1 << RATE_SHIFT
        own["arrived_us"] = NONE
        own["gap"] = gaps[0] << (RATE_SHIFT - GAP_SHIFT)
        for at, (queue, (_, none_gap)) in enumerate(zip(queues, chain.values(), strict=True)):
            rows[queue]["next"] = queues[at + 1] if at + 1 < len(queues) else NONE
            rows[queue]["whole_gap"] = gaps[at]
            rows[queue]["none_gap"] = min(round(none_gap * gateways), gaps[at] - 1)
    return rows if found else rows[:0]


def with_lost(
    rows: Records, plan: Plan, gateways: int = 1, lost: Mapping[str, int] = MappingProxyType({})
) -> Records:
    """The rows where other vGPUs are lost, as of `new_variants`; what was measured stays."""
    renewed = new_variants(plan, gateways, lost)
    for field in MEASURED:
        known = (renewed["first"] != NONE) & (rows["first"] != NONE)
        renewed[field][known] = rows[field][known]
    renewed["remainder"] = rows["remainder"]
    return renewed


def _chain(
    plan: Plan, accuracy: Mapping[int, float], lost: Mapping[str, int]
) -> dict[int, tuple[float, float]]:
    """Variants by model number, from the most accurate on, each cheaper than those before.

    With each, the gaps (2^-10 µs) from which on it takes all requests, and up to which none.
    """
    work = {number: _work(plan.models[number]) for number in accuracy}
    time_us: dict[str, float] = {}  # of a pool, that the name has a second
    for number, own in work.items():
        for pool, each_us in own.items():
            rate_rps = plan.models[number].throughput_rps
            time_us[pool] = time_us.get(pool, 0.0) + rate_rps * each_us
    times = _times_planned(plan, lost)
    time_us = {pool: own_us * times.get(pool, 1.0) for pool, own_us in time_us.items()}
    gone = {pool for pool, factor in times.items() if factor == 0}
    gaps = {
        number: {
            pool: each_us / time_us[pool] * US_PER_S * (1 << GAP_SHIFT)
            for pool, each_us in own.items()
            if time_us[pool] > 0
        }
        for number, own in work.items()
    }
    chain: list[int] = []
    for number in sorted(accuracy, key=lambda n: (-accuracy[n], max(gaps[n].values(), default=0))):
        if work[number].keys() & gone:
            continue
        if gaps[number] and (not chain or _cheaper(gaps[number], gaps[chain[-1]])):
            chain.append(number)
    found: dict[int, tuple[float, float]] = {}
    for number, cheaper in zip_longest(chain, chain[1:]):
        pool, most = max(gaps[number].items(), key=lambda pair: pair[1])
        found[number] = most, 0.0 if cheaper is None else gaps[cheaper].get(pool, 0.0)
    return found


def _times_planned(plan: Plan, lost: Mapping[str, int]) -> dict[str, float]:
    """How many times its planned time a name has of a pool, by pool.

    All its names together fill what is planned of the vGPUs that are left, or `FILLED`.
    """
    planned_us = dict.fromkeys((pool.name for pool in plan.pools), 0.0)
    for model in plan.models:
        for pool, each_us in _work(model).items():
            planned_us[pool] += model.throughput_rps * each_us
    found: dict[str, float] = {}
    for pool in plan.pools:
        if planned_us[pool.name] > 0:
            whole = max(1.0, FILLED * pool.vgpus * US_PER_S / planned_us[pool.name])
            left = max(pool.vgpus - lost.get(pool.name, 0), 0)
            found[pool.name] = whole * left / pool.vgpus
    return found


def _cheaper(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """True if a variant fills less of its time than another, or has GPUs of its own."""
    return not one.keys() & other.keys() or max(one.values()) < max(other.values())


def _work(model: ModelPlan) -> dict[str, float]:
    """The vGPU time (µs) of a request in the planned batch, by pool."""
    total = model.throughput_rps
    found: dict[str, float] = {}
    for pipeline in model.pipelines:
        share = pipeline.throughput_rps / total if total else 1 / len(model.pipelines)
        for stage in pipeline.stages:
            each_us = stage.latency_us / (stage.batch or pipeline.batch)
            found[stage.pool] = found.get(stage.pool, 0.0) + share * each_us
    return found


@entry
def choose(rows: Records, queue: int, samples: int, now_us: int, low: bool) -> int:  # noqa: FBT001 - a kernel
    """The queue that takes a request for a name's model: of that, or of another variant.

    A low request counts nothing and goes to the cheapest variant.

    Args:
        rows: of `new_variants`.
        queue: of the model that has the name.
        samples: of the request.
        now_us: the instant of its arrival; never goes back.
        low: whether the request is a low one.
    """
    name = rows[queue]
    at = name["first"]
    if at == NONE:
        return queue
    if not low:
        _measure(name, samples, now_us)
    gap = ((name["gap"] >> (RATE_SHIFT - GAP_SHIFT)) << RATE_SHIFT) // name["size"]
    while rows[at]["next"] != NONE:
        if not low:
            share = _share(rows[at], gap)
            rows[at]["remainder"] += share
            if rows[at]["remainder"] >= WHOLE:
                rows[at]["remainder"] -= WHOLE
                return at
            gap = min((gap << WHOLE_SHIFT) // (WHOLE - share), LONGEST_GAP)
        at = rows[at]["next"]
    return at


@inlined
def _measure(name: Record, samples: int, now_us: int) -> None:
    """Correct the mean gap and size of a name's requests.

    Exponential means over `MEMORY_REQUESTS`, or over the requests of one SLO where those are more.
    """
    if name["arrived_us"] != NONE:
        gap = min(now_us - name["arrived_us"], LONGEST_GAP_US) << RATE_SHIFT
        weight = max(MEMORY_REQUESTS, (name["memory_us"] << RATE_SHIFT) // max(name["gap"], 1))
        name["gap"] += (gap - name["gap"]) // weight
        name["size"] += ((samples << RATE_SHIFT) - name["size"]) // weight
    name["arrived_us"] = now_us


@inlined
def _share(row: Record, gap: int) -> int:
    """Share of requests that a variant takes, in 1 / `WHOLE`."""
    if gap >= row["whole_gap"]:
        return WHOLE
    if gap <= row["none_gap"]:
        return 0
    return ((gap - row["none_gap"]) << WHOLE_SHIFT) // (row["whole_gap"] - row["none_gap"])
