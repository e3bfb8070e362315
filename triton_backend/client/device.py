"""Heads on this device: sessions of onnxruntime, how long each takes, and what they are given."""

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any
from zipfile import BadZipFile

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tritonclient.utils import triton_to_np_dtype

from .errors import ClientError
from .heads import Head, Heads, Tensor

Arrays = dict[str, NDArray[Any]]
RANDOM = "random"
WARM_UPS, RUNS = 3, 15
FATAL_ONLY = 4  # failures are raised
CHANNELS = 3


class Device:
    """The heads of a model, loaded when they are first run.

    Args:
        heads: the model's.
        stretch: every head takes so many times as long: a slower device than this one.
    """

    def __init__(self, heads: Heads, stretch: float = 1.0) -> None:
        self._heads, self._stretch = heads, stretch
        self._sessions: dict[int, onnxruntime.InferenceSession] = {}

    def load(self, head: Head) -> None:
        """Load a head, so that its first run is not longer than the others.

        Raises:
            ClientError: onnxruntime cannot.
        """
        if head.file is None or head.block in self._sessions:
            return
        options = onnxruntime.SessionOptions()
        options.log_severity_level = FATAL_ONLY
        # Threads that spin while they wait slow down the client's own event loop.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._sessions[head.block] = onnxruntime.InferenceSession(
                str(head.file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own exceptions share no public base class
            raise ClientError(str(head.file), str(error).splitlines()[0]) from error

    def run(self, head: Head, inputs: Arrays) -> Arrays:
        """Tensors after a head; for block 0 the inputs themselves.

        Raises:
            ClientError: onnxruntime cannot load the head, or cannot run it on these.
        """
        if head.file is None:
            return inputs
        self.load(head)
        begun = time.perf_counter()
        session = self._sessions[head.block]
        taken = {item.name: inputs[item.name] for item in session.get_inputs()}
        names = [tensor.name for tensor in head.tensors]
        made = [name for name in names if name not in taken]
        try:
            found = zip(made, session.run(made, taken) if made else (), strict=True)
        except Exception as error:  # as above
            reason = f"cannot run these inputs: {str(error).splitlines()[0]}"
            raise ClientError(str(head.file), reason) from error
        crossing = taken | {name: np.asarray(array) for name, array in found}
        time.sleep((self._stretch - 1) * (time.perf_counter() - begun))
        return {name: crossing[name] for name in names}

    def measure_us(self, head: Head, inputs: Arrays) -> int:
        """Median time of a head on one sample."""
        times: list[float] = []
        for _ in range(WARM_UPS + RUNS):
            begun = time.perf_counter()
            self.run(head, inputs)
            times.append(time.perf_counter() - begun)
        return round(median(times[WARM_UPS:]) * 1e6) if head.block else 0


def halved(arrays: Arrays, tensors: tuple[Tensor, ...]) -> Arrays:
    """Tensors as FP16; those with values beyond half precision in full."""
    sent: Arrays = {}
    for tensor in tensors:
        array, half = arrays[tensor.name], tensor.half()
        if half is not tensor:
            with np.errstate(over="ignore"):
                narrow = array.astype(np.float16)
            if np.isfinite(narrow).all():
                sent[half.name] = narrow
                continue
        sent[tensor.name] = array
    return sent


def largest_error(got: Mapping[str, NDArray[Any]], expected: Arrays) -> float:
    """Largest difference over the largest magnitude expected, over all tensors.

    inf: another shape, or numbers that are not finite in other places.
    """
    worst = 0.0
    for name, array in expected.items():
        if name not in got or got[name].shape != array.shape:
            return float("inf")
        wide, given = array.astype(np.float64), got[name].astype(np.float64)
        finite = np.isfinite(wide)
        if not np.array_equal(given[~finite], wide[~finite], equal_nan=True):
            return float("inf")
        scale = float(np.abs(wide[finite]).max(initial=0.0)) or 1.0
        difference = float(np.abs(given[finite] - wide[finite]).max(initial=0.0))
        worst = max(worst, difference / scale if np.isfinite(difference) else np.inf)
    return worst


def read_input(text: str, tensors: tuple[Tensor, ...]) -> Arrays:
    """One sample: `random`, an .npy or .npz file, or a picture (where Pillow is installed).

    Raises:
        ClientError: it does not fit the model's inputs.
    """
    if text == RANDOM:
        rng = np.random.default_rng(0)
        return {t.name: _random(t, rng) for t in tensors}
    path = Path(text)
    try:
        if path.suffix in (".npy", ".npz"):
            found = _stored(path, tensors[0].name)
        else:
            found = {tensors[0].name: _picture(path, tensors[0])}
        return {t.name: _fitting(text, t, found) for t in tensors}
    except (OSError, EOFError, ValueError, BadZipFile) as error:
        raise ClientError(f"--input {text}", f"cannot be read: {error}") from error


def _stored(path: Path, first: str) -> Arrays:
    """Arrays of a file by name; the one of a file without names is of the first input."""
    with path.open("rb") as file:
        stored: Any = np.load(file)
        if isinstance(stored, np.ndarray):
            return {first: stored}
        return {name: stored[name] for name in stored.files}


def _random(tensor: Tensor, rng: np.random.Generator) -> NDArray[Any]:
    dtype = np.dtype(triton_to_np_dtype(tensor.dtype))
    shape = (1, *tensor.shape)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _picture(path: Path, tensor: Tensor) -> NDArray[Any]:
    """Red, green and blue as channels first, resized, 0 to 1 where the input is no bytes."""
    try:
        from PIL import Image  # noqa: PLC0415  # only pictures need it
    except ImportError as error:
        raise ClientError(f"--input {path}", "a picture needs Pillow; or give .npy") from error
    if len(tensor.shape) != CHANNELS or tensor.shape[0] != CHANNELS:
        reason = f"{tensor.name} takes {tensor.shape}, no picture of three channels; give .npy"
        raise ClientError(f"--input {path}", reason)
    _, height, width = tensor.shape
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").resize((width, height))).transpose(2, 0, 1)
    except Exception as error:  # Pillow's exceptions share no base class
        raise ClientError(f"--input {path}", f"cannot be read: {error}") from error
    whole = tensor.dtype.startswith(("INT", "UINT"))
    return pixels[None] if whole else pixels[None] / 255


def _fitting(text: str, tensor: Tensor, found: Arrays) -> NDArray[Any]:
    where = f"--input {text}"
    if tensor.name not in found:
        raise ClientError(where, f"has {', '.join(found)}, not {tensor.name}")
    array = found[tensor.name]
    if array.shape == tensor.shape:
        array = array[None]
    if array.shape != (1, *tensor.shape):
        raise ClientError(where, f"{tensor.name} is {array.shape}, not {(1, *tensor.shape)}")
    return np.ascontiguousarray(array.astype(triton_to_np_dtype(tensor.dtype)))
