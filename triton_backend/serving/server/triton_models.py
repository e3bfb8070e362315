"""The models Triton loads, and the only file that knows Triton's Python backend.

A `model.py` of the repository names one of the classes here `TritonPythonModel`. Each reads its
settings from its configuration's parameters and hands everything else to a service without Triton:
`FrontModel` to `front`, `ControlModel` to `scheduler_service`, `NodeModel` to `node`; `CutModel`
hands requests on to a front.
"""

import contextlib
import gc
import hmac
import json
import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

# Triton's stub provides it.
import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports]

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.names import VARIANT_OUTPUT
from triton_backend.serve_folder.repository import generation_of_version
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serve_folder.state import read_state_file
from triton_backend.serve_folder.versions import OF_VERSIONS, process_file
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.group import FrontGroup
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.reading import CUT_PARAMETER, MAX_TIMEOUT_US
from triton_backend.serving.gateway.offload import Offload, PlanReader
from triton_backend.serving.liveness.ends import end_with, parent_named
from triton_backend.serving.liveness.stubs import StubHeartbeat
from triton_backend.serving.server.forwarding import Forwarding
from triton_backend.serving.server.metrics import (
    Publisher,
    Values,
    group_values,
    node_values,
    scheduler_values,
)
from triton_backend.serving.transport.event_loop import close_inherited_sockets
from triton_backend.serving.transport.sched_tuning import ask_for_exact_timers, ask_for_short_slices
from triton_backend.serving.transport.shared_memory import Arrays

PUBLISH_SECONDS = 1.0
PUBLISH_PAUSE_SECONDS = 2e-3
TRACE_HEADER = "traceparent"
SWITCH_SECONDS = 5e-4
HANDED_ON_PARAMETER = "poolpipe_handed_on"  # of a request that a model here hands on to a front
SERVER_PROCESS = "tritonserver"
STATUSES = ("INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL")  # of a front's refusals
_LOG = logging.getLogger(__name__)
_FINAL = triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def _parameters(config: Mapping[str, Any]) -> dict[str, str]:
    return {name: value["string_value"] for name, value in config["parameters"].items()}


class _Model(ABC):
    """Common parts of the three models: settings, heartbeat, published metrics.

    Attributes:
        each_second: called once a second, before the metrics are read.
    """

    each_second: tuple[Callable[[], None], ...] = ()

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the settings and start the service."""
        logging.basicConfig(
            format=f"%(asctime)s %(levelname)s {args['model_name']}: %(message)s",
            level=logging.INFO,
        )
        close_inherited_sockets()
        # Threads here work for microseconds at a time; five milliseconds are too long to wait.
        sys.setswitchinterval(SWITCH_SECONDS)
        ask_for_short_slices(like=os.getppid())  # a node's model is imported at a lower priority
        ask_for_exact_timers()
        server = parent_named(SERVER_PROCESS)
        if server is not None:  # its keeper, which ends what it left, may wait for a processor
            end_with(server, self.release)
        self.config = json.loads(args["model_config"])
        self.parameters = _parameters(self.config)
        self.clock = SystemClock()
        self.settings = ServeSettings.read(Path(self.parameters["settings"]))
        self.name, self.version = args["model_name"], int(args["model_version"])
        path = self.settings.place / "pids" / self.process_name
        self.heartbeat = StubHeartbeat(path, self.alive_us, self.compiles_since_us)
        self.begin()
        # Objects loaded by now stay; a collection over all of them takes 0.1 s.
        gc.collect()
        gc.freeze()
        self.heartbeat.start()
        self._stopping = threading.Event()
        self._publishing = threading.Thread(target=self._publish, daemon=True)
        self._publishing.start()

    @cached_property
    def deployment(self) -> Deployment:
        """The generation that this model begins with."""
        return Deployment.read(self.settings, self.first_generation)

    @property
    def first_generation(self) -> int:
        """The number of that generation."""
        return int(self.parameters["generation"])

    @property
    def process_name(self) -> str:
        """Name of this process's files."""
        return self.name

    def _publish(self) -> None:
        noted = self.settings.place / "gauges" / self.process_name
        with contextlib.suppress(OSError):
            noted.parent.mkdir(exist_ok=True)
        publisher = Publisher(_family, noted, lambda: self._stopping.wait(PUBLISH_PAUSE_SECONDS))
        while not self._stopping.wait(PUBLISH_SECONDS):
            publisher.publish_from(self._looked)

    def _looked(self) -> Values:
        """The metrics after the looks of this second."""
        for look in self.each_second:
            look()
        return self.values()

    def finalize(self) -> None:
        """Stop the service."""
        self._stopping.set()
        self._publishing.join(timeout=2)
        self.end()
        self.heartbeat.stop()

    def release(self) -> None:
        """Do what must not wait until this process has ended, where its server is gone."""
        _LOG.warning("tritonserver is gone")

    @abstractmethod
    def begin(self) -> None:
        """Start the service."""

    @abstractmethod
    def end(self) -> None:
        """Stop the service."""

    @abstractmethod
    def values(self) -> Values:
        """The metrics to publish now."""

    def alive_us(self) -> int:
        """The last instant at which all that requests depend on was seen to run."""
        return self.clock.now_us()

    def compiles_since_us(self) -> int | None:
        """Since when it compiles, which may take minutes, before it can serve.

        None while it does not.
        """
        return None


def _family(name: str, description: str, kind: str) -> Any:
    kinds = {
        "counter": triton.MetricFamily.COUNTER,
        "gauge": triton.MetricFamily.GAUGE,
        "histogram": triton.MetricFamily.HISTOGRAM,
    }
    return triton.MetricFamily(name=name, description=description, kind=kinds[kind])


class FrontModel(_Model):
    """One served model, of one size or several, or one version of it.

    Checks requests, answers through their response senders.
    """

    @property
    def first_generation(self) -> int:
        """As the configuration says; of a version, the one in force, or the newest that has it."""
        if not self._is_version:
            return super().first_generation
        return generation_of_version(self.settings, self.name, self.version)

    @property
    def process_name(self) -> str:
        """Each version of a model is a process."""
        return process_file(self.name, self.version) if self._is_version else self.name

    @property
    def _is_version(self) -> bool:
        return int(self.parameters["generation"]) == OF_VERSIONS

    def begin(self) -> None:
        """Start the front, or one for every size or variant."""
        declared = {output["name"] for output in self.config["output"]}
        self._group = FrontGroup(
            self.settings,
            self.deployment,
            self.name,
            self.clock,
            names_variants=VARIANT_OUTPUT in declared,
            version=self.version,
        )
        self.each_second = (self._group.look,)
        self._group.start()

    def end(self) -> None:
        """Refuse what waits and stop."""
        self._group.stop()

    def alive_us(self) -> int:
        """Of the front's threads."""
        return self._group.alive_us()

    def values(self) -> Values:
        """Requests by outcome, of every size or variant."""
        return group_values(self._group)

    def execute(self, requests: list[Any]) -> None:
        """Take requests; answers come later.

        An error that left it would free the requests, also those that are waiting, and end the
        server.
        """
        for request in requests:
            try:
                wanted = request.requested_output_names()
                sender = request.get_response_sender()
                reply = partial(_reply, sender, wanted, handed_on=_is_handed_on(request))
            except Exception:  # noqa: BLE001  # without these no client can be answered
                _LOG.exception("a request of model %s", self.name)
            else:
                self._group.take(request, reply)


def _is_handed_on(request: Any) -> bool:
    """True if a model here handed a request on; parameters that are no UTF-8 are a client's."""
    try:
        return HANDED_ON_PARAMETER in request.parameters()
    except UnicodeDecodeError:
        return False  # the front refuses it


def _reply(
    sender: Any, wanted: set[str], result: Arrays | Refusal, *, handed_on: bool
) -> Callable[[], object]:
    if isinstance(result, Refusal):
        response = _refused(result, status_in_text=handed_on)
    else:
        response = triton.InferenceResponse(
            [triton.Tensor(name, array) for name, array in result.items() if name in wanted]
        )
    return partial(sender.send, response, flags=_FINAL)


def _send(sender: Any, answer: Any) -> None:
    """Send a response, or a refusal as one."""
    response = _refused(answer) if isinstance(answer, Refusal) else answer
    sender.send(response, flags=_FINAL)


def _refused(refusal: Refusal, *, status_in_text: bool = False) -> Any:
    """A refusal as a response.

    Among models of one server Triton passes on its text, not its status.
    """
    code = getattr(triton.TritonError, refusal.status)
    text = f"{refusal.status} {refusal.message}" if status_in_text else refusal.message
    return triton.InferenceResponse([], triton.TritonError(text, code))


class CutModel(_Model):
    """One open cut of a model with entries: its tensors alone, handed on to the model's front.

    For clients that cannot leave out inputs. The front knows the request's own time from here on,
    so what it waited here is taken off its `timeout`.
    """

    def begin(self) -> None:
        """Start the threads, each of which waits for one answer."""
        self._target, self._cut = self.parameters["model"], self.parameters["cut"]
        served = self.deployment.served_model(self._target)
        limit = self.deployment.max_waiting(served)
        self._forwarding = Forwarding(self.name, limit, served.slo_us, self.clock, self._asked)
        self._forwarding.start()

    def end(self) -> None:
        """Refuse what waits; let requests that were handed on be answered."""
        self._forwarding.stop()

    def values(self) -> Values:
        """Nothing: the front counts these requests."""
        return {}

    def execute(self, requests: list[Any]) -> None:
        """Hand requests on; answers come later, and no error leaves it (see `FrontModel`)."""
        for request in requests:
            try:
                sender = request.get_response_sender()
            except Exception:  # noqa: BLE001  # without it no client can be answered
                _LOG.exception("a request of model %s", self.name)
            else:
                self._forwarding.take(request, partial(_send, sender))

    def _asked(self, request: Any, waited_us: int) -> Any:
        allowed_us = request.timeout()
        if 0 < allowed_us <= MAX_TIMEOUT_US:  # else the front refuses it
            allowed_us = max(allowed_us - waited_us, 1)
        asked = triton.InferenceRequest(
            request_id=request.request_id(),
            model_name=self._target,
            requested_output_names=list(request.requested_output_names()),
            inputs=request.inputs(),
            timeout=allowed_us,
            parameters=json.loads(request.parameters() or "{}")
            | {CUT_PARAMETER: self._cut, HANDED_ON_PARAMETER: True},
        )
        answer = asked.exec()
        if answer.has_error():
            text = answer.error().message()
            status, _, message = text.partition(" ")
            known = status in STATUSES
            return Refusal(status, message) if known else Refusal("UNAVAILABLE", text)
        return triton.InferenceResponse(answer.output_tensors())


class _JsonModel(_Model):
    """A model whose requests and answers are one JSON text each."""

    OUTPUT = "state"

    @abstractmethod
    def answer(self, request: str) -> dict[str, Any]:
        """Answer one request of a client that has the token.

        Raises:
            InputError: the request cannot be carried out.
        """

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request."""
        return [self._one(request) for request in requests]

    def _one(self, request: Any) -> Any:
        texts = {t.name(): bytes(t.as_numpy().reshape(-1)[0]) for t in request.inputs()}
        try:
            state = self.admitted(texts)
        except (PoolPipeError, TimeoutError) as error:
            wrong = isinstance(error, InputError)
            code = triton.TritonError.INVALID_ARG if wrong else triton.TritonError.UNAVAILABLE
            return triton.InferenceResponse([], triton.TritonError(str(error), code))
        text = np.array([json.dumps(state).encode()], dtype=np.object_)
        return triton.InferenceResponse([triton.Tensor(self.OUTPUT, text)])

    def admitted(self, texts: Mapping[str, bytes]) -> dict[str, Any]:
        """The answer, for a caller that has the system's token."""
        if not self.knows_token(texts["token"]):
            raise InputError("control request", "wrong token")
        return self.answer(texts["request"].decode(errors="replace"))

    def knows_token(self, token: bytes) -> bool:
        """True if this is the system's token."""
        return hmac.compare_digest(token, self.settings.token.encode())


class OffloadModel(_JsonModel):
    """Open cuts, for every client; what clients announced, for a caller with the token."""

    OUTPUT = "answer"

    def begin(self) -> None:
        """Begin with no leases."""
        plan = PlanReader(self._generation, self._plan_of)
        self._offload = Offload(plan, self.clock.now_us)

    def end(self) -> None:
        """Nothing to stop."""

    def values(self) -> Values:
        """Leases."""
        return {("poolpipe_offload_leases", ()): float(len(self._offload))}

    def answer(self, request: str) -> dict[str, Any]:
        """Offer or announce."""
        return self._offload.answer(request)

    def admitted(self, texts: Mapping[str, bytes]) -> dict[str, Any]:
        """The answer; a token that is given must be the right one."""
        if "token" in texts and not self.knows_token(texts["token"]):
            raise InputError("offload request", "wrong token")
        request = texts["request"].decode(errors="replace")
        return self._offload.answer(request, trusted="token" in texts)

    def _generation(self) -> int:
        """In force, as the state file says; where there is none, what this model was loaded for."""
        state = read_state_file(self.settings.folder) or {}
        return int(state.get("generation") or self.deployment.generation)

    def _plan_of(self, generation: int) -> Plan:
        if generation == self.deployment.generation:
            return self.deployment.plan
        return Deployment.read(self.settings, generation).plan


class ControlModel(_JsonModel):
    """The scheduler and its control request."""

    def begin(self) -> None:
        """Start the scheduler."""
        # Imported here, because fronts and nodes need no scheduler and start sooner without it.
        from triton_backend.serving.gateway.service import SchedulerService  # noqa: PLC0415

        self._service = SchedulerService(self.settings, self.deployment, self.clock, self.name)
        self.heartbeat.start()  # already now: a process that waits for it sees that it compiles
        self._service.start()

    def end(self) -> None:
        """Stop the scheduler."""
        self._service.stop()

    def release(self) -> None:
        """Let the standby take over."""
        self._service.stop()

    def alive_us(self) -> int:
        """Of the scheduler's thread."""
        return self._service.alive_us()

    def compiles_since_us(self) -> int | None:
        """Since when the scheduler compiles its kernels."""
        return self._service.compiles_since_us

    def values(self) -> Values:
        """Queues, batches, pools; of a standby, nothing but that it is one."""
        return scheduler_values(self._service, self.name, self.settings.folder, self.clock.now_us())

    def answer(self, request: str) -> dict[str, Any]:
        """prepare, flush, swap, abort, status, advice."""
        return self._service.control(request)


class NodeModel(_JsonModel):
    """A node and its workers."""

    def begin(self) -> None:
        """Start the workers."""
        from triton_backend.serving.node.node import Node  # noqa: PLC0415  # no front needs it

        self._node = Node(
            self.settings, self.parameters["node"], self.clock, parent_named(SERVER_PROCESS)
        )
        self._node.start()

    def end(self) -> None:
        """End the workers."""
        self._node.stop()

    def alive_us(self) -> int:
        """Of the node's thread."""
        return self._node.alive_us()

    def values(self) -> Values:
        """Restarts."""
        return node_values(self._node.status())

    def answer(self, request: str) -> dict[str, Any]:
        """`infer` of a stage, files of a plan change, or the status of the workers."""
        return self._node.answer(request)
