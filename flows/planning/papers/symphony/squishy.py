"""Squishy bin packing.

Models onto GPUs that serve each of them once in a duty cycle (Nexus, SOSP 2019). A GPU runs its
models one after the other and begins again every d (the duty cycle), each with the batch that
arrives meanwhile. A request that just missed its turn waits d and then l(b):

    d + l(b) <= SLO        sum of l(b) over the models of the GPU <= d        b >= rate d

A model first fills whole GPUs (d = l(b), the largest b with 2 l(b) <= SLO; a batch of one waits for
no other and may take the whole SLO, but then its GPU runs nothing else). What is left of its rate
takes the largest b with b / rate + l(b) <= SLO, so d = b / rate, and l(b) / d of a GPU. These
remainders are merged, the fullest first, each into the GPU that is fullest afterwards: the shorter
duty cycle holds, so the other batches shrink with it, hence the name.

Here: the packing, on whole numbers of µs. Not here: its callers, and what GPUs cost.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.units import US_PER_S, us_to_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A model at a rate.

    Attributes:
        latency_us: of batch b at b - 1.
        limit_us: SLO less margin.
    """

    name: str
    rate_rps: float
    latency_us: tuple[int, ...]
    limit_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A session's part of a duty cycle."""

    session: int
    batch: int
    latency_us: int
    rate_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGpu:
    """`count` GPUs that do the same: their turns, and how often they come round."""

    duty_cycle_us: int
    turns: tuple[Turn, ...]
    count: int = 1

    @property
    def occupancy(self) -> float:
        """Share of the duty cycle that is used."""
        return sum(turn.latency_us for turn in self.turns) / self.duty_cycle_us


def pack(
    sessions: Sequence[Session], together: Callable[[Sequence[int]], bool] = lambda _: True
) -> list[PackedGpu]:
    """GPUs for all sessions; `together` says whether sessions, by number, fit one GPU's memory.

    Raises:
        InfeasibleError: a batch of one takes longer than a session's limit.
    """
    whole: list[PackedGpu] = []
    rest: list[PackedGpu] = []
    for number, session in enumerate(sessions):
        gpus, left_rps = _whole_gpus(number, session)
        if gpus is not None:
            whole.append(gpus)
        if left_rps > 0:
            rest.append(_remainder(number, session, left_rps))
    merged: list[PackedGpu] = []
    for gpu in sorted(rest, key=lambda gpu: -gpu.occupancy):
        best, place = None, 0
        for at, other in enumerate(merged):
            both = _merged(sessions, other, gpu)
            if both is None or not together([turn.session for turn in both.turns]):
                continue
            if best is None or both.occupancy > best.occupancy:
                best, place = both, at
        if best is None:
            merged.append(gpu)
        else:
            merged[place] = best
    return whole + merged


def _whole_gpus(number: int, session: Session) -> tuple[PackedGpu | None, float]:
    """GPUs that the session fills alone, and the rate that is left."""
    if session.latency_us[0] > session.limit_us:
        raise InfeasibleError(
            f"workload model {session.name!r}",
            f"the whole model takes at least {us_to_ms(session.latency_us[0]):.3f} ms where "
            "SLO less "
            f"margin allow {us_to_ms(session.limit_us):.3f} ms",
        )
    batch = _alone(session)
    latency = session.latency_us[batch - 1]
    each = batch * US_PER_S / latency
    count = math.floor(session.rate_rps / each * (1 + 1e-12))
    if not count:
        return None, session.rate_rps
    rate = min(count * each, session.rate_rps)
    turn = Turn(session=number, batch=batch, latency_us=latency, rate_rps=rate)
    left = session.rate_rps - rate
    gpu = PackedGpu(duty_cycle_us=latency, turns=(turn,), count=count)
    return gpu, left if left > 1e-9 * session.rate_rps else 0.0


def _remainder(number: int, session: Session, rate_rps: float) -> PackedGpu:
    """A GPU for a rate that fills less than one."""
    each_us = US_PER_S / rate_rps
    batch = _largest(session, lambda b, latency: b * each_us + latency <= session.limit_us)
    duty = batch * each_us
    if not batch:  # too rare for a whole wait: the turn comes before the next request does
        batch, duty = 1, session.limit_us - session.latency_us[0]
    if session.latency_us[batch - 1] > duty:  # small batches do not carry it: a GPU of its own
        batch = _alone(session)
        duty = session.latency_us[batch - 1]
    latency = session.latency_us[batch - 1]
    turn = Turn(session=number, batch=batch, latency_us=latency, rate_rps=rate_rps)
    return PackedGpu(duty_cycle_us=max(latency, math.floor(duty)), turns=(turn,))


def _merged(sessions: Sequence[Session], one: PackedGpu, other: PackedGpu) -> PackedGpu | None:
    """Both on one GPU with the shorter duty cycle; None where they do not fit."""
    duty = min(one.duty_cycle_us, other.duty_cycle_us)
    turns: list[Turn] = []
    for turn in (*one.turns, *other.turns):
        session = sessions[turn.session]
        batch = max(1, math.ceil(turn.rate_rps * duty / US_PER_S * (1 - 1e-12)))
        if batch > len(session.latency_us):
            return None
        latency = session.latency_us[batch - 1]
        if duty + latency > session.limit_us:
            return None
        turns.append(
            Turn(session=turn.session, batch=batch, latency_us=latency, rate_rps=turn.rate_rps)
        )
    both = PackedGpu(duty_cycle_us=duty, turns=tuple(turns))
    return both if both.occupancy <= 1 else None


def _alone(session: Session) -> int:
    """Batch on GPUs that run nothing else."""
    return max(1, _largest(session, lambda _, latency: 2 * latency <= session.limit_us))


def _largest(session: Session, allowed: Callable[[int, int], bool]) -> int:
    """Largest batch that a rule of batch and latency allows; 0 where none is."""
    return max(
        (b for b, latency in enumerate(session.latency_us, start=1) if allowed(b, latency)),
        default=0,
    )
