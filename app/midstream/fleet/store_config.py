"""Buckets of the fleet file (``stores:``) for checkpoints: credentials, billing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from midstream.errors import UsageError
from midstream_core.object_store.access import SHARED, VARIABLE
from midstream_core.object_store.urls import FORMS, GCS, S3, SCHEMES

DEFAULT, ANONYMOUS = "default", "anonymous"
_URL = re.compile(r"(gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/[^?#]*)?")
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?")
_FIELDS = {GCS: ("endpoint", "region", "profile"), S3: ("impersonate", "project", "user_project")}  # those of the other
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class StoreConfig:
    """A checkpoint store in a bucket.

    Only this machine uses ``credentials``, ``profile`` and ``impersonate``; engines use the identity of their host.
    """

    url: str = ""  # gs://BUCKET[/PREFIX] or s3://BUCKET[/PREFIX]
    credentials: str = DEFAULT  # or anonymous, or the path of a key file (gs://) or credentials file (s3://)
    endpoint: str = ""  # of an S3 service that is not Amazon's, also for engines on hosts
    region: str = ""  # of an S3 bucket, also for engines on hosts
    profile: str = ""  # of AWS's configuration
    impersonate: str = ""  # a service account
    project: str = ""  # of the client
    user_project: str = ""  # billed where the requester pays, also for engines on hosts


def engine_environment(stores: Mapping[str, StoreConfig]) -> dict[str, str]:
    """Return engine environment variables for stores: endpoints, regions, who pays.

    The engine reads them in `object_store.access`.
    """
    settings: dict[str, dict[str, str]] = {}
    for store in stores.values():
        given = {name: value for name in SHARED if (value := str(getattr(store, name)))}
        if given:
            settings[store.url.rstrip("/")] = given
    return {VARIABLE: json.dumps(settings)} if settings else {}


def check_store(where: str, store: StoreConfig) -> None:
    """Raise UsageError for an invalid store.

    ``where``: file and field. Messages never repeat what may be a key.
    """
    if not _URL.fullmatch(store.url):
        raise UsageError(f"{where}.url is {store.url!r}", f"write {FORMS}")
    scheme = next(candidate for candidate in SCHEMES if store.url.startswith(candidate))
    foreign = next((name for name in _FIELDS[scheme] if getattr(store, name)), None)
    if foreign:
        raise UsageError(f"{where} is {scheme} and has {foreign}", "remove it: only the other kind of store has it")
    if store.endpoint and not _ENDPOINT.fullmatch(store.endpoint):
        raise UsageError(f"{where}.endpoint is no URL", "https://HOST or https://HOST:PORT, without a user or a query")
    given = store.credentials
    if given not in (DEFAULT, ANONYMOUS) and (not given.startswith(("/", "~")) or "\n" in given):
        raise UsageError(
            f"{where}.credentials is neither {DEFAULT} nor {ANONYMOUS} nor an absolute path",
            "name the key file, never its content: ~/keys/midstream.json",
        )
    other = next((name for name in ("impersonate", "user_project", "profile") if getattr(store, name)), "")
    if given == ANONYMOUS and other:
        raise UsageError(f"{where} is {ANONYMOUS} and has {other}", "anonymous access has none: remove one of them")
    if store.impersonate and not _ACCOUNT.fullmatch(store.impersonate):
        raise UsageError(
            f"{where}.impersonate is {store.impersonate!r}", "a service account: NAME@PROJECT.iam.gserviceaccount.com"
        )


def check_stores(path: str, stores: Mapping[str, StoreConfig]) -> None:
    """Raise UsageError for an invalid store, and for two stores with the same url."""
    names: dict[str, str] = {}
    for name, store in stores.items():
        check_store(f"{path}: stores.{name}", store)
        other = names.setdefault(store.url.rstrip("/"), name)
        if other != name:
            raise UsageError(f"{path}: stores.{name} and stores.{other} have the same url", "keep one of them")


def check_host_store(where: str, given: str | None, stores: Mapping[str, StoreConfig]) -> None:
    """Raise UsageError for an invalid ``store:`` of a host.

    A valid one is the name of a store or the URL of a bucket.
    """
    if given is None or given in stores:
        return
    if _URL.fullmatch(given):
        return
    choices = f"known: {', '.join(stores)}" if stores else "stores: has none"
    raise UsageError(f"{where}.store is {given!r}", f"{FORMS}, or a name; {choices}")
