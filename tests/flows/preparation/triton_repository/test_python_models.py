"""Python models that may run as steps of an application, and those that may not."""

from pathlib import Path

import pytest

from flows.preparation.triton_repository.python_models import (
    configuration_of,
    package_of,
    stated_step,
    write_step,
)
from flows.preparation.triton_repository.repository import (
    APPLICATION,
    BESIDE,
    Found,
    read_repository,
)
from tests.flows.preparation.triton_repository.repositories import (
    CLEAN,
    CLEANED,
    CLEANING,
    add_cleaned,
    digest,
    write_repository,
)
from triton_backend.contract.errors import InputError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = write_repository(tmp_path / "models")
    add_cleaned(folder)
    return folder


def named(folder: Path) -> dict[str, Found]:
    return {each.name: each for each in read_repository(folder)}


def test_an_ensemble_of_a_model_that_takes_and_gives_arrays_is_planned(repository: Path) -> None:
    before = digest(repository)
    found = named(repository)
    assert found["cleaned"].kind == APPLICATION
    clean = found["clean"]
    assert (clean.kind, clean.step) == (BESIDE, repository / "clean" / "1" / "model.py")
    assert found["tokens"].step is None
    assert "takes no batches; write its execute() as a Python step" in found["tokens"].reason
    assert digest(repository) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("config.pbtxt", "max_batch_size: 4", "max_batch_size: 0", "takes no batches"),
        ("config.pbtxt", "TYPE_UINT8", "TYPE_STRING", "'RAW' is no array of numbers"),
        ("config.pbtxt", "dims: [ 4, 6, 6 ]", "dims: [ 4, -1, 6 ]", "sizes that are not stated"),
        ("config.pbtxt", "TYPE_UINT8", "99", "tensor 'RAW' is no array of numbers"),
        ("config.pbtxt", '"scale"', '"EXECUTION_ENV_PATH"', "has an environment of its own"),
        ("config.pbtxt", '"PIXELS"', '"refused"', "no inputs or outputs that a step"),
        (
            "1/model.py",
            "return answers",
            "exec_async = pb_utils.InferenceRequest",
            "uses Inference",
        ),
        ("1/model.py", "def execute", "async def execute", "uses async def execute"),
    ],
)
def test_a_model_that_does_more_is_left_beside_with_its_ensemble(
    repository: Path, file: str, old: str, new: str, reason: str
) -> None:
    path = repository / "clean" / file
    path.write_text(path.read_text().replace(old, new, 1))
    found = named(repository)
    assert found["clean"].step is None
    assert reason in found["clean"].reason
    assert (found["cleaned"].kind, found["cleaned"].reason) == (
        BESIDE,
        "its step clean is not planned",
    )


def test_a_model_with_files_of_its_own_is_left_beside(repository: Path) -> None:
    (repository / "clean" / "1" / "labels.txt").write_text("cat\n")
    assert "has more files than model.py in version 1" in named(repository)["clean"].reason
    (repository / "clean" / "1" / "labels.txt").unlink()
    (repository / "clean" / "1" / "model.py").rename(repository / "clean" / "1" / "main.py")
    assert "has no model.py in version 1" in named(repository)["clean"].reason


def test_a_file_outside_of_its_version_is_no_step(repository: Path) -> None:
    other = repository.parent / "other" / "model.py"
    other.parent.mkdir()
    other.write_text(CLEANING)
    config = repository / "clean" / "config.pbtxt"
    text = config.read_text()
    for name in ("../../../other/model.py", str(other)):
        config.write_text(f'{text}\ndefault_model_filename: "{name}"\n')
        clean = named(repository)["clean"]
        assert clean.step is None
        assert f"default_model_filename '{name}' leads out of its version" in clean.reason


def test_a_version_that_is_not_served_is_no_step(repository: Path) -> None:
    config = repository / "cleaned" / "config.pbtxt"
    config.write_text(CLEANED.replace("model_version: -1", "model_version: 2", 1))
    assert named(repository)["cleaned"].reason == "version 2 of its step clean is not served"
    config.write_text(CLEANED.replace("model_version: -1", "model_version: 1", 1))
    assert named(repository)["cleaned"].kind == APPLICATION


def test_the_package_of_a_step_is_written_once(repository: Path, tmp_path: Path) -> None:
    clean = named(repository)["clean"]
    assert clean.step is not None
    package = write_step(clean.step, clean.message, "clean", tmp_path / "steps")
    assert package.name == package_of("clean") == "step_clean"
    assert (package / "model.py").read_text() == CLEANING
    assert compile((package / "__init__.py").read_text(), "made", "exec")
    with pytest.raises(InputError, match="give another folder with -o"):
        write_step(clean.step, clean.message, "clean", tmp_path / "steps")
    assert len({package_of(name) for name in ("a-b", "a.b", "a_b")}) == 3
    assert package_of("a-b").isidentifier()


def test_a_step_is_stated_with_its_tensors(repository: Path) -> None:
    message = named(repository)["clean"].message
    assert stated_step(message, "clean", "steps") == {
        "name": "clean",
        "python": "step_clean:execute",
        "package": "./steps/step_clean",
        "inputs": {"RAW": "UINT8 4x6x6"},
        "outputs": {"PIXELS": "FP32 4x6x6"},
        "max_batch": 4,
    }
    assert configuration_of(message, "clean") == {
        "name": "clean",
        "max_batch_size": 4,
        "input": [{"name": "RAW", "data_type": "TYPE_UINT8", "dims": [4, 6, 6]}],
        "output": [{"name": "PIXELS", "data_type": "TYPE_FP32", "dims": [4, 6, 6]}],
        "parameters": {"scale": {"string_value": "255"}},
    }
    assert "max_batch_size: 4" in CLEAN
