"""Latencies of a plan's stages as profiles have them."""

import math
from collections.abc import Mapping

from triton_backend.contract.plan import Plan, Stage
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.shares import LOADED, SOLO


def expected(plan: Plan, profiles: Mapping[str, ModelProfile]) -> dict[str, ModelProfile]:
    """Profiles with the latencies that the plan was made for."""
    factor = float(plan.options.get("profile_factor", 1.0))
    return {name: each.slower(factor) for name, each in profiles.items()}


def profiled_ratios(plan: Plan, profiles: Mapping[str, ModelProfile]) -> dict[str, float]:
    """Latencies by profiles, over those in the plan, at the planned batch, by pool.

    Of the stages of a pool the ratio that is furthest from 1. Stages whose batches were not
    measured count for nothing; a pool may have none that were.
    """
    found: dict[str, float] = {}
    profiles = expected(plan, profiles)
    for model, pipeline, stage, pool in plan.placed_stages():
        batch = stage.batch or pipeline.batch
        measured = profiled_us(plan, stage, batch, profiles[model.name])
        if measured is not None:
            latency_us, factor = measured
            ratio = latency_us[batch - 1] * factor / stage.latency_us_by_batch[batch - 1]
            found[pool.name] = max(found.get(pool.name, 1.0), ratio, key=lambda one: abs(one - 1))
    return found


def profiled_us(
    plan: Plan, stage: Stage, batch: int, profile: ModelProfile
) -> tuple[list[int], float] | None:
    """Latencies of a stage alone, of batches of 1, 2, ..., and the factor of its neighbours.

    With the load of one that is loaded on demand. None if batches were not measured.
    """
    pool = plan.pool_of(stage)
    # In turns, and where parts differ, neighbours count by the factor; else they were busy copies.
    unequal = not plan.cluster.gpu_class(pool.gpu_class).vgpu_divisors
    alone = unequal or stage.duty_cycle_us is not None
    measured = profile.table(pool.gpu_class, pool.share, SOLO if alone else LOADED)
    batches = len(stage.latency_us_by_batch)
    if measured is None or measured.largest < max(batch, batches):
        return None
    factor = 1.0
    if pool.interference is not None:
        at = plan.stages_of(plan.pools.index(pool)).index(stage)
        factor = pool.interference.seats[at].factor
    first, last = stage.blocks
    sums = (math.fsum(map(float, measured.latency_us[first:last, b])) for b in range(batches))
    load_us = stage.load_us or 0
    return [math.ceil(latency_us - 1e-6) + load_us for latency_us in sums], factor
