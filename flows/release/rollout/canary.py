"""A canary: the new plan answers a share of the requests beside the plan in force, and is judged.

1. Of both plans one is made (`canary_plan`): every model that differs has the pipelines of both on
   the same pools, and two entries that share its requests (`contract.entries`). It comes into force
   by an ordinary change, in which workers load the new stages beside the old ones.
2. While it serves, the canary's requests are compared with the former plan's (`watch_canary`):
   more that end late, dropped or failed, beyond chance, end the rollout.

Here: the plan of a step, its judgement. Not here: the steps' order and the way back (`guarded`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from flows.release.rollout.options import RolloutOptions
from flows.release.rollout.outcomes import (
    READ_SECONDS,
    Outcomes,
    breach_of,
    looks,
    outcomes_of,
    shared_outcomes_of,
)
from flows.release.server.running import ServerState
from flows.system_metrics import read_all_metrics
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.entries import Entry, shares_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import LONGEST_NAME
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.runtimes.stage_tensors import complete_tensors

FORMER, CANARY = "former", "canary"
# Fronts publish once a second: what ended before the swap is published when a watch begins.
PUBLISHED_SECONDS = 2.0
# Of a binomial count; and fewer bad requests than so many say nothing, whatever their share.
SIGMAS, LEAST_BAD = 3.0, 3
_PLAINLY = "roll it out without --canary"
_INSTEAD = f"{_PLAINLY}, with --compare-requests"


def canary_plan(former: Plan, new: Plan, share: float) -> Plan:
    """The former plan, of which each model that differs serves a share of its requests as the new.

    Rates are the former plan's, divided by the share: both share the pools' time. Where the new
    plan is slower and a pool is full, the step promises less: what its pools carry.

    Args:
        former: the plan in force.
        new: the plan that is to follow, with the same pools.
        share: of the requests of each model that differs, above 0 and below 1.

    Raises:
        InputError: the plans differ in more than the pipelines of models, or these cannot be served
            side by side, or GPUs cannot hold both.
    """
    former = complete_tensors(former)
    new = complete_tensors(new, former)
    where = f"plan {new.plan_id}, --canary"
    _check_alike(where, former, new)
    models = tuple(
        model if model == (other := new.model(model.name)) else _shared(where, model, other, share)
        for model in former.models
    )
    if not any(shares_of(model.entries) for model in models):
        raise InputError(where, "no model differs from the plan in force")
    part = _carried_part(former, models)
    models = tuple(_at_part(m, part) if shares_of(m.entries) else m for m in models)
    suffix = f"-canary-{100 * share:g}"
    plan_id = f"{new.plan_id[: LONGEST_NAME - len(suffix)]}{suffix}"
    try:
        return replace(former, plan_id=plan_id, models=models, attained=None)
    except InputError as error:
        raise InputError(where, f"beside the plan in force: {error}") from error


def canary_plans(
    former: Plan, new: Plan, options: RolloutOptions, gateways: int
) -> tuple[Plan, ...]:
    """The plans of a canary's steps, in order; none where no canary is asked for.

    Raises:
        InputError: as `canary_plan`, or there are two gateways.
    """
    if options.canary_shares and gateways > 1:
        raise InputError("rollout --canary", "two gateways (--gateways 2) serve no canary")
    return tuple(canary_plan(former, new, share) for share in options.canary_shares)


def _check_alike(where: str, former: Plan, new: Plan) -> None:
    """Check that plans differ in nothing but what models do on the same pools."""
    if former.shares_requests or new.shares_requests:
        raise InputError(where, "one of the plans is a canary's step itself")
    if former.applications or new.applications:
        raise InputError(where, f"a plan has applications; {_PLAINLY}")  # nor are these compared
    if former.workload.variants or new.workload.variants:
        raise InputError(where, f"a model has variants, which divide its requests; {_INSTEAD}")
    names, others = ({model.name for model in plan.models} for plan in (former, new))
    if names != others:
        reason = f"only one of the plans has model {min(names ^ others)!r}; {_INSTEAD}"
        raise InputError(where, reason)
    if _as_served(former.cluster) != _as_served(new.cluster):
        raise InputError(where, f"the plans are of other clusters; {_INSTEAD}")
    pools, following = ({pool.name: pool for pool in plan.pools} for plan in (former, new))
    for name in sorted(pools.keys() | following.keys()):
        if pools.get(name) != following.get(name):
            raise InputError(where, f"pool {name!r} is not the same in both plans; {_INSTEAD}")
        if pools[name].interference is not None:
            raise InputError(where, f"pool {name!r} states interference; {_INSTEAD}")


def _as_served(cluster: Cluster) -> Cluster:
    """A cluster without what planners alone look at."""
    classes = (replace(c, hourly_cost=None, power_w=None) for c in cluster.gpu_classes)
    return replace(cluster, gpu_classes=tuple(classes))


def _shared(where: str, former: ModelPlan, new: ModelPlan, share: float) -> ModelPlan:
    """A model with the pipelines of both plans, of which the new ones take a share."""
    _check_model(f"{where}, model {former.name!r}", former, new)
    shares = {FORMER: 1 - share, CANARY: share}
    entries = tuple(
        Entry(
            name=name,
            block=0,
            budget_us=former.slo_us,
            rate_rps=part * former.throughput_rps,
            inputs=former.inputs,
            share=part,
        )
        for name, part in shares.items()
    )
    rates = former.throughput_rps / new.throughput_rps if new.throughput_rps else 0.0
    pipelines = (
        *(_part(pipeline, FORMER, 1 - share) for pipeline in former.pipelines),
        *(_part(pipeline, CANARY, share * rates) for pipeline in new.pipelines),
    )
    split = former.split if former.split == new.split else None
    return replace(former, entries=entries, pipelines=pipelines, split=split)


def _part(pipeline: Pipeline, entry: str | None, part: float) -> Pipeline:
    return replace(pipeline, entry=entry, throughput_rps=pipeline.throughput_rps * part)


def _carried_part(former: Plan, models: Sequence[ModelPlan]) -> float:
    """The part of the rates of models with two entries that their pools carry beside the others."""
    room = {pool.name: float(pool.vgpus) for pool in former.pools}
    asked = dict.fromkeys(room, 0.0)
    for model in models:
        shared = bool(shares_of(model.entries))
        for pipeline in model.pipelines:
            for stage in pipeline.stages:
                batches_per_s = pipeline.throughput_rps / (stage.batch or pipeline.batch)
                busy = batches_per_s * stage.latency_us / US_PER_S
                if shared:
                    asked[stage.pool] += busy
                else:
                    room[stage.pool] -= busy
    return min((room[name] / busy for name, busy in asked.items() if busy > room[name]), default=1)


def _at_part(model: ModelPlan, part: float) -> ModelPlan:
    """The model at a part of its rates."""
    return replace(
        model,
        throughput_rps=model.throughput_rps * part,
        entries=tuple(replace(e, rate_rps=e.rate_rps * part) for e in model.entries),
        pipelines=tuple(_part(p, p.entry, part) for p in model.pipelines),
    )


def _check_model(where: str, former: ModelPlan, new: ModelPlan) -> None:
    """Check that the pipelines of two models can share the requests of one."""
    for what, one, other in (
        ("SLO", former.slo_us, new.slo_us),
        ("policy", former.policy, new.policy),
        ("number of blocks", former.blocks, new.blocks),
        ("inputs", former.inputs, new.inputs),
        ("outputs", former.outputs, new.outputs),
    ):
        if one != other:
            raise InputError(where, f"not the {what} of the plan in force; {_INSTEAD}")
    if former.entries or new.entries:
        raise InputError(where, f"has entries, which already divide its requests; {_INSTEAD}")
    stages = [s for model in (former, new) for p in model.pipelines for s in p.stages]
    if any(stage.artifact is None for stage in stages):
        raise InputError(where, f"is emulated: there is nothing to compare; {_PLAINLY}")
    if any(stage.boards for stage in stages):
        raise InputError(where, f"runs batches of several pipelines as one; {_INSTEAD}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Outcomes of a model's requests since a step began.

    Attributes:
        model: its name.
        slo_ms: its SLO.
        whole: of all its requests.
        former, canary: of those that each took.
    """

    model: str
    slo_ms: float
    whole: Outcomes
    former: Outcomes
    canary: Outcomes

    def __str__(self) -> str:
        return (
            f"{self.model}: {_in_words(self.canary)} of the canary,"
            f" {_in_words(self.former)} of the former plan"
        )

    def breach(self, options: RolloutOptions) -> str | None:
        """Why the canary is not good enough, or None; the more requests, the surer."""
        usual = 1 - self.former.attainment
        allowed = min(usual + options.canary_tolerance, 1.0)
        ended, bad = self.canary.ended, self.canary.ended - self.canary.served
        chance = SIGMAS * sqrt(ended * allowed * (1 - allowed))
        if bad >= LEAST_BAD and bad > ended * allowed + chance:
            return (
                f"{self.model}: {bad} of the canary's {ended} requests failed, late or dropped"
                f" ({bad / ended:.2%}), {usual:.2%} of the former plan's {self.former.ended}"
            )
        if ended < LEAST_BAD:  # of requests that metrics show first for the model as a whole
            return None
        return breach_of(self.model, self.slo_ms, self.whole, options)

    def too_few(self, options: RolloutOptions) -> str | None:
        """The complaint that the canary took too few requests to be judged, or None."""
        if self.canary.ended >= options.canary_requests:
            return None
        return (
            f"{self.model}: the canary took {self.canary.ended} requests in"
            f" {options.canary_seconds:g} s, {options.canary_requests} are needed to judge it:"
            " state more --canary-seconds, or fewer --canary-requests"
        )


def _in_words(seen: Outcomes) -> str:
    return f"{seen.ended - seen.served} of {seen.ended} requests failed, late or dropped"


Look = tuple[Mapping[str, Outcomes], Mapping[tuple[str, str], Outcomes]]
"""Outcomes since the fronts were loaded: by model, and by model and entry."""


def look_before(state: ServerState) -> Look:
    """Outcomes as a watch begins, after the swap: all that ended before it is published.

    The plan before answers until then, and what it missed is no fault of the one that is watched.

    Raises:
        MetricsError: as `look`.
    """
    *_, last = looks(lambda: look(state), PUBLISHED_SECONDS, PUBLISHED_SECONDS)
    return last


def look(state: ServerState) -> Look:
    """Outcomes of now.

    Raises:
        MetricsError: no gateway answers, or one not to the end.
    """
    metrics = read_all_metrics(state.metrics_urls, READ_SECONDS)
    return outcomes_of(metrics), shared_outcomes_of(metrics)


def judged(plan: Plan, before: Look, after: Look) -> tuple[Judged, ...]:
    """Models of a canary's step, with what ended between two looks."""
    none = Outcomes()

    def since(model: str, entry: str) -> Outcomes:
        key = model, entry
        return after[1].get(key, none).since(before[1].get(key, none))

    return tuple(
        Judged(
            model=model.name,
            slo_ms=model.slo_us / 1e3,
            whole=after[0].get(model.name, none).since(before[0].get(model.name, none)),
            former=since(model.name, FORMER),
            canary=since(model.name, CANARY),
        )
        for model in plan.models
        if shares_of(model.entries)
    )


def watch_canary(
    state: ServerState, plan: Plan, before: Look, options: RolloutOptions
) -> tuple[Sequence[Judged], str | None]:
    """Watch a step for `canary_seconds`: what was seen, and the breach that ended it, if any.

    Raises:
        MetricsError: its end was not seen.
    """
    seen: tuple[Judged, ...] = ()
    for after in looks(lambda: look(state), options.canary_seconds, options.poll_seconds):
        seen = judged(plan, before, after)
        breach = next((said for one in seen if (said := one.breach(options))), None)
        if breach is not None:
            return seen, breach
    return seen, next((said for one in seen if (said := one.too_few(options))), None)
