"""What lies on a host, read from here: a run's config, its manifests, its token caches. No side effects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from midstream.errors import MidstreamError, RemoteError
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.hosts.base import Host
    from midstream.watch.model import RunView


def newest_state(
    source: Host, found: dict[str, Any] | None, run: RunView
) -> tuple[str, records.Manifest | None, tuple[str, ...]]:
    """The newest complete checkpoint (see `shelf.Shelf.newest_state`): its name (empty where there is none), its
    manifest and its token caches."""
    if found is None:
        return "", None, tuple(run.status.data_digests) if run.status else ()
    manifest = records.Manifest.from_json(found["manifest"], f"{source.name}: manifest of {found['name']}")
    return found["name"], manifest, tuple(records.data_digests(found["train"]))


def training_config(source: Host, run_id: str) -> dict[str, Any]:
    """``run.yaml``, every default written out. MidstreamError where it cannot be read."""
    path = records.RunPaths(source.root, run_id).config
    try:
        text = source.call("runs.read_text", path=path)
        return yaml.safe_load(text) or {}
    except (RemoteError, yaml.YAMLError) as error:
        raise MidstreamError(
            f"{source.name}:{path} cannot be read: {error}", "the run directory needs its run.yaml"
        ) from error


def _json_at(host: Host, path: str) -> Any:
    return json.loads(host.call("runs.read_text", path=path))


def read_manifest(host: Host, run_id: str, name: str) -> records.Manifest:
    """Of a checkpoint. RemoteError where there is none."""
    path = f"{records.RunPaths(host.root, run_id).checkpoint(name)}/{records.MANIFEST}"
    return records.Manifest.from_json(_json_at(host, path), f"{host.name}:{path}")


def data_digests(host: Host, run_id: str, checkpoint: str) -> tuple[str, ...]:
    """The token caches that a checkpoint's run reads from its host: the one that it trains on, then its validation
    sets. Empty where they lie in a bucket."""
    train = _json_at(host, f"{records.RunPaths(host.root, run_id).checkpoint(checkpoint)}/{records.TRAIN}")
    return tuple(records.data_digests(train))


def data_directory(host: Host, digest: str) -> str:
    """Where a token cache lies on a host."""
    return f"{host.root}/data/{digest}"


def has_manifest(host: Host, directory: str) -> bool:
    """Whether a complete tree of objects lies there."""
    try:
        _json_at(host, f"{directory}/{records.MANIFEST}")
    except RemoteError:
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
    return sum(entry["size"] for entry in described["objects"])
