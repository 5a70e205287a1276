"""Read files of a host: a run's config, manifests, token caches. No side effects."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from midstream.errors import DamagedError, MidstreamError, RemoteError
from midstream.hosts.host import Host
from midstream.migrate import source_config
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_host import allowlist
from midstream_host.runs import run_state
from midstream_host.runs.standby_state import NewestState

CONCURRENCY = 32  # hosts that are requested at the same time
ABSENT = ("FileNotFoundError", "NotADirectoryError")  # what a host raises for a file that is not there
_DIGEST = re.compile(r"[0-9a-f]{64}")


def newest_state(
    source: Host, newest: NewestState | None, run: RunView
) -> tuple[str, records.Manifest | None, tuple[str, ...]]:
    """Return name, manifest and token caches of the newest complete checkpoint.

    ``newest`` is the store's answer (`CheckpointStore.newest_state`); without one the name is empty.
    """
    if newest is None:
        return "", None, tuple(run.status.data_digests) if run.status else ()
    with _damage(f"{source.name}: {newest.name}"):
        return newest.name, newest.manifest, tuple(records.data_digests(newest.train))


def training_config(source: Host, run_id: str) -> dict[str, JsonValue]:
    """Return ``run.yaml`` with all defaults. MidstreamError if it cannot be read."""
    return source_config.read_config(source, run_id)[1]


def _json_at(host: Host, path: str) -> Any:
    """Return the JSON value of a file. RemoteError if absent, DamagedError if damaged."""
    text = host.call(run_state.read_text)(path=path)
    with _damage(f"{host.name}:{path}"):
        return records.parse_json(text, "damaged")


@contextlib.contextmanager
def _damage(where: str) -> Generator[None, None, None]:
    """Turn RecordError into an error with a hint for the user."""
    try:
        yield
    except records.RecordError as error:
        raise DamagedError(
            f"{where}: {error}", "Damaged", "midstream --verify CHECKPOINT lists all damage there"
        ) from None


def read_manifest(host: Host, run_id: str, name: str) -> records.Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        RemoteError: There is none.
        DamagedError: It is damaged.
    """
    path = f"{records.RunPaths(host.root, run_id).checkpoint(name)}/{records.MANIFEST}"
    value = _json_at(host, path)
    with _damage(f"{host.name}:{path}"):
        return records.Manifest.from_json(value, "damaged")


def data_digests(host: Host, run_id: str, checkpoint: str) -> tuple[str, ...]:
    """Return the token caches that a checkpoint's run reads from its host.

    The training set is first, then the validation sets. Empty if they are in a bucket.
    """
    train = _json_at(host, f"{records.RunPaths(host.root, run_id).checkpoint(checkpoint)}/{records.TRAIN}")
    with _damage(f"{host.name}: {checkpoint}"):
        return tuple(records.data_digests(train))


def data_directory(host: Host, digest: str) -> str:
    """Return the directory of a token cache.

    Digests come from hosts, which are not trusted.

    Raises:
        MidstreamError: ``digest`` is no SHA-256.
    """
    if not _DIGEST.fullmatch(digest):
        raise MidstreamError(
            f"the run names a token cache {allowlist.shown(digest)}, which is not a SHA-256",
            f"look at {records.TRAIN} of its newest checkpoint: it is damaged or hostile",
        )
    return f"{host.root}/data/{digest}"


def has_manifest(host: Host, directory: str) -> bool:
    """Return whether a complete tree of objects is there. DamagedError if unreadable."""
    try:
        _json_at(host, f"{directory}/{records.MANIFEST}")
    except RemoteError as error:
        if error.kind not in ABSENT:
            raise
        return False
    return True


def hosts_without(hosts: Sequence[Host], digest: str) -> tuple[Host, ...]:
    """Return the hosts that lack a token cache. Errors as of `has_manifest`."""

    def has(host: Host) -> bool:
        return has_manifest(host, data_directory(host, digest))

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        presence = pool.map(has, hosts)
        return tuple(host for host, there in zip(hosts, presence, strict=True) if not there)


def missing_data(source: Host, hosts: Sequence[Host], digests: Sequence[str]) -> tuple[int, ...]:
    """Return the bytes of these token caches that each of ``hosts`` lacks."""
    missing = dict.fromkeys((host.name for host in hosts), 0)
    for digest in digests:
        lacking = hosts_without(hosts, digest)
        size = _data_size(source, digest) if lacking else 0
        for host in lacking:
            missing[host.name] += size
    return tuple(missing.values())


def _data_size(source: Host, digest: str) -> int:
    """Return the bytes of a token cache; 0 where its host has none that can be read."""
    try:
        described = _json_at(source, f"{data_directory(source, digest)}/{records.MANIFEST}")
    except RemoteError:
        return 0  # preflight reports it
    try:
        return sum(records.ObjectEntry.from_json(entry).size for entry in described["objects"])
    except (records.RecordError, KeyError, TypeError):
        return 0
