"""Repositories become models to plan, applications, and models beside the plan."""

from pathlib import Path

import pytest

from flows.preparation.triton_repository.repository import (
    APPLICATION,
    BESIDE,
    MODEL,
    read_repository,
)
from tests.flows.preparation.splitting.tiny_models import chain
from tests.flows.preparation.triton_repository.repositories import digest, write_repository
from triton_backend.contract.errors import InputError


def test_six_models_are_read_and_nothing_changes(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    before = digest(folder)
    found = {each.name: each for each in read_repository(folder)}
    assert {name: each.kind for name, each in found.items()} == {
        "chat": BESIDE,
        "classify": MODEL,
        "classify@1": MODEL,
        "pipeline": APPLICATION,
        "plain": MODEL,
        "sharpen": MODEL,
        "tokens": BESIDE,
    }
    assert digest(folder) == before
    assert found["classify"].file == folder / "classify" / "2" / "model.onnx"
    assert found["classify@1"].file == folder / "classify" / "1" / "model.onnx"
    assert found["classify"].instances == {0: 1, 1: 1}
    assert found["plain"].instances == {None: 1}
    assert found["sharpen"].timeout_us == 250_000
    assert found["sharpen"].shapes == {"x": (4, 6, 6)}
    assert "decoupled" in found["chat"].reason
    assert "Python step" in found["tokens"].reason
    assert "dynamic_batching: the plan chooses batches" in found["sharpen"].notes
    assert any("priority_levels" in note for note in found["classify"].notes)
    assert any("next_year_field (line 9)" in note for note in found["classify"].notes)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('backend: "onnxruntime" sequence_batching { }', "keeps state"),
        ('platform: "tensorrt_plan"', "engine cannot be cut"),
        ('backend: "dali"', "backend dali is not planned"),
        ('backend: "onnxruntime" default_model_filename: "a.onnx"', "a.onnx of version 1"),
        ('backend: "onnxruntime" version_policy { specific { versions: 7 } }', "no served version"),
    ],
)
def test_a_model_that_cannot_be_planned_is_left_beside(
    tmp_path: Path, config: str, reason: str
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    chain(tmp_path / "m" / "1" / "model.onnx")
    (found,) = read_repository(tmp_path)
    assert found.kind == BESIDE
    assert reason in found.reason


def test_an_ensemble_of_a_model_beside_the_plan_is_left_there_too(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    (folder / "sharpen" / "config.pbtxt").write_text('backend: "dali"\n')
    found = {each.name: each for each in read_repository(folder)}
    assert (found["pipeline"].kind, found["pipeline"].reason) == (
        BESIDE,
        "its step sharpen is not planned",
    )


def test_sizes_begin_with_the_batch_where_triton_forms_none(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    config = folder / "sharpen" / "config.pbtxt"
    text = config.read_text().replace("max_batch_size: 8", "")
    config.write_text(text.replace("dims: [ 4, 6, 6 ]", "dims: [ 1, 4, 6, 6 ]"))
    found = {each.name: each for each in read_repository(folder)}
    assert found["sharpen"].shapes == {"x": (4, 6, 6)}


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no model"):
        read_repository(tmp_path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_repository(tmp_path / "none")
    (tmp_path / "a b" / "1").mkdir(parents=True)
    with pytest.raises(InputError, match="a b"):
        read_repository(tmp_path)
