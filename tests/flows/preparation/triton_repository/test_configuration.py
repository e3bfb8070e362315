"""Configurations in the styles that operators write them."""

import pytest

from flows.preparation.triton_repository.configuration import read_configuration
from tests.flows.preparation.triton_repository.repositories import CHAT, CLASSIFY, PIPELINE, SHARPEN
from triton_backend.contract.errors import InputError

# One per style: backends, enumerations, maps, comments, commas, messages in angle brackets.
STYLES = {
    "densenet": """name: "densenet_onnx"
platform: "onnxruntime_onnx"
max_batch_size : 0
input [
  {
    name: "data_0"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 224, 224 ]
    reshape { shape: [ 1, 3, 224, 224 ] }
  }
]
output [ { name: "fc6_1" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" } ]
""",
    "libtorch": """platform: "pytorch_libtorch"
max_batch_size: 32
input { name: "INPUT__0" data_type: TYPE_FP16 dims: -1 }
output: { name: "OUTPUT__0", data_type: TYPE_FP16, dims: [ -1, 85 ] }
parameters: { key: "DISABLE_OPTIMIZED_EXECUTION" value: { string_value: "true" } }
parameters: { key: "INFERENCE_MODE" value: { string_value: "true" } }
""",
    "engine": """backend: "tensorrt"
default_model_filename: "model_fp16.plan"
instance_group [ { kind: KIND_GPU, count: 1, gpus: [ 0 ] }, { kind: KIND_GPU count: 2 gpus: 1 } ]
optimization { cuda { graphs: true busy_wait_events: true } }
""",
    "streaming": """backend: "onnxruntime"
max_batch_size: 16
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input [
    {
      name: "START"
      control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ]
    }
  ]
  oldest { max_candidate_sequences: 4 }
}
""",
    "llm": """backend: "tensorrtllm"
max_batch_size: 64
model_transaction_policy { decoupled: true }
dynamic_batching { preserve_ordering: false }
parameters: { key: "gpt_model_path" value: { string_value: "/engines/1-gpu" } }
""",
    "priorities": """# tuned on the canary
backend: "onnxruntime"
dynamic_batching {
  priority_levels: 3
  default_priority_level: 2
  priority_queue_policy {
    key: 1
    value { timeout_action: REJECT default_timeout_microseconds: 20000
            allow_timeout_override: true }
  }
}
rate_limiter_unknown_here < resources [ < name: "R1" count: 4 > ] priority: 2 >
model_warmup [ { name: "one" batch_size: 1 inputs { key: "x" value: { data_type: TYPE_FP32 dims: 3
  random_data: true } } } ]
response_cache { enable: true }
""",
    "sharpen": SHARPEN,
    "classify": CLASSIFY,
    "pipeline": PIPELINE,
    "chat": CHAT,
}


@pytest.mark.parametrize("style", STYLES)
def test_every_style_is_read(style: str) -> None:
    read = read_configuration(STYLES[style], "config.pbtxt")
    assert read.message.backend or read.message.platform
    unknown = {"classify": (("next_year_field", 9),)}
    unknown["priorities"] = (("rate_limiter_unknown_here", 12),)
    assert read.unknown == unknown.get(style, ())


def test_fields_behind_an_unknown_one_are_kept() -> None:
    text = 'odd { a: "}" b [ 1 ] }\nmax_batch_size: 4\nodder: [ "x", "y" ]\nname: "n"\n'
    read = read_configuration(text, "f")
    assert (read.message.max_batch_size, read.message.name) == (4, "n")
    assert read.unknown == (("odd", 1), ("odder", 3))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name: "a', "f, line 1: .*quote"),
        ("max_batch_size: many", "f, line 1: .*many"),
        ('name: "a"\ninput [', "f, line [12]: "),
        ("".join(f"u{i}: 1\n" for i in range(150)), "f: has more than 100 unknown fields"),
    ],
)
def test_a_text_that_is_none_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_configuration(text, "f")
