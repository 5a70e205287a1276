"""The Google account that programs on this machine use.

Runs on the host; standard library only.

The search order is that of google-auth and TensorStore: the file that ``GOOGLE_APPLICATION_CREDENTIALS`` names, the
file of gcloud, the machine's service account as its metadata server reports it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Dict, Optional

from midstream_core.json_types import JsonValue
from midstream_host.declarations import reads
from midstream_host.machine import preemption_notices
from midstream_host.shapes import FileName

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
GCLOUD = "~/.config/gcloud/application_default_credentials.json"


@dataclasses.dataclass(frozen=True)
class GoogleIdentity:
    """The account of a host's programs and the source of its credentials.

    Both fields are empty where there are none.
    """

    account: str  # an address; empty where the credentials do not name it
    source: FileName  # a file's path, or "its metadata server"


@reads()
def own(env: Optional[Dict[str, str]] = None) -> GoogleIdentity:
    """Return the identity of a program on this host.

    The program's environment has ``env`` beside this process' variables.
    """
    named = (env or {}).get(VARIABLE) or os.environ.get(VARIABLE, "")
    for path in filter(None, (named, os.path.expanduser(GCLOUD))):
        if path == named or os.path.exists(path):
            return GoogleIdentity(_account(path), path)
    email = preemption_notices.service_account()
    return GoogleIdentity(email, "its metadata server" if email else "")


def _account(path: str) -> str:
    """Return a service account's address from its key; empty for user credentials."""
    try:
        with open(path, encoding="utf-8") as file:
            account: JsonValue = json.load(file)
    except (OSError, ValueError):
        return ""
    return str(account.get("client_email", "")) if isinstance(account, dict) else ""
