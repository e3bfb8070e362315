"""How a plan is served from stock Triton containers: options and their checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flows.release.render.container_layout import label
from flows.release.render.container_repositories import Places
from flows.release.render.repository import check_dispatch
from triton_backend.contract.errors import InputError
from triton_backend.scheduler.policies import SERVING_POLICY

# Python 3.12 and current security fixes; any later one of the same Python will do.
TRITON_IMAGE = "nvcr.io/nvidia/tritonserver:25.08-py3"
TLS_KINDS = ("off", "server", "mutual")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_VALUE.pattern}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """How a plan is served from containers.

    Attributes:
        artifacts: root folder of the artifacts that the plan names.
        name: begins the names of containers, pods and services.
        triton_image: stock image that the example Dockerfile builds on.
        image: what that Dockerfile's image is called; None: after the name and the plan.
        namespace: of the Kubernetes objects.
        class_label: node label whose value is the GPU class.
        class_values: value of that label by GPU class, where it is not the class's name.
        tls: `off`, `server` or `mutual`: of the gateway's gRPC; HTTP is then on loopback only.
        metrics_address: where every Triton's Prometheus endpoint listens inside its container.
        request_gpus: False leaves `nvidia.com/gpu` out, for a rehearsal with emulated stages.
        hosts, gateway_host: addresses instead of the containers' names, by node name.
        bundle_folder, serve_folder, socket_folder: paths inside the containers.
    """

    artifacts: Path | None = None
    name: str = "poolpipe"
    triton_image: str = TRITON_IMAGE
    image: str | None = None
    namespace: str = "poolpipe"
    class_label: str = "poolpipe/gpu-class"
    class_values: Mapping[str, str] = field(default_factory=dict[str, str])
    tls: str = "off"
    metrics_address: str = "127.0.0.1"
    request_gpus: bool = True
    policy: str = SERVING_POLICY
    nic: str = "shared"
    guard_fraction: float = 0.1
    hosts: Mapping[str, str] = field(default_factory=dict[str, str])
    gateway_host: str | None = None
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    base_port: int = 18_500
    bundle_folder: Path = Path("/opt/poolpipe/bundle")
    serve_folder: Path = Path("/var/lib/poolpipe/serve")
    socket_folder: Path = Path("/run/poolpipe")

    def __post_init__(self) -> None:
        if self.tls not in TLS_KINDS:
            raise InputError("--tls", f"{self.tls!r} is none of {', '.join(TLS_KINDS)}")
        check_dispatch(self.policy, self.nic)
        self._check_names()

    def _check_names(self) -> None:
        for option in ("name", "namespace"):
            given = getattr(self, option)
            if not given or label(given) != given:
                raise InputError(f"--{option}", f"{given!r} is not a DNS label like 'poolpipe'")
        if not _LABEL_KEY.fullmatch(self.class_label):
            reason = f"{self.class_label!r} is not a label's key like 'poolpipe/gpu-class'"
            raise InputError("--class-label", reason)
        for gpu_class, value in self.class_values.items():
            if not _LABEL_VALUE.fullmatch(value):
                reason = f"{gpu_class}={value!r}: no value of a label"
                raise InputError("--class-value", reason)
        for option in ("image", "triton_image"):
            given = getattr(self, option)
            if given is not None and not _IMAGE.fullmatch(given):
                name = option.replace("_", "-")
                raise InputError(f"--{name}", f"{given!r} is not the name of an image")

    @property
    def places(self) -> Places:
        """Paths inside the containers."""
        return Places(
            bundle=self.bundle_folder, serve=self.serve_folder, sockets=self.socket_folder
        )
