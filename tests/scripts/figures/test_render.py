"""Pages, plots and README say what the runs say."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.figures.claims import WORDS, Figures, read, value_text
from scripts.figures.render import OUT, alike, main, rendered
from tests.repository.files import ROOT

FIGURE_LINK = re.compile(r"\[([^\]]+)\]\((docs/reference/figures/([a-z]+)\.md)#([^)]+)\)")
CELL = re.compile(r"(?<!\\)\|")


@pytest.fixture(scope="module")
def figures() -> Figures:
    return read()


@pytest.fixture(scope="module")
def drawn(figures: Figures) -> dict[str, str]:
    return rendered(figures)


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch, figures: Figures, drawn: dict[str, str]) -> None:
    """The command has what it would draw of the claims and runs that are kept."""

    def known(asked: Figures) -> dict[str, str]:
        assert asked == figures
        return drawn

    monkeypatch.setattr("scripts.figures.render.rendered", known)


@pytest.mark.long
@pytest.mark.usefixtures("drawn_once")
def test_pages_and_plots_are_those_of_claims_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.long
def test_a_changed_run_is_noticed(figures: Figures) -> None:
    claim = figures.claim("load.dart")
    run, _ = figures.of(claim)[0]
    changed = replace(run, figures={**run.figures, claim.figure: 0.5})
    runs = tuple(changed if one is run else one for one in figures.runs)
    files = rendered(Figures(claims=figures.claims, runs=runs))
    differ = {name for name in files if (OUT / name).read_text() != files[name]}
    assert {"scheduling.md", "load-factors.svg"} <= differ


def test_a_plot_is_the_same_where_only_the_rounding_differs() -> None:
    plot = '<?xml?><g clip-path="url(#p0123456789)" x="1.000001" y="2.5">7.1</g>'
    other = plot.replace("p0123456789", "pabcdefabcd")
    assert alike(plot, other.replace("1.000001", "1.000002"))
    assert not alike(plot, other.replace("2.5", "2.6"))
    assert not alike(plot, other.replace("2.5", "2"))
    assert not alike(plot, other.replace("clip", "mask"))
    assert not alike(plot, None)
    assert not alike("a page of 1.000001", "a page of 1.000002")


def test_no_cell_has_more_words_than_a_reader_takes_in() -> None:
    long = [
        (page.name, cell)
        for page in OUT.glob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("|")
        for cell in CELL.split(line)
        if len(re.sub(r"<a id[^>]*>", "", cell).split()) > WORDS
    ]
    assert long == []


def test_every_claim_with_a_missed_target_is_on_the_index(figures: Figures) -> None:
    index = (OUT / "index.md").read_text()
    missed = [
        claim.what for claim in figures.claims if figures.standing(claim).met not in ("yes", "–")
    ]
    assert missed
    assert [what for what in missed if what not in index] == []


def test_figures_of_the_readme_are_those_of_the_claims(figures: Figures) -> None:
    text = (ROOT / "README.md").read_text()
    stated = FIGURE_LINK.findall(text)
    assert len(stated) >= 6
    for shown, page, area, name in stated:
        claim = figures.claim(name)
        assert (shown, area) == (value_text(figures.standing(claim)), claim.area), name
        assert f'<a id="{name}">' in (ROOT / page).read_text()
    rows = [line for line in text.splitlines() if FIGURE_LINK.search(line)]
    for row in rows:
        standings = [figures.standing(figures.claim(n)) for *_, n in FIGURE_LINK.findall(row)]
        if any(one.met not in ("yes", "–") for one in standings):
            assert "missed" in row, row


def test_unknown_areas_and_claims_without_a_run_end_in_one_line(
    figures: Figures, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lonely = replace(figures.claims[0], id="lonely", figure="")
    monkeypatch.setattr(
        "scripts.figures.render.read",
        lambda: Figures(claims=(*figures.claims, lonely), runs=figures.runs),
    )
    assert main(["--check"]) == 2
    assert capsys.readouterr().err == "lonely: no run gives it a value\n"


@pytest.mark.usefixtures("drawn_once")
def test_a_page_of_no_area_is_removed(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("old")
    assert main(["--out", str(tmp_path)]) == 0
    assert not (tmp_path / "old.md").exists()
    assert (tmp_path / "index.md").read_text() == (OUT / "index.md").read_text()


def test_no_kept_run_names_a_place_of_one_machine() -> None:
    for path in (ROOT / "scripts" / "figures" / "runs").glob("*.json"):
        command = json.loads(path.read_text())["machine"]["command"]
        assert not re.search(r"(?<![\w.])/\w", command), path
