"""The offline half: thin Prefect flows over plain step packages, and the command line."""

import os

# onnxruntime reads it when it is imported: it would write to the home folder and speak to its
# makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
