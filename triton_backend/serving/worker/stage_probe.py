"""A direct run of one stage: tensors handed to its worker outside any batch, for tests and warm-up.

1. The node writes the inputs into a segment and sends RUN_STAGE to the worker's Unix socket.
2. Between two batches the worker runs its stage from that segment into another; it answers
   STAGE_RESULT.
3. The node reads the results and removes both segments.

The scheduler knows nothing of it: a batch that is due meanwhile starts one run late. Tensors are
JSON in KServe's own form: `{"name", "datatype", "shape", "data"}`.
"""

import contextlib
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import StageRow
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.layout import SlotLayout
from triton_backend.serving.transport.event_loop import make_socket
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    FrameError,
    Kind,
    RunStageBody,
    check_body,
    frame,
    pack_run_stage,
    parse_header,
    unpack_stage_result,
)
from triton_backend.serving.worker.queue import TaggedPlace

ANSWER_SECONDS = 20.0


def read_tensors(given: Any, specs: Sequence[TensorSpec], most: int) -> tuple[Arrays, int]:
    """Tensors of a JSON request, and how many samples they have.

    Args:
        given: a list of tensors in KServe's form.
        specs: what the stage takes.
        most: samples that one batch may have.

    Raises:
        InputError: a tensor is missing, unknown, or not of the stage's type and shape.
    """
    if not isinstance(given, list) or not all(isinstance(t, Mapping) for t in given):
        raise InputError("inputs", "is not a list of tensors")
    by_name = {str(tensor.get("name")): tensor for tensor in given}
    if set(by_name) != {spec.name for spec in specs} or len(by_name) != len(given):
        raise InputError("inputs", f"has {sorted(by_name)}, not {sorted(s.name for s in specs)}")
    arrays = {spec.name: _array(by_name[spec.name], spec) for spec in specs}
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1 or not 1 <= min(counts) <= most:
        raise InputError("inputs", f"has {sorted(counts)} samples; one number of 1 to {most} fits")
    return arrays, counts.pop()


def _array(tensor: Mapping[str, Any], spec: TensorSpec) -> Any:
    where = f"input {spec.name!r}"
    shape, dtype = tensor.get("shape"), tensor.get("datatype", spec.dtype)
    if dtype != spec.dtype:
        raise InputError(where, f"datatype {dtype!r}, not {spec.dtype}")
    if not isinstance(shape, list) or tuple(shape[1:]) != spec.shape[1:]:
        raise InputError(where, f"shape {shape}, not {list(spec.shape)}")
    try:
        return np.array(tensor.get("data"), dtype=NUMPY_DTYPES[dtype]).reshape(shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(where, f"data is not {dtype} of shape {shape}: {error}") from error


def write_tensors(arrays: Arrays, specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Tensors as JSON in KServe's form, with flat data."""
    return [
        {
            "name": spec.name,
            "datatype": spec.dtype,
            "shape": list(arrays[spec.name].shape),
            "data": arrays[spec.name].reshape(-1).tolist(),
        }
        for spec in specs
    ]


def run_stage(
    deployment: Deployment, vgpu: int, row: StageRow, inputs: Arrays, samples: int
) -> Arrays:
    """Have the worker of a vGPU of this host run a stage once; outputs are copies.

    Raises:
        InputError: its worker is not there, ends, or says that the run failed.
    """
    with contextlib.ExitStack() as stack:
        given, made = (
            stack.enter_context(_own(name, layout))
            for name, layout in zip(
                _names(deployment, vgpu), _layouts(deployment, row), strict=True
            )
        )
        for name, view in given.views(0, samples).items():
            view[...] = inputs[name]
        question = RunStageBody(*row.place, samples)
        error = _ask(deployment, vgpu, frame(Kind.RUN_STAGE, pack_run_stage(question)))
        if error:
            raise InputError(f"vGPU {vgpu}", error)
        return {name: view.copy() for name, view in made.views(0, samples).items()}


def answer_run_stage(
    deployment: Deployment,
    vgpu: int,
    run: Callable[[TaggedPlace, Arrays, Arrays, int], object],
    question: RunStageBody,
) -> str:
    """The worker's side: `run` a stage on what the node put there; what went wrong, or nothing.

    Raises:
        FrameError: no such stage here, or no such number of samples.
        InputError: the node's memory is not there.
    """
    place, samples = question[:3], question.samples
    row = next((row for row in deployment.rows_of(vgpu) if row.place == place), None)
    if row is None:
        raise FrameError(f"model {place[0]}, pipeline {place[1]}, stage {place[2]} is not here")
    most = deployment.largest_of(row)
    if not 1 <= samples <= most:
        raise FrameError(f"{samples} samples, 1 to {most} fit")
    names, layouts = _names(deployment, vgpu), _layouts(deployment, row)
    given, made = (Segment.attach(n, x) for n, x in zip(names, layouts, strict=True))
    try:
        run((deployment.tag, *row.place), given.views(0, samples), made.views(0, samples), samples)
    except Exception as error:  # noqa: BLE001  # a runtime may raise anything
        return f"{type(error).__name__}: {error}"
    finally:
        given.close()
        made.close()
    return ""


def _names(deployment: Deployment, vgpu: int) -> tuple[str, str]:
    name = deployment.worker_segment(vgpu)
    return f"{name}-probe-in", f"{name}-probe-out"


def _layouts(deployment: Deployment, row: StageRow) -> tuple[SlotLayout, SlotLayout]:
    largest = deployment.largest_of(row)
    return (
        SlotLayout(specs=deployment.inputs_of(row), batch=largest),
        SlotLayout(specs=deployment.written_by(row), batch=largest),
    )


@contextlib.contextmanager
def _own(name: str, layout: SlotLayout) -> Generator[Segment]:
    segment = Segment.create(name, layout, 1)
    try:
        yield segment
    finally:
        segment.remove()


def _ask(deployment: Deployment, vgpu: int, question: bytes) -> str:
    sock, address = make_socket(deployment.worker_address(vgpu, same_host=True))
    sock.settimeout(ANSWER_SECONDS)
    try:
        with sock:
            sock.connect(address)
            sock.sendall(question)
            header = parse_header(_receive(sock, HEADER_BYTES))
            body = _receive(sock, header.body_bytes)
            check_body(header, body)
            return unpack_stage_result(body)
    except (OSError, PoolPipeError) as error:
        raise InputError(f"vGPU {vgpu}", f"its worker does not answer: {error}") from error


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise FrameError("it closed the connection")
        data += piece
    return bytes(data)
