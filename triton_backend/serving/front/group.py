"""The fronts of one name as one: of a model alone, of its sizes or variants, or of one version.

The plan in force says which there are, so they come and go with it, in this process:

    PLAN (prepared) --> [ new fronts connect, closed ] -- PLAN (in force) --> requests go to them
    PLAN (in force) --> [ fronts that it does not have: closed ] -- `CLOSED_KEPT_US` --> ended

Versions come and go as processes instead: Triton runs each apart (`serve_folder.repository`).

A new front connects before its plan is in force and is given no request until then. Fronts hear of
a plan one after the other; the first that does opens and closes all of them, so that at no instant
a size is served by none. A request that waited in a front which the plan in force does not have
goes to the one that takes its like now, if there is one.

Here: which fronts there are, and which plan they are asked by. Not here: the choice among them
(`sizes`, `variants`), the life of a request in one (`service`).
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan
from triton_backend.contract.workload import FIRST_VERSION
from triton_backend.runtimes.clock import Clock
from triton_backend.runtimes.stage_tensors import answering
from triton_backend.serve_folder.names import VARIANT_OUTPUT
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.quotas import Quotas
from triton_backend.serving.front.replies import Refusal, Respond, Result
from triton_backend.serving.front.requests.reading import IncomingRequest, is_low
from triton_backend.serving.front.requests.refusals import unreadable
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.front.service import FrontService
from triton_backend.serving.front.sizes import OneFront, SizeTable, Table

# Longer than a request may wait for an answer beyond its deadline, and than a worker may still
# write one.
CLOSED_KEPT_US = 15_000_000
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class NamingReply:
    """A reply that names the variant whose answer it is."""

    reply: Respond
    variant: str

    def __call__(self, result: Result) -> Callable[[], object] | None:
        """As `Respond`."""
        if not isinstance(result, Refusal):
            samples = len(next(iter(result.values()), ()))
            names = np.full(samples, self.variant.encode(), dtype=np.object_)
            result = {**result, VARIANT_OUTPUT: names}
        return self.reply(result)


@dataclass(slots=True)
class _Serving:
    """A plan that the fronts were notified of.

    Attributes:
        models: those that answer here; none where name or version is not served.
        table: the choice among their fronts; None until these are made.
    """

    deployment: Deployment
    models: tuple[ModelPlan, ...]
    table: Table[FrontService] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of these models."""
        return tuple(model.name for model in self.models)


class FrontGroup:
    """Runs between `start` and `stop`.

    Args:
        settings: of the system, in this gateway.
        deployment: the generation that it begins with.
        name: that clients ask for.
        clock: of this process.
        names_variants: answers name the model that gave them.
        version: of the name; the fronts of each have a process of their own.

    Attributes:
        quotas: of the clients of this name.
        refused: requests that went to no front.
    """

    def __init__(
        self,
        settings: ServeSettings,
        deployment: Deployment,
        name: str,
        clock: Clock,
        *,
        names_variants: bool = False,
        version: int = FIRST_VERSION,
    ) -> None:
        self.name, self._version = name, version
        self.quotas = Quotas.of(settings, name, clock.now_us())
        self.refused = 0
        self._settings, self._clock = settings, clock
        self._names_variants = names_variants
        self._state = threading.Lock()  # of what follows, held for moments
        self._making = threading.Lock()  # while a front is made or ended
        self._in_force = _Serving(deployment, answering(deployment.plan, name, version))
        self._prepared: _Serving | None = None
        self._heard: dict[str, _Serving] = {}  # in force, as each front was notified last
        self._closed_us: dict[str, int] = {}
        self._fronts = {model: self._made(deployment, model) for model in self._in_force.names}
        self._table = self._in_force.table = self._made_table(self._in_force)

    @property
    def fronts(self) -> tuple[FrontService, ...]:
        """All, also those that are closed."""
        return tuple(self._fronts.copy().values())

    def start(self) -> None:
        """Start all."""
        for front in self.fronts:
            front.start()

    def stop(self) -> None:
        """Refuse what is left, and stop all."""
        with self._making:
            for front in self.fronts:
                front.stop()

    def alive_us(self) -> int:
        """When the loops of all last succeeded."""
        return min(front.alive_us() for front in self.fronts)

    # Requests

    def take(self, incoming: IncomingRequest, reply: Respond) -> None:
        """Take a request of Triton's, or refuse it; whatever it holds, nothing is raised."""
        try:
            front = self._front_of(incoming)
        except Exception as error:  # noqa: BLE001  # Triton's objects may raise any
            refusal = unreadable(self.name, error)
        else:
            front.take(incoming, NamingReply(reply, front.model) if self._names_variants else reply)
            return
        self.refused += 1
        try:
            send = reply(refusal)
            if send is not None:
                send()
        except Exception:  # noqa: BLE001  # see above
            _LOG.exception("a reply of %s was not sent", self.name)

    def _front_of(self, incoming: IncomingRequest) -> FrontService:
        table = self._table
        if isinstance(table, OneFront):
            return table.front
        tensors = {tensor.name(): tensor.as_numpy for tensor in incoming.inputs()}
        return table.front_of(
            tensors, lambda: is_low(f"model {self.name!r}", incoming.parameters())
        )

    def _successor(self, former: FrontService, request: Request) -> FrontService | None:
        """The front that takes a request's like, where the former one's plan is over."""
        tensors = {name: partial(np.asarray, array) for name, array in request.tensors.items()}
        try:
            front = self._table.front_of(tensors, lambda: request.low)
        except InputError:
            return None
        if front is former:
            return None
        if isinstance(request.reply, NamingReply):
            request.reply.variant = front.model
        return front

    # Plans

    def look(self) -> None:
        """Once a second: orders of copies, fronts that failed to come, and those to be ended."""
        for front in self.fronts:
            front.mirror.look()
        for serving in (self._prepared, self._in_force):
            if serving is not None and self._missing(serving):
                self._add(serving)
        self._end_closed()

    def _follow(self, front: FrontService, deployment: Deployment, prepared: bool) -> None:  # noqa: FBT001 - as in PLAN
        """A front was notified of a plan; in the thread that polls for it.

        Fronts that are new to it are made in another thread: that may take as long as it takes to
        load the kernels that choose a variant.
        """
        with self._state:
            serving = self._serving_of(deployment)
            self._prepared = serving if prepared else None
            if not prepared:
                self._heard[front.model] = serving
                self._in_force = max(
                    self._heard.values(), key=lambda heard: heard.deployment.generation
                )
        if self._missing(serving):
            threading.Thread(target=self._add, args=(serving,), daemon=True).start()
        else:
            self._ask_by_plan_in_force()

    def _serving_of(self, deployment: Deployment) -> _Serving:
        """The same for every front: looked up once, which takes 10 ms in one of 200 models."""
        for serving in (self._in_force, self._prepared, *self._heard.values()):
            if serving is not None and serving.deployment.generation == deployment.generation:
                return serving
        return _Serving(deployment, answering(deployment.plan, self.name, self._version))

    def _ask_by_plan_in_force(self) -> None:
        """Choose by the plan in force, where all of its fronts are there."""
        with self._state:
            serving = self._in_force
            if not serving.models or self._missing(serving):
                return
            if serving.table is None:
                serving.table = self._made_table(serving)
            self._table = serving.table

    def _missing(self, serving: _Serving) -> list[str]:
        """Models without a front, or with one that listens elsewhere than workers send."""
        fronts, far, deployment = self._fronts, bool(self._settings.hosts), serving.deployment
        return [
            name
            for name in serving.names
            if name not in fronts or (far and fronts[name].port != deployment.front_port(name))
        ]

    def _add(self, serving: _Serving) -> None:
        """Make the fronts that a plan needs, and the choice among them; tried again by `look`."""
        try:
            with self._making:
                missing = self._missing(serving)
                for model in missing:
                    self._end(model)
                new = {model: self._made(serving.deployment, model) for model in missing}
                with self._state:
                    self._fronts |= new
                table = self._made_table(serving)
                with self._state:
                    serving.table = table
                for front in new.values():  # last, because a rollout waits for them to connect
                    front.start()
            self._ask_by_plan_in_force()
        except Exception:  # noqa: BLE001  # those that are there serve on
            _LOG.exception("fronts of %s for plan %s", self.name, serving.deployment.plan.plan_id)

    def _end_closed(self) -> None:
        """End fronts that neither the plan in force nor the prepared one has."""
        now_us = self._clock.now_us()
        with self._making:
            plans = [plan for plan in (self._in_force, self._prepared) if plan is not None]
            wanted = {model for plan in plans for model in plan.names}
            for front in self.fronts if wanted else ():
                if front.model in wanted:
                    self._closed_us.pop(front.model, None)
                    continue
                since_us = self._closed_us.setdefault(front.model, now_us)
                if now_us - since_us >= CLOSED_KEPT_US and not front.unanswered:
                    self._end(front.model)

    def _end(self, model: str) -> None:
        """End the front of a model that the plan in force does not have, where there is one."""
        with self._state:
            front = self._fronts.pop(model, None)
            self._heard.pop(model, None)
        self._closed_us.pop(model, None)
        if front is not None:
            front.stop()

    def _made(self, deployment: Deployment, model: str) -> FrontService:
        front = FrontService(self._settings, deployment, model, self._clock, self.quotas)
        front.follow = partial(self._follow, front)
        front.successor = partial(self._successor, front)
        return front

    def _made_table(self, serving: _Serving) -> Table[FrontService]:
        """The choice among the fronts of a plan."""
        plan = serving.deployment.plan
        models = {model.name: model for model in serving.models}
        fronts = [self._fronts[model] for model in models]
        if self.name in plan.workload.variants:
            from triton_backend.serving.front.variants import (  # noqa: PLC0415  # loads the kernels
                VariantTable,
            )

            return VariantTable(self.name, fronts, serving.deployment, self._clock)
        if len(fronts) == 1 and (self.name in models or self.name in plan.workload.versions):
            return OneFront(fronts[0])
        return SizeTable(self.name, fronts, tuple(models.values()))
