"""Account and project of this machine's requests to a bucket."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

from midstream.fleet.fleet import Fleet
from midstream.fleet.store_config import DEFAULT


@dataclass(frozen=True)
class Access:
    """Credentials and projects of a client.

    Attributes:
        credentials: Empty for application default credentials, ``anonymous``, or the path of a service account's key
            file. The file stays where it is: only the machine that runs the client reads it.
        impersonate: The service account whose name the requests have.
        project: Project of the client.
        user_project: Project that pays for the requests if the bucket's owner does not (requester pays).
    """

    credentials: str = ""
    impersonate: str = ""
    project: str = ""
    user_project: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def access_for(fleet: Fleet | None, url: str) -> Access:
    """Return the fleet file's access to the store of ``url``; application default credentials if it has none."""
    stores = {} if fleet is None else {store.url.rstrip("/"): store for store in fleet.stores.values()}
    matching = [prefix for prefix in stores if f"{url.rstrip('/')}/".startswith(f"{prefix}/")]
    if not matching:
        return Access()
    store = stores[max(matching, key=len)]
    credentials = "" if store.credentials == DEFAULT else os.path.expanduser(store.credentials)
    return Access(credentials, store.impersonate, store.project, store.user_project)
