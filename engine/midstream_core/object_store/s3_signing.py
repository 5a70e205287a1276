"""Signatures of bodies whose SHA-256 is known.

botocore hashes every body again to sign it. Where ``x-amz-checksum-sha256`` names its hash, that hash is signed;
the service compares both with the bytes that arrive.
"""

from __future__ import annotations

import base64
import functools

from midstream_core.object_store.client_library import Client, Request, Signer, library

CHECKSUM = "x-amz-checksum-sha256"
SIGNER = "midstream-s3v4"  # name of the signer among those of botocore
OPERATIONS = ("PutObject", "UploadPart")  # the checksum is that of the request's body


def sign_known_hashes(client: Client) -> None:
    """Make a client of botocore sign the hash that a request's header names.

    No effect on other signers than SigV4's.
    """
    _add_signer()
    for operation in OPERATIONS:
        client.meta.events.register_first(f"choose-signer.s3.{operation}", _choose)


def _choose(signature_version: object, context: dict[str, object], **_: object) -> str | None:
    plain = signature_version in ("v4", "s3v4") and context.get("auth_type", "v4") == "v4"
    return SIGNER if plain else None


@functools.lru_cache(maxsize=None)
def _add_signer() -> None:
    auth = library("botocore.auth")

    class KnownHashAuth(auth.S3SigV4Auth):  # pyright: ignore[reportUntypedBaseClass]
        def payload(self, request: Request) -> str:
            checksum = request.headers.get(CHECKSUM)
            plain: Signer = super()
            return base64.b64decode(checksum).hex() if checksum else str(plain.payload(request))

    auth.AUTH_TYPE_MAPS[SIGNER] = KnownHashAuth
