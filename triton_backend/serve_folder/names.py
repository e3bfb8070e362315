"""Names of models: as the contract has them, and none of our own models'."""

import hashlib

from triton_backend.contract import fields
from triton_backend.contract.errors import InputError

PRIORITY_PARAMETER = "poolpipe-priority"
"""Of a request, or a header: Triton shows `priority` to no model that is written in Python."""
CLIENT_PARAMETER = "poolpipe-client"
"""The same: the name under which a request's client has quotas."""
VARIANT_OUTPUT = "poolpipe-variant"
"""Of an answer: the variant that gave it, for every sample."""
RESERVED_PREFIX = "poolpipe_"


def check_name(name: str) -> None:
    """Refuse a name that cannot be a folder, a Triton model and none of ours at once.

    Raises:
        InputError: it is no name (`contract.fields.check_name`), or begins like ours.
    """
    fields.check_name("model name", name)
    if name.startswith(RESERVED_PREFIX):
        raise InputError(f"model name {name!r}", f"cannot be served: {RESERVED_PREFIX!r} is first")


def short_name(name: str) -> str:
    """A name of any length and characters as ten hexadecimal digits."""
    return hashlib.sha256(name.encode()).hexdigest()[:10]
