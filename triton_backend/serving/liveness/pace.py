"""How fast workers and links are, in times of what the plan says.

`WorkerPaces` keeps the last runs of every worker and compares a worker with the others of its pool:
where all are as slow, it is the machine or the profile. `LinkPaces` says which links are planned
with their true pace, as slow stages are (`scheduler/measured/paces.py`).

Here: measures. Not here: what is done about them (`supervisor`).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from triton_backend.scheduler.measured.paces import (
    AS_PLANNED,
    CORRECTED_TILL,
    FEWEST_RUNS,
    LAST_RUNS,
    SLOW_AT_LEAST_US,
    Correction,
)

SLOW_FACTOR = 2.0
# Less than what counts as slow, so that a worker at the limit does not come and go.
RECOVERED_FACTOR = 1.5
FEWEST_PROBES = 5
LAST_MOVES = 16


class WorkerPaces:
    """The last runs of every vGPU of a plan, as ratios of what they took to what they should.

    Args:
        pools: the number of every vGPU's pool.
    """

    def __init__(self, pools: Sequence[int]) -> None:
        self._pools = pools
        self._ratios = [deque[float](maxlen=LAST_RUNS) for _ in pools]

    def ran(self, vgpu: int, took_us: int, expected_us: int) -> bool:
        """A vGPU ran a batch; whether that gives reason to ask `is_slow`."""
        self._ratios[vgpu].append(took_us / expected_us)
        slow = took_us > SLOW_FACTOR * expected_us and took_us - expected_us > SLOW_AT_LEAST_US
        return slow and len(self._ratios[vgpu]) >= FEWEST_RUNS

    def probed(self, vgpu: int, took_us: int, expected_us: int) -> None:
        """A vGPU ran a stage on zeros."""
        self._ratios[vgpu].append(took_us / expected_us)

    def forget(self, vgpu: int) -> None:
        """Forget the times of a vGPU."""
        self._ratios[vgpu].clear()

    def is_slow(self, vgpu: int, up: Iterable[int]) -> bool:
        """True if most of a vGPU's last runs were slow, by its profile and by the others up."""
        if len(self._ratios[vgpu]) < FEWEST_RUNS or self.unknown_peers(vgpu, up):
            return False
        pace = self._pace_of_others(vgpu, up)
        return pace is not None and median(self._ratios[vgpu]) > SLOW_FACTOR * pace

    def unknown_peers(self, vgpu: int, up: Iterable[int]) -> list[int]:
        """Others of the pool of which too little is known to compare a vGPU with them."""
        return [
            other
            for other in up
            if other != vgpu
            and self._pools[other] == self._pools[vgpu]
            and len(self._ratios[other]) < FEWEST_PROBES
        ]

    def has_recovered(self, vgpu: int, up: Iterable[int]) -> bool:
        """True if the last probes of a vGPU were within bounds, or its pool has no other."""
        pace = self._pace_of_others(vgpu, up)
        if pace is None:
            return True
        last = list(self._ratios[vgpu])[-FEWEST_PROBES:]
        return len(last) == FEWEST_PROBES and median(last) <= RECOVERED_FACTOR * pace

    def _pace_of_others(self, vgpu: int, up: Iterable[int]) -> float | None:
        """How long the others of the pool take, in times of their profile; at least 1."""
        others = [
            median(self._ratios[other]) if self._ratios[other] else 1.0
            for other in up
            if other != vgpu and self._pools[other] == self._pools[vgpu]
        ]
        return max(median(others), 1.0) if others else None


@dataclass(slots=True)
class _Moves:
    """The last transfers from one node to another, or over one link.

    Attributes:
        last: what each took (µs), should have taken, and carried (Gbit/s x µs). Time in which
            several were on their way counts once, for the first of them to end, so the sum is the
            time in which any was.
        free_us: when the last of them ended.
    """

    last: deque[tuple[int, int, float]] = field(
        default_factory=lambda: deque[tuple[int, int, float]](maxlen=LAST_MOVES)
    )
    free_us: int = 0

    def add(self, start_us: int, end_us: int, planned_us: int, rate_gbps: float) -> int:
        """A transfer that should have gone at a rate; how much longer any was on its way."""
        # Where reports came in another order nothing is known of its wait.
        if self.free_us <= end_us:
            start_us = max(start_us, self.free_us)
            self.free_us = end_us
        took_us = end_us - start_us
        self.last.append((took_us, planned_us, planned_us * rate_gbps))
        return took_us

    def rate_gbps(self) -> float | None:
        """A lower bound of the rate carried; None if too little is known.

        The better half counts: a link that paused once is not slow.
        """
        if len(self.last) < LAST_MOVES:
            return None
        half = LAST_MOVES // 2
        parts = islice(self.last, half), islice(self.last, half, None)
        sums = [[sum(column) for column in zip(*part, strict=True)] for part in parts]
        return max(carried / max(took_us, 1) for took_us, _, carried in sums)


class LinkPaces:
    """The corrections of the uplinks and downlinks of nodes in force.

    A transfer needs two links, and shows only the slower; transfers that are on their way together
    show a part of it each. So whatever is seen of a link says how fast it is at least: of a pair of
    nodes, and of all that passes it together. It is as fast as the fastest of these.

    Args:
        nics_gbps: rate of every node's uplink, and of its downlink, as planned.

    Attributes:
        up_busy_us: time in which anything was on its way over a node's uplink, from the beginning.
        down_busy_us: the same of its downlink.
    """

    def __init__(self, nics_gbps: Sequence[float], now_us: int) -> None:
        self._nics_gbps = nics_gbps
        self._pairs: dict[tuple[int, int], _Moves] = {}
        ends = range(len(nics_gbps))
        self._up = [Correction(now_us) for _ in ends]
        self._down = [Correction(now_us) for _ in ends]
        self._up_moves = [_Moves() for _ in ends]
        self._down_moves = [_Moves() for _ in ends]
        self.up_busy_us = [0 for _ in ends]
        self.down_busy_us = [0 for _ in ends]

    def moved(
        self, sender: int, receiver: int, start_us: int, end_us: int, planned_us: int
    ) -> None:
        """A batch moved from a node to another, which should have taken `planned_us`.

        It may have waited for what left before it; that is no part of its own time.
        """
        if planned_us <= 0:
            return
        self._up[sender].heard_us = self._down[receiver].heard_us = end_us
        rate_gbps = min(self._nics_gbps[sender], self._nics_gbps[receiver])
        pair = self._pairs.setdefault((sender, receiver), _Moves())
        up, down = self._up_moves[sender], self._down_moves[receiver]
        pair.add(start_us, end_us, planned_us, rate_gbps)
        self.up_busy_us[sender] += up.add(start_us, end_us, planned_us, rate_gbps)
        self.down_busy_us[receiver] += down.add(start_us, end_us, planned_us, rate_gbps)

    def changes(self, now_us: int) -> list[tuple[int, int, int]]:
        """Nodes whose corrections change.

        Number, uplink and downlink in percent of planned time.
        """
        rates = {pair: moves.rate_gbps() for pair, moves in self._pairs.items()}
        known = {pair: rate for pair, rate in rates.items() if rate is not None}
        changed: set[int] = set()
        for side, corrections, all_moves in (
            (0, self._up, self._up_moves),
            (1, self._down, self._down_moves),
        ):
            for node, correction in enumerate(corrections):
                if correction.is_quiet(now_us):
                    self._forget(side, node)
                    all_moves[node] = _Moves()
                    wanted = correction.fade(now_us)
                else:
                    own = {
                        pair: rate
                        for pair, rate in known.items()
                        if pair[side] == node and pair in self._pairs  # not forgotten just now
                    }
                    pace = self._pace_of(node, own, all_moves[node].rate_gbps())
                    wanted = correction.follow(pace, self._planned_us(own))
                if correction.set(wanted):
                    changed.add(node)
        return [(n, self._up[n].percent, self._down[n].percent) for n in sorted(changed)]

    def _forget(self, side: int, node: int) -> None:
        for pair in [pair for pair in self._pairs if pair[side] == node]:
            del self._pairs[pair]

    def _pace_of(
        self, node: int, rates: dict[tuple[int, int], float], together_gbps: float | None
    ) -> float | None:
        """How long a node's link takes, in times of what is planned; at least 1, None if unknown.

        Args:
            node: whose link.
            rates: of pairs of nodes that it is an end of, Gbit/s.
            together_gbps: of all that passes it.
        """
        if not rates:
            return None
        planned = {pair: min(self._nics_gbps[end] for end in pair) for pair in rates}
        if all(AS_PLANNED * planned[pair] < CORRECTED_TILL * rates[pair] for pair in rates):
            return 1.0  # all as planned, where the other end may well be what limits them
        seen = [min(rate, planned[pair]) for pair, rate in rates.items()]
        return max(self._nics_gbps[node] / max(*seen, together_gbps or 0.0), 1.0)

    def _planned_us(self, pairs: Iterable[tuple[int, int]]) -> float:
        """The longest of the transfers looked at, as planned."""
        lasts = (planned for pair in pairs for _, planned, _ in self._pairs[pair].last)
        return max(lasts, default=0)
