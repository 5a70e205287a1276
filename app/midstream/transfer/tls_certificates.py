"""TLS certificates of one copy: each end has one and trusts only the other's."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from midstream.hosts.host import Host
from midstream_core.json_types import JsonValue

LIFETIME = datetime.timedelta(days=2)  # a copy may take a day
CLOCK_SKEW = datetime.timedelta(days=1)  # hosts' clocks may be wrong


@dataclass(frozen=True)
class TlsCertificate:
    """A certificate and its key in PEM. The key is not part of ``repr``."""

    certificate: str
    key: str = field(repr=False)


def make_certificate(name: str) -> TlsCertificate:
    """Create a self-signed certificate with a new key (ECDSA over P-256)."""
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
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return TlsCertificate(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())


@dataclass(frozen=True)
class TlsPeers:
    """Both ends of direct connections, with certificates that no other copy has."""

    listens: TlsCertificate
    dials: TlsCertificate

    def listener(self, ports: tuple[int, int] | None, *, ssh_address: bool = False) -> dict[str, JsonValue]:
        """Return the listening program's ``peer`` argument.

        ``ports``: first and last that it may use. ``ssh_address``: it listens only at the address of its SSH server.
        """
        return {
            "role": "listen",
            "certificate": self.listens.certificate,
            "key": self.listens.key,
            "trusted": self.dials.certificate,
            "ports": list(ports) if ports else None,
            "ssh_address": ssh_address,
        }

    def dialer(self, addresses: list[str], port: int) -> dict[str, JsonValue]:
        """Return the dialing program's ``peer`` argument."""
        return {
            "role": "dial",
            "certificate": self.dials.certificate,
            "key": self.dials.key,
            "trusted": self.listens.certificate,
            "addresses": addresses,
            "port": port,
        }


def make_peers(listens: Host, dials: Host) -> TlsPeers:
    """Create the certificates for one copy between two hosts."""
    return TlsPeers(make_certificate(listens.name), make_certificate(dials.name))
