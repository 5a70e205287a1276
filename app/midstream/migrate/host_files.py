"""What lies on a host, read from here: a run's config, its manifests, its token caches. No side effects."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from midstream.errors import DamagedError, MidstreamError, RemoteError
from midstream.migrate.planning import source_config
from midstream.remote.copy import allowlist
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.hosts.host import Host
    from midstream.watch.snapshot import RunView

ABSENT = ("FileNotFoundError", "NotADirectoryError")  # what a host raises for a file that is not there
_DIGEST = re.compile(r"[0-9a-f]{64}")


def newest_state(
    source: Host, found: dict[str, Any] | None, run: RunView
) -> tuple[str, records.Manifest | None, tuple[str, ...]]:
    """The newest complete checkpoint (see `shelf.Shelf.newest_state`): its name (empty where there is none), its
    manifest and its token caches."""
    if found is None:
        return "", None, tuple(run.status.data_digests) if run.status else ()
    where = f"{source.name}: {found['name']}"
    with _damage(where):
        manifest = records.Manifest.from_json(found["manifest"], records.MANIFEST)
        return found["name"], manifest, tuple(records.data_digests(found["train"]))


def training_config(source: Host, run_id: str) -> dict[str, Any]:
    """``run.yaml``, every default written out. MidstreamError where it cannot be read."""
    return source_config.read_config(source, run_id)[1]


def _json_at(host: Host, path: str) -> Any:
    """RemoteError where it is absent, DamagedError where it is there and cannot be read."""
    text = host.call("runs.run_state.read_text", path=path)
    with _damage(f"{host.name}:{path}"):
        return records.parse_json(text, "damaged")


@contextlib.contextmanager
def _damage(where: str) -> Iterator[None]:
    """What cannot be read, as an error for a person."""
    try:
        yield
    except records.RecordError as error:
        raise DamagedError(f"{where}: {error}", "Damaged", "midstream --verify names all that is wrong there") from None


def read_manifest(host: Host, run_id: str, name: str) -> records.Manifest:
    """Of a checkpoint. RemoteError where there is none."""
    path = f"{records.RunPaths(host.root, run_id).checkpoint(name)}/{records.MANIFEST}"
    value = _json_at(host, path)
    with _damage(f"{host.name}:{path}"):
        return records.Manifest.from_json(value, "damaged")


def data_digests(host: Host, run_id: str, checkpoint: str) -> tuple[str, ...]:
    """The token caches that a checkpoint's run reads from its host: the one that it trains on, then its validation
    sets. Empty where they lie in a bucket."""
    train = _json_at(host, f"{records.RunPaths(host.root, run_id).checkpoint(checkpoint)}/{records.TRAIN}")
    with _damage(f"{host.name}: {checkpoint}"):
        return tuple(records.data_digests(train))


def data_directory(host: Host, digest: str) -> str:
    """Where a token cache lies on a host. MidstreamError where ``digest``, which came from a host, is none."""
    if not _DIGEST.fullmatch(digest):
        raise MidstreamError(
            f"the run names data {allowlist.shown(digest)}, and data are named by a SHA-256",
            f"look at {records.TRAIN} of its newest checkpoint: it is damaged or hostile",
        )
    return f"{host.root}/data/{digest}"


def has_manifest(host: Host, directory: str) -> bool:
    """Whether a complete tree of objects lies there. DamagedError where its manifest cannot be read."""
    try:
        _json_at(host, f"{directory}/{records.MANIFEST}")
    except RemoteError as error:
        if error.kind not in ABSENT:
            raise
        return False
    return True


def missing_data(source: Host, target: Host, digest: str) -> int:
    """Bytes of a token cache that the target lacks."""
    if has_manifest(target, data_directory(target, digest)):
        return 0
    try:
        described = _json_at(source, f"{data_directory(source, digest)}/{records.MANIFEST}")
    except RemoteError:
        return 0  # preflight says so
    try:
        return sum(records.ObjectEntry.from_json(entry).size for entry in described["objects"])
    except (records.RecordError, KeyError, TypeError):
        return 0
