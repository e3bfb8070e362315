import json
from pathlib import Path

import pytest

from tests.triton_backend.serving.one_name.versioned_plans import NAME, version_name, versioned_plan
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.stage_tensors import answering, endpoints
from triton_backend.serve_folder.repository import (
    end_versions,
    generation_of_version,
    render_fronts,
    render_repository,
)
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serve_folder.versions import (
    mark_changed,
    model_of_process,
    process_file,
    versions_in,
)


def newest_ns(folder: Path) -> int:
    """The newest instant at which a folder or something in it changed."""
    return max(one.stat().st_mtime_ns for one in (folder, *folder.rglob("*")))


def test_versions_that_are_there_stay_untouched_while_others_come_and_go(tmp_path: Path) -> None:
    """Else Triton would start their processes again with the next load."""
    render_repository(tmp_path, versioned_plan((2, 10)), ServeOptions())
    place = tmp_path / "repository" / NAME
    config = (place / "config.pbtxt").read_text()
    assert versions_in(place) == [2, 10]
    assert "version_policy { all { } }" in config
    before_ns = newest_ns(place / "2")
    render_fronts(tmp_path, versioned_plan((2, 11)), 7)
    end_versions(tmp_path, NAME, (2, 11))
    assert versions_in(place) == [2, 11]
    assert newest_ns(place / "2") == before_ns
    assert (place / "config.pbtxt").read_text() == config
    mark_changed(place, 2)
    assert newest_ns(place / "2") > before_ns


def test_a_process_of_a_version_is_known_by_its_files() -> None:
    assert model_of_process(process_file("net", 12)) == ("net", 12)
    assert model_of_process("net@3x48x640") == ("net@3x48x640", None)


def test_a_version_begins_with_the_plan_in_force_or_the_newest_that_has_it(tmp_path: Path) -> None:
    settings = render_repository(tmp_path, versioned_plan((1, 2)), ServeOptions())
    place = tmp_path / "generations" / "2"
    place.mkdir()
    (place / "plan.json").write_text(json.dumps(versioned_plan((2, 3), "next").to_dict()))
    (tmp_path / "state.json").write_text(json.dumps({"generation": 1}))
    (tmp_path / "generations" / "3").mkdir()  # being written
    found = {v: generation_of_version(settings, NAME, v) for v in (1, 2, 3)}
    assert found == {1: 1, 2: 1, 3: 2}
    with pytest.raises(InputError, match="model 'net', version 4: no plan has it"):
        generation_of_version(settings, NAME, 4)


def test_one_model_answers_for_each_version() -> None:
    plan = versioned_plan((1, 3))
    assert {*endpoints(plan)} == {NAME}
    names = {v: [model.name for model in answering(plan, NAME, v)] for v in (1, 2, 3)}
    assert names == {1: [version_name(1)], 2: [], 3: [version_name(3)]}
