"""Account, endpoint and project of this machine's requests to a bucket."""

from __future__ import annotations

import os

from midstream.fleet.fleet import Fleet
from midstream.fleet.store_config import DEFAULT
from midstream_core.object_store.access import Access, longest_match

__all__ = ["Access", "access_for"]


def access_for(fleet: Fleet | None, url: str) -> Access:
    """Return the fleet file's access to the store of ``url``.

    If it has none, the access is by the standard chain's credentials.
    """
    store = longest_match(url, {} if fleet is None else {entry.url: entry for entry in fleet.stores.values()})
    if store is None:
        return Access()
    return Access(
        credentials="" if store.credentials == DEFAULT else os.path.expanduser(store.credentials),
        profile=store.profile,
        impersonate=store.impersonate,
        project=store.project,
        user_project=store.user_project,
        endpoint=store.endpoint,
        region=store.region,
    )
