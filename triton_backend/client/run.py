"""A client at work: a request every 1/rps seconds, each cut where `decide` says.

1. The device takes requests in turn; one whose deadline has passed by then is not begun.
2. `decide` names the cut, from past uploads, past answers, what waits for the link and what is left
   of the SLO; the head runs. Where nothing answers it in time as far as is known, it is given up,
   or sent as a trial where nothing else waits for device or link.
3. What crosses goes over the link, one request after the other (an emulated link waits by its
   trace). An upload that goes too slowly is given up, and its request decided again with what is
   left of its time.
4. The server gets what is left of the time as `timeout`. Where it refuses, the device runs the
   whole model.

Before its cut moves, the client asks the server for an offer; where it cuts, what it leaves the
server and how often it sends it announces, under a lease that it renews. A server that takes no
announcements serves it all the same.

Instants and times are µs since the run began. Late is what is answered after its deadline, or
never.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil, isfinite
from typing import Any

import numpy as np

from .announcing import Announcement, Announcing
from .bandwidth import LEAST_BYTES, PROBE_US, TICK_US, Bandwidth
from .decide import Cut, Decision, Link, Power, decide
from .device import Arrays, Device, halved, largest_error
from .heads import Head, Heads, Tensor
from .link import EmulatedLink, Trace
from .server import Offer, RefusedError, Server
from .standing import LOOK_US, Rests, SpareTime, moves, standing

PATIENCE_S = 0.1  # beyond the deadline: the server may have died with the request
OFFER_PART = 10  # of what is left of a request's time, that an offer may take,
OFFER_ROUND_TRIPS = 3  # or so many


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run; `link` None: the network as it is; `power` None: for latency.

    `name` is the client's among those of its server; heads take `stretch` times as long as here.
    """

    rps: float
    slo_us: int
    duration_s: float
    name: str = "client"
    stretch: float = 1.0
    link: Trace | None = None
    power: Power | None = None
    half: bool = False


@dataclass(slots=True, kw_only=True)
class Record:
    """The outcome of one request; None for fields that do not apply.

    `why` says why it was not sent, or not in time, with what was known then.
    """

    request: int
    due_us: int
    cut: int | None = None
    feasible: bool = True
    tried: bool = False
    mbit_per_s: float | None = None
    upload_bytes: int = 0
    head_us: int | None = None
    upload_us: int | None = None
    tail_us: int | None = None
    total_us: int | None = None
    outcome: str = "late"
    on: str | None = None
    refused: str | None = None
    why: str | None = None
    error: float | None = None


class LateError(Exception):
    """No time is left for the server."""


class SlowError(Exception):
    """An upload went too slowly and was given up."""


class Client:
    """One run of one client."""

    def __init__(
        self,
        heads: Heads,
        server: Server,
        inputs: Arrays,
        options: RunOptions,
        report: Callable[[Record], None],
    ) -> None:
        self._heads = heads
        self._server = server
        self._inputs = inputs
        self._options = options
        self._report = report
        self._device = Device(heads, options.stretch)
        self._expected: Arrays = {}
        self._executor = ThreadPoolExecutor(1)
        self._busy = asyncio.Lock()
        self._link = None if options.link is None else EmulatedLink(options.link)
        self._bandwidth = Bandwidth()
        self._spare = SpareTime()
        self._offer = Offer()
        self._looked_us = 0
        self._quoted_us = {head.block: head.tail_us for head in heads.cuts}
        self._rests = Rests()
        self._announcing = Announcing(options.rps)
        self._moved = asyncio.Event()  # where it cuts, since that was last looked at
        self.asked: Counter[str] = Counter()
        self._rtt_us = 0
        self._sending = 0
        self._waiting = 0  # requests that wait for the device
        self._last: Decision | None = None
        self._begun = 0.0
        self.why_closed = ""

    async def run(self) -> list[Record]:
        """Every request of the run, in order."""
        loop = asyncio.get_running_loop()
        for head in self._heads.cuts:
            self._device.load(head)
        self._expected = self._device.run(self._heads.whole, self._inputs)
        await self._look()
        self._begun, self._looked_us = loop.time(), 0
        await self._probe()
        beside = [loop.create_task(work()) for work in (self._watch, self._announce)]
        requests: list[asyncio.Task[Record]] = []
        try:
            await self._send_all(requests)
            records = await asyncio.gather(*requests)
        finally:
            failed = await _ended([*beside, *requests])
            await self._give_back()
            self._executor.shutdown()
        if failed:
            raise failed[0]
        return records

    async def _send_all(self, requests: list[asyncio.Task[Record]]) -> None:
        """Begin every request when it is due."""
        first_us = self._now_us()
        for number in range(ceil(self._options.duration_s * self._options.rps)):
            due_us = first_us + round(number * 1e6 / self._options.rps)
            await self._sleep_until(due_us)
            requests.append(asyncio.create_task(self._request(number, due_us)))

    # One request

    async def _request(self, number: int, due_us: int) -> Record:
        record = Record(request=number, due_us=due_us)
        again = True
        while again:
            again = await self._attempt(record)
        self._report(record)
        return record

    async def _attempt(self, record: Record) -> bool:
        """Decide, run the head, send.

        Whether that is to be done again, since the upload went too slowly.
        """
        deadline_us = record.due_us + self._options.slo_us
        self._waiting += 1
        async with self._busy:
            self._waiting -= 1
            crossing: Arrays = {}
            head, begun_us = None, self._now_us()
            if begun_us < deadline_us:
                head = await self._choose(record, deadline_us)
            elif record.why is None:
                waited_ms = (begun_us - record.due_us) / 1e3
                record.why = f"the device was free {waited_ms:.1f} ms after it was due"
            begun_us = self._now_us()
            if head is not None:
                crossing = await self._on_device(head)
                record.head_us = self._now_us() - begun_us
        if head is self._heads.whole:
            self._answered(record, "device", crossing)
        elif head is not None:
            try:
                self._answered(record, "server", await self._send(record, head, crossing))
            except SlowError:
                record.why = "its upload went too slowly"
                return self._now_us() < deadline_us
            except LateError:
                record.why = "head and upload left the server no time"
            except RefusedError as error:
                record.refused = str(error)
                self._rests.refused(self._now_us(), head.block, closed=error.closed)
                await self._fall_back(record, deadline_us)
        return False

    async def _choose(self, record: Record, deadline_us: int) -> Head | None:
        """Where the request is cut.

        None: nothing answers it in time, and the device stays free for the next.
        """
        whole = self._heads.whole
        now_us = self._now_us()
        found, link = self._decided(now_us, deadline_us)
        if moves(found, self._last, whole.block, now_us - self._looked_us):
            patience_us = max(
                (deadline_us - now_us) // OFFER_PART, OFFER_ROUND_TRIPS * self._rtt_us
            )
            with contextlib.suppress(TimeoutError):  # by what is known, then
                async with asyncio.timeout(patience_us / 1e6):
                    await self._ask_for_offer()
            now_us = self._looked_us = self._now_us()
            found, link = self._decided(now_us, deadline_us)
        self._last = found
        record.mbit_per_s = link.mbit_per_s
        if record.cut is None:
            record.cut, record.feasible = found.block, found.feasible
        if found.feasible:
            record.cut = found.block
            if found.block < whole.block:
                self._announcing.decided(now_us, found.block, found.budget_us)
                self._moved.set()
            return self._heads.cuts[found.block]
        record.why = self._why_not(link, deadline_us - now_us)
        if found.trial is None or self._link is None or self._waiting:
            return None
        if self._link.waiting_bytes(now_us):
            return None
        record.cut, record.tried = found.trial, True
        return self._heads.cuts[found.trial]

    def _decided(self, now_us: int, deadline_us: int) -> tuple[Decision, Link]:
        """By what is known now, and of the link."""
        left_us = deadline_us - now_us
        known, waits_us = Link(mbit_per_s=self._bandwidth.mbit_per_s), 0
        if self._link is not None:
            if (pace := self._link.pace(now_us)) is not None:
                known = Link(mbit_per_s=pace)
            waits_us = known.upload_us(self._link.waiting_bytes(now_us)) or 0
        link = Link(mbit_per_s=known.mbit_per_s, rtt_us=self._rtt_us + waits_us)
        cuts = self._open_cuts(link, left_us, now_us)
        device = self._as_it_stands(self._heads.whole, link, left_us)
        power = self._options.power
        return decide(cuts, device, link, left_us, last=self._last, power=power), link

    def _open_cuts(self, link: Link, left_us: int, now_us: int) -> list[Cut]:
        return [
            self._as_it_stands(head, link, left_us)
            for head in self._heads.cuts
            if head.block in self._offer.cuts and self._rests.over(now_us, head.block)
        ]

    def _why_not(self, link: Link, left_us: int) -> str:
        """Why nothing answers a request in time: the device's time, and the quickest cut's."""
        device_ms = (self._heads.whole.head_us or 0) / 1e3
        alone = f"of {left_us / 1e3:.1f} ms left the device takes {device_ms:.1f} ms"
        cuts = self._open_cuts(link, left_us, self._now_us())
        if not cuts:
            closed = f": {self._offer.why_closed}" if self._offer.why_closed else " now"
            return f"{alone}; the server opens no cut{closed}"
        if not link.mbit_per_s:
            return f"{alone}; the link carries nothing as far as is known"
        cut = min(
            cuts, key=lambda c: c.head_us + (link.upload_us(c.upload_bytes) or 0) + c.least_tail_us
        )
        upload_us = (link.upload_us(cut.upload_bytes) or 0) + link.rtt_us
        return (
            f"{alone}; cut {cut.block}: device {cut.head_us / 1e3:.1f}, upload"
            f" {upload_us / 1e3:.1f}, server {cut.least_tail_us / 1e3:.1f} ms at least; a cut is"
            " taken where twice the server's time is left"
        )

    def _as_it_stands(self, head: Head, link: Link, left_us: int) -> Cut:
        """A cut with what is expected of the server there."""
        known = Cut(
            block=head.block,
            upload_bytes=sum(tensor.size for tensor in self._sent(head)),
            head_us=head.head_us or 0,
            least_tail_us=self._least_us(head),
        )
        return standing(known, link, left_us, self._spare, self._now_us())

    def _least_us(self, head: Head) -> int:
        """Least time of its tail: as the server quoted it, else as heads were exported with."""
        return self._quoted_us[head.block] or 0

    def _sent(self, head: Head) -> tuple[Tensor, ...]:
        """The tensors sent at a cut.

        In half the bytes where that is asked for and the server takes it.
        """
        offered = self._offer.cuts.get(head.block)
        if self._options.half and offered is not None and offered.half:
            return tuple(tensor.half() for tensor in head.tensors)
        return head.tensors

    async def _on_device(self, head: Head) -> Arrays:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._device.run, head, self._inputs)

    async def _send(self, record: Record, head: Head, crossing: Arrays) -> Arrays:
        """The server's answer.

        Raises:
            LateError: no time is left for it.
            SlowError: the upload was given up.
            RefusedError: it refuses.
        """
        deadline_us = record.due_us + self._options.slo_us
        sent = crossing
        if self._sent(head) is not head.tensors:
            sent = halved(crossing, head.tensors)
        size = record.upload_bytes = sum(array.nbytes for array in sent.values())
        self._sending += 1
        try:
            if self._link is None:
                link = Link(mbit_per_s=self._bandwidth.mbit_per_s)
                record.upload_us = uploading_us = link.upload_us(size) or 0
            else:
                handed_us, uploading_us = self._now_us(), 0
                give_up_us = deadline_us - self._rtt_us - self._least_us(head)
                upload = self._link.upload(handed_us, size, max(give_up_us, handed_us))
                await self._sleep_until(upload.end_us)
                took_us = upload.end_us - upload.start_us
                self._bandwidth.note(upload.end_us, size, took_us, upload.sent)
                record.upload_us = upload.end_us - handed_us
                if upload.sent < size:
                    raise SlowError
            begun_us = self._now_us()
            on_the_way_us = self._rtt_us + uploading_us
            budget_us = deadline_us - begun_us - on_the_way_us
            if budget_us < 1:
                raise LateError
            wait_s = (deadline_us - begun_us) / 1e6 + PATIENCE_S
            answer = await self._server.infer(head, sent, budget_us, wait_s)
        finally:
            self._sending -= 1
        now_us = self._now_us()
        record.tail_us = max(now_us - begun_us - on_the_way_us, 0)
        self._spare.note(now_us, record.tail_us, self._least_us(head), budget_us)
        self._rests.answered(head.block)
        return answer

    async def _fall_back(self, record: Record, deadline_us: int) -> None:
        """Run the whole model on the device, unless the deadline has passed when its turn comes."""
        async with self._busy:
            if self._now_us() < deadline_us:
                self._answered(record, "device", await self._on_device(self._heads.whole))

    def _answered(self, record: Record, on: str, answer: Arrays) -> None:
        record.on = on
        record.total_us = self._now_us() - record.due_us
        record.outcome = "served" if record.total_us <= self._options.slo_us else "late"
        record.error = largest_error(answer, self._expected)

    # State of link and server

    async def _watch(self) -> None:
        """Probe silent links and look for open requests as long as the run lasts."""
        while True:
            await asyncio.sleep(TICK_US / 1e6)
            # Nothing is tried over a link whose uploads cannot be measured.
            lost = self._link is None and self._last is not None and not self._last.feasible
            if not self._sending and (lost or self._bandwidth.probe_due(self._now_us())):
                await self._probe()
            if not self._offer.cuts or self._now_us() - self._looked_us >= LOOK_US:
                await self._look()

    async def _look(self) -> None:
        self._looked_us = self._now_us()
        await self._ask_for_offer()
        self._rtt_us = await self._server.rtt_us() or self._rtt_us

    async def _ask_for_offer(self) -> None:
        """The open cuts now; quotes stay if the server states none."""
        self.asked["offers"] += 1
        self._offer = await self._server.offer()
        self.why_closed = self._offer.why_closed
        for block, cut in self._offer.cuts.items():
            self._quoted_us[block] = cut.least_us or self._quoted_us[block]

    async def _announce(self) -> None:
        """Announce what is due, as long as the run lasts."""
        while True:
            said = self._announcing.due(self._now_us())
            if said is not None:
                await self._say(said)
            with contextlib.suppress(TimeoutError):
                # `wait_for` of Python 3.11 loses a cancellation that comes with the event.
                async with asyncio.timeout(TICK_US / 1e6):
                    await self._moved.wait()
            self._moved.clear()

    async def _say(self, said: Announcement) -> None:
        """Announce it. A cut that the server calls closed rests.

        Under another plan others are open.
        """
        self.asked["announcements"] += 1
        try:
            lease = await self._server.announce(self._options.name, said)
        except RefusedError:
            self.asked["announcements refused"] += 1
            self._announcing.failed(self._now_us())
            return
        self._announcing.announced(self._now_us(), said, lease.lease_us)
        if lease.closed and said.rate_rps:
            self._rests.refused(self._now_us(), said.block, closed=True)
        if lease.plan_id != self._offer.plan_id:
            self._looked_us = self._now_us()
            await self._ask_for_offer()

    async def _give_back(self) -> None:
        """Its lease, when nothing more is sent."""
        said = self._announcing.said
        if said is not None:
            await self._say(said._replace(rate_rps=0.0))

    async def _probe(self) -> None:
        now_us = self._now_us()
        if self._link is not None:
            upload = self._link.upload(now_us, LEAST_BYTES, now_us + PROBE_US)
            await self._sleep_until(upload.end_us)
            took_us = upload.end_us - upload.start_us
            self._bandwidth.note(upload.end_us, LEAST_BYTES, took_us, upload.sent)
        elif await self._server.probe(LEAST_BYTES):
            took_us = max(self._now_us() - now_us - self._rtt_us, 1)
            self._bandwidth.note(self._now_us(), LEAST_BYTES, took_us)

    # Time

    def _now_us(self) -> int:
        return round((asyncio.get_running_loop().time() - self._begun) * 1e6)

    async def _sleep_until(self, at_us: int) -> None:
        await asyncio.sleep(max(at_us - self._now_us(), 0) / 1e6)


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> list[Exception]:
    """End tasks that are under way; the exceptions with which others have ended."""
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [error for error in found if isinstance(error, Exception)]


def summary(heads: Heads, records: list[Record]) -> dict[str, Any]:
    """One JSON object for all requests; offered = served + late, late ones without answer too.

    Errors are numbers, or "inf", which JSON has no number for, where an answer is of another shape
    or not finite.
    """
    answered_ms = [r.total_us / 1e3 for r in records if r.total_us is not None]
    used = [r.cut for r in records if r.cut is not None]
    errors = [r.error for r in records if r.error is not None]
    served = sum(r.outcome == "served" for r in records)
    return {
        "model": heads.model,
        "split": heads.split,
        "offered": len(records),
        "served": served,
        "late": len(records) - served,
        "attainment": served / len(records) if records else None,
        "unanswered": len(records) - len(answered_ms),
        "refused": sum(r.refused is not None for r in records),
        "infeasible": sum(not r.feasible for r in records),
        "tried": sum(r.tried for r in records),
        "on_device": sum(r.on == "device" for r in records),
        "cuts": {str(cut): count for cut, count in sorted(Counter(used).items())},
        "changes": sum(a != b for a, b in pairwise(used)),
        "latency_ms": {
            f"p{q}": float(np.percentile(answered_ms, q)) if answered_ms else None for q in (50, 99)
        },
        "max_error": _error_of(max(errors, default=None)),
        "requests": [asdict(r) | {"error": _error_of(r.error)} for r in records],
    }


def _error_of(error: float | None) -> float | str | None:
    return error if error is None or isfinite(error) else str(error)
