"""How to roll out; importing this loads nothing that rolls out."""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Self

from flows.options import check_options, option
from triton_backend.contract.entries import LEAST_SHARE
from triton_backend.contract.errors import InputError

RANDOM, CLIENTS = "random", "clients"
WHOLE_PERCENT = 100
MOST_SHARE = 0.999  # of a canary: the former plan has some requests to compare with


class RolloutMode(StrEnum):
    """How a plan follows another.

    `in-place`: with work in flight; where a GPU cannot hold the new workers beside the old, by
    plans between. `in-place-only`: the same without plans between. `flush`: PPipe's migration, with
    nothing in flight.
    """

    IN_PLACE = "in-place"
    IN_PLACE_ONLY = "in-place-only"
    FLUSH = "flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """How to roll out.

    Attributes:
        bake_seconds: how long the new plan is watched; 0 watches nothing.
        attainment_target: below it for any model (of at least 50 requests) the former plan comes
            back.
        latency_factor: and if a model's mean latency exceeds so many times its SLO.
        way: in place, in place without plans between, or with a flush first.
        compare_requests: how many requests of each model both plans answer before the switch; 0
            compares nothing.
        compare_from: which requests those are: random ones of a fixed seed, or the next that
            clients send, which are copied while they are served.
        compare_seconds: how long requests of clients are waited for; random ones stand in for a
            model that got none.
        compare_tolerance: how much answers may differ, relative to the largest value; 0: as much as
            their type explains.
        compare_latency: the former plan goes on if one sample takes more than so many times what
            the new plan says.
        canary: percents of the requests of each model that differs, ascending, which the new plan
            answers beside the former one before it answers all ("1,10,50"); None: at once.
        canary_seconds: how long each of those steps lasts.
        canary_requests: how many requests of each model the canary must have taken by then.
        canary_tolerance: by how much the share of its requests that end late, dropped or failed may
            exceed the former plan's, beyond chance.
        wait: for another rollout that is under way, as long as it takes; else it is an error.
    """

    bake_seconds: float = option(
        30.0,
        help="Observe the new plan this long; roll back if attainment drops.",
        least=0.0,
        most=1e6,
        metavar="SECONDS",
        panel="Rollout",
    )
    poll_seconds: float = 1.0
    attainment_target: float = option(
        0.95,
        help="Roll back if less than this share of requests is served in time.",
        least=0.01,
        most=1.0,
        metavar="SHARE",
        panel="Rollout",
    )
    latency_factor: float = 1.0
    compare_requests: int = option(
        0,
        help="Before the switch, compare both plans' answers to this many requests a model.",
        least=0,
        most=1000,
        metavar="N",
        panel="Rollout",
    )
    compare_from: str = option(
        RANDOM,
        help="With --compare-requests: compare by random requests, or by those that clients send.",
        choices=(RANDOM, CLIENTS),
        metavar="random|clients",
        panel="Rollout",
    )
    compare_seconds: float = option(
        30.0,
        help="With --compare-from clients: wait this long for their requests.",
        least=1.0,
        most=3600.0,
        metavar="SECONDS",
        panel="Rollout",
    )
    compare_tolerance: float = option(
        0.0,
        help="With --compare-requests: let answers differ by this share of the largest value; 0: by"
        " what their type explains.",
        least=0.0,
        most=1e6,
        metavar="SHARE",
        panel="Rollout",
    )
    compare_latency: float = option(
        2.0,
        help="With --compare-requests: refuse stages this many times slower than planned.",
        least=1.0,
        most=1000.0,
        metavar="FACTOR",
        panel="Rollout",
    )
    canary: str | None = option(
        None,
        help="Let the new plan answer these percents of the requests first, one after the other:"
        " 1,10,50.",
        metavar="SHARE,SHARE",
        panel="Canary",
    )
    canary_seconds: float = option(
        60.0,
        help="With --canary: watch each share this long.",
        least=1.0,
        most=1e6,
        metavar="SECONDS",
        panel="Canary",
    )
    canary_requests: int = option(
        50,
        help="With --canary: roll back if the new plan got fewer requests of a model in a step.",
        least=1,
        most=1_000_000,
        metavar="N",
        panel="Canary",
    )
    canary_tolerance: float = option(
        0.01,
        help="With --canary: let this much more of the requests fail or be late than before.",
        least=0.0,
        most=1.0,
        metavar="SHARE",
        panel="Canary",
    )
    reason: str = option(
        "requested", help="Reason that the history of rollouts records.", panel="Rollout"
    )
    way: RolloutMode = RolloutMode.IN_PLACE
    wait: bool = True

    def __post_init__(self) -> None:
        check_options(self)
        if not self.poll_seconds > 0 or not self.latency_factor > 0:
            raise InputError("rollout", "poll_seconds and latency_factor must be positive")
        self._check_needed("compare_requests", needed=self.compare_requests > 0)
        self._check_needed("canary", needed=self.canary is not None)
        _ = self.canary_shares

    def _check_needed(self, option: str, *, needed: bool) -> None:
        """Check that options which say how an option is carried out come with it."""
        if needed:
            return
        prefix, *_ = option.split("_", maxsplit=1)
        for name, usual in self._usual(prefix).items():
            if getattr(self, name) != usual:
                raise InputError(f"option {name}", f"has no effect without {option}")

    @classmethod
    def _usual(cls, prefix: str) -> dict[str, Any]:
        return {one.name: one.default for one in fields(cls) if one.name.startswith(f"{prefix}_")}

    @property
    def at_once(self) -> bool:
        """True if no plan may serve between: one would before the last plan is compared."""
        return self.way is RolloutMode.IN_PLACE_ONLY or self.compare_requests > 0

    def following(self) -> Self:
        """Options of the changes after a canary's first, in which requests are compared."""
        return replace(self, **self._usual("compare"))

    @property
    def canary_shares(self) -> tuple[float, ...]:
        """Shares of the requests, above 0 and below 1, that the new plan answers step by step.

        Raises:
            InputError: what is stated are no ascending percents.
        """
        if self.canary is None:
            return ()
        try:
            percents = [float(text) for text in self.canary.split(",")]
        except ValueError:
            raise _no_percents(self.canary) from None
        shares = [percent / WHOLE_PERCENT for percent in percents]
        ascending = all(one < other for one, other in pairwise(shares))
        steps = shares[:-1] if shares[-1] == 1 else shares
        if not ascending or not all(LEAST_SHARE <= share <= MOST_SHARE for share in steps):
            raise _no_percents(self.canary)
        return tuple(steps)


def _no_percents(given: str) -> InputError:
    least, most = WHOLE_PERCENT * LEAST_SHARE, WHOLE_PERCENT * MOST_SHARE
    reason = (
        f"{given!r} is no list of ascending percents from {least:g} to {most:g}, and 100 at the"
        " end, as in 1,10,50"
    )
    return InputError("option canary", reason)
