"""The tests that failed in pytest's last run, a line each; `scripts/test` runs them once more.

Ends with 1 where there are none, or more than the number given: then pytest itself broke, or the
code did.
"""

import json
import sys
from pathlib import Path

LAST_FAILED = Path(__file__).parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"


def few_failed(most: int, file: Path = LAST_FAILED) -> list[str]:
    """Node ids of the tests that failed, sorted; none where more than `most` did."""
    failed = sorted(json.loads(file.read_text())) if file.exists() else []
    return failed if len(failed) <= most else []


if __name__ == "__main__":
    names = few_failed(int(sys.argv[1]))
    if not names:
        sys.exit(1)
    sys.stdout.write("".join(f"{name}\n" for name in names))
