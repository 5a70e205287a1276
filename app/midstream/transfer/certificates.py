"""Certificates for one copy: each end gets one of its own, and the other's as the only one that it trusts."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

VALID = datetime.timedelta(days=2)  # a copy may take a day
SKEW = datetime.timedelta(days=1)  # hosts' clocks may be wrong


@dataclass(frozen=True)
class Certificate:
    """PEM texts. The key never appears in a ``repr``."""

    certificate: str
    key: str = field(repr=False)


def make_certificate(name: str) -> Certificate:
    """A new self-signed certificate with a new key (ECDSA over P-256)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"midstream copy, {name}")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())
