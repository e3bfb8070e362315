"""How a peer over TCP proves that it belongs to the system.

1. The listener sends CHALLENGE: a nonce of its own for this connection.
2. The peer that connected answers PROOF: HMAC-SHA-256 over the nonce and the address it dialled,
under a key
   that is derived from the deployment's token. Until then the listener takes nothing else from it.

The token itself, which opens the repository API, never crosses the network, the key does not open
that API, and a proof is good for one connection to one address.

Not done: frames and tensors are neither encrypted nor signed, and the listener proves nothing.
Whatever can read or change packets between the hosts reads tensors and takes over connections that
are proven: give hosts a network of their own. Unix sockets need no proof: their folder is their
user's alone.
"""

import hmac
import secrets

from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    FrameError,
    Kind,
    check_body,
    frame,
    parse_header,
)

NONCE_BYTES = 32
PROOF_BYTES = 32
CHALLENGE_FRAME_BYTES = HEADER_BYTES + NONCE_BYTES


def transport_key(token: str) -> bytes:
    """The key of connections, from the deployment's token; the token does not follow from it."""
    return hmac.digest(token.encode(), b"transport", "sha256")


def _proof(key: bytes, nonce: bytes, address: str) -> bytes:
    return hmac.digest(key, nonce + address.encode(), "sha256")


class Challenge:
    """The listener's side of one connection, until it is proven."""

    def __init__(self, key: bytes, address: str) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.frame = frame(Kind.CHALLENGE, nonce)
        self._expected = _proof(key, nonce, address)

    def check(self, proof: bytes) -> None:
        """Compare, in constant time.

        Raises:
            FrameError: the proof is not that of the key.
        """
        if not hmac.compare_digest(proof, self._expected):
            raise FrameError("a wrong proof")


class Prover:
    """The side of the peer that connected to `address`."""

    def __init__(self, key: bytes, address: str) -> None:
        self._key = key
        self._address = address

    def answer(self, challenge: bytes) -> bytes:
        """PROOF, for a CHALLENGE of `CHALLENGE_FRAME_BYTES`.

        Raises:
            FrameError: it is none.
        """
        header, nonce = parse_header(challenge), challenge[HEADER_BYTES:]
        if header.kind is not Kind.CHALLENGE:
            raise FrameError(f"{header.kind.name}, not CHALLENGE")
        check_body(header, nonce)
        return frame(Kind.PROOF, _proof(self._key, nonce, self._address))
