"""Certificates made for a test: an authority, and pairs that it signs."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BEGIN, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)
PEM = serialization.Encoding.PEM
ADDRESS = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass(frozen=True)
class Pair:
    """PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self.name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._write(name, self._key, ca=True).certificate

    def pair(self, name: str) -> Pair:
        return self._write(name, ec.generate_private_key(ec.SECP256R1()), ca=False)

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> Pair:
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(BEGIN)
            .not_valid_after(END)
            .add_extension(x509.SubjectAlternativeName([ADDRESS]), critical=False)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        made = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        made.certificate.write_bytes(certificate.public_bytes(PEM))
        made.key.write_bytes(
            key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return made
