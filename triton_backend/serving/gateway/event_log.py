"""The gateway's event file: JSON lines of all events of the core and of its decisions.

A line is `{"t": kind, ...fields}`; kinds are the names of `contract.events` and
`contract.decisions`, `Refused` and `RefusedJob` for what admission kept from the core, and `Plan`
for a header that names the plan and generation the lines after it belong to. Instants are the
host's monotonic clock in µs; a header also says what the wall clock showed then. Another thread
writes the files (`rolling_files`); a disk that is full for long leaves a `Gap` behind.
`read_events` gives a log back for a replay through the core.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from triton_backend.contract import decisions, events
from triton_backend.contract.decisions import Decision, Dispatch, DropReason, Hop, Member
from triton_backend.contract.events import Event, PlanChanged
from triton_backend.runtimes.clock import Clock
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.admission import Refused, RefusedJob
from triton_backend.serving.transport.rolling_files import RollingLines

# So many are made into lines in one go: one at a time takes several times as long each, because the
# code for it is out of the caches by the next; more would keep the scheduler's thread for too long.
SETTLE_ITEMS = 48


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """So many lines are missing here; no replay can go on before the next life of a gateway."""

    lines: int


class EventLog:
    """The files `events-*.jsonl` of a folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock = clock
        self._lines = RollingLines(folder, "events", clock.wall_us())
        self._items: list[Event | Decision | Refused | RefusedJob] = []

    def begin(self, deployment: Deployment, now_us: int) -> None:
        """A new scheduler begins under this generation."""
        self._deployment = deployment
        self._header(now_us, rollout=False)

    def rollout(self, deployment: Deployment) -> None:
        """The change of plan that was noted last is to this generation."""
        self._deployment = deployment
        self._settle()

    def _header(
        self, now_us: int, *, rollout: bool, inherited: Iterable[tuple[int, int]] = ()
    ) -> None:
        """From here on this plan: of a new scheduler, or of the same one by a rollout."""
        deployment = self._deployment
        self._lines.write(
            json.dumps(
                {
                    "t": "Plan",
                    "now_us": now_us,
                    "wall_us": self._clock.wall_us() - self._clock.now_us() + now_us,
                    "rollout": rollout,
                    "inherited": [list(pair) for pair in inherited],
                    "generation": deployment.generation,
                    "plan_id": deployment.plan.plan_id,
                    "policy": deployment.settings.policy,
                    "nic": deployment.settings.nic,
                    "shared_batch_times": list(deployment.shared_batch_times),
                }
            )
        )

    def write(
        self, item: Event | Decision | Refused | RefusedJob, decided: Iterable[Decision] = ()
    ) -> None:
        """Note one item, and what was decided on it; their lines are not waited for."""
        self._items.append(item)
        self._items += decided

    def settle_some(self) -> None:
        """Make lines of what was noted, if it is much: for the time after the frames are sent."""
        if len(self._items) >= SETTLE_ITEMS:
            self._settle()

    def _settle(self) -> None:
        items, self._items = self._items, []
        for item in items:
            if isinstance(item, PlanChanged):
                self._header(item.now_us, rollout=True, inherited=item.inherited or ())
            else:
                self._lines.write(to_line(item))

    def flush(self) -> None:
        """Write what is buffered."""
        self._settle()
        self._lines.flush()

    def close(self) -> None:
        """Flush and close."""
        self._settle()
        self._lines.close()


def to_line(item: Event | Decision | Refused | RefusedJob) -> str:
    """One event or decision as a line of JSON.

    Written for speed, because every request pays for several: kinds of whole numbers only have a
    ready format.
    """
    kind = type(item)
    known = _FORMATS.get(kind)
    if known is None:
        known = _FORMATS[kind] = _format_of(kind)
    text, fields = known
    if fields is not None:
        return text % fields(item)
    if isinstance(item, Dispatch):
        return _dispatch_line(item)
    data = dataclasses.asdict(item)
    if data.get("reason") is not None:
        data["reason"] = DropReason(data["reason"]).text
    return json.dumps({"t": kind.__name__, **data}, separators=(",", ":"))


_FORMATS: dict[type, tuple[str, Callable[[Any], Any] | None]] = {}


def _format_of(
    kind: type[Event | Decision | Refused | RefusedJob],
) -> tuple[str, Callable[[Any], Any] | None]:
    fields = dataclasses.fields(kind)
    if any(field.type not in {int, "int"} for field in fields):
        return "", None
    names = tuple(field.name for field in fields)
    numbers = "".join(f',"{name}":%d' for name in names)
    return f'{{"t":"{kind.__name__}"{numbers}}}', attrgetter(*names)


def _dispatch_line(item: Dispatch) -> str:
    hops = ",".join(
        f'{{"vgpu":{h.vgpu},"transfer_start_us":{h.transfer_start_us},'
        f'"transfer_end_us":{h.transfer_end_us},"start_us":{h.start_us},"end_us":{h.end_us}}}'
        for h in item.hops
    )
    ids = ",".join(map(str, item.request_ids))
    return (
        f'{{"t":"Dispatch","batch_id":{item.batch_id},"model":{item.model},'
        f'"pipeline":{item.pipeline},"request_ids":[{ids}],"samples":{item.samples},'
        f'"hops":[{hops}]}}'
    )


_KINDS: dict[str, type[Any]] = {
    name: kind
    for module in (events, decisions)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}


def read_events(lines: Iterable[str]) -> Iterator[Event | Decision | Gap | dict[str, Any]]:
    """The items of a log in order; a header as the dictionary it is."""
    for line in lines:
        data: dict[str, Any] = json.loads(line)
        kind = data.pop("t")
        if kind == "Plan":
            yield data
            continue
        if kind == Gap.__name__:
            yield Gap(**data)
            continue
        if kind in {Refused.__name__, RefusedJob.__name__}:
            continue  # the core never saw it
        if kind == "Dispatch":
            data["hops"] = tuple(Hop(**hop) for hop in data["hops"])
            data["request_ids"] = tuple(data["request_ids"])
        if data.get("reason") is not None:
            data["reason"] = DropReason.parse(data["reason"])
        if kind == "SharedBatch":
            data["members"] = tuple(Member(*member) for member in data["members"])
        if kind == "Emitted":
            data["rows"] = tuple(data["rows"])
        yield _KINDS[kind](**data)
