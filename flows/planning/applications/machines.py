"""Machines of one line and what they cost: configurations, sets of machines, worst-case latencies.

A machine is a GPU (class, v vGPUs on it) that runs a whole model at one batch size: d µs per batch
on each vGPU, t = v · b / d rows/s, price p. A set serves a line: groups of full machines in order
of t / p, highest first, then at most one partial machine (paper: section III-B). Cost is by
occupancy: a machine that is used at f of t rows/s costs p · f / t.

Worst-case latency of a machine, by rule:
    tc   d + b / w, w the rate not yet assigned where its group begins (theorem 1)
    dt   d + b / f, f its own rate
    2d   2 d, for a partial machine at least d + b / f

Here: Algorithm 1, the dummy generator, and the cheapest set by exhaustive search with a bound. Not
here: how time is split among lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from math import ceil, floor, inf

from flows.planning.solver.tolerances import ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One configuration of a line: a batch on a GPU of a class with `divisor` vGPUs.

    Attributes:
        rate_rps: rows/s of the whole GPU.
        price: of the whole GPU.
    """

    batch: int
    duration_us: float
    rate_rps: float
    price: float
    gpu_class: str = ""
    divisor: int = 1

    @property
    def unit_cost(self) -> float:
        """Price per row/s."""
        return self.price / self.rate_rps

    def latency_us(self, rule: str, gathered_rps: float, own_rps: float) -> float:
        """Worst-case latency, where batches fill at `gathered_rps` and it runs `own_rps` itself."""
        if rule == "tc":
            return self.duration_us + self.batch * 1e6 / gathered_rps
        filling_us = self.batch * 1e6 / own_rps
        if rule == "dt":
            return self.duration_us + filling_us
        full = own_rps >= self.rate_rps * (1 - ROUNDING)
        return self.duration_us + (self.duration_us if full else max(self.duration_us, filling_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Machines of one configuration; `machines` is whole, or a partial machine's used part."""

    machine: Machine
    machines: float
    latency_us: float

    @property
    def rate_rps(self) -> float:
        """Rows/s that it runs."""
        return self.machines * self.machine.rate_rps


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSet:
    """The machines of a line; `dummy_rps` of its rate is no client's."""

    groups: tuple[Group, ...]
    dummy_rps: float = 0.0

    @property
    def cost(self) -> float:
        """Price of the occupied part of its machines."""
        return sum(group.machines * group.machine.price for group in self.groups)

    @property
    def latency_us(self) -> float:
        """Worst-case latency of a row."""
        return max((group.latency_us for group in self.groups), default=0.0)

    @property
    def time_us(self) -> int:
        """The same in whole µs."""
        return ceil(self.latency_us - 1e-3)


def ranked(machines: Sequence[Machine]) -> tuple[Machine, ...]:
    """In order of throughput / price, highest first; ties: the shorter one first."""
    return tuple(sorted(machines, key=lambda m: (m.unit_cost, m.duration_us, m.batch)))


def begun(
    machines: Sequence[Machine],
    rate_rps: float,
    budget_us: float,
    rule: str = "tc",
    most_configurations: int | None = None,
) -> tuple[MachineSet, float]:
    """Machines that Algorithm 1 takes, greedy in order, and the rate (rows/s) that is left.

    With at most two configurations the last one takes all that is left.
    """
    groups: list[Group] = []
    left, used = rate_rps, 0
    budget_us *= 1 + ROUNDING
    for machine in machines:
        if left <= ROUNDING * rate_rps:
            break
        if machine.duration_us >= budget_us:
            continue
        if most_configurations is not None and used == most_configurations - 1:
            rest = _greedy_of(machine, left, rule, inf)
            if max(group.latency_us for group in rest) <= budget_us:
                return MachineSet(groups=(*groups, *rest)), 0.0
            continue
        taken = _greedy_of(machine, left, rule, budget_us)
        if taken:
            groups += taken
            used += 1
            left -= sum(group.rate_rps for group in taken)
    return MachineSet(groups=tuple(groups)), left


def _greedy_of(machine: Machine, left: float, rule: str, budget_us: float) -> list[Group]:
    """One configuration's part of the rate left: full machines, then a partial one."""
    count = floor(left / machine.rate_rps * (1 + ROUNDING))
    groups: list[Group] = []
    if count:
        latency_us = machine.latency_us(rule, left, machine.rate_rps)
        if latency_us > budget_us:
            return []
        groups.append(Group(machine=machine, machines=count, latency_us=latency_us))
        left -= count * machine.rate_rps
    if left > ROUNDING * machine.rate_rps:
        latency_us = machine.latency_us(rule, left, left)
        if latency_us <= budget_us:
            part = left / machine.rate_rps
            groups.append(Group(machine=machine, machines=part, latency_us=latency_us))
    return groups


def padded(
    machines: Sequence[Machine], served: MachineSet, rate_rps: float, budget_us: float
) -> MachineSet:
    """The dummy generator (section III-D): cheaper where lower ranks give way to one machine.

    For a configuration i whose lower ranks run u < t rows/s together: w' = b / (L - d) rows/s, of
    which w' - u are dummies, let one machine of i take them all. The cheapest change is made, until
    none is.
    """
    while True:
        changed = closed(machines, served, rate_rps, budget_us)
        if changed is None or changed.cost >= served.cost * (1 - ROUNDING):
            return served
        served = changed


def closed(
    machines: Sequence[Machine], served: MachineSet, rate_rps: float, budget_us: float
) -> MachineSet | None:
    """The cheapest set whose last machine takes, with dummies, all that lower ranks or none had."""
    changed = (_with_dummies(machine, served, rate_rps, budget_us) for machine in machines)
    return min((s for s in changed if s is not None), key=lambda s: s.cost, default=None)


def _with_dummies(
    machine: Machine, served: MachineSet, rate_rps: float, budget_us: float
) -> MachineSet | None:
    if machine.duration_us >= budget_us:
        return None
    above = [
        group
        for group in served.groups
        if group.machine.unit_cost <= machine.unit_cost and group.machines >= 1
    ]
    above = [replace(group, machines=float(floor(group.machines + ROUNDING))) for group in above]
    left = rate_rps - sum(group.rate_rps for group in above)
    wanted = machine.batch * 1e6 / (budget_us - machine.duration_us)
    if not 0 < left <= wanted * (1 + ROUNDING) or wanted > machine.rate_rps * (1 + ROUNDING):
        return None
    last = Group(
        machine=machine,
        machines=min(1.0, wanted / machine.rate_rps),
        latency_us=machine.latency_us("tc", wanted, wanted),
    )
    return MachineSet(groups=(*above, last), dummy_rps=max(0.0, wanted - left))


def cheapest(
    machines: Sequence[Machine],
    rate_rps: float,
    budget_us: float,
    *,
    dummies: bool,
    whole: bool = False,
    costs: tuple[float, float] = (0.0, inf),
) -> MachineSet | None:
    """The cheapest set within a budget under `tc`, as the paper counts it.

    None where there is none. With `whole`, machines are paid and run whole (accounting
    `tc-padded`): what clients leave of them is dummies. Else the last machine may be partial
    (`tc-tail`).

    Exact: depth first over how many full machines of each rank; what is left costs at least its
    rate times the least price per row/s of the ranks that are left.

    Args:
        machines: in their rank order.
        rate_rps: rows/s of clients.
        budget_us: worst-case latency allowed.
        dummies: whether rows that are no client's may fill batches.
        whole: whether there are only whole machines.
        costs: one that no set falls below, and one at which a set is of no interest.
    """
    usable = [m for m in machines if m.duration_us < budget_us * (1 - ROUNDING)]
    search = _Search(usable, rate_rps, budget_us, dummies=dummies or whole, whole=whole)
    search.floor, search.best = costs
    search.visit(0, rate_rps, 0.0, 0.0, ())
    return search.cheapest()


_Chosen = tuple[tuple[int, float], ...]
"""Ranks and how many machines of each; a part of one is a partial machine's."""


class _Search:
    """Depth-first search; `found` is the cheapest set."""

    def __init__(
        self,
        machines: Sequence[Machine],
        rate_rps: float,
        budget_us: float,
        *,
        dummies: bool,
        whole: bool,
    ) -> None:
        self.machines, self.rate_rps = machines, rate_rps
        self.rates = [m.rate_rps for m in machines]
        self.prices = [m.price for m in machines]
        self.unit = [m.unit_cost for m in machines]
        # Of another machine of a rank or below it, however little is left for it.
        least = accumulate(reversed(self.prices), min) if whole else repeat(0.0, len(machines))
        self.one_more = [*least][::-1]
        self.needed = [
            m.batch * 1e6 / (budget_us * (1 + ROUNDING) - m.duration_us) for m in machines
        ]
        self.dummies, self.whole = dummies, whole
        self.none = ROUNDING * rate_rps
        self.best, self.floor = inf, 0.0
        self.found: _Chosen | None = None

    def visit(self, rank: int, left: float, padding: float, cost: float, chosen: _Chosen) -> None:
        """Serve `left` rows/s, and `padding` dummies that groups above need, from `rank` down."""
        if left <= self.none and padding <= self.none:
            self._take(cost, chosen)
            return
        for at in range(rank, len(self.rates)):
            least = max((left + padding) * self.unit[at], self.one_more[at])
            if cost + least >= self.best:
                return  # lower ranks are dearer
            needed, rate = self.needed[at], self.rates[at]
            if not self.dummies and needed > left:
                continue
            most = left
            if self.dummies:  # the fewest full machines that run what is left, and dummies
                most = max(needed, left + padding)
                count = ceil(most * (1 - ROUNDING) / rate)
                self._take(cost + count * self.prices[at], (*chosen, (at, float(count))))
            for count in range(floor(most / rate * (1 + ROUNDING)), -1, -1):
                self._branch(at, count, left, padding, cost, chosen)
                if self._hopeless(at, count, most, cost):
                    break

    def _hopeless(self, at: int, count: int, most: float, cost: float) -> bool:
        """True if even fewer machines of this rank cost too much: the rest falls to lower ranks.

        `most` rows/s run from this rank down where it has any machine.
        """
        fewer = count - 1
        if fewer < 1 or at + 1 == len(self.rates):
            return False
        rest = most - fewer * self.rates[at]
        inside = min(rest, self.rates[at])  # a partial machine of this rank may take so much
        least = inside * self.unit[at] + (rest - inside) * self.unit[at + 1]
        return cost + fewer * self.prices[at] + least >= self.best

    def _branch(
        self, at: int, count: int, left: float, padding: float, cost: float, chosen: _Chosen
    ) -> None:
        """So many full machines of a rank; then a partial one that ends the set, or lower ranks."""
        needed, rate = self.needed[at], self.rates[at]
        if count:
            full = count * rate
            padding = max(padding, needed - left) - max(0.0, full - left)
            cost += count * self.prices[at]
            left = max(0.0, left - full)
            chosen = (*chosen, (at, float(count)))
            if left <= self.none and padding <= self.none:
                self._take(cost, chosen)
                return
        own = max(left + padding, needed) if self.dummies else left
        if not self.whole and needed * (1 - ROUNDING) <= own <= rate * (1 + ROUNDING):
            own = min(own, rate)
            self._take(cost + own * self.unit[at], (*chosen, (at, own / rate)))
        if count:
            self.visit(at + 1, left, padding, cost, chosen)

    def _take(self, cost: float, chosen: _Chosen) -> None:
        if cost < self.best * (1 - ROUNDING):
            self.best, self.found = cost, chosen
            if cost <= self.floor * (1 + ROUNDING):
                self.best = -inf  # nothing is cheaper: what is left is skipped

    def cheapest(self) -> MachineSet | None:
        """The set found, each group with the rate that is not yet assigned where it begins."""
        if self.found is None:
            return None
        run = sum(count * self.rates[at] for at, count in self.found)
        dummy_rps = run - self.rate_rps if run > self.rate_rps * (1 + ROUNDING) else 0.0
        left, groups = self.rate_rps + dummy_rps, list[Group]()
        for at, count in self.found:
            machine = self.machines[at]
            latency_us = machine.latency_us("tc", left, min(count, 1.0) * machine.rate_rps)
            groups.append(Group(machine=machine, machines=count, latency_us=latency_us))
            left -= count * machine.rate_rps
        return MachineSet(groups=tuple(groups), dummy_rps=dummy_rps)


def even(
    machines: Sequence[Machine], rate_rps: float, budget_us: float, *, dummies: bool
) -> MachineSet | None:
    """The cheapest set where machines of one configuration share the line's rate evenly [ours].

    Theorem 1 taken literally: w is the whole rate of a single configuration, so one is enough:
    min over c of p / t · max(T, b / (L - d)); what the maximum adds is dummies.
    """
    best: MachineSet | None = None
    for machine in machines:
        room_us = budget_us * (1 + ROUNDING) - machine.duration_us
        if room_us <= 0:
            continue
        served = max(rate_rps, machine.batch * 1e6 / room_us)
        if served > rate_rps * (1 + ROUNDING) and not dummies:
            continue
        if best is None or served * machine.unit_cost < best.cost * (1 - ROUNDING):
            latency_us = machine.latency_us("tc", served, served)
            count = served / machine.rate_rps
            group = Group(machine=machine, machines=count, latency_us=latency_us)
            best = MachineSet(groups=(group,), dummy_rps=max(0.0, served - rate_rps))
    return best
