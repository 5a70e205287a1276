"""OS Login: addition of a key to an account.

The account's profile has the user name on the machines.

API: https://cloud.google.com/compute/docs/oslogin/rest/v1/users/importSshPublicKey. ``MIDSTREAM_OSLOGIN_ENDPOINT``
names a simulated service on this machine.
"""

from __future__ import annotations

import urllib.parse

from midstream.providers.google_errors import explained
from midstream.providers.google_rest import send
from midstream.providers.provider import ErrorKind, ProviderError

ENDPOINT = "MIDSTREAM_OSLOGIN_ENDPOINT"


def import_key(account: str, public: str, project: str) -> str:
    """Add the key ``public`` to the account, and return its profile's user name.

    Raises:
        ProviderError: The key could not be added.
    """
    query = urllib.parse.urlencode({"projectId": project})
    path = f"/v1/users/{urllib.parse.quote(account)}:importSshPublicKey?{query}"
    with explained(f"OS Login of {account}", project):
        status, answer = send(ENDPOINT, "oslogin.googleapis.com", path, {"key": public})
    if status != 200:
        message = answer.get("error", {}).get("message", "") or f"status {status}"
        raise ProviderError(
            f"OS Login of {account}: {message}",
            "roles/compute.osLogin on the project (roles/compute.osAdminLogin for sudo); os_login: names the account",
            ErrorKind.PERMISSION if status == 403 else ErrorKind.INVALID,
        )
    accounts = answer.get("loginProfile", {}).get("posixAccounts", [])
    chosen = next((candidate for candidate in accounts if candidate.get("primary")), accounts[0] if accounts else None)
    if chosen is None:
        raise ProviderError(
            f"OS Login of {account}: the profile has no POSIX account", "gcloud compute os-login describe-profile"
        )
    return str(chosen["username"])
