"""Limits between flows, kept by the Prefect server: one writer of the warehouse, one per device.

A limit has one holder and is made where none was, so that it can never be forgotten. What becomes
of one whose holder is killed: `prefect_lease`.
"""

import logging
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import RLock

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.deployments.orchestration.lease import lease
from flows.state import PROJECT_VARIABLE, project_state
from flows.workspace import Workspace, workspace

WAREHOUSE_WRITER = "warehouse-writer"
_LOG = logging.getLogger(__name__)


@contextmanager
def holding(*names: str) -> Generator[None]:
    """Hold all these limits, or wait until they are free.

    Raises:
        httpx.HTTPError: the server cannot be reached, or refuses.
    """
    with ExitStack() as held:
        # A server that is away is asked for a quarter of a minute, not for one: a rollout waits.
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 3}),
            get_client(sync_client=True) as client,
        ):
            for name in names:
                make_limit(client, name)
            held.enter_context(lease(client, names, project_state().limits))
        yield


def make_limit(client: SyncPrefectClient, name: str) -> None:
    """A limit with one holder, unless there is one of that name already."""
    try:
        client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        wanted = GlobalConcurrencyLimitCreate(name=name, limit=1)
        with suppress(ObjectAlreadyExists):  # another run was first
            client.create_global_concurrency_limit(wanted)


class WriterTurn:
    """`warehouse-writer`, held by this process once however deep its pieces of work are nested.

    Without a server the file's own lock has to do.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._depth = 0

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Hold the limit."""
        with self._lock, ExitStack() as held:
            if not self._depth:
                _hold_writer(held)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1


def _hold_writer(held: ExitStack) -> None:
    try:
        held.enter_context(holding(WAREHOUSE_WRITER))
    except httpx.HTTPError as error:
        _LOG.warning("writing without %s: %s", WAREHOUSE_WRITER, error)


def flow_workspace(warehouse: Path | None = None) -> Workspace:
    """The workspace of a flow: it writes to the warehouse only when it is its turn.

    A worker runs flows in the clone's folder. Relative paths among a flow's parameters count from
    the project's, as they do on the command line; the flow goes on there.
    """
    os.chdir(os.environ.get(PROJECT_VARIABLE) or ".")
    return taking_turns(workspace(warehouse))


def taking_turns(work: Workspace) -> Workspace:
    """The same for a workspace that is there."""
    return replace(work, turn=WriterTurn())
