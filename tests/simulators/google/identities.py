"""Google's token servers on loopback: tokens for service account keys, and for impersonation.

A token names its account: ``token-of-NAME``. Formats: RFC 7523 (a signed JWT for a token), and generateAccessToken of
the IAM Credentials API.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from support.loopback import Loopback, Quiet

AUDIENCE = "https://oauth2.googleapis.com/token"  # that google-auth signs for, wherever it asks


class Identities(Loopback):
    """The servers. ``given``: the issued tokens in order. ``may``: permitted impersonations, ``(who, account)``.

    ``failing``: how many of the next requests are answered with 503.
    """

    def __init__(self) -> None:
        super().__init__(_Handler, "identities")
        self.given: list[str] = []
        self.failing = 0
        self.may: set[tuple[str, str]] = set()
        self._keys: dict[str, bytes] = {}  # public keys by account

    def service_account(self, file: Path, account: str) -> Path:
        """Write a new key file of a service account."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._keys[account] = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        value = {
            "type": "service_account", "project_id": "lab", "private_key_id": "1", "private_key": private.decode(),
            "client_email": account, "client_id": "1", "token_uri": f"{self.url}/token",
        }  # fmt: skip
        file.write_text(json.dumps(value))
        return file

    def who(self, form: dict[str, str]) -> str:
        """Return the account that requests a token. ValueError without proof of it."""
        from google.auth import jwt

        claimed = jwt.decode(form["assertion"], verify=False)["iss"]
        jwt.decode(form["assertion"], certs=self._keys[claimed].decode(), audience=AUDIENCE)
        return str(claimed)


class _Handler(Quiet):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server_of.failing:
            self.server_of.failing -= 1
            return self.send_json(503, {"error": "unavailable"})
        try:
            answer = self._token(body) if self.path == "/token" else self._in_the_name_of()
            status = 200
        except (ValueError, KeyError) as error:
            status, answer = 403, {"error": "access_denied", "error_description": str(error)}
        return self.send_json(status, answer)

    def _token(self, body: bytes) -> dict[str, Any]:
        form = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        token = f"token-of-{self.server_of.who(form)}"
        self.server_of.given.append(token)
        return {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}

    def _in_the_name_of(self) -> dict[str, Any]:
        account = self.path.rpartition("/")[2].partition(":")[0]
        who = self.headers.get("Authorization", "").removeprefix("Bearer token-of-")
        if (who, account) not in self.server_of.may:
            raise ValueError(f"{who} may not act for {account}")
        token = f"token-of-{account}"
        self.server_of.given.append(token)
        return {"accessToken": token, "expireTime": "2099-01-01T00:00:00Z"}
