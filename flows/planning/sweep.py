"""Sweeps: a plan per value of one input.

Pure computation; rows out. Drawing the curve and storing the rows is other parts' work.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flows.planning.api import make_plan
from flows.planning.registry import PlanOptions
from triton_backend.contract.applications import Application
from triton_backend.contract.cluster import MAX_GPUS, Cluster, NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.workload import ModelDemand, Workload

FACTORS = (1e-6, 1e6)  # least and most of what is multiplied


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The inputs of a plan."""

    profiles: Mapping[str, ModelProfile]
    cluster: Cluster
    workload: Workload
    options: PlanOptions
    interference: Mapping[str, InterferenceModel] = field(
        default_factory=dict[str, InterferenceModel]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value and the plan it leads to; `reason` says why there is none.

    `bad_input`: the planner does not plan such inputs at all.
    """

    value: float
    objective: float | None = None
    upper_bound: float | None = None
    gap: float | None = None
    throughput_rps: Mapping[str, float] | None = None
    gpus_used: Mapping[str, int] | None = None
    plan_id: str | None = None
    solve_seconds: float | None = None
    reason: str | None = None
    bad_input: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain form: one row."""
        names = (name for name in self.__slots__ if name != "bad_input")
        return {name: getattr(self, name) for name in names}


def varied(situation: Situation, vary: str, values: Sequence[float]) -> list[Situation]:
    """The inputs of each value's plan, in the order given; nothing is planned.

    Args:
        situation: where it starts from.
        vary: a name of `VARIATIONS`, with `:CLASS` where it may speak of one GPU class.
        values: what is put in its place.

    Raises:
        InputError: the variation is unknown or a value does not fit it.
    """
    name, _, gpu_class = vary.partition(":")
    change = VARIATIONS.get(name)
    if change is None:
        raise InputError("option vary", f"{vary!r} is none of {', '.join(VARIATIONS)}")
    if gpu_class:
        situation.cluster.gpu_class(gpu_class)
        if name not in OF_ONE_CLASS:
            reason = f"{name} is not of one class; {', '.join(OF_ONE_CLASS)} may name one"
            raise InputError("option vary", f"{vary}: {reason}")
    return [change(situation, gpu_class, value) for value in values]


def what_if(situation: Situation, vary: str, values: Sequence[float]) -> list[Point]:
    """One point per value, in the order given.

    Raises:
        InputError: as `varied`, before anything is planned.
    """
    each = varied(situation, vary, values)
    return [point_of(one, value) for one, value in zip(each, values, strict=True)]


def point_of(situation: Situation, value: float) -> Point:
    """The plan of the inputs that a value gives, or why there is none."""
    try:
        plan = make_plan(
            situation.profiles,
            situation.cluster,
            situation.workload,
            situation.options,
            interference=situation.interference,
        )
    except InputError as error:
        bad_input = not isinstance(error, InfeasibleError)
        return Point(value=value, reason=str(error), bad_input=bad_input)
    return Point(
        value=value,
        objective=plan.objective.value,
        upper_bound=plan.objective.upper_bound,
        gap=plan.objective.gap,
        throughput_rps={m.name: m.throughput_rps for m in plan.models},
        gpus_used=plan.gpus_used,
        plan_id=plan.plan_id,
        solve_seconds=plan.solve_seconds,
    )


def check_any_fits(points: Sequence[Point]) -> None:
    """Check that some planner plans the inputs that some value gives.

    Raises:
        InputError: none does; the reason of the first point.
    """
    if all(point.bad_input for point in points):
        where, _, reason = str(points[0].reason).partition(": ")
        raise InputError(where, reason)


def _gpus(situation: Situation, gpu_class: str, value: float) -> Situation:
    """Number of GPUs of one class, on nodes like its first; without a class, of all by a factor."""
    cluster = situation.cluster
    if not gpu_class:
        _within("gpus", value, *FACTORS)
        for name in (c.name for c in cluster.gpu_classes):
            cluster = _with_gpus(cluster, name, round(cluster.gpus(name) * value))
        return replace(situation, cluster=cluster)
    _within("gpus", value, 0, MAX_GPUS)
    _whole("gpus", value)
    return replace(situation, cluster=_with_gpus(cluster, gpu_class, int(value)))


def _with_gpus(cluster: Cluster, gpu_class: str, count: int) -> Cluster:
    like = next((g for g in cluster.nodes if g.gpu_class == gpu_class), None)
    if like is None:
        raise InputError(
            "option vary", f"gpus: class {gpu_class!r} has no nodes to take as a pattern"
        )
    groups = [g for g in cluster.nodes if g.gpu_class != gpu_class]
    full, rest = divmod(count, like.gpus)
    fresh: list[NodeGroup] = []
    if full:
        fresh.append(replace(like, count=full))
    if rest:
        fresh.append(replace(like, count=1, gpus=rest, name=None))
    return replace(cluster, nodes=(*groups, *fresh))


def _ratio(situation: Situation, gpu_class: str, value: float) -> Situation:
    """Share of one class among all GPUs (by default the first), the total kept."""
    _within("ratio", value, 0, 1)
    cluster = situation.cluster
    names = [c.name for c in cluster.gpu_classes if cluster.gpus(c.name)]
    first = gpu_class or names[0]
    total = sum(cluster.gpus(name) for name in names)
    others = total - cluster.gpus(first)
    wanted = round(total * value)
    if not others:
        raise InputError("option vary", "ratio: needs a second class with GPUs")
    left = total - wanted
    for name in [n for n in names if n != first]:
        share = left * cluster.gpus(name) // others
        left, others = left - share, others - cluster.gpus(name)
        cluster = _with_gpus(cluster, name, share)
    return replace(situation, cluster=_with_gpus(cluster, first, wanted))


def _slo_scale(situation: Situation, _gpu_class: str, value: float) -> Situation:
    """SLO of every model as a multiple of its fastest batch-1 run on a whole GPU (PPipe 7.1).

    Budget of an entry: of the blocks that run there. Of an application: of its longest path of such
    runs.
    """
    _within("slo-scale", value, *FACTORS)
    return _with_slos(
        situation,
        lambda model: value * _fastest_us(situation.profiles[model.name]),
        lambda model, entry: value * _fastest_us(situation.profiles[model.name], entry.block),
        lambda application: (
            value
            * application.longest(
                {m.name: _fastest_us(situation.profiles[m.model]) for m in application.modules}
            )
        ),
    )


def _slo(situation: Situation, _gpu_class: str, value: float) -> Situation:
    """SLO of every model and application, and budgets of entries, times a factor."""
    _within("slo", value, *FACTORS)
    return _with_slos(
        situation,
        lambda model: value * model.slo_us,
        lambda _, entry: value * entry.budget_us,
        lambda application: value * application.slo_us,
    )


def _with_slos(
    situation: Situation,
    of_model: Callable[[ModelDemand], float],
    of_entry: Callable[[ModelDemand, Entry], float],
    of_application: Callable[[Application], float],
) -> Situation:
    """The same with other SLOs and budgets (µs), rounded."""
    asked = situation.workload
    models = tuple(
        replace(
            m,
            slo_us=max(1, round(of_model(m))),
            entries=tuple(replace(e, budget_us=max(1, round(of_entry(m, e)))) for e in m.entries),
        )
        for m in asked.models
    )
    applications = tuple(
        replace(a, slo_us=max(1, round(of_application(a)))) for a in asked.applications
    )
    return replace(situation, workload=replace(asked, models=models, applications=applications))


def _fastest_us(profile: ModelProfile, first: int = 0) -> float:
    """Of the blocks from one on."""
    whole = [t.latency_us for key, t in profile.tables.items() if key.share == WHOLE_GPU]
    if not whole:
        raise InputError(f"profile of {profile.name!r}", "not measured on any whole GPU")
    return min(float(table[first:, 0].sum()) for table in whole)


def _bandwidth(situation: Situation, gpu_class: str, value: float) -> Situation:
    """Every NIC's rate by a factor, or those of one class."""
    _within("bandwidth", value, *FACTORS)
    nodes = tuple(
        replace(g, nic_gbps=g.nic_gbps * value) if gpu_class in ("", g.gpu_class) else g
        for g in situation.cluster.nodes
    )
    return replace(situation, cluster=replace(situation.cluster, nodes=nodes))


def _margin(situation: Situation, _gpu_class: str, value: float) -> Situation:
    """The SLO margin of all models."""
    return replace(situation, options=replace(situation.options, slo_margin=value, slo_margins={}))


def _classes(situation: Situation, _gpu_class: str, value: float) -> Situation:
    """Only the first so many GPU classes."""
    cluster = situation.cluster
    most = len(cluster.gpu_classes)
    _within("classes", value, 1, most)
    _whole("classes", value)
    kept = cluster.gpu_classes[: int(value)]
    names = {c.name for c in kept}
    nodes = tuple(g for g in cluster.nodes if g.gpu_class in names)
    return replace(situation, cluster=replace(cluster, gpu_classes=kept, nodes=nodes))


def _within(vary: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        reason = f"{value:g} is not within {least:g} and {most:g}"
        raise InputError("option vary", f"{vary}: {reason}")


def _whole(vary: str, value: float) -> None:
    if not float(value).is_integer():
        raise InputError("option vary", f"{vary}: {value:g} is not a whole number")


OF_ONE_CLASS = ("gpus", "ratio", "bandwidth")
VARIATIONS: Mapping[str, Callable[[Situation, str, float], Situation]] = {
    "gpus": _gpus,
    "ratio": _ratio,
    "slo": _slo,
    "slo-scale": _slo_scale,
    "bandwidth": _bandwidth,
    "margin": _margin,
    "classes": _classes,
}
