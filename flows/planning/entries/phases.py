"""Pools of entries of several rates: vGPUs that clients of any phases need together.

`tables.clients_of` counts clients of one period and one wait. Here every client has its own.

v vGPUs run batches of the most urgent requests, each as soon as it is free, in L. Client i sends
a request per period p_i, which has to start w_i later. Let a request be the first that starts late,
D when it had to start, s the last instant before D at which no request was waiting that has to
start by then, and x = D - s. Those that arrived from s on and have to start by D are at most

    f(x) = sum of f_i(x), f_i(x) = floor((x - w_i) / p_i) + 1 where x >= w_i, else 0

A vGPU that is free at s starts floor(x / L) + 1 full batches of them by D. One that is busy has a
batch with a request of some client c, and this client's next one arrives psi after s:

                s            D - w_c   D
    --[ batch   |..]---------------|---|-->       x = D - s
       of c     |<psi>^ next one of c

* psi <= phi_c(x), the time by which the last of f_c(x) requests comes before D - w_c: then c may
  send f_c(x). Where p_c >= w_c + L its batch ends by s + psi, for it began by its own limit: the
  vGPU starts floor((x - phi_c) / L) + 1 batches.
* Else c sends f_c(x) - 1: floor(x / L) batches are enough for one request less.

Without p_c >= w_c + L a vGPU starts floor(x / L) batches. A client has ceil((w_c + L) / p_c)
requests in batches at once at most. No request is late if f(x) is at most the sum over the v
clients that leave least; only x = w_i + k p_i matter, for what vGPUs start falls nowhere else.
"""

import math
from dataclasses import replace

import numpy as np

from flows.planning.entries.options import vgpus_for
from flows.planning.entries.pooling import Pooled
from flows.planning.entries.seats import Key
from flows.planning.entries.tables import ModelTable
from flows.planning.inputs import moves_us
from flows.planning.solver.arrays import Floats
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.contract.units import US_PER_S
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel

_POINTS = 4_096  # instants that are looked at one by one; beyond them a line bounds what comes


@kernel
def _started(x: float, latency: float) -> float:
    return np.floor(x / latency * (1 + ROUNDING) + ROUNDING)


@kernel
def _sent(x: float, wait: float, period: float) -> float:
    if x < wait * (1 - ROUNDING):
        return 0.0
    return np.floor((x - wait) / period * (1 + ROUNDING) + ROUNDING) + 1


@kernel
def _left(x: float, wait: float, period: float, latency: float, batch: int) -> float:
    """Requests that a vGPU busy with a client carries of those that have to start within x."""
    whole = _started(x, latency)
    if period < (wait + latency) * (1 - ROUNDING):
        return batch * whole
    late = latency
    if x >= wait:
        late = min(latency, x - wait - (_sent(x, wait, period) - 1) * period)
    return min(batch * (_started(x - late, latency) + 1), batch * whole + 1)


@kernel
def _carried(
    vgpus: int, free: float, room: Floats, waits: Floats, periods: Floats, latency: float
) -> float:
    """Requests that vGPUs carry at least, kept busy by the clients that leave least (room[2])."""
    carried, taken = 0.0, 0
    for n in range(len(waits)):
        c = int(room[2, n])
        several = max(1, int(np.ceil((waits[c] + latency) / periods[c] * (1 - ROUNDING))))
        some = min(several, vgpus - taken)
        carried += some * min(room[1, c], free)
        taken += some
        if taken == vgpus:
            break
    return carried + (vgpus - taken) * free


@kernel
def _in_order(room: Floats) -> None:
    """Fill in room[2] with the clients by rising room[1]."""
    for c in range(room.shape[1]):
        at = c
        while at > 0 and room[1, int(room[2, at - 1])] > room[1, c]:
            room[2, at] = room[2, at - 1]
            at -= 1
        room[2, at] = c


@kernel_entry
def _least_vgpus(
    waits: Floats, periods: Floats, latency: float, batch: int, most: int, room: Floats
) -> int:
    rate = 0.0
    for c in range(len(waits)):
        rate += 1 / periods[c]
        room[0, c] = waits[c]  # the next x at which its last request counts
    vgpus, x = max(1, int(np.ceil(rate * latency / batch * (1 - ROUNDING)))), 0.0
    for _ in range(_POINTS):
        x, sent = room[0, 0], 0.0
        for c in range(1, len(waits)):
            x = min(x, room[0, c])
        for c in range(len(waits)):
            while room[0, c] <= x * (1 + ROUNDING):
                room[0, c] += periods[c]
            sent += _sent(x, waits[c], periods[c])
            room[1, c] = _left(x, waits[c], periods[c], latency, batch)
        _in_order(room)
        free = batch * (_started(x, latency) + 1)
        while (
            vgpus <= most and sent > _carried(vgpus, free, room, waits, periods, latency) + ROUNDING
        ):
            vgpus += 1
        if vgpus > most:
            return vgpus
        if _holds_beyond(x, waits, periods, latency, batch * vgpus):
            return vgpus
    return most + 1


@kernel
def _holds_beyond(x: float, waits: Floats, periods: Floats, latency: float, width: int) -> bool:
    """True if a line above f is below one under what vGPUs start, from x on."""
    sent, slope = 0.0, 0.0
    for c in range(len(waits)):
        slope += 1 / periods[c]
        sent += max(0.0, (x - waits[c]) / periods[c] + 1)
    return sent <= width * (x / latency - 1) and slope <= width / latency * (1 + ROUNDING)


def least_vgpus(waits: Floats, periods: Floats, latency: float, batch: int, most: int) -> int:
    """The fewest vGPUs that serve these clients in any phases; `most` + 1: none so few is proven.

    Args:
        waits: [n] of requests of each client (µs).
        periods: [n] of each client (µs).
        latency: of a full batch (µs).
        batch: requests of it.
        most: vGPUs that are looked at.
    """
    room = np.zeros((3, len(waits)))
    return min(int(_least_vgpus(waits, periods, latency, batch, most, room)), most + 1)


def fitted(pooled: Pooled, table: ModelTable) -> Pooled:
    """Pools with the fewest vGPUs that their own clients need, whatever the phases.

    A request may wait at an alignment stage as long as its option says, and at the last stage for
    what is left of its budget.

    Args:
        pooled: pools that serve these clients.
        table: entries with the rates that pools carry for them.
    """
    waits: list[list[float]] = [[] for _ in pooled.pools]
    periods: list[list[float]] = [[] for _ in pooled.pools]
    for chain in pooled.chains:
        last = chain.steps[-1]
        ahead = math.fsum(step.time_us for step in chain.steps[:-1])
        for member in chain.item.members:
            for step, pool in zip(chain.steps, chain.pools, strict=True):
                time = table.limits_us[member] - ahead if step is last else step.time_us
                run = _latency_us(table, step.key) + _move_us(table, step.key, last.key)
                waits[pool].append(time / table.kept - run)
                periods[pool].append(US_PER_S / table.rates_rps[member])
    pools = list(pooled.pools)
    saved = 0.0
    for pool, ((key, vgpus), wait, period) in enumerate(
        zip(pooled.pools, waits, periods, strict=True)
    ):
        size, latency = table.sizes[key[2]], _latency_us(table, key)
        fewest = least_vgpus(np.array(wait), np.array(period), latency, key[3], vgpus)
        rate = math.fsum(US_PER_S / p for p in period)
        carries = int(vgpus_for(rate, np.array([1 / size.link_rps[key[1]]]))[0])
        fewest = max(fewest, carries)
        if fewest < vgpus:
            pools[pool] = (key, fewest)
            saved += size.price * (vgpus - fewest)
    return replace(pooled, pools=tuple(pools), cost=pooled.cost - saved)


def _latency_us(table: ModelTable, key: Key) -> float:
    first, last, size, batch = key
    return float(table.sizes[size].table.stage_latency_us((first, last))[batch - 1])


def _move_us(table: ModelTable, key: Key, receiver: Key) -> float:
    """Of a full batch of a stage to the stage that takes its results; 0 at the end."""
    _, last, size, batch = key
    if last == table.blocks:
        return 0.0
    rate = min(table.sizes[size].nic_gbps, table.sizes[receiver[2]].nic_gbps)
    return float(moves_us(table.profile.boundary_bytes[last - 1], (batch,), rate)[0])
