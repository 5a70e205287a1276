"""The project that pays for requests to a bucket, if its owner does not (requester pays).

``$MIDSTREAM_USER_PROJECTS`` is JSON: ``{"gs://BUCKET/PREFIX": "PROJECT", ...}``; the longest prefix of a URL counts.
The app sets it from ``stores:`` in the fleet file. The account that sends the requests needs the permission
``serviceusage.services.use`` in that project.
"""

from __future__ import annotations

import json
import os
from typing import Any

from midstream_engine.errors import EngineError

VARIABLE = "MIDSTREAM_USER_PROJECTS"


def user_project(url: str) -> str | None:
    """Return the project that pays for requests to ``url``; None if the bucket's owner pays.

    Raises:
        EngineError: The variable cannot be read.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        projects = {str(prefix).rstrip("/"): str(project) for prefix, project in json.loads(text).items()}
    except (ValueError, AttributeError):
        raise EngineError(f'{VARIABLE} is {text!r} (hint: write {{"gs://BUCKET/PREFIX": "PROJECT"}})') from None
    prefixes = [prefix for prefix in projects if f"{url.rstrip('/')}/".startswith(f"{prefix}/")]
    return projects[max(prefixes, key=len)] if prefixes else None


def tensorstore_context(url: str) -> dict[str, Any]:
    """Return the part of a TensorStore context that names the paying project of ``url``."""
    project = user_project(url)
    return {} if project is None else {"gcs_user_project": {"project_id": project}}
