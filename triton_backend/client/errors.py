"""What is the user's fault: one line that names what and where."""


class ClientError(Exception):
    """Bad input, or a server that cannot be used."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
