"""A plan becomes a Triton model repository.

The serve folder has `settings.json` (written once per start), `generations/N/plan.json` (one per
rollout) and `repository/` with a folder per Triton model: a front per served model, the scheduler,
and a node model per node, with a file that says which generations the node has workers of: two live
side by side while the plan changes. A second gateway has `gateway-2/` with settings and a
repository of its own, of the same models but for the scheduler's. Every template variable is
explained in `model_repo_templates/README.md`.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import model_repo_templates
from triton_backend.contract.entries import Entry, shares_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.tensors import BYTES, TensorSpec
from triton_backend.contract.transition.workers import inherited_vgpus
from triton_backend.runtimes.stage_tensors import (
    answering,
    are_variants,
    complete_tensors,
    endpoints,
    request_tensors,
    served_models,
)
from triton_backend.serve_folder.batches import BATCHES_NAME, batches_text
from triton_backend.serve_folder.beside import BESIDE_NAME
from triton_backend.serve_folder.files import write_whole
from triton_backend.serve_folder.names import RESERVED_PREFIX, VARIANT_OUTPUT, check_name
from triton_backend.serve_folder.settings import (
    SETTINGS_NAME,
    ServeOptions,
    ServeSettings,
    gateway_folder,
)
from triton_backend.serve_folder.state import read_state_file
from triton_backend.serve_folder.versions import OF_VERSIONS, keep_versions, write_versions

CONTROL_MODEL = "poolpipe_control"
STANDBY_MODEL = "poolpipe_standby"
OFFLOAD_MODEL = "poolpipe_offload"
FIRST_GENERATION = 1
FRONT_PORTS_NAME = "front_ports.json"
WORKERS_NAME = "workers.json"
NODE_GENERATIONS_NAME = "generations.json"
# Beside those in use: event files that are not read yet name plans which only these have.
KEPT_GENERATIONS = 64
# TCP ports above `base_port`, used where there are several hosts: the scheduler has the first, then
# come the fronts', then two for every worker.
MOST_FRONTS = 900
FIRST_WORKER_PORT = 1000
LAST_PORT = 65_535
_NODE_PREFIX = f"{RESERVED_PREFIX}node_"


class WorkerOrigin(NamedTuple):
    """Where the names of a worker come from: the generation that it was started for.

    A worker goes on under the next plan where its content stays; its sockets, slots and TCP port
    keep the names of the generation and the vGPU number that it began with.
    """

    generation: int
    vgpu: int
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers of a generation.

    Attributes:
        former: the generation before, whose node models still own those that go on until they are
            unloaded; None for the first.
        origins: by vGPU number.
    """

    former: int | None
    origins: tuple[WorkerOrigin, ...]

    @classmethod
    def first(cls, plan: Plan, generation: int, base_port: int) -> Self:
        """All of them started for this generation."""
        ports = _free_ports(base_port, ())
        origins = (WorkerOrigin(generation, v.index, next(ports)) for v in plan.vgpus())
        return cls(former=None, origins=tuple(origins))

    def following(self, before: Plan, after: Plan, generations: tuple[int, int], port: int) -> Self:
        """Those of the plan after, of which some go on.

        Args:
            before: the plan of these workers.
            after: the next one; of both all tensors are named.
            generations: of both.
            port: the system's base port.
        """
        stays = {new: old for old, new in inherited_vgpus(before, after)}
        ports = _free_ports(port, [origin.port for origin in self.origins])
        origins = (
            self.origins[stays[v.index]]
            if v.index in stays
            else WorkerOrigin(generations[1], v.index, next(ports))
            for v in after.vgpus()
        )
        return replace(self, former=generations[0], origins=tuple(origins))

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in the file."""
        return {"former": self.former, "workers": [list(origin) for origin in self.origins]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        origins = tuple(WorkerOrigin(*map(int, origin)) for origin in data["workers"])
        former = data["former"]
        return cls(former=None if former is None else int(former), origins=origins)


class GenerationNames(NamedTuple):
    """Parts of a generation that keep their names when plans change: ports and workers."""

    ports: Mapping[str, int]
    workers: Workers


def first_names(plan: Plan, settings: ServeSettings) -> GenerationNames:
    """Of the first generation of a system."""
    workers = Workers.first(plan, FIRST_GENERATION, settings.base_port)
    return GenerationNames(front_ports(plan, settings), workers)


def _free_ports(base_port: int, taken: Iterable[int]) -> Iterator[int]:
    """TCP ports of workers, not in use yet."""
    others = set(taken)
    return (port for port in count(base_port + FIRST_WORKER_PORT) if port not in others)


def render_settings(folder: Path, plan: Plan, options: ServeOptions) -> ServeSettings:
    """Begin a serve folder again: settings with a fresh instance name and token, no models.

    What a system left in the folder is removed.
    """
    return _begin(ServeSettings.begin(folder, plan, options))


def _begin(settings: ServeSettings) -> ServeSettings:
    for name in (
        "repository",
        BESIDE_NAME,
        "generations",
        "pids",
        "gauges",
        "backends",
        gateway_folder(Path(), 1),
    ):
        shutil.rmtree(settings.folder / name, ignore_errors=True)
    for number in range(settings.gateways):
        one = settings.of_gateway(number)
        one.place.mkdir(parents=True, exist_ok=True)
        one.write(one.path)
    return settings


def gateway_folders(folder: Path) -> tuple[Path, ...]:
    """Where the gateways of a serve folder have their repositories.

    Itself, and below it the second's.
    """
    second = gateway_folder(folder, 1)
    return (folder, second) if (second / SETTINGS_NAME).exists() else (folder,)


def render_repository(folder: Path, plan: Plan, options: ServeOptions) -> ServeSettings:
    """A whole serve folder for a plan, to be started by `admin.start`; its settings.

    Repositories, generations and files of processes that a system left in the folder are removed.

    Raises:
        InputError: a model's name cannot be a Triton model's, or is that of one beside the plan; a
            quota is of a name that is not served; rules of late binding change nothing.
    """
    plan = complete_tensors(plan)
    check_served_names(plan)
    check_beside(options, plan)
    check_quotas(options, plan)
    check_late_binding(options, plan)
    settings = render_settings(folder, plan, options)
    here = [node for node in used_nodes(plan) if node not in options.hosts]
    names = first_names(plan, settings)
    plan = render_generation(folder, plan, FIRST_GENERATION, nodes=here, names=names)
    render_control(folder, FIRST_GENERATION, standby=options.standby)
    render_fronts(folder, plan, FIRST_GENERATION)
    render_for_clients(folder, plan, FIRST_GENERATION, cut_models=options.cut_models)
    return settings


def render_host(
    folder: Path, gateway: ServeSettings, plan: Plan, host: str, artifacts: Path | None
) -> list[str]:
    """The serve folder of another host: the node models of the nodes that run at its address.

    Args:
        folder: on that host.
        gateway: the gateway's settings, as they were written with `hosts`.
        plan: the plan that the gateway serves.
        host: address of this host, as in `hosts`.
        artifacts: root of the artifacts on this host.

    Returns:
        names of the node models.

    Raises:
        InputError: no node with vGPUs of the plan runs at that address.
    """
    nodes = [node for node in used_nodes(plan) if gateway.hosts.get(node) == host]
    if not nodes:
        where = f"no node of plan {plan.plan_id} runs there: {dict(gateway.hosts)}"
        raise InputError(f"host {host!r}", where)
    settings = _begin(gateway.for_host(folder, artifacts))
    names = first_names(plan, settings)
    render_generation(folder, plan, FIRST_GENERATION, nodes=nodes, names=names)
    return [node_model(node) for node in nodes]


def render_generation(
    folder: Path,
    plan: Plan,
    generation: int,
    *,
    nodes: Iterable[str],
    names: GenerationNames,
    settings: Path | None = None,
) -> Plan:
    """Plan file, fronts' ports, workers' origins and new nodes' models of a generation.

    A node that is there already does not begin with the generation before `render_node_generations`
    says so.

    Args:
        folder: the serve folder.
        plan: of the generation.
        generation: its number.
        nodes: those of the plan's nodes that run on this host.
        names: ports of the fronts, as `front_ports` gave them, and where the workers' come from.
        settings: the settings file, where it is not the folder's own (inside a container, say).

    Returns:
        the plan with all tensors named, as it was written.

    Raises:
        InputError: two nodes would have one Triton model, or an application's tensors do not fit.
    """
    check_node_models(used_nodes(plan))
    plan = complete_tensors(plan)
    place = folder / "generations" / str(generation)
    place.mkdir(parents=True, exist_ok=True)
    write_whole(place / "plan.json", json.dumps(plan.to_dict()) + "\n")
    write_whole(place / FRONT_PORTS_NAME, json.dumps(dict(names.ports)) + "\n")
    write_whole(place / WORKERS_NAME, json.dumps(names.workers.to_dict()) + "\n")
    write_whole(place / BATCHES_NAME, batches_text(plan))
    for node in nodes:
        if not node_generations_file(folder, node).exists():
            _model(folder, "node", node_model(node), settings, node=node)
            render_node_generations(folder, [node], [generation])
    return plan


def render_node_generations(folder: Path, nodes: Iterable[str], generations: Iterable[int]) -> None:
    """Write which generations nodes of this host have workers of.

    They look for it many times a second.
    """
    text = json.dumps(sorted(generations)) + "\n"
    for place in gateway_folders(folder):
        for node in nodes:
            write_whole(node_generations_file(place, node), text)


def node_generations_file(place: Path, node: str) -> Path:
    """Where it is written, in a gateway's own folder."""
    return place / "repository" / node_model(node) / NODE_GENERATIONS_NAME


def read_node_generations(place: Path, node: str) -> tuple[int, ...]:
    """The generations that a node has workers of, in order.

    Raises:
        InputError: they are not there.
    """
    path = node_generations_file(place, node)
    try:
        return tuple(sorted(map(int, json.loads(path.read_text()))))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(str(path), f"not the generations of a node: {error}") from error


def rendered_generations(folder: Path) -> list[int]:
    """Numbers of the generations that a serve folder holds, in order.

    Other files there are none.
    """
    names = [entry.name for entry in (folder / "generations").iterdir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def remove_old_generations(folder: Path, in_force: int) -> None:
    """Delete the files of generations, but for the last ones and those that a process may yet read.

    Of the generation in force and of those that this host's nodes have, the generations that their
    workers began with stay too.
    """
    used = {in_force}
    for file in (folder / "repository").glob(f"*/{NODE_GENERATIONS_NAME}"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            used.update(map(int, json.loads(file.read_text())))
    for number in [*used]:
        with contextlib.suppress(InputError):
            used.update(origin.generation for origin in read_workers(folder, number).origins)
    for number in rendered_generations(folder)[:-KEPT_GENERATIONS]:
        if number not in used:
            shutil.rmtree(folder / "generations" / str(number), ignore_errors=True)


def front_ports(
    plan: Plan, settings: ServeSettings, former: Mapping[str, int] | None = None
) -> dict[str, int]:
    """A TCP port for the front of every model, each another one.

    Args:
        plan: of the new generation.
        settings: of the system.
        former: the ports of the generation before. A model that stays keeps its port, because its
            front goes on listening; one that goes still has its own until it is unloaded.

    Raises:
        InputError: there are not as many ports as the plan needs.
    """
    kept = dict(former or {})
    first = settings.base_port + 1
    free = iter(sorted({*range(first, first + MOST_FRONTS)} - {*kept.values()}))
    names = [model.name for model in served_models(complete_tensors(plan))]
    ports = {name: kept.get(name) or next(free, 0) for name in names}
    # Of two plans that live side by side.
    last = settings.base_port + FIRST_WORKER_PORT + 2 * len(plan.vgpus()) - 1
    if 0 in ports.values():
        raise InputError(f"plan {plan.plan_id}", f"more than {MOST_FRONTS} models")
    if settings.hosts and last > LAST_PORT:
        raise InputError(f"base port {settings.base_port}", f"workers would need ports to {last}")
    return ports


def read_front_ports(folder: Path, generation: int) -> dict[str, int]:
    """The ports of a generation's fronts.

    Raises:
        InputError: they are not there.
    """
    path = folder / "generations" / str(generation) / FRONT_PORTS_NAME
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(str(path), f"not the ports of fronts: {error}") from error


def read_workers(folder: Path, generation: int) -> Workers:
    """The origins of a generation's workers.

    Raises:
        InputError: they are not there.
    """
    path = folder / "generations" / str(generation) / WORKERS_NAME
    try:
        return Workers.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(str(path), f"not the origins of workers: {error!r}") from error


def check_node_models(nodes: Iterable[str]) -> None:
    """Check that nodes, of one plan or of two side by side, have a Triton model each.

    Raises:
        InputError: two would have the same.
    """
    names: dict[str, str] = {}
    for node in nodes:
        other = names.setdefault(node_model(node), node)
        if other != node:
            raise InputError(f"nodes {other!r} and {node!r}", "would be one Triton model")


def render_control(
    folder: Path, generation: int, settings: Path | None = None, *, standby: bool
) -> None:
    """The scheduler's models, which begin with this generation where no scheduler is active yet."""
    first, *others = gateway_folders(folder)
    _write_model(folder, first, "scheduler", CONTROL_MODEL, settings, generation=generation)
    if standby:  # in the second gateway, where there is one
        place = others[0] if others else first
        _write_model(folder, place, "scheduler", STANDBY_MODEL, settings, generation=generation)


def for_clients(plan: Plan, *, cut_models: bool) -> tuple[str, ...]:
    """Names of the Triton models that clients of entries have beside the models themselves.

    They are the one that says where they may cut, and, where asked for, one for every open cut.

    Raises:
        InputError: the plan serves a model of the name that one for a cut would have.
    """
    if not has_entries(plan):
        return ()
    cuts = cut_models_of(plan) if cut_models else {}
    for name in endpoints(plan):
        if name in cuts:
            reason = "is the name of a cut's model (--cut-models) too; give it another"
            raise InputError(f"plan {plan.plan_id}, model {name!r}", reason)
    return (OFFLOAD_MODEL, *cuts)


def check_beside(options: ServeOptions, plan: Plan) -> None:
    """Refuse a plan that cannot be served beside the models that go on beside it.

    Raises:
        InputError: as `Beside.check`.
    """
    if options.beside is not None:
        served = [*endpoints(plan)]
        others = for_clients(plan, cut_models=options.cut_models)
        options.beside.check(f"plan {plan.plan_id}", served, others)


def cut_models_of(plan: Plan) -> dict[str, tuple[ModelPlan, Entry]]:
    """By the name of a cut's Triton model: the model and an entry at that cut."""
    return {
        f"{model.name}_cut_{entry.block}": (model, entry)
        for model in plan.models
        if not shares_of(model.entries)
        for entry in reversed(model.entries)
    }


def render_for_clients(
    folder: Path, plan: Plan, generation: int, settings: Path | None = None, *, cut_models: bool
) -> None:
    """The models of `for_clients`; of the plan all tensors are named."""
    names = for_clients(plan, cut_models=cut_models)
    if not names:
        return
    _model(folder, "offload", OFFLOAD_MODEL, settings, generation=generation)
    for name, (model, entry) in cut_models_of(plan).items():
        if name not in names:
            continue
        _model(
            folder,
            "cut",
            name,
            settings,
            generation=generation,
            model=model.name,
            block=entry.block,
            inputs=[_declared(spec) for spec in entry.inputs],
            outputs=[_declared(spec) for spec in model.outputs],
        )


def has_entries(plan: Plan) -> bool:
    """True if clients of a model choose among entries that its plan lists."""
    return any(model.entries and not shares_of(model.entries) for model in plan.models)


def check_quotas(options: ServeOptions, plan: Plan) -> None:
    """Check that quotas are of names that clients may ask a completed plan for.

    Raises:
        InputError: one is of another.
    """
    served = endpoints(plan)
    for name in options.quotas:
        if name not in served:
            raise InputError("--quota", f"{name!r} is none of {', '.join(served)}")


def check_late_binding(options: ServeOptions, plan: Plan) -> None:
    """Check that changes to rules of late binding change something.

    Raises:
        InputError: no model of the plan is bound late.
    """
    if options.late_binding:
        # Imported here: the scheduler's kernels take a second to load.
        from triton_backend.scheduler.policies.late_rules import check_bound_late  # noqa: PLC0415
        from triton_backend.scheduler.policies.registry import queue_policies  # noqa: PLC0415

        check_bound_late(options.late_binding, queue_policies(plan, options.policy))


def check_served_names(plan: Plan) -> None:
    """Check the names of a completed plan's models, and those that clients ask for.

    Raises:
        InputError: one cannot be a Triton model's.
    """
    for name, sizes in endpoints(plan).items():
        for one in (name, *(size.name for size in sizes)):
            check_name(one)


Declared = dict[str, list[dict[str, Any]]]
VARIANT = {"name": VARIANT_OUTPUT, "dtype": "STRING", "shape": [-1]}
"""The output that says which variant answered, as Triton's configuration declares it."""


def render_fronts(
    folder: Path,
    plan: Plan,
    generation: int,
    settings: Path | None = None,
    names: Iterable[str] | None = None,
) -> None:
    """The fronts of a plan's names, which begin with this generation when they are loaded.

    Of a name with versions, which find their generation by themselves, those that are there stay.

    Args:
        folder: the serve folder.
        plan: completed.
        generation: its number.
        settings: as of `render_generation`.
        names: that clients ask for; None: all.
    """
    versions = plan.workload.versions
    asked = None if names is None else {*names}
    for name, models in endpoints(plan).items():
        if asked is not None and name not in asked:
            continue
        own = tuple(versions.get(name, ()))
        begins = OF_VERSIONS if own else generation
        tensors = declared(name, models, versions=bool(own))
        _model(folder, "front", name, settings, generation=begins, versions=own, **tensors)


def end_versions(folder: Path, name: str, versions: Iterable[int]) -> None:
    """Take all versions of a name but these out of the repository's files; a load ends them."""
    kept = tuple(versions)
    for place in gateway_folders(folder):
        keep_versions(place / "repository" / name, kept)


def generation_of_version(settings: ServeSettings, name: str, version: int) -> int:
    """The generation that a version's process begins with: in force, or the newest that has it.

    Raises:
        InputError: no plan of the serve folder has it.
    """
    in_force = (read_state_file(settings.folder) or {}).get("generation")
    numbers = rendered_generations(settings.folder)
    for number in (*(n for n in numbers if n == in_force), *reversed(numbers)):
        path = settings.folder / "generations" / str(number) / "plan.json"
        try:
            plan = Plan.from_dict(json.loads(path.read_text()))
        except FileNotFoundError:  # it is being written, or removed
            continue
        if answering(plan, name, version):
            return number
    raise InputError(f"model {name!r}, version {version}", "no plan has it")


def declared(name: str, sizes: Sequence[ModelPlan], *, versions: bool = False) -> Declared:
    """The `inputs` and `outputs` of a name, as Triton's configuration declares them.

    Of a model listed with sizes all dimensions are open, for the front to judge: then sizes may
    come and go, and Triton's own refusal of a fixed one would list none.

    Args:
        name: that clients ask for.
        sizes: of the model, as `endpoints` has them.
        versions: they are versions of it, all of the same tensors.
    """
    model = sizes[0]
    sized = not versions and not any(size.name == name for size in sizes)
    tensors = request_tensors(model)
    # Triton takes a body that is one text and nothing else (`curl --data-binary`) where it knows
    # that one is all.
    only = {"shape": [1]} if [spec.dtype for spec in tensors] == [BYTES] else {}
    return {
        "inputs": [
            _declared(spec, sized=sized) | {"optional": optional} | only
            for spec, optional in tensors.items()
        ],
        "outputs": [_declared(spec, sized=sized) for spec in model.outputs]
        + ([VARIANT] if not versions and are_variants(sizes) else []),
    }


def _declared(spec: TensorSpec, *, sized: bool = False) -> dict[str, Any]:
    """A tensor as Triton's configuration declares it: texts are TYPE_STRING there."""
    dtype = "STRING" if spec.dtype == BYTES else spec.dtype
    shape = [-1] * len(spec.seen_shape) if sized else list(spec.seen_shape)
    return {"name": spec.name, "dtype": dtype, "shape": shape}


def remove_model(folder: Path, name: str) -> None:
    """Take a model out of the repository's files (after its unload)."""
    for place in gateway_folders(folder):
        shutil.rmtree(place / "repository" / name, ignore_errors=True)


def used_nodes(plan: Plan) -> tuple[str, ...]:
    """Names of the nodes that have at least one vGPU of the plan, in the cluster's order."""
    numbers = sorted({vgpu.slot.node for vgpu in plan.vgpus()})
    return tuple(plan.cluster.node_name(number) for number in numbers)


def node_model(node: str) -> str:
    """Name of the Triton model of a node."""
    return f"{_NODE_PREFIX}{re.sub(r'[^A-Za-z0-9_.-]', '_', node)}"


def is_node_model(name: str) -> bool:
    """True if a model of a repository is a node's."""
    return name.startswith(_NODE_PREFIX)


def _model(folder: Path, kind: str, name: str, settings: Path | None, **variables: Any) -> None:
    """Write a model that every gateway has."""
    for gateway in gateway_folders(folder):
        _write_model(folder, gateway, kind, name, settings, **variables)


def _write_model(
    folder: Path, gateway: Path, kind: str, name: str, settings: Path | None, **variables: Any
) -> None:
    place = gateway / "repository" / name
    versions: tuple[int, ...] = variables.get("versions", ())
    if not versions:
        (place / "1").mkdir(parents=True, exist_ok=True)
    read_from = folder.resolve() if settings is None else settings.parent
    path = read_from / gateway.relative_to(folder) / SETTINGS_NAME
    common = {"name": name, "settings_path": str(path), "restart": 0}
    for template, target in (("config.pbtxt", "config.pbtxt"), ("model.py", "1/model.py")):
        # Whole or not at all: the keeper of a system that runs may be loading it just now.
        text = render_template(f"{kind}/{template}.j2", **common, **variables)
        if versions and template == "model.py":
            write_versions(place, versions, text)
        elif not versions or not _holds(place / target, text):
            place.mkdir(parents=True, exist_ok=True)
            write_whole(place / target, text)


def _holds(path: Path, text: str) -> bool:
    """True if a file has this text, which is not written again while Triton may look at it."""
    try:
        return path.read_text() == text
    except OSError:
        return False


def render_template(template: str, **variables: Any) -> str:
    """A template of `model_repo_templates` as text; a variable that is not given is an error."""
    import jinja2  # noqa: PLC0415  # here, because most processes only read what was rendered

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
    """A string as Triton's configurations (protobuf text) have it.

    A path or a name may hold any sign.
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
