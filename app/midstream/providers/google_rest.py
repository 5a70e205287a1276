"""JSON requests to Google's APIs, for what their libraries do not have."""

from __future__ import annotations

import ipaddress
import json
import os

from midstream.errors import UsageError
from midstream.providers.service_types import Message
from midstream_core.json_types import JsonValue

CALL_TIMEOUT = 30.0  # seconds


def loopback(variable: str) -> str:
    """Return ``HOST:PORT`` of an environment variable, empty if it is unset.

    Raises:
        UsageError: It is not loopback.
    """
    address = os.environ.get(variable, "")
    host = address.rpartition(":")[0].strip("[]")
    try:
        good = not address or host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"{variable} is {address!r}", "it names a test server on this machine: 127.0.0.1:PORT")
    return address


SCOPE = "https://www.googleapis.com/auth/cloud-platform"
MAX_ANSWER = 1 << 20  # bytes


def send(variable: str, host: str, path: str, body: dict[str, JsonValue]) -> tuple[int, dict[str, Message]]:
    """Send a JSON body, and return the status and the JSON answer.

    Args:
        variable: Environment variable that names a simulated service on this machine.
        host: Name of the service.
        path: Path and query.
        body: JSON values.

    Raises:
        ServiceUnavailable: There was no answer.
        GoogleAuthError: There are no credentials, or they are not accepted.
    """
    import google.auth
    import requests
    from google.api_core.exceptions import ServiceUnavailable
    from google.auth.transport.requests import AuthorizedSession

    address = loopback(variable)
    try:
        if address:
            answer = requests.post(f"http://{address}{path}", json=body, timeout=CALL_TIMEOUT)
        else:
            credentials, _ = google.auth.default(scopes=[SCOPE])
            with AuthorizedSession(credentials) as session:
                answer = session.post(f"https://{host}{path}", json=body, timeout=CALL_TIMEOUT)
    except requests.RequestException as error:
        raise ServiceUnavailable(f"{type(error).__name__}: {host} does not answer") from error
    try:
        value = answer.json() if len(answer.content) <= MAX_ANSWER else {}
    except json.JSONDecodeError:
        value = {}
    return answer.status_code, value if isinstance(value, dict) else {}


def post(variable: str, host: str, path: str, body: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Send a JSON body, and return the answer.

    Arguments and errors as of `send`, and GoogleAPICallError.
    """
    from google.api_core.exceptions import from_http_status

    status, answer = send(variable, host, path, body)
    if status != 200:
        error = answer.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        raise from_http_status(status, str(message or f"status {status}"))
    return answer
