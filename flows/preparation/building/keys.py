"""Artifacts are named by the hash of what they are built from, and appear whole or not at all."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from triton_backend.runtimes.base import MANIFEST_NAME

KEY_DIGITS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltArtifact:
    """An artifact on disk. `reused`: it was there already."""

    key: str
    folder: Path
    reused: bool


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def artifact_key(ingredients: Mapping[str, Any]) -> str:
    """Hash of everything an artifact depends on; the order of the ingredients does not matter."""
    text = json.dumps(ingredients, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def publish(root: Path, key: str, fill: Callable[[Path], None]) -> BuiltArtifact:
    """Make the folder `root/key` by `fill`, or find it there.

    `fill` writes into a folder of its own, which is renamed when complete: a reader, or a build
    interrupted half-way, never sees half an artifact. Of two builds at once the first one stays.
    """
    folder = root / key
    if (folder / MANIFEST_NAME).is_file():
        return BuiltArtifact(key=key, folder=folder, reused=True)
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root, prefix=f".{key}.", ignore_cleanup_errors=True) as scratch:
        unfinished = Path(scratch) / key
        unfinished.mkdir()
        try:
            fill(unfinished)
            unfinished.rename(folder)
        except OSError:
            if not (folder / MANIFEST_NAME).is_file():
                raise
            return BuiltArtifact(key=key, folder=folder, reused=True)
    return BuiltArtifact(key=key, folder=folder, reused=False)
