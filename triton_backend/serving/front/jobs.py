"""A front's data for modules: inputs of its requests, outputs of its jobs.

The front of an application gathers nothing. It writes the tensors of a request into a slot of its
own, from which the first workers copy them, once for every module that reads them; when the job is
done it is notified where the retained outputs of the answer lie, and answers from there. Nothing
else of a job comes by here: `bytes_in` and `bytes_out` count what does. The front of a model that
an application uses too does the same, as an application of one module.

    free --> written --> free     when the request has left, in whatever way

A slot is free at once: what still reads it does so for a job without a waiter.

Workers of other hosts ask for the rows in these slots, and retained outputs of other hosts are
asked for here (`transport.fetching`): the answer goes when all of it has come.

Here: slots, where outputs lie. Not here: batches that a front gathers itself (`batches`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.runtimes.stage_tensors import dropped_name
from triton_backend.runtimes.texts import put_tensor
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.requests.pending import PendingRequests
from triton_backend.serving.front.requests.request import ExpressTicket, Request
from triton_backend.serving.liveness.limits import DEAD_BY_NOW_US
from triton_backend.serving.transport.fetching import Fetches, holders
from triton_backend.serving.transport.retained import RetainedSegments, put_corner, rows_of
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.transport.wire import NONE, FrameError, JobDoneBody, RowSlice


class _Generation:
    """The slots of an application's front in one generation.

    Attributes:
        written: the slot of every request that has one.
        superseded_us: since when another generation is served; None while this one is, or may be.
    """

    def __init__(self, deployment: Deployment, name: str) -> None:
        self.deployment = deployment
        self.superseded_us: int | None = None
        self.written: dict[int, int] = {}
        model = deployment.served[name]
        self.graph = deployment.applications.graph_of(name)
        self.modules = {module.name: m for m, module in enumerate(self.graph.modules)}
        # By the name by which others read modules, the first of them.
        self.first = {
            module.read_as: self.modules[self.graph.makers(module.read_as)[0].name]
            for module in self.graph.modules
        }
        self.outputs = {spec.name: spec for spec in model.outputs}
        slots = deployment.request_slots(model)
        layout = deployment.express_layout(model)
        segment = deployment.express_segment(name, deployment.settings.gateway)
        self.requests = Segment.create(segment, layout, slots)
        self.free = deque(range(slots))  # of any thread

    def write(self, request: Request) -> int | None:
        """The slot of a request, in which its tensors lie; None where none is free."""
        slot = self.written.get(request.number)
        if slot is not None:
            return slot
        try:
            slot = self.free.pop()
        except IndexError:
            return None
        self.written[request.number] = slot
        views = self.requests.views(slot, self.requests.layout.batch)
        for name in views.keys() & request.tensors.keys():
            put_tensor(views[name][: request.samples], request.tensors[name])
        return slot

    def group_of(self, module: str, tensor: str) -> int:
        """The group of rows that an output of a module belongs to."""
        return self.deployment.applications.group_of(self.graph.makers(module)[0].model, tensor)

    def wanted(self, piece: RowSlice) -> list[TensorSpec]:
        """The outputs of its module that lie in a piece and that the answer names."""
        module = self.graph.modules[piece.producer]
        sources = (source.partition(".") for source in self.graph.outputs.values())
        named = {tensor for producer, _, tensor in sources if producer == module.read_as}
        return [
            spec
            for spec in self.deployment.plan.model(module.model).outputs
            if spec.name in named and self.group_of(module.read_as, spec.name) == piece.group
        ]

    def place_of(self, piece: RowSlice) -> tuple[int, int]:
        """The module whose rows a piece is of, the first of several sizes, and their group."""
        module = self.graph.modules[piece.producer]
        return self.first[module.read_as], piece.group

    def with_rows(self, body: JobDoneBody) -> list[RowSlice]:
        """The pieces of a job in the order of their rows; not those that say what was dropped.

        Raises:
            FrameError: rows before one are missing.
        """
        found: list[RowSlice] = []
        after: dict[tuple[int, int], int] = {}
        for piece in sorted(piece for piece in body.pieces if piece.slot != NONE):
            key = self.place_of(piece)
            if piece.at != after.get(key, 0):
                raise FrameError(f"rows before {piece} are missing")
            after[key] = piece.at + piece.rows
            found.append(piece)
        return found

    def joined(self, output: str, parts: list[NDArray[np.generic]]) -> NDArray[np.generic]:
        """The rows of an output, one part after the other."""
        if not parts:
            spec = self.outputs.get(output)
            if spec is None:  # a step's refusals, hidden from clients
                return np.empty((0, 1), np.uint8)
            return np.empty((0, *spec.shape[1:]), NUMPY_DTYPES[spec.dtype])
        spec = self.outputs.get(output)
        if spec is not None and any(part.shape[1:] != spec.shape[1:] for part in parts):
            widened = np.empty((sum(map(len, parts)), *spec.shape[1:]), NUMPY_DTYPES[spec.dtype])
            at = 0
            for part in parts:  # of a size with less room
                put_corner(widened[at : at + len(part)], part)
                at += len(part)
            return widened
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class FrontJobs:
    """The requests of one front whose outputs come from retained outputs.

    Attributes:
        bytes_in: of requests, as they were written into slots.
        bytes_out: of answers, as they were read from retained outputs.
    """

    def __init__(
        self, name: str, settings: ServeSettings, pending: PendingRequests, fetches: Fetches
    ) -> None:
        self._name = name
        self._fetches = fetches
        self._retained = RetainedSegments(settings)
        self._pending = pending
        self._generations: dict[int, _Generation] = {}  # by tag
        self._current: _Generation | None = None
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def used(self) -> bool:
        """True if requests go this way now."""
        return self._current is not None

    @property
    def at_rest(self) -> bool:
        """True if no slot is in use and no generation is to be removed."""
        return not any(
            generation.written or generation.superseded_us is not None
            for generation in self._generations.values()
        )

    def add(self, deployment: Deployment) -> None:
        """Make room for requests of a generation that are answered from retained outputs."""
        if deployment.applications.answers_from_retained(self._name):
            self._retained.add(deployment)
            self._generations[deployment.tag] = _Generation(deployment, self._name)

    def use(self, deployment: Deployment) -> None:
        """Write requests under this generation from now on."""
        self._current = self._generations.get(deployment.tag)

    def write(self, request: Request) -> ExpressTicket | None:
        """Write a request's tensors where workers can copy them; None where no slot is free.

        From any thread. A request that has a slot keeps it, also beyond a change of plan.
        """
        for generation in list(self._generations.values()):
            slot = generation.written.get(request.number)
            if slot is not None:
                return ExpressTicket(slot, 0, generation.deployment.tag)
        generation = self._current
        slot = None if generation is None else generation.write(request)
        if generation is None or slot is None:
            return None
        request.express = True
        self.bytes_in += sum(tensor.nbytes for tensor in request.tensors.values())
        return ExpressTicket(slot, 0, generation.deployment.tag)

    def answer(self, tag: int, body: JobDoneBody, reply: Callable[[Arrays | None], None]) -> None:
        """Have the outputs of a job taken, from retained outputs where they lie in one piece.

        No rows without pieces.

        Args:
            tag: of the plan under which it ended.
            body: where its outputs lie.
            reply: takes them, at once where all lie on this host; None where another host does not
                answer.

        Raises:
            FrameError: it is of a plan that is not known here, or they do not lie where it says.
        """
        generation = self._generations.get(tag)
        if generation is None:
            raise FrameError(f"a job of plan {tag:016x}, which is not known here")
        pieces = generation.with_rows(body)
        taken: dict[RowSlice, Arrays] = {}
        elsewhere: list[tuple[list[str], RowSlice]] = []
        for piece in pieces:
            addresses = holders(
                self._retained.deployment(piece.generation), self._name, piece, None
            )
            if addresses:
                elsewhere.append((addresses, piece))
            else:
                taken[piece] = self._retained.tensors(self._name, piece)

        def come(piece: RowSlice, rows: Arrays | None) -> None:
            if rows is None:
                if None not in missing:
                    missing.add(None)
                    reply(None)
                return
            taken[piece] = rows
            missing.discard(piece)
            if not missing:
                reply(self._outputs(generation, body, taken))

        missing: set[RowSlice | None] = {piece for _, piece in elsewhere}
        if not missing:
            reply(self._outputs(generation, body, taken))
        for addresses, piece in elsewhere:
            wanted = generation.wanted(piece)
            self._fetches.ask(addresses, self._name, piece, wanted, partial(come, piece))

    def _outputs(
        self, generation: _Generation, body: JobDoneBody, taken: Mapping[RowSlice, Arrays]
    ) -> Arrays:
        """The outputs of a job whose pieces have been taken."""
        found: Arrays = {}
        pieces = generation.with_rows(body)
        for output, source in generation.graph.outputs.items():
            module, _, tensor = source.partition(".")
            place = generation.first[module], generation.group_of(module, tensor)
            parts = [taken[p][tensor] for p in pieces if generation.place_of(p) == place]
            found[output] = generation.joined(output, parts)
        dropped = {piece.producer for piece in body.pieces if piece.slot == NONE}
        for module in generation.graph.modules:
            if module.optional:
                left_out = generation.modules[module.name] in dropped
                found[dropped_name(module.name)] = np.array([left_out])
        self.bytes_out += sum(tensor.nbytes for tensor in found.values())
        return found

    def rows(self, application: str, piece: RowSlice) -> Arrays:
        """A piece's view of a request's inputs, [rows, ...] in its slot.

        Raises:
            FrameError: there is no such slot.
        """
        for generation in list(self._generations.values()):
            requests = generation.requests
            mine = generation.deployment.generation == piece.generation and piece.producer == NONE
            if mine and application == self._name and piece.slot < requests.slots:
                most = requests.layout.batch
                return rows_of(requests.views(piece.slot, most), piece, most)
        raise FrameError(f"{piece} of {application!r} is nowhere here")

    def module_name(self, number: int) -> str:
        """Of the application as it is served."""
        generation = self._current
        if generation is None or not 0 <= number < len(generation.graph.modules):
            return ""
        return generation.graph.modules[number].name

    def look(self, current: int, now_us: int) -> None:
        """Free the slots of requests that have left.

        Remove generations before `current` without any.
        """
        for tag, generation in list(self._generations.items()):
            for number, slot in list(generation.written.copy().items()):
                if self._pending.get(number) is None:
                    del generation.written[number]
                    generation.free.append(slot)
            if generation.deployment.generation >= current:
                continue
            if generation.superseded_us is None:
                generation.superseded_us = now_us
            over = now_us - generation.superseded_us > DEAD_BY_NOW_US
            if over and not generation.written:
                generation.requests.remove()
                self._retained.forget(generation.deployment.generation)
                del self._generations[tag]

    def close(self) -> None:
        """Remove all slots."""
        for generation in self._generations.values():
            generation.requests.remove()
        self._retained.close()
