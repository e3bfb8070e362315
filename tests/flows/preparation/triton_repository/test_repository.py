"""Repositories become models to plan, applications, and models beside the plan."""

from collections.abc import Callable, Iterator
from errno import EACCES
from os import mkfifo
from pathlib import Path

import pytest

from flows.preparation.triton_repository.repository import (
    APPLICATION,
    BESIDE,
    MODEL,
    MOST_BYTES,
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
    numbered = "version 2 is served as version 1: ask for versions by the names here"
    assert numbered in found["classify"].notes
    assert not any("is served as" in note for note in found["plain"].notes)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('backend: "onnxruntime" sequence_batching { }', "keeps state"),
        ('platform: "tensorrt_plan"', "engine cannot be cut"),
        ('backend: "dali"', "backend dali is not planned"),
        ('backend: "onnxruntime" default_model_filename: "a.onnx"', "a.onnx of version 1"),
        ('backend: "onnxruntime" version_policy { specific { versions: 7 } }', "no served version"),
        ('default_model_filename: "../../other/1/model.onnx"', "leads out of its version's folder"),
        ('default_model_filename: "/etc/passwd"', "leads out of its version's folder"),
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


def test_an_ensemble_of_an_ensemble_is_left_beside_with_the_way_to_plan_it(
    tmp_path: Path,
) -> None:
    folder = write_repository(tmp_path / "models")
    (folder / "outer" / "1").mkdir(parents=True)
    text = (folder / "pipeline" / "config.pbtxt").read_text()
    inner = text.replace('model_name: "sharpen"', 'model_name: "pipeline"')
    (folder / "outer" / "config.pbtxt").write_text(inner)
    found = {each.name: each for each in read_repository(folder)}
    assert (found["pipeline"].kind, found["outer"].kind) == (APPLICATION, BESIDE)
    assert found["outer"].reason == (
        "its step pipeline is an ensemble: write that one's steps in its place to plan it"
    )


def test_what_a_tensor_states_beyond_its_sizes_is_named(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    config = folder / "classify" / "config.pbtxt"
    text = config.read_text().replace("[ 4, 6, 6 ] }", "[ 144 ] reshape { shape: [ 4, 6, 6 ] } }")
    config.write_text(text.replace("[ 144 ] } ]", '[ 144 ] label_filename: "labels.txt" } ]'))
    found = {each.name: each for each in read_repository(folder)}
    assert [note for note in found["classify"].notes if "is not kept: c" in note] == [
        "input x: reshape is not kept: clients send the sizes of the ONNX file",
        "output y: label_filename is not kept: classes have no names",
    ]
    assert not any(note.startswith(("input", "output")) for note in found["sharpen"].notes)


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


def test_versions_are_folders_that_triton_takes_for_versions(tmp_path: Path) -> None:
    chain_of(tmp_path / "m" / "1")
    for name in ("007", "0", "\N{SUPERSCRIPT TWO}", "v2"):
        chain_of(tmp_path / "m" / name)
    (tmp_path / "m" / "9").write_text("notes\n")
    (found,) = read_repository(tmp_path)
    assert (found.kind, found.file) == (MODEL, tmp_path / "m" / "1" / "model.onnx")


def chain_of(folder: Path) -> None:
    folder.mkdir(parents=True)
    chain(folder / "model.onnx")


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    chain_of(tmp_path / "a" / "1")
    chain_of(tmp_path / "b" / "1")
    (tmp_path / "b" / "config.pbtxt").write_text('name: "a"\n')
    with pytest.raises(InputError, match=r"'a' is the name of two models"):
        read_repository(tmp_path)


def test_a_model_whose_name_no_plan_could_have_keeps_no_other_from_being_planned(
    tmp_path: Path,
) -> None:
    for name in ("a b", "plain"):
        chain_of(tmp_path / name / "1")
    odd, plain = read_repository(tmp_path)
    assert (odd.name, odd.kind, odd.readable) == ("a b", BESIDE, True)
    assert odd.reason.startswith("its name: 'a b' is no name: ")
    assert (plain.name, plain.kind) == ("plain", MODEL)


def dangling(path: Path) -> None:
    path.symlink_to("gone")


def too_long(path: Path) -> None:
    path.write_bytes(b"a" * (MOST_BYTES + 1))


def not_utf8(path: Path) -> None:
    path.write_bytes(b'name: "\xff"')


def unknown_type(path: Path) -> None:
    path.write_text("input { data_type: TYPE_FP64X }")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.mkdir, "is no file"),
        (mkfifo, "is no file"),
        (dangling, "is no file"),
        (too_long, "has 1048577 bytes, of at most"),
        (not_utf8, "is not a text file"),
        (unknown_type, "Enum type "),
    ],
)
def test_a_configuration_that_cannot_be_read_keeps_no_other_model_from_being_planned(
    tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    for name in ("a", "plain"):
        chain_of(tmp_path / name / "1")
    make(tmp_path / "a" / "config.pbtxt")
    broken, plain = read_repository(tmp_path)
    assert (broken.name, broken.kind, broken.readable) == ("a", BESIDE, False)
    assert f"{tmp_path}/a/config.pbtxt" in broken.reason
    assert reason in broken.reason
    assert (plain.name, plain.kind) == ("plain", MODEL)


def test_a_model_whose_folder_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain_of(tmp_path / "a" / "1")
    listed = Path.iterdir

    def refused(folder: Path) -> Iterator[Path]:
        if folder.name == "a":  # root reads every folder, so permissions would not do
            raise PermissionError(EACCES, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(InputError, match=r"/a: cannot be read: Permission denied"):
        read_repository(tmp_path)


@pytest.mark.parametrize(
    ("version", "step"), [("-1", "classify"), ("2", "classify"), ("1", "classify@1")]
)
def test_a_step_runs_the_version_that_its_ensemble_names(
    tmp_path: Path, version: str, step: str
) -> None:
    folder = write_repository(tmp_path / "models")
    pin(folder, "classify", version)
    found = {each.name: each for each in read_repository(folder)}
    steps = found["pipeline"].message.ensemble_scheduling.step
    assert [each.model_name for each in steps] == ["sharpen", step]


def test_an_ensemble_of_a_version_that_is_not_served_is_left_beside(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    pin(folder, "classify", "7")
    found = {each.name: each for each in read_repository(folder)}
    assert (found["pipeline"].kind, found["pipeline"].reason) == (
        BESIDE,
        "version 7 of its step classify is not served",
    )


def pin(repository: Path, model: str, version: str) -> None:
    config = repository / "pipeline" / "config.pbtxt"
    before = f'model_name: "{model}"\n      model_version: -1'
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, before.replace("-1", version)))
