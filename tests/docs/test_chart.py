"""The Helm chart: rendered by Helm's own library, and valid for what it is written for."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import EXAMPLES
from tests.docs.test_examples import KUBERNETES, documents
from tests.flows.reporting.test_alerts import RULES
from tests.kubernetes.objects import check_object
from tests.wheels import CACHE, Wheel, wheel_file

pytestmark = pytest.mark.slow
CHART = EXAMPLES / "chart"
HELM = Wheel(  # Helm 4.2's library
    package="helm-python-sdk",
    version="0.2.2",
    sha256="28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578",
)
# A process of its own: the library starts Go's runtime, which stays.
RENDER = """
import json, sys
import helm_python as helm

chart, values = sys.argv[1], json.loads(sys.argv[2])
report = helm.lint(chart, values, strict=True)
try:
    with helm.Chart.load(chart) as loaded:
        loaded.validate_schema(values)
        files = loaded.render(values, name="release", namespace="123")
except helm.HelmError as error:
    sys.exit(str(error))
print(json.dumps({"lint": report, "files": files}))
"""
NODES = [
    {"gpuClass": "L4", "gpusPerNode": 4, "most": 8},
    {"gpuClass": "A100_80", "labelValue": "a100", "gpusPerNode": 8, "least": 2, "most": 2},
]


@pytest.fixture(scope="module")
def helm() -> Path:
    """A folder to import Helm's library from; two of its three equal files are left out."""
    folder = CACHE / f"{HELM.package}-{HELM.version}"
    if not folder.is_dir():
        with zipfile.ZipFile(wheel_file(HELM)) as archive:
            names = [name for name in archive.namelist() if not name.endswith((".so", ".so.0"))]
            scratch = folder.with_name(f"{folder.name}-{os.getpid()}")
            archive.extractall(scratch, names)
        scratch.rename(folder)
    return folder


def helm_render(helm: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Lint and render the chart with values in place of its own."""
    (library,) = (helm / "helm_python" / "lib").iterdir()
    return subprocess.run(
        [sys.executable, "-c", RENDER, CHART, json.dumps(values)],
        env={"PYTHONPATH": str(helm), "HELM_C_LIB": str(library), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


def objects(helm: Path, **values: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects of the chart by kind and name, each checked against the fields of its kind."""
    done = helm_render(helm, values)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [m for m in answer["lint"]["messages"] if m["severity"] > 1] == []
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for text in answer["files"].values():
        for item in filter(None, yaml.safe_load_all(text)):
            check_object(item, KUBERNETES)
            assert item["metadata"]["namespace"] == "123"  # no number
            found[item["kind"], item["metadata"]["name"]] = item
    return found


def test_the_chart_has_what_stays_when_the_plan_changes(helm: Path) -> None:
    found = objects(helm)
    assert set(found) == {
        ("Secret", "poolpipe-token"),
        ("PodMonitor", "poolpipe"),
        ("PrometheusRule", "poolpipe"),
        ("ConfigMap", "poolpipe-dashboard"),
    }
    rules = found["PrometheusRule", "poolpipe"]["spec"]["groups"]
    assert [rule for group in rules for rule in group["rules"]] == RULES
    dashboard = found["ConfigMap", "poolpipe-dashboard"]["data"]["poolpipe.json"]
    assert json.loads(dashboard)["uid"] == "poolpipe"
    off = {"enabled": False}
    assert not objects(helm, token={"create": False}, podMonitor=off, rules=off, dashboard=off)


def test_a_name_that_yaml_would_read_as_a_truth_value_is_a_name(helm: Path) -> None:
    found = objects(helm, name="on")
    rules = found["PrometheusRule", "on"]["metadata"]
    assert rules["labels"] == {"app.kubernetes.io/part-of": "on"}


def test_an_operator_that_watches_labelled_objects_alone_finds_them(helm: Path) -> None:
    found = objects(helm, monitorLabels={"release": "monitoring"})
    for kind in ("PodMonitor", "PrometheusRule"):
        labels = found[kind, "poolpipe"]["metadata"]["labels"]
        assert labels == {"app.kubernetes.io/part-of": "poolpipe", "release": "monitoring"}


def test_nodes_follow_the_advised_gauge_by_either_autoscaler(helm: Path) -> None:
    by_keda = objects(helm, nodes=NODES)
    by_hpa = objects(helm, nodes=NODES, autoscaler="hpa")
    deployment, scaled = documents("keda.yaml")
    (autoscaler,) = documents("hpa.yaml")
    name = deployment["metadata"]["name"]
    assert by_keda["ScaledObject", name]["spec"] == scaled["spec"]
    assert by_hpa["HorizontalPodAutoscaler", name]["spec"] == autoscaler["spec"]
    pods = by_keda["Deployment", name]["spec"]["template"]["spec"]
    assert pods == deployment["spec"]["template"]["spec"]
    other = by_hpa["Deployment", "poolpipe-a100-80-nodes"]["spec"]["template"]["spec"]
    assert other["nodeSelector"] == {"poolpipe/gpu-class": "a100"}
    limits = by_hpa["HorizontalPodAutoscaler", "poolpipe-a100-80-nodes"]["spec"]
    assert (limits["minReplicas"], limits["maxReplicas"]) == (2, 2)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"nodez": []}, "nodez"),
        ({"name": "Pool Pipe"}, "/name"),
        ({"autoscaler": "none"}, "/autoscaler"),
        ({"monitorLabels": {"release": 1}}, "/monitorLabels/release"),
        ({"nodes": [{"gpuClass": 'L4"}', "gpusPerNode": 4, "most": 8}]}, "/nodes/0/gpuClass"),
        ({"nodes": [{"gpuClass": "L4", "most": 8}]}, "gpusPerNode"),
        ({"nodes": [NODES[0] | {"least": 9}]}, "nodes of L4: least 9 is more than most 8"),
    ],
)
def test_wrong_values_are_named(helm: Path, values: dict[str, Any], told: str) -> None:
    done = helm_render(helm, values)
    assert done.returncode == 1
    assert told in done.stderr
