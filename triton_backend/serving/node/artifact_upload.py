"""Artifacts that a host lacks, sent to it before a rollout by whoever rolls out.

A node is asked what is *lacking* here, and *takes* files piece by piece. They lie in an unfinished
folder until the last piece came and every file has the digest that was told; then the folder gets
its name, which is the artifact's identity. Nothing that is there is ever written to.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.serving.settings import ServeSettings

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def lacking(settings: ServeSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    """Which of `artifacts` are not here.

    Returns:
        `artifacts`: their names; `root`: the folder in which they were looked for, or None.
    """
    names = [_checked(name) for name in request.get("artifacts", ())]
    root = settings.artifacts
    missing = [n for n in names if root is None or not (root / n / MANIFEST_NAME).is_file()]
    return {"artifacts": missing, "root": None if root is None else str(root)}


def take(settings: ServeSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    """A piece of an artifact.

    Args:
        settings: of this host.
        request: `artifact`; `file`, `offset` (bytes) and `data` (base64) of a piece, or, when all
            pieces came, `digests`: SHA-256 by file.

    Raises:
        InputError: a name or piece is none, a digest is another, or it cannot be written.
    """
    root, name = settings.artifacts, _checked(request.get("artifact"))
    if root is None:
        raise InputError("take", "this host was started without a folder of artifacts")
    unfinished = root / f".{name}.taken"
    try:
        if "digests" in request:
            _finish(unfinished, root / name, dict(request["digests"]))
        else:
            _write(unfinished / _checked(request["file"]), request["offset"], request["data"])
    except OSError as error:
        raise InputError(str(root / name), f"cannot be written: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise InputError("take", f"not a piece of an artifact: {error!r}") from error
    return {"artifact": name}


def _checked(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"artifact {name!r}", "is no name of an artifact or its file")
    return name


def _write(path: Path, offset: int, data: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb" if offset == 0 else "r+b") as file:
        file.seek(offset)
        file.write(base64.b64decode(data, validate=True))


def _finish(unfinished: Path, folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        with (unfinished / _checked(name)).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise InputError(str(folder / name), "arrived damaged")
    unfinished.rename(folder)
