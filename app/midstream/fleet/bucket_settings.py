"""Buckets of the fleet file: where runs keep their checkpoints, who asks this machine's questions there, who pays."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from midstream.errors import UsageError

DEFAULT, ANONYMOUS = "default", "anonymous"
USER_PROJECT = "MIDSTREAM_BILLED_TO"
_URL = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^?#]*)?")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class StoreConfig:
    """``url`` is ``gs://BUCKET[/PREFIX]``. ``credentials`` are this machine's for it: ``default`` (application default
    ones), ``anonymous``, or the path of a service account's key file, which stays on this machine. ``impersonate``: the
    service account in whose name is asked. ``project`` of the client; ``user_project`` pays where the bucket's owner
    does
    not, for engines on hosts too. What runs on hosts uses the identity that they have themselves."""

    url: str = ""
    credentials: str = DEFAULT
    impersonate: str = ""
    project: str = ""
    user_project: str = ""


def environment(stores: Mapping[str, StoreConfig]) -> dict[str, str]:
    """What engines have to be told of stores: who pays (`midstream_engine.requester_pays`)."""
    payers = {store.url.rstrip("/"): store.user_project for store in stores.values() if store.user_project}
    return {USER_PROJECT: json.dumps(payers)} if payers else {}


def check_store(where: str, store: StoreConfig) -> None:
    """UsageError where a store makes no sense. ``where``: file and field. What might be a key is never repeated."""
    if not _URL.fullmatch(store.url):
        raise UsageError(f"{where}.url is {store.url!r}", "gs://BUCKET or gs://BUCKET/PREFIX")
    given = store.credentials
    if given not in (DEFAULT, ANONYMOUS) and (not given.startswith(("/", "~")) or "\n" in given):
        raise UsageError(
            f"{where}.credentials is neither {DEFAULT} nor {ANONYMOUS} nor a whole path",
            "name the key file, never its content: ~/keys/midstream.json",
        )
    if given == ANONYMOUS and (store.impersonate or store.user_project):
        other = "impersonate" if store.impersonate else "user_project"
        raise UsageError(f"{where} is {ANONYMOUS} and has {other}", "nobody in particular has neither: one of them")
    if store.impersonate and not _ACCOUNT.fullmatch(store.impersonate):
        raise UsageError(
            f"{where}.impersonate is {store.impersonate!r}", "a service account: NAME@PROJECT.iam.gserviceaccount.com"
        )


def check_stores(path: str, stores: Mapping[str, StoreConfig]) -> None:
    """The same of all, and that no two speak of one place."""
    known: dict[str, str] = {}
    for name, store in stores.items():
        check_store(f"{path}: stores.{name}", store)
        other = known.setdefault(store.url.rstrip("/"), name)
        if other != name:
            raise UsageError(f"{path}: stores.{name} and stores.{other} have the same url", "keep one of them")


def check_host_store(where: str, given: str | None, stores: Mapping[str, StoreConfig]) -> None:
    """``store:`` of a host names one of them, or is a ``gs://`` address itself."""
    if given is None or given in stores:
        return
    if given.startswith("gs://") and _URL.fullmatch(given):
        return
    known = f"known: {', '.join(stores)}" if stores else "stores: has none"
    raise UsageError(f"{where}.store is {given!r}", f"gs://BUCKET/PREFIX, or a name; {known}")
