"""Errors of the user: one line that names the fault and its place."""


class ClientError(Exception):
    """Bad input, or a server that cannot be used."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
