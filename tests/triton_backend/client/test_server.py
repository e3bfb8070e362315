"""A client's reading of a server's answers, well-formed or not."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio

from tests.triton_backend.client.cut_models import heads_of, split_shrinking
from triton_backend.client.announcing import Announcement
from triton_backend.client.heads import Heads
from triton_backend.client.server import Offer, RefusedError, Server

LEASE = {"plan_id": "p", "lease_s": 10.0, "state": "planned"}
OFFER = {"plan_id": "p", "blocks": 4, "cuts": [{"block": 1, "state": "planned"}]}


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Heads:
    folder = tmp_path_factory.mktemp("net")
    return heads_of(split_shrinking(folder), folder / "heads", [1_000] * 5)


class OddClient:
    """Stands in for Triton's: every answer has these outputs, every model these metadata."""

    outputs: dict[str, Any]
    metadata: Any

    def __init__(self, _: str) -> None:
        pass

    async def infer(self, model: str, _: Any, **__: Any) -> "OddClient":
        assert model
        return self

    def as_numpy(self, name: str) -> Any:
        return self.outputs.get(name)

    async def get_model_metadata(self, _: str) -> Any:
        return self.metadata


def asked(
    monkeypatch: pytest.MonkeyPatch,
    heads: Heads,
    ask: Callable[[Server], Awaitable[Any]],
    *,
    metadata: Any = None,
    **outputs: Any,
) -> Any:
    """The client's result for a given answer of the server."""
    monkeypatch.setattr(grpc_aio, "InferenceServerClient", OddClient)
    monkeypatch.setattr(OddClient, "outputs", outputs, raising=False)
    monkeypatch.setattr(OddClient, "metadata", metadata, raising=False)

    async def go() -> Any:
        return await ask(Server("localhost:1", heads))

    return asyncio.run(go())


def text(said: object) -> Any:
    return np.array([json.dumps(said).encode()], dtype=np.object_)


def without(said: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key != name}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        np.array([], dtype=np.object_),
        np.array([b"{"], dtype=np.object_),
        text([]),
        text("lease"),
        text({}),
        *(text(without(LEASE, name)) for name in LEASE),
        *(text(LEASE | {"lease_s": odd}) for odd in (None, "10", -1, 0, float("nan"), 1e400)),
    ],
)
def test_an_odd_lease_is_none(monkeypatch: pytest.MonkeyPatch, heads: Heads, answer: Any) -> None:
    said = Announcement(1, 1_000, 5.0)
    with pytest.raises(RefusedError, match="makes no sense"):
        asked(monkeypatch, heads, lambda server: server.announce("c", said), answer=answer)


@pytest.mark.parametrize(
    "answer",
    [
        text(without(OFFER, "plan_id")),
        text(without(OFFER, "cuts")),
        text(OFFER | {"cuts": 7}),
        text(OFFER | {"cuts": [{}]}),
        text(OFFER | {"cuts": [{"block": "one"}]}),
        text(OFFER | {"cuts": [{"block": 1}]}),
        text(OFFER | {"cuts": [{"block": 1, "state": "shadow", "tail_ms": {"least": "x"}}]}),
        text(OFFER | {"cuts": [{"block": 1, "state": "shadow", "tail_ms": None}]}),
    ],
)
def test_an_odd_offer_opens_no_cut_and_says_why(
    monkeypatch: pytest.MonkeyPatch, heads: Heads, answer: Any
) -> None:
    tensors = [
        {"name": t.name, "datatype": t.dtype, "shape": [-1, *t.shape]}
        for cut in heads.cuts
        for t in cut.tensors
    ]
    found = asked(monkeypatch, heads, Server.offer, metadata={"inputs": tensors}, answer=answer)
    assert found.cuts == {}
    assert "makes no sense" in found.why_closed


@pytest.mark.parametrize("metadata", [None, {}, {"inputs": [{}]}, {"inputs": 3}])
def test_odd_metadata_open_no_cut(
    monkeypatch: pytest.MonkeyPatch, heads: Heads, metadata: Any
) -> None:
    found: Offer = asked(monkeypatch, heads, Server.offer, metadata=metadata, answer=text(OFFER))
    assert found.cuts == {}
    assert found.why_closed


def test_an_answer_without_an_output_is_none(monkeypatch: pytest.MonkeyPatch, heads: Heads) -> None:
    def ask(server: Server) -> Awaitable[Any]:
        return server.infer(heads.whole, {}, 1_000, 1.0)

    with pytest.raises(RefusedError, match="the answer has no 'y'"):
        asked(monkeypatch, heads, ask)
