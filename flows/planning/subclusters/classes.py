"""Which GPU class each model runs on: an integer program over models and classes.

Sets: models i, classes k. Given: load n_ik (GPUs; infinite where a model cannot run), GPUs N_k,
their prices p_k, the load c(g) that g GPUs may carry (`free`), bytes s_i, room m_k of a GPU.
Variables: x_ik in {0, 1}; GPUs g_k whole.

    cheapest    minimise sum_k p_k g_k        with sum_i n_ik x_ik <= c(g_k), g_k <= N_k
    evenest     minimise z                    with sum_i n_ik x_ik <= z c(N_k)
    both        sum_k x_ik = 1;  sum_i s_i x_ik <= m_k g_k  (a GPU holds one sub-cluster's models)

Sub-clusters of one class need no fewer GPUs than all of its models together, so what is proven here
bounds every plan. A model that leaves its class pays a hair, so that ties leave it there.
"""

from dataclasses import dataclass

import numpy as np

from flows.planning.registry import Inputs
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import PROOF_NODES, Limits, solve_integer
from flows.planning.subclusters.free import carried, limits

_HAIR = 1e-5  # of the cheapest GPU: what moving all bytes to other classes costs


@dataclass(frozen=True, slots=True, kw_only=True)
class ToClass:
    """The models to divide among classes.

    Attributes:
        load: [m, k] GPUs that each model needs on each class; infinite where it cannot run.
        static_bytes: [m].
        room_bytes: [k] of one GPU; infinite where not known.
        gpus: [k].
        price: [k] of one GPU.
        utilisation: share of the time of many GPUs that may be planned.
        before: [m] class of each model under the plan in force, -1 where it has none.
        inputs: with which gap, solver and time it is solved.
    """

    load: Floats
    static_bytes: Floats
    room_bytes: Floats
    gpus: Ints
    price: Floats
    utilisation: float
    before: Ints
    inputs: Inputs


Chosen = tuple[Ints, float]
"""[m] class of each model, and what nothing undercuts of what was minimised."""


def cheapest(asked: ToClass) -> Chosen | None:
    """Classes with the lowest price of whole GPUs; None where the GPUs do not suffice."""
    hair = _HAIR * float(asked.price.min())
    builder, x = _models(asked, hair)
    count = len(asked.price)
    gpus = builder.variables("g", count, upper=asked.gpus, cost=-asked.price, whole=True)
    one_free = builder.variables("y", count, upper=1.0, whole=True)
    for each, more in limits(asked.gpus, asked.utilisation):
        rows = _load_rows(builder, asked, x)
        builder.entries(rows, gpus, -each)
        builder.entries(rows, one_free, -more)
    known = np.flatnonzero(np.isfinite(asked.room_bytes))
    rows, room = _memory_rows(builder, asked, x, known, np.zeros(len(known)))
    builder.entries(rows, gpus[known], -room)
    found = _solved(builder, asked)
    if found is None or not (asked.before >= 0).any():
        return found
    kind, bound = found
    return kind, bound - hair  # moves are no price


def evenest(asked: ToClass) -> Chosen | None:
    """Classes such that the busiest is least busy: minimised is its load / what it may carry."""
    builder, x = _models(asked, _HAIR)
    busiest = builder.variables("z", 1, cost=-1.0)
    rows = _load_rows(builder, asked, x)
    builder.entries(rows, busiest, -carried(asked.gpus, asked.utilisation))
    known = np.flatnonzero(np.isfinite(asked.room_bytes))
    _memory_rows(builder, asked, x, known, asked.gpus[known])
    return _solved(builder, asked)


def _models(asked: ToClass, hair: float) -> tuple[ProgramBuilder, Ints]:
    """A program in which every model has one class, and the variables [m, k] that say which."""
    builder = ProgramBuilder()
    m, kinds = asked.load.shape
    share = asked.static_bytes / (asked.static_bytes.sum() or 1.0)
    leaves = (asked.before[:, None] >= 0) & (asked.before[:, None] != np.arange(kinds))
    x = builder.variables(
        "x",
        (m, kinds),
        upper=np.isfinite(asked.load),
        cost=np.where(leaves, -hair * share[:, None], 0.0),
        whole=True,
    )
    for sign in (1.0, -1.0):
        builder.entries(builder.rows("one", m, upper=sign)[:, None], x, sign)
    return builder, x


def _load_rows(builder: ProgramBuilder, asked: ToClass, x: Ints) -> Ints:
    rows = builder.rows("load", asked.load.shape[1], upper=0.0)
    builder.entries(rows, x, np.where(np.isfinite(asked.load), asked.load, 0.0))
    return rows


def _memory_rows(
    builder: ProgramBuilder, asked: ToClass, x: Ints, known: Ints, gpus: Floats | Ints
) -> tuple[Ints, Floats]:
    """Rows of the classes whose room is known, and that room, both in shares of all bytes."""
    scale = float(asked.static_bytes.sum()) or 1.0
    room = asked.room_bytes[known] / scale
    rows = builder.rows("memory", len(known), upper=room * gpus)
    builder.entries(rows, x[:, known], asked.static_bytes[:, None] / scale)
    return rows, room


def _solved(builder: ProgramBuilder, asked: ToClass) -> Chosen | None:
    program, options, seconds = builder.build(), asked.inputs.options, asked.inputs.watch.left_s()
    limits = Limits(relative_gap=options.gap, nodes=PROOF_NODES, seconds=seconds)
    answer = solve_integer(program, limits, options.solver)
    if answer.values is None:
        return None
    kind = answer.values[: asked.load.size].reshape(asked.load.shape).argmax(axis=1)
    return kind, min(-float(program.cost @ answer.values), -answer.bound)
