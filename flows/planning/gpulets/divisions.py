"""GPUs divided into parts that are counted by kind: a cover whose columns are parts.

Where no part disturbs another, counts of what parts do and counts of how GPUs are divided say the
same as patterns of whole GPUs (`master`), in far fewer columns. Sets: kinds of parts s, what a part
of a kind does o, divisions g of a GPU of class k(g) into c_gs parts of kinds.

    parts_s    sum_{o of s} x_o - sum_g c_gs y_g <= 0      y_g whole, at a price of class k(g)
    gpus_k     sum_{g of k} y_g <= N_k

Columns of the engine are x; divisions are free columns that lend parts and use GPUs; they
are the first of these.

Here: that cover, and from counts back to GPUs. Not here: what parts do, and which is best.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from flows.planning.engine.master import Cover, Free
from flows.planning.solver.arrays import Floats, Ints

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisions:
    """Ways to divide GPUs.

    Attributes:
        gpu_class: [division].
        parts: by division the kind of each of its parts.
        kinds: how many kinds there are.
    """

    gpu_class: Ints
    parts: tuple[tuple[int, ...], ...]
    kinds: int

    @property
    def counts(self) -> Floats:
        """[division, kind] parts."""
        found = np.zeros((len(self.parts), self.kinds))
        for number, kinds in enumerate(self.parts):
            np.add.at(found[number], list(kinds), 1.0)
        return found

    def cover(self, asked: Cover, prices: Floats) -> Cover:
        """The same demands, met by parts: kinds are resources before the GPUs of classes.

        Args:
            asked: with the GPUs of every class as its resources.
            prices: [class] of a GPU.
        """
        of = np.eye(len(prices))[self.gpu_class]
        lent = Free.dense(
            prices[self.gpu_class],
            np.zeros((len(of), len(asked.need))),
            np.hstack([-self.counts, of]),
            of @ asked.capacity,
            np.ones(len(of), dtype=np.bool_),
        )
        capacity = np.append(np.zeros(self.kinds), asked.capacity)
        return replace(asked, capacity=capacity, free=lent.and_these(asked.free))

    def on_gpus(
        self, counts: Iterable[float], stock: Mapping[int, list[Part]]
    ) -> Iterator[tuple[int, list[Part]]]:
        """The class and the parts of every GPU that has some.

        Args:
            counts: [division] GPUs, and what follows; none where there is no plan.
            stock: parts of each kind, which are taken from its end.
        """
        for count, gpu_class, kinds in zip(counts, self.gpu_class, self.parts, strict=False):
            for _ in range(round(count)):
                taken = [stock[kind].pop() for kind in kinds if stock.get(kind)]
                if taken:
                    yield int(gpu_class), taken
