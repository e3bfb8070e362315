"""Artifacts that a host takes in: whole, as they were told, and nowhere else."""

import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.node.remote_files import missing_artifacts, put_artifact


@pytest.fixture
def settings(tmp_path: Path) -> ServeSettings:
    folder = tmp_path / "serve"
    return ServeSettings(
        system="s",
        instance="i",
        folder=folder,
        socket_folder=folder,
        token="t",  # of no server
        python="python",
        artifacts=tmp_path / "artifacts",
    )


def piece(name: str, data: bytes, offset: int = 0) -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    return {"artifact": "abc", "file": name, "offset": offset, "data": text}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_an_artifact_is_there_when_its_last_piece_was_right(settings: ServeSettings) -> None:
    asked = {"artifacts": ["abc"]}
    missing = {"artifacts": ["abc"], "root": str(settings.artifacts)}
    put_artifact(settings, piece(MANIFEST_NAME, b"{}"))
    put_artifact(settings, piece("model", b"first "))
    put_artifact(settings, piece("model", b"second", offset=6))
    assert missing_artifacts(settings, asked) == missing
    digests = {MANIFEST_NAME: digest(b"{}"), "model": digest(b"first second")}
    put_artifact(settings, {"artifact": "abc", "digests": digests})
    assert missing_artifacts(settings, asked) == missing | {"artifacts": []}
    assert settings.artifacts is not None
    assert (settings.artifacts / "abc" / "model").read_bytes() == b"first second"
    assert [path.name for path in settings.artifacts.iterdir()] == ["abc"]


def test_what_arrives_damaged_never_gets_its_name(settings: ServeSettings) -> None:
    put_artifact(settings, piece(MANIFEST_NAME, b"{}"))
    with pytest.raises(InputError, match="arrived damaged"):
        put_artifact(settings, {"artifact": "abc", "digests": {MANIFEST_NAME: digest(b"{ }")}})
    assert missing_artifacts(settings, {"artifacts": ["abc"]})["artifacts"] == ["abc"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (piece("../model", b""), "no name of an artifact or its file"),
        (piece("model", b"") | {"artifact": "../../etc"}, "no name of an artifact"),
        (piece("model", b"") | {"artifact": ".hidden"}, "no name of an artifact"),
        (piece("model", b"") | {"data": "?"}, "not a piece of an artifact"),
        ({"artifact": "abc"}, "not a piece of an artifact"),
        (piece("model", b"x", offset=6), "cannot be written"),
        ({"artifact": "abc", "digests": {"model": ""}}, "cannot be written"),
    ],
)
def test_what_is_no_piece_is_refused(
    settings: ServeSettings, request_: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        put_artifact(settings, request_)


def test_a_host_without_artifacts_says_so(settings: ServeSettings) -> None:
    bare = replace(settings, artifacts=None)
    assert missing_artifacts(bare, {"artifacts": ["abc"]}) == {"artifacts": ["abc"], "root": None}
    with pytest.raises(InputError, match="without a folder of artifacts"):
        put_artifact(bare, piece("model", b""))
