"""Requests that clients send now, with the answers they get, read from the fronts that serve."""

import time
from collections.abc import Sequence

from flows.clock import Stopwatch
from flows.release.server.running import ServerState
from triton_backend.contract.errors import InputError
from triton_backend.contract.units import US_PER_S
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.mirror import Mirrored, MirrorOrder, read_copies, withdraw
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings

POLL_SECONDS = 0.2
WRITE_SECONDS = 5.0  # a front looks once a second, and writes what it has


def mirrored(
    state: ServerState, models: Sequence[str], requests: int, seconds: float
) -> dict[str, list[Mirrored]]:
    """The next requests that each model's clients send, by model.

    Fronts copy them beside their work; clients notice nothing.

    Args:
        state: the running system, whose fronts are on this host.
        models: of which; all are there in the result.
        requests: how many of each.
        seconds: how long they are waited for; fewer, or none, if fewer came.

    Raises:
        InputError: the serve folder cannot be written, or what a front wrote cannot be read.
    """
    gateways = ServeSettings.read(state.folder / SETTINGS_NAME).gateways
    until_us = SystemClock().now_us() + round((seconds + 2 * WRITE_SECONDS) * US_PER_S)
    try:
        order = MirrorOrder.place(state.folder, models, requests, until_us)
    except OSError as error:
        raise InputError(str(state.folder), f"requests cannot be mirrored: {error}") from error
    try:
        _wait(state, order, gateways, seconds)
        withdraw(state.folder)
        # Fronts that were not complete write what they have.
        _wait(state, order, gateways, WRITE_SECONDS)
        return {model: _of(state, order, gateways, model)[:requests] for model in models}
    finally:
        order.remove(state.folder, gateways)


def _wait(state: ServerState, order: MirrorOrder, gateways: int, seconds: float) -> None:
    """Until every model has a front that wrote, at most so long."""
    watch = Stopwatch()
    while watch.seconds() < seconds:
        if all(
            any(order.copies(state.folder, model, g).exists() for g in range(gateways))
            for model in order.models
        ):
            return
        time.sleep(POLL_SECONDS)


def _of(state: ServerState, order: MirrorOrder, gateways: int, model: str) -> list[Mirrored]:
    found: list[Mirrored] = []
    for gateway in range(gateways):
        path = order.copies(state.folder, model, gateway)
        try:
            found += read_copies(path)
        except (OSError, ValueError) as error:
            raise InputError(str(path), f"is no file of mirrored requests: {error}") from error
    return found
