"""Metadata services of AWS (IMDSv2) and Azure as midstream uses them: notices that a machine ends, and roles."""

from __future__ import annotations

import json
import secrets
from typing import Any

from support.loopback import Loopback, Quiet

ROLES = "/latest/meta-data/iam/security-credentials/"


def role_credentials(key: str, token: str) -> dict[str, str]:
    """Credentials of a role, as both services of AWS return them; they last for years."""
    return {
        "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z", "AccessKeyId": key,
        "SecretAccessKey": "secret", "Token": token, "Expiration": "2099-01-01T00:00:00Z",
    }  # fmt: skip


class AwsMetadata(Loopback):
    """IMDSv2: a token first, which PUT alone returns; and the credentials of a container's role.

    Attributes:
        failing: How many of the next requests for the role's credentials are answered with 500.
        action: The answer of ``spot/instance-action``; None: 404.
        role: Credentials of the machine's role; None: it has none.
        container: Credentials of the container's role, for requests with ``authorization``.
    """

    authorization = "container-secret"

    def __init__(self) -> None:
        super().__init__(_Aws, "aws-metadata")
        self.role: dict[str, str] | None = None
        self.container: dict[str, str] | None = None
        self.action: dict[str, str] | str | None = None
        self.failing = 0
        self.tokens: set[str] = set()
        self.requested: list[str] = []


class AzureMetadata(Loopback):
    """``events``: the scheduled events; ``name``: this machine's. ``failing``: status instead of an answer."""

    def __init__(self, name: str = "vm_3") -> None:
        super().__init__(_Azure, "azure-metadata")
        self.name, self.events, self.failing = name, [], 0
        self.requested: list[str] = []

    events: list[dict[str, Any]]

    def event(self, kind: str, *machines: str, when: str = "Wed, 25 Nov 2026 18:29:47 GMT") -> None:
        self.events.append(
            {"EventId": secrets.token_hex(4), "EventType": kind, "ResourceType": "VirtualMachine",
             "EventStatus": "Scheduled", "Resources": list(machines), "NotBefore": when}
        )  # fmt: skip


class _Answers(Quiet):
    def answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Aws(_Answers):
    def do_PUT(self) -> None:
        server: AwsMetadata = self.server_of
        if self.path != "/latest/api/token" or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
            return self.answer(400, "")
        server.tokens.add(token := secrets.token_hex(8))
        return self.answer(200, token)

    def do_GET(self) -> None:
        server: AwsMetadata = self.server_of
        server.requested.append(self.path)
        if self.path == "/container" and server.container is not None:
            permitted = self.headers.get("Authorization") == server.authorization
            return self.answer(200, json.dumps(server.container)) if permitted else self.answer(401, "{}")
        if self.headers.get("X-aws-ec2-metadata-token") not in server.tokens:
            return self.answer(401, "")  # IMDSv1 is switched off
        if self.path.startswith(ROLES) and server.failing:
            server.failing -= 1
            return self.answer(500, "")
        if self.path.startswith(ROLES) and server.role is not None:
            return self.answer(200, json.dumps(server.role) if self.path != ROLES else "trainer")
        if self.path != "/latest/meta-data/spot/instance-action" or server.action is None:
            return self.answer(404, "")
        return self.answer(200, server.action if isinstance(server.action, str) else json.dumps(server.action))


class _Azure(_Answers):
    def do_GET(self) -> None:
        server: AzureMetadata = self.server_of
        server.requested.append(self.path)
        if self.headers.get("Metadata") != "true" or server.failing:
            return self.answer(server.failing or 400, "{}")
        if self.path.startswith("/metadata/scheduledevents?api-version="):
            return self.answer(200, json.dumps({"DocumentIncarnation": 1, "Events": server.events}))
        if self.path.startswith("/metadata/instance/compute?api-version="):
            return self.answer(200, json.dumps({"name": server.name, "location": "westeurope"}))
        return self.answer(404, "{}")
