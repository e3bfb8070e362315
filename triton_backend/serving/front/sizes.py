"""One name for several sizes of a model: a request goes to the front of the size it brings.

Every size has its own front, queue and batches, so that a batch never mixes sizes. Here: which one
a request belongs to, and the refusal that lists all. Not here: the sizes of a workload
(`contract.workload`), the checks of everything else in a request (`pending`).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan
from triton_backend.serving.front.pending import IncomingRequest
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.front.service import FrontService

Shape = tuple[int, ...]
_LOG = logging.getLogger(__name__)


class SizeTable:
    """The sizes of a model by the shapes of a sample.

    Args:
        model: the name that clients ask for.
        sizes: in the plan's order, of the same inputs.
    """

    def __init__(self, model: str, sizes: Sequence[ModelPlan]) -> None:
        self._model = model
        shapes = [{spec.name: spec.shape[1:] for spec in size.inputs} for size in sizes]
        self._inputs = sorted(
            name for name in shapes[0] if any(one[name] != shapes[0][name] for one in shapes)
        )
        self._numbers = {
            tuple(one[name] for name in self._inputs): number for number, one in enumerate(shapes)
        }

    def number_of(self, incoming: IncomingRequest) -> int:
        """Number of the size that a request brings.

        Of a request that leaves out an input, the first, whose front complains of that.

        Raises:
            InputError: it brings none of them; the reason lists them.
        """
        brought: dict[str, Shape] = {
            tensor.name(): tuple(tensor.as_numpy().shape[1:])
            for tensor in incoming.inputs()
            if tensor.name() in self._inputs
        }
        if len(brought) < len(self._inputs):
            return 0
        given = tuple(brought[name] for name in self._inputs)
        number = self._numbers.get(given)
        if number is None:
            known = "; ".join(map(self._in_words, self._numbers))
            reason = f"{self._in_words(given)} is none of the sizes served: {known}"
            raise InputError(f"model {self._model!r}", reason)
        return number

    def replying(self, number: int, reply: Callable[[Result], None]) -> Callable[[Result], None]:  # noqa: ARG002 - as `Table` has it
        """The reply as it is."""
        return reply

    def _in_words(self, shapes: tuple[Shape, ...]) -> str:
        given = zip(self._inputs, shapes, strict=True)
        return ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in given)


class Table(Protocol):
    """Which of the fronts of a name a request goes to."""

    def number_of(self, incoming: IncomingRequest) -> int:
        """Number of the front that takes a request.

        Raises:
            InputError: none does.
        """
        ...

    def replying(self, number: int, reply: Callable[[Result], None]) -> Callable[[Result], None]:
        """A reply to a request of that front."""
        ...


class SizedFront:
    """The fronts of a model's sizes or variants as one: started, stopped and watched together.

    Args:
        model: the name that clients ask for.
        fronts: of each size or variant.
        table: which of them takes a request; None: the one of its size.

    Attributes:
        refused: requests of no size.
    """

    def __init__(
        self, model: str, fronts: Sequence[FrontService], table: Table | None = None
    ) -> None:
        self.fronts = tuple(fronts)
        self.refused = 0
        self._model = model
        self._table = table or SizeTable(model, [front.plan for front in fronts])

    def start(self) -> None:
        """Start all."""
        for front in self.fronts:
            front.start()

    def stop(self) -> None:
        """Refuse what is left, and stop all."""
        for front in self.fronts:
            front.stop()

    def alive_us(self) -> int:
        """When the loops of all last succeeded."""
        return min(front.alive_us() for front in self.fronts)

    def take(self, incoming: IncomingRequest, reply: Callable[[Result], None]) -> None:
        """Take a request of Triton's, or refuse it; whatever it holds, nothing is raised."""
        try:
            number = self._table.number_of(incoming)
            front, replying = self.fronts[number], self._table.replying(number, reply)
        except InputError as error:
            refusal = Refusal("INVALID_ARG", str(error))
        except Exception:  # noqa: BLE001  # Triton's objects may raise any
            _LOG.exception("a request of model %s", self._model)
            refusal = Refusal("INTERNAL", f"model {self._model!r}: the request cannot be read")
        else:
            front.take(incoming, replying)
            return
        self.refused += 1
        try:
            reply(refusal)
        except Exception:  # noqa: BLE001  # see above
            _LOG.exception("a reply of %s was not sent", self._model)
