"""A lease on limits of the Prefect server, given back at once also when its holder was killed.

The server itself forgets a lease a minute after it was last renewed (its shortest). So a process
that holds one keeps a file per limit locked, with the lease's number in it. The kernel unlocks the
file when the holder dies, however that happens; a process that waits for the limit on the same host
then gives the dead holder's lease back. A living holder's file stays locked: nothing is ever taken
from it. A holder on another host has its file there, and is waited for at the server.
"""

import fcntl
import logging
import os
import re
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

LEASE_SECONDS, RENEW_SECONDS, POLL_SECONDS = 60.0, 20.0, 0.5
MOST_BUSY = 5
"""Answers 503 in a row that are borne, each after the client's own retries.

Prefect's server reads limits and then writes them, in a deferred transaction: where another wrote
meanwhile, SQLite refuses at once, and the server says 503.
"""
_LOG = logging.getLogger(__name__)


@contextmanager
def lease(client: SyncPrefectClient, names: Sequence[str], folder: Path) -> Generator[None]:
    """Hold one slot of each of these limits, or wait until all are free.

    What runs goes on where the server is lost meanwhile, and is not kept waiting by it at its end.

    Args:
        client: used until they are held.
        names: limits that exist.
        folder: of the files; this host's processes that may wait for each other share it.

    Raises:
        httpx.HTTPError: the server cannot be reached, or refuses.
    """
    files = [folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)}.lease" for name in sorted(names)]
    number = _wait_for(client, names, files)
    over = Event()
    with ExitStack() as held:
        held.callback(_give_back, number)
        for path in files:
            held.enter_context(_note(path, number))
        # The thread asks the same server: settings live in the context.
        renewing = Thread(target=copy_context().run, args=(_renew, number, over), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            over.set()


def _wait_for(client: SyncPrefectClient, names: Sequence[str], files: Sequence[Path]) -> UUID:
    busy = 0
    while True:
        try:
            answer = client.increment_concurrency_slots_with_lease(
                names=sorted(names), slots=1, mode="concurrency", lease_duration=LEASE_SECONDS
            )
            return UUID(answer.json()["lease_id"])
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            busy = busy + 1 if code == HTTPStatus.SERVICE_UNAVAILABLE else 0
            if code != HTTPStatus.LOCKED and not 0 < busy <= MOST_BUSY:
                raise
        if not any(_bury(client, path) for path in files):
            time.sleep(POLL_SECONDS)


def _bury(client: SyncPrefectClient, path: Path) -> bool:
    """Give back the lease of a holder that died; whether there was one."""
    with suppress(OSError, ValueError), path.open("r+") as file:  # absent, or its holder lives
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        number = UUID(file.read())
        client.release_concurrency_slots_with_lease(number)
        file.truncate(0)
        _LOG.warning("%s: its holder was killed, the limit is given back", path.stem)
        return True
    return False


@contextmanager
def _note(path: Path, number: UUID) -> Generator[None]:
    """The lease's number in a file that is locked while the context lasts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Opened without truncating: until it is locked it may be another's.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(number))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _renew(number: UUID, over: Event) -> None:
    with _hurried_client() as client:
        while not over.wait(RENEW_SECONDS):
            try:
                client.renew_concurrency_lease(number, LEASE_SECONDS)
            except httpx.HTTPError as error:
                _LOG.warning("a limit is not renewed, the work goes on: %s", error)


def _give_back(number: UUID) -> None:
    with _hurried_client() as client:
        try:
            client.release_concurrency_slots_with_lease(number)
        except httpx.HTTPError as error:  # it ends by itself
            _LOG.warning("a limit is not given back: %s", error)


@contextmanager
def _hurried_client() -> Generator[SyncPrefectClient]:
    """Asks a server that is gone once more, not for a minute: a rollout is being watched."""
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}),
        get_client(sync_client=True) as client,
    ):
        yield client
