"""How far any sub-clusters reach: a scale of the rates that nothing exceeds, and complaints."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flows.planning.engine.level import halved
from flows.planning.registry import Inputs
from flows.planning.solver.arrays import Floats
from flows.planning.solver.tolerances import EXACT
from flows.planning.subclusters.demands import Demands
from flows.planning.subclusters.free import carried
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import BYTES_PER_GIB

_SHOWN = 6  # models in a complaint


def scale_bound(asked: Demands) -> float:
    """A scale that nothing exceeds, whatever the sub-clusters.

    A load relative to the GPUs of its class is the share of the class that a model takes. Shares of
    a class sum to 1 at most, so all models' least shares sum to at most the number of classes.
    """
    gpus = carried(asked.problem.gpus, asked.utilisation)
    used = np.flatnonzero(gpus > 0)

    def shares(load: Floats) -> float:
        return float((load[:, used] / gpus[used]).min(axis=1).sum())

    most = len(used) * (1 + EXACT)
    work = np.column_stack([asked.curves[k].work_s[:, -1] / gpus[k] for k in used])
    above = len(used) / float((asked.weight * work.min(axis=1)).sum())
    # no scale beyond the last at which even the least GPUs fit, which never fall, fits at all
    above = halved(lambda s: shares(asked.least_load(asked.rates(s))) <= most, 0.0, above)[1]
    changes = np.concatenate([changes_of(c.starts_rps, asked.weight) for c in asked.curves])
    return largest(lambda s: shares(asked.load(asked.rates(s))) <= most, changes, above)


def changes_of(starts_rps: Floats, weight: Floats) -> Floats:
    """Scales at which a model's batch changes; none of a model that is asked for nothing."""
    asked = weight > 0
    return (starts_rps[asked] / weight[asked, None]).ravel()


def largest(fits: Callable[[float], bool], changes: Floats, above: float) -> float:
    """The largest scale up to `above` that fits; 0 where none does.

    Between two `changes` of a batch size GPUs grow with the scale: the last change that fits is
    found, and the largest scale from there to the next one.
    """
    if fits(above):
        return above
    edges = np.unique(changes[(changes > 0) & (changes < above)])
    for edge in [*edges[::-1].tolist(), 0.0]:
        if edge > 0 and not fits(edge):
            above = edge
            continue
        return halved(fits, edge, above)[0]
    return 0.0


def out_of_reach(asked: Demands, how: str = "") -> InfeasibleError:
    """Why rates cannot be reached, with the share of them that can."""
    rates = asked.rates(1.0)
    floor = replace(asked, weight=rates, least_rps=np.zeros_like(rates))
    share = min(scale_bound(floor), 1.0)
    if share == 1.0 and np.isfinite(asked.room_bytes).any():
        return does_not_divide(asked)  # the bound does not look at memory
    reason = f"the cluster reaches at most {share:.1%} of the rates asked for{how}"
    return beyond_reach(asked.inputs, rates, reason)


def beyond_reach(inputs: Inputs, rates: Floats, reason: str) -> InfeasibleError:
    """The complaint that rates cannot be reached, with the highest of the rates."""
    asked = zip(inputs.workload.models, rates.tolist(), strict=True)
    highest = sorted(asked, key=lambda pair: -pair[1])
    shown = ", ".join(f"{demand.name} {rate:g}" for demand, rate in highest[:_SHOWN])
    more = f" and {len(highest) - _SHOWN} more" if len(highest) > _SHOWN else ""
    return InfeasibleError("workload", f"{reason} (requests/s: {shown}{more})")


def does_not_divide(asked: Demands) -> InfeasibleError:
    """The complaint that memory holds no division."""
    rooms = ", ".join(
        f"{room / BYTES_PER_GIB:.3g} GiB on {name}"
        for name, room in zip(asked.problem.classes, asked.room_bytes.tolist(), strict=True)
        if np.isfinite(room)
    )
    held = asked.static_bytes.sum() / BYTES_PER_GIB
    reason = f"no sub-clusters were found that hold the models: {held:.3g} GiB of weights"
    return InfeasibleError("workload", f"{reason}, room on a GPU {rooms or 'not known'}")
