"""What is to be copied: the objects that a tree's manifest names, and where each of them lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from midstream.errors import RemoteError
from midstream.transfer.errors import TransferError, shown
from midstream.transfer.places import Place

CALL = 600.0  # seconds for a call that reads one manifest, or hashes one object


@dataclass(frozen=True)
class Contents:
    """A tree that is to be copied: its manifest's text as the target shall have it, and which objects come from where.
    ``first`` is where the manifest was read; ``problems`` are (path, what is wrong) of the objects there, by their
    sizes."""

    first: Place
    text: str
    objects: tuple[dict[str, Any], ...]
    problems: tuple[tuple[str, str], ...] = ()
    holders: Mapping[str, Place] = field(default_factory=dict)  # other hosts, by the names that objects give them
    held: Mapping[str, str] = field(default_factory=dict)  # path -> name of its host, where there are holders

    def only(self, wanted: Callable[[str], bool]) -> Contents:
        """Without the objects that are not wanted."""
        return replace(self, objects=tuple(entry for entry in self.objects if wanted(entry["path"])))

    def held_by(self, holders: Mapping[str, Place]) -> Contents:
        """What other hosts hold comes from there: host, as the manifest's objects name it -> its place."""
        held = {entry["path"]: entry.get("host", "") for entry in json.loads(self.text)["objects"]}
        return replace(self, holders=holders, held=held)

    def by_source(self) -> list[tuple[Place, list[dict[str, Any]]]]:
        """The objects of each place. TransferError where one is missing there, or of another size."""
        lots: dict[str, list[dict[str, Any]]] = {}
        for entry in self.objects:
            name = self.held.get(entry["path"], "")
            lots.setdefault(name if name in self.holders else "", []).append(entry)
        here = {entry["path"] for entry in lots.get("", ())}
        missing = [(self.first, path, what) for path, what in self.problems if path in here]
        for name, lot in lots.items():
            if name:
                place = self.holders[name]
                found = place.host.call("objects.missing", directory=place.directory, objects=lot, timeout=CALL)
                missing += [(place, path, what) for path, what in found]
        if missing:
            place, path, what = missing[0]
            more = f", and {len(missing) - 1} more like it" if len(missing) > 1 else ""
            raise TransferError(f"object {shown(path)} of {place}: {what}{more}", "copy another one", path)
        return [(self.holders[name] if name else self.first, lot) for name, lot in lots.items()]


def read_contents(source: Place, manifest: str) -> Contents:
    """What the tree's manifest names. TransferError where it is no tree."""
    try:
        found = source.host.call("objects.describe", directory=source.directory, manifest=manifest, timeout=CALL)
    except RemoteError as error:
        if error.kind != "NoTree":
            raise
        raise TransferError(error.message) from error
    problems = tuple((path, what) for path, what in found["problems"])
    return Contents(source, found["manifest"], tuple(found["objects"]), problems)
