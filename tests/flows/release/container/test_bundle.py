"""The bundle for stock Triton containers.

Parsed back by Triton's own and Kubernetes' own schemas.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as untyped

from flows.release.container import bundle as bundle_module
from flows.release.container.bundle import Bundle, ContainerOptions, render_container
from flows.release.container.options import label
from tests.fakes.plans import HandModel, hand_plan, hand_stage
from tests.fakes.slices import slice_plan
from tests.fakes.unequal_shares import example
from tests.kubernetes.objects import check_object, pod_of_predictor
from tests.triton_backend.serving.one_name.sized_plans import NAME, sized_plan
from tests.triton_backend.serving.served_applications import application, module, with_applications
from tests.triton_backend.serving.small_plans import BATCH, model, plan, stage, tensor, two_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.runtimes.base import Artifact
from triton_backend.serve_folder.beside import Beside
from triton_backend.serve_folder.line_files import MOST_BYTES
from triton_backend.serve_folder.repository import (
    CONTROL_MODEL,
    OFFLOAD_MODEL,
    STANDBY_MODEL,
    node_model,
)
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings

model_config_pb2: Any = untyped  # made by protobuf, without types
KUBERNETES = ("1.30", "1.34")
WITH_CLAIMS = ("1.34", "1.37")
ENGINE = b"an engine, for all that rendering knows"


def write_engine(root: Path, name: str, ends: tuple[str, str], **options: Any) -> str:
    """An artifact as the TensorRT builder leaves it."""
    (root / name).mkdir(parents=True)
    (root / name / "engine.plan").write_bytes(ENGINE)
    Artifact(
        runtime="tensorrt",
        device="cuda",
        gpu_class="FAST",
        inputs=(tensor(ends[0], 3), tensor("passed", 7, dtype="FP16")),
        outputs=(tensor(ends[1], 3), tensor("count"), tensor("passed", 7, dtype="FP16")),
        max_batch=BATCH,
        files={"engine": "engine.plan"},
        options={
            "library": "tensorrt",
            "library_version": "10.13.2",
            "batches": [1, 2, 4],
            "forwarded": ["passed"],
            "unused": ["passed"],
            **options,
        },
    ).write(root / name)
    return name


def with_engines(root: Path, **options: Any) -> HandModel:
    """Two stages with engines: two GPUs of one node, then two vGPUs on one GPU of each of two."""
    boundary = (tensor("middle", 3),)
    first = stage(
        (0, 1),
        "FAST",
        0,
        vgpus=2,
        boundary=boundary,
        artifact=write_engine(root, "first", ("x", "middle"), **options),
    )
    second = hand_stage(
        (1, 2),
        "SLOW",
        PlacementRun(node=1, gpu=1, slot=0, nodes=2, slots=2),
        (2_000, 3_000, 4_000, 5_000),
        vgpu_divisor=2,
        boundary_bytes_per_sample=4096,
        artifact=write_engine(root, "second", ("middle", "y"), **options),
    )
    return model("engines", (first, second), inputs=(tensor("x", 3),), outputs=(tensor("y", 3),))


def three_nodes(*models: HandModel) -> Plan:
    nodes = [
        NodeGroup(count=1, gpu_class="FAST", gpus=2, nic_gbps=10.0, name="Fast.Group"),
        NodeGroup(count=3, gpu_class="SLOW", gpus=2, nic_gbps=10.0),
    ]
    return hand_plan(*models, nodes=nodes, plan_id="test-plan")


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def served(artifacts: Path) -> Plan:
    return three_nodes(with_engines(artifacts))


@pytest.fixture
def bundle(tmp_path: Path, artifacts: Path, served: Plan) -> Bundle:
    return render_container(
        served, tmp_path / "bundle", ContainerOptions(serve=ServeOptions(artifacts=artifacts))
    )


def config(bundle: Bundle, container: str, name: str) -> Any:
    """A configuration as Triton's protobuf reads it; unknown fields are errors."""
    path = bundle.folder / "nodes" / container / "repository" / name / "config.pbtxt"
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def manifests(bundle: Bundle) -> dict[tuple[str, str], dict[str, Any]]:
    """Kubernetes objects by kind and name."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted((bundle.folder / "kubernetes").glob("*.yaml")):
        if path.name != "kustomization.yaml":
            for item in yaml.safe_load_all(path.read_text()):
                found[item["kind"], item["metadata"]["name"]] = item
    return found


def pod_of(bundle: Bundle, name: str) -> dict[str, Any]:
    return manifests(bundle)["StatefulSet", name]["spec"]["template"]["spec"]


def test_every_configuration_is_read_back_by_tritons_protobuf(bundle: Bundle) -> None:
    assert bundle.containers == (
        "gateway",
        "poolpipe-fast-group-0",
        "poolpipe-slow-0",
        "poolpipe-slow-1",
    )
    found = {
        name: {path.parent.name for path in (bundle.folder / "nodes" / name).rglob("config.pbtxt")}
        for name in bundle.containers
    }
    assert found == {
        "gateway": {"engines", CONTROL_MODEL, STANDBY_MODEL},
        "poolpipe-fast-group-0": {node_model("Fast.Group"), "poolpipe_stage_engines_p0_s0"},
        "poolpipe-slow-0": {node_model("SLOW-0"), "poolpipe_stage_engines_p0_s1"},
        "poolpipe-slow-1": {node_model("SLOW-1"), "poolpipe_stage_engines_p0_s1"},
    }
    for container, names in found.items():
        for name in names:
            read = config(bundle, container, name)
            assert read.name == name
            settings = read.parameters["settings"].string_value
            assert settings in {"", "/var/lib/poolpipe/serve/settings.json"}


def test_an_engine_is_a_tensorrt_model_of_its_own(bundle: Bundle) -> None:
    read = config(bundle, "poolpipe-fast-group-0", "poolpipe_stage_engines_p0_s0")
    assert (read.platform, read.backend, read.max_batch_size) == (
        "tensorrt_plan",
        "tensorrt",
        BATCH,
    )
    fp32 = model_config_pb2.TYPE_FP32
    assert [(i.name, i.data_type, list(i.dims)) for i in read.input] == [("x", fp32, [3])]
    outputs = [(o.name, list(o.dims), o.HasField("reshape")) for o in read.output]
    assert outputs == [("middle", [3], False), ("count", [1], True)]
    (group,) = read.instance_group
    assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    assert (list(group.gpus), list(group.profile)) == ([0, 1], ["0", "1", "2"])
    assert read.parameters["library_version"].string_value == "10.13.2"
    for name in ("poolpipe-slow-0", "poolpipe-slow-1"):
        place = bundle.folder / "nodes" / name / "repository" / "poolpipe_stage_engines_p0_s1"
        assert (place / "1" / "model.plan").read_bytes() == ENGINE
        assert list(config(bundle, name, place.name).instance_group[0].gpus) == [1]
    assert (bundle.folder / "artifacts" / "first" / "engine.json").is_file()


@pytest.mark.long
@pytest.mark.parametrize("tls", ["off", "server", "mutual"])
@pytest.mark.parametrize("metrics", ["127.0.0.1", "0.0.0.0"])
def test_manifests_are_what_kubernetes_takes(
    tmp_path: Path, artifacts: Path, served: Plan, tls: str, metrics: str
) -> None:
    options = ContainerOptions(
        serve=ServeOptions(artifacts=artifacts), tls=tls, metrics_address=metrics
    )
    bundle = render_container(served, tmp_path / "bundle", options)
    items = manifests(bundle)
    for item in items.values():
        for version in KUBERNETES:
            kubernetes_validate.validate(item, version, strict=True)
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "poolpipe"
    listed = yaml.safe_load((bundle.folder / "kubernetes" / "kustomization.yaml").read_text())
    files = {path.name for path in (bundle.folder / "kubernetes").iterdir()}
    assert set(listed["resources"]) == files - {"kustomization.yaml"}
    assert (("NetworkPolicy", "poolpipe-metrics") in items) == (metrics != "127.0.0.1")
    for name in ("poolpipe-gateway", "poolpipe-slow"):
        declared = {port["name"] for port in pod_of(bundle, name)["containers"][0]["ports"]}
        assert ("metrics" in declared) == (metrics != "127.0.0.1")
    ports = {port["name"] for port in items["Service", "poolpipe"]["spec"]["ports"]}
    assert ports == ({"grpc", "http"} if tls == "off" else {"grpc"})


def on_one_node(artifacts: Path) -> Plan:
    """Two stages with engines on two GPUs of one machine."""
    middle = (tensor("middle", 3),)
    first = write_engine(artifacts, "first", ("x", "middle"))
    second = write_engine(artifacts, "second", ("middle", "y"))
    stages = (
        stage((0, 1), "FAST", 0, boundary=middle, artifact=first),
        stage((1, 2), "FAST", 0, gpu=1, artifact=second),
    )
    both = model("engines", stages, inputs=(tensor("x", 3),), outputs=(tensor("y", 3),))
    nodes = [NodeGroup(count=1, gpu_class="FAST", gpus=2, nic_gbps=10.0)]
    return hand_plan(both, nodes=nodes, plan_id="test-plan")


@pytest.mark.long
@pytest.mark.parametrize(("tls", "gpus"), [("off", 2), ("server", 0)])
def test_models_beside_the_plan_are_mounted_into_the_gateway(
    tmp_path: Path, artifacts: Path, served: Plan, tls: str, gpus: int
) -> None:
    models = {name: tmp_path / "models" / name for name in ("chat", "tokens")}
    serve = ServeOptions(artifacts=artifacts, beside=Beside(folders=models))
    options = ContainerOptions(serve=serve, tls=tls, beside_gpus=gpus)
    bundle = render_container(served, tmp_path / "bundle", options)
    inside = {name: Path("/opt/poolpipe/beside") / name for name in models}
    for name in bundle.containers:
        settings = ServeSettings.read(bundle.folder / "nodes" / name / "settings.json")
        found = None if settings.beside is None else settings.beside.folders
        assert found == (inside if name == "gateway" else None)
    for item in manifests(bundle).values():
        for version in KUBERNETES:
            kubernetes_validate.validate(item, version, strict=True)
    pod = pod_of(bundle, "poolpipe-gateway")
    (container,) = pod["containers"]
    mount = {"name": "beside", "mountPath": "/opt/poolpipe/beside", "readOnly": True}
    assert mount in container["volumeMounts"]
    claim = {"claimName": "poolpipe-beside", "readOnly": True}
    assert {"name": "beside", "persistentVolumeClaim": claim} in pod["volumes"]
    limits = container["resources"].get("limits")
    assert limits == ({"nvidia.com/gpu": gpus} if gpus else None)
    whole = yaml.safe_load((bundle.folder / "compose.yaml").read_text())
    chosen = yaml.safe_dump(whole).replace("${POOLPIPE_BESIDE:-./beside}", "./beside")
    assert PyCompose.from_yaml(chosen).to_spec().services is not None  # it puts no values in
    gateway = whole["services"]["gateway"]
    assert "${POOLPIPE_BESIDE:-./beside}:/opt/poolpipe/beside:ro" in gateway["volumes"]
    assert ("mem_limit" in gateway, "deploy" in gateway) == (False, bool(gpus))
    texts = [p.read_text() for p in bundle.folder.rglob("*") if p.suffix in {".yaml", ".sh", ".md"}]
    assert not any(str(tmp_path) in text for text in texts)
    assert 'fail "/opt/poolpipe/beside has no model $model' in "".join(texts)


@pytest.mark.parametrize("tls", ["off", "mutual"])
@pytest.mark.parametrize("metrics", ["127.0.0.1", "0.0.0.0"])
def test_two_gateways_and_their_node_are_one_container(
    tmp_path: Path, artifacts: Path, tls: str, metrics: str
) -> None:
    options = ContainerOptions(
        serve=ServeOptions(artifacts=artifacts, gateways=2), tls=tls, metrics_address=metrics
    )
    bundle = render_container(on_one_node(artifacts), tmp_path / "bundle", options)
    assert bundle.containers == ("gateway",)
    place = bundle.folder / "nodes" / "gateway"
    node = node_model("FAST")
    found = {
        gateway: {
            path.parent.name for path in (place / gateway / "repository").glob("*/config.pbtxt")
        }
        for gateway in (".", "gateway-2")
    }
    engines = {f"poolpipe_stage_engines_p0_s{k}" for k in range(2)}
    assert found["."] == {"engines", CONTROL_MODEL, node, *engines}
    assert found["gateway-2"] == {"engines", STANDBY_MODEL, node}
    for gateway, names in found.items():
        settings = ServeSettings.read(place / gateway / "settings.json")
        assert (settings.gateways, settings.place) == (2, options.serve_folder / gateway)
        assert settings.hosts == {}
        for name in names - engines:
            read = config(bundle, f"gateway/{gateway}", name).parameters["settings"].string_value
            assert Path(read) == settings.path
    items = manifests(bundle)
    for item in items.values():
        for version in KUBERNETES:
            kubernetes_validate.validate(item, version, strict=True)
    assert [name for kind, name in items if kind == "StatefulSet"] == ["poolpipe-gateway"]
    pod = pod_of(bundle, "poolpipe-gateway")
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert pod["nodeSelector"] == {"poolpipe/gpu-class": "FAST"}
    whole = yaml.safe_load((bundle.folder / "compose.yaml").read_text())
    services = whole["services"]
    assert PyCompose.from_yaml(yaml.safe_dump(whole)).to_spec().services
    (device,) = services["gateway"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["0", "1"]
    assert services["gateway"]["environment"]["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert "127.0.0.1:8003:8003" in services["gateway"]["ports"]
    if metrics != "127.0.0.1":
        (rule,) = items["NetworkPolicy", "poolpipe-metrics"]["spec"]["ingress"]
        assert rule["ports"] == [{"protocol": "TCP", "port": 8002, "endPort": 8003}]
    declared = {port["name"]: port["containerPort"] for port in container["ports"]}
    scraped = {name: port for name, port in declared.items() if name.startswith("metrics")}
    assert scraped == ({"metrics": 8002, "metrics-2": 8003} if metrics != "127.0.0.1" else {})


def test_two_gateways_of_a_plan_on_several_machines_are_refused(
    tmp_path: Path, artifacts: Path, served: Plan
) -> None:
    options = ContainerOptions(serve=ServeOptions(artifacts=artifacts, gateways=2))
    with pytest.raises(
        InputError, match=r"--gateways 2: the plan has vGPUs on Fast\.Group, SLOW-0"
    ):
        render_container(served, tmp_path / "bundle", options)


def test_a_manifest_with_a_wrong_field_would_be_noticed(bundle: Bundle) -> None:
    item = manifests(bundle)["StatefulSet", "poolpipe-slow"]
    item["spec"]["template"]["spec"]["nodeSelecter"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="nodeSelecter"):
        kubernetes_validate.validate(item, KUBERNETES[0], strict=True)


@pytest.mark.parametrize("kserve", [False, True])
def test_names_that_yaml_would_read_as_something_else_stay_texts(
    tmp_path: Path, artifacts: Path, served: Plan, *, kserve: bool
) -> None:
    options = ContainerOptions(
        name="on",
        namespace="123",
        image="null",
        kserve=kserve,
        serve=ServeOptions(artifacts=artifacts),
    )
    made = render_container(served, tmp_path / "bundle", options)
    for manifest in manifests(made).values():
        assert manifest["metadata"]["namespace"] == "123"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "on"
    (gpus,) = (name for kind, name in manifests(made) if kind == "StatefulSet" and "fast" in name)
    assert pod_of(made, gpus)["containers"][0]["image"] == "null"


def test_a_node_group_is_placed_on_its_class_with_its_gpus(bundle: Bundle) -> None:
    spec = manifests(bundle)["StatefulSet", "poolpipe-slow"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["replicas"], spec["serviceName"]) == (2, "poolpipe-slow")
    assert pod["nodeSelector"] == {"poolpipe/gpu-class": "SLOW"}
    requested = container["resources"]["requests"]["memory"]
    limits = container["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 2, "memory": f"{2 * int(requested.removesuffix('Gi'))}Gi"}
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert container["args"] == ["$(POD_NAME)"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert (mounts["/dev/shm"], mounts["/run/poolpipe"]) == ("shared-memory", "sockets")
    settings = ServeSettings.read(bundle.folder / "nodes" / "poolpipe-slow-0" / "settings.json")
    assert settings.socket_folder.parent == Path("/run/poolpipe")  # a volume is not its user's
    serve = "/var/lib/poolpipe/serve"
    assert {mounts[f"{serve}/events"], mounts[f"{serve}/logs"]} == {"records"}
    assert volumes[mounts[serve]]["emptyDir"]["medium"] == "Memory"  # the token lies there
    assert "medium" not in volumes["records"]["emptyDir"]
    assert set(mounts.values()) == set(volumes)


def test_pods_ask_for_the_mig_slices_of_their_node(tmp_path: Path) -> None:
    """Nodes that are divided alike are one StatefulSet; the third is divided otherwise."""
    made = render_container(slices_of_cards(), tmp_path / "bundle", ContainerOptions())
    assert made.containers == ("gateway", "poolpipe-g-0", "poolpipe-g-1", "poolpipe-g-cut1-0")
    asked = {
        name: {
            key: value
            for key, value in pod_of(made, name)["containers"][0]["resources"]["limits"].items()
            if key.startswith("nvidia")
        }
        for name in ("poolpipe-g", "poolpipe-g-cut1")
    }
    assert asked == {
        "poolpipe-g": {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-3g.20gb": 2},
        "poolpipe-g-cut1": {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-4g.20gb": 1},
    }
    assert "G-0, GPU 0: nvidia-smi mig -i 0 -cgi 3g.20gb,3g.20gb -C" in made.notes
    for item in manifests(made).values():
        kubernetes_validate.validate(item, KUBERNETES[0], strict=True)
    compose = yaml.safe_load((made.folder / "compose.yaml").read_text())
    devices = compose["services"]["poolpipe-g-0"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    readme = (made.folder / "README.md").read_text()
    assert "0: 3g.20gb 3g.20gb; 1: 1g.5gb" in readme
    assert "strategy must be `mixed`" in readme


def slices_of_cards() -> Plan:
    """Two nodes divided alike, a third otherwise."""
    x = (tensor("x", 3),)
    plan = slice_plan(
        ("3g", [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]),
        ("4g/2", [(2, 0, 0), (2, 0, 1)]),
        ("1g", [(0, 1, 0), (1, 1, 0), (2, 1, 0)]),
        nodes=3,
    )
    return replace(plan, models=tuple(replace(m, inputs=x, outputs=x) for m in plan.models))


def claimed(bundle: Bundle, name: str) -> list[dict[str, Any]]:
    """Requests of the claim that the pods of a group have; they ask for nothing else."""
    pod = pod_of(bundle, name)
    (container,) = pod["containers"]
    assert not any("nvidia.com" in key for key in container["resources"].get("limits", {}))
    (claim,) = pod["resourceClaims"]
    assert container["resources"]["claims"] == [{"name": claim["name"]}]
    template = manifests(bundle)["ResourceClaimTemplate", claim["resourceClaimTemplateName"]]
    return template["spec"]["spec"]["devices"]["requests"]


@pytest.mark.long
def test_pods_claim_their_gpus_and_slices(tmp_path: Path, artifacts: Path, served: Plan) -> None:
    serve = ServeOptions(artifacts=artifacts)
    gpus = render_container(
        served, tmp_path / "gpus", ContainerOptions(serve=serve, gpu_claims=True)
    )
    whole = {"deviceClassName": "gpu.nvidia.com", "count": 2}
    assert claimed(gpus, "poolpipe-slow") == [{"name": "gpu", "exactly": whole}]
    gateway = pod_of(gpus, "poolpipe-gateway")
    assert ("resourceClaims" in gateway, "claims" in gateway["containers"][0]["resources"]) == (
        False,
        False,
    )
    cut = render_container(slices_of_cards(), tmp_path / "cut", ContainerOptions(gpu_claims=True))
    profile = "device.attributes['gpu.nvidia.com'].profile"
    assert claimed(cut, "poolpipe-g") == [
        {
            "name": name,
            "exactly": {
                "deviceClassName": "mig.nvidia.com",
                "count": count,
                "selectors": [{"cel": {"expression": f"{profile} == '{slices}'"}}],
            },
        }
        for name, slices, count in (("mig-1g-5gb", "1g.5gb", 1), ("mig-3g-20gb", "3g.20gb", 2))
    ]
    assert "`mixed`" not in (cut.folder / "README.md").read_text()
    for item in (*manifests(gpus).values(), *manifests(cut).values()):
        for version in WITH_CLAIMS:
            check_object(item, version)


@pytest.mark.long
@pytest.mark.parametrize("gateways", [1, 2])
def test_the_gateways_pod_claims_gpus_of_its_node_or_of_models_beside_the_plan(
    tmp_path: Path, artifacts: Path, gateways: int
) -> None:
    if gateways == 2:
        plan, asked = on_one_node(artifacts), ServeOptions(artifacts=artifacts, gateways=2)
    else:
        beside = Beside(folders={"chat": tmp_path / "chat"})
        plan = three_nodes(with_engines(artifacts))
        asked = ServeOptions(artifacts=artifacts, beside=beside)
    count = 2 if gateways == 2 else 1
    options = ContainerOptions(serve=asked, beside_gpus=2 - count, gpu_claims=True)
    bundle = render_container(plan, tmp_path / "bundle", options)
    whole = {"deviceClassName": "gpu.nvidia.com", "count": count}
    assert claimed(bundle, "poolpipe-gateway") == [{"name": "gpu", "exactly": whole}]
    tolerated = pod_of(bundle, "poolpipe-gateway")["tolerations"]
    assert [one["key"] for one in tolerated] == ["nvidia.com/gpu"]
    for item in manifests(bundle).values():
        check_object(item, WITH_CLAIMS[0])


def test_slices_are_gpus_where_the_device_plugin_knows_one_profile(tmp_path: Path) -> None:
    x = (tensor("x", 3),)
    alike = slice_plan(("3g", [(0, 0, 0), (0, 0, 1)]), ("3g/2", [(0, 1, 0), (0, 1, 1)]))
    alike = replace(alike, models=tuple(replace(m, inputs=x, outputs=x) for m in alike.models))
    options = ContainerOptions(mig_strategy="single")
    made = render_container(alike, tmp_path / "bundle", options)
    limits = pod_of(made, "poolpipe-g")["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 3
    assert "strategy must be `single`" in (made.folder / "README.md").read_text()
    with pytest.raises(InputError, match=r"single: G-0 has slices of several profiles: 1g\.5gb"):
        render_container(slices_of_cards(), tmp_path / "other", options)


@pytest.mark.long
def test_an_option_that_is_refused_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    def render(folder: str, strategy: str) -> None:
        options = ContainerOptions(mig_strategy=strategy)
        render_container(slices_of_cards(), tmp_path / folder, options)

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    render("bundle", "mixed")
    before = content()
    for folder in ("bundle", "fresh"):
        with pytest.raises(InputError, match="single: G-0 has slices of several profiles"):
            render(folder, "single")
    assert content() == before
    assert not (tmp_path / "fresh").exists()


def test_a_rendering_that_is_interrupted_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    write = bundle_module.render_template

    def interrupted_at(name: str) -> Callable[..., str]:
        def render(template: str, **values: object) -> str:
            if template == name:
                raise KeyboardInterrupt
            return write(template, **values)

        return render

    for name in ("container/README.md.j2", "kubernetes/group.yaml.j2"):
        monkeypatch.setattr(bundle_module, "render_template", write)
        render_container(slices_of_cards(), tmp_path / "bundle", ContainerOptions())
        (tmp_path / "bundle" / "own.txt").write_text("own")
        before = content()
        monkeypatch.setattr(bundle_module, "render_template", interrupted_at(name))
        for folder in ("bundle", "fresh"):
            with pytest.raises(KeyboardInterrupt):
                render_container(
                    slices_of_cards(), tmp_path / folder, ContainerOptions(name="other")
                )
        assert content() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_a_bundle_that_was_half_replaced_starts_nothing_and_is_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundle"
    render_container(slices_of_cards(), folder, ContainerOptions())
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if target == folder / "kubernetes":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        render_container(slices_of_cards(), folder, ContainerOptions())
    assert not (folder / "start-node.sh").exists()
    monkeypatch.undo()
    render_container(slices_of_cards(), folder, ContainerOptions())
    fresh = render_container(slices_of_cards(), tmp_path / "fresh", ContainerOptions()).folder
    for one, other in ((folder, fresh), (fresh, folder)):
        assert {p.relative_to(one) for p in one.rglob("*")} == {
            p.relative_to(other) for p in other.rglob("*")
        }


@pytest.mark.long
@pytest.mark.parametrize("gateways", [1, 2])
def test_kserve_is_given_the_pod_that_a_stateful_set_would_have(
    tmp_path: Path, artifacts: Path, gateways: int
) -> None:
    serve = ServeOptions(artifacts=artifacts, gateways=gateways)
    one_node = gateways == 2
    plan = on_one_node(artifacts) if one_node else three_nodes(with_engines(artifacts))
    plain = render_container(plan, tmp_path / "plain", ContainerOptions(serve=serve))
    bundle = render_container(plan, tmp_path / "kserve", ContainerOptions(serve=serve, kserve=True))
    items = manifests(bundle)
    for item in items.values():
        for version in KUBERNETES:
            check_object(item, version)
    service = items["InferenceService", "poolpipe-gateway"]
    predictor = service["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (1, 1)
    assert predictor["deploymentStrategy"] == {"type": "Recreate"}
    pod = pod_of_predictor(service)
    selector = items["Service", "poolpipe-gateway"]["spec"]["selector"]
    assert pod["metadata"]["labels"] == selector
    name = ".".join(pod["spec"].pop(key) for key in ("hostname", "subdomain"))
    place = bundle.folder / "nodes" / "gateway"
    settings = ServeSettings.read(place / "settings.json")
    assert one_node or settings.gateway_host == name
    (container,) = pod["spec"]["containers"]
    assert container["ports"][0]["name"] == "http"  # KServe makes port 80 of the first one
    assert container["env"].pop() == {"name": "PROTOCOL", "value": "v2"}
    cpus, limits = container["resources"]["requests"]["cpu"], container["resources"]["limits"]
    assert int(limits.pop("cpu")) > int(cpus)  # KServe writes 1 where there is none
    stateful = pod_of(plain, "poolpipe-gateway")
    assert container.pop("name") == "kserve-container"
    assert stateful["containers"][0].pop("name") == "triton"
    assert pod["spec"] == stateful
    assert ("StatefulSet", "poolpipe-gateway") not in items
    assert "KServe must be installed" in (bundle.folder / "README.md").read_text()


def test_a_field_that_kserve_does_not_have_would_be_noticed(
    tmp_path: Path, artifacts: Path, served: Plan
) -> None:
    options = ContainerOptions(serve=ServeOptions(artifacts=artifacts), kserve=True)
    bundle = render_container(served, tmp_path / "bundle", options)
    service = manifests(bundle)["InferenceService", "poolpipe-gateway"]
    service["spec"]["predictor"]["mostReplicas"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="mostReplicas"):
        check_object(service, KUBERNETES[0])
    del service["spec"]["predictor"]["mostReplicas"]
    service["spec"]["predictor"]["deploymentStrategy"] = {"kind": "Recreate"}
    with pytest.raises(jsonschema.ValidationError, match="kind"):
        check_object(service, KUBERNETES[0])


def test_probes_ask_tritons_health_where_it_listens(
    tmp_path: Path, artifacts: Path, served: Plan, bundle: Bundle
) -> None:
    (gateway,) = pod_of(bundle, "poolpipe-gateway")["containers"]
    assert gateway["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    options = ContainerOptions(serve=ServeOptions(artifacts=artifacts), tls="server")
    closed = render_container(served, tmp_path / "closed", options)
    for container in (
        pod_of(bundle, "poolpipe-slow")["containers"][0],
        pod_of(closed, "poolpipe-gateway")["containers"][0],
    ):
        for probe, path in (("readinessProbe", "ready"), ("livenessProbe", "live")):
            code = container[probe]["exec"]["command"][-1]
            assert f"http://127.0.0.1:8000/v2/health/{path}" in code
            compile(code, probe, "exec")


def test_compose_is_what_its_specification_takes(bundle: Bundle) -> None:
    whole = yaml.safe_load((bundle.folder / "compose.yaml").read_text())
    # Read as YAML first, which resolves the merge keys.
    services = PyCompose.from_yaml(yaml.safe_dump(whole)).to_spec().services
    assert services is not None
    assert set(services) == set(bundle.containers)
    plain = whole["services"]
    for name in bundle.containers[1:]:
        assert "ports" not in plain[name]
        assert plain[name]["mem_limit"] == "12g"
        assert plain[name]["pids_limit"] == 4096
        settings = yaml.safe_load((bundle.folder / "nodes" / name / "settings.json").read_text())
        aliases = plain[name]["networks"]["pools"]["aliases"]
        assert set(aliases) <= set(settings["hosts"].values())
    assert all(port.startswith("127.0.0.1:") for port in plain["gateway"]["ports"])


def test_each_container_of_a_machine_has_gpus_of_its_own(
    tmp_path: Path, artifacts: Path, served: Plan
) -> None:
    """Docker gives a count of GPUs to every container from the first GPU on."""
    beside = Beside(folders={"chat": tmp_path / "chat"})
    serve = ServeOptions(artifacts=artifacts, beside=beside)
    options = ContainerOptions(serve=serve, beside_gpus=1)
    made = render_container(served, tmp_path / "bundle", options)
    services = yaml.safe_load((made.folder / "compose.yaml").read_text())["services"]
    seen = {
        name: [
            number
            for device in service["deploy"]["resources"]["reservations"]["devices"]
            for number in device["device_ids"]
        ]
        for name, service in services.items()
    }
    nodes = made.containers[1:]
    assert [seen[name] for name in nodes] == [
        [str(2 * place), str(2 * place + 1)] for place in range(len(nodes))
    ]
    assert seen["gateway"] == [str(2 * len(nodes))]


@pytest.mark.parametrize("count", [1, 12])
def test_records_that_are_kept_fit_the_gateways_volume(tmp_path: Path, count: int) -> None:
    """A pod whose volume is larger than its limit is evicted, and the gateway is one pod."""
    models = [model(f"m{k}", (stage((0, 1), "FAST", 0),)) for k in range(count)]
    made = render_container(plan(*models), tmp_path / "bundle", ContainerOptions())
    (limit,) = [
        volume["emptyDir"]["sizeLimit"]
        for volume in pod_of(made, "poolpipe-gateway")["volumes"]
        if volume["name"] == "records"
    ]
    kept = (count + 1) * MOST_BYTES  # requests of each model, and events
    assert int(limit.removesuffix("Mi")) << 20 >= kept + (1 << 30)


def test_the_readme_of_a_bundle_speaks_of_what_is_in_it(
    tmp_path: Path, artifacts: Path, served: Plan
) -> None:
    def readme(place: str, made: Plan, **choices: Any) -> str:
        serve = ServeOptions(artifacts=artifacts)
        folder = tmp_path / place
        render_container(made, folder, ContainerOptions(serve=serve, **choices))
        return (folder / "README.md").read_text()

    engines = readme("engines", served)
    assert "its node model, poolpipe_stage_" in engines
    assert "\n## The engines as models of their own" in engines
    assert " its node model |\n## " not in readme("emulated", plan(two_stage()))
    assert "8002" not in engines
    metrics = readme("metrics", served, metrics_address="0.0.0.0")
    assert "metrics on 8002 of every container, which ask for no token" in " ".join(metrics.split())
    without = readme("without", plan(two_stage()), request_gpus=False)
    assert "MPS" not in without
    assert "poolpipe_stage_" not in without
    assert "chown 1000 token" in (tmp_path / "engines" / "compose.yaml").read_text()


def test_all_containers_agree_on_names_and_none_holds_the_token(bundle: Bundle) -> None:
    read = [
        yaml.safe_load((bundle.folder / "nodes" / name / "settings.json").read_text())
        for name in bundle.containers
    ]
    assert {item["system"] for item in read} == {read[0]["system"]}
    assert len({item["instance"] for item in read}) == len(read)
    assert {item["token"] for item in read} == {""}
    assert read[0]["gateway_host"] == "poolpipe-gateway-0.poolpipe-gateway"
    assert read[0]["hosts"]["SLOW-1"] == "poolpipe-slow-1.poolpipe-slow"
    headless = manifests(bundle)["Service", "poolpipe-slow"]["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)


def test_the_same_plan_gives_the_same_bytes(
    tmp_path: Path, artifacts: Path, served: Plan, bundle: Bundle
) -> None:
    other = render_container(
        served, tmp_path / "other", ContainerOptions(serve=ServeOptions(artifacts=artifacts))
    )
    again = render_container(
        served, bundle.folder, ContainerOptions(serve=ServeOptions(artifacts=artifacts))
    )

    def content(made: Bundle) -> dict[str, bytes]:
        files = sorted(path for path in made.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(made.folder)): path.read_bytes() for path in files}

    assert content(other) == content(again)
    assert str(tmp_path).encode() not in b"".join(content(other).values())


def test_nodes_on_cpus_and_rehearsals_ask_for_no_gpu(tmp_path: Path) -> None:
    emulated = plan(two_stage())
    asked = render_container(emulated, tmp_path / "asked", ContainerOptions())
    assert pod_of(asked, "poolpipe-slow")["containers"][0]["resources"]["limits"]
    assert asked.notes == ("2 stages have no artifact and are emulated",)
    options = ContainerOptions(request_gpus=False)
    rehearsed = render_container(emulated, tmp_path / "rehearsed", options)
    limits = pod_of(rehearsed, "poolpipe-slow")["containers"][0]["resources"]["limits"]
    assert set(limits) == {"memory"}
    assert "deploy" not in (rehearsed.folder / "compose.yaml").read_text()


def test_claims_of_a_plan_whose_stages_run_on_cpus_are_refused(
    tmp_path: Path, artifacts: Path, served: Plan
) -> None:
    for name in ("first", "second"):
        made = Artifact.read(artifacts / name)
        replace(made, runtime="onnxruntime", device="cpu", options={}).write(artifacts / name)
    serve = ServeOptions(artifacts=artifacts)
    bundle = render_container(served, tmp_path / "bundle", ContainerOptions(serve=serve))
    assert set(pod_of(bundle, "poolpipe-slow")["containers"][0]["resources"]["limits"]) == {
        "memory"
    }
    claims = ContainerOptions(serve=serve, gpu_claims=True)
    with pytest.raises(InputError, match="--gpu-claims: claims nothing: every stage of the plan"):
        render_container(served, tmp_path / "claims", claims)
    assert not (tmp_path / "claims").exists()
    beside = replace(serve, beside=Beside(folders={"chat": tmp_path / "chat"}))
    render_container(served, tmp_path / "beside", replace(claims, serve=beside, beside_gpus=1))


def test_the_readme_says_how_the_image_is_built_and_where_it_must_lie(
    tmp_path: Path, bundle: Bundle
) -> None:
    readme = " ".join((bundle.folder / "README.md").read_text().split())
    image = "poolpipe-serving:test-plan"
    assert f"docker build -t {image} ." in readme
    assert "`--image REGISTRY/NAME:TAG`" in readme
    assert f'"{image}"\n' in (bundle.folder / "compose.yaml").read_text()
    options = ContainerOptions(image="registry.example/team/serving:1", request_gpus=False)
    named = render_container(plan(two_stage()), tmp_path / "named", options)
    text = (named.folder / "README.md").read_text()
    assert "docker push registry.example/team/serving:1" in text
    assert "--image REGISTRY" not in text


def test_a_model_with_sizes_is_one_triton_model_of_open_dimensions(tmp_path: Path) -> None:
    options = ContainerOptions(serve=ServeOptions(artifacts=tmp_path))
    bundle = render_container(sized_plan(), tmp_path / "bundle", options)
    found = config(bundle, "gateway", NAME)
    assert [list(one.dims) for one in (*found.input, *found.output)] == [[-1] * 3, [-1] * 2]
    repository = bundle.folder / "nodes" / "gateway" / "repository"
    assert [path.name for path in repository.glob(f"{NAME}*")] == [NAME]


def test_clients_see_applications_and_cuts_and_not_what_only_modules_name(tmp_path: Path) -> None:
    stages = model("one", (stage((0, 1), "FAST", 0),)), model("two", (stage((0, 1), "SLOW", 1),))
    graph = application(
        "both", module("first", model="one"), module("second", "first", model="two")
    )
    applied = render_container(
        with_applications(plan(*stages), graph, alone=("two",)),
        tmp_path / "applied",
        ContainerOptions(request_gpus=False),
    )
    entries = render_container(
        Plan.from_dict(example()),
        tmp_path / "entries",
        ContainerOptions(request_gpus=False, serve=ServeOptions(cut_models=True)),
    )
    cuts = {OFFLOAD_MODEL, "a_cut_0", "a_cut_4"}
    for made, models in ((applied, {"both", "two"}), (entries, {"a", "b", "c"} | cuts)):
        repository = made.folder / "nodes" / "gateway" / "repository"
        found = {place.name for place in repository.iterdir()}
        assert found == models | {CONTROL_MODEL, STANDBY_MODEL}
    assert "\nServes two, both. " in (applied.folder / "README.md").read_text()
    gateway = (applied.folder / "kubernetes" / "gateway.yaml").read_text()
    assert ": fronts of two, both, and the scheduler.\n" in gateway


def test_engines_of_another_library_are_told(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    served = three_nodes(
        with_engines(artifacts, library="tensorrt-rtx", library_version="1.7.1.116")
    )
    bundle = render_container(
        served, tmp_path / "bundle", ContainerOptions(serve=ServeOptions(artifacts=artifacts))
    )
    assert "cannot load them" in bundle.notes[0]
    docker = (bundle.folder / "Dockerfile").read_text()
    assert '"tensorrt-rtx-cu12-bindings==1.7.1.116"' in docker


def test_an_image_keeps_its_own_numpy(tmp_path: Path, artifacts: Path, served: Plan) -> None:
    options = ContainerOptions(serve=ServeOptions(artifacts=artifacts))
    docker = (
        render_container(served, tmp_path / "bundle", options).folder / "Dockerfile"
    ).read_text()
    assert "sed -n '/^numpy==/p' >/tmp/constraints.txt" in docker
    assert "--constraint /tmp/constraints.txt" in docker
    assert '"numpy>=1.26"' in docker


def test_what_cannot_be_rendered_is_named(tmp_path: Path, artifacts: Path, served: Plan) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for folder, options, told in (
        (
            "full",
            ContainerOptions(serve=ServeOptions(artifacts=artifacts)),
            "not of a rendered bundle",
        ),
        ("bundle", ContainerOptions(), "needs a folder of artifacts"),
        (
            "bundle",
            ContainerOptions(serve=ServeOptions(artifacts=tmp_path)),
            "not an artifact manifest",
        ),
        (
            "bundle",
            ContainerOptions(serve=ServeOptions(artifacts=artifacts, hosts={"FAST": "10.0.0.1"})),
            "'FAST' is no node of the plan: Fast.Group, SLOW-0, SLOW-1",
        ),
    ):
        with pytest.raises(InputError, match=told):
            render_container(served, tmp_path / folder, options)
    with pytest.raises(InputError, match="option tls"):
        ContainerOptions(tls="yes")
    wrong: dict[str, Any]
    for wrong, told in (
        ({"name": "Pool Pipe"}, "--name: 'Pool Pipe' is not a DNS label"),
        ({"namespace": ""}, "--namespace: '' is not a DNS label"),
        ({"class_label": "gpu class"}, "--class-label: 'gpu class' is not a label's key"),
        ({"class_values": {"Fast": "a b"}}, "--class-value: Fast='a b': no value of a label"),
        ({"mig_strategy": "no"}, "option mig_strategy: 'no' is none of mixed, single"),
        ({"gpu_claims": True, "request_gpus": False}, "--gpu-claims: claims nothing with --no-req"),
        ({"gpu_claims": True, "mig_strategy": "single"}, "single: is of the device plugin"),
        ({"kserve": True, "tls": "server"}, "--tls server: KServe asks the gateway over HTTP"),
        ({"name": "2nd"}, "--name 2nd: must begin with a letter"),
        ({"metrics_address": ""}, "--metrics-address: '' is no IPv4 address to listen on"),
        ({"metrics_address": "$(id)"}, "--metrics-address: '.*' is no IPv4 address to listen on"),
        ({"metrics_address": "nonsense"}, "--metrics-address: 'nonsense' is no IPv4 address"),
        ({"metrics_address": "300.1.1.1"}, "--metrics-address: '300.1.1.1' is no IPv4 address"),
        ({"metrics_address": "::1"}, "--metrics-address: '::1' is no IPv4 address"),
        ({"triton_image": "my image"}, "--triton-image: 'my image' is not the name of an image"),
    ):
        with pytest.raises(InputError, match=told):
            ContainerOptions(**wrong)
    with pytest.raises(InputError, match=r"--class-value: 'T4' is no GPU class of the plan"):
        render_container(served, tmp_path / "bundle", ContainerOptions(class_values={"T4": "t4"}))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: is a file, not a folder"):
        render_container(
            served, tmp_path / "file", ContainerOptions(serve=ServeOptions(artifacts=artifacts))
        )
    groups = tuple(
        replace(g, name=name) for g, name in zip(served.cluster.nodes, ("a.b", "a-b"), strict=True)
    )
    twins = replace(served, cluster=replace(served.cluster, nodes=groups))
    with pytest.raises(InputError, match=r"must differ as DNS labels.*poolpipe-a-b"):
        render_container(
            twins, tmp_path / "bundle", ContainerOptions(serve=ServeOptions(artifacts=artifacts))
        )
    apart = Beside(folders={name: tmp_path / name / name for name in "ab"})
    with pytest.raises(InputError, match="--beside: a container has one repository beside the"):
        ContainerOptions(serve=ServeOptions(beside=apart))
    with pytest.raises(InputError, match="--beside: KServe limits the memory of models beside"):
        ContainerOptions(kserve=True, serve=ServeOptions(beside=Beside(folders={"a": tmp_path})))
    with pytest.raises(InputError, match="--beside-gpus 1: needs --beside"):
        ContainerOptions(beside_gpus=1)
    taken = ServeOptions(artifacts=artifacts, beside=Beside(folders={"engines": tmp_path}))
    with pytest.raises(InputError, match="model 'engines': is the name of a model beside the plan"):
        render_container(served, tmp_path / "bundle", ContainerOptions(serve=taken))
    assert label("A100 (80 GB).2") == "a100-80-gb-2"


def test_what_clients_see_has_no_name_of_our_own_models(tmp_path: Path) -> None:
    chain = application(OFFLOAD_MODEL, module("first", model="inner"))
    named = with_applications(plan(model("inner", (stage((0, 1), "FAST", 0),))), chain)
    with pytest.raises(InputError, match=f"model name '{OFFLOAD_MODEL}': cannot be served"):
        render_container(named, tmp_path / "bundle", ContainerOptions())
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gpu_class": "L4\nRUN id"}, r"gpu_class: 'L4\\nRUN id' is no name"),
        ({"max_batch": "1\nbackend: 'python'"}, "max_batch: .* is not a whole number"),
        ({"files": {"engine": "../../outside"}}, "files.engine: '../../outside' is not the name"),
        ({"options": {"library": 'x"; id; "'}}, "library: .* is no name"),
        ({"options": {"library_version": "$(id)"}}, r"library_version: '\$\(id\)' is no name"),
        ({"options": {"library_version": 8}}, "not an artifact manifest"),
        ({"options": {"batches": ["1] }\n"]}}, r"batches\[0\]: .* is not a whole number"),
    ],
)
def test_what_an_artifact_says_of_itself_writes_no_line_of_its_own(
    tmp_path: Path, artifacts: Path, served: Plan, change: dict[str, Any], told: str
) -> None:
    manifest = artifacts / "first" / "engine.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    with pytest.raises(InputError, match=told) as error:
        render_container(
            served, tmp_path / "bundle", ContainerOptions(serve=ServeOptions(artifacts=artifacts))
        )
    assert "\n" not in str(error.value)


@pytest.mark.long
@pytest.mark.parametrize("policy", [None, "reservation"])
def test_the_image_compiles_the_kernels_of_its_plan_as_it_is_built(
    tmp_path: Path, artifacts: Path, served: Plan, policy: str | None
) -> None:
    serve = ServeOptions(artifacts=artifacts, policy=policy)
    folder = tmp_path / "bundle"
    render_container(served, folder, ContainerOptions(serve=serve, bundle_folder=folder))
    lines = (folder / "Dockerfile").read_text().replace("\\\n", "")
    (command,) = (line for line in lines.splitlines() if " python3 -c " in line)
    words = shlex.split(command)
    assert words[:4] == ["RUN", f"NUMBA_CACHE_DIR={folder}/numba", "python3", "-c"]
    exec(compile(words[4], "Dockerfile", "exec"), {})


@pytest.mark.slow
def test_the_start_script_says_what_is_missing(bundle: Bundle, tmp_path: Path) -> None:
    script = bundle.folder / "start-node.sh"
    root, lost = tmp_path / "triton", tmp_path / "lost"
    for name in ("bin/tritonserver", "backends/python/libtriton_python.so"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch(0o755)
    ready = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "POOLPIPE_TOKEN_FILE": str(lost),
    }
    for arguments, environment, told in (
        ([], {}, "is none of: gateway poolpipe-fast-group-0 poolpipe-slow-0 poolpipe-slow-1"),
        (["gateway"], {"POOLPIPE_SERVER_ROOT": str(tmp_path)}, "no tritonserver in"),
        (["gateway"], {"POOLPIPE_SERVER_ROOT": str(root)}, "(No module named 'numba')"),
        (["gateway"], {"POOLPIPE_SERVER_ROOT": str(root), **ready}, f"{lost} cannot be read"),
    ):
        done = subprocess.run(
            [script, *arguments],
            env={"PATH": "/usr/bin:/bin", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
