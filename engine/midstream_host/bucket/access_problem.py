"""Reasons, as the app reports them, why bucket objects cannot be read or written."""

from __future__ import annotations

import dataclasses
from typing import Callable

from midstream_core.json_types import JsonObject
from midstream_core.object_store.access import Access
from midstream_core.object_store.errors import StoreError
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.declarations import reads

Emit = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class AccessProblem:
    """Reason why objects cannot be listed, with a hint; both empty where they can."""

    why: str
    hint: str


@reads()
def able(url: str, access: JsonObject) -> AccessProblem:
    """Try to list objects below ``url`` from this host."""
    try:
        with open_bucket(url, Access.from_json(access)) as bucket:
            bucket.probe()
    except StoreError as error:
        return AccessProblem(error.message, error.hint)
    return AccessProblem("", "")


def report_problem(error: BaseException, emit: Emit) -> None:
    """Report an error to the app as ``problem``."""
    hint = error.hint if isinstance(error, StoreError) else ""
    emit("problem", kind="system", message=str(error), hint=hint)
