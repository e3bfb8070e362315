"""The files of the repository, as git knows them."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[Path]:
    """Files that git knows and that are there, so that build products do not count."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    return [Path(name) for name in listing.split("\0") if name and (ROOT / name).exists()]
