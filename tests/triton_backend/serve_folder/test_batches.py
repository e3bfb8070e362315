"""Sizes of batches are worked out with the plan; who reads them needs no scheduler."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.plans import two_stages
from tests.interpreters import printed_by
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.batches import ModelBatches, plan_batches, read_batches
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment

PROGRAM = """
import sys
from pathlib import Path
from types import SimpleNamespace
sys.modules["triton_python_backend_utils"] = SimpleNamespace(TRITONSERVER_RESPONSE_COMPLETE_FINAL=1)
import triton_backend.serving.server.triton_models
import triton_backend.serving.worker.process
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
deployment = Deployment.read(ServeSettings.read(Path(sys.argv[1])), 1)
print([deployment.segment_slots(vgpu.index) for vgpu in deployment.vgpus])
kernels = ("numba", "jinja2", "triton_backend.scheduler.compiled")
print([name for name in kernels if name in sys.modules])
"""


def test_a_file_says_what_the_policies_say(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage()))
    read = read_batches(tmp_path, 1)
    assert read == deployment.batches == plan_batches(deployment.plan, None)
    assert read["pair"].largest == tuple(p.batch for p in deployment.plan.models[0].pipelines)


def test_late_policies_send_what_the_latency_table_allows() -> None:
    early = two_stages()
    late = replace(early, models=tuple(replace(m, policy="deferred") for m in early.models))
    pipeline = early.models[0].pipelines[0]
    assert plan_batches(early, None)[early.models[0].name] == ModelBatches(
        late=False, largest=(pipeline.batch,), capacities=((0, 0),)
    )
    assert plan_batches(late, None) == plan_batches(early, "deferred")
    assert plan_batches(late, None)[early.models[0].name].late


def test_a_policy_of_the_settings_goes_before_the_plans(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage()), ServeOptions(policy="deferred"))
    assert deployment.batches is None
    assert deployment.binds_late(0)
    assert not deploy(tmp_path / "other", plan(two_stage())).binds_late(0)


def test_a_generation_without_the_file_is_named(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage()))
    (tmp_path / "generations" / "1" / "batches.json").write_text("[]")
    with pytest.raises(InputError, match=r"batches\.json: not the sizes of batches"):
        Deployment.read(deployment.settings, 1)


@pytest.mark.slow
def test_fronts_nodes_and_workers_load_no_kernels_and_no_templates(tmp_path: Path) -> None:
    """A change of plan starts many of them beside those that serve."""
    deployment = deploy(tmp_path, plan(two_stage()))
    slots, loaded = printed_by(PROGRAM, str(tmp_path / "settings.json"), compiled=True).splitlines()
    assert slots == str([deployment.segment_slots(v.index) for v in deployment.vgpus])
    assert loaded == "[]"
