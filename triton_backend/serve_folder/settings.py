"""The settings of a running system.

One dataclass, which the offline half writes and every process reads. `ServeOptions` is what the
process that serves a plan may choose; `ServeSettings` adds what makes one running system of it:
names, folders, the token. The file is `settings.json` in the serve folder.
"""

import json
import re
import secrets
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import LARGEST, check_name, is_ipv4
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.measured.guard import kept_back_us
from triton_backend.serve_folder.beside import Beside
from triton_backend.serve_folder.files import PRIVATE, write_whole
from triton_backend.serve_folder.names import short_name

SETTINGS_NAME = "settings.json"
THIS_HOST = "127.0.0.1"
USUAL_NIC = "shared"
PLANNED, OVERLAP = "planned", "overlap"
LOW, REFUSED = "low", "refused"
LEAST_QUOTA_RPS = 0.001
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a plan is served.

    Attributes:
        artifacts: root of the artifacts that plans name; None for emulated plans only.
        policy: of the scheduler, for all models; None: what the plan says of each.
        late_binding: changes to the rules of policies of late binding, by name (`late_rules`).
        nic: of the scheduler.
        emulate_links: transfers last as long as on the cluster's own links; None: they do where no
            stage has an artifact.
        noise: standard deviation of emulated latencies as a fraction of the latency; `seed` its.
        time_stretch: emulated latencies and transfers last this many times what the plan says;
            the plan must have been stretched alike.
        interference: what emulated runs last beside those on other vGPUs of their GPU: `planned`,
            as the plan reckons, or `overlap`, by what really runs there meanwhile.
        guard_fraction: part of a request's time that is kept back from the scheduler, for the way
            to and from it and for this machine's jitter; its timers ring as much earlier again.
            None: both are what fronts measure (`scheduler/measured/guard.py`).
        checksum_up_to_bytes: tensors up to this size carry a checksum between processes.
        hosts: address of each node's host by node name; nodes not named run on this one.
        gateway_host: address of the host of fronts and scheduler, as nodes elsewhere reach it.
        base_port: first of the TCP ports used when there are several hosts.
        host_http_port: HTTP port of the other hosts' Tritons, where a rollout loads their nodes.
        standby: keep a second scheduler that takes over where the first dies or hangs.
        gateways: servers that take requests, one or two, on the same ports; of two each has fronts
            of its own, one the scheduler and the other its standby.
        cut_models: a model with entries has, for every open cut, a Triton model that takes the
            tensors of that cut alone.
        beside: models of another repository that the same server loads; None: there are none.
        quotas: requests/s that a client may send, by the name it asks for and its own name.
        over_quota: fate of requests beyond them: `low` or `refused`.

    Raises:
        InputError: a value that the scheduler or an emulated stage would refuse once it is started,
            a host that is no name, two gateways that could not stand in for each other, or a quota
            of no client or rate.
    """

    artifacts: Path | None = None
    policy: str | None = None
    late_binding: Mapping[str, Any] = field(default_factory=dict[str, Any])
    nic: str = USUAL_NIC
    emulate_links: bool | None = None
    noise: float = 0.0
    seed: int = 0
    time_stretch: float = 1.0
    interference: str = PLANNED
    guard_fraction: float | None = None
    checksum_up_to_bytes: int = 1 << 14
    hosts: Mapping[str, str] = field(default_factory=dict[str, str])
    gateway_host: str = THIS_HOST
    base_port: int = 18_500
    host_http_port: int = 8000
    standby: bool = True
    gateways: int = 1
    cut_models: bool = False
    beside: Beside | None = None
    quotas: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict[str, Mapping[str, float]]
    )
    over_quota: str = LOW

    def __post_init__(self) -> None:
        if self.gateways not in {1, 2}:
            raise InputError(f"--gateways {self.gateways}", "is neither 1 nor 2")
        if self.gateways > 1 and not self.standby:
            raise InputError("--gateways 2", "needs the standby scheduler (no --no-standby)")
        check_host("--gateway-host", self.gateway_host)
        for node, host in self.hosts.items():
            check_host(f"host of {node}", host)
        if self.gateways > 1 and self.hosts:
            named = ", ".join(self.hosts)
            raise InputError("--gateways 2", f"all nodes must run on this host, {named} do not")
        if self.gateways > 1 and self.beside is not None:
            reason = "does not go with --beside: each server would load those models for itself"
            raise InputError("--gateways 2", reason)
        if self.policy is not None or self.nic != USUAL_NIC or self.late_binding:
            _check_choices(self.policy, self.nic, self.late_binding)
        guard = self.guard_fraction or 0.0
        if not (0 <= guard < 1 and self.noise >= 0 and self.time_stretch > 0):
            raise InputError(
                "serve settings",
                f"guard {guard}, noise {self.noise}, time stretch {self.time_stretch}",
            )
        if self.interference not in {PLANNED, OVERLAP}:
            reason = f"interference {self.interference!r} is neither {PLANNED} nor {OVERLAP}"
            raise InputError("serve settings", reason)
        self._check_quotas()

    def _check_quotas(self) -> None:
        if self.over_quota not in {LOW, REFUSED}:
            reason = f"{self.over_quota!r} is neither {LOW} nor {REFUSED}"
            raise InputError("--over-quota", reason)
        for name, rates_rps in self.quotas.items():
            for client, rate_rps in rates_rps.items():
                where = f"--quota {name}:{client}"
                check_name(where, client)
                if not LEAST_QUOTA_RPS <= rate_rps <= LARGEST:
                    allowed = f"{LEAST_QUOTA_RPS:g} to {LARGEST:g} are allowed"
                    raise InputError(where, f"{rate_rps:g} requests/s, {allowed}")

    def guard_us(self, allowed_us: int) -> int:
        """Kept back of the time that a request allows, unless what is measured asks for more."""
        return kept_back_us(self.guard_fraction, allowed_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings(ServeOptions):
    """One running system.

    Attributes:
        system: the same on all hosts; frames of another system are refused.
        instance: prefix of all this host leaves outside its folder (shared memory, sockets).
        folder: state file, model repository, generations, logs and event files.
        socket_folder: Unix sockets (short, because their paths may have 107 bytes).
        token: opens the repository API and the control request; the key of TCP connections
            is derived from it.
        python: interpreter that workers run under.
        gateway: which of the gateways reads these settings, counted from 0; others write 0.
    """

    system: str
    instance: str
    folder: Path
    socket_folder: Path
    token: str
    python: str
    gateway: int = 0

    @classmethod
    def of(cls, options: ServeOptions, **own: Any) -> Self:
        """Options, or the settings of another host, with what is a system's or a host's own."""
        return cls(**{**_chosen(options), **own})

    @classmethod
    def begin(cls, folder: Path, plan: Plan, options: ServeOptions) -> Self:
        """A new system of this machine, with names and a token of its own."""
        own = _own(folder, options.artifacts)
        if options.emulate_links is None:
            own["emulate_links"] = not plan_artifacts(plan)
        token = secrets.token_urlsafe(24)
        return cls.of(options, **own, system=own["instance"], token=token)

    def for_host(self, folder: Path, artifacts: Path | None) -> Self:
        """The same system's settings on another host than the gateway's."""
        return self.of(self, **_own(folder, artifacts), beside=None)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the settings file.

        Raises:
            InputError: it is missing or not a settings file.
        """
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            artifacts = data.pop("artifacts", None)
            beside = data.pop("beside", None)
            return cls(
                folder=Path(data.pop("folder")),
                socket_folder=Path(data.pop("socket_folder")),
                artifacts=None if artifacts is None else Path(artifacts),
                beside=None if beside is None else Beside.from_dict(beside),
                **data,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(str(path), f"not a settings file: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in the file."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in _chosen(self).items()
        } | {"beside": None if self.beside is None else self.beside.to_dict()}

    def write(self, path: Path) -> None:
        """Write the settings file, for its owner alone."""
        write_whole(path, json.dumps(self.to_dict(), indent=1) + "\n", mode=PRIVATE)

    @property
    def place(self) -> Path:
        """Where this gateway's server has its own: model repository, process ids, backends."""
        return gateway_folder(self.folder, self.gateway)

    @property
    def path(self) -> Path:
        """The settings file."""
        return self.place / SETTINGS_NAME

    def of_gateway(self, number: int) -> "ServeSettings":
        """The same system's settings as another of its gateways reads them."""
        return replace(self, gateway=number)

    @property
    def server_id(self) -> str | None:
        """The name of this gateway's server where two share their ports.

        None where it is alone.
        """
        return server_id(self.gateway) if self.gateways > 1 else None

    @property
    def segment_prefix(self) -> str:
        """How every shared-memory segment of this system begins."""
        return f"poolpipe-{self.instance}-"

    @property
    def stub_prefix(self) -> str:
        """How the segments of Triton's own Python backend begin."""
        number = f"{self.gateway + 1}-" if self.gateways > 1 else ""
        return f"poolpipe-{self.instance}-stub{number}"

    def generation_folder(self, generation: int) -> Path:
        """Where a generation's plan lies."""
        return self.folder / "generations" / str(generation)

    def scheduler_address(self) -> str:
        """Where the scheduler listens on its own host."""
        return f"unix:{self.socket_folder}/scheduler"

    def scheduler_address_from(self, node: str) -> str:
        """Where processes of a node reach the scheduler."""
        if node in self.hosts:
            return f"tcp:{self.gateway_host}:{self.base_port}"
        return self.scheduler_address()

    def front_address(self, model: str, gateway: int = 0) -> str:
        """Where the front of a model in one of the gateways takes answers on its own host."""
        return f"unix:{self.socket_folder}/front-{short_name(model)}{gateway_suffix(gateway)}"


def gateway_folder(folder: Path, gateway: int) -> Path:
    """Where a gateway has its own, below the serve folder.

    The first has the serve folder itself.
    """
    return folder / f"gateway{gateway_suffix(gateway)}" if gateway else folder


def server_id(gateway: int) -> str:
    """The name of the server of one of two gateways."""
    return f"gateway-{gateway + 1}"


def gateway_suffix(gateway: int) -> str:
    """Suffix of a second gateway's names; empty for the first."""
    return f"-{gateway + 1}" if gateway else ""


def plan_artifacts(plan: Plan) -> tuple[str, ...]:
    """Names of the artifacts that a plan's stages run, each once; none where all are emulated."""
    stages = (stage for m in plan.models for p in m.pipelines for stage in p.stages)
    return tuple(sorted({stage.artifact for stage in stages if stage.artifact is not None}))


def check_host(where: str, host: str) -> None:
    """Refuse what is no host: it becomes part of addresses and of files for scripts.

    Raises:
        InputError: it is no IPv4 address and no name.
    """
    numeric = host.replace(".", "").isdigit()
    if not _HOST.fullmatch(host) or (numeric and not is_ipv4(host)):
        raise InputError(where, f"{host!r} is no IPv4 address and no name of a host")


def _check_choices(policy: str | None, nic: str, late_binding: Mapping[str, Any]) -> None:
    # Imported here: the scheduler's kernels take a second to load, and most systems choose none.
    from triton_backend.scheduler.plan_rows import check_nic  # noqa: PLC0415
    from triton_backend.scheduler.policies.late_rules import check_changes  # noqa: PLC0415
    from triton_backend.scheduler.policies.registry import policy_number  # noqa: PLC0415

    if policy is not None:
        policy_number(policy)
    check_nic(nic)
    check_changes(late_binding)


def _chosen(options: ServeOptions) -> dict[str, Any]:
    values = {entry.name: getattr(options, entry.name) for entry in fields(options)}
    quotas = {name: dict(rates_rps) for name, rates_rps in options.quotas.items()}
    tables = {"hosts": dict(options.hosts), "late_binding": dict(options.late_binding)}
    return values | tables | {"quotas": quotas}


def _own(folder: Path, artifacts: Path | None) -> dict[str, Any]:
    """Settings of this host alone."""
    instance = secrets.token_hex(4)
    return {
        "instance": instance,
        "folder": folder.resolve(),
        "socket_folder": Path(tempfile.gettempdir()) / f"poolpipe-{instance}",
        "artifacts": None if artifacts is None else artifacts.resolve(),
        "python": sys.executable,
    }
