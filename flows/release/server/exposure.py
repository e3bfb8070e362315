"""Who may reach a running system: TLS files for its gRPC endpoint, and what to be told of.

What the server does with them is `triton_backend/serving/server/access.py`, which also checks them; the
rules and how to try them are in the README's ACCESS section.
"""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from triton_backend.contract.errors import InputError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files: the server's certificate and key, and the authority of its clients' certificates.

    Without `client_authority` any client is let in; with it only those who show a certificate
    that the authority signed.
    """

    certificate: Path
    key: Path
    client_authority: Path | None = None

    @classmethod
    def from_files(
        cls, certificate: Path | None, key: Path | None, client_authority: Path | None
    ) -> Self | None:
        """What three options of a command line say together; None without a certificate.

        Raises:
            InputError: one of certificate and key without the other, or an authority alone.
        """
        if certificate is None or key is None:
            if (certificate, key) != (None, None):
                raise InputError("--tls-cert and --tls-key", "one needs the other")
            if client_authority is not None:
                raise InputError("--tls-client-ca", "needs --tls-cert and --tls-key")
            return None
        return cls(certificate=certificate, key=key, client_authority=client_authority)

    def arguments(self) -> list[str]:
        """Options of the server's process."""
        pair = [f"--tls-cert={self.certificate}", f"--tls-key={self.key}"]
        if self.client_authority is None:
            return pair
        return [*pair, f"--tls-client-ca={self.client_authority}"]


def is_loopback(address: str) -> bool:
    """Whether nobody on another machine can reach an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def cautions(address: str, metrics_address: str, tls: Tls | None) -> list[str]:
    """What whoever opens a server to other machines should know, a sentence each."""
    told: list[str] = []
    if tls is None and not is_loopback(address):
        told.append(
            f"inference is open at {address}, unencrypted and to everybody who reaches it"
            " (--tls-cert, --tls-key, --tls-client-ca)"
        )
    if tls is not None and tls.client_authority is None and not is_loopback(address):
        told.append(f"everybody who reaches {address} may infer (--tls-client-ca)")
    if not is_loopback(metrics_address):
        told.append(f"metrics are open at {metrics_address}, to everybody who reaches it")
    return told
