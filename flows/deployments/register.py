"""Objects of this project on the Prefect server: work pools, limits, deployments.

Here: registering, in the process that imported Prefect once. Not here: what is registered
(`prefect.yaml`), and the processes (`operations`).
"""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from prefect.cli import app
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.exceptions import ObjectAlreadyExists

from flows.deployments.orchestration.limits import WAREHOUSE_WRITER, make_limit
from flows.deployments.profile_class import profile_class
from triton_backend.contract.errors import PoolPipeError

ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)


def register(root: Path, pool: str) -> None:
    """The work pool, the limit on writers, and every deployment of `prefect.yaml`.

    Raises:
        PoolPipeError: Prefect refuses it; the message is Prefect's own.
    """
    with get_client(sync_client=True) as client:
        make_pool(client, pool)
        make_limit(client, WAREHOUSE_WRITER)
    os.chdir(root)
    _prefect("--no-prompt", "deploy", "--all")


def register_class(root: Path, gpu_class: str, pool: str) -> None:
    """The work pool of a GPU class, and the deployment that measures on it."""
    with get_client(sync_client=True) as client:
        make_pool(client, pool)
    # Prefect types what it returns for asynchronous callers too.
    source: Any = profile_class.from_source(
        source=str(root), entrypoint="flows/deployments/profile_class.py:profile_class"
    )
    deployment = source.to_deployment(
        name=gpu_class,
        work_pool_name=pool,
        concurrency_limit=ONE_AT_A_TIME,
        description=f"Blocks of a model measured on {gpu_class}.",
        tags=["offline", "profiling"],
    )
    deployment.apply()


def make_pool(client: SyncPrefectClient, name: str) -> None:
    """A pool of processes, unless there is one of that name; an operator may have changed it."""
    try:
        client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    except ObjectAlreadyExists:
        return


def registered() -> list[str]:
    """One line per deployment: its name, and the pool whose workers run it."""
    with get_client(sync_client=True) as client:
        flows = {flow.id: flow.name for flow in client.read_flows()}
        found = client.read_deployments()
    return sorted(f"{flows[d.flow_id]}/{d.name} in {d.work_pool_name}" for d in found)


def _prefect(*words: str) -> None:
    """A command of Prefect's, without another process that imports everything again."""
    said, former = io.StringIO(), sys.argv
    sys.argv = ["prefect", *words]
    try:
        with redirect_stdout(said), redirect_stderr(said):
            app()
    except SystemExit as end:
        if end.code:
            raise PoolPipeError(f"prefect {' '.join(words)}: {said.getvalue()[-2000:]}") from end
    finally:
        sys.argv = former
