"""Which tritonserver is started, with which options, in which environment.

The server inside the PyTriton wheel, whose backend folder is laid out here as links into the wheel,
or the one of a Triton container (`server_root`).
"""

import contextlib
import os
import resource
import sys
import sysconfig
from collections.abc import Generator
from pathlib import Path

from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.beside import BESIDE_NAME
from triton_backend.serve_folder.endpoints import NO_TRITON, TOKEN_HEADER, Endpoints
from triton_backend.serve_folder.names import CLIENT_PARAMETER, PRIORITY_PARAMETER
from triton_backend.serve_folder.settings import ServeSettings

STAGE_PREFIX = "poolpipe_stage_"  # engines as models of their own, loaded only on demand
EXIT_TIMEOUT_SECONDS = 3
STACK_BYTES = 1 << 30
# Headers that fronts read as parameters.
FORWARDED = f"(?i)(traceparent|{PRIORITY_PARAMETER}|{CLIENT_PARAMETER})"
# Read here, where one thread runs: Python 3.11 fills its table without a lock, and another thread
# would read None in the midst.
_PACKAGES = Path(sysconfig.get_path("platlib"))
_LIBRARIES = str(sysconfig.get_config_var("LIBDIR"))
AS_WRITTEN = "--disable-auto-complete-config"  # configurations are complete; a load is faster


def wheel_folder() -> Path:
    """The folder of the PyTriton package.

    Raises:
        InputError: the wheel is not installed.
    """
    folder = _PACKAGES / "pytriton"
    if not (folder / "tritonserver" / "bin" / "tritonserver").is_file():
        raise InputError(str(folder), NO_TRITON)
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


def environment_folders() -> set[Path]:
    """This user's folders for Python environments of stubs.

    Triton's Python backend makes an empty one at every start, in a place of its own choice, and
    leaves it behind where it is killed.
    """
    found: set[Path] = set()
    for path in Path("/tmp").glob("python_env_*"):  # noqa: S108  # the backend's choice
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid():
                found.add(path)
    return found


def server_environment() -> dict[str, str]:
    """The environment in which the server's stubs find this interpreter and its packages."""
    libraries = [_LIBRARIES, str(_PACKAGES / "nvidia_pytriton.libs")]
    # The stub embeds libpython, which looks for its packages beside the `python3` on PATH.
    source = str(Path(__file__).resolve().parents[3])
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": ":".join(filter(None, [source, os.environ.get("PYTHONPATH")])),
    }


@contextlib.contextmanager
def large_stack() -> Generator[None]:
    """Processes started within have a stack of `STACK_BYTES`, as far as limits allow.

    Triton 2.51 parses JSON and chunked bodies by recursion: with the usual 8 MiB one request nested
    40,000 deep, or in 600,000 chunks, ends it. Unlimited is worse: its threads then get 2 MiB.
    """
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, stack_limits())
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)


def stack_limits() -> tuple[int, int]:
    """Soft and hard limit of the stack that a server is started with (bytes)."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    return STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard), hard


def server_command(
    settings: ServeSettings, endpoints: Endpoints, server_root: Path | None
) -> list[str]:
    """The `tritonserver` command line; `server_root` None is the server of the PyTriton wheel."""
    if server_root is None:
        root, backends = wheel_folder() / "tritonserver", lay_out_backends(settings.place)
    else:
        root, backends = server_root, server_root / "backends"
    repository = settings.place / "repository"
    models = sorted(p.name for p in repository.iterdir() if not p.name.startswith(STAGE_PREFIX))
    return [
        str(root / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        *_beside_flags(settings),
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={settings.stub_prefix}",
        "--backend-config=python,shm-default-byte-size=4194304",
        *_access_flags(endpoints, settings.token),
        f"--http-port={endpoints.http}",
        f"--grpc-port={endpoints.grpc}",
        f"--metrics-port={endpoints.metrics_port(settings.gateway)}",
        *_sharing_flags(settings.server_id),
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in models),
        f"--exit-timeout-secs={EXIT_TIMEOUT_SECONDS}",
        "--allow-gpu-metrics=false",
        "--allow-cpu-metrics=false",
        "--log-format=ISO8601",
        f"--http-header-forward-pattern={FORWARDED}",
        f"--grpc-header-forward-pattern={FORWARDED}",
    ]


def _beside_flags(settings: ServeSettings) -> list[str]:
    """Of a server that has models beside the plan, which are loaded once it is ready.

    One that is not loaded must not make planned models look as if they were not ready.
    """
    complete = [] if settings.beside and settings.beside.completes else [AS_WRITTEN]
    if settings.beside is None:
        return complete
    links = settings.place / BESIDE_NAME
    links.mkdir(exist_ok=True)
    return [*complete, f"--model-repository={links}", "--strict-readiness=false"]


def _sharing_flags(server_id: str | None) -> list[str]:
    """Of a server that shares its ports with another.

    The kernel gives each connection to one of them. Models load one at a time: stubs that import
    their packages all at once take the cores from the server that goes on.
    """
    if server_id is None:
        return []
    return [
        f"--id={server_id}",
        "--reuse-http-port=true",
        "--reuse-grpc-port=true",
        "--model-load-thread-count=1",
    ]


def _access_flags(endpoints: Endpoints, token: str) -> list[str]:
    """The part of the command line that is about access."""
    restricted = f"{','.join(endpoints.restricted)}:{TOKEN_HEADER}={token}"
    flags = [
        f"--http-address={endpoints.http_address}",
        f"--grpc-address={endpoints.address}",
        f"--metrics-address={endpoints.metrics_address}",
        f"--http-restricted-api={restricted}",
        f"--grpc-restricted-protocol={restricted}",
    ]
    tls = endpoints.tls
    if tls is not None:
        flags += [
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={tls.certificate.resolve()}",
            f"--grpc-server-key={tls.key.resolve()}",
        ]
        if tls.client_authority is not None:
            flags += [
                "--grpc-use-ssl-mutual=true",
                f"--grpc-root-cert={tls.client_authority.resolve()}",
            ]
    return flags
