"""A Triton Python model as the function of a step.

The model's code is imported with a stand-in for Triton's `triton_python_backend_utils`, which has
what a model that takes arrays and gives arrays needs. Every sample of a batch is a request of its
own, as those of Triton's clients are. A model that sends its answers itself, or asks others, finds
nothing here to do it with.

    execute = TritonModel(__name__, {"name": "clean", "input": [...], "output": [...]})

Not here: which models may run so (`flows.preparation.triton_repository`).
"""

import importlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_backend.runtimes.base import NUMPY_DTYPES

UTILITIES = "triton_python_backend_utils"
CODE = "model"  # the module of the model's own file, in the step's package
INVALID_ARG = 3  # Triton's number
_LOG = logging.getLogger(__name__)
Array = NDArray[Any]


class Tensor:
    """A named array."""

    def __init__(self, name: str, array: Array) -> None:
        self._name, self._array = name, np.asarray(array)

    def name(self) -> str:
        """Its name."""
        return self._name

    def as_numpy(self) -> Array:
        """Its array."""
        return self._array

    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self._array.shape

    def is_cpu(self) -> bool:
        """True: a step's tensors lie in host memory."""
        return True


class Request:
    """One sample, as a request of a client."""

    def __init__(self, tensors: Sequence[Tensor], outputs: Sequence[str], name: str) -> None:
        self._tensors, self._outputs, self._name = list(tensors), list(outputs), name

    def inputs(self) -> list[Tensor]:
        """Its tensors."""
        return self._tensors

    def requested_output_names(self) -> list[str]:
        """All outputs."""
        return self._outputs

    def model_name(self) -> str:
        """The model's name."""
        return self._name

    def request_id(self) -> str:
        """None: a step knows no client."""
        return ""

    def correlation_id(self) -> int:
        """None."""
        return 0

    def parameters(self) -> str:
        """None."""
        return "{}"

    def is_cancelled(self) -> bool:
        """False: a step's samples have been dispatched."""
        return False


class TritonError(Exception):
    """An error that a model answers a request with."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG = 0, 1, 2, INVALID_ARG
    UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = 4, 5, 6, 7

    def __init__(self, message: str = "", code: int = INTERNAL) -> None:
        super().__init__(message)
        self._message, self._code = message, code

    def message(self) -> str:
        """Its text."""
        return self._message

    def code(self) -> int:
        """Triton's number for its kind."""
        return self._code


class TritonModelException(Exception):  # noqa: N818 - Triton's own name
    """An error that a model raises."""


class Response:
    """An answer: tensors, or an error."""

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        """Its tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """True where it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error."""
        return self._error


class Logger:
    """Triton's log: what a step says goes to its worker's."""

    @staticmethod
    def log(message: str, level: int = logging.INFO) -> None:
        """Say something."""
        _LOG.log(level, "%s", message)

    log_info = log_warn = log_error = log_verbose = log


class TritonModel:
    """The function: arrays of a batch in, arrays out.

    Args:
        package: of the step; its module `model` is the file of the Triton model.
        config: the model's configuration as Triton hands it over.

    Raises:
        ImportError, AttributeError: the file is none of a Triton model, or imports what is not
            here; and whatever the model raises while it starts.
    """

    def __init__(self, package: str, config: Mapping[str, Any]) -> None:
        self._name = str(config["name"])
        self._outputs = [one["name"] for one in config["output"]]
        self._shapes = {one["name"]: (1, *one["dims"]) for one in config["output"]}
        code = _with_utilities(lambda: importlib.import_module(f"{package}.{CODE}"))
        self._model = code.TritonPythonModel()
        initialize = getattr(self._model, "initialize", None)
        if initialize is not None:
            _with_utilities(lambda: initialize(_arguments(self._name, config)))

    def __call__(self, /, **tensors: Array) -> dict[str, Array]:
        """Run a batch; rows of outputs in the order of its samples.

        Raises:
            ValueError: a sample is refused as invalid by the model.
            RuntimeError: anything else that the model says or raises.
        """
        batch = len(next(iter(tensors.values())))
        requests = [
            Request(
                [Tensor(name, rows[at : at + 1]) for name, rows in tensors.items()],
                list(self._outputs),
                self._name,
            )
            for at in range(batch)
        ]
        try:
            answers = _with_utilities(lambda: self._model.execute(requests))
        except ValueError as error:  # of the model's own code, not of its client
            raise RuntimeError(f"ValueError: {error}") from error
        if answers is None or len(answers) != batch:
            raise RuntimeError(f"answered {0 if answers is None else len(answers)} of {batch}")
        rows = [_rows(answer, self._shapes) for answer in answers]
        return {name: np.concatenate([one[name] for one in rows]) for name in self._outputs}


def _rows(answer: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The outputs of one sample, one row each: rows of two answers must not change places."""
    error = answer.error() if answer.has_error() else None
    if error is not None:
        kind = ValueError if error.code() == INVALID_ARG else RuntimeError
        raise kind(error.message())
    found = {one.name(): one.as_numpy() for one in answer.output_tensors()}
    for name, shape in shapes.items():
        if name not in found:
            raise RuntimeError(f"an answer has no {name!r}")
        if found[name].shape != shape:
            given, stated = list(found[name].shape), list(shape)
            raise RuntimeError(f"an answer has {name!r} of shape {given}, {stated} is stated")
    return found


def _arguments(name: str, config: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that Triton hands to `initialize`."""
    return {
        "model_config": json.dumps(config),
        "model_name": name,
        "model_version": "1",
        "model_instance_name": f"{name}_0",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_repository": "",
    }


def _with_utilities(work: Callable[[], Any]) -> Any:
    """Do something while an import of Triton's utilities finds the stand-in."""
    before = sys.modules.get(UTILITIES)
    sys.modules[UTILITIES] = utilities()
    try:
        return work()
    finally:
        if before is None:
            del sys.modules[UTILITIES]
        else:
            sys.modules[UTILITIES] = before


def utilities() -> ModuleType:
    """The stand-in for Triton's module."""
    module: Any = ModuleType(UTILITIES)
    module.Tensor, module.TritonError, module.Logger = Tensor, TritonError, Logger
    module.InferenceResponse, module.TritonModelException = Response, TritonModelException
    module.get_input_tensor_by_name = _input
    module.get_output_tensor_by_name = _output
    module.get_input_config_by_name = partial(_stated, "input")
    module.get_output_config_by_name = partial(_stated, "output")
    module.triton_string_to_numpy = _numpy_type
    return module


def _input(request: Request, name: str) -> Tensor | None:
    return next((one for one in request.inputs() if one.name() == name), None)


def _output(answer: Response, name: str) -> Tensor | None:
    return next((one for one in answer.output_tensors() if one.name() == name), None)


def _stated(side: str, config: Any, name: str) -> Any:
    stated = json.loads(config) if isinstance(config, str) else config
    return next((one for one in stated[side] if one["name"] == name), None)


def _numpy_type(text: str) -> type[np.generic]:
    return NUMPY_DTYPES[text.removeprefix("TYPE_")]
