"""A gateway called by hand, for tests of its parts."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import HeldGateway, serving
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.settings import ServeOptions


@pytest.fixture
def gateway(tmp_path: Path) -> HeldGateway:
    """It serves two stages: one vGPU FAST, then two SLOW ones; all workers are up."""
    return serving(deploy(tmp_path, plan(two_stage()), ServeOptions()))
