"""Models as packages ship them, from the file to answers behind a real Triton, in one command."""

import json
import sys
from pathlib import Path

import pytest

from tests.flows.deployments.test_quickstart import Project
from tests.flows.preparation.splitting.test_corpus import SERVED, model_file

pytestmark = pytest.mark.slow
# Few latencies to measure, of models that are hardly slowed down.
SMALL = """
from flows.cli.main import main
from flows.preparation.profiling.measure import MeasureLimits
from flows.quickstart import example_project as small
small.BLOCKS, small.MAX_BATCH, small.FAST_STRETCH, small.SLOW_STRETCH = 3, 2, 1.0, 2.0
small.LIMITS = MeasureLimits(warm_up=1, min_runs=2, max_runs=2)
main()
"""


@pytest.mark.parametrize(
    ("names", "shapes"),
    [
        (("detection", "notes"), ("x=3x64x96",)),
        (("recognition", "angle", "file type", "yolo"), ("x=3x48x96", "images=3x64x96")),
    ],
)
def test_models_are_served_as_their_packages_ship_them(
    tmp_path: Path, prefect_url: str, names: tuple[str, ...], shapes: tuple[str, ...]
) -> None:
    """Every answer is compared with the file's own in ONNX Runtime."""
    project = Project(tmp_path)
    files = [model_file(*SERVED[name][:2], tmp_path) for name in names]
    asked = [f"--model={file}" for file in files]
    asked += [f"--input-shape={shape}" for shape in shapes]
    asked += ["--slo-ms=2000", "--duration=3", "--load-factor=0.05", "--attainment-target=0"]
    done = project.run(
        *("quickstart", "--json", *asked, *project.port_options()),
        poolpipe=(sys.executable, "-c", SMALL),
        prefect_url=prefect_url,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for rows in (found["models"], found["http"]):
        assert len(rows) == len(names)
        for row in rows.values():
            assert row["failed"] == 0
            assert row["checked"]["responses"] == row["served"] + row["late"]
            assert row["checked"]["wrong"] == 0
    assert all(row["checked"]["responses"] > 0 for row in found["models"].values())
