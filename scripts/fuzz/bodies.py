"""Bodies of HTTP requests and gRPC messages to a BYTES input that are wrong in one place, drawn.

Lengths that lie (of the body, its JSON header, a tensor, a text, a chunk), wrong counts, shapes,
kinds and names, several texts, none, too many bytes, compressed ones, JSON that is none. Around
them is a request for one model, with one good picture.
"""

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tritonclient.grpc import service_pb2

Draws = np.random.Generator
T = TypeVar("T")
pb: Any = service_pb2  # generated at import time: no names a type checker could see
INPUT = "image"
LENGTHS = (-(2**63), -1, 0, 1, 3, 4, 5, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64)
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (2,),
    (-1,),
    (1, 1),
    (1, 2),
    (0, 1),
    (1000,),
    (2**31,),
    (2**62, 4),
    (2**63 - 1,),
)
KINDS = ("FP32", "UINT8", "INT64", "BOOL", "bytes", "", "BYTES\0", "X" * 500)
NAMES = ("", "imag", "image2", "pixels", "refused", "../image", "x" * 5_000, "\u202e", "image\0")
COUNTS = (0, 2, 3, 100, 10_000)
BEYOND = (4_000_001, 6_000_000, 12_000_000)  # bytes, of at most 4,000,000
SOME, HALF = 0.2, 0.5
ENDING = b"\r\n"


class Body(NamedTuple):
    """All that follows the first line of an HTTP request.

    Attributes:
        headers: as they are sent, beside `Host`.
        data: all that follows them.
        honest: as long as it says; else the server may wait for more, or close.
    """

    headers: Sequence[tuple[str, str]]
    data: bytes
    honest: bool = True


def picture_body(picture: bytes) -> Body:
    """The picture as the body, as curl sends a file."""
    return _body(b"", picture, header=0)


def hostile_body(draws: Draws, picture: bytes) -> tuple[str, Body]:
    """One of any kind, and the kind's name."""
    kind = str(draws.choice(list(BODIES)))
    return kind, BODIES[kind](draws, picture)


def hostile_message(draws: Draws, model: str, picture: bytes) -> tuple[str, bytes]:
    """A gRPC message of any kind, and the kind's name."""
    kind = str(draws.choice(list(MESSAGES)))
    data = MESSAGES[kind](draws, good_message(model, picture))
    return kind, data if isinstance(data, bytes) else data.SerializeToString()


def good_message(model: str, picture: bytes) -> Any:
    """A `ModelInferRequest` with one picture."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name=INPUT, datatype="BYTES", shape=[1])
    request.raw_input_contents.append(texts(picture))
    return request


def texts(*pictures: bytes) -> bytes:
    """As a BYTES tensor is sent: each after its length."""
    return b"".join(struct.pack("<I", len(one)) + one for one in pictures)


def _pick(draws: Draws, among: Sequence[T]) -> T:
    return among[int(draws.integers(len(among)))]


def _body(head: bytes, data: bytes, *, header: object = None, said: object = None) -> Body:
    """A binary request whose JSON is `head`; `header` and `said` are lengths that it states."""
    whole = head + data
    headers = (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(len(head) if header is None else header)),
        ("Content-Length", str(len(whole) if said is None else said)),
    )
    return Body(headers, whole, honest=said is None or said == len(whole))


def _head(size: object, shape: Sequence[int] = (1,), **fields: Any) -> dict[str, Any]:
    tensor = {"name": INPUT, "shape": [*shape], "datatype": "BYTES"}
    return {"inputs": [tensor | {"parameters": {"binary_data_size": size}} | fields]}


def _binary(data: bytes, shape: Sequence[int] = (1,), **fields: Any) -> Body:
    return _body(json.dumps(_head(len(data), shape, **fields)).encode(), data)


def _json(data: Any, **fields: Any) -> Body:
    tensor = {"name": INPUT, "shape": [1], "datatype": "BYTES", "data": data} | fields
    return _as_json(json.dumps({"inputs": [tensor]}).encode())


def _as_json(body: bytes) -> Body:
    headers = (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
    return Body(headers, body)


def _no_body(draws: Draws, _: bytes) -> Body:
    return _body(b"", b"", header=_pick(draws, (0, 1, -1, "")))


def _lying_header(draws: Draws, picture: bytes) -> Body:
    data = texts(picture)
    head = json.dumps(_head(len(data))).encode()
    lies = (*LENGTHS, len(head) - 1, len(head) + 1, len(head) + len(data), "x", "1e3", "0x10", "")
    return _body(head, data, header=_pick(draws, lies))


def _lying_tensor(draws: Draws, picture: bytes) -> Body:
    data = texts(picture)
    lies = (*LENGTHS, len(data) - 1, len(data) + 1, len(data) // 2, 1.5, "x", None, True, [])
    return _body(json.dumps(_head(_pick(draws, lies))).encode(), data)


def _lying_text(draws: Draws, picture: bytes) -> Body:
    return _binary(_lying_texts(draws, picture))


def _lying_texts(draws: Draws, picture: bytes) -> bytes:
    """One text whose length is not its own, or the beginning of a length."""
    if draws.random() < SOME:
        return draws.bytes(int(draws.integers(0, 4)))
    lies = [n for n in LENGTHS if 0 <= n < 1 << 32]
    said = _pick(draws, (*lies, len(picture) - 1, len(picture) + 1, len(picture) // 2))
    return struct.pack("<I", said) + picture


def _several(draws: Draws, picture: bytes) -> Body:
    count = _pick(draws, COUNTS)
    return _binary(texts(*[picture[:200]] * count), (count,))


def _wrong_count(draws: Draws, picture: bytes) -> Body:
    return _binary(texts(*[picture[:200]] * _pick(draws, COUNTS)), (_pick(draws, (1, *COUNTS)),))


def _wrong_shape(draws: Draws, picture: bytes) -> Body:
    return _binary(texts(picture), _pick(draws, SHAPES))


def _wrong_kind(draws: Draws, picture: bytes) -> Body:
    return _binary(texts(picture), datatype=_pick(draws, KINDS))


def _wrong_name(draws: Draws, picture: bytes) -> Body:
    data, way = texts(picture), draws.random()
    if way < HALF:
        return _binary(data, name=_pick(draws, NAMES))
    one = _head(len(data))["inputs"]
    several = {"inputs": one * 2} if way < HALF + SOME else {"inputs": []}
    return _body(json.dumps(several).encode(), data * len(several["inputs"]))


def _texts_in_json(draws: Draws, picture: bytes) -> Body:
    encoded = base64.b64encode(picture).decode()
    data: tuple[Any, ...] = (
        [encoded],
        [""],
        [],
        encoded,
        [1],
        [None],
        [True],
        [[encoded]],
        [{"b64": encoded}],
        ["\ud800"],
        ["\0" * 100],
        [encoded] * 5,
        ["x" * 4_100_000],
        {},
        None,
        1e308,
    )
    return _json(_pick(draws, data))


def _too_large(draws: Draws, _: bytes) -> Body:
    size = _pick(draws, BEYOND)
    return picture_body(_zeros(size)) if draws.random() < HALF else _binary(texts(_zeros(size)))


@cache
def _zeros(size: int) -> bytes:
    return bytes(size)


def _lying_body(draws: Draws, picture: bytes) -> Body:
    data = texts(picture)
    head = json.dumps(_head(len(data))).encode()
    whole = len(head) + len(data)
    lies = (0, 1, whole // 2, whole - 1, whole + 1, 10 * whole, 2**40, -1, "x", "1 2", "")
    return _body(head, data, said=_pick(draws, lies))


def _no_json(draws: Draws, picture: bytes) -> Body:
    good = json.dumps(_head(len(texts(picture)))).encode()
    heads = (
        draws.bytes(int(draws.integers(1, 300))),
        good[: int(draws.integers(1, len(good)))],
        good + b"}",
        b"[]",
        b"null",
        b'"inputs"',
        b'{"inputs": {}}',
        b'{"inputs": [1]}',
        b'{"inputs": [{}]}',
        b'{"inputs": "image"}',
        b"[" * 30_000,
        b'{"inputs": ' * 200 + b"1" + b"}" * 200,
    )
    head = _pick(draws, heads)
    return _as_json(head) if draws.random() < HALF else _body(head, texts(picture))


def _compressed(draws: Draws, picture: bytes) -> Body:
    good = picture_body(picture)
    way = str(draws.choice(["gzip", "deflate", "br", "gzip, gzip", "identity"]))
    packed = gzip.compress(good.data, mtime=0) if way != "deflate" else zlib.compress(good.data)
    data = (packed, good.data, packed[: len(packed) // 2], _bomb(), draws.bytes(100))
    headers = [pair for pair in good.headers if pair[0] != "Content-Length"]
    chosen = _pick(draws, data)
    added = [("Content-Encoding", way), ("Content-Length", str(len(chosen)))]
    return Body([*headers, *added], chosen)


@cache
def _bomb() -> bytes:
    """20 MB, compressed."""
    return gzip.compress(bytes(20_000_000), mtime=0)


def _in_chunks(draws: Draws, picture: bytes) -> Body:
    good = picture_body(picture)
    sizes = (b"%x" % len(good.data), b"0", b"ffffffff", b"7fffffffffffffff", b"-1", b"x", b"")
    size = _pick(draws, sizes)
    last = b"0" + ENDING * 2 if draws.random() < HALF else b""
    data = size + ENDING + good.data + ENDING + last
    headers = [pair for pair in good.headers if pair[0] != "Content-Length"]
    if draws.random() < SOME:
        headers.append(("Content-Length", str(len(good.data))))
    return Body([*headers, ("Transfer-Encoding", "chunked")], data, honest=False)


def _odd_headers(draws: Draws, picture: bytes) -> Body:
    good = picture_body(picture)
    odd = (
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("Content-Type", "multipart/form-data; boundary=x"),
        ("Expect", "100-continue"),
        ("Inference-Header-Content-Length", "7"),
        ("Content-Length", "7"),
        ("X", "y" * 7_000),
        ("X\x01", "y"),
        ("", "y"),
    )
    return Body([*good.headers, _pick(draws, odd)], good.data, honest=False)


def _odd_outputs(draws: Draws, picture: bytes) -> Body:
    data = texts(picture)
    outputs = (
        [{"name": "refused"}],
        [{"name": "nothing"}],
        [{"name": "scores", "parameters": {"classification": 2**40}}],
        [{"name": "scores", "parameters": {"shared_memory_region": "none"}}],
        [{}],
        [1],
        {},
        [{"name": "scores"}] * 100,
    )
    head = json.dumps(_head(len(data)) | {"outputs": _pick(draws, outputs)}).encode()
    return _body(head, data)


BODIES: dict[str, Callable[[Draws, bytes], Body]] = {
    "no body": _no_body,
    "length of the header": _lying_header,
    "length of the tensor": _lying_tensor,
    "length of the text": _lying_text,
    "length of the body": _lying_body,
    "several texts": _several,
    "wrong count": _wrong_count,
    "wrong shape": _wrong_shape,
    "wrong kind": _wrong_kind,
    "wrong name": _wrong_name,
    "texts in JSON": _texts_in_json,
    "too large": _too_large,
    "no JSON": _no_json,
    "compressed": _compressed,
    "in chunks": _in_chunks,
    "odd headers": _odd_headers,
    "odd outputs": _odd_outputs,
}


def _raw_text(draws: Draws, request: Any) -> Any:
    request.raw_input_contents[0] = _lying_texts(draws, request.raw_input_contents[0][4:])
    return request


def _raw_count(draws: Draws, request: Any) -> Any:
    """None, or several, where the tensor says one, or another number."""
    one = request.raw_input_contents[0]
    del request.raw_input_contents[:]
    request.raw_input_contents.extend([one[:200]] * _pick(draws, (0, 2, 50)))
    if draws.random() < HALF:
        request.inputs[0].shape[0] = _pick(draws, COUNTS)
    return request


def _texts_of_request(draws: Draws, request: Any) -> Any:
    one = request.raw_input_contents[0][4:204]
    count = _pick(draws, COUNTS)
    request.raw_input_contents[0] = texts(*[one] * count)
    request.inputs[0].shape[0] = count if draws.random() < HALF else 1
    return request


def _shape_of_request(draws: Draws, request: Any) -> Any:
    request.inputs[0].ClearField("shape")
    request.inputs[0].shape.extend(_pick(draws, SHAPES))
    return request


def _kind_of_request(draws: Draws, request: Any) -> Any:
    request.inputs[0].datatype = _pick(draws, KINDS)
    return request


def _name_of_request(draws: Draws, request: Any) -> Any:
    request.inputs[0].name = _pick(draws, NAMES)
    if draws.random() < SOME:
        request.inputs.add().CopyFrom(request.inputs[0])
        request.raw_input_contents.append(request.raw_input_contents[0])
    return request


def _typed(draws: Draws, request: Any) -> Any:
    """Texts in the typed field, beside the raw ones or alone, or numbers there."""
    if draws.random() < HALF:
        del request.raw_input_contents[:]
    contents = request.inputs[0].contents
    if draws.random() < HALF:
        contents.bytes_contents.extend([b"x" * 100] * _pick(draws, (1, *COUNTS)))
    else:
        contents.fp32_contents.extend([1.0] * _pick(draws, COUNTS))
    return request


def _large_message(draws: Draws, request: Any) -> Any:
    request.raw_input_contents[0] = texts(_zeros(_pick(draws, BEYOND)))
    return request


def _changed_message(draws: Draws, request: Any) -> bytes:
    data = bytearray(request.SerializeToString())
    for _ in range(int(draws.integers(1, 6))):
        data[int(draws.integers(min(len(data), 60)))] = int(draws.integers(256))
    return bytes(data)


def _cut_message(draws: Draws, request: Any) -> bytes:
    data = request.SerializeToString()
    return data[: int(draws.integers(len(data)))]


def _no_message(draws: Draws, _: Any) -> bytes:
    return draws.bytes(int(draws.integers(0, 300)))


MESSAGES: dict[str, Callable[[Draws, Any], Any]] = {
    "length of the text": _raw_text,
    "wrong count": _raw_count,
    "several texts": _texts_of_request,
    "wrong shape": _shape_of_request,
    "wrong kind": _kind_of_request,
    "wrong name": _name_of_request,
    "typed contents": _typed,
    "too large": _large_message,
    "changed": _changed_message,
    "cut short": _cut_message,
    "no message": _no_message,
}
