"""Triton's Python models that may run as steps of an application, and how they are written as such.

A model may that takes and gives arrays of stated sizes and does nothing else: its file is all that
it has, it answers every request itself and at once. Here: which ones, their tensors, the package of
a step. Not here: running one (`triton_backend.runtimes.python_step.triton_model`).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from flows.files import read_text
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import NUMPY_DTYPES, REFUSED, counts_of
from triton_backend.runtimes.python_step.triton_model import CODE

FILE = "model.py"
ENVIRONMENT = "EXECUTION_ENV_PATH"  # a parameter: another Python, which a step does not run in
MOST_BATCH = 8
# Calls of Triton's utilities that a step has no counterpart of.
_BEYOND = re.compile(
    r"\b(InferenceRequest|get_response_sender|from_dlpack|to_dlpack|async def execute"
    r"|preferred_memory|MetricFamily)\b"
)
_PACKAGE = '''"""The Triton Python model {name!r} as a step, written by `poolpipe import-triton`."""

from triton_backend.runtimes.python_step.triton_model import TritonModel

execute = TritonModel(__name__, {config!r})
'''


def step_file(folder: Path, message: Any, versions: Sequence[int]) -> Path:
    """The file of a Python model that may run as a step.

    Raises:
        InputError: it may not, with the reason.
    """
    where = str(folder)
    if not versions:
        raise InputError(where, "has no served version")
    path = folder / str(versions[0]) / file_named(where, message, FILE)
    if not path.is_file() or path.name != FILE:
        raise InputError(where, f"has no {FILE} in version {versions[0]}")
    others = sorted(each.name for each in path.parent.iterdir() if each.name != "__pycache__")
    if others != [FILE]:
        raise InputError(where, f"has more files than {FILE} in version {versions[0]}")
    if ENVIRONMENT in message.parameters:
        raise InputError(where, f"has an environment of its own ({ENVIRONMENT})")
    if message.max_batch_size < 1:
        raise InputError(where, "takes no batches")
    for each in (*message.input, *message.output):
        _tensor(where, each)
    outputs = [each.name for each in message.output]
    if not message.input or not outputs or REFUSED in outputs or counts_of(outputs):
        raise InputError(where, "states no inputs or outputs that a step could have")
    if found := _BEYOND.search(read_text(path)):
        raise InputError(where, f"uses {found[0]}, which a step does not have")
    return path


def file_named(where: str, message: Any, usual: str) -> str:
    """The name of a model's file within its version's folder, as its configuration has it.

    Raises:
        InputError: it leads out of that folder.
    """
    name = str(message.default_model_filename or usual)
    if Path(name).is_absolute() or ".." in Path(name).parts:
        reason = f"default_model_filename {name!r} leads out of its version's folder"
        raise InputError(where, reason)
    return name


def _tensor(where: str, stated: Any) -> str:
    """A tensor as workload.yaml states it, for instance `FP32 3x224x224`."""
    dtype = _kind(stated).removeprefix("TYPE_")
    optional = getattr(stated, "optional", False) or getattr(stated, "allow_ragged_batch", False)
    if dtype not in NUMPY_DTYPES or optional or stated.HasField("reshape"):
        raise InputError(where, f"tensor {stated.name!r} is no array of numbers of stated sizes")
    if not stated.dims or min(stated.dims) < 1:
        raise InputError(where, f"tensor {stated.name!r} has sizes that are not stated")
    return f"{dtype} {'x'.join(map(str, stated.dims))}"


def _kind(stated: Any) -> str:
    """The data type as a configuration spells it; its number where the schema has no such type."""
    kinds = type(stated).DESCRIPTOR.fields_by_name["data_type"].enum_type
    known = kinds.values_by_number.get(stated.data_type)
    return str(stated.data_type if known is None else known.name)


def package_of(name: str) -> str:
    """The name of a step's package; names that differ have packages that do."""
    letters = re.sub(r"[^A-Za-z0-9_]", "_", name)
    # `a-b` and `a.b` have the same letters.
    return f"step_{letters}" if letters == name else f"step_{letters}_{crc32(name.encode()):08x}"


def write_step(file: Path, message: Any, name: str, folder: Path) -> Path:
    """Write the package of a step below a folder; returns its own.

    Raises:
        InputError: there is a folder of that name already.
    """
    package = folder / package_of(name)
    try:
        package.mkdir(parents=True)
    except FileExistsError:
        reason = "is there already; give another folder with -o"
        raise InputError(str(package), reason) from None
    (package / f"{CODE}.py").write_bytes(file.read_bytes())
    text = _PACKAGE.format(name=name, config=configuration_of(message, name))
    (package / "__init__.py").write_text(text)
    return package


def configuration_of(message: Any, name: str) -> dict[str, Any]:
    """The part of a configuration that Python models read, as Triton hands it over."""

    def tensors(given: Any) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "data_type": _kind(each), "dims": list(each.dims)} for each in given
        ]

    parameters = {key: {"string_value": v.string_value} for key, v in message.parameters.items()}
    return {
        "name": name,
        "max_batch_size": message.max_batch_size,
        "input": tensors(message.input),
        "output": tensors(message.output),
        "parameters": parameters,
    }


def stated_step(message: Any, name: str, folder: str) -> dict[str, Any]:
    """The step in workload.yaml, with its package below a folder beside that file."""
    package = package_of(name)
    return {
        "name": name,
        "python": f"{package}:execute",
        "package": f"./{folder}/{package}",
        "inputs": {each.name: _tensor(name, each) for each in message.input},
        "outputs": {each.name: _tensor(name, each) for each in message.output},
        "max_batch": min(message.max_batch_size, MOST_BATCH),
    }
