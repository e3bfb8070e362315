"""How careful replanning is, and how long the loops that follow the load go on.

Importing this loads nothing that forecasts, plans or simulates.
"""

from dataclasses import dataclass

from flows.options import check_options, option
from triton_backend.contract.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """How careful the forecast is.

    Attributes:
        recent_s: how far back "the last hours" go.
        days: how many earlier days are looked at.
    """

    history_hours: float = option(
        24.0,
        help="Length of the history of measured rates, in hours.",
        least=0.1,
        most=1e5,
        metavar="HOURS",
        panel="Forecast",
    )
    quantile: float = option(
        0.99,
        help="Quantile of the measured rates to plan for.",
        least=0.01,
        most=1.0,
        metavar="SHARE",
        panel="Forecast",
    )
    headroom: float = option(
        1.1,
        help="Factor by which that rate is multiplied.",
        least=0.01,
        most=1e3,
        metavar="FACTOR",
        panel="Forecast",
    )
    recent_s: int = 3600
    days: int = 7

    def __post_init__(self) -> None:
        check_options(self)
        if self.recent_s < 1 or self.days < 1:
            raise InputError("forecast", "recent_s and days must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How much better a new plan must be.

    Attributes:
        attainment_target: below it, the plan in force is in breach.
    """

    goodput_gain: float = option(
        0.02,
        help="Smallest relative gain in goodput that is worth a rollout.",
        least=0.0,
        most=1e3,
        metavar="SHARE",
        panel="Rollout",
    )
    gpu_gain: float = option(
        0.05,
        help="Smallest share of GPUs saved that is worth a rollout.",
        least=0.0,
        most=1.0,
        metavar="SHARE",
        panel="Rollout",
    )
    attainment_target: float = 0.99

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 < self.attainment_target <= 1:
            raise InputError("thresholds", "the target must be within (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How long a loop that follows the load goes on, and whether it only says what it would do."""

    hours: float | None = option(
        None,
        help="Stop after this many hours; by default it runs until interrupted.",
        least=1e-3,
        most=1e3,
        metavar="HOURS",
    )
    advisory: bool = option(
        default=False, help="Show the plans that would be made, and change nothing."
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleOptions(LoopOptions):
    """How plans follow rates."""

    period: float = option(
        20.0, help="Time between two plans, in seconds.", least=2.0, most=1e5, metavar="SECONDS"
    )
    max_gpus: int | None = option(
        None, help="Use only the first N GPUs of the cluster; all by default.", least=1, metavar="N"
    )
    periods: int | None = option(
        None,
        help="Stop after this many periods; by default it runs until interrupted.",
        least=1,
        metavar="N",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerOptions(LoopOptions):
    """How plans follow clients' cuts."""

    looks: int | None = option(
        None,
        help="Stop after this many looks; by default it runs until interrupted.",
        least=1,
        metavar="N",
    )
