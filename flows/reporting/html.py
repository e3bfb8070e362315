"""The report: one self-contained page of everything a run showed.

Here: choosing what the page says and rendering it. Not here: the pictures (`picture`, `charts`,
`timeline`), the data (`data`), the layout (`templates/report.html.j2`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from flows.files import write_text
from flows.reporting import words
from flows.reporting.charts import (
    GOAL,
    accuracy_svg,
    attainment_svg,
    beside_triton_svg,
    in_time_svg,
    latency_svg,
)
from flows.reporting.data import LoadPoint, Outcomes, ReportData
from flows.reporting.picture import NARROW, WIDTH, cluster_svg, plan_svg
from flows.reporting.svg import model_colour
from flows.reporting.timeline import timeline_data
from flows.reporting.view import PlanView, PoolView, view_of
from triton_backend.contract.applications import ApplicationPlan
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S, us_to_ms
from triton_backend.runtimes.stage_tensors import served_models

SHADES = ("#6f94cf", "#9db8e0")  # neighbouring blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One key figure; `tone` is "", "good" or "bad"."""

    label: str
    value: str
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """One pool in words: the models it is planned for, and how busy every run kept it."""

    pool: PoolView
    models: str
    busy: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module of an application.

    What it runs after what, and the part of the SLO that it is given.

    Attributes:
        rows, most: of one request, on average and at most.
        begins, takes: its budget on the longest way to it, as parts of the SLO.
    """

    name: str
    model: str
    after: str
    rows: float
    most: int
    budget_ms: float
    begins: float
    takes: float


class Served(NamedTuple):
    """A client's model: a model of the plan or an application, numbered for its colour.

    `entries`: name, budget (ms) and planned rate of each that the model lists.
    """

    number: int
    name: str
    slo_ms: float
    rate_rps: float
    entries: tuple[tuple[str, float, float], ...] = ()


def write_report(data: ReportData, path: Path) -> Path:
    """Write the page; folders on the way are made. Returns `path`.

    Raises:
        InputError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render_report(data))
    return path


def render_report(data: ReportData) -> str:
    """The page as text."""
    view = view_of(data.plan)
    names = tuple(model.name for model in view.models)
    served = _served(data.plan)
    endpoints = tuple(one.name for one in served)
    runs = [run for run in (data.measured, data.simulated, *data.further) if run is not None]
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            HELPERS,
            data=data,
            plan=data.plan,
            view=view,
            served=served,
            applications=[_modules(one) for one in data.plan.applications],
            runs=runs,
            tiles=_tiles(data),
            objective=_objective(data.plan),
            checked=sum(m.checked for m in data.measured.models.values()) if data.measured else 0,
            wrong=sum(m.wrong for m in data.measured.models.values()) if data.measured else 0,
            longest=max((step.seconds for step in data.steps), default=0) or 1,
            plan_svgs=[Markup(plan_svg(view, width)) for width in (WIDTH, NARROW)],  # noqa: S704 - our own SVG; what it quotes is escaped
            pools=_pools(view, data.plan, runs),
            busy_runs=[run.label for run in runs if run.uses is not None],
            cluster_svgs=[Markup(cluster_svg(view, names, width)) for width in (WIDTH, NARROW)],  # noqa: S704 - see above
            attainment_svgs=[
                Markup(attainment_svg(endpoints, runs, width))  # noqa: S704 - see above
                for width in (WIDTH, NARROW)
                if runs
            ],
            variants=_variants(data, endpoints),
            beside_triton=_beside_triton(data),
            latencies=_latencies(served, runs),
            timelines=[
                (run.label, timeline_data(data.plan, run.uses))
                for run in runs
                if run.uses is not None
            ],
        )
    )


def environment() -> Environment:
    """Templates of this package; what they call is in `HELPERS`."""
    return Environment(
        loader=PackageLoader("flows.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def tone(attainment: float | None) -> str:
    """Class of an attainment: good at the goal, bad below, none where nothing was offered."""
    if attainment is None:
        return ""
    return "good" if attainment >= GOAL else "bad"


def shade(number: int) -> str:
    """Colour of a block, so that neighbours differ."""
    return SHADES[number % len(SHADES)]


HELPERS: dict[str, Any] = {
    "words": words,
    "colour": model_colour,
    "tone": tone,
    "shade": shade,
}


def _served(plan: Plan) -> list[Served]:
    listed = {
        model.name: tuple((e.name, us_to_ms(e.budget_us), e.rate_rps) for e in model.entries)
        for model in plan.models
    }
    return [
        Served(
            number,
            model.name,
            us_to_ms(model.slo_us),
            model.throughput_rps,
            listed.get(model.name, ()),
        )
        for number, model in enumerate(served_models(plan))
    ]


def _modules(planned: ApplicationPlan) -> tuple[str, float, list[ModuleRow]]:
    """An application in words: its name, its SLO (ms), a row for every module."""
    graph = planned.application
    heads = graph.heads(planned.budgets_us)
    slo_us = graph.slo_us
    rows = [
        ModuleRow(
            name=module.name + (" (optional)" if module.optional else ""),
            model=module.model,
            after=", ".join(module.parents),
            rows=module.rows_per_request,
            most=module.max_rows or 1,
            budget_ms=us_to_ms(planned.budgets_us[module.name]),
            begins=heads[module.name] / slo_us,
            takes=planned.budgets_us[module.name] / slo_us,
        )
        for module in graph.ordered()
    ]
    return graph.name, us_to_ms(slo_us), rows


def _tiles(data: ReportData) -> list[Tile]:
    tiles = [
        Tile(
            label=f"{run.label} attainment",
            value=words.percent(run.attainment, 2),
            tone=tone(run.attainment),
        )
        for run in (data.measured, data.simulated)
        if run is not None
    ]
    plan = data.plan
    served = _served(plan)
    planned_rps = sum(one.rate_rps for one in served)
    used = ", ".join(f"{count} {name}" for name, count in plan.gpus_used.items() if count)
    total = sum(plan.cluster.gpus(c.name) for c in plan.cluster.gpu_classes)
    kinds = [
        ("model", len(served) - len(plan.applications)),
        ("application", len(plan.applications)),
    ]
    models = " and ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in kinds if n)
    tiles.append(Tile(label=f"planned, {models}", value=words.rate(planned_rps)))
    tiles.append(
        Tile(label=f"GPUs used: {used}", value=f"{sum(plan.gpus_used.values())} of {total}")
    )
    if plan.price_paid is not None:
        tiles.append(Tile(label="price paid an hour", value=words.number(plan.price_paid, 4)))
    if plan.attained is not None and plan.attained.poisson is not None:
        load = words.number(plan.attained.poisson_load, 2)
        tiles.append(
            Tile(
                label=f"at {load} of the planned rates, Poisson",
                value=words.percent(plan.attained.poisson, 2),
                tone=tone(plan.attained.poisson),
            )
        )
    if plan.solve_seconds:  # else it was written by hand
        solver = f" with {plan.solver}" if plan.solver not in {"", "none"} else ""
        tiles.append(Tile(label=f"to plan{solver}", value=words.seconds(plan.solve_seconds)))
    return tiles


def _pools(view: PlanView, plan: Plan, runs: Sequence[Outcomes]) -> list[PoolRow]:
    """One row per pool; `busy` of every run that kept uses."""
    names = [model.name for model in view.models]
    pool_of_vgpu = np.array([vgpu.pool for vgpu in plan.vgpus()])
    taken = [_busy_shares(view, pool_of_vgpu, run) for run in runs if run.uses is not None]
    return [
        PoolRow(
            pool=pool,
            models=words.models_on(pool.parts, names),
            busy=tuple(_busy(pool, names, shares[pool.number]) for shares in taken),
        )
        for pool in view.pools
    ]


def _busy_shares(
    view: PlanView, pool_of_vgpu: NDArray[np.int64], run: Outcomes
) -> NDArray[np.float64]:
    """Share of a pool's time that each model took: an array [pool, model]."""
    assert run.uses is not None
    uses = run.uses
    took_us = np.zeros((len(view.pools), len(view.models)))
    np.add.at(took_us, (pool_of_vgpu[uses.vgpu], uses.model), uses.end_us - uses.start_us)
    vgpus = np.array([pool.vgpus for pool in view.pools])
    return took_us / (vgpus[:, None] * run.duration_s * US_PER_S)


def _busy(pool: PoolView, names: Sequence[str], shares: NDArray[np.float64]) -> str:
    """Share of a pool's time in words; of a shared pool also by model: `12 % (a 9 %, b 3 %)`."""
    whole = words.percent(float(shares.sum()))
    if len(pool.parts) == 1:
        return whole
    by_model = (f"{names[m]} {words.percent(float(shares[m]))}" for m in pool.models)
    return f"{whole} ({', '.join(by_model)})"


def _objective(plan: Plan) -> str:
    objective = plan.objective
    return (
        f"Objective {objective.name}: {words.number(objective.value, 4)}, bound"
        f" {words.number(objective.upper_bound, 4)}, gap {words.percent(objective.gap, 2)}."
    )


def _latencies(served: Sequence[Served], runs: list[Outcomes]) -> list[tuple[str, Markup]]:
    """A picture for every model and application of which at least one run kept latencies."""
    pictures: list[tuple[str, Markup]] = []
    for one in served:
        known = [
            (run.label, outcome.latencies_ms)
            for run in runs
            if (outcome := run.models.get(one.name)) and outcome.latencies_ms is not None
        ]
        if known:
            picture = latency_svg(one.number, one.slo_ms, known)
            pictures.append((one.name, Markup(picture)))  # noqa: S704 - see above
    return pictures


def _beside_triton(data: ReportData) -> dict[str, Any] | None:
    """The plan and Triton alone: how they were simulated, what they hold, and the picture."""
    found = data.beside_triton
    if found is None:
        return None
    loads = [point.load for point in found.plan]
    planned = f"{min(loads):g} to {max(loads):g} times the planned {words.rate(found.rate_rps)}"
    sides = (("this plan", found.plan), ("Triton alone", found.triton))
    held = [(name, _held(points)) for name, points in sides]
    return {
        "about": f"{planned}, {words.seconds(found.duration_s)} each",
        "configuration": found.configuration,
        "rows": [(name, f"{load:g}", words.rate(load * found.rate_rps)) for name, load in held],
        "picture": Markup(beside_triton_svg(found)),  # noqa: S704 - see above
    }


def _held(points: Sequence[LoadPoint]) -> float:
    """The highest load up to which the goal is kept; 0 where it is kept at none."""
    kept = takewhile(lambda point: point.in_time >= GOAL, points)
    return max((point.load for point in kept), default=0.0)


def _variants(data: ReportData, names: Sequence[str]) -> list[tuple[str, str, tuple[Markup, ...]]]:
    """Of every name with variants: what was simulated, and accuracy and share in time by load."""
    found: list[tuple[str, str, tuple[Markup, ...]]] = []
    for curve in data.variants:
        pictures = accuracy_svg, in_time_svg
        number = names.index(curve.name)
        drawn = tuple(Markup(draw(number, curve)) for draw in pictures)  # noqa: S704 - see above
        first, last = curve.points[0].load, curve.points[-1].load
        planned = f"{first:g} to {last:g} times the planned {words.rate(curve.rate_rps)}"
        about = f"{planned}, {words.seconds(curve.duration_s)} each"
        found.append((curve.name, about, drawn))
    return found
