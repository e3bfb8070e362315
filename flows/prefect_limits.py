"""Limits between flows, kept by the Prefect server: one writer of the warehouse, one per device.

A limit has one holder and is made where nobody did, so that it can never be forgotten. A holder that
is killed loses it a minute later.
"""

import logging
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import RLock

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency._asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.steps.workspace import Workspace, workspace

WAREHOUSE_WRITER = "warehouse-writer"
LEASE_SECONDS = 60.0
UNREACHABLE = (httpx.HTTPError, ConcurrencySlotAcquisitionError)
_LOG = logging.getLogger(__name__)


@contextmanager
def holding(*names: str) -> Generator[None]:
    """Hold all these limits, or wait until they are free.

    What runs goes on where the server is lost meanwhile: a rollout must not stop half way for it.
    """
    with get_client(sync_client=True) as client:
        for name in names:
            make_limit(client, name)
    with concurrency(
        list(names),
        strict=True,
        lease_duration=LEASE_SECONDS,
        raise_on_lease_renewal_failure=False,
    ):
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
        with self._lock:
            held = ExitStack() if self._depth else _hold_writer()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                _let_go(held)


def _hold_writer() -> ExitStack:
    held = ExitStack()
    try:
        held.enter_context(holding(WAREHOUSE_WRITER))
    except UNREACHABLE as error:
        _LOG.warning("writing without %s: %s", WAREHOUSE_WRITER, error)
    return held


def _let_go(held: ExitStack) -> None:
    try:
        # A server that is gone is asked once more, not for a minute: a rollout is being watched.
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):
            held.close()
    except UNREACHABLE as error:  # it ends by itself
        _LOG.warning("%s not given back: %s", WAREHOUSE_WRITER, error)


def flow_workspace(warehouse: Path | None = None) -> Workspace:
    """The workspace of a flow: it writes to the warehouse only when it is its turn."""
    return replace(workspace(warehouse), turn=WriterTurn())
