"""A connection to one of the servers that share a port.

The kernel gives each new connection to one of the servers that listen on a port (SO_REUSEPORT),
whichever it likes. So a caller that wants one of them connects, asks which it is (`GET /v2` gives
the server's `--id`, which is open to everybody), and connects again until it is that one; what is
asked then goes over the same connection.
"""

import http.client
import json

TRIES = 48  # all to the other of two servers that both answer: once in 10^14
SILENT_TRIES = 3
SILENT_SECONDS = 1.0


def connect_to(
    address: str, port: int, server_id: str, timeout_s: float
) -> http.client.HTTPConnection:
    """A connection to the server that calls itself so.

    Args:
        address: that the servers share.
        port: of HTTP, likewise.
        server_id: as given to it with `--id`.
        timeout_s: of what will be asked.

    Raises:
        OSError: it is not there, or does not answer.
    """
    silent = 0
    for _ in range(TRIES):
        connection = http.client.HTTPConnection(
            address, port, timeout=min(timeout_s, SILENT_SECONDS)
        )
        try:
            connection.request("GET", "/v2")
            found = json.loads(connection.getresponse().read())["name"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            silent += 1  # it hangs, or has just died
        else:
            if found == server_id and connection.sock is not None:
                connection.sock.settimeout(timeout_s)
                return connection
        connection.close()
        if silent >= SILENT_TRIES:
            break
    raise ConnectionError(f"{server_id} does not answer at {address}:{port}")
