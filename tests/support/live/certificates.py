"""Certificates for tests, with an authority of their own each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from strobe.hosts.live.wire.tls import Tls

__all__ = ["certificates"]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def certificates(directory: Path, authority: str = "strobe test") -> Tls:
    """A new authority of that name, and a node's certificate that it has signed."""
    directory.mkdir(parents=True, exist_ok=True)
    own, node = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)

    def sign(subject: str, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(authority))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
            .sign(own, SHA256())
        )
        return made.public_bytes(Encoding.PEM)

    files = {
        "node.pem": sign("node", node, ca=False),
        "node.key": node.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "authority.pem": sign(authority, own, ca=True),
    }
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return Tls(*(str(directory / name) for name in files))
