r"""Inputs that a batch's first stage copies into its slot: an express request, or rows.

Rows on this host are copied at once. Those on another one are asked for, and the batch is ready
when all have come:

    GATHER --> copied from slots of fronts and retained outputs here --> ready --> queue
          \-> asked for (`transport.fetching`) --> copied --/
                                                 \-> no answer: its tasks run again (BATCH_LOST)

Here: where the inputs of a batch come from. Not here: the slot and the queue (`queue`), what it
comes to (`output`).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.channel import Channels
from triton_backend.serving.transport.fetching import Fetches, holders
from triton_backend.serving.transport.retained import RetainedSegments, put_corner, rows_of
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.transport.wire import NONE, BatchBody, FrameError, RowSlice

Ready = Callable[[str], None]
"""Takes why a batch's rows cannot be had; empty where they are all there."""


@dataclass(slots=True, eq=False)
class _Gathering:
    """A batch that waits for rows from other hosts: missing pieces, and the queue that waits."""

    missing: int
    ready: Ready


class InputGatherer:
    """Copies what the batches of one vGPU begin with.

    Args:
        node: where the vGPU is.
        channels, retained: what is mapped of fronts and vGPUs of this host.
        fetches: the way to other hosts.
    """

    def __init__(
        self, node: str, channels: Channels, retained: RetainedSegments, fetches: Fetches
    ) -> None:
        self._node = node
        self._channels = channels
        self._retained = retained
        self._fetches = fetches
        self._served: dict[int, Deployment] = {}  # by tag
        self._gathering: dict[int, _Gathering] = {}  # by the batch's number

    def serve(self, deployment: Deployment, vgpu: int) -> None:
        """Gather batches of a generation."""
        del vgpu
        self._served[deployment.tag] = deployment

    def forget(self, tag: int) -> None:
        """Nothing is gathered of a generation any more."""
        self._served.pop(tag, None)

    def copy_express(self, tag: int, body: BatchBody, into: Arrays) -> None:
        """Copy an express request out of its front's slot.

        Raises:
            FrameError: the front is gone, or has no such slot.
        """
        deployment = self._served[tag]
        name = deployment.plan.models[body.model].name
        channel = self._channels.to_front(deployment, name)
        express = None if channel is None else channel.express
        if express is None or not 0 <= body.answer_slot < express.slots:
            raise FrameError(f"its front is gone, or has no express slot {body.answer_slot}")
        for name, tensor in express.views(body.answer_slot, body.samples).items():
            np.copyto(into[name], tensor)

    def gather(
        self,
        batch: tuple[int, int],
        body: BatchBody,
        pieces: Sequence[RowSlice],
        into: Arrays,
        ready: Ready,
    ) -> bool:
        """Have the rows of a batch of modules copied; True where all lay on this host.

        Else `ready` is called once they are there, or cannot be had.

        Args:
            batch: its number and the tag of its plan.
            body: what it is.
            pieces: where its rows lie.
            into: its slot.
            ready: called in the thread that polls; not for a batch that is aborted meanwhile.

        Raises:
            FrameError: a piece is not where it is said to be, or does not fit the batch.
        """
        number, tag = batch
        deployment = self._served[tag]
        elsewhere: list[tuple[list[str], Deployment, RowSlice]] = []
        for piece in pieces:
            end = piece.at + piece.rows
            feeds = _feeds(deployment, piece, into)
            if end > body.samples or not feeds or any(wanted not in into for wanted, _ in feeds):
                raise FrameError(f"a batch of {body.samples} samples does not read {piece}")
            if piece.slot == NONE:
                for wanted, _ in feeds:
                    into[wanted][piece.at : end] = 0
                continue
            application = deployment.applications.graphs[piece.application].name
            theirs = self._deployment_of(piece)
            addresses = holders(theirs, application, piece, self._node)
            if addresses:
                elsewhere.append((addresses, theirs, piece))
            else:
                _copy(feeds, piece, self.rows(application, piece), into)
        if not elsewhere:
            return True
        gathering = self._gathering[number] = _Gathering(len(elsewhere), ready)
        for addresses, theirs, piece in elsewhere:
            if self._gathering.get(number) is not gathering:
                return False  # none has one of those before
            application = deployment.applications.graphs[piece.application]
            feeds = _feeds(deployment, piece, into)
            given = {name for _, name in feeds}
            model = theirs.served[application.name]
            if piece.producer != NONE:
                model = theirs.plan.model(application.modules[piece.producer].model)
            of_request = theirs.express_layout(model).specs
            specs = of_request if piece.producer == NONE else model.outputs
            wanted = [spec for spec in specs if spec.name in given]
            done = partial(self._come, number, gathering, feeds, piece, into)
            self._fetches.ask(addresses, application.name, piece, wanted, done)
        return False

    def bytes_moved(
        self, tag: int, body: BatchBody, pieces: Sequence[RowSlice], into: Arrays
    ) -> dict[int, int]:
        """Bytes of a batch's rows that modules wrote on other nodes, by node."""
        deployment = self._served[tag]
        here = deployment.vgpus[body.hops[0].vgpu].slot.node
        moved: dict[int, int] = {}
        for piece in pieces:
            if NONE in {piece.producer, piece.slot}:
                continue
            there = self._deployment_of(piece).vgpus[piece.vgpu].slot.node
            feeds = deployment.applications.feeds(
                piece.application, piece.module, piece.producer, piece.group
            )
            size = piece.rows * sum(into[wanted][:1].nbytes for wanted, _ in feeds)
            if there != here:
                moved[there] = moved.get(there, 0) + size
        return moved

    def _come(
        self,
        number: int,
        gathering: _Gathering,
        feeds: Sequence[tuple[str, str]],
        piece: RowSlice,
        into: Arrays,
        rows: Arrays | None,
    ) -> None:
        """Rows from another host are here, or no process there answers."""
        if self._gathering.get(number) is not gathering:
            return  # aborted, and its slot may be another batch's
        if rows is not None:
            _copy(feeds, piece, rows, into)
            gathering.missing -= 1
        if rows is None or not gathering.missing:
            del self._gathering[number]
            gathering.ready("" if rows is not None else f"no process answers that has {piece}")

    def remove(self, batch_id: int) -> None:
        """Forget a batch that was aborted."""
        self._gathering.pop(batch_id, None)

    def remove_all(self) -> None:
        """Forget all batches that wait.

        The scheduler is gone, and the next one begins their jobs again.
        """
        self._gathering.clear()

    def rows(self, application: str, piece: RowSlice) -> Arrays:
        """A piece's view, [rows, ...], on this host's memory.

        Raises:
            FrameError: there is no such place.
        """
        if piece.producer != NONE:
            return self._retained.tensors(application, piece)
        try:
            deployment = self._deployment_of(piece)
            channel = self._channels.to_front(deployment, application, piece.vgpu)
            requests = None if channel is None else channel.express
            if channel is None and deployment.settings.gateways > 1:
                # It has died, and others wait for the rest of the batch: what it wrote outlives it.
                layout = deployment.express_layout(deployment.served[application])
                requests = Segment.attach(
                    deployment.express_segment(application, piece.vgpu), layout
                )
        except (InputError, KeyError) as error:
            raise FrameError(f"{piece} is nowhere: {error}") from error
        if requests is None or piece.slot >= requests.slots:
            raise FrameError(f"the front of {application!r} is gone, or has no {piece}")
        most = requests.layout.batch
        return rows_of(requests.views(piece.slot, most), piece, most)

    def _deployment_of(self, piece: RowSlice) -> Deployment:
        try:
            return self._retained.deployment(piece.generation)
        except InputError as error:
            raise FrameError(f"{piece} is nowhere: {error}") from error


def _feeds(
    deployment: Deployment, piece: RowSlice, into: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """The tensors that a batch reads of a piece: of a request, those of its own entry."""
    feeds = deployment.applications.feeds(
        piece.application, piece.module, piece.producer, piece.group
    )
    if piece.producer != NONE:
        return feeds
    return tuple((wanted, given) for wanted, given in feeds if wanted in into)


def _copy(feeds: Sequence[tuple[str, str]], piece: RowSlice, rows: Arrays, into: Arrays) -> None:
    for wanted, name in feeds:
        put_corner(into[wanted][piece.at : piece.at + piece.rows], rows[name])
