"""The online half of PoolPipe and the pure core that both halves share."""

import os
from typing import Any

# onnxruntime reads it when it is imported: it would write to the home folder and speak to its
# makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> Any:
    """`attach`, loaded on use: the offline half imports this package too, and serves nothing."""
    if name != "attach":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from triton_backend.serving.server.attach import attach  # noqa: PLC0415  # see above

    return attach
