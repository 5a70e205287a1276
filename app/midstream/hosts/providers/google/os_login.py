"""OS Login: add a key to an account, whose profile has the user name on the machines.

API: https://cloud.google.com/compute/docs/oslogin/rest/v1/users/importSshPublicKey. ``MIDSTREAM_OSLOGIN_ENDPOINT``
names a simulated service on this machine.
"""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

from midstream.hosts.providers.google.api_errors import explained
from midstream.hosts.providers.google.tpu_client import CALL_TIMEOUT, loopback
from midstream.hosts.providers.provider import ErrorKind, ProviderError

ENDPOINT = "MIDSTREAM_OSLOGIN_ENDPOINT"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def import_key(account: str, public: str, project: str) -> str:
    """Add the key ``public`` to the account, and return the user name of its profile. Raises ProviderError."""
    query = urllib.parse.urlencode({"projectId": project})
    path = f"/v1/users/{urllib.parse.quote(account)}:importSshPublicKey?{query}"
    with explained(f"OS Login of {account}", project):
        status, answer = _post(path, {"key": public})
    if status != 200:
        message = answer.get("error", {}).get("message", "") or f"status {status}"
        raise ProviderError(
            f"OS Login of {account}: {message}",
            "roles/compute.osLogin on the project (roles/compute.osAdminLogin for sudo); os_login: names the account",
            ErrorKind.PERMISSION if status == 403 else ErrorKind.INVALID,
        )
    accounts = answer.get("loginProfile", {}).get("posixAccounts", [])
    chosen = next((each for each in accounts if each.get("primary")), accounts[0] if accounts else None)
    if chosen is None:
        raise ProviderError(
            f"OS Login of {account}: the profile has no POSIX account", "gcloud compute os-login describe-profile"
        )
    return str(chosen["username"])


def _post(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    address = loopback(ENDPOINT)
    if address:
        import requests

        answer = requests.post(f"http://{address}{path}", json=body, timeout=CALL_TIMEOUT)
    else:
        credentials, _ = google.auth.default(scopes=[SCOPE])
        with AuthorizedSession(credentials) as session:
            answer = session.post(f"https://oslogin.googleapis.com{path}", json=body, timeout=CALL_TIMEOUT)
    try:
        return answer.status_code, answer.json()
    except json.JSONDecodeError:
        return answer.status_code, {}
