"""When a quickstart has failed, and when its machine has."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.cli.simulate.report import page_of
from flows.quickstart.load_process import LoadResult
from flows.quickstart.outcome import (
    STAND_IN,
    QuickstartOutcome,
    failures,
    keep_outcome,
    overloaded,
    page_notes,
    shortcomings,
)
from flows.state import ProjectState
from flows.workspace import Workspace, store_plan
from tests.fakes.plans import two_stages
from triton_backend.simulator.run import SimOptions, simulate

PLAN = two_stages()
NAME = PLAN.models[0].name


def load(*, lag_ms: float | None = 5.0, **changes: Any) -> LoadResult:
    row = {
        "offered": 100,
        "served": 96,
        "late": 1,
        "dropped": 3,
        "failed": 0,
        "checked": {"responses": 97, "wrong": 0},
    }
    return LoadResult.from_document(
        {"models": {NAME: row | changes}, "send_lag_ms": {"p99": lag_ms}, "duration_s": 20.0}
    )


def outcome(measured: LoadResult, sampled: LoadResult | None = None) -> QuickstartOutcome:
    return QuickstartOutcome(
        plan=PLAN,
        splits=(),
        simulated=simulate(PLAN, SimOptions(duration_s=0.1)),
        measured=measured,
        sampled=sampled or load(),
        records=Path("records.npz"),
        events=Path("events"),
        steps=(),
    )


def test_the_page_of_a_run_is_found_from_another_folder_and_where_its_project_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(*_: object) -> None:
        return None

    def write(_data: object, path: Path) -> None:
        path.parent.mkdir(parents=True)
        path.write_text("page")

    monkeypatch.setattr("flows.quickstart.outcome._report", report)
    monkeypatch.setattr("flows.quickstart.outcome.write_report", write)
    project, moved, elsewhere = (tmp_path / name for name in ("project", "moved", "elsewhere"))
    project.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(project)
    work = Workspace(state=ProjectState(home=Path(".poolpipe")), warehouse=Path("w.duckdb"))
    store_plan(work, PLAN)
    run_id, _ = keep_outcome(work, outcome(load()))
    monkeypatch.chdir(elsewhere)
    there = Workspace(state=work.state, warehouse=project / "w.duckdb")
    assert page_of(there, run_id, Path("copy.html")).read_text() == "page"
    shutil.move(project, moved)
    monkeypatch.chdir(moved)
    assert page_of(work, run_id, Path("copy.html")).read_text() == "page"


def test_all_is_well() -> None:
    assert shortcomings(outcome(load()), 0.95) == []
    assert overloaded(outcome(load())) is None
    assert overloaded(outcome(load(lag_ms=None))) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"served": 90, "dropped": 9},
            [f"{NAME} attains 90.00% of 100 requests, under the target of 95.00%"],
        ),
        ({"checked": {"responses": 97, "wrong": 2}}, [f"{NAME} gave 2 wrong answers of 97"]),
        ({"offered": 0, "served": 0}, []),
    ],
)
def test_what_is_not_good_enough_is_said_in_a_line(
    changes: dict[str, Any], words: list[str]
) -> None:
    assert shortcomings(outcome(load(**changes)), 0.95) == words


def test_what_requests_that_failed_got_is_said() -> None:
    assert failures(outcome(load())) is None
    failed = load(served=94, failed=2)
    loaded = LoadResult.from_document({**failed.document, "messages": {"its worker died": 2}})
    assert failures(outcome(loaded)) == "2 requests failed; errors: 2 x its worker died"


def test_the_page_says_what_the_terminal_says_of_the_machine_and_of_errors() -> None:
    assert page_notes(outcome(load())) == (STAND_IN,)
    failed = load(served=94, failed=2, lag_ms=1000.0)
    loaded = LoadResult.from_document({**failed.document, "messages": {"its worker died": 2}})
    found = outcome(loaded)
    assert page_notes(found) == (STAND_IN, overloaded(found), failures(found))


def test_wrong_answers_over_http_count_too() -> None:
    wrong = load(checked={"responses": 10, "wrong": 1})
    assert shortcomings(outcome(load(), wrong), 0.0) == [
        f"{NAME} gave 1 wrong answer of 10 over HTTP"
    ]


def test_a_load_that_could_not_be_sent_in_time_is_the_machines_fault() -> None:
    slo_ms = min(model.slo_us for model in PLAN.models) / 1e3
    said = str(overloaded(outcome(load(lag_ms=0.2 * slo_ms))))
    assert f"sent up to {0.2 * slo_ms:.0f} ms late" in said
