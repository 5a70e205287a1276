"""Copy a run's token caches to the target."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from midstream.errors import MidstreamError
from midstream.migrate import host_files
from midstream.migrate.steps.migration import Migration
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream_host.allowlist import DATA


def copy_token_caches(migration: Migration, digests: Iterable[str]) -> None:
    """Copy these token caches to the target, except those that it has."""
    for digest in digests:
        copy_token_cache(migration, digest)


def copy_further_caches(migration: Migration, checkpoint: str) -> None:
    """Copy the token caches that a checkpoint needs and the plan does not include."""
    needed = migration.target_group.checkpoint_store.data_digests(checkpoint)
    copy_token_caches(migration, [digest for digest in needed if digest not in migration.plan.route.data_digests])


def copy_token_cache(migration: Migration, digest: str) -> None:
    """Copy the token cache ``digest`` to the target, unless the target has it."""
    there = host_files.data_directory(migration.target, digest)
    here = host_files.data_directory(migration.source, digest)
    if host_files.has_manifest(migration.target, there):
        migration.note("the target has the data already", what="data")
        _distribute(migration, digest)
        return
    if not host_files.has_manifest(migration.source, here):
        raise MidstreamError(
            f"the token cache {digest[:12]} is neither on {migration.source.name} nor on {migration.target.name}",
            f"restore it to {here}: without it the run cannot continue with the same data",
        )
    migration.log_command(
        migration.target, f"copy {migration.source.name}:{here} to {there}", shows=f"ls -l {shlex.quote(there)}"
    )
    copy_tree(
        Endpoint(migration.source, here),
        Endpoint(migration.target, there),
        progress=migration.progress("data"),
        kind=DATA,
    )
    _distribute(migration, digest)


def _distribute(migration: Migration, digest: str) -> None:
    """Copy a token cache from the target's first host to its others."""
    progress = migration.progress("data, to other hosts")
    migration.target_group.distribute(lambda host: host_files.data_directory(host, digest), progress, DATA)
