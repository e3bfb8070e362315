"""Names of containers, and requests to Kubernetes, as options; loads nothing that renders."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flows.options import check_options, option
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import NO_ADDRESS, is_ipv4

# NVIDIA's bulletin 5828 of May 2026 (CVE-2026-24206 to 24209: requests without a login) is mended
# from 26.03 on; this is the newest release known. It wants cards of compute capability 7.5 and
# later: older ones need an image without the fixes.
TRITON_IMAGE = "nvcr.io/nvidia/tritonserver:26.10-py3"
LONGEST_LABEL = 63 - len("-0000")
CONTAINERS, KUBERNETES, ENDPOINTS = "Containers", "Kubernetes", "Endpoints"  # panels of the help
MOST_GPUS = 64
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_VALUE.pattern}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


def label(text: str) -> str:
    """A text as a DNS label."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_LABEL].strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerChoices:
    """Names, images, endpoints and devices of the containers.

    Attributes:
        name: begins the names of containers, pods and services.
        image: of the Dockerfile that is written; None: after the name and the plan.
        triton_image: stock image that the Dockerfile builds on.
        namespace: of the Kubernetes objects.
        class_label: node label whose value is the GPU class.
        class_values: value of that label by GPU class, where it is not the class's name.
        tls: of the gateway's gRPC; HTTP is then on loopback only.
        metrics_address: where every Triton's Prometheus endpoint listens inside its container.
        beside_gpus: GPUs of the gateway's container, for the models beside the plan.
        request_gpus: False asks Kubernetes for no devices, for a rehearsal with emulated stages.
        gpu_claims: pods ask for devices by claims (DRA) in place of the device plugin's resources.
        mig_strategy: of the device plugin: under `single` MIG slices have the name of whole GPUs.
        kserve: the gateway is an InferenceService of KServe in place of a StatefulSet.
    """

    name: str = option(
        "poolpipe",
        help="First part of the names of containers and services.",
        metavar="NAME",
        panel=CONTAINERS,
    )
    image: str | None = option(
        None, help="Name of the image that the bundle builds.", metavar="IMAGE", panel=CONTAINERS
    )
    triton_image: str = option(
        TRITON_IMAGE,
        help="Stock Triton image that the Dockerfile starts from.",
        metavar="IMAGE",
        panel=CONTAINERS,
    )
    namespace: str = option(
        "poolpipe", help="Namespace of the Kubernetes objects.", metavar="NAME", panel=KUBERNETES
    )
    class_label: str = option(
        "poolpipe/gpu-class",
        help="Node label whose value is the GPU class.",
        metavar="LABEL",
        panel=KUBERNETES,
    )
    class_values: Mapping[str, str] = option(
        {},
        help="Value of that label for a class; by default the class's name.",
        metavar="CLASS=VALUE",
        panel=KUBERNETES,
        spelled="--class-value",
    )
    tls: str = option(
        "off",
        help="TLS of the gateway's gRPC endpoint: none, of the server, or of both sides.",
        choices=("off", "server", "mutual"),
        panel=ENDPOINTS,
    )
    metrics_address: str = option(
        "127.0.0.1",
        help="Address on which every container serves Prometheus metrics.",
        metavar="HOST",
        panel=ENDPOINTS,
    )
    beside_gpus: int = option(
        0,
        help="GPUs of the gateway's container, for the models of --beside.",
        least=0,
        most=MOST_GPUS,
        panel=CONTAINERS,
    )
    request_gpus: bool = option(
        default=True,
        help="Request GPUs from Kubernetes, except for emulated stages.",
        panel=KUBERNETES,
    )
    gpu_claims: bool = option(
        default=False,
        help="Request GPUs by claims (DRA, from Kubernetes 1.34 on) rather than as resources of"
        " the device plugin.",
        panel=KUBERNETES,
    )
    mig_strategy: str = option(
        "mixed",
        help="MIG strategy of the device plugin: slices are resources named after their profile,"
        " or all are nvidia.com/gpu.",
        choices=("mixed", "single"),
        panel=KUBERNETES,
    )
    kserve: bool = option(
        default=False,
        help="Write the gateway as an InferenceService of KServe rather than a StatefulSet.",
        panel=KUBERNETES,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.gpu_claims and not self.request_gpus:
            raise InputError("--gpu-claims", "claims nothing with --no-request-gpus")
        if self.gpu_claims and self.mig_strategy == "single":
            raise InputError("--mig-strategy single", "is of the device plugin: no --gpu-claims")
        if self.kserve and self.tls != "off":
            raise InputError(f"--tls {self.tls}", "KServe asks the gateway over HTTP: no --kserve")
        self._check_names()

    def _check_names(self) -> None:
        for given in ("name", "namespace"):
            value = getattr(self, given)
            if not value or label(value) != value:
                limit = f"of at most {LONGEST_LABEL} characters"
                reason = f"{value!r} is not a DNS label like 'poolpipe', {limit}"
                raise InputError(f"--{given}", reason)
        if not self.name[0].isalpha():  # as names of services must, but for the newest Kubernetes
            raise InputError(f"--name {self.name}", "must begin with a letter")
        if not _LABEL_KEY.fullmatch(self.class_label):
            reason = f"{self.class_label!r} is not a label's key like 'poolpipe/gpu-class'"
            raise InputError("--class-label", reason)
        for gpu_class, value in self.class_values.items():
            if not _LABEL_VALUE.fullmatch(value):
                reason = f"{gpu_class}={value!r}: no value of a label"
                raise InputError("--class-value", reason)
        if not is_ipv4(self.metrics_address):  # it becomes part of a script
            raise InputError("--metrics-address", f"{self.metrics_address!r} {NO_ADDRESS}")
        for given in ("image", "triton_image"):
            value = getattr(self, given)
            if value is not None and not _IMAGE.fullmatch(value):
                flag = given.replace("_", "-")
                raise InputError(f"--{flag}", f"{value!r} is not the name of an image")
