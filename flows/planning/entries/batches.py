"""Batches of alignment stages that fill those of the shared stage they come to.

A batch boards a shared batch as a whole. Where the shared batch is no multiple of it, rows stay
empty that the shared stage's rate counts on: batches of 2 in 3 rows fill 2.

    alignment, 2 requests   [a a] [b b]            [a a] [b b]
    shared stage            [a a .] [b b .]        [a a b b]
                            of 3                   of 4

The search for groups (`partition`, `shared_stages`) takes every pair of options; few plans have a
pair that does not fill, and they are mended here: not always at the least cost, so the gap says by
how much the plan is dearer at most.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flows.planning.entries.pooling import Chain, Pooled, Step, pools_of, step_of
from flows.planning.entries.tables import ModelTable


def filled(plan: Pooled, table: ModelTable, *, common: bool = False) -> Pooled:
    """A plan whose alignment stages have batches that fill those of their shared stages.

    Where one does not, the cheapest options in time are taken that do. `common`: the entries of a
    shared stage have the least budget among them.
    """
    chains = plan.chains
    sharing: dict[int, list[Chain]] = {}
    for chain in chains:
        sharing.setdefault(chain.steps[-1].part, []).append(chain)
    kept: list[Chain] = []
    for own in sharing.values():
        root = own[0].steps[-1]
        aligned = {chain.steps[0] for chain in own if len(chain.steps) > 1}
        taken: dict[Step, Step] = {}
        if any(root.batch % step.batch for step in aligned):
            limits = {s: _limit_us(own, s, common=common) for s in (root, *aligned)}
            taken = _in_multiples(table, own, limits)
        kept += [replace(c, steps=tuple(taken.get(s, s) for s in c.steps)) for c in own]
    order = {id(chain.item): number for number, chain in enumerate(chains)}
    return pools_of(sorted(kept, key=lambda chain: order[id(chain.item)]), plan.most)


def _limit_us(chains: Sequence[Chain], first: Step, *, common: bool) -> float:
    """The least limit of the items whose first stage this is; infinite without any."""
    own = (c.item.limit_us for c in chains if common or c.steps[0] == first)
    return min(own, default=math.inf)


def _in_multiples(
    table: ModelTable, chains: Sequence[Chain], limits: Mapping[Step, float]
) -> dict[Step, Step]:
    """New steps of a shared stage and its alignment stages; none where `max_instances` forbids."""
    root = chains[0].steps[-1]
    first, last, size, _ = root.key
    receiver = table.sizes[size]
    kind = table.kinds().index((receiver.nic_gbps, receiver.link_rps))
    rates = {
        step: math.fsum(c.item.rate_rps for c in chains if c.steps[0] == step)
        for step in limits
        if step != root
    }
    total = math.fsum(chain.item.rate_rps for chain in chains)
    roots = table.options(first, last)
    costs = roots.cost(total, table.most)
    best, found = math.inf, dict[Step, Step]()
    for row in np.flatnonzero(roots.time_us <= limits[root]).tolist():
        sender = table.sizes[int(roots.size[row])]
        if (sender.nic_gbps, sender.link_rps) != table.kinds()[kind]:
            continue
        cost = float(costs[row])
        steps = {root: step_of(roots, (first, last), row, root.part)}
        for step, rate in rates.items():
            options = table.options(step.key[0], first, kind)
            left = limits[step] - roots.time_us[row]
            able = (options.time_us <= left) & (roots.batch[row] % options.batch == 0)
            own = np.where(able, options.cost(rate, table.most), np.inf)
            chosen = int(own.argmin())
            cost += float(own[chosen])
            steps[step] = step_of(options, (step.key[0], first), chosen, step.part)
        if cost < best:
            best, found = cost, steps
    return found
