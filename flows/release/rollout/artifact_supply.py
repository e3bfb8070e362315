"""Artifacts that other hosts lack for a plan: found before anything is changed, and sent.

The other end is `triton_backend/serving/node/artifact_upload.py`.
"""

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flows.release.server.running import ServerState
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import MANIFEST_NAME

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What one host lacks, and the node model there that can be told."""

    there: ServerState
    speaker: str
    artifacts: tuple[str, ...]


def artifacts_on(plan: Plan, nodes: Iterable[str]) -> list[str]:
    """Names of the artifacts that a plan's stages run on some of its nodes."""
    numbers = {plan.cluster.node_index(node) for node in nodes}
    found = {
        plan.models[v.model].pipelines[v.pipeline].stages[v.stage].artifact
        for v in plan.vgpus()
        if v.slot.node in numbers
    }
    return sorted(name for name in found if name is not None)


def find_lack(
    there: ServerState, speaker: str, wanted: list[str], root: Path | None
) -> Lack | None:
    """What a host lacks of what it needs; None where nothing.

    Args:
        there: the host's Triton.
        speaker: a node model that runs there.
        wanted: artifacts it needs.
        root: the artifacts of this host, from which they can be sent.

    Raises:
        InputError: an artifact is neither there nor here.
        ServerError: the host does not answer.
    """
    if not wanted:
        return None
    said = there.ask(speaker, {"command": "lacking", "artifacts": wanted})
    for name in said["artifacts"]:
        if said["root"] is None:
            raise InputError(f"host {there.http_url}", "was started without a folder of artifacts")
        if root is None or not (root / name / MANIFEST_NAME).is_file():
            raise InputError(
                f"host {there.http_url}",
                f"lacks artifact {name} in {said['root']}, and {root} here has none to send",
            )
    found = tuple(said["artifacts"])
    return Lack(there=there, speaker=speaker, artifacts=found) if found else None


def send(lack: Lack, root: Path) -> None:
    """Send what a host lacks.

    Raises:
        ServerError: it refuses, or does not answer.
    """
    for name in lack.artifacts:
        files = sorted(path for path in (root / name).iterdir() if path.is_file())
        for path in files:
            with path.open("rb") as file:
                offset = 0
                # An empty file is a piece too.
                while (piece := file.read(PIECE_BYTES)) or offset == 0:
                    data = base64.b64encode(piece).decode()
                    part = {"file": path.name, "offset": offset, "data": data}
                    lack.there.ask(lack.speaker, {"command": "take", "artifact": name, **part})
                    offset += max(len(piece), 1)
        digests = {path.name: _digest(path) for path in files}
        lack.there.ask(lack.speaker, {"command": "take", "artifact": name, "digests": digests})


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
