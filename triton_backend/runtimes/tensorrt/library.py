"""The one door to TensorRT: which library is there, what it said, and its names for types.

Here: the only imports of TensorRT in the project, the order in which its packages are tried, a
logger that keeps lines, datatypes in KServe's words. Not here: building (`flows/building`) and
running (`engines/tensorrt.py`), which are handed the loaded module.

Two libraries share one API. `tensorrt` is the data-centre library; `tensorrt-rtx` comes as
ordinary wheels, builds engines without a GPU and compiles the rest on the card when it loads.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from triton_backend.contract.errors import InputError

DATA_CENTRE, RTX = "tensorrt", "tensorrt-rtx"
LIBRARIES = (DATA_CENTRE, RTX)
INSTALL_HINT = (
    "`pip install poolpipe[tensorrt]` brings the data-centre library (it fetches from "
    "NVIDIA's index),"
    " `poolpipe[tensorrt-rtx]` ordinary wheels that build without a GPU, for L4-class cards "
    "and newer"
    " (see flows/preparation/building/tensorrt/README.md)"
)
# TensorRT's DataType names and KServe's.
KSERVE_OF_TENSORRT: Mapping[str, str] = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "UINT8": "UINT8",
    "BOOL": "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A loaded TensorRT: `name` as in `LIBRARIES`, `module` what Python calls it."""

    name: str
    version: str
    module: Any

    def kserve_dtype(self, dtype: Any) -> str:
        """KServe datatype of a TensorRT one; TensorRT's own word where KServe has none."""
        word = str(dtype.name)
        return KSERVE_OF_TENSORRT.get(word, word)


def load_library(name: str | None = None) -> Library:
    """Load TensorRT: the library asked for, else `tensorrt`, else `tensorrt-rtx`.

    Raises:
        InputError: it is not installed; the message names what to install.
    """
    if name is not None and name not in LIBRARIES:
        raise InputError(f"TensorRT library {name!r}", f"is none of {', '.join(LIBRARIES)}")
    for candidate in LIBRARIES if name is None else (name,):
        module = _import_tensorrt() if candidate == DATA_CENTRE else _import_tensorrt_rtx()
        if module is not None:
            return Library(name=candidate, version=str(module.__version__), module=module)
    raise InputError(
        f"TensorRT ({name or ' or '.join(LIBRARIES)})", f"not installed; {INSTALL_HINT}"
    )


def _import_tensorrt() -> ModuleType | None:
    try:
        import tensorrt  # noqa: PLC0415 -- an extra, loaded on use
    except ImportError:
        return None
    return tensorrt


def _import_tensorrt_rtx() -> ModuleType | None:
    try:
        import tensorrt_rtx  # noqa: PLC0415 # pyright: ignore[reportMissingImports] -- an extra, loaded on use
    except ImportError:
        pass
    else:
        return tensorrt_rtx
    try:
        import tensorrt_rtx_bindings  # noqa: PLC0415 -- an extra, loaded on use
    except ImportError:
        return None
    return tensorrt_rtx_bindings


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One message of the library; severity as `ERROR`, `WARNING`, `INFO` or `VERBOSE`."""

    severity: str
    text: str


class LogKeeper:
    """Messages in order; TensorRT logs from threads of its own."""

    def __init__(self) -> None:
        self._lines: list[LogLine] = []
        self._lock = threading.Lock()

    def add(self, severity: str, text: str) -> None:
        """Keep one message."""
        with self._lock:
            self._lines.append(LogLine(severity=severity, text=text))

    def lines(self, *severities: str) -> tuple[LogLine, ...]:
        """Messages so far, of all severities or those named."""
        with self._lock:
            return tuple(x for x in self._lines if not severities or x.severity in severities)


def make_logger(library: Library, keeper: LogKeeper) -> Any:
    """TensorRT logger that hands every message to `keeper`. Keep it alive as long as its users."""
    base: Any = library.module.ILogger

    class Logger(base):
        def __init__(self) -> None:
            base.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            keeper.add(severity.name, msg)

    return Logger()
