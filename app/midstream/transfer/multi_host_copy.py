"""Copies of checkpoints between one endpoint and several.

The manifest of a spread checkpoint names for each object a host that has it (`records.Manifest`).
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from midstream.hosts.host import Host
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.hosts.rpc.remote_program import Cancelled
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_contents
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.report import CopyReport, Progress
from midstream.transfer.tree_contents import TreeContents, read_contents
from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_host.allowlist import CHECKPOINT

Wanted = Callable[[str], bool]  # path of an object -> whether it is wanted


def endpoints_of(contents: TreeContents, hosts: Mapping[str, Host]) -> dict[str, Endpoint]:
    """Return the other endpoints of a spread checkpoint, by the names in its manifest.

    Args:
        contents: The checkpoint, read on one of its hosts.
        hosts: Hosts by these names.

    Raises:
        TransferError: ``hosts`` lacks a host that has a part.
    """
    manifest = records.Manifest.from_json(decode_file(contents.text, str(contents.first)), str(contents.first))
    needed = set(manifest.elsewhere)
    endpoints = {
        entry.host: Endpoint(hosts[entry.host], entry.directory)
        for entry in manifest.spread_hosts
        if entry.host in hosts
    }
    lost = sorted(needed - endpoints.keys())
    if lost:
        raise TransferError(
            f"{contents.first} is spread over several hosts; the fleet file lacks {', '.join(lost)}",
            "add hosts of these names to the fleet file",
        )
    return {name: endpoint for name, endpoint in endpoints.items() if name != manifest.host}


def collect_objects(
    hosts: Mapping[str, Host],
    source: Endpoint,
    target: Endpoint,
    *,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> CopyReport:
    """Collect a spread checkpoint at one endpoint. All hosts send concurrently.

    The target's manifest has the same root digest and names no hosts. Errors and resuming as for `copy_tree`.

    Args:
        hosts: The hosts that have a part of the checkpoint, by the names in its manifest.
        source: One of its endpoints.
        target: Endpoint that receives it.
        progress: Called with the progress, from this thread.
        cancel: Ends the copy when it is set.
        settings: By default those of the fleet file.
    """
    contents = read_contents(source, records.MANIFEST)
    contents = contents.with_endpoints(endpoints_of(contents, hosts))
    where = str(contents.first)
    manifest = records.Manifest.from_json(decode_file(contents.text, where), where).collected()
    contents = dataclasses.replace(contents, text=json.dumps(manifest.to_json(), indent=1))
    return copy_contents(contents, target, progress=progress, cancel=cancel, settings=settings)


def fan_out(
    source: Endpoint,
    targets: Mapping[str, Endpoint],
    *,
    needs: Mapping[str, Wanted] | None = None,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
    kind: str = CHECKPOINT,
) -> dict[str, CopyReport]:
    """Copy one tree to several endpoints concurrently, to each all of it or a share.

    The first error ends all copies and is raised; the same call continues them.

    Args:
        source: Endpoint that has the tree.
        targets: Endpoints that receive it, by name.
        needs: Name of a target -> the objects that it needs. The targets' manifests then say which host has what.
            Every object has to be needed by a target. None copies all objects to each.
        manifest_name: Name of the manifest in all directories.
        progress: Called with the progress of all copies together.
        cancel: Ends the copies when it is set.
        settings: By default those of the fleet file. The bandwidth limit is that of all copies together.
        kind: What the tree has to be (`midstream_host.allowlist`).

    Returns:
        The report of each target.
    """
    contents = read_contents(source, manifest_name, kind)
    if settings and settings.bandwidth_limit and targets:
        settings = dataclasses.replace(settings, bandwidth_limit=settings.bandwidth_limit / len(targets))
    shares = dict.fromkeys(targets, contents) if needs is None else _shares(contents, targets, needs)
    stop = _EitherEvent(cancel)
    combined = _CombinedProgress(progress, len(targets))

    def copy(name: str) -> CopyReport:
        try:
            return copy_contents(
                shares[name],
                targets[name],
                manifest=manifest_name,
                progress=combined.of(name),
                cancel=stop,
                settings=settings,
            )
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(max(1, len(targets))) as pool:
        running = {name: pool.submit(copy, name) for name in targets}
    errors = [error for future in running.values() if (error := future.exception()) is not None]
    # The copies that were cancelled because of the first error do not have the reason.
    for error in sorted(errors, key=lambda error: isinstance(error, Cancelled)):
        raise error
    return {name: future.result() for name, future in running.items()}


def _shares(
    contents: TreeContents, targets: Mapping[str, Endpoint], needs: Mapping[str, Wanted]
) -> dict[str, TreeContents]:
    manifest = records.Manifest.from_json(decode_file(contents.text, str(contents.first)), str(contents.first))
    objects: list[dict[str, JsonValue]] = []
    for described, entry in zip(manifest.objects, manifest.object_entries, strict=True):
        needed_by = [name for name in targets if needs[name](entry.path)]
        if not needed_by:
            raise TransferError(f"no target needs {entry.path} of {contents.first}", "every object needs a host")
        objects.append({**described, "host": "" if len(needed_by) == len(targets) else needed_by[0]})
    hosts = [records.SpreadHost(name, [], endpoint.directory).to_json() for name, endpoint in targets.items()]
    shared = dataclasses.replace(manifest, objects=objects, hosts=hosts)
    return {
        name: dataclasses.replace(
            contents.only(needs[name]), text=json.dumps(dataclasses.replace(shared, host=name).to_json(), indent=1)
        )
        for name in targets
    }


class _EitherEvent(Event):
    """An event that is also set when the caller's event is."""

    def __init__(self, other: Event | None) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or (self._other is not None and self._other.is_set())


class _CombinedProgress:
    """The progress of several copies as one."""

    def __init__(self, publish: Callable[[Progress], None] | None, count: int) -> None:
        self._publish, self._count = publish, count
        self._latest: dict[str, Progress] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> Callable[[Progress], None] | None:
        if self._publish is None:
            return None

        def publish(progress: Progress) -> None:
            with self._lock:
                self._latest[name] = progress
                if len(self._latest) == self._count and self._publish is not None:
                    self._publish(_sum(list(self._latest.values()), progress.object))

        return publish


def _sum(parts: list[Progress], newest: str) -> Progress:
    """Add up the parts; the slowest one determines the time that is left."""
    etas = [copy.eta_seconds for copy in parts if copy.bytes_done < copy.bytes_total]
    estimates = [eta for eta in etas if eta is not None]
    return Progress(
        bytes_done=sum(copy.bytes_done for copy in parts),
        bytes_total=sum(copy.bytes_total for copy in parts),
        objects_done=sum(copy.objects_done for copy in parts),
        objects_total=sum(copy.objects_total for copy in parts),
        object=newest,
        bytes_per_second=sum(copy.bytes_per_second for copy in parts),
        eta_seconds=None if len(estimates) < len(etas) else max(estimates, default=0.0),
    )
