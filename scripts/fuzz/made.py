"""Inputs of `fuzz_serving`: malformed frames, requests, messages and bytes.

The plan it serves. Models, a model with entries and its cut, what clients of entries ask, and an
application are all targets.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tests.fakes.applications import hand_application, hand_module
from tests.fakes.plans import (
    HandModel,
    HandPipeline,
    HandStage,
    hand_model,
    hand_pipeline,
    hand_plan,
    hand_stage,
)
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serve_folder.repository import OFFLOAD_MODEL
from triton_backend.serving.front.requests.reading import (
    CUT_PARAMETER,
    ENTRY_PARAMETER,
    SPLIT_PARAMETER,
)
from triton_backend.serving.transport.wire import HEADER_BYTES, Kind, frame

MODEL, WIDE, CUT, APPLICATION = "sink", "wide", "cut", "pair"
INPUT_BYTES, ANSWER_BYTES = 64, 8
WIDE_BYTES, WIDE_ANSWER = 100_000, 20_000
SLO_US = 200_000
ENTRIES = (
    Entry(name="whole", block=0, budget_us=SLO_US, rate_rps=50.0),
    Entry(name="tail", block=1, budget_us=SLO_US // 2, rate_rps=50.0),
)
TARGETS = (MODEL, CUT, f"{CUT}_cut_1", APPLICATION, OFFLOAD_MODEL)
SOME, MANY, MOST = 0.2, 0.3, 0.7
OF_REQUESTS = (
    "timeout",
    "priority",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "binary_data_output",
    "traceparent",
    ENTRY_PARAMETER,
    CUT_PARAMETER,
    SPLIT_PARAMETER,
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


def _stages(first_gpu: int, boundary_bytes: int) -> tuple[HandStage, HandStage]:
    """Two emulated stages, on nodes HERE and THERE."""
    first, last = (
        hand_stage(
            (block, block + 1),
            gpu_class,
            PlacementRun(node=block, gpu=first_gpu, slot=0),
            (1_000,),
            boundary_bytes_per_sample=(1 - block) * boundary_bytes,
            boundary=None if block else (_bytes("boundary", boundary_bytes),),
        )
        for block, gpu_class in enumerate(("HERE", "THERE"))
    )
    return first, last


def _bytes(name: str, size: int) -> TensorSpec:
    return TensorSpec(name=name, dtype="UINT8", shape=(-1, size))


def _model(name: str, input_bytes: int, answer_bytes: int, *pipelines: HandPipeline) -> HandModel:
    entries = () if len(pipelines) == 1 else ENTRIES
    return hand_model(
        name,
        *pipelines,
        slo_us=SLO_US,
        entries=entries,
        inputs=(_bytes("input", input_bytes),),
        outputs=(_bytes("output", answer_bytes),),
    )


def fuzzed_plan() -> Plan:
    """Two stages each, on nodes HERE and THERE.

    A model of small tensors and one of wide ones, one that may be cut. Beside them an application
    of two modules, each of one stage.
    """
    models = [
        _model(name, size, answer, hand_pipeline(*_stages(gpu, between), batch=1, rate_rps=500.0))
        for gpu, (name, size, answer, between) in enumerate(
            ((MODEL, INPUT_BYTES, ANSWER_BYTES, 256), (WIDE, WIDE_BYTES, WIDE_ANSWER, WIDE_BYTES))
        )
    ]
    head, tail = _stages(2, INPUT_BYTES)
    whole = hand_pipeline(head, tail, batch=1, rate_rps=50.0, entry="whole")
    half = hand_pipeline(tail, batch=1, rate_rps=50.0, entry="tail")
    models.append(_model(CUT, INPUT_BYTES, ANSWER_BYTES, whole, half))
    for gpu, name in enumerate(("one", "two"), start=3):
        stage = hand_stage((0, 1), "HERE", PlacementRun(node=0, gpu=gpu, slot=0), (1_000,))
        pipeline = hand_pipeline(stage, batch=1, rate_rps=100.0)
        models.append(_model(name, INPUT_BYTES, INPUT_BYTES, pipeline))
    nodes = [
        NodeGroup(count=1, gpu_class=name, gpus=5, nic_gbps=100.0) for name in ("HERE", "THERE")
    ]
    plan = hand_plan(*models, nodes=nodes, plan_id="fuzz")
    modules = (hand_module("one", "one"), hand_module("two", "two", "one"))
    planned = hand_application(APPLICATION, modules, slo_us=2 * SLO_US, rate_rps=50.0)
    graph = replace(planned.application, outputs={"output": "two.output"})
    alone = tuple(d for d in plan.workload.models if d.name not in {"one", "two"})
    workload = replace(plan.workload, models=alone, applications=(graph,))
    return replace(plan, workload=workload, applications=(replace(planned, application=graph),))


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


def bad_frames(draws: Draws) -> bytes:
    """A few frames in a row, half of them after a HELLO of a peer that no plan has."""
    hello = ({"model": "nobody", "gateway": 0}, {"generation": 1, "vgpu": 999, "idle_us": 0})
    frames = [bad_frame(draws) for _ in range(int(draws.integers(1, 4)))]
    if draws.random() < MANY:
        said = hello[int(draws.integers(len(hello)))]
        frames.insert(0, frame(Kind.HELLO, json.dumps(said).encode()))
    return b"".join(frames)


def bad_offload(draws: Draws) -> bytes:
    """Announcements of a client of entries, with values of every kind, or no JSON."""
    fields: dict[str, Any] = {
        "command": str(draws.choice(["offer", "announce", "announced", "take"])),
        "client": "c",
        "model": CUT,
        "cut": 1,
        "rate_rps": 5.0,
        "budget_ms": 40.0,
    }
    for name in draws.choice(list(fields), int(draws.integers(0, 4))):
        fields[str(name)] = VALUES[int(draws.integers(len(VALUES)))]
    text = json.dumps(fields)
    return (
        text[: int(draws.integers(len(text)))].encode() if draws.random() < SOME else text.encode()
    )


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
        "name": str(draws.choice(["input", "boundary", "request", "other", "", "x" * 5000])),
        "shape": _shape(draws),
        "datatype": str(draws.choice(["UINT8", "FP32", "BYTES", "NONE"])),
        "data": [int(n) for n in draws.integers(0, 300, int(draws.integers(0, 70)))],
    }


def _asked(draws: Draws) -> dict[str, Any]:
    """The request of a client of entries as a tensor."""
    text = bad_offload(draws).decode()
    return {"name": "request", "shape": [1], "datatype": "BYTES", "data": [text]}


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
    if draws.random() < SOME:
        request["inputs"].append(_asked(draws))
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
    name = str(draws.choice(TARGETS)) if draws.random() < MOST else "nobody"
    request = pb.ModelInferRequest(model_name=name)
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
