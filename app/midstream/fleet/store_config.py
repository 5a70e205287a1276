"""Buckets of the fleet file (``stores:``), which store the checkpoints of runs: credentials and billing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from midstream.errors import UsageError

DEFAULT, ANONYMOUS = "default", "anonymous"
USER_PROJECTS_VARIABLE = "MIDSTREAM_USER_PROJECTS"
_URL = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^?#]*)?")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class StoreConfig:
    """A checkpoint store in a bucket.

    Only this machine uses ``credentials`` and ``impersonate``; engines use the identity of their host.
    """

    url: str = ""  # gs://BUCKET[/PREFIX]
    credentials: str = DEFAULT  # or anonymous, or the path of a service account's key file
    impersonate: str = ""  # a service account
    project: str = ""  # of the client
    user_project: str = ""  # billed where the requester pays, also for engines on hosts


def engine_environment(stores: Mapping[str, StoreConfig]) -> dict[str, str]:
    """Return environment variables of engines: who pays for requests (`midstream_engine.requester_pays`)."""
    user_projects = {store.url.rstrip("/"): store.user_project for store in stores.values() if store.user_project}
    return {USER_PROJECTS_VARIABLE: json.dumps(user_projects)} if user_projects else {}


def check_store(where: str, store: StoreConfig) -> None:
    """Raise UsageError for an invalid store. ``where``: file and field. Messages never repeat what may be a key."""
    if not _URL.fullmatch(store.url):
        raise UsageError(f"{where}.url is {store.url!r}", "gs://BUCKET or gs://BUCKET/PREFIX")
    given = store.credentials
    if given not in (DEFAULT, ANONYMOUS) and (not given.startswith(("/", "~")) or "\n" in given):
        raise UsageError(
            f"{where}.credentials is neither {DEFAULT} nor {ANONYMOUS} nor an absolute path",
            "name the key file, never its content: ~/keys/midstream.json",
        )
    if given == ANONYMOUS and (store.impersonate or store.user_project):
        other = "impersonate" if store.impersonate else "user_project"
        raise UsageError(f"{where} is {ANONYMOUS} and has {other}", "anonymous access has neither: remove one of them")
    if store.impersonate and not _ACCOUNT.fullmatch(store.impersonate):
        raise UsageError(
            f"{where}.impersonate is {store.impersonate!r}", "a service account: NAME@PROJECT.iam.gserviceaccount.com"
        )


def check_stores(path: str, stores: Mapping[str, StoreConfig]) -> None:
    """Raise UsageError for an invalid store, and for two stores with the same url."""
    known: dict[str, str] = {}
    for name, store in stores.items():
        check_store(f"{path}: stores.{name}", store)
        other = known.setdefault(store.url.rstrip("/"), name)
        if other != name:
            raise UsageError(f"{path}: stores.{name} and stores.{other} have the same url", "keep one of them")


def check_host_store(where: str, given: str | None, stores: Mapping[str, StoreConfig]) -> None:
    """Raise UsageError if ``store:`` of a host is neither the name of a store nor a ``gs://`` address."""
    if given is None or given in stores:
        return
    if given.startswith("gs://") and _URL.fullmatch(given):
        return
    known = f"known: {', '.join(stores)}" if stores else "stores: has none"
    raise UsageError(f"{where}.store is {given!r}", f"gs://BUCKET/PREFIX, or a name; {known}")
