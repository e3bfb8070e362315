"""Pages read by the models and steps of the OCR example, and by the package that they are from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flows.quickstart.ocr import ReaderHere, write_models
from flows.quickstart.pages import draw_page

pytestmark = pytest.mark.slow
rapidocr: Any = pytest.importorskip("rapidocr_onnxruntime", reason="needs the extra `ocr`")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> ReaderHere:
    return ReaderHere(write_models(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def package() -> Any:
    return rapidocr.RapidOCR()


@pytest.mark.parametrize("seed", [1, 3, 6])
def test_a_page_is_read_as_the_package_reads_it(here: ReaderHere, package: Any, seed: int) -> None:
    page = draw_page(seed, most_lines=12)
    found = here.read(page.picture)
    wanted, _ = package(page.picture)
    said = [n for n, text in enumerate(found.texts) if text]
    assert np.array_equal(found.boxes[said], [box for box, _, _ in wanted])
    theirs = "\n".join(text for _, text, _ in wanted)
    assert found.text.replace(" ", "") == theirs.replace(" ", "")


def test_lines_that_lie_upside_down_are_turned_back(here: ReaderHere, tmp_path: Path) -> None:
    page = draw_page(1, most_lines=5)
    (tmp_path / "page.jpg").write_bytes(page.picture)
    with Image.open(tmp_path / "page.jpg") as picture:
        picture.rotate(180).save(tmp_path / "turned.png")
    found = here.read((tmp_path / "turned.png").read_bytes())
    assert set(found.degrees.tolist()) == {180}
    lines = "".join(reversed(page.lines))
    assert "".join(found.texts).replace(" ", "") == lines.replace(" ", "")


def test_a_page_without_lines_has_no_text(here: ReaderHere, tmp_path: Path) -> None:
    Image.new("RGB", (736, 1024), "white").save(tmp_path / "page.png")
    found = here.read((tmp_path / "page.png").read_bytes())
    assert (found.text, found.texts, len(found.boxes)) == ("", (), 0)
