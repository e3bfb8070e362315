"""A plan as a picture: every model's pipelines as flows through pools, and the GPUs they take.

One band per model, one lane per pipeline: its stages from left to right, each with its pool and the
pool's vGPUs, the boundary between them, and below the lane how the SLO is spent. A pool that
several stages share stands in each of their lanes.
"""

from collections.abc import Mapping

from flows.reporting import words
from flows.reporting.svg import (
    BAD,
    FAINT,
    INK,
    LINE,
    SOFT,
    class_colours,
    drawing,
    element,
    fits,
    model_colour,
    rect,
    straight_line,
    text,
    text_width,
    title,
)
from flows.reporting.view import (
    ClassView,
    CutView,
    ModelView,
    PipelineView,
    PlanView,
    PoolView,
    StageView,
)
from triton_backend.contract.shares import WHOLE_GPU, share_text

WIDTH, NARROW = 1160.0, 720.0  # of screens with room, and of those without
LABEL, GAP, BOX_MOST = 128.0, 118.0, 460.0
ROOMY, TIGHT_GAP = 3, 76.0  # more stages than ROOMY stand closer
NARROW_BOX, TINY_BOX = 250.0, 170.0  # and their boxes say less
WORTH_READING = 8  # characters of a name
CLASS_LETTERS = 20  # of a class's name, where its bar begins
BOLD = 1.1  # times as wide as plain letters
HEAD, BOX, BUDGET, BETWEEN = 34.0, 74.0, 22.0, 14.0
BAND_GAP = 18.0
UNIT, UNIT_HEIGHT, UNIT_ROWS = 16.0, 9.0, 2  # a vGPU's rectangle; a whole GPU is UNIT wide
CLASS, CLASS_BAR = 44.0, 18.0  # height of a class and of its bar
CUT, CUT_BAR, CUT_WIDTH = 20.0, 13.0, 240.0  # of a way to cut GPUs; a whole GPU is CUT_WIDTH wide
MOST_CUTS = 24  # shown of a class


def plan_svg(view: PlanView, width: float = WIDTH) -> str:
    """The whole picture.

    Stages carry `data-pool="model.pipeline.stage"` on their group and `data-load` on their load
    bar, `data-all` on that of their whole pool; models carry `data-model`. So a live page can move
    them.
    """
    colours = {c.name: class_colours(i) for i, c in enumerate(view.classes)}
    names = tuple(model.name for model in view.models)
    parts: list[str] = []
    y = 0.0
    for model in view.models:
        parts.append(_band(model, (y, width), colours, names))
        y += band_height(model) + BAND_GAP
    return drawing(width, max(y - BAND_GAP, 1), parts, "pools and flows of the plan")


def band_height(model: ModelView) -> float:
    """Height of one model's band."""
    return HEAD + len(model.pipelines) * (BOX + BUDGET + BETWEEN)


def cluster_svg(view: PlanView, names: tuple[str, ...], width: float = WIDTH) -> str:
    """One bar per GPU class: which model holds how many of its GPUs, and what is free.

    Below it one bar per way in which GPUs of the class are cut: its parts are vGPUs, as wide as
    their share, coloured by the models on them in proportion to their time.
    """
    shown = [words.shorten(gpu_class.name, CLASS_LETTERS) for gpu_class in view.classes]
    left = max([86.0, *(18 + text_width(name, 13 * BOLD) + 6 for name in shown)])
    parts: list[str] = []
    y = 0.0
    for i, gpu_class in enumerate(view.classes):
        fill, border = class_colours(i)
        parts += [
            rect(0, y + 3, 12, 12, fill=fill, stroke=border, rx=2),
            text(18, y + 14, shown[i], size=13, font_weight=600),
            *_class_bar(gpu_class, names, (left, y, width - left, CLASS_BAR)),
            text(
                left,
                y + CLASS_BAR + 14,
                f"{gpu_class.used} of {gpu_class.gpus} GPUs used",
                size=11.5,
                fill=SOFT,
            ),
        ]
        y += CLASS
        for cut in gpu_class.cuts[:MOST_CUTS]:
            parts += _cut(cut, names, (left, y, width - left))
            y += CUT
        hidden = gpu_class.cuts[MOST_CUTS:]
        if hidden:
            count = sum(cut.gpus for cut in hidden)
            more = f"{count} GPUs are cut in {len(hidden)} other ways"
            parts.append(text(left, y + CUT_BAR - 2, more, size=11, fill=SOFT))
            y += CUT
        y += CUT / 2
    return drawing(width, max(y - CUT / 2, 1), parts, "GPUs of each class")


def _cut(cut: CutView, names: tuple[str, ...], place: tuple[float, float, float]) -> list[str]:
    """How many GPUs, one as a bar of its vGPUs, and its pools with the models on them."""
    left, y, width = place
    x = left + 46
    parts = [
        text(x - 8, y + CUT_BAR - 2, f"{cut.gpus} ×", size=11.5, text_anchor="end"),
        rect(x, y, CUT_WIDTH, CUT_BAR, fill="#f1f3f6", stroke=LINE, rx=2),
    ]
    for pool in cut.pools:
        wide = CUT_WIDTH * pool.share / WHOLE_GPU
        tip = f"{pool.name}, {share_text(pool.share)}: {words.models_on(pool.parts, names)}"
        top = y
        for model, part in pool.parts:
            colour, high = model_colour(model), CUT_BAR * part
            parts.append(rect(x, top, wide - 1, high, fill=colour, title=tip))
            top += high
        if text_width(pool.name, 10) <= wide - 6:
            parts.append(text(x + 4, y + CUT_BAR - 3, pool.name, size=10, fill="#fff"))
        x += wide
    about = " · ".join(
        f"{pool.name}: {words.models_on(pool.parts, names)}" for pool in dict.fromkeys(cut.pools)
    )
    at = left + 46 + CUT_WIDTH + 12
    room = fits(left + width - at, 11)
    parts.append(text(at, y + CUT_BAR - 2, words.shorten(about, room), size=11, fill=SOFT))
    return parts


def _class_bar(
    gpu_class: ClassView, names: tuple[str, ...], box: tuple[float, float, float, float]
) -> list[str]:
    x, y, width, height = box
    parts = [rect(x, y, width, height, fill="#f1f3f6", stroke=LINE, rx=3)]
    scale = width / max(gpu_class.gpus, 1)
    for number, gpus in enumerate(gpu_class.by_model):
        if gpus == 0:
            continue
        tip = f"{names[number]}: {words.number(gpus)} {gpu_class.name}"
        parts.append(rect(x, y, gpus * scale, height, fill=model_colour(number), title=tip, rx=2))
        content = _class_label(words.number(gpus), names[number], gpus * scale - 12)
        parts.append(text(x + 6, y + height - 5, content, size=11, fill="#fff"))
        x += gpus * scale
    return parts


def _class_label(count: str, name: str, width: float) -> str:
    """The count and as much of the name as is worth reading; less where there is less room."""
    room = fits(width, 11) - len(count) - 2
    if room >= WORTH_READING:
        return f"{count}  {words.shorten(name, room)}"
    return count if text_width(count, 11) <= width + 4 else ""


def _band(
    model: ModelView,
    place: tuple[float, float],
    colours: Mapping[str, tuple[str, str]],
    names: tuple[str, ...],
) -> str:
    y, width = place
    name = words.shorten(model.name, 84 if width == WIDTH else 48)
    parts = [
        rect(0, y, width, band_height(model), fill="#fbfcfd", stroke="#e4e8ee", rx=6),
        rect(0, y, 5, band_height(model), fill=model_colour(model.number), rx=2),
        text(16, y + 22, name, size=14, font_weight=650),
        text(
            width - 14,
            y + 22,
            f"SLO {words.milliseconds(model.slo_ms)} · planned {words.rate(model.rate_rps)}",
            size=12.5,
            fill=SOFT,
            text_anchor="end",
            data_model=model.number,
        ),
    ]
    for pipeline in model.pipelines:
        top = y + HEAD + pipeline.number * (BOX + BUDGET + BETWEEN)
        parts.append(_lane(model, pipeline, (top, width), colours, names))
    return element("g", title(model.name) + "".join(parts))


def _lane(
    model: ModelView,
    pipeline: PipelineView,
    place: tuple[float, float],
    colours: Mapping[str, tuple[str, str]],
    names: tuple[str, ...],
) -> str:
    y, whole = place
    count = len(pipeline.stages)
    room = whole - LABEL - 16
    gap = GAP if count <= ROOMY and whole == WIDTH else TIGHT_GAP
    width = min(BOX_MOST, (room - (count - 1) * gap) / count)
    share = pipeline.rate_rps / model.rate_rps if model.rate_rps else 0
    thickness = 1.5 + 8 * share
    centre = y + BOX / 2
    parts = [
        text(16, centre - 12, _lane_name(pipeline), size=12, font_weight=600),
        text(16, centre + 4, f"batch {pipeline.batch}", size=11.5, fill=SOFT),
        text(16, centre + 20, words.promise(pipeline.rate_rps), size=11.5, fill=SOFT),
        _arrow(LABEL - 30, LABEL - 3, centre, thickness, model_colour(model.number)),
    ]
    for stage in pipeline.stages:
        x = LABEL + stage.number * (width + gap)
        mark = f"{model.number}.{pipeline.number}.{stage.number}"
        parts.append(_stage(stage, (x, y, width), colours[stage.pool.gpu_class], (mark, names)))
        if stage.number + 1 < count:
            start, end = x + width + 3, x + width + gap - 3
            parts.append(_arrow(start, end, centre, thickness, model_colour(model.number)))
            middle = (start + end) / 2 - 4
            sample = words.size(stage.boundary_bytes) + ("/sample" if gap == GAP else "")
            parts += [
                text(middle, centre - 10, sample, size=10.5, fill=SOFT, text_anchor="middle"),
                text(
                    middle,
                    centre + 19,
                    words.milliseconds(stage.transfer_ms),
                    size=10.5,
                    fill=SOFT,
                    text_anchor="middle",
                ),
            ]
    parts.append(_budget(model, pipeline, (y + BOX + 4, room), colours))
    return "".join(parts)


def _lane_name(pipeline: PipelineView) -> str:
    if pipeline.entry is None:
        return f"pipeline {pipeline.number + 1}"
    return f"{pipeline.number + 1}: {words.shorten(pipeline.entry, 10)}"


def _arrow(x1: float, x2: float, y: float, thickness: float, colour: str) -> str:
    head = thickness / 2 + 4
    points = [
        (x1, y - thickness / 2),
        (x2 - head, y - thickness / 2),
        (x2 - head, y - head),
        (x2, y),
        (x2 - head, y + head),
        (x2 - head, y + thickness / 2),
        (x1, y + thickness / 2),
    ]
    joined = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    return element("polygon", points=joined, fill=colour, fill_opacity=0.55)


def _stage(
    stage: StageView,
    box: tuple[float, float, float],
    colours: tuple[str, str],
    who: tuple[str, tuple[str, ...]],
) -> str:
    """A stage's box; `who` is its mark and the names of all models."""
    (x, y, width), (mark, names) = box, who
    fill, border = colours
    pool = stage.pool
    vgpus = words.vgpus(pool.vgpus, pool.share, pool.gpu_class)
    blocks = words.blocks(*stage.blocks)
    if width < TINY_BOX:
        blocks = blocks.split()[1]
    name = f"{pool.name}: {vgpus}"
    room = fits(width - 26 - text_width(blocks, 11.5), 13)
    used = min(1 / (1 + stage.slack), 1.0)
    detail = f"{words.milliseconds(stage.latency_ms)} a batch · {words.rate(stage.rate_rps)}"
    tip = f"{name}, {blocks}: {detail}, {words.percent(stage.slack)} above the pipeline's rate"
    if len(pool.parts) > 1:
        tip += f"; shared by {words.models_on(pool.parts, names)}"
    parts = [
        title(tip),
        rect(x, y, width, BOX, fill=fill, stroke=border, rx=5),
        text(x + 10, y + 18, words.shorten(name, room), size=13, font_weight=650),
        text(x + width - 10, y + 18, blocks, size=11.5, fill=SOFT, text_anchor="end"),
        *_units(pool, x + 10, y + 26, width - 20, border),
        text(x + 10, y + BOX - 11, _short(detail, width), size=11),
        text(
            x + width - 10,
            y + BOX - 11,
            _slack(stage.slack, width),
            size=11,
            fill=SOFT,
            text_anchor="end",
            data_slack=mark,
        ),
        rect(x + 1, y + BOX - 5, width - 2, 4, fill="#ffffff", rx=2),
        *(
            rect(
                x + 1,
                y + BOX - 5,
                (width - 2) * part,
                4,
                fill=border,
                rx=2,
                data_most=width - 2,
                **more,
            )
            for part, more in (
                (used, {"data_all": mark, "fill_opacity": 0.4}),
                (used * stage.part, {"data_load": mark}),
            )
        ),
    ]
    return element("g", "".join(parts), data_pool=mark)


def _short(detail: str, width: float) -> str:
    """As much of "run time a batch · rate" as a box of that width takes."""
    if width < TINY_BOX:
        return detail.partition(" a batch")[0]
    return detail.replace(" a batch", "") if width < NARROW_BOX else detail


def _slack(slack: float, width: float) -> str:
    if width >= NARROW_BOX:
        return f"slack {words.percent(slack)}"
    return ("+" if slack >= 0 else "") + words.percent(slack, 0)


def _units(pool: PoolView, x: float, y: float, width: float, colour: str) -> list[str]:
    """One rectangle per vGPU as wide as its share of a GPU, in at most `UNIT_ROWS` rows."""
    unit = UNIT * pool.share / WHOLE_GPU
    per_row = int(width // (unit + 2))
    shown = min(pool.vgpus, per_row * UNIT_ROWS)
    if shown < pool.vgpus:
        shown -= max(1, int(40 // (unit + 2)))
    parts = [
        rect(
            x + (i % per_row) * (unit + 2),
            y + (i // per_row) * (UNIT_HEIGHT + 2),
            unit,
            UNIT_HEIGHT,
            fill=colour,
            rx=1,
        )
        for i in range(shown)
    ]
    if shown < pool.vgpus:
        at = x + (shown % per_row) * (unit + 2) + 2
        parts.append(text(at, y + 2 * UNIT_HEIGHT + 1, f"+{pool.vgpus - shown}", size=10))
    return parts


def _budget(
    model: ModelView,
    pipeline: PipelineView,
    place: tuple[float, float],
    colours: Mapping[str, tuple[str, str]],
) -> str:
    """How the SLO, or the entry's budget, is spent.

    Gathering, run times, transfers, what is left.
    """
    (y, width), left, height = place, LABEL, 7.0
    spans = [
        ("gathering", pipeline.gathering_ms, "#c9d1db"),
        ("transfer from other modules", pipeline.input_ms, FAINT),
    ]
    for stage in pipeline.stages:
        label = f"stage {stage.number + 1} on {stage.pool.name}"
        spans.append((label, stage.latency_ms, colours[stage.pool.gpu_class][1]))
        spans.append((f"transfer to stage {stage.number + 2}", stage.transfer_ms, FAINT))
    spent_ms = sum(duration_ms for _, duration_ms, _ in spans)
    scale = width / max(model.slo_ms, spent_ms)
    parts = [rect(left, y, width, height, fill="#eef1f5", rx=2)]
    x = left
    for label, duration_ms, colour in spans:
        if duration_ms <= 0:
            continue
        tip = f"{label}: {words.milliseconds(duration_ms)}"
        parts.append(rect(x, y, duration_ms * scale, height, fill=colour, title=tip))
        x += duration_ms * scale
    free_ms = pipeline.budget_ms - (x - left) / scale
    of_what = (
        "SLO" if pipeline.entry is None else f"entry's {words.milliseconds(pipeline.budget_ms)}"
    )
    parts.append(
        text(
            left + width,
            y + height + 11,
            f"{words.milliseconds(free_ms)} of the {of_what} free",
            size=10,
            fill=SOFT if free_ms >= 0 else BAD,
            text_anchor="end",
        )
    )
    parts.append(
        straight_line(
            left + pipeline.budget_ms * scale,
            y - 2,
            left + pipeline.budget_ms * scale,
            y + 9,
            stroke=INK,
        )
    )
    return "".join(parts)
