"""The tests that failed in pytest's last run, a line each; `scripts/test` runs them once more.

    python -m tests.failed MOST CACHE

Ends with 1 where there are none, or more than the number given: then pytest itself broke, or the
code did.
"""

import json
import sys
from pathlib import Path

LAST_FAILED = Path("v", "cache", "lastfailed")


def few_failed(most: int, cache: Path) -> list[str]:
    """Node ids of the tests that failed, sorted; none where more than `most` did.

    Args:
        cache: pytest's folder of that run.
    """
    file = cache / LAST_FAILED
    failed = sorted(json.loads(file.read_text())) if file.exists() else []
    return failed if len(failed) <= most else []


if __name__ == "__main__":
    names = few_failed(int(sys.argv[1]), Path(sys.argv[2]))
    if not names:
        sys.exit(1)
    sys.stdout.write("".join(f"{name}\n" for name in names))
