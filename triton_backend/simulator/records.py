"""A run's requests as columns, for tools that read tables."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.reasons import DropReason
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.world import DROPPED, LATE, SERVED

OPTIONAL = ("dispatch_us", "batch_id", "batch_samples")  # -1 where a request was in no batch
_OUTCOMES = {SERVED: "served", LATE: "late", DROPPED: "dropped"}


def request_columns(result: SimResult) -> dict[str, NDArray[Any]]:
    """One row per request, by arrival.

    Returns:
        `request` (its number), `model`, `samples`, `arrival_us`, `deadline_us`, `dispatch_us`,
        `finish_us` (of the answer, or of the drop), `batch_id`, `batch_samples`, `outcome` (served,
        late, dropped) and `reason` (of a drop, else empty). Instants count from the run's start.
    """
    rows = result.requests
    names = np.asarray([model.name for model in result.plan.models], dtype=object)
    outcomes = np.asarray(["", *(_OUTCOMES[k] for k in sorted(_OUTCOMES))], dtype=object)
    reasons = np.asarray([reason.text for reason in DropReason], dtype=object)
    dropped = rows["outcome"] == DROPPED
    columns: dict[str, NDArray[Any]] = {
        "request": np.arange(len(rows)),
        "model": names[rows["model"]],
        "samples": rows["samples"],
        "arrival_us": rows["arrival_us"],
        "deadline_us": rows["deadline_us"],
        "dispatch_us": rows["dispatch_us"],
        "finish_us": rows["finish_us"],
        "batch_id": rows["batch_id"],
        "batch_samples": np.where(dropped, -1, rows["batch_samples"]),
        "outcome": outcomes[rows["outcome"]],
        "reason": np.where(dropped, reasons[rows["reason"]], ""),
    }
    return {name: np.ascontiguousarray(column) for name, column in columns.items()}
