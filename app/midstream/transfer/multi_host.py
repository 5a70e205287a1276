"""Checkpoints that lie on several hosts: collected into one place, and handed out to several.

A spread checkpoint's manifest names for each object a host that holds it (`records.Manifest`).
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
from midstream.remote.copy.allowlist import CHECKPOINT
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_contents
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.report import CopyReport, Progress
from midstream.transfer.tree_contents import Contents, read_contents
from midstream_engine import records

Wanted = Callable[[str], bool]


def holders_of(contents: Contents, hosts: Mapping[str, Host]) -> dict[str, Endpoint]:
    """Where the shares of a spread checkpoint lie, by the names in its manifest. ``hosts``: machines by these names.
    TransferError where one that is needed is not among them."""
    manifest = records.Manifest.from_json(decode_file(contents.text, str(contents.first)), str(contents.first))
    needed = set(manifest.elsewhere)
    places = {
        entry.host: Endpoint(hosts[entry.host], entry.directory)
        for entry in manifest.spread_hosts
        if entry.host in hosts
    }
    lost = sorted(needed - places.keys())
    if lost:
        raise TransferError(
            f"{contents.first} is spread: {', '.join(lost)} hold a part of it", "name a host of that name in the fleet"
        )
    return {name: place for name, place in places.items() if name != manifest.host}


def collect_objects(
    hosts: Mapping[str, Host],
    source: Host,
    source_dir: str,
    target: Host,
    target_dir: str,
    *,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> CopyReport:
    """Bring a spread checkpoint together: ``source_dir`` has one copy of its manifest, ``hosts`` are all that hold a
    share. All send at once. The target's manifest is that of the same checkpoint in one place, its root digest the
    same. Errors and resuming as of `copy_objects`."""
    contents = read_contents(Endpoint(source, source_dir), records.MANIFEST)
    contents = contents.held_by(holders_of(contents, hosts))
    where = str(contents.first)
    manifest = records.Manifest.from_json(decode_file(contents.text, where), where).collected()
    contents = dataclasses.replace(contents, text=json.dumps(manifest.to_json(), indent=1))
    return copy_contents(contents, Endpoint(target, target_dir), progress=progress, cancel=cancel, settings=settings)


def fan_out(
    source: Host,
    source_dir: str,
    targets: Mapping[str, Endpoint],
    *,
    needs: Mapping[str, Wanted] | None = None,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
    kind: str = CHECKPOINT,
) -> dict[str, CopyReport]:
    """Copy one tree to several places at once: all of it to each, or, with ``needs`` (target's name -> whether it needs
    the object of a path), to each its share of a checkpoint, whose manifest then says who holds what. Every object has
    to be needed by somebody.

    The first error ends all of the copies, and is raised; the same call goes on. A rate limit holds for all of them
    together."""
    contents = read_contents(Endpoint(source, source_dir), manifest_name, kind)
    if settings and settings.rate_limit and targets:
        settings = dataclasses.replace(settings, rate_limit=settings.rate_limit / len(targets))
    shares = dict.fromkeys(targets, contents) if needs is None else _shares(contents, targets, needs)
    stop = _Any(cancel)
    told = _Together(progress, len(targets))

    def one(name: str) -> CopyReport:
        try:
            return copy_contents(
                shares[name],
                targets[name],
                manifest=manifest_name,
                progress=told.of(name),
                cancel=stop,
                settings=settings,
            )
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(max(1, len(targets))) as pool:
        running = {name: pool.submit(one, name) for name in targets}
    errors = [error for each in running.values() if (error := each.exception()) is not None]
    # Those that were only told to stop say nothing of why.
    for error in sorted(errors, key=lambda error: isinstance(error, Cancelled)):
        raise error
    return {name: each.result() for name, each in running.items()}


def _shares(contents: Contents, targets: Mapping[str, Endpoint], needs: Mapping[str, Wanted]) -> dict[str, Contents]:
    manifest = records.Manifest.from_json(decode_file(contents.text, str(contents.first)), str(contents.first))
    objects = []
    for entry in manifest.objects:
        holders = [name for name in targets if needs[name](entry["path"])]
        if not holders:
            raise TransferError(
                f"nobody needs {entry['path']} of {contents.first}", "every object has to lie somewhere"
            )
        objects.append({**entry, "host": "" if len(holders) == len(targets) else holders[0]})
    hosts = [records.SpreadHost(name, [], place.directory).to_json() for name, place in targets.items()]
    shared = dataclasses.replace(manifest, objects=objects, hosts=hosts)
    return {
        name: dataclasses.replace(
            contents.only(needs[name]), text=json.dumps(dataclasses.replace(shared, host=name).to_json(), indent=1)
        )
        for name in targets
    }


class _Any(Event):
    """Set when it is set itself, or when the caller's event is."""

    def __init__(self, other: Event | None):
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or (self._other is not None and self._other.is_set())


class _Together:
    """One progress of several copies."""

    def __init__(self, publish: Callable[[Progress], None] | None, count: int):
        self._publish, self._count = publish, count
        self._latest: dict[str, Progress] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> Callable[[Progress], None] | None:
        if self._publish is None:
            return None

        def tell(progress: Progress) -> None:
            with self._lock:
                self._latest[name] = progress
                if len(self._latest) == self._count and self._publish is not None:
                    self._publish(_sum(list(self._latest.values()), progress.object))

        return tell


def _sum(parts: list[Progress], newest: str) -> Progress:
    """The whole takes as long as the slowest part."""
    left = [part.eta_seconds for part in parts if part.bytes_done < part.bytes_total]
    known = [each for each in left if each is not None]
    return Progress(
        bytes_done=sum(part.bytes_done for part in parts),
        bytes_total=sum(part.bytes_total for part in parts),
        objects_done=sum(part.objects_done for part in parts),
        objects_total=sum(part.objects_total for part in parts),
        object=newest,
        bytes_per_second=sum(part.bytes_per_second for part in parts),
        eta_seconds=None if len(known) < len(left) else max(known, default=0.0),
    )
