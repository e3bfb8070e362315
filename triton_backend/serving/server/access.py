"""Who may reach the server, and with what: addresses, certificates, the token of what is restricted.

Open to everybody who reaches the port are inference, health and the metadata of models, which
clients and probes need. Everything else that Triton answers needs the token. gRPC speaks TLS when
a certificate is given, and asks for the client's when an authority is; the server has no HTTPS, so
plain HTTP then stays on the loopback address. Metrics do so unless told otherwise.
"""

import argparse
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from triton_backend.contract.errors import InputError

TOKEN_HEADER = "poolpipe-token"  # noqa: S105  # the header's name; gRPC puts a prefix before it
GRPC_PREFIX = "triton-grpc-protocol-"
RESTRICTED = (
    "model-repository",
    "model-config",
    "statistics",
    "shared-memory",
    "trace",
    "logging",
)
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104  # compared and bound only where a user says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the server listens and whom it trusts.

    Attributes:
        address: of gRPC, and of HTTP where gRPC has no TLS.
        metrics_address: of Prometheus' endpoint, which asks nobody for a token.
        certificate, key: PEM files of the server; both or neither.
        client_authority: PEM file of the authority that clients' certificates must be signed by.
    """

    address: str = LOOPBACK
    metrics_address: str = LOOPBACK
    certificate: Path | None = None
    key: Path | None = None
    client_authority: Path | None = None

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Options of a command line that `from_options` reads."""
        parser.add_argument("--address", default=LOOPBACK)
        parser.add_argument("--metrics-address", default=LOOPBACK)
        parser.add_argument("--tls-cert", type=Path)
        parser.add_argument("--tls-key", type=Path)
        parser.add_argument("--tls-client-ca", type=Path)

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Self:
        """Checked access.

        Raises:
            InputError: half a pair, files that are no certificate and key, or an authority alone.
        """
        made = cls(
            address=options.address,
            metrics_address=options.metrics_address,
            certificate=options.tls_cert,
            key=options.tls_key,
            client_authority=options.tls_client_ca,
        )
        made.check()
        return made

    @property
    def http_address(self) -> str:
        """Where HTTP listens."""
        return self.address if self.certificate is None else LOOPBACK

    def check(self) -> None:
        """Refuse certificates that the server could not use.

        Raises:
            InputError: naming the option and the file.
        """
        if (self.certificate is None) != (self.key is None):
            raise InputError("--tls-cert and --tls-key", "one needs the other")
        if self.certificate is None and self.client_authority is not None:
            raise InputError("--tls-client-ca", "needs --tls-cert and --tls-key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.certificate is not None and self.key is not None:
            try:
                # A password, or a key that has one would be asked for on the terminal.
                context.load_cert_chain(self.certificate, self.key, password="")
            except (OSError, ValueError) as error:
                raise InputError(
                    f"--tls-cert {self.certificate}, --tls-key {self.key}",
                    f"not a certificate and its key: {error}",
                ) from error
        if self.client_authority is not None:
            try:
                context.load_verify_locations(self.client_authority)
            except OSError as error:
                raise InputError(
                    f"--tls-client-ca {self.client_authority}", f"not a certificate: {error}"
                ) from error

    def flags(self, token: str) -> list[str]:
        """The part of `tritonserver`'s command line that is about access."""
        restricted = f"{','.join(RESTRICTED)}:{TOKEN_HEADER}={token}"
        flags = [
            f"--http-address={self.http_address}",
            f"--grpc-address={self.address}",
            f"--metrics-address={self.metrics_address}",
            f"--http-restricted-api={restricted}",
            f"--grpc-restricted-protocol={restricted}",
        ]
        if self.certificate is not None and self.key is not None:
            flags += [
                "--grpc-use-ssl=true",
                f"--grpc-server-cert={self.certificate.resolve()}",
                f"--grpc-server-key={self.key.resolve()}",
            ]
        if self.client_authority is not None:
            flags += [
                "--grpc-use-ssl-mutual=true",
                f"--grpc-root-cert={self.client_authority.resolve()}",
            ]
        return flags

    def to_state(self) -> dict[str, object]:
        """What the state file says: where this machine's programs find each endpoint."""
        return {
            "address": reached_at(self.metrics_address),
            "http_address": reached_at(self.http_address),
            "grpc_address": reached_at(self.address),
            "tls": self.certificate is not None,
            "mutual_tls": self.client_authority is not None,
        }


def reached_at(address: str) -> str:
    """Where a program on the same machine connects to what listens on an address."""
    return LOOPBACK if address == EVERYWHERE else address
