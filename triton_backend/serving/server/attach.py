"""A plan beside the models that a PyTriton program binds itself, in PyTriton's server.

    from pytriton.triton import Triton
    from triton_backend import attach

    with Triton(config=attach("plan.json")) as triton:
        triton.bind("mine", ...)
        triton.serve()

PyTriton loads every model of the repository that it is given: fronts, scheduler and nodes are
native models and need nothing else of the program. There is no keeper here: the process that starts
the server keeps it well, so a front or scheduler whose process dies stays away until the program
ends. Workers are their node's, which renews them.
"""

import atexit
import json
import os
import resource
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import LOOPBACK
from triton_backend.serve_folder.files import make_private_folder
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings, plan_artifacts
from triton_backend.serving.server.command import (
    EXIT_TIMEOUT_SECONDS,
    server_environment,
    stack_limits,
)
from triton_backend.serving.transport.shared_memory import remove_segments

ARTIFACTS = Path(".poolpipe/artifacts")
TRACES = "(?i)traceparent"


def attach(
    plan: Plan | Path | str,
    config: Any = None,
    *,
    options: ServeOptions | None = None,
    folder: Path | None = None,
) -> Any:
    """Make a plan ready to be served by the server that PyTriton starts next in this program.

    Everything listens on loopback unless `config` says otherwise. At the program's end sockets and
    shared memory are removed.

    Args:
        plan: a plan, or the file of one.
        config: a `pytriton.triton.TritonConfig` whose settings stay; it must name no model
            repository.
        options: how to serve; where it names no artifacts, those of the project in this folder.
        folder: for repository and settings; a temporary one where none is given.

    Returns:
        a `TritonConfig`, for `Triton(config=...)`.

    Raises:
        InputError: the plan cannot be read or served, spans several hosts, or the configuration has
            a model repository of its own.
    """
    from pytriton.triton import TritonConfig  # noqa: PLC0415  # only its programs have it at hand

    given = TritonConfig() if config is None else config
    if given.model_repository is not None:
        raise InputError(
            "attach", f"PyTriton loads one repository, {given.model_repository} is another"
        )
    found = plan if isinstance(plan, Plan) else _read_plan(Path(plan))
    asked = options or ServeOptions()
    if asked.artifacts is None and plan_artifacts(found):
        asked = replace(asked, artifacts=ARTIFACTS)
    if asked.beside is not None:
        raise InputError("attach", "models beside the plan are served by `poolpipe serve`")
    if asked.hosts or any(group.host for group in found.cluster.nodes):
        raise InputError("attach", "a plan of several hosts is served by `poolpipe serve`")
    place = folder or Path(tempfile.mkdtemp(prefix="poolpipe-attached-"))
    settings = render_repository(place, found, asked)
    make_private_folder(settings.socket_folder)
    atexit.register(_clean, settings, None if folder else place)
    os.environ.update(server_environment())
    resource.setrlimit(resource.RLIMIT_STACK, stack_limits())
    usual = {
        "http_address": LOOPBACK,
        "grpc_address": LOOPBACK,
        "metrics_address": LOOPBACK,
        "exit_timeout_secs": EXIT_TIMEOUT_SECONDS,
        "http_header_forward_pattern": TRACES,
        "grpc_header_forward_pattern": TRACES,
    }
    missing = {name: value for name, value in usual.items() if getattr(given, name) is None}
    return replace(given, model_repository=settings.folder / "repository", **missing)


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"is no plan: {error}") from error


def _clean(settings: ServeSettings, folder: Path | None) -> None:
    """After PyTriton has ended its server: what models of ours left behind outside of it."""
    remove_segments(settings.segment_prefix)
    shutil.rmtree(settings.socket_folder, ignore_errors=True)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
