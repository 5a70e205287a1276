"""Whose name programs on this machine ask Google in. Runs on the host; standard library only.

Looked for where google-auth and TensorStore look, in their order: the file that ``GOOGLE_APPLICATION_CREDENTIALS``
names, gcloud's own, the machine's service account as its metadata server tells.
"""

from __future__ import annotations

import json
import os
from typing import Dict, Optional

from midstream.remote.machine import preemption_notices

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
GCLOUD = "~/.config/gcloud/application_default_credentials.json"


def own(env: Optional[Dict[str, str]] = None) -> Dict[str, str]:
    """``account``, its address, empty where nobody says; ``source``: a file's path, or ``its metadata server``, empty
    where there are no credentials. ``env``: what the programs find beside this process' environment."""
    named = (env or {}).get(VARIABLE) or os.environ.get(VARIABLE, "")
    for path in filter(None, (named, os.path.expanduser(GCLOUD))):
        if path == named or os.path.exists(path):
            return {"account": _account(path), "source": path}
    email = preemption_notices.service_account()
    return {"account": email, "source": "its metadata server" if email else ""}


def _account(path: str) -> str:
    """Of a service account's key. A person's credentials do not tell their name."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return ""
    return str(found.get("client_email", "")) if isinstance(found, dict) else ""
