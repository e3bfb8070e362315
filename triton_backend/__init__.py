"""The online half of PoolPipe and the pure core that both halves share."""

import os

# onnxruntime reads it when it is imported: it would write to the home folder and speak to its makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
