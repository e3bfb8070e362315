"""Where a system's Triton listens, and its clients: one dataclass, from option to server.

Open to every client that reaches a port are inference, health and the metadata of models, which
clients and probes need. Everything else that Triton answers needs the token, unless it was opened.
gRPC speaks TLS when a certificate is given, and asks for the client's when an authority is; the
server has no HTTPS, so plain HTTP then stays on the loopback address. Metrics do so by default.
"""

import argparse
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import NO_ADDRESS, is_ipv4

NO_TRITON = (
    "no server is installed: install poolpipe[local] (Python 3.11 or 3.12), or serve from a "
    "container"
    " (`poolpipe render`)"
)
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104  # compared and bound only where a user says so
TOKEN_HEADER = "poolpipe-token"  # noqa: S105  # the header's name; gRPC puts a prefix before it
LAST_PORT = 65_535
OPENABLE = ("model-config", "statistics", "shared-memory")
RESTRICTED = ("model-repository", *OPENABLE, "trace", "logging")
ACCEPT_OLD_SERVER = "--accept-old-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files: the server's certificate and key, and the authority of its clients' certificates.

    Without `client_authority` any client is let in; with it only those that show a certificate
    that the authority signed.
    """

    certificate: Path
    key: Path
    client_authority: Path | None = None

    @classmethod
    def from_files(
        cls, certificate: Path | None, key: Path | None, client_authority: Path | None
    ) -> Self | None:
        """TLS from three options of a command line; None without a certificate.

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

    def check(self) -> None:
        """Refuse files that the server could not use.

        Raises:
            InputError: naming the option and the file.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where Triton listens and which clients it trusts.

    Attributes:
        http, grpc, metrics: ports.
        address: of gRPC, and of HTTP where gRPC has no TLS.
        metrics_address: of Prometheus' endpoint, which asks for no token.
        opened: of `OPENABLE`, what is answered without the token.
        accept_old_server: the wheel's Triton may listen beyond loopback.

    Raises:
        InputError: an address is none, a port is given twice, or something is opened that cannot
            be.
    """

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002
    address: str = LOOPBACK
    metrics_address: str = LOOPBACK
    tls: Tls | None = None
    opened: tuple[str, ...] = ()
    accept_old_server: bool = False

    def __post_init__(self) -> None:
        check_listening("--address", self.address)
        check_listening("--metrics-address", self.metrics_address)
        ports: dict[int, str] = {}
        for name in ("http", "grpc", "metrics"):
            port = getattr(self, name)
            if port in ports:
                raise InputError(f"--{name}-port {port}", f"is --{ports[port]}-port too")
            ports[port] = name
        for name in self.opened:
            if name not in OPENABLE:
                raise InputError(f"--open {name}", f"is none of {', '.join(OPENABLE)}")

    @property
    def http_address(self) -> str:
        """Where HTTP listens."""
        return self.address if self.tls is None else LOOPBACK

    @property
    def restricted(self) -> tuple[str, ...]:
        """Triton's protected interfaces, which ask for the token, by Triton's names."""
        return tuple(name for name in RESTRICTED if name not in self.opened)

    def metrics_port(self, gateway: int) -> int:
        """Where one of the gateways publishes its metrics: every one has a port of its own."""
        return self.metrics + gateway

    def check_can_listen(self, server_root: Path | None = None, gateways: int = 1) -> None:
        """Refuse what would fail, or be unsafe, only once the server is started.

        Args:
            server_root: the Triton of a container; None is that of the PyTriton wheel.
            gateways: servers that share the ports but for that of metrics.

        Raises:
            InputError: files are no certificates, an address is open on the old server, or
                another process listens on a port.
        """
        if self.tls is not None:
            self.tls.check()
        opened = (("--address", self.address), ("--metrics-address", self.metrics_address))
        for option, address in opened:
            if server_root is None and not self.accept_old_server and not is_loopback(address):
                raise InputError(
                    f"{option} {address}",
                    "the server inside the PyTriton wheel is Triton 2.51 of 2024, older than later"
                    " security fixes: serve from a container (`poolpipe render`), put a "
                    "proxy before"
                    f" 127.0.0.1, or say {ACCEPT_OLD_SERVER}",
                )
        listening = (
            ("http", self.http, self.http_address),
            ("grpc", self.grpc, self.address),
            *(
                ("metrics", self.metrics_port(number), self.metrics_address)
                for number in range(gateways)
            ),
        )
        ports = [port for _, port, _ in listening]
        for name, port, address in listening:
            if ports.count(port) > 1:
                raise InputError(
                    f"--metrics-port {self.metrics}",
                    f"metrics of the second gateway are at the port after it, and {port} is "
                    "another's",
                )
            if port > LAST_PORT:
                raise InputError(
                    f"--metrics-port {self.metrics}",
                    f"metrics of the second gateway are at the port after it, {LAST_PORT} is the "
                    "last",
                )
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, port))
                except OSError as error:
                    raise InputError(
                        f"--{name}-port {port}", f"cannot be listened on at {address}: {error}"
                    ) from error

    def cautions(self) -> list[str]:
        """Cautions for a server open to other machines, a sentence each."""
        found: list[str] = []
        exposed, tls = not is_loopback(self.address), self.tls
        if exposed and tls is None:
            found.append(
                f"inference is open at {self.address}, unencrypted and to every client that "
                "reaches it (--tls-cert, --tls-key, --tls-client-ca)"
            )
        if exposed and tls is not None and tls.client_authority is None:
            found.append(f"every client that reaches {self.address} may infer (--tls-client-ca)")
        if not is_loopback(self.metrics_address):
            at = self.metrics_address
            found.append(f"metrics are open at {at}, to every client that reaches it")
        if exposed and "shared-memory" in self.opened:
            found.append("clients may map any segment of this machine's /dev/shm (--open)")
        return found

    def arguments(self) -> list[str]:
        """As options of the server's process, which `from_options` reads."""
        given = [
            f"--address={self.address}",
            f"--metrics-address={self.metrics_address}",
            f"--http-port={self.http}",
            f"--grpc-port={self.grpc}",
            f"--metrics-port={self.metrics}",
            *(f"--open={name}" for name in self.opened),
        ]
        if self.tls is not None:
            given += [f"--tls-cert={self.tls.certificate}", f"--tls-key={self.tls.key}"]
            if self.tls.client_authority is not None:
                given.append(f"--tls-client-ca={self.tls.client_authority}")
        return [*given, ACCEPT_OLD_SERVER] if self.accept_old_server else given

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Options of a command line that `from_options` reads."""
        for name in ("http", "grpc", "metrics"):
            parser.add_argument(f"--{name}-port", type=int, default=getattr(cls(), name))
        parser.add_argument("--address", default=LOOPBACK)
        parser.add_argument("--metrics-address", default=LOOPBACK)
        parser.add_argument("--open", action="append", default=[])
        parser.add_argument("--tls-cert", type=Path)
        parser.add_argument("--tls-key", type=Path)
        parser.add_argument("--tls-client-ca", type=Path)
        parser.add_argument(ACCEPT_OLD_SERVER, action="store_true")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Self:
        """Inverse of `arguments`.

        Raises:
            InputError: as when built, or half a pair of TLS files.
        """
        return cls(
            http=options.http_port,
            grpc=options.grpc_port,
            metrics=options.metrics_port,
            address=options.address,
            metrics_address=options.metrics_address,
            tls=Tls.from_files(options.tls_cert, options.tls_key, options.tls_client_ca),
            opened=tuple(options.open),
            accept_old_server=options.accept_old_server,
        )

    def to_state(self) -> dict[str, Any]:
        """Endpoints in the state file, as this machine's programs reach them."""
        return {
            "address": reached_at(self.metrics_address),
            "http_address": reached_at(self.http_address),
            "grpc_address": reached_at(self.address),
            "tls": self.tls is not None,
            "mutual_tls": self.tls is not None and self.tls.client_authority is not None,
            "opened": list(self.opened),
            "ports": {"http": self.http, "grpc": self.grpc, "metrics": self.metrics},
        }


def check_listening(option: str, address: str) -> None:
    """Refuse an address that Triton could not listen on.

    Its HTTP server resolves no names and no IPv6 addresses: at `localhost` it claims to have
    started, and cannot be reached.

    Raises:
        InputError: it is no IPv4 address.
    """
    if not is_ipv4(address):
        raise InputError(option, f"{address!r} {NO_ADDRESS}")


def is_loopback(address: str) -> bool:
    """True if no other machine can reach an address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    # A socket of both families has IPv4's addresses as `::ffff:127.0.0.1`.
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def check_reached_at(gateway_host: str, hosts: Mapping[str, str]) -> None:
    """Refuse an address of this machine at which nodes on other hosts would not find it.

    Args:
        gateway_host: the address.
        hosts: address of each node's host by node name, of nodes on other hosts.

    Raises:
        InputError: it is no IPv4 address or name of one, it is another machine's, or it is
            loopback and a node is on a host that has another address.
    """
    where = f"--gateway-host {gateway_host}"
    try:
        found = socket.getaddrinfo(gateway_host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(where, f"is no IPv4 address and no name of one: {error}") from error
    address = str(found[0][4][0])
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise InputError(where, f"is no address of this machine: {error.strerror}") from error
    for node, host in hosts.items():
        if is_loopback(address) and _is_numeric(host) and not is_loopback(host):
            reason = f"{node} on {host} cannot reach it: give this machine's address there"
            raise InputError(where, reason)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def reached_at(address: str) -> str:
    """Where a program on the same machine connects to what listens on an address."""
    return LOOPBACK if address == EVERYWHERE else address
