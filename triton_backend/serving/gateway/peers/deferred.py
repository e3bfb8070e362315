"""Frames that nothing waits for, sent one after the other."""

import math

from triton_backend.serving.gateway.peers.addresses import Address, Send

# A worker or front takes some five milliseconds of a processor to read a generation's plan.
UNHURRIED_EVERY_US = 15_000
DEFERRED_TURNS = 64  # of many, several at once, so that all have heard of it within a second


class DeferredFrames:
    """Frames without a waiter; of two to the same address the newer counts.

    Each process that hears of a generation reads its plan, some milliseconds in which it does
    nothing else; all at once would take every processor of the host from requests.
    """

    def __init__(self, send: Send, now_us: int) -> None:
        self._send = send
        self._frames: dict[Address, bytes] = {}
        self._at_once = 1
        self._next_us = now_us

    @property
    def due_us(self) -> int | None:
        """When `send` has something to do."""
        return self._next_us if self._frames else None

    def put(self, to: Address, data: bytes) -> None:
        """Send this when its turn has come, in place of what waited for the same address."""
        self._frames[to] = data

    def forget(self, to: Address) -> None:
        """Send what waits for an address no more."""
        self._frames.pop(to, None)

    def send(self, now_us: int) -> None:
        """Send the next ones, where their turn has come."""
        if not self._frames or now_us < self._next_us:
            return
        self._next_us = now_us + UNHURRIED_EVERY_US
        self._at_once = max(self._at_once, math.ceil(len(self._frames) / DEFERRED_TURNS))
        for to in list(self._frames)[: self._at_once]:
            self._send(to, self._frames.pop(to))
        if not self._frames:
            self._at_once = 1
