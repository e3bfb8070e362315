"""The models of a repository that go on beside a plan, and those that cannot."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.release.beside import models_beside, what_goes_on
from tests.flows.preparation.triton_repository.repositories import (
    PIPELINE,
    digest,
    make_others_run,
    write_repository,
)
from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan


def planned(*names: str) -> Plan:
    return plan(*(two_stage().replaced(name=name) for name in names))


IMPORTED = planned("classify", "classify@1", "pipeline", "plain", "sharpen")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = write_repository(tmp_path / "models")
    make_others_run(folder)
    return folder


def test_models_that_are_not_planned_go_on_beside(repository: Path) -> None:
    before = digest(repository)
    chosen = models_beside([repository], IMPORTED, {"python"})
    assert chosen.beside.folders == {n: repository.resolve() / n for n in ("chat", "tokens")}
    assert (chosen.beside.completes, chosen.notes) == (False, ())
    assert digest(repository) == before


def test_single_models_may_be_chosen(repository: Path) -> None:
    chosen = models_beside([repository / "tokens"], planned("net"), {"python"})
    assert [*chosen.beside.folders] == ["tokens"]
    both = models_beside([repository / "tokens", repository / "chat"], planned("net"))
    assert [*both.beside.folders] == ["tokens", "chat"]


def test_ensembles_come_after_what_they_call(repository: Path) -> None:
    chosen = models_beside([repository], planned("plain"))
    assert [*chosen.beside.folders] == ["chat", "classify", "sharpen", "tokens", "pipeline"]
    assert chosen.beside.completes  # Triton's onnxruntime may complete a configuration


def test_an_ensemble_that_calls_planned_models_is_refused(repository: Path) -> None:
    alone = [repository / "pipeline"]
    with pytest.raises(InputError, match="calls 'sharpen' of the plan, but Triton would load that"):
        models_beside(alone, planned("sharpen", "classify"))
    with pytest.raises(InputError, match="calls 'sharpen', which neither the plan nor --beside"):
        models_beside(alone, planned("plain"))


def test_an_ensemble_calls_versions_beside_the_plan_by_their_number(repository: Path) -> None:
    text = PIPELINE.replace("model_version: -1", "model_version: 1")
    (repository / "pipeline" / "config.pbtxt").write_text(text)
    assert "pipeline" in models_beside([repository], planned("plain")).beside.folders


def test_a_version_that_the_plan_leaves_out_is_said(repository: Path) -> None:
    without = planned("classify", "pipeline", "plain", "sharpen")
    chosen = models_beside([repository], without)
    assert chosen.notes == ("classify@1 is not served: the plan has 'classify' only",)


def test_configurations_that_triton_completes_are_found(repository: Path) -> None:
    file = repository / "tokens" / "1" / "model.py"
    file.write_text(file.read_text() + "    @staticmethod\n    def auto_complete_config(c): ...\n")
    assert models_beside([repository], IMPORTED).beside.completes


def _reserved(folder: Path) -> None:
    (folder / "tokens").rename(folder / "poolpipe_control")


def _misnamed(folder: Path) -> None:
    (folder / "tokens" / "config.pbtxt").write_text('name: "others" backend: "python"')


def _broken(folder: Path) -> None:
    (folder / "tokens" / "config.pbtxt").write_text("input {")


def _of_another_backend(folder: Path) -> None:
    (folder / "chat" / "config.pbtxt").write_text('backend: "vllm"')


def _without_files(repository: Path) -> None:
    (repository / "bare" / "1").mkdir(parents=True)


def _nothing(_: Path) -> None:
    return


def test_models_that_can_go_on_are_told_from_one_that_cannot(repository: Path) -> None:
    assert what_goes_on(repository, IMPORTED, {"python"}) == ((repository,), "")
    _of_another_backend(repository)
    (repository / "notes").mkdir()
    paths, refused = what_goes_on(repository, IMPORTED, {"python"})
    assert paths == (repository / "tokens",)
    assert refused.startswith(f"model 'chat' in {repository}: needs the backend vllm")
    without = planned("classify", "classify@1", "plain", "sharpen")
    paths, refused = what_goes_on(repository, without, {"python"})
    assert paths == (repository / "tokens",)
    assert refused.startswith("ensemble 'pipeline'")


def test_a_folder_goes_on_beside_neighbours_that_cannot_be_read(repository: Path) -> None:
    _broken(repository)
    assert [*models_beside([repository / "chat"], IMPORTED).beside.folders] == ["chat"]
    paths, refused = what_goes_on(repository, IMPORTED)
    assert paths == (repository / "chat",)
    assert refused.startswith(f"--beside: {repository}/tokens/config.pbtxt, line 1")


@pytest.mark.parametrize(
    ("change", "given", "served", "reason"),
    [
        (_nothing, ["none"], IMPORTED, "none: .*cannot be read: No such file"),
        (_nothing, ["models/tokens/1"], IMPORTED, "holds no model: no folder with config.pbtxt"),
        (_nothing, ["models/plain"], IMPORTED, "model 'plain': is also the name of a model of"),
        (_nothing, ["models"], planned("chat"), "model 'chat': is also the name of a model of the"),
        (_nothing, ["models", "models/chat"], IMPORTED, None),
        (_reserved, ["models"], IMPORTED, "cannot be served: 'poolpipe_' is first"),
        (_misnamed, ["models"], IMPORTED, "tokens: its configuration names it 'others'"),
        (_broken, ["models"], IMPORTED, "config.pbtxt, line 1"),
        (
            _without_files,
            ["models"],
            IMPORTED,
            "model 'bare' in .*models: its configuration names no backend, and no version holds",
        ),
        (
            _of_another_backend,
            ["models"],
            IMPORTED,
            "model 'chat' in .*models: needs the backend vllm, this server has python alone",
        ),
    ],
)
def test_what_cannot_go_on_is_refused_in_one_line(
    repository: Path,
    change: Callable[[Path], None],
    given: list[str],
    served: Plan,
    reason: str | None,
) -> None:
    change(repository)
    places = [repository.parent / place for place in given]
    if reason is None:  # the same folder twice is no other model
        assert [*models_beside(places, served).beside.folders] == ["chat", "tokens"]
        return
    with pytest.raises(InputError, match=reason) as caught:
        models_beside(places, served, {"python"})
    assert "\n" not in str(caught.value)


def test_a_repository_that_is_planned_as_a_whole_is_refused(repository: Path) -> None:
    served = planned("chat_", "classify", "classify@1", "pipeline", "plain", "sharpen")
    for name in ("chat", "tokens"):
        (repository / name).rename(repository.parent / name)
    with pytest.raises(InputError, match="every model there is served by the plan"):
        models_beside([repository], served)
