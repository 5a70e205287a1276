"""Who asks a bucket, and who pays."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from midstream.fleet.bucket_settings import DEFAULT

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


@dataclass(frozen=True)
class Access:
    """``credentials``: empty, application default ones; ``anonymous``; or the path of a service account's key file,
    which stays where it is: only the machine that talks to the bucket reads it. ``impersonate``: the service account
    in whose name is asked. ``project`` of the client; ``user_project``, the project that pays for a bucket whose owner
    does not."""

    credentials: str = ""
    impersonate: str = ""
    project: str = ""
    user_project: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def access_for(fleet: Fleet | None, url: str) -> Access:
    """What the fleet file says of the store that ``url`` lies in; application default credentials where none does."""
    stores = {} if fleet is None else {store.url.rstrip("/"): store for store in fleet.stores.values()}
    inside = [prefix for prefix in stores if f"{url.rstrip('/')}/".startswith(f"{prefix}/")]
    if not inside:
        return Access()
    store = stores[max(inside, key=len)]
    given = "" if store.credentials == DEFAULT else os.path.expanduser(store.credentials)
    return Access(given, store.impersonate, store.project, store.user_project)
