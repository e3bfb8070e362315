"""`prepare-model`: an ONNX file split, built and profiled on every class of a cluster. Thin."""

from typing import TYPE_CHECKING, Any, cast

from prefect import flow, task
from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.concurrency.sync import concurrency

from flows.files import read_cluster, read_device_classes
from flows.parameters import PrepareParameters
from flows.profiling.devices import list_devices
from flows.profiling.measure import CellKey
from flows.splitting.model import SplitModel
from flows.steps.prepare import ClassToProfile, Prepared, profile_step, split_step
from flows.steps.workspace import Workspace, workspace
from triton_backend.core.errors import InputError

if TYPE_CHECKING:
    from uuid import UUID


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
    )


@task(name="build-and-profile", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=30)
def profile(work: Workspace, model: SplitModel, classes: list[ClassToProfile]) -> Prepared:
    """Every missing cell; what was measured before a failure is kept."""
    # Prefect types what it returns for asynchronous callers too.
    artifact = cast("UUID", create_progress_artifact(0.0, description=f"profile of {model.name}"))

    def progress(done: int, total: int, key: CellKey) -> None:
        if done % 25 == 0:
            update_progress_artifact(
                artifact, progress=100.0 * done / total, description=f"{key.gpu_class} {key.block}"
            )

    # Nothing else may run on a GPU that is being measured.
    with concurrency([f"gpu:{device.uuid}" for device in list_devices()]):
        prepared = profile_step(work, model, classes, progress=progress)
    update_progress_artifact(artifact, progress=100.0)
    return prepared


@flow(name="prepare-model", timeout_seconds=6 * 3600)
def prepare_model(parameters: PrepareParameters) -> dict[str, Any]:
    """Split, build, profile.

    Raises:
        InputError: the model cannot be split, or no class of the cluster states a runtime.
    """
    work = workspace(parameters.warehouse)
    devices = read_device_classes(parameters.cluster)
    if not devices:
        raise InputError(str(parameters.cluster), "no class states a `runtime` to profile with")
    cluster = read_cluster(parameters.cluster)
    classes = [
        ClassToProfile(device=device, divisors=cluster.gpu_class(name).vgpu_divisors)
        for name, device in devices.items()
    ]
    prepared = profile(work, split(work, parameters), classes)
    create_table_artifact(
        table=[
            {"class": place[0], "divisor": place[1], "batch": place[2], "blocks / whole": ratio}
            for place, ratio in prepared.ratios.items()
        ],
        key="profile",
        description=prepared.in_words(),
    )
    return {"model": prepared.name, "blocks": prepared.blocks, "summary": prepared.in_words()}
