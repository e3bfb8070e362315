"""Clients that run the first blocks of a model themselves.

Open cuts, and what clients announced. Requests and answers are one JSON object each:

    {"command": "offer", "model"}     -> plan_id, blocks,
                                         cuts: [{block, state, tail_ms: {least, p50, p99}}]
    {"command": "announce", "client", "model",
     "cut", "rate_rps", "budget_ms"}  -> plan_id, lease_s, state of the cut
    {"command": "announced"}          -> plan_id, leases; asks for the system's token

A cut is `planned` where an entry there has pools of its own, `shadow` where only a pool that starts
anywhere serves it, else `closed`. Tails are what is to be expected by the plan: alone, and after as
long a wait as half of the budget pays for. `least` is what a client decides by: where there is a
shadow pool, what that takes, since it serves until a plan has another pool. A lease ends after 10
s; a rate of 0 ends it at once. It says what a client wants, and reserves nothing. Names are not
proven: only so many new ones are taken a second, so that a flood of them pushes out none that has a
lease; and where there are too many, the lease that was announced longest ago makes room, so that
names which are made up once keep no client out for long. A client that is refused is served all the
same, and announces again.

Of two gateways each has the leases that were announced to it; a client that went from one to the
other may have two for a while, of which the later counts (`contract.entries.latest`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from triton_backend.contract.entries import Lease
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields, check_name
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.units import US_PER_S, ms_to_us, us_to_ms

LEASE_US = 10_000_000
MOST_CLIENTS = 10_000
# Clients without a lease: so many at once, then so many a second. Made-up ones alone never fill the
# table.
NEW_AT_ONCE, NEW_PER_S = 1_000, 500
MOST_BYTES = 4_096  # of a request
MOST_NAME = 200
MOST_RPS, MOST_BUDGET_MS = 1e6, 1e6
PLANNED, SHADOW, CLOSED = "planned", "shadow", "closed"
WHERE = "offload request"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCut:
    """A cut as the plan has it.

    Its state, and its tail expected at half of the requests and at nearly all.
    """

    block: int
    state: str
    least_us: int | None = None
    p50_us: int | None = None
    p99_us: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        tail = {"least": self.least_us, "p50": self.p50_us, "p99": self.p99_us}
        tail_ms = {name: None if us is None else us_to_ms(us) for name, us in tail.items()}
        return {"block": self.block, "state": self.state, "tail_ms": tail_ms}


def cuts_of(plan: Plan, name: str) -> tuple[OpenCut, ...]:
    """Every cut of a model, by block.

    Raises:
        InputError: the plan has no such model with entries.
    """
    model = _offered(plan, name)
    anywhere = {pool.name for pool in plan.pools if pool.starts_anywhere}
    least_us = plan.least_tails_us(name)
    return tuple(_cut(model, block, anywhere, least_us.get(block)) for block in range(model.blocks))


def _offered(plan: Plan, name: str) -> ModelPlan:
    offered = [model for model in plan.models if model.entries]
    for model in offered:
        if model.name == name:
            return model
    listed = ", ".join(model.name for model in offered) or "none"
    raise InputError(f"{WHERE}, model", f"{name[:MOST_NAME]!r} is none of {listed}")


def _cut(model: ModelPlan, block: int, anywhere: set[str], least_us: int | None) -> OpenCut:
    here = [p for p in model.pipelines if p.first_block == block]
    if not here:
        return OpenCut(block=block, state=CLOSED)
    own = [p for p in here if not all(stage.pool in anywhere for stage in p.stages)]
    alone_us = min(pipeline.alone_us for pipeline in own or here)
    # A batch ends within its run and, at worst, the run of the one before it.
    p99_us = max(2 * pipeline.latency_us for pipeline in own or here)
    return OpenCut(
        block=block,
        state=PLANNED if own else SHADOW,
        # A shadow pool too slow for the entry serves none of it.
        least_us=alone_us if least_us is None else least_us,
        p50_us=alone_us,
        p99_us=max(p99_us, alone_us),
    )


class Offload:
    """The table of leases, and answers to requests.

    Args:
        plan: gives the plan in force.
        now_us: the clock.
    """

    def __init__(self, plan: Callable[[], Plan], now_us: Callable[[], int]) -> None:
        self._plan, self._now_us = plan, now_us
        self._leases: dict[str, Lease] = {}
        self._new_left, self._new_us = (
            float(NEW_AT_ONCE),
            now_us(),
        )  # new names allowed now, and the instant of that count

    def answer(self, request: str, *, trusted: bool = False) -> dict[str, Any]:
        """Answer one request; `trusted`: of a client that has the token.

        Raises:
            InputError: it makes no sense; in one line.
        """
        if len(request) > MOST_BYTES:
            raise InputError(WHERE, f"{len(request)} characters, at most {MOST_BYTES} are read")
        try:
            fields = Fields(json.loads(request), WHERE)
        except (ValueError, RecursionError) as error:
            raise InputError(WHERE, "is not JSON") from error
        command = fields.text("command")
        if command == "offer":
            return self._offer(fields)
        if command == "announce":
            return self._announce(fields)
        if command == "announced" and trusted:
            leases = [lease._asdict() for lease in self.leases()]
            return {"plan_id": self._plan().plan_id, "leases": leases}
        if command == "announced":
            raise InputError(f"{WHERE}, command", "'announced' needs the system's token")
        raise InputError(f"{WHERE}, command", f"{command[:MOST_NAME]!r} is none of offer, announce")

    def leases(self) -> list[Lease]:
        """Those that hold now."""
        self._end_leases()
        return [*self._leases.values()]

    def __len__(self) -> int:
        return len(self._leases)

    def _offer(self, fields: Fields) -> dict[str, Any]:
        plan = self._plan()
        cuts = cuts_of(plan, fields.text("model"))
        return {
            "plan_id": plan.plan_id,
            "blocks": len(cuts),
            "cuts": [cut.to_dict() for cut in cuts],
        }

    def _announce(self, fields: Fields) -> dict[str, Any]:
        plan = self._plan()
        client, name = fields.text("client"), fields.text("model")
        check_name(f"{WHERE}, client", client)
        cuts = cuts_of(plan, name)
        cut = cuts[fields.integer("cut", most=len(cuts) - 1)]
        rate_rps = fields.number("rate_rps", least=0, most=MOST_RPS)
        budget_us = ms_to_us(fields.number("budget_ms", least=0.001, most=MOST_BUDGET_MS))
        if rate_rps and client not in self._leases:
            self._take_new()
        self._leases.pop(client, None)  # in order of their last announcement
        if rate_rps:
            if len(self._leases) >= MOST_CLIENTS:
                self._end_leases()
            if len(self._leases) >= MOST_CLIENTS:
                del self._leases[next(iter(self._leases))]
            until_us = self._now_us() + LEASE_US
            self._leases[client] = Lease(client, name, cut.block, rate_rps, budget_us, until_us)
        return {"plan_id": plan.plan_id, "lease_s": LEASE_US / US_PER_S, "state": cut.state}

    def _take_new(self) -> None:
        """A client without a lease announces something.

        Raises:
            InputError: too many do.
        """
        now_us = self._now_us()
        came = (now_us - self._new_us) * NEW_PER_S / US_PER_S
        self._new_left, self._new_us = min(self._new_left + came, float(NEW_AT_ONCE)), now_us
        if self._new_left < 1:
            reason = f"more than {NEW_PER_S} new ones a second; announce it again in a second"
            raise InputError(f"{WHERE}, client", reason)
        self._new_left -= 1

    def _end_leases(self) -> None:
        now_us = self._now_us()
        self._leases = {k: lease for k, lease in self._leases.items() if lease.until_us > now_us}


class PlanReader:
    """The plan of the generation in force, read again when that changes.

    Args:
        generation: says which it is now.
        read: reads the plan of one.
    """

    def __init__(self, generation: Callable[[], int], read: Callable[[int], Plan]) -> None:
        self._generation, self._read = generation, read
        self._known: Mapping[int, Plan] = {}

    def __call__(self) -> Plan:
        """The plan in force."""
        number = self._generation()
        if number not in self._known:
            self._known = {number: self._read(number)}
        return self._known[number]
