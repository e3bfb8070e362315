"""Models of another repository: which plans they go with, and the links to their files."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.beside import BESIDE_NAME, Beside, link_model
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeOptions, ServeSettings


def test_a_plan_with_one_of_their_names_is_refused(tmp_path: Path) -> None:
    beside = Beside(folders={"chat": tmp_path})
    beside.check("plan p", ["net", "other"])
    for served, others, reason in (
        (["net", "chat"], [], rf"plan p, model 'chat': is the name .* too \({tmp_path}\)"),
        (["net"], ["chat"], "plan p, model 'chat': is the name of a model beside the plan"),
    ):
        with pytest.raises(InputError, match=reason):
            beside.check("plan p", served, others)


def test_they_stand_in_the_settings_of_the_gateway_alone(tmp_path: Path) -> None:
    beside = Beside(folders={"chat": tmp_path / "chat"}, completes=True)
    served = plan(two_stage())
    name = served.models[0].name
    options = ServeOptions(beside=Beside(folders=beside.folders, completes=True))
    settings = render_repository(tmp_path / "serve", served, options)
    assert ServeSettings.read(tmp_path / "serve" / SETTINGS_NAME) == settings
    assert settings.beside == options.beside
    assert settings.for_host(tmp_path / "elsewhere", None).beside is None
    taken = Beside(folders={name: tmp_path})
    with pytest.raises(InputError, match="is the name of a model beside the plan too"):
        render_repository(tmp_path / "other", served, ServeOptions(beside=taken))
    assert not (tmp_path / "other").exists()


def test_two_gateways_would_load_them_twice() -> None:
    with pytest.raises(InputError, match="--gateways 2: does not go with --beside"):
        ServeOptions(gateways=2, beside=Beside(folders={}))


def test_every_file_has_a_link_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    model = tmp_path / "models" / "chat"
    (model / "1" / "words").mkdir(parents=True)
    (model / "1" / "__pycache__").mkdir()
    (model / "1" / "round").symlink_to(model, target_is_directory=True)
    for name in ("config.pbtxt", "1/model.py", "1/words/list.txt", "1/__pycache__/model.pyc"):
        (model / name).write_text(name)
    links = tmp_path / BESIDE_NAME / "chat"
    for _ in range(2):  # they are made again with every load
        link_model(tmp_path, "chat", model)
        assert sorted(str(p.relative_to(links)) for p in links.rglob("*")) == [
            "1",
            "1/model.py",
            "1/words",
            "1/words/list.txt",
            "config.pbtxt",
        ]
        assert (links / "1" / "model.py").read_text() == "1/model.py"
        assert not (links / "1").is_symlink()
        (links / "1" / "__pycache__").mkdir()
    (model / "1" / "model.py").unlink()
    link_model(tmp_path, "chat", model)
    assert not (links / "1" / "model.py").is_symlink()
