"""Where to cut: the rule by which a client divides a model between itself and the server.

Pure: everything known is an argument, time too. The simulator's clients use the same function.

With head H(p), bytes(p), bandwidth, round trip and expected tail S(p), a request cut at p takes

    T(p) = H(p) + 8 bytes(p) / bandwidth + rtt + S(p)          T(M) = H(M), M: all on the device

and leaves the server budget(p) = slo - H(p) - upload(p) - rtt. A cut is feasible where that is at
least twice its least tail: the longest wait of a batch is as long as its run. M is feasible where
H(M) <= slo. Where nothing is feasible as far as is known, the cut is named as a trial that would be
with the least bandwidth: a client with an idle link that would only give the request up may send it
all the same, and learns what the link does. (Graft, section 2.2, leaves the rule open;
Neurosurgeon's, Kang et al. 2017, has neither queueing nor hysteresis.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

QUEUEING = 2  # budget over least tail
GAIN_PERCENT = 10  # least saving of another cut
GAIN_DECISIONS = 2  # in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cut as it stands now.

    Attributes:
        block: the first block of the server's part.
        upload_bytes: of one request.
        head_us: blocks [0, block) on the device.
        tail_us: what the server is expected to take.
        least_tail_us: what it takes at least.
    """

    block: int
    upload_bytes: int
    head_us: int
    tail_us: int = 0
    least_tail_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The state of the way to the server; a bandwidth of None is unknown, 0 is none."""

    mbit_per_s: float | None
    rtt_us: int = 0

    def upload_us(self, size: float) -> int | None:
        """How long so many bytes take; None: not known, or for ever."""
        return ceil(8 * size / self.mbit_per_s) if self.mbit_per_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power of the device, in W, while it computes and while it sends."""

    cpu_w: float
    radio_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where one request is cut.

    Attributes:
        block: M: nothing is sent.
        budget_us: what is left for the server; as if the upload took no time, where that is not
            known.
        feasible: False: the SLO cannot be met, and the device runs it all.
        better: decisions in a row, this one included, in which another cut would have saved enough.
        trial: the cut to be tried where nothing is feasible; None where no bandwidth would do.
    """

    block: int
    budget_us: int
    feasible: bool
    better: int = 0
    trial: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    block: int
    cost: float
    budget_us: int


def decide(
    cuts: Sequence[Cut],
    device: Cut,
    link: Link,
    slo_us: int,
    *,
    last: Decision | None = None,
    power: Power | None = None,
) -> Decision:
    """The cut of the next request.

    The feasible cut of least T, or, where `power` is given, of least energy cpu_w x H + radio_w x
    upload among those with T <= slo. Ties: the earlier block. The last cut stays while it is
    feasible, until another one saves more than 10 % in two decisions in a row. Nothing feasible,
    which nothing but the device is without bandwidth or with an unknown one: the device, and a
    trial.

    Args:
        cuts: those that are open, in any order.
        device: the whole model on the device; nothing of it is sent.
        link: as measured.
        slo_us: what is left of it.
        last: the decision before this one.
        power: None: for latency.
    """
    local = device.head_us <= slo_us
    if not link.mbit_per_s:
        trial = None if local else _trial(cuts, link, slo_us)
        return Decision(block=device.block, budget_us=0, feasible=local, trial=trial)
    ordered = sorted(cuts, key=lambda cut: cut.block)
    options = [found for cut in ordered if (found := _option(cut, link, slo_us, power)) is not None]
    if local:
        cost = device.head_us if power is None else power.cpu_w * device.head_us
        options.append(_Option(block=device.block, cost=cost, budget_us=0))
    if not options:
        trial = _trial(cuts, link, slo_us)
        return Decision(block=device.block, budget_us=0, feasible=False, trial=trial)
    best = min(options, key=lambda option: option.cost)  # the first of equal ones
    kept = next((o for o in options if last is not None and o.block == last.block), None)
    if last is None or kept is None:
        return Decision(block=best.block, budget_us=best.budget_us, feasible=True)
    saves = 100 * best.cost < (100 - GAIN_PERCENT) * kept.cost
    better = last.better + 1 if saves else 0
    if better >= GAIN_DECISIONS:
        return Decision(block=best.block, budget_us=best.budget_us, feasible=True)
    return Decision(block=kept.block, budget_us=kept.budget_us, feasible=True, better=better)


def _option(cut: Cut, link: Link, slo_us: int, power: Power | None) -> _Option | None:
    """A cut with what it costs; None where it is not feasible."""
    upload_us = link.upload_us(cut.upload_bytes)
    assert upload_us is not None
    budget_us = slo_us - cut.head_us - upload_us - link.rtt_us
    if budget_us < QUEUEING * cut.least_tail_us:
        return None
    if power is None:
        cost = cut.head_us + upload_us + link.rtt_us + cut.tail_us
    elif cut.tail_us <= budget_us:
        cost = power.cpu_w * cut.head_us + power.radio_w * upload_us
    else:
        return None
    return _Option(block=cut.block, cost=cost, budget_us=budget_us)


def _trial(cuts: Sequence[Cut], link: Link, slo_us: int) -> int | None:
    """The cut that the least bandwidth makes feasible; ties: the earlier block."""
    needed = [
        (cut.upload_bytes / uploading_us, cut.block)
        for cut in cuts
        if (uploading_us := slo_us - cut.head_us - link.rtt_us - QUEUEING * cut.least_tail_us) > 0
    ]
    return min(needed)[1] if needed else None
