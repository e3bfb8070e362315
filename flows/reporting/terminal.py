"""A plan in the terminal: the same pools and flows as the picture, as a Rich renderable."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flows.reporting import words
from flows.reporting.view import ClassView, ModelView, PipelineView, StageView, view_of
from triton_backend.contract.plan import Plan

CLASS_STYLES = ("blue", "yellow", "green", "magenta", "red", "cyan")
BAR_CELLS = 24
NEARLY_FULL = 0.995


def render_plan(plan: Plan) -> RenderableType:
    """Pools, classes, vGPU sizes, rates and slack of every model, and the GPUs taken."""
    view = view_of(plan)
    styles = {c.name: CLASS_STYLES[i % len(CLASS_STYLES)] for i, c in enumerate(view.classes)}
    parts: list[RenderableType] = [_head(plan)]
    for model in view.models:
        parts += [Text(), _model_head(model), _pools(model, styles)]
    parts += [Text(), _classes(view.classes, styles)]
    return Group(*parts)


def _head(plan: Plan) -> Text:
    objective = plan.objective
    text = Text()
    text.append(f"plan {plan.plan_id}", "bold")
    text.append(f"  {plan.planner} on {plan.cluster.name}, {objective.name} ")
    text.append(words.number(objective.value, 4), "bold")
    text.append(f" (bound {words.number(objective.upper_bound, 4)},")
    text.append(f" gap {words.percent(objective.gap, 2)}, {words.seconds(plan.solve_seconds)})")
    return text


def _model_head(model: ModelView) -> Text:
    text = Text(model.name, "bold")
    text.append(f"   SLO {words.milliseconds(model.slo_ms)}", "default")
    text.append(f"   {words.rate(model.rate_rps)}", "default")
    return text


def _pools(model: ModelView, styles: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("pipeline", "pool", "blocks"):
        table.add_column(name, no_wrap=True)
    for name in ("takes", "can do", "slack", "boundary", "moves"):
        table.add_column(name, justify="right", no_wrap=True)
    for pipeline in model.pipelines:
        for stage in pipeline.stages:
            table.add_row(*_row(pipeline, stage, styles[stage.gpu_class]))
    return table


def _row(pipeline: PipelineView, stage: StageView, style: str) -> tuple[str | Text, ...]:
    first = stage.number == 0
    label = f"{pipeline.number + 1}: batch {pipeline.batch}, {words.promise(pipeline.rate_rps)}"
    last = stage.number + 1 == len(pipeline.stages)
    name = words.vgpus(stage.vgpus, stage.divisor, stage.gpu_class)
    return (
        label if first else "  ↓",
        Text(name, style),
        words.blocks(*stage.blocks).split()[1],
        words.milliseconds(stage.latency_ms),
        words.rate(stage.rate_rps),
        words.percent(stage.slack, 0),
        "" if last else words.size(stage.boundary_bytes),
        "" if last else words.milliseconds(stage.transfer_ms),
    )


def _classes(classes: tuple[ClassView, ...], styles: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for gpu_class in classes:
        share = gpu_class.used / gpu_class.gpus if gpu_class.gpus else 0
        cells = BAR_CELLS if share > NEARLY_FULL else int(share * BAR_CELLS)
        bar = Text("█" * cells, styles[gpu_class.name])
        bar.append("░" * (BAR_CELLS - cells), "dim")
        table.add_row(
            Text(gpu_class.name, "bold"), bar, f"{gpu_class.used} of {gpu_class.gpus} GPUs"
        )
    return table
