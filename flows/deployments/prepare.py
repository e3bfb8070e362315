"""`prepare-model`: an ONNX file split, built and profiled on every class of a cluster. Thin.

Classes are measured at the same time, each by a worker of its own work pool where there is one
(`scripts/operations up --class NAME`), else here.
"""

import json
from typing import Any
from uuid import UUID

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import raise_state_exception

from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace, holding
from flows.deployments.parameters import PrepareParameters, ProfileClassParameters
from flows.files import read_cluster, read_device_classes
from flows.preparation.profiling.class_profile import (
    ClassProfile,
    ClassRequest,
    device_limits,
    keep_profile,
    known_cells,
    measure_class,
    own_gpu,
)
from flows.preparation.profiling.devices import list_devices
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.stored_split import split_step
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError


# Each step finds by content what an earlier run left, so Prefect need not remember results.
@task(name="split", cache_policy=NO_CACHE)
def split(work: Workspace, parameters: PrepareParameters) -> SplitModel:
    """Blocks and boundaries into the warehouse."""
    return split_step(
        work,
        parameters.model,
        parameters.name,
        blocks=parameters.blocks,
        max_batch=parameters.max_batch,
        layer_times=parameters.layer_times,
        choices=parameters.choices(),
    )


@task(name="profile", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=30)
def profile(work: Workspace, request: ClassRequest) -> ClassProfile:
    """Every cell of a class; what was measured before a failure is kept where it was measured."""
    name = f"profile-class/{request.gpu_class}"
    if not _is_deployed(name):
        gpu = None if request.device else own_gpu(list_devices(), request.gpu_class)
        with holding(*device_limits(request, gpu)):
            return measure_class(work, request, gpu)
    asked = ProfileClassParameters.of(request).model_dump(mode="json")
    run: Any = run_deployment(name, parameters={"parameters": asked})
    if not run.state.is_completed():
        raise_state_exception(run.state)
    return ClassProfile.from_rows(_rows_of(run.id))


@of_form
@flow(name="prepare-model", timeout_seconds=6 * 3600)
def prepare_model(parameters: PrepareParameters) -> dict[str, Any]:
    """Split, build, profile.

    Raises:
        InputError: the model cannot be split, or a class cannot be measured anywhere.
    """
    work = flow_workspace(parameters.warehouse)
    devices, cluster = read_device_classes(parameters.cluster), read_cluster(parameters.cluster)
    model = split(work, parameters)
    requests = [
        ClassRequest(
            split=model.folder,
            gpu_class=c.name,
            parts=c.parts(),
            device=devices.get(c.name),
            precision=parameters.precision,
            known=known_cells(work, model, c.name),
        )
        for c in cluster.gpu_classes
    ]
    measuring = {request.gpu_class: profile.submit(work, request) for request in requests}
    found = {name: future.result() for name, future in measuring.items()}
    measured = {name: keep_profile(work, model, name, each) for name, each in found.items()}
    create_table_artifact(
        table=[
            {"class": r.gpu_class, "divisor": r.vgpu_divisor, "batch": r.batch}
            | {"blocks / whole": r.blocks_us / r.whole_us}
            for each in found.values()
            for r in each.ratios
        ],
        key="profile",
        description=f"{model.name}: {model.blocks} blocks, cells measured {measured}",
    )
    return {"model": model.name, "blocks": model.blocks, "cells_measured": measured}


def _is_deployed(name: str) -> bool:
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(name)
        except ObjectNotFound:
            return False
    return True


def _rows_of(run_id: UUID) -> list[dict[str, Any]]:
    """The table of a run of `profile-class`.

    Raises:
        InputError: nothing.
    """
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    with get_client(sync_client=True) as client:
        tables = [a for a in client.read_artifacts(artifact_filter=wanted) if a.type == "table"]
    if not tables:
        raise InputError(f"run {run_id} of profile-class", "left no table of cells")
    rows: Any = tables[0].data
    return json.loads(rows) if isinstance(rows, str) else rows
