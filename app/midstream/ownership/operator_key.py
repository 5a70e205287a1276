"""The operator's signing key, and the public keys that a fleet accepts."""

from __future__ import annotations

import base64
import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.fleet.operator_keys import raw_key
from midstream.state_directory import make_directory, state_directory
from midstream_core import records

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE = "operator_key"  # in the state directory: an Ed25519 key in OpenSSH's form, mode 0600


def key_file() -> Path:
    """Return the path of this operator's private key."""
    return state_directory() / FILE


def made_key_file() -> Path:
    """Return the path of the private key, after making it where there is none.

    Raises:
        MidstreamError: It cannot be written.
    """
    if not key_file().exists():
        _create()
    return key_file()


def public_key() -> str:
    """Return this operator's public key, in OpenSSH's form.

    Empty before the first signature.

    Raises:
        MidstreamError: The key cannot be read.
    """
    path = key_file()
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    return _public_key(str(path), status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=4)
def _public_key(path: str, changed: int, inode: int) -> str:  # noqa: ARG001  a changed file is read again
    return _public_text(_read())


def accepted_keys(fleet: Fleet) -> frozenset[str]:
    """Return the public keys of this operator and of ``operators:``."""
    own = public_key()
    return frozenset(filter(None, (own, *fleet.operators)))


def signed(record: records.OwnershipRecord) -> records.OwnershipRecord:
    """Return the record, signed with this operator's key.

    The key is made at the first signature.

    Raises:
        MidstreamError: The key cannot be read or written.
    """
    key = _read() if key_file().exists() else _create()
    unsigned = replace(record, operator=_public_text(key), signature="")
    return replace(unsigned, signature=base64.b64encode(key.sign(unsigned.signed_bytes())).decode())


def is_signed(record: records.OwnershipRecord) -> bool:
    """Return whether the signature is that of the record's operator."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        raw = raw_key(record.operator)
        Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(record.signature), record.signed_bytes())
    except (InvalidSignature, ValueError):
        return False
    return True


def _public_text(key: Ed25519PrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _read() -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    path = key_file()
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise MidstreamError(f"the operator's key {path} cannot be read: {error}", "restore it from a backup") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise MidstreamError(f"the operator's key {path} is no Ed25519 key", "restore it from a backup")
    return key


def _create() -> Ed25519PrivateKey:
    """Make the key.

    Of two processes that make one at the same time, both use the first.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = key_file()
    text = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    temporary = path.with_name(f"{FILE}.{os.getpid()}.new")
    try:
        make_directory(path.parent)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
    except OSError as error:
        raise MidstreamError(f"the operator's key {path} cannot be written: {error}") from error
    return _read()
