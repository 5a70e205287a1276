"""Public keys of ``operators:``, in OpenSSH's form."""

from __future__ import annotations

import base64
import re

from midstream_core import records

ALGORITHM = "ssh-ed25519"
RAW_BYTES = 32  # of a public key
_PUBLIC = re.compile(records.PUBLIC_KEY.pattern)


def check_public_key(text: str) -> str:
    """Return a public key without its comment.

    Raises ValueError where it is no Ed25519 key in OpenSSH's form.
    """
    key = " ".join(text.split()[:2])
    if not _PUBLIC.fullmatch(key) or len(raw_key(key)) != RAW_BYTES:
        raise ValueError(f"{text[:60]!r} is no Ed25519 key in OpenSSH's form")
    return key


def raw_key(public: str) -> bytes:
    """Return the 32 bytes of a public key. ValueError where it is none.

    An OpenSSH key is base64 of two length-prefixed strings (RFC 4253, section 6.6; RFC 8709).
    """
    blob = base64.b64decode(public.partition(" ")[2], validate=True)
    prefix = len(ALGORITHM).to_bytes(4, "big") + ALGORITHM.encode() + RAW_BYTES.to_bytes(4, "big")
    if not blob.startswith(prefix):
        raise ValueError(f"{public[:60]!r} is no Ed25519 key in OpenSSH's form")
    return blob[len(prefix) :]
