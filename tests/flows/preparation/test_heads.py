"""Heads of a split, each with its tail, are the model; cuts.json says what crosses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.preparation.heads import export_heads, least_tails_us
from flows.preparation.splitting import SplitModel, extract_stage, split_model
from flows.preparation.splitting.running import (
    open_session,
    random_inputs,
    relative_error,
    run_session,
)
from tests.flows.preparation.splitting import tiny_models
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import ModelProfile, loaded


@pytest.fixture
def split(tmp_path: Path) -> SplitModel:
    path = tiny_models.two_ended(tmp_path / "m.onnx")  # tensors that go round, two outputs
    return split_model(path, name="m", blocks=4, out=tmp_path / "models")


def test_every_head_with_its_tail_is_the_model(split: SplitModel, tmp_path: Path) -> None:
    folder = tmp_path / "some" / "heads"
    tails_us = list(range(40, 0, -10))
    assert export_heads(split, folder, tails_us) < 1e-5
    cuts: list[dict[str, Any]] = json.loads((folder / "cuts.json").read_text())
    assert [cut["block"] for cut in cuts] == [0, 1, 2, 3, 4]
    assert [cut["tail_us"] for cut in cuts] == [*tails_us, 0]
    assert [cut["head_us"] for cut in cuts] == [0, None, None, None, None]
    assert {(cut["split"], cut["model"]) for cut in cuts} == {(split.key, "m")}
    feed = random_inputs(split.inputs, 2, np.random.default_rng(1))
    expected = run_session(open_session(split.model_path, "m"), feed)
    for cut in cuts[1:]:
        crossing = feed | run_session(open_session(folder / cut["file"], "head"), feed)
        names = {spec["name"] for spec in cut["tensors"]}
        if cut["block"] == 4:
            assert cut["bytes_per_sample"] == 0
            assert names == expected.keys()
            got = crossing
        else:
            sent = {name: crossing[name] for name in names}
            assert cut["bytes_per_sample"] * 2 == sum(array.nbytes for array in sent.values())
            got = sent | run_session(
                open_session(extract_stage(split, cut["block"], 4), "tail"), sent
            )
        assert max(relative_error(got[name], expected[name]) for name in expected) < 1e-5


def test_a_folder_that_cannot_be_written_is_named(split: SplitModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/heads: cannot be written: Not a directory"):
        export_heads(split, tmp_path / "file" / "heads")


def test_an_export_that_is_cut_off_leaves_no_cuts_of_an_earlier_one(
    split: SplitModel, tmp_path: Path
) -> None:
    folder = tmp_path / "heads"
    export_heads(split, folder)
    last = max(folder.glob("*.onnx"))
    last.unlink()
    last.mkdir()  # cannot be written
    with pytest.raises(InputError, match="cannot be written"):
        export_heads(split, folder)
    assert not (folder / "cuts.json").exists()


def test_tails_are_the_least_that_were_measured() -> None:
    slow, fast = np.array([[9, 9], [5, 6], [1, 1]]), np.array([[2, 3], [3, 3], [4, 9]])
    tables = loaded({("L4", 1): slow, ("A100", 1): fast})
    profile = ModelProfile(name="m", boundary_bytes=(1, 1), tables=tables)
    assert least_tails_us(profile) == [9, 6, 1]
