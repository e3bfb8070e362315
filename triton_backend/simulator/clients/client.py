"""One client in virtual time.

What `client/run.py` does, with the same decisions, over a recorded link.

    due -> its turn on the device -> head -> the link, first come first served -> the server

The server answers, or refuses; then the whole model runs here.

A request whose deadline has passed when its turn comes is not begun. What a client knows of its
link are its own past uploads, of the server its own past answers and what it saw open when it last
looked.

Beside that it is counted with hindsight, at every decision: whether an open cut would have been in
time by the trace to come and what waits for the link, and why such a request was missed. No client
knows of it, unless it is to decide with that foresight: the ceiling of what any client reaches.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from triton_backend.client.announcing import Announcement, Announcing
from triton_backend.client.bandwidth import LEAST_BYTES, PROBE_US, TICK_US, Bandwidth
from triton_backend.client.decide import QUEUEING, Cut, Decision, Link, decide
from triton_backend.client.link import EmulatedLink, Trace, Upload
from triton_backend.client.standing import LOOK_US, Rests, SpareTime, moves, standing
from triton_backend.contract.errors import InputError
from triton_backend.contract.units import US_PER_S

MOST_FPS = 10_000.0


class Missed(StrEnum):
    """Why a request was not served in time."""

    NOT_TRIED = "judged infeasible"
    SLOW_LINK = "upload slower than expected"
    CLOSED = "cut closed"
    SHADOW = "refused by the shadow pool"
    ABOVE = "refused by its own pool, above the planned rate"
    WITHIN = "refused by its own pool, within the planned rate"
    LATE = "answered late"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """A client.

    Attributes:
        heads_us: time of blocks [0, p) on the device, for p from 0 to M: the last one is the whole
            model.
        upload_bytes: of one request at every cut p below M.
        trace: its uplink.
        rtt_us: the round trip beside the upload.
    """

    name: str
    model: str
    fps: float
    slo_us: int
    heads_us: tuple[int, ...]
    upload_bytes: tuple[int, ...]
    trace: Trace
    rtt_us: int = 0

    def __post_init__(self) -> None:
        where = f"client {self.name!r}"
        if not 0 < self.fps <= MOST_FPS:
            reason = f"{self.fps:g} is not above 0 and at most {MOST_FPS:g}"
            raise InputError(f"{where}, fps", reason)
        if self.slo_us < 1:
            raise InputError(f"{where}, slo_ms", "is not positive")
        if len(self.heads_us) != len(self.upload_bytes) + 1:
            blocks = len(self.upload_bytes)
            reason = f"{len(self.heads_us)} times; a model of {blocks} blocks has {blocks + 1} cuts"
            raise InputError(f"{where}, heads_us", reason)
        if list(self.heads_us) != sorted(self.heads_us) or self.heads_us[0] < 0:
            raise InputError(
                f"{where}, heads_us", "a longer head takes less time, or less than none"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request on its way: when it reaches the server, and by when the answer must leave it."""

    client: int
    model: str
    block: int
    arrival_us: int
    budget_us: int
    number: int


@dataclass(slots=True, kw_only=True)
class _Request:
    number: int
    due_us: int
    deadline_us: int
    feasible: bool = True
    trial: bool = False
    again: bool = False
    possible: bool = False
    missed: Missed | None = None
    reached: bool = False
    block: int = 0
    begun_us: int = 0  # at the server
    budget_us: int = 0
    least_us: int = 0
    asked_us: int = 0  # for an offer


@dataclass(slots=True)
class ClientCounts:
    """Outcomes of a client's requests.

    Attributes:
        feasible: those whose decision found a cut (or the device) that meets the SLO;
            `feasible_served` of them.
        possible: those for which, with hindsight, a cut (or the device) would have met the SLO;
            `possible_served` of them, and why the others were missed.
        reached: those that reached the server with twice the least time of their tail left.
        not_begun: their deadline passed before the device was free: nothing was decided.
        tried: those sent though nothing was known to be feasible, as the link was idle;
            `tried_served` of them.
        device: served by the device alone.
    """

    offered: int = 0
    served: int = 0
    late: int = 0
    feasible: int = 0
    feasible_served: int = 0
    possible: int = 0
    possible_served: int = 0
    missed: Counter[Missed] = field(default_factory=Counter[Missed])
    reached: int = 0
    reached_served: int = 0
    not_begun: int = 0
    tried: int = 0
    tried_served: int = 0
    device: int = 0
    refused: int = 0
    changes: int = 0
    cuts: Counter[int] = field(default_factory=Counter[int])
    total_us: list[int] = field(default_factory=list[int])


class VirtualClient:
    """A client between its requests.

    Args:
        number: among the clients.
        spec: what it is.
        first_us: when its first request is due.
        end_us: none is due from then on.
        later: calls a function at an instant: `later(at_us, function, argument)`.
        send: hands a request to the server.
        open_cuts: block and least time of the tail (µs) of every cut that the server serves now.
        foresight: decide with hindsight.
    """

    def __init__(
        self,
        number: int,
        spec: ClientSpec,
        first_us: int,
        end_us: int,
        *,
        later: Callable[[int, Callable[[int, Any], None], Any], None],
        send: Callable[[Sent], None],
        open_cuts: Callable[[str], Mapping[int, int]],
        foresight: bool = False,
    ) -> None:
        self.spec = spec
        self.counts = ClientCounts()
        self._number, self._first_us, self._end_us = number, first_us, end_us
        self._later, self._send, self._look_at = later, send, open_cuts
        self._foresight = foresight
        self._link = EmulatedLink(spec.trace, patient=foresight)
        self._bandwidth = Bandwidth()
        self._spare = SpareTime()
        self._open: Mapping[int, int] = {}
        self._cuts: list[Cut] = []
        self._rests = Rests()
        self._looked_us = 0
        self._turns: deque[tuple[_Request, bool]] = deque()  # and whether the whole model runs
        self._busy = False
        self._sending = 0
        self._requests: dict[int, _Request] = {}
        self._count = 0
        self._last: Decision | None = None
        self._announcing = Announcing(spec.fps)
        later(0, self._begin, None)
        later(first_us, self._due, None)

    def announced(self, now_us: int) -> Announcement | None:
        """Its announcement, if any."""
        return self._announcing.sends(now_us)

    # A request

    def _due(self, now_us: int, _: Any) -> None:
        deadline_us = now_us + self.spec.slo_us
        request = _Request(number=self._count, due_us=now_us, deadline_us=deadline_us)
        self.counts.offered += 1
        self._count += 1
        self._turns.append((request, False))
        following_us = self._first_us + round(self._count * US_PER_S / self.spec.fps)
        if following_us < self._end_us:
            self._later(following_us, self._due, None)
        self._next(now_us)

    def _next(self, now_us: int) -> None:
        """Give the device to the request that waits longest."""
        while self._turns and not self._busy:
            request, whole = self._turns.popleft()
            if now_us >= request.deadline_us:
                self.counts.not_begun += not whole
                self._missed(request, Missed.LATE)
                continue
            block = len(self.spec.upload_bytes) if whole else self._choose(request, now_us)
            if block is None:
                self._missed(request, Missed.NOT_TRIED)
                continue
            self._busy = True
            request.block = block
            head_us = self.spec.heads_us[block]
            self._later(now_us + request.asked_us + head_us, self._head_done, request)

    def _choose(self, request: _Request, now_us: int) -> int | None:
        """Where a request is cut.

        None: nothing answers it in time as far as is known, and it is not tried.
        """
        found = self._decided(request.deadline_us - now_us, now_us)
        request.asked_us = 0
        if moves(found, self._last, len(self.spec.upload_bytes), now_us - self._looked_us):
            self._look(now_us)
            request.asked_us = self.spec.rtt_us
            found = self._decided(request.deadline_us - now_us - request.asked_us, now_us)
        if request.again:
            return self._tried(request, found, now_us)
        foreseen = self._foreseen(now_us, request.deadline_us - now_us)
        found = foreseen if self._foresight else found
        request.feasible, request.possible = found.feasible, foreseen.feasible
        self.counts.possible += foreseen.feasible
        self.counts.feasible += found.feasible
        self.counts.cuts[found.block] += found.feasible
        if self._last is None or found.block != self._last.block:
            self.counts.changes += self._last is not None
        self._last = found
        if found.feasible and found.block < len(self.spec.upload_bytes):
            self._announcing.decided(now_us, found.block, found.budget_us)
        return self._tried(request, found, now_us)

    def _tried(self, request: _Request, found: Decision, now_us: int) -> int | None:
        """The cut of a request that is not known to be feasible or uploads too slowly."""
        if found.feasible:
            return self._begun_at(request, found)
        if found.trial is None or self._link.waiting_bytes(now_us) or self._turns:
            return None
        self.counts.tried += not request.trial
        request.trial = True
        return self._begun_at(request, replace(found, block=found.trial))

    def _begun_at(self, request: _Request, found: Decision) -> int:
        open_cuts = self._look_at(self.spec.model) if self._foresight else self._open
        request.least_us = open_cuts.get(found.block, 0)
        return found.block

    def _decided(self, left_us: int, now_us: int) -> Decision:
        """By what the client knows."""
        spec = self.spec
        pace = self._link.pace(now_us)
        seen = Link(mbit_per_s=self._bandwidth.mbit_per_s if pace is None else pace)
        waits_us = seen.upload_us(self._link.waiting_bytes(now_us)) or 0
        link = Link(mbit_per_s=seen.mbit_per_s, rtt_us=spec.rtt_us + waits_us)
        cuts = [
            standing(cut, link, left_us, self._spare, now_us)
            for cut in self._cuts
            if self._rests.over(now_us, cut.block)
        ]
        blocks = len(spec.upload_bytes)
        device = Cut(block=blocks, upload_bytes=0, head_us=spec.heads_us[blocks])
        return decide(cuts, device, link, left_us, last=self._last)

    def _foreseen(self, now_us: int, left_us: int) -> Decision:
        """The cut of least latency by what the link will do, among those open now."""
        spec, blocks = self.spec, len(self.spec.upload_bytes)
        found: list[tuple[float, Decision]] = []
        for block, least_us in self._look_at(spec.model).items():
            head_us = spec.heads_us[block]
            end_us = self._link.foreseen_us(now_us + head_us, spec.upload_bytes[block])
            budget_us = now_us + left_us - end_us - spec.rtt_us
            if budget_us >= QUEUEING * least_us:
                decision = Decision(block=block, budget_us=int(budget_us), feasible=True)
                found.append((end_us + least_us, decision))
        if spec.heads_us[blocks] <= left_us:
            whole = Decision(block=blocks, budget_us=0, feasible=True)
            found.append((now_us + spec.heads_us[blocks], whole))
        none = Decision(block=blocks, budget_us=0, feasible=False)
        return min(found, key=lambda one: one[0], default=(0.0, none))[1]

    def _missed(self, request: _Request, why: Missed) -> None:
        """A request that is late; the first reason is kept."""
        self.counts.late += 1
        if request.possible:
            self.counts.missed[request.missed or why] += 1

    def _head_done(self, now_us: int, request: _Request) -> None:
        self._busy = False
        if request.block == len(self.spec.upload_bytes):
            self._answered(request, now_us, device=True)
        else:
            size = self.spec.upload_bytes[request.block]
            give_up_us = request.deadline_us - self.spec.rtt_us - request.least_us
            upload = self._link.upload(now_us, size, max(give_up_us, now_us))
            self._sending += 1
            self._later(upload.end_us, self._uploaded, (request, upload, size))
        self._next(now_us)

    def _uploaded(self, now_us: int, ended: tuple[_Request, Upload, int]) -> None:
        request, upload, size = ended
        self._sending -= 1
        self._bandwidth.note(now_us, size, upload.end_us - upload.start_us, upload.sent)
        budget_us = request.deadline_us - now_us - self.spec.rtt_us
        if upload.sent < size and now_us < request.deadline_us:
            request.again, request.missed = True, Missed.SLOW_LINK
            self._turns.append((request, False))
            self._next(now_us)
            return
        if upload.sent < size or budget_us < 1:
            self._missed(request, Missed.SLOW_LINK)
            return
        request.begun_us, request.budget_us = now_us, budget_us
        request.reached = budget_us >= QUEUEING * request.least_us
        if not request.reached:
            request.missed = Missed.SLOW_LINK
        self.counts.reached += request.reached
        self._requests[request.number] = request
        self._send(
            Sent(
                client=self._number,
                model=self.spec.model,
                block=request.block,
                arrival_us=now_us + self.spec.rtt_us // 2,
                budget_us=budget_us,
                number=request.number,
            )
        )

    def answered(self, now_us: int, at_us: int, number: int) -> None:
        """The server's answer reached the client at `at_us`; it hears of it now."""
        request = self._requests.pop(number)
        tail_us = max(at_us - request.begun_us - self.spec.rtt_us, 0)
        self._spare.note(now_us, tail_us, request.least_us, request.budget_us)
        self._rests.answered(request.block)
        self._answered(request, at_us, device=False)

    def refused(self, now_us: int, number: int, why: Missed) -> None:
        """The server refuses: the device runs the whole model, and the cut rests."""
        request = self._requests.pop(number)
        self.counts.refused += 1
        request.missed = request.missed or why
        self._rests.refused(now_us, request.block, closed=why is Missed.CLOSED)
        self._turns.append((request, True))
        self._next(now_us)

    def _answered(self, request: _Request, at_us: int, *, device: bool) -> None:
        served = at_us <= request.deadline_us
        if not served:
            self._missed(request, Missed.LATE)
        self.counts.served += served
        self.counts.possible_served += served and request.possible
        self.counts.device += served and device
        self.counts.tried_served += served and request.trial
        self.counts.reached_served += served and request.reached
        self.counts.feasible_served += served and request.feasible
        self.counts.total_us.append(at_us - request.due_us)

    # Knowledge of the client

    def _begin(self, now_us: int, _: Any) -> None:
        self._look(now_us)
        self._watch(now_us, None)

    def _look(self, now_us: int) -> None:
        """Ask for an offer: what is open, and what it takes there."""
        self._looked_us, self._open = now_us, self._look_at(self.spec.model)
        self._cuts = [
            Cut(
                block=block,
                upload_bytes=self.spec.upload_bytes[block],
                head_us=self.spec.heads_us[block],
                least_tail_us=tail_us,
            )
            for block, tail_us in self._open.items()
        ]

    def _watch(self, now_us: int, _: Any) -> None:
        """Probe a link of which nothing was heard, and look what is open."""
        if now_us - self._looked_us >= LOOK_US:
            self._look(now_us)
        if not self._sending and self._bandwidth.probe_due(now_us):
            upload = self._link.upload(now_us, LEAST_BYTES, now_us + PROBE_US)
            self._later(upload.end_us, self._probed, upload)
        if now_us + TICK_US < self._end_us:
            self._later(now_us + TICK_US, self._watch, None)

    def _probed(self, now_us: int, upload: Upload) -> None:
        self._bandwidth.note(now_us, LEAST_BYTES, upload.end_us - upload.start_us, upload.sent)
