"""A plan in the terminal: the same pools and flows as the picture, as a Rich renderable."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flows.reporting import words
from flows.reporting.view import ModelView, PipelineView, PlanView, StageView, view_of
from triton_backend.contract.applications import ApplicationPlan
from triton_backend.contract.plan import Attained, Plan
from triton_backend.contract.units import us_to_ms

CLASS_STYLES = ("blue", "yellow", "green", "magenta", "red", "cyan")
BAR_CELLS = 24
SHORT_NAME = 32  # characters of a model's name beside its pool; its own table has all of it
NEARLY_FULL = 0.995


def render_plan(plan: Plan) -> RenderableType:
    """Stages, rates and slack of every model, the pools with the models on them, the GPUs taken."""
    view = view_of(plan)
    styles = {c.name: CLASS_STYLES[i % len(CLASS_STYLES)] for i, c in enumerate(view.classes)}
    parts: list[RenderableType] = [_head(plan)]
    for model in view.models:
        parts += [Text(), _model_head(model), _stages(model, styles)]
    for application in plan.applications:
        parts += [Text(), _application_head(application), _modules(application)]
    parts += [Text(), _pools(view, styles), Text(), _classes(view, styles)]
    return Group(*parts)


def _head(plan: Plan) -> Text:
    objective = plan.objective
    text = Text()
    text.append(f"plan {plan.plan_id}", "bold")
    text.append(f"  {plan.planner} on {plan.cluster.name}, {objective.name} ")
    text.append(words.number(objective.value, 4), "bold")
    text.append(f" (bound {words.number(objective.upper_bound, 4)},")
    text.append(f" gap {words.percent(objective.gap, 2)}, {words.seconds(plan.solve_seconds)})")
    if plan.price_paid is not None:
        text.append(f", price paid {words.number(plan.price_paid, 4)} an hour")
    if plan.attained is not None:
        text.append(f"\n{_attained(plan.attained)}")
    return text


def _attained(found: Attained) -> str:
    """Attainment of a plan in the simulator, the least of any model."""
    if found.even is None or found.poisson is None:
        return "in time: not simulated, its rates are too high"
    return (
        f"in time: {words.percent(found.even, 2)} at equal gaps, {words.percent(found.poisson, 2)}"
        f" of Poisson arrivals at {found.poisson_load:g} of the planned rates"
        f" (simulated, {words.seconds(found.duration_s)}, seed {found.seed})"
    )


def _model_head(model: ModelView) -> Text:
    text = Text(model.name, "bold")
    text.append(f"   SLO {words.milliseconds(model.slo_ms)}", "default")
    text.append(f"   {words.rate(model.rate_rps)}", "default")
    return text


def _application_head(planned: ApplicationPlan) -> Text:
    text = Text(planned.name, "bold")
    text.append(f"   SLO {words.milliseconds(us_to_ms(planned.application.slo_us))}", "default")
    text.append(f"   {words.rate(planned.application.rate_rps or 0.0)}", "default")
    text.append(f"   least {words.milliseconds(us_to_ms(planned.least_latency_us))}", "default")
    return text


def _modules(planned: ApplicationPlan) -> Table:
    """Every module with its model, predecessors, rows, budget and time below it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("module", "model", "after"):
        table.add_column(name, overflow="fold")
    for name in ("rows", "budget", "below"):
        table.add_column(name, justify="right", no_wrap=True)
    tails_us = planned.tails_us
    for module in planned.application.ordered():
        table.add_row(
            module.name + (" (optional)" if module.optional else ""),
            words.shorten(module.model, SHORT_NAME),
            ", ".join(module.parents) or "request",
            f"{module.rows_per_request:g} of {module.max_rows}",
            words.milliseconds(us_to_ms(planned.budgets_us[module.name])),
            words.milliseconds(us_to_ms(tails_us[module.name])),
        )
    return table


def _stages(model: ModelView, styles: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("pipeline", "pool", "blocks"):
        table.add_column(name, no_wrap=True)
    for name in ("takes", "can do", "slack", "boundary", "moves"):
        table.add_column(name, justify="right", no_wrap=True)
    for pipeline in model.pipelines:
        for stage in pipeline.stages:
            table.add_row(*_row(pipeline, stage, styles[stage.pool.gpu_class]))
    return table


def _pools(view: PlanView, styles: dict[str, str]) -> Table:
    """Every pool once, with the models on it; of a shared one each model's part of its time."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("pool", "vGPUs"):
        table.add_column(name, no_wrap=True)
    table.add_column("models", overflow="fold")
    short = [words.shorten(model.name, SHORT_NAME) for model in view.models]
    for pool in view.pools:
        names = words.models_on(pool.parts, short)
        vgpus = words.vgpus(pool.vgpus, pool.share, pool.gpu_class)
        table.add_row(Text(pool.name, styles[pool.gpu_class]), vgpus, names)
    return table


def _row(pipeline: PipelineView, stage: StageView, style: str) -> tuple[str | Text, ...]:
    first = stage.number == 0
    label = f"{pipeline.number + 1}: batch {pipeline.batch}, {words.promise(pipeline.rate_rps)}"
    last = stage.number + 1 == len(pipeline.stages)
    return (
        label if first else "  ↓",
        Text(stage.pool.name, style),
        words.blocks(*stage.blocks).split()[1],
        words.milliseconds(stage.latency_ms),
        words.rate(stage.rate_rps),
        words.percent(stage.slack, 0),
        "" if last else words.size(stage.boundary_bytes),
        "" if last else words.milliseconds(stage.transfer_ms),
    )


def _classes(view: PlanView, styles: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for gpu_class in view.classes:
        share = gpu_class.used / gpu_class.gpus if gpu_class.gpus else 0
        cells = BAR_CELLS if share > NEARLY_FULL else int(share * BAR_CELLS)
        bar = Text("█" * cells, styles[gpu_class.name])
        bar.append("░" * (BAR_CELLS - cells), "dim")
        table.add_row(
            Text(gpu_class.name, "bold"), bar, f"{gpu_class.used} of {gpu_class.gpus} GPUs"
        )
    return table
