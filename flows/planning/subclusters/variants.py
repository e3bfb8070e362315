"""How much of a name's requests each of its variants is planned for.

    shares      most accurate .......... cheapest
    step 0      1       0       0
    step 50     0       1       0        of three: neighbours share, no others
    step 100    0       0       1

With rates to keep, the plan has the least step that fits the cluster; all names take the same.
With `least_accuracy`, every name has the step at which the mean accuracy is just that. Where
throughput is maximised and no accuracy is given, all requests are planned for the most accurate.

Variants of a name share GPUs. Planners that give each GPUs of its own take shares that are stated.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from flows.planning.engine.level import last
from flows.planning.inputs import check_alike
from flows.planning.registry import Inputs
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand, Workload, with_shares

STEPS = 100
OPTION = "least_accuracy"


def plan_with_variants(made: Callable[[Inputs], Plan], inputs: Inputs) -> Plan:
    """The plan of the most accurate shares that fit, or of those with the accuracy asked for.

    Args:
        made: the plan of a workload with such shares.
        inputs: with variants.

    Raises:
        InputError: no variant is as accurate as asked, or one has other tensors.
        InfeasibleError: the cluster is too small even for the cheapest variants.
    """
    workload, profiles = inputs.workload, inputs.profiles
    for variants in workload.variants.values():
        check_alike("variant", variants, profiles)
    names = {name: _worthwhile(variants, profiles) for name, variants in workload.variants.items()}

    def of(shares: Mapping[str, Mapping[str, float]]) -> Plan:
        return made(replace(inputs, workload=_shared(workload, shares)))

    least: float = inputs.options.own[OPTION]
    if least > 0:
        return of({n: _accurate(n, own, least) for n, own in names.items()})
    plans: dict[int, Plan] = {}

    def at(step: int) -> Plan:
        return of({n: _neighbours(own, step / STEPS) for n, own in names.items()})

    def fails(step: int) -> bool:
        with suppress(InfeasibleError):
            plans[step] = at(step)
        return step not in plans

    if not fails(0):
        return plans[0]
    plans[STEPS] = at(STEPS)
    return plans[last(fails, 0, STEPS) + 1]


def _worthwhile(
    variants: Sequence[ModelDemand], profiles: Mapping[str, ModelProfile]
) -> tuple[ModelDemand, ...]:
    """Variants from the most accurate on, each cheaper than all that are more accurate."""
    cost = {one.name: _least_us(profiles.get(one.name)) for one in variants}
    chosen: list[ModelDemand] = []
    for one in sorted(variants, key=lambda each: (-(each.accuracy or 0.0), cost[each.name])):
        if not chosen or cost[one.name] < cost[chosen[-1].name]:
            chosen.append(one)
    return tuple(chosen)


def _least_us(profile: ModelProfile | None) -> float:
    """GPU time of a request in the best batch on any class; 0 of a model without a profile.

    The planner complains of that one.
    """
    if profile is None:
        return 0.0
    tables = [table.stage_latency_us((0, profile.blocks)) for table in profile.tables.values()]
    return min((float((us / np.arange(1, len(us) + 1)).min()) for us in tables), default=0.0)


def _neighbours(chain: Sequence[ModelDemand], level: float) -> dict[str, float]:
    """Shares at a level, 0 the most accurate variant alone and 1 the cheapest."""
    place = level * (len(chain) - 1)
    return {one.name: max(1 - abs(place - at), 0.0) for at, one in enumerate(chain)}


def _accurate(name: str, chain: Sequence[ModelDemand], least: float) -> dict[str, float]:
    """Shares of the cheapest neighbours whose mean accuracy is so much at least.

    Raises:
        InputError: no variant is that accurate.
    """
    best, *others = ((one, one.accuracy or 0.0) for one in chain)
    if best[1] < least:
        reason = f"{least:g}, but the most accurate that answers for {name!r} has {best[1]:g}"
        raise InputError(f"option {OPTION}", reason)
    for other in others:
        if other[1] < least:
            share = (least - other[1]) / (best[1] - other[1])
            return {best[0].name: share, other[0].name: 1 - share}
        best = other
    return {best[0].name: 1.0}


def _shared(workload: Workload, shares: Mapping[str, Mapping[str, float]]) -> Workload:
    """The workload with shares by name and variant; variants that are not named have none."""
    changed = {
        one.name: one
        for name, own in workload.variants.items()
        for one in with_shares(own, [shares[name].get(each.name, 0.0) for each in own])
    }
    return replace(workload, models=tuple(changed.get(m.name, m) for m in workload.models))
