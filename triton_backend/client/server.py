"""The server, over gRPC or HTTP.

Offers of cuts, announcements, requests, the round trip, probes.
"""

import asyncio
import contextlib
import importlib
import json
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from .announcing import Announcement
from .device import Arrays
from .errors import ClientError
from .heads import Head, Heads, Tensor

# No such model: the server reads the whole body, and says so.
PROBE_MODEL = "poolpipe_probe"
OFFLOAD_MODEL = "poolpipe_offload"
CLOSED = "closed"
PATIENCE_S = 2.0
PORTS = 65_535
CLOSED_STATUS = frozenset({"StatusCode.INVALID_ARGUMENT", "400"})
ROUND_TRIPS = 5


class RefusedError(Exception):
    """The server did not answer a request.

    Attributes:
        closed: because its tensors open no cut.
    """

    def __init__(self, message: str, *, closed: bool = False) -> None:
        super().__init__(message)
        self.closed = closed


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedCut:
    """A cut that is open.

    Attributes:
        half: whether its tensors are taken in half the bytes too.
        least_us: what its tail takes at least; None: the server did not say.
    """

    half: bool = False
    least_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Cuts that are open, by block.

    Attributes:
        plan_id: under which plan; None: the server has no word on that, and a request shows which
            are open.
        why_closed: why there is none.
    """

    cuts: Mapping[int, OfferedCut] = field(default_factory=dict[int, OfferedCut])
    plan_id: str | None = None
    why_closed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The outcome of an announcement.

    Under which plan, how long it holds, whether the cut is closed.
    """

    plan_id: str
    lease_us: int
    closed: bool


def _has_port(address: str) -> bool:
    """True for HOST:PORT; a path may follow it."""
    host, _, port = address.partition("/")[0].rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) <= len(str(PORTS))
    return host not in ("", ":") and digits and 0 < int(port) <= PORTS


class Server:
    """One endpoint and one model; made and used in one event loop.

    Args:
        url: HOST:PORT of gRPC, or http://HOST:PORT.
        heads: the model's, and of which split they are.
    """

    def __init__(self, url: str, heads: Heads) -> None:
        protocol, _, address = url.rpartition("://")
        if protocol not in ("", "grpc", "http") or not _has_port(address):
            raise ClientError(f"--url {url}", "not HOST:PORT (gRPC) or http://HOST:PORT")
        self._module: Any = importlib.import_module(f"tritonclient.{protocol or 'grpc'}.aio")
        # Of gRPC's client a keyword of its own; of HTTP's nothing but the wait around the call.
        self._client: Any = self._module.InferenceServerClient(address)
        self._heads = heads

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    async def offer(self) -> Offer:
        """Cuts that are open and all of whose tensors the server takes. No server: none, and why.

        Which sets of tensors belong together only a request shows.
        """
        try:
            metadata, said = await asyncio.gather(
                self._patiently(self._client.get_model_metadata(self._heads.model)),
                self._offered(),
            )
            with _understood("the offer"):
                return self._read_offer(metadata, said)
        except RefusedError as error:
            return Offer(why_closed=str(error))

    def _read_offer(self, metadata: Any, said: dict[str, Any] | None) -> Offer:
        """Of the model's metadata, and of what `poolpipe_offload` said."""
        inputs = metadata["inputs"] if isinstance(metadata, dict) else metadata.inputs
        known = {_tensor(given) for given in inputs}
        states = None if said is None else {int(cut["block"]): cut for cut in said["cuts"]}
        cuts: dict[int, OfferedCut] = {}
        for cut in self._heads.cuts[:-1]:
            stated = None if states is None else states.get(cut.block, {"state": CLOSED})
            if not known.issuperset(cut.tensors) or (stated and stated["state"] == CLOSED):
                continue
            least_ms = (stated or {}).get("tail_ms", {}).get("least")
            cuts[cut.block] = OfferedCut(
                half=all(tensor.half() in known for tensor in cut.tensors),
                least_us=None if least_ms is None else _us(1e3 * least_ms),
            )
        return Offer(cuts=cuts, plan_id=None if said is None else str(said["plan_id"]))

    async def _offered(self) -> dict[str, Any] | None:
        """The offer of `poolpipe_offload`; None without an answer."""
        try:
            return await self._ask({"command": "offer", "model": self._heads.model})
        except RefusedError:
            return None

    async def announce(self, client: str, said: Announcement) -> Lease:
        """Say what a client sends, so that plans follow it.

        Raises:
            RefusedError: the server does not take it.
        """
        answer = await self._ask(
            {
                "command": "announce",
                "client": client,
                "model": self._heads.model,
                "cut": said.block,
                "rate_rps": said.rate_rps,
                "budget_ms": max(said.budget_us, 1) / 1e3,
            }
        )
        with _understood("the lease"):
            return Lease(
                plan_id=str(answer["plan_id"]),
                lease_us=_us(1e6 * answer["lease_s"]),
                closed=answer["state"] == CLOSED,
            )

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        text = np.array([json.dumps(request).encode()], dtype=np.object_)
        answer = await self._infer(OFFLOAD_MODEL, {"request": text}, {}, PATIENCE_S)
        with _understood("the answer"):
            return dict(json.loads(answer.as_numpy("answer")[0]))

    async def rtt_us(self) -> int | None:
        """The least of a few round trips without a body; None without an answer."""
        loop = asyncio.get_running_loop()
        times: list[float] = []
        try:
            for _ in range(ROUND_TRIPS):
                begun = loop.time()
                await self._patiently(self._client.is_server_live())
                times.append(loop.time() - begun)
        except RefusedError:
            return None
        return round(min(times) * 1e6)

    async def probe(self, size: int) -> bool:
        """Send so many bytes to a sink; whether the server had them all."""
        try:
            await self._infer(PROBE_MODEL, {"probe": np.zeros((1, size), np.uint8)}, {}, PATIENCE_S)
        except RefusedError as error:
            return PROBE_MODEL in str(error)
        return True

    async def infer(self, head: Head, tensors: Arrays, budget_us: int, wait_s: float) -> Arrays:
        """The answer to what crosses at a cut.

        Args:
            head: whose tensors these are.
            tensors: what is sent.
            budget_us: what the server may take, from 1 on.
            wait_s: how long the client waits at most.

        Raises:
            RefusedError: there is none.
        """
        named = {"cut": head.block, "split": self._heads.split}
        answer = await self._infer(
            self._heads.model, tensors, {"timeout": budget_us, "parameters": named}, wait_s
        )
        with _understood("the answer"):
            found = {t.name: answer.as_numpy(t.name) for t in self._heads.whole.tensors}
        for name, tensor in found.items():
            if tensor is None:
                raise RefusedError(f"the answer has no {name!r}")
        return found

    async def _infer(
        self, model: str, tensors: Arrays, options: dict[str, Any], wait_s: float
    ) -> Any:
        given = [self._input(name, array) for name, array in tensors.items()]
        return await self._patiently(self._client.infer(model, given, **options), wait_s)

    def _input(self, name: str, array: NDArray[Any]) -> Any:
        made = self._module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        made.set_data_from_numpy(array)
        return made

    async def _patiently(self, call: Any, wait_s: float = PATIENCE_S) -> Any:
        try:
            async with asyncio.timeout(wait_s):
                return await call
        except TimeoutError as error:
            raise RefusedError(f"no answer within {wait_s:.1f} s") from error
        except InferenceServerException as error:
            closed = str(error.status()) in CLOSED_STATUS
            raise RefusedError(str(error.message()), closed=closed) from error
        except (
            Exception
        ) as error:  # connections fail with errors of gRPC's, aiohttp's, or the system's
            raise RefusedError(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _understood(what: str) -> Generator[None]:
    """Reads what a server said, which may be anything.

    Raises:
        RefusedError: it is not what it should be.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RefusedError(f"{what} makes no sense: {error!r}") from error


def _us(value: float) -> int:
    """Microseconds, more than none.

    Raises:
        ValueError: it is no such number.
    """
    if not 0 < value < math.inf:
        message = f"{value} microseconds"
        raise ValueError(message)
    return max(round(value), 1)


def _tensor(given: Any) -> Tensor:
    """A tensor of a model's metadata."""
    if isinstance(given, dict):
        name, dtype, shape = given["name"], given["datatype"], given["shape"]
    else:
        name, dtype, shape = given.name, given.datatype, given.shape
    return Tensor(name=str(name), dtype=str(dtype), shape=tuple(map(int, shape[1:])))
