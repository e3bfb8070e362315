"""Whether a quickstart did what was planned, and whether the machine let it.

Here: words about the object that `quickstart --json` prints. Not here: exit codes.
"""

from collections.abc import Mapping
from typing import Any

# A client that itself sends so much later than it should, in parts of the shortest SLO, was starved.
STARVED = 0.1


def shortcomings(found: Mapping[str, Any], attainment_target: float) -> list[str]:
    """What is not good enough: wrong answers, unanswered models, models under the target."""
    wrong = [
        f"{name} gave {row['checked']['wrong']} wrong answers of {row['checked']['responses']}{way}"
        for rows, way in ((found["models"], ""), (found["http"], " over HTTP"))
        for name, row in rows.items()
        if row.get("checked", {}).get("wrong")
    ]
    missed = [
        f"{name} attains {row['attainment']:.2%} of {row['offered']} requests,"
        f" under the target of {attainment_target:.2%}"
        for name, row in found["models"].items()
        if row["offered"] and row["attainment"] < attainment_target
    ]
    return wrong + missed


def overloaded(found: Mapping[str, Any]) -> str | None:
    """Why the figures say more of this machine than of the plan, if they do."""
    lag_ms = found["send_lag_ms"]["p99"]
    shortest_ms = min(row["slo_ms"] for row in found["models"].values())
    if lag_ms is None or lag_ms <= STARVED * shortest_ms:
        return None
    return (
        f"the machine was overloaded: the load itself was sent up to {lag_ms:.0f} ms late (p99),"
        f" of {shortest_ms:.0f} ms in which to answer"
    )
