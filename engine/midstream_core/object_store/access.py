"""Account, project, endpoint and region of the requests to a bucket.

Engines read theirs from ``$MIDSTREAM_STORES``, which is JSON: ``{"URL": {"endpoint": ..., "region": ...,
"user_project": ...}, ...}``; the longest URL that a bucket's URL begins with counts. The app sets it from ``stores:``
in the fleet file. Credentials are never in it: those of an engine are its host's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from midstream_core.json_types import JsonObject, JsonValue
from midstream_core.object_store.errors import StoreError

VARIABLE = "MIDSTREAM_STORES"
ANONYMOUS = "anonymous"
SHARED = ("user_project", "endpoint", "region")  # what an engine has from the variable

T = TypeVar("T")


@dataclass(frozen=True)
class Access:
    """Credentials and settings of a client.

    Attributes:
        credentials: Empty for the standard chain (application default credentials, or AWS's environment, files and
            roles), ``anonymous``, or the path of a file: a service account's key for gs://, AWS's credentials file for
            s3://. Only the machine that runs the client reads it.
        profile: Of AWS's configuration.
        impersonate: The service account whose name the requests have.
        project: Google's project of the client.
        user_project: Project that pays for the requests if the bucket's owner does not (requester pays).
        endpoint: URL of the S3 service, if it is not Amazon's.
        region: Of the bucket.
        public: Whether to read without credentials if there are none.
    """

    credentials: str = ""
    profile: str = ""
    impersonate: str = ""
    project: str = ""
    user_project: str = ""
    endpoint: str = ""
    region: str = ""
    public: bool = False

    @classmethod
    def from_json(cls, value: JsonObject) -> Access:
        """Decode what `to_json` returns. Raises TypeError for another field."""
        fields: dict[str, Any] = dict(value)
        return cls(**fields)

    def to_json(self) -> dict[str, JsonValue]:
        return asdict(self)


def longest_match(url: str, by_prefix: Mapping[str, T]) -> T | None:
    """Return the value of the longest URL at or above ``url``; None without one."""
    matching = [prefix for prefix in by_prefix if f"{url.rstrip('/')}/".startswith(f"{prefix.rstrip('/')}/")]
    return by_prefix[max(matching, key=len)] if matching else None


def engine_access(url: str, *, public: bool = False) -> Access:
    """Return the access of an engine to ``url``, from the environment.

    Raises:
        StoreError: The variable cannot be read.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return Access(public=public)
    try:
        access = {
            str(prefix): {name: str(fields[name]) for name in SHARED if name in fields}
            for prefix, fields in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError):
        raise StoreError(f"{VARIABLE} is {text!r}", 'write {"URL": {"endpoint": "https://..."}}') from None
    return Access(public=public, **(longest_match(url, access) or {}))
