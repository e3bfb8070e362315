"""The report page: complete, self-contained, escaped."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from flows.reporting.data import (
    BesideTriton,
    LoadPoint,
    Outcomes,
    ReportData,
    Uses,
    latencies_of_load,
)
from flows.reporting.html import render_report, write_report
from flows.reporting.runs import LOADS, variant_curves
from flows.reporting.timeline import MOST_BARS, timeline_data
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import two_stages, two_tails
from tests.fakes.variants import CHEAP, NAME, variant_plan
from tests.flows.reporting.example import (
    LONG_NAME,
    example_plan,
    example_report,
    example_uses,
    shared_plan,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Attained
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

VOID = {"meta", "link", "br", "rect", "line", "polyline", "polygon", "circle"}


class Reader(HTMLParser):
    """Checks nesting and collects addresses, headings and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.headings: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for name, v in attrs if name in {"src", "href", "action"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag, attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data.strip())
        if self.open and self.open[-1] not in {"style", "script"}:
            self.words.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_holds_every_part_and_needs_no_network() -> None:
    page = render_report(example_report())
    reader = read(page)
    assert reader.addresses == []
    assert "@import" not in page
    assert "url(" not in page
    assert reader.headings == [
        "Notes",
        "Per model",
        "Plan: pools and flows",
        "Attainment, measured against simulated",
        "Latency against the SLO",
        "Batches on every vGPU, measured",
        "Blocks and boundaries",
        "Steps",
        "Machine and versions",
    ]


def test_what_is_not_known_is_left_out() -> None:
    reader = read(render_report(ReportData(title="bare", plan=example_plan())))
    assert reader.headings == ["Plan: pools and flows"]


def test_a_plan_that_states_what_it_attains_says_so_on_the_page() -> None:
    label = "at 0.9 of the planned rates, Poisson"
    assert label not in render_report(ReportData(title="bare", plan=example_plan()))
    known = Attained(even=1.0, poisson=0.9712, poisson_load=0.9, duration_s=20.0, seed=0)
    page = render_report(ReportData(title="bare", plan=replace(example_plan(), attained=known)))
    words = [text.strip() for text in read(page).words]
    assert label in words
    assert any(text.startswith("97.12") for text in words)


def test_names_are_escaped_everywhere() -> None:
    page = render_report(example_report())
    for markup in ("<b>test", "<i>run", "conv<1>"):
        assert markup not in page


def test_a_table_that_is_wider_than_the_screen_scrolls_by_itself() -> None:
    page = render_report(example_report())
    tables = re.findall(r"(\S[^<>]*>)?\s*<table( class=\"facts\")?>", page)
    assert len(tables) >= 4
    assert [around for around, facts in tables if not facts and "scroll" not in around] == []


def test_long_names_are_written_out_once_and_cut_in_pictures() -> None:
    words = "".join(read(render_report(example_report())).words)
    assert LONG_NAME in words
    assert "…" in words


def test_the_table_says_what_came_of_the_requests() -> None:
    words = " ".join("".join(read(render_report(example_report())).words).split())
    assert "98.00 %" in words
    assert "1,980 answers were compared with the unsplit model's; none differed." in words


def test_writing_makes_the_folders(tmp_path: Path) -> None:
    path = write_report(example_report(), tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_timeline_names_every_vgpu_and_every_bar() -> None:
    plan = example_plan()
    data = timeline_data(plan, example_uses(plan, 10))
    assert [row[0] for row in data["rows"]][:3] == ["fast:0.0", "fast:0.1", "fast:1.0"]
    assert data["bars"][:6] == [0, 0, 0.9, 0, 1, 0]
    assert len(data["bars"]) == 60
    assert data["shown_ms"] == data["whole_ms"] == pytest.approx(9.9)


def test_a_shared_pool_is_named_once_with_the_time_of_each_model() -> None:
    plan = shared_plan()
    numbers = np.arange(4)
    uses = Uses(
        vgpu=numbers, model=np.array([0, 1, 1, 1]), batch_id=numbers,
        start_us=np.zeros(4, np.int64), end_us=np.full(4, 300_000), samples=np.ones(4, np.int64),
    )  # fmt: skip
    data = timeline_data(plan, uses)
    assert [label.replace("\N{NO-BREAK SPACE}", " ") for label, _ in data["pools"]] == [
        "large: 2 × 80 % big, a 75 %, b 25 %",
        "small: 2 × 20 % big, b",
    ]
    assert [row[1] for row in data["rows"]] == [0, 0, 1, 1]
    assert [data["models"][number][0] for number in data["bars"][5::6]] == ["a", "b", "b", "b"]
    run = Outcomes(label="measured", duration_s=1, models={}, uses=uses)
    page = render_report(ReportData(title="shared", plan=plan, measured=run))
    words = " ".join(" ".join(read(page).words).replace("\N{NO-BREAK SPACE}", " ").split())
    assert "large 2 × 80 % big 1.6 a 75 %, b 25 % 30.0 % (a 15.0 %, b 15.0 %)" in words
    assert "small 2 × 20 % big 0.4 b 30.0 %" in words


def test_entries_stand_below_their_model_measured_beside_simulated() -> None:
    plan = two_tails()
    first, second = (entry.name for entry in plan.models[0].entries)
    simulated = simulate(plan, SimOptions(duration_s=2)).to_dict()
    load = {"offered": 40, "served": 30, "late": 4, "dropped": 6, "failed": 0}
    counts = {"net": load | {"offered": 50, "served": 40}}
    measured = {"duration_s": 2, "models": counts, "entries": {"net": {second: load}}}
    runs = Outcomes.from_load(measured), Outcomes.from_simulation(simulated)
    page = render_report(ReportData(title="t", plan=plan, measured=runs[0], simulated=runs[1]))
    words = " ".join(" ".join(read(page).words).replace("\N{NO-BREAK SPACE}", " ").split())
    assert f"{first} 100 ms 10 rps – 100.00 %" in words
    assert f"{second} 100 ms 10 rps 40 20 rps 30 4 6 0 75.00 % – – 100.00 %" in words


@pytest.mark.long
def test_accuracy_of_a_name_with_variants_is_drawn_against_its_load() -> None:
    plan = variant_plan()
    curves = variant_curves(plan)
    page = render_report(ReportData(title="t", plan=plan, variants=curves))
    reader = read(page)
    assert f"Accuracy against load, {NAME}" in reader.headings
    tips = [text for text in reader.words if "times the planned rate" in text]
    assert [tip.split()[0] for tip in tips] == 2 * [f"{load:g}" for load in LOADS]
    assert tips[0] == "0.5 times the planned rate: 0.8"
    assert tips[len(LOADS)].replace("\N{NO-BREAK SPACE}", " ").endswith(": 100.0 %")
    assert {f"{NAME} 0.8", f"{CHEAP} 0.7"} <= set(reader.words)


@pytest.mark.long
def test_a_long_run_shows_its_first_part_and_says_so() -> None:
    plan = example_plan()
    uses = example_uses(plan, MOST_BARS + 1_000)
    data = timeline_data(plan, uses)
    assert len(data["bars"]) == 6 * MOST_BARS
    assert data["shown_ms"] < data["whole_ms"]
    report = replace(example_report(), measured=None)
    run = Outcomes(label="long", duration_s=120, models={}, uses=uses)
    page = render_report(replace(report, simulated=run))
    assert re.search(r"Shown are the first 120\W*s of 2\W*min", page)


def test_the_timeline_begins_with_the_first_batch_whatever_the_clock_says() -> None:
    plan = example_plan()
    uses = example_uses(plan, 3)
    later = replace(uses, start_us=uses.start_us + 10**12, end_us=uses.end_us + 10**12)
    assert timeline_data(plan, later) == timeline_data(plan, uses)


def test_no_uses_make_an_empty_timeline() -> None:
    empty = np.empty(0, np.int64)
    uses = Uses(
        vgpu=empty, model=empty, batch_id=empty, start_us=empty, end_us=empty, samples=empty
    )
    assert timeline_data(example_plan(), uses)["bars"] == []


def test_uses_of_unequal_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="different lengths"):
        Uses(
            vgpu=np.zeros(2, np.int64), model=np.zeros(1, np.int64), batch_id=np.zeros(1, np.int64),
            start_us=np.zeros(1, np.int64), end_us=np.zeros(1, np.int64),
            samples=np.zeros(1, np.int64),
        )  # fmt: skip


def test_a_load_run_becomes_outcomes(tmp_path: Path) -> None:
    summary = json.loads(
        '{"duration_s": 2, "arrivals": "poisson", "protocol": "grpc", "models": {"m": {'
        '"offered": 3, "served": 1, "late": 1, "dropped": 1, "failed": 0,'
        '"latency_ms": {"p50": 7, "p99": 9}, "checked": {"responses": 2, "wrong": 0}}}}'
    )
    rows = np.array(
        [(0, 1, 100, 5_100), (0, 2, 200, 9_200), (0, 3, 300, 400)],
        dtype=[("model", "i2"), ("outcome", "u1"), ("intended_us", "i8"), ("done_us", "i8")],
    )
    path = tmp_path / "records.npz"
    np.savez(path, records=rows, models=np.array(["m"]))
    run = Outcomes.from_load(summary, path)
    latencies = run.models["m"].latencies_ms
    assert latencies is not None
    assert latencies.tolist() == [5, 9]
    assert run.attainment == pytest.approx(1 / 3)
    assert (run.models["m"].checked, run.note) == (2, "poisson, grpc")
    path.write_bytes(b"no records")
    with pytest.raises(InputError, match="not a file of load records"):
        latencies_of_load(path)


def test_a_simulation_becomes_outcomes() -> None:
    row = {"offered": 2, "served": 2, "late": 0, "dropped": 0, "attainment": 1.0,
           "latency_ms": {"p50": 1, "p99": 2}, "mean_batch": 1.5}  # fmt: skip
    summary = {"duration_s": 30, "policy": "reservation", "models": {"m": row}}
    run = Outcomes.from_simulation(summary, {"m": np.array([1.0, 2.0])})
    assert (run.label, run.note, run.attainment) == ("simulated", "policy reservation", 1)


def test_a_module_that_may_be_left_out_is_called_optional() -> None:
    model = two_stages().models[0].name
    last = hand_module("last", model, "first", rows=2.0, max_rows=4, optional=True)
    application = hand_application("app", (hand_module("first", model), last))
    plan = with_applications(two_stages(), application)
    page = render_report(ReportData(title="run", plan=plan))
    assert "last (optional)" in page
    assert "first (optional)" not in page


def test_triton_alone_stands_beside_the_plan_with_what_each_holds() -> None:
    def points(*shares: float) -> tuple[LoadPoint, ...]:
        return tuple(
            LoadPoint(load=0.5 * (i + 1), accuracy=None, in_time=share)
            for i, share in enumerate(shares)
        )

    beside = BesideTriton(
        configuration="<margin 0.1>",
        rate_rps=200.0,
        duration_s=2.0,
        plan=points(1.0, 0.995, 0.8),
        triton=points(0.999, 0.9, 0.995),
    )
    page = render_report(ReportData(title="t", plan=two_stages(), beside_triton=beside))
    page = page.replace("\N{NO-BREAK SPACE}", " ")
    assert "&lt;margin 0.1&gt;" in page
    rows = re.findall(r"<td[^>]*>(this plan|Triton alone)</td><td>(.*?)</td><td>(.*?)</td>", page)
    assert rows == [("this plan", "1", "200 rps"), ("Triton alone", "0.5", "100 rps")]
    assert "Triton alone" not in render_report(ReportData(title="t", plan=two_stages()))
