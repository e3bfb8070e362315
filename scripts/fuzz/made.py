"""What `fuzz_serving` throws: malformed frames, requests, messages and bytes; and the plan it serves."""

import json
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serving.transport.wire import HEADER_BYTES, Kind, frame

MODEL = "sink"
INPUT_BYTES = 64
SLO_US = 200_000
SOME, MANY, MOST = 0.2, 0.3, 0.7
OF_REQUESTS = (
    "timeout",
    "priority",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "binary_data_output",
    "traceparent",
    "mine",
)
OF_TENSORS = (
    "binary_data_size",
    "binary_data",
    "classification",
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
)
VALUES: tuple[Any, ...] = (0, -1, 1, 2**31, 2**63, 2**64 - 1, 1.5, 1e300, True, None, "x", [], {})
Draws = np.random.Generator
pb: Any = service_pb2  # generated at import time: no names a type checker could see


def sink_plan() -> Plan:
    """One emulated model of two stages, on nodes HERE and THERE."""
    stages = [
        hand_stage(
            (block, block + 1),
            gpu_class,
            PlacementRun(node=block, gpu=0, slot=0),
            (1_000,),
            boundary_bytes_per_sample=256,
        )
        for block, gpu_class in enumerate(("HERE", "THERE"))
    ]
    model = hand_model(
        MODEL,
        hand_pipeline(*stages, batch=1, rate_rps=500.0),
        slo_us=SLO_US,
        inputs=(TensorSpec(name="input", dtype="UINT8", shape=(-1, INPUT_BYTES)),),
        outputs=(TensorSpec(name="output", dtype="UINT8", shape=(-1, 8)),),
    )
    nodes = [
        NodeGroup(count=1, gpu_class=name, gpus=1, nic_gbps=100.0) for name in ("HERE", "THERE")
    ]
    return hand_plan(model, nodes=nodes, plan_id="fuzz")


def bad_frame(draws: Draws) -> bytes:
    """Random bytes, or a well-formed header around nonsense, whole or cut short or changed."""
    body = draws.bytes(int(draws.integers(0, 200)))
    if draws.random() < MANY:
        return body
    if draws.random() < SOME:
        body = json.dumps({"role": str(draws.integers(9)), "generation": body.hex()[:9]}).encode()
    data = bytearray(
        frame(
            Kind(int(draws.choice(list(Kind)))),
            body,
            batch_id=int(draws.integers(-(2**62), 2**62)),
            stage=int(draws.integers(-3, 5)),
            plan_tag=int(draws.integers(0, 2**63)),
            payload_bytes=int(draws.choice([0, 64, 2**40])),
        )
    )
    if draws.random() < MANY:
        data[int(draws.integers(len(data)))] ^= int(draws.integers(1, 256))
    if draws.random() < MANY:
        del data[int(draws.integers(HEADER_BYTES)) :]
    return bytes(data)


def bad_bytes(draws: Draws) -> bytes:
    """Random bytes, some of them with line ends and a length in between, as in HTTP."""
    data = draws.bytes(int(draws.integers(1, 500)))
    if draws.random() < MANY:
        length = int(draws.choice([-1, 0, 7, 2**40]))
        return f"Content-Length: {length}\r\n".encode() + data + b"\r\n\r\n" + data
    return data


def _shape(draws: Draws) -> list[int]:
    if draws.random() < MANY:
        return [1, INPUT_BYTES]
    return [int(n) for n in draws.integers(-2, 100, int(draws.integers(0, 4)))]


def _tensor(draws: Draws) -> dict[str, Any]:
    return {
        "name": str(draws.choice(["input", "other", "", "x" * 5000])),
        "shape": _shape(draws),
        "datatype": str(draws.choice(["UINT8", "FP32", "BYTES", "NONE"])),
        "data": [int(n) for n in draws.integers(0, 300, int(draws.integers(0, 70)))],
    }


def _parameters(draws: Draws, names: tuple[str, ...]) -> dict[str, Any]:
    """Some of the parameters that KServe and Triton know, with values of every kind."""
    chosen = draws.choice(names, int(draws.integers(0, 3)))
    return {str(name): VALUES[int(draws.integers(len(VALUES)))] for name in chosen}


def bad_json(draws: Draws) -> bytes:
    """A KServe request that is wrong in one or several places, deeply nested, or cut short."""
    tensor = _tensor(draws)
    if draws.random() < SOME:
        depth = int(draws.choice([10, 1_000, 30_000]))
        nested = b"[" * depth + b"]" * (depth if draws.random() < MOST else 0)
        return b'{"inputs":[{"name":"input","shape":[1,64],"datatype":"UINT8","data":%b}]}' % nested
    if draws.random() < MANY:
        tensor["parameters"] = _parameters(draws, OF_TENSORS)
    request: dict[str, Any] = {"inputs": [tensor] * int(draws.integers(0, 3))}
    if draws.random() < MANY:
        request["parameters"] = _parameters(draws, OF_REQUESTS)
    if draws.random() < SOME:
        outputs = [{"name": "output", "parameters": _parameters(draws, OF_TENSORS)}]
        request["outputs"] = outputs * int(draws.integers(1, 3))
    body = json.dumps(request).encode()
    return body[: int(draws.integers(len(body)))] if draws.random() < MANY else body


def bad_message(draws: Draws) -> bytes:
    """A KServe message that is wrong in one or several places, changed, cut short, or none."""
    if draws.random() < SOME:
        return draws.bytes(int(draws.integers(0, 300)))
    request = pb.ModelInferRequest(model_name=MODEL if draws.random() < MOST else "nobody")
    for _ in range(int(draws.integers(0, 3))):
        given = _tensor(draws)
        tensor = request.inputs.add(name=given["name"], datatype=given["datatype"])
        tensor.shape.extend(given["shape"])
        request.raw_input_contents.append(draws.bytes(int(draws.integers(0, 200))))
    request.parameters["timeout"].int64_param = int(draws.integers(-(2**40), 2**40))
    data = bytearray(request.SerializeToString())
    if draws.random() < MANY:
        data[int(draws.integers(len(data)))] ^= int(draws.integers(1, 256))
    return bytes(data[: int(draws.integers(len(data)))] if draws.random() < SOME else data)
