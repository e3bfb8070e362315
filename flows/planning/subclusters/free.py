"""How much load the GPUs of a sub-cluster may carry: some of their time stays free.

A request whose batch is formed waits until a GPU ends what it runs. The fewer GPUs models share,
the longer: all of them are more often in long batches of others at once. With u the share of the
time that is planned (`--utilisation`), g GPUs carry

    carried(g) = min(u g, max(u^2 g, g - 1))

that is u of many GPUs, all but one of fewer, and u^2 of fewer still; at u = 0.9 a tenth is free
from 10 GPUs on and a fifth up to 5. `needed` is its inverse. Two sub-clusters carry no more than
one of all their GPUs: load / needed(load) never falls.

As rows of a program, with a variable y in {0, 1}, y = 1 where a GPU is free, and N GPUs at most:

    load <= u g        load <= g - y        load <= u^2 g + u (1 - u) N y

Here: the rule, for numbers and arrays.
Not here: what load is (`gathering`).
"""

import numpy as np
from numpy.typing import ArrayLike

from flows.planning.solver.arrays import Floats, Ints


def carried(gpus: ArrayLike, utilisation: float) -> Floats:
    """Load (GPUs) that so many GPUs may carry, 1 or more; infinite at an infinite utilisation."""
    gpus = np.asarray(gpus, dtype=np.float64)
    few = np.maximum(utilisation * utilisation * gpus, gpus - 1)
    return np.minimum(utilisation * gpus, few)


def needed(load: ArrayLike, utilisation: float) -> Floats:
    """GPUs, not rounded, that a load (GPUs) needs: the inverse of `carried`."""
    few = np.minimum(np.divide(load, utilisation * utilisation), np.add(load, 1))
    return np.maximum(np.divide(load, utilisation), few)


def limits(most: int | Ints, utilisation: float) -> tuple[tuple[float, float | Floats], ...]:
    """Coefficients of g and y in the three rows; `most` is N."""
    u = utilisation
    return (u, 0.0), (1.0, -1.0), (u * u, u * (1 - u) * most)
