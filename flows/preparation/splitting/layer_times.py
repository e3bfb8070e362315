"""Times of a model's layers that were measured elsewhere, by the names of its ONNX nodes.

A file of them is a JSON object: node label to microseconds. It replaces this machine's own timing
when a model is split for a GPU class. Not here: who measures them (`flows/preparation/layer_cuts.py`).
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from flows.files import write_text
from flows.preparation.splitting.graph import Layers, node_label
from triton_backend.contract.errors import InputError


def write_times(path: Path, layers: Layers, times_us: tuple[float, ...]) -> None:
    """Write the times of all layers, in their order.

    Raises:
        InputError: the file cannot be written.
    """
    named = {node_label(n): round(t, 3) for n, t in zip(layers.nodes, times_us, strict=True)}
    write_text(path, json.dumps(named, indent=1) + "\n")


def read_times(path: Path) -> dict[str, float]:
    """Microseconds by node label.

    Raises:
        InputError: it is not a file of layer times.
    """
    try:
        data = json.loads(path.read_text())
        times = {str(name): float(us) for name, us in data.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(str(path), f"not a file of layer times: {error}") from error
    for name, us in times.items():
        if not math.isfinite(us) or us < 0:
            raise InputError(f"{path}, {name!r}", f"{us} is no time in microseconds")
    return times


def times_of(layers: Layers, times_us: Mapping[str, float], where: str) -> tuple[float, ...]:
    """The time of every layer; one that is not named was fused into another, and takes 0.

    Raises:
        InputError: a node named is none of the model's layers, or no layer takes any time.
    """
    labels = [node_label(node) for node in layers.nodes]
    unknown = set(times_us) - set(labels)
    if unknown:
        raise InputError(where, f"{min(unknown)!r} is no layer of the model")
    times = tuple(times_us.get(label, 0.0) for label in labels)
    if not sum(times):
        raise InputError(where, "no layer takes any time")
    return times
