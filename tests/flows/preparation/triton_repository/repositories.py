"""A repository of six models: versions, an ensemble, a Python model, a decoupled one."""

import hashlib
from pathlib import Path

from tests.flows.preparation.splitting.tiny_models import chain, residual_net

SHARPEN = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, 6, 6 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4, 6, 6 ] } ]
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 500
  default_queue_policy { default_timeout_microseconds: 250000 }
}
optimization { execution_accelerators { gpu_execution_accelerator : [ { name : "tensorrt" } ] } }
"""
CLASSIFY = """
platform: "onnxruntime_onnx"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, 6, 6 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 144 ] } ]
instance_group [ { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] } ]
version_policy { all { } }
dynamic_batching { priority_levels: 2 default_priority_level: 2 }
next_year_field { level: 3 }
"""
PIPELINE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "PICTURE" data_type: TYPE_FP32 dims: [ 4, 6, 6 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 144 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "sharpen"
      model_version: -1
      input_map { key: "x" value: "PICTURE" }
      output_map { key: "y" value: "sharp" }
    },
    {
      model_name: "classify"
      model_version: -1
      input_map { key: "x" value: "sharp" }
      output_map { key: "y" value: "SCORES" }
    }
  ]
}
"""
TOKENS = """
backend: "python"
max_batch_size: 0
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "IDS" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
CHAT = """
backend: "vllm"
model_transaction_policy { decoupled: True }
instance_group [ { count: 1 kind: KIND_MODEL } ]
"""


def write_repository(folder: Path) -> Path:
    """Write the six models; returns the folder."""
    for name, text in (
        ("sharpen", SHARPEN),
        ("classify", CLASSIFY),
        ("pipeline", PIPELINE),
        ("tokens", TOKENS),
        ("chat", CHAT),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text)
    chain(folder / "sharpen" / "1" / "model.onnx")
    residual_net(folder / "classify" / "1" / "model.onnx")
    (folder / "classify" / "2").mkdir()
    residual_net(folder / "classify" / "2" / "model.onnx")
    (folder / "tokens" / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    (folder / "plain" / "1").mkdir(parents=True)
    chain(folder / "plain" / "1" / "model.onnx", layers=3)
    return folder


def digest(folder: Path) -> str:
    """A hash over names and contents of all files."""
    found = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


RUNNING_TOKENS = """
import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            text = triton.get_input_tensor_by_name(request, "TEXT").as_numpy()[0]
            ids = np.frombuffer(text, np.uint8).astype(np.int64)
            answers.append(triton.InferenceResponse([triton.Tensor("IDS", ids)]))
        return answers
"""
RUNNING_CHAT = """
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = triton.get_input_tensor_by_name(request, "TEXT")
            sender = request.get_response_sender()
            for _ in range(3):
                word = triton.Tensor("WORD", text.as_numpy())
                sender.send(triton.InferenceResponse([word]))
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CHAT_IN_PYTHON = """
backend: "python"
max_batch_size: 0
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: True }
"""


def make_others_run(folder: Path) -> None:
    """Give the models that are not planned code that the server of the PyTriton wheel runs."""
    (folder / "chat" / "config.pbtxt").write_text(CHAT_IN_PYTHON)
    for name, text in (("tokens", RUNNING_TOKENS), ("chat", RUNNING_CHAT)):
        (folder / name / "1" / "model.py").write_text(text)


CLEAN = """
backend: "python"
max_batch_size: 4
input [ { name: "RAW" data_type: TYPE_UINT8 dims: [ 4, 6, 6 ] } ]
output [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 4, 6, 6 ] } ]
parameters { key: "scale" value { string_value: "255" } }
"""
CLEANED = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "PICTURE" data_type: TYPE_UINT8 dims: [ 4, 6, 6 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 144 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "clean"
      model_version: -1
      input_map { key: "RAW" value: "PICTURE" }
      output_map { key: "PIXELS" value: "pixels" }
    },
    {
      model_name: "classify"
      model_version: -1
      input_map { key: "x" value: "pixels" }
      output_map { key: "y" value: "SCORES" }
    }
  ]
}
"""
CLEANING = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.scale = float(config["parameters"]["scale"]["string_value"])
        stated = pb_utils.get_output_config_by_name(config, "PIXELS")
        self.dtype = pb_utils.triton_string_to_numpy(stated["data_type"])

    def execute(self, requests):
        answers = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "RAW").as_numpy()
            pixels = (raw / self.scale).astype(self.dtype)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)]))
        return answers
"""


def add_cleaned(folder: Path) -> None:
    """Add an ensemble whose first model is written in Python."""
    for name, text in (("clean", CLEAN), ("cleaned", CLEANED)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text)
    (folder / "clean" / "1" / "model.py").write_text(CLEANING)


DOUBLE = """
backend: "python"
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "b" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
DOUBLED = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "double"
      model_version: -1
      input_map { key: "a" value: "x" }
      output_map { key: "b" value: "y" }
    }
  ]
}
"""
DOUBLING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "a").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("b", a * 2)]))
        return answers
"""


def write_steps_alone(folder: Path) -> None:
    """Write a repository of one ensemble, whose only model is written in Python."""
    for name, text in (("double", DOUBLE), ("doubled", DOUBLED)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text)
    (folder / "double" / "1" / "model.py").write_text(DOUBLING)
