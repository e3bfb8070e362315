"""What a model may be called: one name is a folder, a Triton model, and none of our own models."""

import hashlib
import re

from triton_backend.contract.errors import InputError

RESERVED_PREFIX = "poolpipe_"
_LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_name(name: str) -> None:
    """Refuse a name that cannot be a folder, a Triton model and none of ours at once.

    Raises:
        InputError: it has other characters than A-Z, a-z, 0-9 and _.- or begins like ours.
    """
    if not _LEGAL_NAME.fullmatch(name) or name.startswith(RESERVED_PREFIX):
        raise InputError(
            f"model name {name!r}",
            f"cannot be served: a name has A-Z a-z 0-9 _ . - and no {RESERVED_PREFIX!r} first",
        )


def short_name(name: str) -> str:
    """A name of any length and characters as ten hexadecimal digits."""
    return hashlib.sha256(name.encode()).hexdigest()[:10]
