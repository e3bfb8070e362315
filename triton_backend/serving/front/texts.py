"""BYTES as clients send and see them, and what Python steps refuse.

Triton hands a text over as an element of an array of objects; inside, it lies behind its length in
a row of numbers (`runtimes.texts`). Lengths are compared with the plan's `max_bytes` before memory
is taken.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan
from triton_backend.contract.tensors import BYTES
from triton_backend.runtimes.base import REFUSED
from triton_backend.runtimes.texts import pack_texts, unpack_texts
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.transport.shared_memory import Arrays


def packed(where: str, array: NDArray[Any], max_bytes: int) -> NDArray[np.uint8]:
    """Texts of a request as rows.

    Raises:
        InputError: it is no array of texts, or one is longer than the plan allows.
    """
    if array.dtype != np.object_ or array.ndim != 1:
        raise InputError(where, f"{array.dtype} of shape {array.shape}, not BYTES of (samples)")
    texts = array.tolist()
    for text in texts:
        if not isinstance(text, bytes):
            raise InputError(where, f"a {type(text).__name__}, not bytes")
        if len(text) > max_bytes:
            raise InputError(where, f"{len(text)} bytes, at most {max_bytes} are taken (max_bytes)")
    return pack_texts(texts)


class SeenOutputs:
    """Outputs as clients see them: those of the served model, texts as objects.

    Or why a step refused.

    Args:
        model: as clients see it.
    """

    def __init__(self, model: ModelPlan) -> None:
        self._name = model.name
        self._shown = {spec.name for spec in model.outputs}
        self._texts = {spec.name for spec in model.outputs if spec.dtype == BYTES}

    def seen(self, outputs: Arrays) -> Result:
        """The outputs, or the refusal that a step wrote into one that clients do not see."""
        if not self._texts and outputs.keys() <= self._shown:
            return outputs
        hidden = outputs.keys() - self._shown
        for name in sorted(hidden):
            if name == REFUSED or name.endswith(f".{REFUSED}"):
                refusal = self._refusal(name, outputs)
                if refusal is not None:
                    return refusal
        return {n: self._client_form(n, a) for n, a in outputs.items() if n not in hidden}

    def _refusal(self, name: str, outputs: Mapping[str, NDArray[Any]]) -> Refusal | None:
        rows = outputs[name]
        if not rows.size or not rows[:, 0].any():  # texts are shorter than 256 bytes
            return None
        said = next(filter(None, unpack_texts(rows))).decode(errors="replace")
        status, _, reason = said.partition(" ")
        module = name.removesuffix(REFUSED).rstrip(".")
        where = f"model {self._name!r}" + (f", module {module!r}" if module else "")
        return Refusal(status, f"{where}: {reason}")

    def _client_form(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        if name not in self._texts:
            return array
        found = np.empty(len(array), np.object_)
        found[:] = unpack_texts(array)
        return found
