"""Who pays for what is asked of a bucket whose owner does not (requester pays).

``$MIDSTREAM_BILLED_TO`` is JSON: ``{"gs://BUCKET/PREFIX": "PROJECT", ...}``; the longest prefix that a place lies under
counts. midstream sets it from what the fleet file's ``stores:`` say. The account that asks has to be allowed to use
that project (``serviceusage.services.use``).
"""

from __future__ import annotations

import json
import os
from typing import Any

from midstream_engine.errors import EngineError

VARIABLE = "MIDSTREAM_BILLED_TO"


def user_project(url: str) -> str | None:
    """The project that is billed for requests to ``url``; None: the bucket's owner pays. EngineError where the variable
    cannot be read."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return None
    try:
        known = {str(prefix).rstrip("/"): str(project) for prefix, project in json.loads(given).items()}
    except (ValueError, AttributeError):
        raise EngineError(f'{VARIABLE} is {given!r}: write {{"gs://BUCKET/PREFIX": "PROJECT"}}') from None
    inside = [prefix for prefix in known if f"{url.rstrip('/')}/".startswith(f"{prefix}/")]
    return known[max(inside, key=len)] if inside else None


def tensorstore_context(url: str) -> dict[str, Any]:
    """The part of a TensorStore context that says so."""
    project = user_project(url)
    return {} if project is None else {"gcs_user_project": {"project_id": project}}
