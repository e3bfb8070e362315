"""A plan becomes a Triton model repository.

The serve folder has `settings.json` (rendered once per start), `generations/N/plan.json` (one per
rollout) and `repository/` with a folder per Triton model: a front per served model, the scheduler,
and one node model per node *and generation*, so that two generations can live side by side.
Every template variable is explained in `model_repo_templates/README.md`.
"""

import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

import model_repo_templates
from flows.files import write_text
from flows.names import RESERVED_PREFIX, check_name
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.scheduler.policies import SERVING_POLICY, policy_number
from triton_backend.scheduler.topology import check_nic

CONTROL_MODEL = "poolpipe_control"
FIRST_GENERATION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a plan is served; see `triton_backend.serving.settings` for each.

    `emulate_links` None: links are emulated when no stage has an artifact.

    Raises:
        InputError: as `check_dispatch`.
    """

    artifacts: Path | None = None
    policy: str = SERVING_POLICY
    nic: str = "shared"
    emulate_links: bool | None = None
    noise: float = 0.0
    seed: int = 0
    time_stretch: float = 1.0
    guard_fraction: float = 0.1
    hosts: Mapping[str, str] = field(default_factory=dict[str, str])
    gateway_host: str = "127.0.0.1"
    base_port: int = 18_500
    host_http_port: int = 8000

    def __post_init__(self) -> None:
        check_dispatch(self.policy, self.nic)


def check_dispatch(policy: str, nic: str) -> None:
    """Refuse what the scheduler would refuse only once Triton has started it.

    Raises:
        InputError: there is no such policy, or no such way to share links.
    """
    policy_number(policy)
    check_nic(nic)


def render_settings(folder: Path, plan: Plan, options: ServeOptions) -> None:
    """Begin a serve folder anew: settings with a fresh instance name and token, no models."""
    for name in ("repository", "generations", "pids", "backends"):
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    instance = secrets.token_hex(4)
    stages = [s for m in plan.models for p in m.pipelines for s in p.stages]
    emulated = all(stage.artifact is None for stage in stages)
    _write_settings(
        folder,
        {
            "system": instance,
            "instance": instance,
            "token": secrets.token_urlsafe(24),
            "artifacts": None if options.artifacts is None else str(options.artifacts.resolve()),
            "policy": options.policy,
            "nic": options.nic,
            "emulate_links": emulated if options.emulate_links is None else options.emulate_links,
            "noise": options.noise,
            "seed": options.seed,
            "time_stretch": options.time_stretch,
            "guard_fraction": options.guard_fraction,
            "hosts": dict(options.hosts),
            "gateway_host": options.gateway_host,
            "base_port": options.base_port,
            "host_http_port": options.host_http_port,
        },
    )


def _write_settings(folder: Path, variables: Mapping[str, Any]) -> None:
    """`settings.json`, mode 0600, with what is this host's own."""
    text = render_template(
        "settings.json.j2",
        **{
            **variables,
            "folder": str(folder.resolve()),
            "socket_folder": str(Path(tempfile.gettempdir()) / f"poolpipe-{variables['instance']}"),
            "python": sys.executable,
        },
    )
    path = folder / "settings.json"
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)


def render_repository(folder: Path, plan: Plan, options: ServeOptions) -> None:
    """A whole serve folder for a plan, to be started by `admin.start`.

    Raises:
        InputError: a model's name cannot be a Triton model's.
    """
    for model in plan.models:
        check_name(model.name)
    render_settings(folder, plan, options)
    plan = render_generation(folder, plan, FIRST_GENERATION)
    for node in options.hosts:
        remove_model(folder, node_model(node, FIRST_GENERATION))
    render_control(folder, FIRST_GENERATION)
    for model in plan.models:
        render_front(folder, model, FIRST_GENERATION)


def render_host(
    folder: Path, gateway_settings: Mapping[str, Any], plan: Plan, host: str, artifacts: Path | None
) -> list[str]:
    """The serve folder of another host: the node models of the nodes that run at its address.

    Args:
        folder: on that host.
        gateway_settings: the gateway's `settings.json`, as it was rendered with `hosts`.
        plan: the plan that the gateway serves.
        host: address of this host, as in `hosts`.
        artifacts: root of the artifacts on this host.

    Returns:
        names of the node models.

    Raises:
        InputError: no node with vGPUs of the plan runs at that address.
    """
    hosts: Mapping[str, str] = gateway_settings["hosts"]
    nodes = [node for node in used_nodes(plan) if hosts.get(node) == host]
    if not nodes:
        raise InputError(f"host {host!r}", f"no node of plan {plan.plan_id} runs there: {hosts}")
    for name in ("repository", "generations", "pids", "backends"):
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        "instance": secrets.token_hex(4),
        "artifacts": None if artifacts is None else str(artifacts.resolve()),
    }
    _write_settings(folder, {**gateway_settings, **own})
    render_generation(folder, plan, FIRST_GENERATION)
    for node in set(used_nodes(plan)) - set(nodes):
        remove_model(folder, node_model(node, FIRST_GENERATION))
    return [node_model(node, FIRST_GENERATION) for node in nodes]


def render_generation(folder: Path, plan: Plan, generation: int) -> Plan:
    """Plan file and node models of a generation; returns the plan with all tensors named."""
    plan = complete_tensors(plan)
    place = folder / "generations" / str(generation)
    place.mkdir(parents=True, exist_ok=True)
    (place / "plan.json").write_text(json.dumps(plan.to_dict()) + "\n")
    for node in used_nodes(plan):
        _model(
            folder,
            "node",
            node_model(node, generation),
            generation=generation,
            node=node,
        )
    return plan


def render_control(folder: Path, generation: int) -> None:
    """The scheduler model, which begins with this generation when it is loaded."""
    _model(folder, "scheduler", CONTROL_MODEL, generation=generation)


def render_front(folder: Path, model: ModelPlan, generation: int) -> None:
    """The front of a model, which begins with this generation when it is loaded."""
    _model(
        folder,
        "front",
        model.name,
        generation=generation,
        inputs=[spec.to_dict() for spec in model.inputs],
        outputs=[spec.to_dict() for spec in model.outputs],
    )


def remove_model(folder: Path, name: str) -> None:
    """Take a model out of the repository's files (after its unload)."""
    shutil.rmtree(folder / "repository" / name, ignore_errors=True)


def used_nodes(plan: Plan) -> tuple[str, ...]:
    """Names of the nodes that have at least one vGPU of the plan, in the cluster's order."""
    numbers = sorted({vgpu.slot.node for vgpu in plan.vgpus()})
    return tuple(plan.cluster.node_name(number) for number in numbers)


def node_model(node: str, generation: int) -> str:
    """Name of the Triton model of a node in a generation."""
    return f"{RESERVED_PREFIX}node_{re.sub(r'[^A-Za-z0-9_.-]', '_', node)}_g{generation}"


def node_generation(name: str) -> int | None:
    """The generation in a name that `node_model` made; None for any other name."""
    found = re.fullmatch(rf"{RESERVED_PREFIX}node_.+_g(\d+)", name)
    return None if found is None else int(found[1])


def _model(folder: Path, kind: str, name: str, *, generation: int, **variables: Any) -> None:
    place = folder / "repository" / name
    (place / "1").mkdir(parents=True, exist_ok=True)
    common = {
        "name": name,
        "settings_path": str((folder / "settings.json").resolve()),
        "generation": generation,
        "restart": 0,
    }
    for template, target in (("config.pbtxt", "config.pbtxt"), ("model.py", "1/model.py")):
        # Whole or not at all: the supervisor of a system that runs may be loading it just now.
        text = render_template(f"{kind}/{template}.j2", **common, **variables)
        write_text(place / target, text)


def render_template(template: str, **variables: Any) -> str:
    """A template of `model_repo_templates` as text; a variable that is not given is an error."""
    templates = Path(model_repo_templates.__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # configurations and code, not HTML
    )
    environment.filters["quoted"] = _quoted
    return environment.get_template(template).render(**variables)


def _quoted(text: str) -> str:
    """A string as Triton's configurations (protobuf text) have it; a path or a name may hold any sign."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
