"""Which tritonserver is started, with which options, in which environment.

The server inside the PyTriton wheel, whose backend folder is laid out here as links into the wheel,
or the one of a Triton container (`server_root`).
"""

import os
import socket
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.server.access import Access

STAGE_PREFIX = "poolpipe_stage_"  # engines as models of their own, loaded only on demand
EXIT_TIMEOUT_SECONDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the server listens, and which server it is.

    `server_root` holds `bin/tritonserver` and `backends`; None: the PyTriton wheel's.
    """

    access: Access
    http: int
    grpc: int
    metrics: int
    server_root: Path | None = None

    def check_free(self) -> None:
        """Refuse a port somebody else listens on.

        Raises:
            InputError: naming the port.
        """
        listening = (
            ("http", self.http, self.access.http_address),
            ("grpc", self.grpc, self.access.address),
            ("metrics", self.metrics, self.access.metrics_address),
        )
        for name, port, address in listening:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, port))
                except OSError as error:
                    raise InputError(
                        f"--{name}-port {port}", f"cannot be listened on at {address}: {error}"
                    ) from error


def wheel_folder() -> Path:
    """The folder of the PyTriton package.

    Raises:
        InputError: the wheel is not installed.
    """
    folder = Path(sysconfig.get_path("platlib")) / "pytriton"
    if not (folder / "tritonserver" / "bin" / "tritonserver").is_file():
        raise InputError(str(folder), "no tritonserver; install nvidia-pytriton")
    return folder


def lay_out_backends(folder: Path) -> Path:
    """A backend folder with the Python backend and the stub of this Python's version."""
    wheel = wheel_folder() / "tritonserver"
    python = folder / "backends" / "python"
    python.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    sources = [
        wheel / "backends" / "python" / "libtriton_python.so",
        wheel / "backends" / "python" / "triton_python_backend_utils.py",
        wheel / "python_backend_stubs" / version / "triton_python_backend_stub",
    ]
    for source in sources:
        link = python / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source)
    return python.parent


def server_environment() -> dict[str, str]:
    """The environment in which the server's stubs find this interpreter and its packages."""
    libraries = [
        str(sysconfig.get_config_var("LIBDIR")),
        str(Path(sysconfig.get_path("platlib")) / "nvidia_pytriton.libs"),
    ]
    # The stub embeds libpython, which looks for its packages beside the `python3` on PATH.
    source = str(Path(__file__).resolve().parents[3])
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": ":".join(filter(None, [source, os.environ.get("PYTHONPATH")])),
    }


def server_command(settings: ServeSettings, ports: Ports) -> list[str]:
    """The `tritonserver` command line."""
    if ports.server_root is None:
        root, backends = wheel_folder() / "tritonserver", lay_out_backends(settings.folder)
    else:
        root, backends = ports.server_root, ports.server_root / "backends"
    repository = settings.folder / "repository"
    models = sorted(p.name for p in repository.iterdir() if not p.name.startswith(STAGE_PREFIX))
    return [
        str(root / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={settings.stub_prefix}",
        "--backend-config=python,shm-default-byte-size=4194304",
        *ports.access.flags(settings.token),
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--disable-auto-complete-config",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in models),
        f"--exit-timeout-secs={EXIT_TIMEOUT_SECONDS}",
        "--allow-gpu-metrics=false",
        "--allow-cpu-metrics=false",
        "--log-format=ISO8601",
        "--http-header-forward-pattern=(?i)traceparent",
        "--grpc-header-forward-pattern=(?i)traceparent",
    ]
