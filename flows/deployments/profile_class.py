"""`profile-class`: a model measured on one GPU class, by a worker of the class's work pool. Thin.

What was measured travels as a table artifact, which every host that reaches the server can read.
"""

from typing import TYPE_CHECKING, Any, cast

from prefect import flow
from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import holding
from flows.deployments.parameters import ProfileClassParameters
from flows.preparation.profiling.class_profile import device_limits, measure_class, own_gpu
from flows.preparation.profiling.devices import list_devices
from flows.preparation.profiling.measure import CellKey
from flows.workspace import workspace

if TYPE_CHECKING:
    from uuid import UUID

PROGRESS_CELLS = 25


@of_form
@flow(
    name="profile-class", timeout_seconds=6 * 3600, retries=2, retry_delay_seconds=30
)  # measurements before a failure are kept
def profile_class(parameters: ProfileClassParameters) -> dict[str, Any]:
    """Measure; nothing else may run on the device meanwhile.

    Raises:
        InputError: the split is not reachable from here, or the class has no device here.
    """
    request = parameters.request()
    gpu = None if request.device else own_gpu(list_devices(), request.gpu_class)
    # Prefect types what it returns for asynchronous callers too.
    artifact = cast("UUID", create_progress_artifact(0.0, description=request.gpu_class))

    def progress(done: int, total: int, key: CellKey) -> None:
        if done % PROGRESS_CELLS == 0:
            update_progress_artifact(
                artifact, progress=100.0 * done / total, description=f"{key.gpu_class} {key.block}"
            )

    with holding(*device_limits(request, gpu)):
        found = measure_class(workspace(), request, gpu, progress)
    update_progress_artifact(artifact, progress=100.0)
    create_table_artifact(table=found.to_rows(), description=f"cells of {request.gpu_class}")
    return {"cells": len(found.cells)}
