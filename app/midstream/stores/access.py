"""Who asks a bucket, and who pays."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Access:
    """``credentials``: empty, application default ones; ``anonymous``; or the path of a service account's key file,
    which stays where it is: only the machine that talks to the bucket reads it. ``impersonate``: the service account
    in whose name is asked. ``project`` of the client; ``billed_to``, the project that pays for a bucket whose owner
    does not."""

    credentials: str = ""
    impersonate: str = ""
    project: str = ""
    billed_to: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
