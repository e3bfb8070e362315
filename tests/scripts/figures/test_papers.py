"""The page of the papers' experiments says what claims say, and names what is missing."""

from pathlib import Path

import pytest
import yaml

from scripts.figures.claims import Figures, read
from scripts.figures.papers import Experiment, page, read_experiments, stated
from scripts.paper.curves.run import FIGURES
from triton_backend.contract.errors import InputError

ONE = {"id": "graft-99", "figure": "99", "shows": "s", "here": "h", "holds": "no"}


@pytest.fixture(scope="module")
def figures() -> Figures:
    return read()


def test_a_claim_in_braces_becomes_its_median(figures: Figures) -> None:
    value = figures.value("load.dart")
    assert stated("it is {load.dart}.", figures) == f"it is {value:.4g}."
    with pytest.raises(InputError, match=r"no claim 'load\.none'"):
        stated("{load.none}", figures)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"holds": "perhaps"}, "graft-99: holds is one of yes, partly, no, not run"),
        ({"id": "unknown-1"}, "unknown-1: begins with none of ppipe"),
        ({"figure": "x " * 26}, "graft-99: more than 25 words"),
        ({"colour": "red"}, "graft-99: .*colour"),
    ],
)
def test_an_experiment_in_another_form_is_refused(
    changed: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "papers.yaml"
    path.write_text(yaml.safe_dump([ONE | changed]))
    with pytest.raises(InputError, match=message):
        read_experiments(path)


def test_pictures_and_commands_stand_where_there_are_any(figures: Figures) -> None:
    drawn = Experiment(**{**ONE, "id": "symphony-9", "figure": "9, all", "options": "--seeds 1"})
    text = page("", [drawn, Experiment(**ONE)], figures, {"symphony-9": "a picture"})
    assert "![a picture](symphony-9.svg)" in text
    assert "`python -m scripts.paper.curves.run symphony-9 --data DIR --seeds 1`" in text
    assert "| Symphony 9, all | no | [picture](#symphony-9-all) |" in text
    assert "### Symphony 9, all" in text
    assert "| Graft 99 | no | elsewhere |" in text


def test_every_experiment_with_a_command_is_on_the_page() -> None:
    assert set(FIGURES) <= {one.id for one in read_experiments()}
