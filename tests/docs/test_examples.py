"""Every file of `docs/examples` is used as what it is written for; tutorials run some of them."""

import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prefect.events.schemas.deployment_triggers import DeploymentEventTrigger

from flows.files import read_cluster, read_workload
from flows.operations.replanning import conditions
from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.preparation.profiling.csv_tables import read_tables
from flows.preparation.steps.given import read_steps
from scripts.reference.forms import schemas
from tests.docs.pages import DOCS, EXAMPLES, pages
from tests.kubernetes.objects import check_object
from triton_backend.serving.server.metrics import METRICS

KUBERNETES = "1.33"
EVENTS = {value for value in vars(conditions).values() if str(value).startswith("poolpipe.")}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


@pytest.mark.parametrize("name", ["cluster", "gpus"])
def test_clusters_are_read_and_fit_the_schema(name: str) -> None:
    assert read_cluster(EXAMPLES / f"{name}.yaml").nodes
    jsonschema.validate(*documents(f"{name}.yaml"), schemas()["cluster"])


@pytest.mark.parametrize("name", ["workload", "application", "entries"])
def test_workloads_are_read_and_fit_the_schema(name: str) -> None:
    read_workload(EXAMPLES / f"{name}.yaml")
    jsonschema.validate(*documents(f"{name}.yaml"), schemas()["workload"])


@pytest.mark.long
@pytest.mark.parametrize(("name", "objective"), [("application", "cost"), ("entries", "share")])
def test_workloads_are_planned_with_the_example_tables(name: str, objective: str) -> None:
    profiles, warnings = read_tables(EXAMPLES / "profiles")
    cluster, workload = (
        read_cluster(EXAMPLES / "gpus.yaml"),
        read_workload(EXAMPLES / f"{name}.yaml"),
    )
    plan = make_plan(profiles, cluster, workload, PlanOptions(objective=objective))
    assert (warnings, verify_plan(plan, profiles)) == ([], [])
    jsonschema.validate(json.loads(json.dumps(plan.to_dict())), schemas()["plan"])


def test_the_trigger_is_one_that_prefect_takes_on_events_that_are_emitted() -> None:
    (given,) = documents("prefect-trigger.yaml")
    (trigger,) = map(DeploymentEventTrigger.model_validate, given["triggers"])
    assert trigger.expect <= EVENTS


def test_objects_of_kubernetes_are_valid() -> None:
    deployment, scaled = documents("keda.yaml")
    (autoscaler,) = documents("hpa.yaml")
    for item in (deployment, scaled, autoscaler):
        check_object(item, KUBERNETES)
    target = {"name": deployment["metadata"]["name"]}
    assert scaled["spec"]["scaleTargetRef"] == target
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == target["name"]


def test_autoscalers_ask_for_a_gauge_that_is_published() -> None:
    labels = METRICS["poolpipe_advised_gpus"].labels
    query = documents("keda.yaml")[1]["spec"]["triggers"][0]["metadata"]["query"]
    assert query == 'sum(poolpipe_advised_gpus{gpu_class="L4"})'
    metric = documents("hpa.yaml")[0]["spec"]["metrics"][0]["external"]["metric"]
    assert metric["name"] == "poolpipe_advised_gpus"
    assert set(metric["selector"]["matchLabels"]) <= set(labels)
    (rule,) = documents("prometheus-adapter.yaml")[0]["externalRules"]
    assert rule["seriesQuery"] == f'{{__name__="{metric["name"]}"}}'
    assert rule["resources"] == {"namespaced": False}  # else that of the autoscaler is asked for


class _Endpoint(BaseHTTPRequestHandler):
    """Notes a request and answers it."""

    asked: dict[str, Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked = {"path": self.path} | json.loads(body)
        answer = b'{"outputs": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.mark.slow
def test_the_client_for_curl_sends_a_request_with_its_deadline() -> None:
    with HTTPServer(("127.0.0.1", 0), _Endpoint) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = subprocess.run(
            [EXAMPLES / "client.sh", "net", "image", "1,2,3", url, "200000"],
            capture_output=True,
            text=True,
            check=False,
        )
        thread.join()
    assert (done.returncode, done.stdout) == (0, '{"outputs": []}'), done.stderr
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 2, 3], "data": [0] * 6}
    assert _Endpoint.asked == {
        "path": "/v2/models/net/infer",
        "parameters": {"timeout": 200_000},
        "inputs": [tensor],
    }


FRAGMENTS = [
    (path.name, block)
    for path in pages()
    for block in re.findall(r"^```yaml\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("page", "block"), [one for one in FRAGMENTS if "steps:" in one[1]])
def test_fragments_with_steps_on_a_page_are_read(tmp_path: Path, page: str, block: str) -> None:
    document = yaml.safe_load(block)
    document.setdefault("models", [{"name": "net", "slo_ms": 100}])
    (tmp_path / "workload.yaml").write_text(yaml.safe_dump(document))
    named = [step["name"] for step in document["steps"]]
    assert list(read_steps(tmp_path / "workload.yaml")) == named, page
    jsonschema.validate(document, schemas()["workload"])


@pytest.mark.parametrize(("page", "block"), [one for one in FRAGMENTS if "sizes:" in one[1]])
def test_fragments_with_sizes_on_a_page_are_read(tmp_path: Path, page: str, block: str) -> None:
    document = yaml.safe_load(block)
    (tmp_path / "workload.yaml").write_text(yaml.safe_dump(document))
    asked = [model for kind in ("models", "applications") for model in document.get(kind, ())]
    listed = [*asked, *(module for one in asked for module in one.get("modules", ()))]
    sizes = sum(len(one["sizes"]) for one in listed if "sizes" in one)
    found = read_workload(tmp_path / "workload.yaml")
    modules = [module for one in found.applications for module in one.modules]
    several = [*found.models, *modules]
    assert sum(one.size_of is not None for one in several) == sizes, page
    jsonschema.validate(document, schemas()["workload"])


@pytest.mark.parametrize(("page", "block"), [one for one in FRAGMENTS if "variants:" in one[1]])
def test_fragments_with_variants_on_a_page_are_read(tmp_path: Path, page: str, block: str) -> None:
    document = yaml.safe_load(block)
    (tmp_path / "workload.yaml").write_text(yaml.safe_dump(document))
    variants = sum(1 + len(model["variants"]) for model in document["models"])
    assert len(read_workload(tmp_path / "workload.yaml").models) == variants, page
    jsonschema.validate(document, schemas()["workload"])


@pytest.mark.parametrize(("page", "block"), [one for one in FRAGMENTS if "versions:" in one[1]])
def test_fragments_with_versions_on_a_page_are_read(tmp_path: Path, page: str, block: str) -> None:
    document = yaml.safe_load(block)
    (tmp_path / "workload.yaml").write_text(yaml.safe_dump(document))
    versions = {model["name"]: len(model["versions"]) for model in document["models"]}
    read = read_workload(tmp_path / "workload.yaml").versions
    assert {name: len(found) for name, found in read.items()} == versions, page
    jsonschema.validate(document, schemas()["workload"])


OF_WORKLOADS = ("steps:", "sizes:", "variants:", "versions:")


@pytest.mark.parametrize(
    ("page", "block"),
    [one for one in FRAGMENTS if not any(field in one[1] for field in OF_WORKLOADS)],
)
def test_fragments_of_a_cluster_on_a_page_are_read(tmp_path: Path, page: str, block: str) -> None:
    document = yaml.safe_load(block)
    assert list(document) == ["gpu_classes"], page
    (name,) = document["gpu_classes"]
    document["nodes"] = [{"count": 1, "gpu_class": name, "gpus": 1, "nic_gbps": 10}]
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(document))
    assert read_cluster(tmp_path / "cluster.yaml").gpu_class(name).shares
    jsonschema.validate(document, schemas()["cluster"])


def test_every_example_is_shown_on_a_page() -> None:
    text = "".join(path.read_text() for path in pages())
    files = [path for path in EXAMPLES.iterdir() if path.is_file() and path.suffix != ".md"]
    assert [path.name for path in files if f"{path.name}\n" not in text] == []
    assert (DOCS / "examples" / "profiles" / "block_latency_us.csv").is_file()
