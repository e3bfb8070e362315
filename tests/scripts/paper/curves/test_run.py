"""The command of the papers' experiments: wrong input ends in one line, a run keeps its panels."""

import json
from pathlib import Path

import pytest

from scripts.benchmarks.figures import Figure
from scripts.figures.papers import read_experiments
from scripts.paper.curves import run
from scripts.paper.curves.panels import Asked, Found, Panel


def test_an_unknown_figure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["symphony-99", "--data", "."])
    assert ended.value.code == 2
    assert "invalid choice: 'symphony-99'" in capsys.readouterr().err


@pytest.mark.parametrize("figure", ["symphony-9", "piccolo-8", "graft-11", "gpulets-6"])
def test_a_folder_without_tables_is_refused_in_one_line(
    figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main([figure, "--data", str(tmp_path)])
    assert ended.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err.splitlines()[-1]


def test_numbers_that_are_not_positive_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["symphony-9", "--data", ".", "--seeds", "0"])
    assert "must be positive" in capsys.readouterr().err


def test_a_run_keeps_its_panels_under_the_name_of_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(asked: Asked) -> Found:
        panel = Panel(title="t", x="x", y="y", series={"a": [(1.0, float(asked.seeds))]})
        return Found(figures=[Figure(name="f", value=1.0)], panels=[panel])

    monkeypatch.setattr(run, "FIGURES", {"symphony-0": made})
    out = tmp_path / "run.json"
    (tmp_path / "symphony").mkdir()
    asked = ["symphony-0", "--data", str(tmp_path), "--seeds", "2", "--out", str(out)]
    assert run.main(asked) == 0
    kept = json.loads(out.read_text())
    assert kept["benchmark"] == "papers"
    assert [panel["series"] for panel in kept["symphony-0"]] == [{"a": [[1.0, 2.0]]}]


def test_every_experiment_of_the_page_with_a_command_has_one() -> None:
    named = {one.id for one in read_experiments() if one.options is not None}
    assert named <= set(run.FIGURES)
