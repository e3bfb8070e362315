"""Pages read by the models and steps of the OCR example, and by the package that they are from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from flows.files import read_workload
from flows.preparation.splitting.inputs.values import read_samples
from flows.preparation.splitting.running import open_session, run_session
from flows.preparation.steps.given import GivenStep, read_steps
from flows.preparation.steps.samples import read_step_samples
from flows.quickstart.example_project import ocr_models, ocr_workload
from flows.quickstart.ocr import (
    READERS,
    SIZES,
    ReaderHere,
    compared_with_package,
    shares_of_widths,
    write_answers,
    write_models,
    write_project,
)
from flows.quickstart.padding import PADDED
from flows.quickstart.pages import draw_page
from triton_backend.contract.applications import check_tensors
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serving.loadgen.payload import relative_error, requests_from_file

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
    assert found.text == theirs


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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Path]:
    return write_project(tmp_path_factory.mktemp("project"))


def test_the_workload_names_its_models_tensors_and_sizes(
    project: tuple[dict[str, Path], Path],
) -> None:
    models, workload = project
    (graph,) = read_workload(workload).applications
    steps = read_steps(workload)
    assert {*graph.models} == {*models, *steps}
    tensors: dict[str, tuple[Sequence[TensorSpec], Sequence[TensorSpec]]] = {
        name: (step.inputs, step.outputs) for name, step in steps.items()
    }
    for name, file in models.items():
        outputs = [output.name for output in onnx.load(file).graph.output]
        given = [TensorSpec(name="x", dtype="FP32", shape=(-1, *SIZES[name]))]
        if name in READERS:
            given.append(TensorSpec(name=PADDED, dtype="INT64", shape=(-1,)))
        tensors[name] = (given, [stated_output(steps, output) for output in outputs])
    (image,) = check_tensors(graph, tensors.__getitem__)
    assert (image.name, image.dtype) == ("image", "BYTES")


def stated_output(steps: Mapping[str, GivenStep], name: str) -> TensorSpec:
    """A model's output as the step that reads it states it."""
    return next(spec for step in steps.values() for spec in step.inputs if spec.name == name)


def test_the_workload_runs_as_many_lines_as_pages_have(
    project: tuple[dict[str, Path], Path],
) -> None:
    shares = dict(zip(READERS, (0.1, 0.7, 0.2), strict=True))
    (graph,) = ocr_workload(project[1], rows=5.5, shares=shares).applications
    assert {m.rows_per_request for m in graph.modules if m.size_of is None} == {1, 5.5}
    rows = {m.model: m.rows_per_request for m in graph.makers("recogniser")}
    assert rows == {name: pytest.approx(5.5 * share) for name, share in shares.items()}
    assert graph.rows_vary(graph.module("text"))


def test_every_step_has_samples_that_it_runs_on(project: tuple[dict[str, Path], Path]) -> None:
    for step in read_steps(project[1]).values():
        samples = read_step_samples(step)
        assert {len(rows) for rows in samples.values()} != {0}


def test_every_recogniser_has_lines_that_it_reads_differently(
    project: tuple[dict[str, Path], Path],
) -> None:
    models, _ = project
    for model in ocr_models(models):
        if model.name not in READERS:
            continue
        assert model.choices.samples is not None
        samples = read_samples(model.choices.samples)
        assert samples["x"].shape[1:] == SIZES[model.name]
        assert samples[PADDED].min() >= 320
        assert samples[PADDED].max() <= READERS[model.name]
        session = open_session(model.path, model.name)
        first, second = (
            run_session(session, {name: rows[n : n + 1] for name, rows in samples.items()})
            for n in (0, 1)
        )
        assert not np.array_equal(first["symbols"], second["symbols"])


def test_answers_are_what_is_read_here(here: ReaderHere, tmp_path: Path) -> None:
    pages = [draw_page(seed, most_lines=5) for seed in (1, 2)]
    read = write_answers(here, pages, tmp_path / "answers.npz")
    image = (TensorSpec.of_bytes("image", 4_000_000),)
    requests = requests_from_file(tmp_path / "answers.npz", image, samples=1)
    for page, one, request in zip(pages, read, requests, strict=True):
        assert request.inputs["image"].tolist() == [page.picture]
        assert request.expected is not None
        answer = {
            "boxes": one.boxes,
            "degrees": one.degrees,
            "text": np.array([text.encode() for text in one.texts], np.object_),
            "score": one.scores,
        }
        assert relative_error(answer, request.expected) == 0
    assert "on 2 of 2 pages" in compared_with_package(pages, read)
    lines = [sum(int((one.widths == width).sum()) for one in read) for width in READERS.values()]
    assert sum(lines) == sum(len(one.texts) for one in read)
    shares = [max(count, 1) / sum(max(n, 1) for n in lines) for count in lines]
    assert list(shares_of_widths(read).values()) == pytest.approx(shares)
