"""How to roll out; importing this loads nothing that rolls out."""

from dataclasses import dataclass
from enum import StrEnum

from flows.options import check_options, option
from triton_backend.contract.errors import InputError

RANDOM, CLIENTS = "random", "clients"


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
    reason: str = option(
        "requested", help="Reason that the history of rollouts records.", panel="Rollout"
    )
    way: RolloutMode = RolloutMode.IN_PLACE
    wait: bool = True

    def __post_init__(self) -> None:
        check_options(self)
        if not self.poll_seconds > 0 or not self.latency_factor > 0:
            raise InputError("rollout", "poll_seconds and latency_factor must be positive")
