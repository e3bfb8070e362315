"""torchvision's architectures by both of PyTorch's exporters: split, checked, planned, answered.

`torchvision.zip` has the graphs without weights, as `scripts/export_torchvision.py` writes them.
"""

import zipfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.preparation.splitting import SplitModel, extract_stages, split_model
from flows.preparation.splitting.running import open_session, relative_error, run_session
from tests.flows.planning.small import cluster, workload
from tests.flows.preparation.splitting.test_corpus import MAX_ERROR, one_by_one
from tests.flows.preparation.splitting.weightless import with_weights
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.contract.workload import ModelDemand

pytestmark = pytest.mark.slow
ARCHIVE = Path(__file__).with_name("torchvision.zip")
EXPORTS = zipfile.ZipFile(ARCHIVE).namelist()
TEXT = "text_encoder"  # of BERT's kind
BLOCKS, MAX_BATCH = 4, 2


def exported(name: str, folder: Path) -> Path:
    """One of the exports, with weights drawn from a seed."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        model = with_weights(onnx.ModelProto.FromString(archive.read(name)))
    path = folder / name
    onnx.save(model, path)
    return path


def planned(split: SplitModel) -> Plan:
    """A plan with two stages where two are better, of the blocks' estimated times."""
    batches = np.array([1.0, 1.5])
    fast = np.outer(split.block_times_us, batches)
    profile = ModelProfile(
        name=split.name,
        tables=loaded({("fast", 1): fast, ("fast", 2): 1.8 * fast, ("slow", 1): 2.0 * fast}),
        boundary_bytes=tuple(map(total_bytes_per_sample, split.boundaries)),
        inputs=split.inputs,
        outputs=split.outputs,
        boundaries=split.boundaries,
    )
    slo_us = round(4 * sum(split.block_times_us))
    asked = workload(ModelDemand(name=split.name, slo_us=slo_us, batch_building_rate_rps=1e9))
    plan = make_plan({split.name: profile}, cluster(), asked, PlanOptions(max_partitions=2))
    assert verify_plan(plan, {split.name: profile}) == []
    return plan


def test_both_exporters_wrote_a_dozen_architectures() -> None:
    architectures = [name.partition("-")[0] for name in EXPORTS]
    assert Counter(architectures) == dict.fromkeys(architectures, 2)
    assert len(set(architectures) - {TEXT}) == 12


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_split_planned_and_answers_as_the_file(tmp_path: Path, name: str) -> None:
    path = exported(name, tmp_path)
    split = split_model(path, name="m", out=tmp_path / "models", blocks=BLOCKS, max_batch=MAX_BATCH)
    assert split.blocks >= 3
    plan = planned(split)
    pipelines = [pipeline for model in plan.models for pipeline in model.pipelines]
    ranges = {tuple(stage.blocks for stage in pipeline.stages) for pipeline in pipelines}
    ranges.add(tuple(pairwise(range(split.blocks + 1))))
    feed = split.model_inputs().draw(2, np.random.default_rng(1))
    expected = list(one_by_one(path, feed))
    for stages in ranges:
        known = dict(feed)
        for stage in extract_stages(split, list(stages)):
            known |= run_session(open_session(stage, "stage"), known)
        for i, answers in enumerate(expected):
            for output, array in answers.items():
                assert relative_error(known[output][i : i + 1], array) <= MAX_ERROR
