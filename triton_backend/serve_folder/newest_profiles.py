"""How the newest profiles compare with the plan in force: `newest_profiles.json`.

Written where the warehouse is (`poolpipe ingest`), read by the scheduler for its metrics, because
what serves never opens the warehouse. It holds for one plan; of another it says nothing.
"""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from triton_backend.serve_folder.files import write_whole

NAME = "newest_profiles.json"


def write_ratios(folder: Path, plan_id: str, ratios: Mapping[str, float]) -> None:
    """Note latencies of the newest profiles, over those in a plan, by pool.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(folder / NAME, json.dumps({"plan_id": plan_id, "ratios": dict(ratios)}))


def read_ratios(folder: Path, plan_id: str) -> dict[str, float]:
    """The same of this plan; none if nothing that can be read was noted of it."""
    try:
        noted = json.loads((folder / NAME).read_text())
        ratios = noted["ratios"] if noted["plan_id"] == plan_id else {}
        found = {str(pool): float(ratio) for pool, ratio in ratios.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}
    return {pool: ratio for pool, ratio in found.items() if isfinite(ratio)}
