"""One name for several sizes of a model: a request goes to the front of the size it brings.

Every size has its own front, queue and batches, so that a batch never mixes sizes. Here: which one
a request belongs to, and the refusal that lists all. Not here: the sizes of a workload
(`contract.workload`), the fronts of a name (`group`), the checks of everything else in a request
(`pending`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan

Front = TypeVar("Front")
Front_co = TypeVar("Front_co", covariant=True)
Shape = tuple[int, ...]
Tensors = Mapping[str, Callable[[], NDArray[np.generic]]]
"""Of a request by name, each made when it is asked for."""


class Table(Protocol[Front_co]):
    """Which of the fronts of a name a request goes to."""

    def front_of(self, tensors: Tensors, low: Callable[[], bool]) -> Front_co:
        """The front that takes a request.

        Args:
            tensors: that it brings.
            low: says whether it is a low one.

        Raises:
            InputError: none does.
        """
        ...


class OneFront(Generic[Front]):
    """The only front of a name."""

    def __init__(self, front: Front) -> None:
        self.front = front

    def front_of(self, tensors: Tensors, low: Callable[[], bool]) -> Front:  # noqa: ARG002 - as `Table` has it
        """The only one."""
        return self.front


class SizeTable(Generic[Front]):
    """The fronts of a model's sizes by the shapes of a sample.

    Args:
        model: the name that clients ask for.
        fronts: of the sizes.
        sizes: in the plan's order, of the same inputs.
    """

    def __init__(self, model: str, fronts: Sequence[Front], sizes: Sequence[ModelPlan]) -> None:
        self._model = model
        self._first = fronts[0]
        shapes = [{spec.name: spec.shape[1:] for spec in size.inputs} for size in sizes]
        self._inputs = sorted(
            name
            for name in shapes[0]
            if len(shapes) == 1 or any(one[name] != shapes[0][name] for one in shapes)
        )
        keys = (tuple(one[name] for name in self._inputs) for one in shapes)
        self._fronts = dict(zip(keys, fronts, strict=True))

    def front_of(self, tensors: Tensors, low: Callable[[], bool]) -> Front:  # noqa: ARG002 - as `Table` has it
        """The front of the size that a request brings.

        Of a request that leaves out an input, the first, which complains of that.

        Raises:
            InputError: it brings none of them; the reason lists them.
        """
        brought: dict[str, Shape] = {
            name: tuple(tensors[name]().shape[1:]) for name in self._inputs if name in tensors
        }
        if len(brought) < len(self._inputs):
            return self._first
        given = tuple(brought[name] for name in self._inputs)
        front = self._fronts.get(given)
        if front is None:
            known = "; ".join(map(self._in_words, self._fronts))
            reason = f"{self._in_words(given)} is none of the sizes served: {known}"
            raise InputError(f"model {self._model!r}", reason)
        return front

    def _in_words(self, shapes: tuple[Shape, ...]) -> str:
        given = zip(self._inputs, shapes, strict=True)
        return ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in given)
