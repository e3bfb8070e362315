"""Retained outputs: outputs of modules, kept until all their readers have them.

Every vGPU that runs the last stage of a module retains them in a segment with a slot per batch,
which the gateway grants with the dispatch and frees when the jobs in it have been read. Its file
outlives the worker, and the node too: one that is started again maps it as it is, and what its
predecessor wrote can still be read. It goes when the node model of its generation is unloaded.

Here: the retained outputs that a process of this host has mapped. Not here: which process may read
when (`gateway.applications.jobs`).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import PoolPipeError
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.layout import SlotLayout
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER, Arrays, Segment
from triton_backend.serving.transport.wire import FrameError, RowSlice


class RetainedSegments:
    """Retained outputs of all generations that matter here, mapped when first needed."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._deployments: dict[int, Deployment] = {}
        self._segments: dict[tuple[int, int], Segment] = {}  # by generation and vGPU
        # By generation and the rest of a piece's place: what lies there, and how many rows all of
        # it has.
        self._tensors: dict[tuple[int | str, ...], tuple[Arrays, int]] = {}

    def add(self, deployment: Deployment) -> None:
        """A generation that is known here."""
        self._deployments[deployment.generation] = deployment

    def deployment(self, generation: int) -> Deployment:
        """A generation whose slots a piece names.

        Raises:
            InputError: there is none of that number.
        """
        known = self._deployments.get(generation)
        if known is None:
            known = self._deployments[generation] = Deployment.read(self._settings, generation)
        return known

    def make(self, deployment: Deployment, vgpu: int) -> None:
        """Make the segment of a vGPU, where it retains outputs and its former worker left none.

        Raises:
            InputError: shared memory has no room for it.
        """
        slots = deployment.retained_slots(vgpu)
        if slots:
            name, layout = deployment.retained_segment(vgpu), _layout(deployment, vgpu)
            self._segments[deployment.generation, vgpu] = Segment.kept(name, layout, slots)

    def take_pages(self, deployment: Deployment, vgpu: int) -> None:
        """Take the memory of a segment made here before it is used; from any thread.

        Slots are held until they are read, so that many are in use, and new ones for a while.
        """
        made = self._segments.get((deployment.generation, vgpu))
        if made is not None:
            made.take_pages(made.slots)

    def of_model(self, deployment: Deployment, vgpu: int, model: str) -> Segment:
        """The slots for retained outputs of a vGPU, laid out for the outputs of a model.

        Raises:
            InputError: there is no such segment.
        """
        key = deployment.generation, vgpu
        known = self._segments.get(key)
        if known is None:
            name, layout = deployment.retained_segment(vgpu), _layout(deployment, vgpu)
            known = self._segments[key] = Segment.attach(name, layout)
        return known.laid_out(deployment.retained_layout(deployment.plan.model(model), vgpu))

    def tensors(self, application: str, piece: RowSlice) -> Arrays:
        """A piece's view of its producer's outputs, [rows, ...] on the memory itself.

        Raises:
            FrameError: there is no such place.
        """
        place = piece.generation, piece.vgpu, piece.slot, application, piece.producer, piece.group
        known = self._tensors.get(place)
        if known is None:
            try:
                mine = self._all_of(application, piece)
            except (LookupError, ValueError, PoolPipeError) as error:
                raise FrameError(f"{piece} is nowhere: {error!r}") from error
            known = self._tensors[place] = mine, min(map(len, mine.values()), default=0)
        return rows_of(known[0], piece, known[1])

    def _all_of(self, application: str, piece: RowSlice) -> Arrays:
        """The whole slot in which a piece lies.

        Of the outputs of its producer, those of its group.
        """
        deployment = self.deployment(piece.generation)
        graph = deployment.applications.graph_of(application)
        model = graph.modules[piece.producer].model
        slots = self.of_model(deployment, piece.vgpu, model)
        whole = slots.views(piece.slot, slots.layout.batch)
        mine = {
            n: view
            for n, view in whole.items()
            if deployment.applications.group_of(model, n) == piece.group
        }
        if piece.group:  # [batch, most, ...], filled from its start
            mine = {n: view.reshape(-1, *view.shape[2:]) for n, view in mine.items()}
        return mine

    def forget(self, generation: int) -> None:
        """A generation is over."""
        self._deployments.pop(generation, None)
        for place in [place for place in self._tensors if place[0] == generation]:
            del self._tensors[place]
        for key in [key for key in self._segments if key[0] == generation]:
            self._segments.pop(key).close()

    def forget_before(self, generation: int) -> None:
        """Unmap every generation older than this one, also those that only pieces named."""
        known = {*list(self._deployments), *(key[0] for key in list(self._segments))}
        for older in [one for one in known if one < generation]:
            self.forget(older)

    def close(self) -> None:
        """Unmap them all."""
        for generation in {key[0] for key in self._segments}:
            self.forget(generation)


def remove_retained(deployment: Deployment, vgpus: Iterable[int]) -> None:
    """Delete the retained outputs of vGPUs; processes that have them mapped keep them."""
    for vgpu in vgpus:
        (SHARED_FOLDER / deployment.retained_segment(vgpu)).unlink(missing_ok=True)


def rows_of(tensors: Arrays, piece: RowSlice, most: int) -> Arrays:
    """The rows of a piece, of the tensors of a whole slot of `most` rows.

    Raises:
        FrameError: there are not so many.
    """
    end = piece.row + piece.rows
    if end > most:
        raise FrameError(f"{piece} ends beyond {most} rows")
    return {name: view[piece.row : end] for name, view in tensors.items()}


def put_corner(into: NDArray[np.generic], rows: NDArray[np.generic]) -> None:
    """Copy rows, those of one size of a model into the room of another, or out of it.

    Each lies at the beginning of every dimension; what a row lacks is zero.
    """
    if into.shape == rows.shape:
        np.copyto(into, rows)
        return
    both = tuple(slice(min(pair)) for pair in zip(into.shape, rows.shape, strict=True))
    into[...] = 0
    into[both] = rows[both]


def _layout(deployment: Deployment, vgpu: int) -> SlotLayout:
    return deployment.retained_layout(deployment.retaining_models(vgpu)[0], vgpu)
