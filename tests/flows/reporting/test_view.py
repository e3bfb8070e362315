"""Tables and pictures of plans."""

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from flows.reporting.picture import BOLD, CLASS_BAR, cluster_svg, plan_svg
from flows.reporting.svg import text_width
from flows.reporting.terminal import render_plan
from flows.reporting.view import PlanView, view_of
from tests.flows.reporting.example import LONG_NAME, example_plan, shared_plan
from triton_backend.contract.plan import Plan


def test_a_pools_rate_is_its_vgpus_rate_times_their_number() -> None:
    first, second = view_of(example_plan()).models[0].pipelines[0].stages
    assert second.rate_rps == pytest.approx(2 * 2 / 0.010)
    assert second.slack == pytest.approx(3)
    # uplink: 10 Gbit/s over 2 GPUs of 2 vGPUs each, 10 Mbit a sample
    assert first.rate_rps == pytest.approx(3 * min(2 / 0.020, 1_000 / 4))
    assert first.slack == pytest.approx(2)


def test_gathering_and_gpus_are_told() -> None:
    view = view_of(example_plan())
    assert view.models[0].pipelines[0].gathering_ms == pytest.approx(10)
    assert view.models[1].pipelines[0].gathering_ms == 0
    assert [(c.name, c.gpus, c.used, c.by_model) for c in view.classes] == [
        ("fast", 3, 3, (1.5, 1.0)),
        ("slow", 4, 4, (2.0, 2.0)),
    ]


def test_the_picture_is_well_formed_and_marks_every_pool() -> None:
    view = view_of(example_plan())
    root = ET.fromstring(plan_svg(view))
    pools = [e.get("data-pool") for e in root.iter() if e.get("data-pool")]
    assert pools == ["0.0.0", "0.0.1", "1.0.0", "1.0.1", "1.0.2"]
    texts = " ".join(root.itertext())
    assert "resnet" in texts


def test_a_shared_pools_time_is_parted_by_promised_work() -> None:
    view = view_of(shared_plan())
    large, small = view.pools
    assert large.parts == ((0, pytest.approx(0.75)), (1, pytest.approx(0.25)))
    assert small.parts == ((1, 1.0),)
    first, second = view.models[1].pipelines[0].stages
    assert first.rate_rps == pytest.approx(0.25 * 2 * 2 / 0.020)
    assert first.slack == view.models[0].pipelines[0].stages[0].slack == pytest.approx(1.5)
    assert second.slack == pytest.approx(9)
    assert view.classes[0].by_model == pytest.approx((1.2, 0.8))
    assert [(cut.gpus, cut.pools) for cut in view.classes[0].cuts] == [(2, (large, small))]


def test_gpus_are_drawn_with_their_parts_and_the_models_on_them() -> None:
    root = ET.fromstring(cluster_svg(view_of(shared_plan()), ("a", "b")))
    texts = " ".join(root.itertext()).replace("\N{NO-BREAK SPACE}", " ")
    for expected in ("2 ×", "large, 80 %: a 75 %, b 25 %", "small, 20 %: b"):
        assert expected in texts


@pytest.mark.parametrize("plan", [example_plan(), shared_plan()])
@pytest.mark.parametrize("draw", [plan_svg, partial(cluster_svg, names=("a", "b"))])
def test_nothing_is_drawn_outside_the_picture(plan: Plan, draw: Callable[[PlanView], str]) -> None:
    root = ET.fromstring(draw(view_of(plan)))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(box.get(name, "")) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width + 0.01
        assert 0 <= y <= y + h <= height + 0.01


@pytest.mark.parametrize("name", ["fast", "slow-cpu", "A100-SXM4-80GB", "NVIDIA-H100-NVL-94GB-3g"])
def test_names_of_classes_end_before_their_bars(name: str) -> None:
    view = view_of(example_plan())
    view = replace(view, classes=tuple(replace(one, name=name) for one in view.classes))
    root = ET.fromstring(cluster_svg(view, ("a", "b")))
    (label, *_) = [e for e in root.iter() if e.get("font-weight") == "600"]
    shown = label.text or ""
    bars = [float(e.get("x", "")) for e in root.iter() if e.get("height") == f"{CLASS_BAR:g}"]
    assert float(label.get("x", "")) + text_width(shown, 13 * BOLD) <= min(bars)
    assert shown == name or len(shown) >= 18


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_pools_rates_and_gpus(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render_plan(example_plan()))
    text = console.export_text().replace("\N{NO-BREAK SPACE}", " ")
    for expected in (
        "3 × 1/2 fast",
        "fast-0",
        "2 × slow",
        "4–9",
        "200 %",
        "3 of 3 GPUs",
        "1.25 MB",
    ):
        assert expected in text
    assert LONG_NAME in text
    assert max(map(len, text.splitlines())) <= width
