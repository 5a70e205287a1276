"""Contents of a tree: its manifest's objects, and the endpoint that has each."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from midstream.counts import count
from midstream.errors import RemoteError
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.printable import printable
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream_core import records
from midstream_host.allowlist import CHECKPOINT, DATA
from midstream_host.copy_items import CopyObject
from midstream_host.verify import objects as remote_objects

HASH_TIMEOUT = 600.0  # seconds for a call that reads one manifest, or hashes one object


@dataclass(frozen=True)
class TreeContents:
    """A tree to copy.

    Attributes:
        first: The endpoint whose manifest was read.
        text: The manifest as the target will have it.
        objects: ``{path, size, sha256}`` of each object.
        problems: (path, what is wrong) of objects of ``first`` that are missing or have another size.
        endpoints: Endpoints of the other hosts of a spread checkpoint, by the names in the manifest.
        host_of: Path -> name of its host, for objects of other hosts.
        kind: What the tree has to be (`midstream_host.allowlist`).
    """

    first: Endpoint
    text: str
    objects: tuple[CopyObject, ...]
    problems: tuple[tuple[str, str], ...] = ()
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict[str, Endpoint])
    host_of: Mapping[str, str] = field(default_factory=dict[str, str])
    kind: str = CHECKPOINT

    def only(self, is_included: Callable[[str], bool]) -> TreeContents:
        """Return the contents with the wanted objects alone."""
        return replace(self, objects=tuple(entry for entry in self.objects if is_included(entry["path"])))

    def with_endpoints(self, endpoints: Mapping[str, Endpoint]) -> TreeContents:
        """Return the contents with other hosts' objects assigned to ``endpoints``.

        ``endpoints``: host name -> endpoint.
        """
        host_of = {entry["path"]: entry.get("host", "") for entry in decode_file(self.text, str(self.first))["objects"]}
        return replace(self, endpoints=endpoints, host_of=host_of)

    def by_source(self) -> list[tuple[Endpoint, list[CopyObject]]]:
        """Return each endpoint with its objects.

        Raises:
            TransferError: An object is missing there, or has another size.
        """
        entries_of: dict[str, list[CopyObject]] = {}
        for entry in self.objects:
            name = self.host_of.get(entry["path"], "")
            entries_of.setdefault(name if name in self.endpoints else "", []).append(entry)
        here = {entry["path"] for entry in entries_of.get("", ())}
        missing = [(self.first, path, what) for path, what in self.problems if path in here]
        for name, entries in entries_of.items():
            if name:
                endpoint = self.endpoints[name]
                faults = endpoint.host.call(remote_objects.missing, timeout=HASH_TIMEOUT)(
                    directory=endpoint.directory, objects=entries
                )
                missing += [(endpoint, path, what) for path, what in faults]
        if missing:
            endpoint, path, what = missing[0]
            more = f", and {count(len(missing) - 1, 'more object')}" if len(missing) > 1 else ""
            raise TransferError(
                f"object {printable(path)} of {endpoint}: {what}{more}",
                "--checkpoint STEP takes another one; --checkpoints RUN lists them",
                path,
            )
        return [(self.endpoints[name] if name else self.first, entries) for name, entries in entries_of.items()]


def read_contents(source: Endpoint, manifest: str, kind: str = CHECKPOINT) -> TreeContents:
    """Read a tree's manifest at its source.

    The text is parsed on this machine; nothing else that the source says of the objects is used.

    Raises:
        TransferError: There is no tree, or its manifest names what a tree of this ``kind`` does not contain.
    """
    source.prepare()
    try:
        description = source.host.call(remote_objects.describe, timeout=HASH_TIMEOUT)(
            directory=source.directory, manifest=manifest
        )
    except RemoteError as error:
        if error.kind != "NoTreeError":
            raise
        raise TransferError(error.message) from error
    contents = contents_of(source, description["manifest"], manifest, kind)
    return replace(contents, problems=tuple((path, what) for path, what in description["problems"]))


def contents_of(source: Endpoint, text: str, manifest: str, kind: str) -> TreeContents:
    """Parse the text of a manifest that was read at ``source``.

    Raises:
        TransferError: As `read_contents`.
    """
    try:
        value = decode_file(text, posixpath.join(source.directory, manifest))
        objects = remote_objects.objects_in(value, source.directory, manifest, kind)
    except (remote_objects.NoTreeError, records.RecordError) as error:
        raise TransferError(
            f"{source.host.name}: {error}", "it is damaged or hostile: nothing was copied; choose another checkpoint"
        ) from None
    if kind == DATA:
        _check_digest(source, value)
    return TreeContents(source, text, tuple(objects), kind=kind)


def _check_digest(source: Endpoint, value: Mapping[str, Any]) -> None:
    """Check that the name of a data tree is the digest of its manifest.

    All runs of a host share data by these names.

    Raises:
        TransferError: It is not.
    """
    name = posixpath.basename(source.directory.rstrip("/"))
    rest = {key: item for key, item in value.items() if key != "digest"}
    try:
        digest = hashlib.sha256(records.canonical_json(rest)).hexdigest()
    except (ValueError, RecursionError):
        digest = ""
    if value.get("digest") != name or digest != name:
        raise TransferError(
            f"{source}: its name is not the digest of its manifest",
            f"nothing was copied; remove {source.directory} on {source.host.name}, or copy it from its origin",
        )


def malformed(endpoint: Endpoint, what: str) -> TransferError:
    """Return the error for an answer whose length is not that of the request."""
    name = endpoint.host.name
    return TransferError(f"{name}: the answer to {what} is malformed", f"check which program answers on {name}")
