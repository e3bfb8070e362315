"""gRPC over TLS and mutual TLS, with certificates made for the test."""

import ipaddress
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.fakes.kserve import grpc_sink
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serving.loadgen.client_grpc import GrpcClient, Tls
from triton_backend.serving.loadgen.drive import run_precisely

pytestmark = pytest.mark.slow

BEGIN, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].write_bytes(private)
    return paths


def inputs_over(server: grpc.ServerCredentials, tls: Tls | None) -> tuple[TensorSpec, ...]:
    """A model's inputs, asked over a connection of that kind."""

    async def ask() -> tuple[TensorSpec, ...]:
        async with grpc_sink(credentials=server) as address:
            client = GrpcClient(address, connect_s=1.0, tls=tls)
            try:
                await client.connect()
                return await client.describe("m")
            finally:
                await client.close()

    return run_precisely(ask())


def test_a_trusted_server_is_spoken_to_and_others_are_not(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "server")
    other, _ = make_pair(tmp_path, "other")
    server = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    assert inputs_over(server, Tls(authority=certificate))[0].name == "x"
    for tls in (Tls(authority=other), None):
        with pytest.raises(InputError, match="nothing answers gRPC"):
            inputs_over(server, tls)


def test_mutual_tls_needs_our_own_pair(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "server")
    own, own_key = make_pair(tmp_path, "client")
    server = grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())], own.read_bytes(), require_client_auth=True
    )
    tls = Tls(authority=certificate, certificate=own, key=own_key)
    assert inputs_over(server, tls)[0].name == "x"
    with pytest.raises(InputError):
        inputs_over(server, Tls(authority=certificate))


def test_missing_files_and_half_a_pair_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.pem: cannot be read"):
        Tls(authority=tmp_path / "none.pem").credentials()
    with pytest.raises(InputError, match="--cert and --key"):
        Tls(authority=tmp_path / "a", key=tmp_path / "b").credentials()
