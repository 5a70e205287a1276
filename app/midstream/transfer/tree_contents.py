"""What is to be copied: the objects that a tree's manifest names, and where each of them lies."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from midstream.errors import RemoteError
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.remote.copy.allowlist import CHECKPOINT, DATA
from midstream.remote.verify import objects as far_objects
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError, shown
from midstream_engine import records

CALL = 600.0  # seconds for a call that reads one manifest, or hashes one object


@dataclass(frozen=True)
class Contents:
    """A tree that is to be copied: its manifest's text as the target shall have it, and which objects come from where.
    ``first`` is where the manifest was read; ``problems`` are (path, what is wrong) of the objects there, by their
    sizes. ``kind`` is what the tree has to be (`midstream.remote.copy.allowlist`)."""

    first: Endpoint
    text: str
    objects: tuple[dict[str, Any], ...]
    problems: tuple[tuple[str, str], ...] = ()
    holders: Mapping[str, Endpoint] = field(default_factory=dict)  # other hosts, by the names that objects give them
    held: Mapping[str, str] = field(default_factory=dict)  # path -> name of its host, where there are holders
    kind: str = CHECKPOINT

    def only(self, wanted: Callable[[str], bool]) -> Contents:
        """Without the objects that are not wanted."""
        return replace(self, objects=tuple(entry for entry in self.objects if wanted(entry["path"])))

    def held_by(self, holders: Mapping[str, Endpoint]) -> Contents:
        """What other hosts hold comes from there: host, as the manifest's objects name it -> its place."""
        held = {entry["path"]: entry.get("host", "") for entry in decode_file(self.text, str(self.first))["objects"]}
        return replace(self, holders=holders, held=held)

    def by_source(self) -> list[tuple[Endpoint, list[dict[str, Any]]]]:
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
                found = place.host.call("verify.objects.missing", directory=place.directory, objects=lot, timeout=CALL)
                missing += [(place, path, what) for path, what in found]
        if missing:
            place, path, what = missing[0]
            more = f", and {len(missing) - 1} more like it" if len(missing) > 1 else ""
            raise TransferError(f"object {shown(path)} of {place}: {what}{more}", "copy another one", path)
        return [(self.holders[name] if name else self.first, lot) for name, lot in lots.items()]


def read_contents(source: Endpoint, manifest: str, kind: str = CHECKPOINT) -> Contents:
    """What the tree's manifest names. The manifest's text is parsed here: what the source says beside it counts for
    nothing. TransferError where it is no tree, or names what a tree of this ``kind`` does not contain."""
    try:
        found = source.host.call("verify.objects.describe", directory=source.directory, manifest=manifest, timeout=CALL)
    except RemoteError as error:
        if error.kind != "NoTree":
            raise
        raise TransferError(error.message) from error
    contents = contents_of(source, found["manifest"], manifest, kind)
    return replace(contents, problems=tuple((path, what) for path, what in found["problems"]))


def contents_of(source: Endpoint, text: str, manifest: str, kind: str) -> Contents:
    """What the text of a manifest names, which was read at ``source``. TransferError as of `read_contents`."""
    try:
        value = decode_file(text, posixpath.join(source.directory, manifest))
        objects = far_objects.objects_in(value, source.directory, manifest, kind)
    except (far_objects.NoTree, records.RecordError) as error:
        raise TransferError(
            f"{source.host.name}: {error}", "it is damaged or hostile: nothing was copied; choose another one"
        ) from None
    if kind == DATA:
        _check_digest(source, value)
    return Contents(source, text, tuple(objects), kind=kind)


def _check_digest(source: Endpoint, value: Mapping[str, Any]) -> None:
    """Data are named by the digest of their manifest, and all runs of a host share them: what lies under a name has to
    be what the name says. TransferError."""
    name = posixpath.basename(source.directory.rstrip("/"))
    rest = {key: item for key, item in value.items() if key != "digest"}
    try:
        digest = hashlib.sha256(records.canonical_json(rest)).hexdigest()
    except (ValueError, RecursionError):
        digest = ""
    if value.get("digest") != name or digest != name:
        raise TransferError(
            f"{source}: its manifest is not the one that its name is the digest of",
            f"nothing was copied; remove {source.directory} on {source.host.name}, or copy it from where it was made",
        )


def malformed(place: Endpoint, what: str) -> TransferError:
    """An answer of a host that has another length than what was requested."""
    name = place.host.name
    return TransferError(f"{name}: the answer to {what} is malformed", f"look at what answers on {name}")
