"""How parts of one GPU slow each other down: a linear model, and what a plan states of it.

    factor = c1 l2 + c3 dram + c5 + sum over the other parts of max(0, largest of c2 l2_j + c4 dram_j)
             `---- susceptibility ---'                            `------- pressure of a part --------'

(gpulets, section 4.4, equation of the interference factor; for two parts the same.) It is at least 1,
because a neighbour never makes anybody faster; a part that is alone on its GPU has factor 1. l2 and
dram are fractions of what the GPU can do, at the part's own share.

Here: the model, and its numbers in a plan. Not here: how it is fitted (`flows/preparation/interference`).
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields

CONSTANTS = ("c1_l2_self", "c2_l2_other", "c3_dram_self", "c4_dram_other", "c5")
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceModel:
    """The model of one GPU class.

    Attributes:
        residuals: relative errors (measured - predicted) / predicted at `QUANTILES` on rows that were not
            fitted; empty where they are not known.
    """

    c1_l2_self: float
    c2_l2_other: float
    c3_dram_self: float
    c4_dram_other: float
    c5: float
    residuals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in CONSTANTS:
            if not np.isfinite(getattr(self, name)):
                raise InputError(f"interference, {name}", f"{getattr(self, name)} is not a number")
        if self.residuals and len(self.residuals) != len(QUANTILES):
            reason = f"{len(self.residuals)} of them for {len(QUANTILES)} quantiles"
            raise InputError("interference, residuals", reason)

    def susceptibility(self, l2: ArrayLike, dram: ArrayLike) -> NDArray[np.float64]:
        """Factor of a stage of these utilisations where nobody presses."""
        own, memory = np.asarray(l2, dtype=np.float64), np.asarray(dram, dtype=np.float64)
        return self.c1_l2_self * own + self.c3_dram_self * memory + self.c5

    def pressure(self, l2: ArrayLike, dram: ArrayLike) -> NDArray[np.float64]:
        """What a stage of these utilisations adds to the factor of others on its GPU."""
        own, memory = np.asarray(l2, dtype=np.float64), np.asarray(dram, dtype=np.float64)
        return np.maximum(0.0, self.c2_l2_other * own + self.c4_dram_other * memory)

    def inflation(self, quantile: float) -> float:
        """1 + the residual at the least known quantile that is not below the one asked for.

        1 where residuals are not known, and where the model errs on the safe side.
        """
        if not self.residuals:
            return 1.0
        at = min(bisect_left(QUANTILES, quantile), len(QUANTILES) - 1)
        return 1.0 + max(0.0, self.residuals[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatInterference:
    """One stage on a vGPU: what it suffers, presses, and the factor its latencies contain."""

    susceptibility: float
    pressure: float
    factor: float

    def __post_init__(self) -> None:
        if not (self.pressure >= 0 and self.factor >= 1):
            reason = f"pressure {self.pressure} or factor {self.factor} is too small"
            raise InputError("interference, seats", reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInterference:
    """What the vGPUs of a pool press and feel.

    Attributes:
        pressure: on every other vGPU of the GPU: the largest of its stages.
        felt: sum of the pressures of the other vGPUs of the GPU.
        inflation: reserve for what the model does not see; a factor.
        seats: one per stage that names the pool, in the order of rows.
    """

    pressure: float
    felt: float
    inflation: float
    seats: tuple[SeatInterference, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `plan.json`."""
        return {
            "pressure": self.pressure,
            "felt": self.felt,
            "inflation": self.inflation,
            "seats": [
                {
                    "susceptibility": seat.susceptibility,
                    "pressure": seat.pressure,
                    "factor": seat.factor,
                }
                for seat in self.seats
            ],
        }

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """Inverse of `to_dict`."""
        return cls(
            pressure=fields.number("pressure", least=0),
            felt=fields.number("felt", least=0),
            inflation=fields.number("inflation", least=1),
            seats=tuple(
                SeatInterference(
                    susceptibility=seat.number("susceptibility"),
                    pressure=seat.number("pressure", least=0),
                    factor=seat.number("factor", least=1),
                )
                for seat in fields.items("seats")
            ),
        )
