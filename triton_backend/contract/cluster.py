"""The hardware a plan may use: GPU classes, nodes and their network links.

GPUs are identified by node (index in `Cluster.nodes` expanded in order, 0-based) and by GPU
(0-based on the node). All nodes of a cluster are numbered through, group after group.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields, check_name
from triton_backend.contract.shares import (
    LOADED,
    MAX_DIVISOR,
    MAX_PERCENT,
    MOST_PROCESSES,
    PER_PERCENT,
    SEVENTHS,
    SOLO,
    WHOLE_GPU,
    Mig,
    Part,
    share_text,
)

MAX_GPUS = 10_000_000  # of a cluster
NIC_GBPS = (1e-6, 1e6)  # slowest and fastest link
CLASS_NUMBERS = (
    "memory_gib",
    "taken_gib",
    "process_memory_gib",
    "load_gib_per_s",
    "load_ms",
    "hourly_cost",
    "power_w",
)
PERCENT_VGPUS = 2  # per GPU, where a class of percents does not say how many


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClass:
    """One kind of GPU. Cost is per GPU and hour, power in watts per GPU; None = not known.

    Attributes:
        vgpu_divisors: sizes 1/v a GPU may be cut into; empty where percents are listed.
        vgpu_percents: sizes in whole percents of a GPU.
        max_vgpus_per_gpu: None is the largest divisor, or 2 for percents.
        partitions: the only cuts of a GPU that are allowed, in percents; empty: any.
        mig: how its cards are divided into slices, in place of divisors and percents.
        taken_gib: memory of every GPU that others hold: models that are served beside a plan.
        process_memory_gib: what every process on the GPU takes beside its stages.
        load_gib_per_s: rate at which weights are loaded; None: nothing is loaded on demand.
        load_ms: what a load takes beside its bytes.
    """

    name: str
    vgpu_divisors: tuple[int, ...] = (1,)
    vgpu_percents: tuple[int, ...] = ()
    max_vgpus_per_gpu: int | None = None
    partitions: tuple[tuple[int, ...], ...] = ()
    mig: Mig | None = None
    memory_gib: float | None = None
    taken_gib: float | None = None
    process_memory_gib: float | None = None
    load_gib_per_s: float | None = None
    load_ms: float | None = None
    hourly_cost: float | None = None
    power_w: float | None = None

    def __post_init__(self) -> None:
        check_name("gpu_classes", self.name)
        if self.mig is not None:
            if (
                self.vgpu_divisors
                or self.vgpu_percents
                or self.max_vgpus_per_gpu is not None
                or self.partitions
            ):
                reason = "stands beside vgpu_divisors, vgpu_percents, max_vgpus_per_gpu or percents"
                raise InputError(f"gpu_classes.{self.name}.mig", reason)
            self.mig.check(f"gpu_classes.{self.name}")
        elif bool(self.vgpu_divisors) == bool(self.vgpu_percents):
            reason = "either vgpu_divisors or vgpu_percents must be listed, and not both"
            raise InputError(f"gpu_classes.{self.name}", reason)
        self._check_sizes("vgpu_divisors", self.vgpu_divisors, MAX_DIVISOR)
        self._check_sizes("vgpu_percents", self.vgpu_percents, MAX_PERCENT)
        if self.max_vgpus_per_gpu is not None and self.max_vgpus_per_gpu < 1:
            where = f"gpu_classes.{self.name}.max_vgpus_per_gpu"
            raise InputError(where, f"{self.max_vgpus_per_gpu} is not positive")
        for i, parts in enumerate(self.partitions):
            self._check_partition(f"gpu_classes.{self.name}.partitions[{i}]", parts)
        for field in CLASS_NUMBERS:
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise InputError(f"gpu_classes.{self.name}.{field}", f"{value} is not positive")
        if self.taken_gib is not None:
            self._check_taken(self.taken_gib)
        if self.load_ms is not None and self.load_gib_per_s is None:
            raise InputError(f"gpu_classes.{self.name}.load_ms", "needs load_gib_per_s beside it")

    def _check_taken(self, taken_gib: float) -> None:
        where = f"gpu_classes.{self.name}.taken_gib"
        if self.mig is not None:
            reason = "slices have memory of their own: leave those that are taken out of `devices`"
            raise InputError(where, reason)
        if self.memory_gib is None:
            raise InputError(where, "needs memory_gib, of which it is a part")
        if taken_gib >= self.memory_gib:
            reason = f"{taken_gib:g} of {self.memory_gib:g} GiB leaves nothing to plan with"
            raise InputError(where, reason)

    def _check_sizes(self, field: str, sizes: tuple[int, ...], most: int) -> None:
        if len(set(sizes)) < len(sizes) or not all(1 <= size <= most for size in sizes):
            raise InputError(
                f"gpu_classes.{self.name}.{field}",
                f"{list(sizes)} must be distinct whole numbers from 1 to {most}",
            )

    def _check_partition(self, where: str, parts: tuple[int, ...]) -> None:
        if not parts or sum(parts) > MAX_PERCENT:
            raise InputError(
                where, f"{list(parts)} must be percents of at most {MAX_PERCENT} in all"
            )
        unlisted = {part * PER_PERCENT for part in parts} - set(self.shares)
        if unlisted:
            reason = f"{list(parts)}: no vGPU of {share_text(min(unlisted))} is listed"
            raise InputError(where, reason)

    @property
    def shares(self) -> tuple[int, ...]:
        """Sizes of vGPUs in 300ths of a GPU, in the order listed."""
        if self.mig is not None:
            return self.mig.shares
        divisors = tuple(WHOLE_GPU // divisor for divisor in self.vgpu_divisors)
        return divisors + tuple(percent * PER_PERCENT for percent in self.vgpu_percents)

    @property
    def usable_gib(self) -> float | None:
        """Memory of one GPU that a plan may use; None where it is not limited."""
        return None if self.memory_gib is None else self.memory_gib - (self.taken_gib or 0.0)

    @property
    def basis(self) -> str:
        """Which latencies plans use: beside busy copies where all parts are equal, else alone.

        Slices of MIG do not disturb each other; a share of a slice says how many processes were
        busy in it.
        """
        return LOADED if self.vgpu_divisors else SOLO

    def parts(self, bases: Iterable[str] = ()) -> tuple[Part, ...]:
        """Measurements for it: every share, on the basis of its plans or on those given.

        Raises:
            InputError: its cards are divided by MIG; slices are measured as classes of their own.
        """
        if self.mig is not None:
            reason = "parts of slices are imported (vgpu_mig), not measured here; a class that"
            reason += " `poolpipe devices` makes of one slice is"
            raise InputError(f"gpu_classes.{self.name}.mig", reason)
        chosen = tuple(bases) or (self.basis,)
        known = {
            (s, LOADED if s == WHOLE_GPU else basis): None for s in self.shares for basis in chosen
        }
        return tuple(known)

    @property
    def most_vgpus(self) -> int:
        """vGPUs that one GPU may be cut into."""
        if self.mig is not None:
            return SEVENTHS * self.mig.processes
        return self.max_vgpus_per_gpu or max(self.vgpu_divisors, default=PERCENT_VGPUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` equal nodes. `nic_gbps` is the rate of each node's uplink and of its downlink.

    `devices`: what CUDA calls the GPUs of a single node, in order: uuids of GPUs or of MIG slices;
    None where their numbers do.
    """

    count: int
    gpu_class: str
    gpus: int
    nic_gbps: float
    host: str | None = None
    name: str | None = None
    devices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_name("nodes.gpu_class", self.gpu_class)
        if self.name is not None:
            check_name(f"nodes ({self.gpu_class}).name", self.name)
        for field in ("count", "gpus", "nic_gbps"):
            value = getattr(self, field)
            if not value > 0:
                raise InputError(f"nodes ({self.gpu_class}).{field}", f"{value} is not positive")
        if not NIC_GBPS[0] <= self.nic_gbps <= NIC_GBPS[1]:
            low, high = NIC_GBPS
            reason = f"{self.nic_gbps:g} is not within {low:g} and {high:g} Gbit/s"
            raise InputError(f"nodes ({self.gpu_class}).nic_gbps", reason)
        if self.devices is not None:
            self._check_devices(self.devices)

    def _check_devices(self, devices: tuple[str, ...]) -> None:
        where = f"nodes ({self.gpu_class}).devices"
        if self.count != 1:
            raise InputError(where, f"name the GPUs of one node, but count is {self.count}")
        if len(set(devices)) != self.gpus or len(devices) != self.gpus:
            raise InputError(where, f"{list(devices)} are not {self.gpus} different GPUs")

    def device(self, gpu: int) -> str:
        """CUDA's name of GPU number `gpu` of a node of the group."""
        return str(gpu) if self.devices is None else self.devices[gpu]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A named cluster, checked when built."""

    name: str
    gpu_classes: tuple[GpuClass, ...]
    nodes: tuple[NodeGroup, ...]

    def __post_init__(self) -> None:
        known = [c.name for c in self.gpu_classes]
        if len(set(known)) < len(known):
            raise InputError(f"cluster {self.name!r}", f"GPU class listed twice in {known}")
        for i, group in enumerate(self.nodes):
            if group.gpu_class not in known:
                raise InputError(
                    f"cluster {self.name!r}, nodes[{i}].gpu_class",
                    f"{group.gpu_class!r} is not one of the gpu_classes ({', '.join(known)})",
                )
        total = sum(group.count * group.gpus for group in self.nodes)
        if total > MAX_GPUS:
            raise InputError(f"cluster {self.name!r}, nodes", f"{total} GPUs, most are {MAX_GPUS}")
        names = self.node_group_names()
        for i, name in enumerate(names):
            check_name(f"cluster {self.name!r}, nodes[{i}]", name)
        if len(set(names)) < len(names):
            raise InputError(f"cluster {self.name!r}", f"node name used twice in {list(names)}")

    def gpu_class(self, name: str) -> GpuClass:
        """The class of that name.

        Raises:
            InputError: there is none.
        """
        for gpu_class in self.gpu_classes:
            if gpu_class.name == name:
                return gpu_class
        raise InputError(f"cluster {self.name!r}", f"no GPU class {name!r}")

    def gpus(self, gpu_class: str) -> int:
        """GPUs of a class in the whole cluster."""
        return sum(g.count * g.gpus for g in self.nodes if g.gpu_class == gpu_class)

    def max_gpus_per_node(self, gpu_class: str) -> int:
        """Largest number of GPUs that share one node's NIC, over the nodes of a class."""
        return max((g.gpus for g in self.nodes if g.gpu_class == gpu_class), default=0)

    def nic_gbps(self, gpu_class: str) -> float:
        """Slowest NIC among the nodes of a class (Gbit/s)."""
        return min((g.nic_gbps for g in self.nodes if g.gpu_class == gpu_class), default=0.0)

    @property
    def node_count(self) -> int:
        """Nodes of all groups."""
        return sum(group.count for group in self.nodes)

    def node_group_of(self, node: int) -> NodeGroup:
        """The group that node number `node` belongs to.

        Raises:
            InputError: there is no such node.
        """
        first = 0
        for group in self.nodes:
            if node < first + group.count:
                return group
            first += group.count
        raise InputError(f"cluster {self.name!r}", f"no node {node}, it has {first}")

    def node_group_names(self) -> tuple[str, ...]:
        """One name per group: its own, or its class's with a number where groups repeat."""
        names: list[str] = []
        seen: dict[str, int] = {}
        for group in self.nodes:
            if group.name is not None:
                names.append(group.name)
                continue
            repeat = seen.get(group.gpu_class, 0)
            seen[group.gpu_class] = repeat + 1
            names.append(group.gpu_class if repeat == 0 else f"{group.gpu_class}.{repeat}")
        return tuple(names)

    def node_name(self, node: int) -> str:
        """Name of a node: the group's, with the node's number in its group where it has several.

        Raises:
            InputError: there is no such node.
        """
        first = 0
        for group, name in zip(self.nodes, self.node_group_names(), strict=True):
            if node < first + group.count:
                return name if group.count == 1 else f"{name}-{node - first}"
            first += group.count
        raise InputError(f"cluster {self.name!r}", f"no node {node}, it has {first}")

    def node_index(self, name: str) -> int:
        """Inverse of `node_name`.

        Raises:
            InputError: there is no such node.
        """
        first = 0
        for group, group_name in zip(self.nodes, self.node_group_names(), strict=True):
            if group.count == 1 and name == group_name:
                return first
            head, _, tail = name.rpartition("-")
            if (
                group.count > 1
                and head == group_name
                and tail.isdigit()
                and int(tail) < group.count
            ):
                return first + int(tail)
            first += group.count
        raise InputError(f"cluster {self.name!r}", f"no node named {name!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `cluster.yaml`, without what is None."""
        return {
            "name": self.name,
            "gpu_classes": {c.name: _class_to_dict(c) for c in self.gpu_classes},
            "nodes": [
                _known(g, ("count", "gpu_class", "gpus", "nic_gbps", "host", "name"))
                | ({} if g.devices is None else {"devices": list(g.devices)})
                for g in self.nodes
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        return cls.read(Fields(data))

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """The same, where it stands in a file."""
        return cls(
            name=fields.text("name") if fields.has("name") else "cluster",
            gpu_classes=tuple(
                _read_class(name, given) for name, given in fields.named("gpu_classes").items()
            ),
            nodes=tuple(map(_read_group, fields.items("nodes"))),
        )


def _class_to_dict(gpu_class: GpuClass) -> dict[str, Any]:
    if gpu_class.mig is not None:
        return _mig_to_dict(gpu_class.mig) | _known(gpu_class, CLASS_NUMBERS)
    sizes = "vgpu_percents" if gpu_class.vgpu_percents else "vgpu_divisors"
    out: dict[str, Any] = {sizes: list(getattr(gpu_class, sizes))}
    if gpu_class.partitions:
        out["partitions"] = [list(parts) for parts in gpu_class.partitions]
    return out | _known(gpu_class, ("max_vgpus_per_gpu", *CLASS_NUMBERS))


def _mig_to_dict(mig: Mig) -> dict[str, Any]:
    inner: dict[str, Any] = {"card": mig.card}
    if mig.profiles:
        inner["profiles"] = list(mig.profiles)
    if mig.processes > 1:
        inner["processes"] = mig.processes
    cuts = {"partitions": [list(cut) for cut in mig.geometries]} if mig.geometries else {}
    return {"mig": inner} | cuts


def _read_mig(fields: Fields) -> Mig:
    """`mig` of a class, with the class's `partitions`, which list names of profiles there."""
    inner = fields.inner("mig")
    processes = (
        inner.integer("processes", least=1, most=MOST_PROCESSES) if inner.has("processes") else 1
    )
    return Mig(
        card=inner.text("card"),
        profiles=inner.texts("profiles") if inner.has("profiles") else (),
        processes=processes,
        geometries=fields.lists_of_texts("partitions") if fields.has("partitions") else (),
    )


def _read_class(name: str, fields: Fields) -> GpuClass:
    check_name("gpu_classes", name)
    known: dict[str, Any] = {n: fields.number(n) for n in CLASS_NUMBERS if fields.has(n)}
    if fields.has("mig"):
        known |= {"mig": _read_mig(fields), "vgpu_divisors": ()}
    if fields.has("vgpu_divisors"):
        known["vgpu_divisors"] = fields.integers("vgpu_divisors")
    if fields.has("vgpu_percents"):
        known["vgpu_percents"] = _read_percents(fields)
        known.setdefault("vgpu_divisors", ())
    if fields.has("max_vgpus_per_gpu"):
        known["max_vgpus_per_gpu"] = fields.integer("max_vgpus_per_gpu", least=1)
    if fields.has("partitions") and not fields.has("mig"):
        known["partitions"] = fields.lists_of_integers("partitions")
    return GpuClass(name=name, **known)


def _read_percents(fields: Fields) -> tuple[int, ...]:
    """A list of percents, or `{step, least}`: least, least + step, ... up to 100."""
    if not fields.is_object("vgpu_percents"):
        return fields.integers("vgpu_percents")
    given = fields.inner("vgpu_percents")
    step = given.integer("step", least=1, most=MAX_PERCENT)
    least = given.integer("least", least=1, most=MAX_PERCENT) if given.has("least") else step
    return tuple(range(least, MAX_PERCENT + 1, step))


def _read_group(fields: Fields) -> NodeGroup:
    return NodeGroup(
        count=fields.integer("count", least=1, most=MAX_GPUS),
        gpu_class=fields.text("gpu_class"),
        gpus=fields.integer("gpus", least=1, most=MAX_GPUS),
        nic_gbps=fields.number("nic_gbps"),
        devices=fields.texts("devices") if fields.has("devices") else None,
        **{name: fields.text(name) for name in ("host", "name") if fields.has(name)},
    )


def _known(item: object, fields: tuple[str, ...]) -> dict[str, Any]:
    values = {field: getattr(item, field) for field in fields}
    return {field: value for field, value in values.items() if value is not None}
