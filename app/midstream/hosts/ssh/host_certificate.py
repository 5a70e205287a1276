"""OpenSSH host certificates: host keys signed by an authority of known_hosts.

The authority's line has ``@cert-authority``.

Format: PROTOCOL.certkeys of OpenSSH. paramiko negotiates a certificate and checks that the host has its key. This
module checks the certificate itself.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import paramiko
from paramiko.message import Message
from paramiko.pkey import UnknownKeyType

SUFFIX = "-cert-v01@openssh.com"
HOST = 2  # the type of a certificate for hosts; 1 is for users
_FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2, "ecdsa-sha2-nistp256": 2, "ecdsa-sha2-nistp384": 2, "ecdsa-sha2-nistp521": 2}


@dataclass(frozen=True)
class HostCertificate:
    """Contents of a certificate.

    Times are UTC seconds; ``authority`` is the signer's public key.
    """

    type: int
    key_id: str
    principals: tuple[str, ...]
    after: int
    before: int
    critical: bytes
    authority: bytes
    signed: bytes  # the signed bytes
    signature: bytes

    def flaw(self, names: Sequence[str], now: float | None = None) -> str:
        """Return why the certificate is invalid for a host of these names; else empty.

        The names have no ports. The caller has checked that the authority is trusted.
        """
        when = time.time() if now is None else now
        if self.type != HOST:
            return "it is not a host certificate"
        if not any(_matches(name, principal) for name in names for principal in self.principals):
            return f"it is for {', '.join(self.principals) or 'nobody'}, not for {names[0]}"
        if when < self.after:
            return f"it is valid from {_date(self.after)} on"
        if when >= self.before:
            return f"it was valid until {_date(self.before)}"
        if self.critical:
            return "it has critical options, which host certificates do not support"
        algorithm = Message(self.signature).get_text()
        if algorithm == "ssh-rsa":
            return "its signature is made with SHA-1"
        try:
            kind = Message(self.authority).get_text()
            key = paramiko.PKey.from_type_string(kind, self.authority)
            good = key.verify_ssh_sig(self.signed, Message(self.signature))
        except (paramiko.SSHException, UnknownKeyType, ValueError, KeyError) as error:
            return f"its signature cannot be checked ({error or type(error).__name__})"
        return "" if good else "its signature is not the authority's"


def certificate_of(key: paramiko.PKey) -> HostCertificate | None:
    """Return the certificate that the host sent with its key; None for a plain key.

    Raises:
        ValueError: The certificate is malformed.
    """
    blob = key.public_blob.key_blob if key.public_blob is not None else b""
    if not blob:
        return None
    message = Message(blob)
    kind = message.get_text()
    message.get_binary()  # a nonce
    for _ in range(_fields(kind)):
        message.get_binary()
    message.get_int64()  # a serial number
    kind_of_certificate, key_id = message.get_int(), message.get_text()
    principals = tuple(string.decode("utf-8", "replace") for string in _strings(message.get_binary()))
    after, before = message.get_int64(), message.get_int64()
    critical = message.get_binary()
    message.get_binary()  # extensions: none concerns a host
    message.get_binary()  # reserved
    authority = message.get_binary()
    signed = blob[: len(blob) - len(message.get_remainder())]
    signature = message.get_binary()
    return HostCertificate(
        kind_of_certificate, key_id, principals, after, before, critical, authority, signed, signature
    )


def _fields(kind: str) -> int:
    """Return the number of fields of the public key in a certificate."""
    try:
        return _FIELDS[kind.removesuffix(SUFFIX)]
    except KeyError:
        raise ValueError(f"certificates of kind {kind!r} are not supported") from None


def _strings(data: bytes) -> Iterator[bytes]:
    message = Message(data)
    while message.get_remainder():
        yield message.get_binary()


def _matches(name: str, pattern: str) -> bool:
    """Match with ``*`` and ``?`` alone, as in known_hosts."""
    return re.match(fnmatch.translate(pattern.lower().replace("[", "[[]")), name.lower()) is not None


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(seconds, 1 << 35)))
