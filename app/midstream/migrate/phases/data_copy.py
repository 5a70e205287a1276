"""The token caches of a run, on their way."""

from __future__ import annotations

from collections.abc import Iterable

from midstream.errors import MidstreamError
from midstream.migrate import host_files
from midstream.migrate.execution.migration import Migration
from midstream.remote.copy.allowlist import DATA
from midstream.transfer import copy_objects


def copy_all(move: Migration, digests: Iterable[str]) -> None:
    """Bring these token caches to the target: those that are not there."""
    for digest in digests:
        copy_data(move, digest)


def copy_data(move: Migration, digest: str) -> None:
    """Bring the token cache ``digest`` to the target, unless it is there."""
    there = host_files.data_directory(move.target, digest)
    here = host_files.data_directory(move.source, digest)
    if host_files.has_manifest(move.target, there):
        move.note("the target has the data already", what="data")
        _hand_out(move, digest)
        return
    if not host_files.has_manifest(move.source, here):
        raise MidstreamError(
            f"the token cache {digest[:12]} is neither on {move.source.name} nor on {move.target.name}",
            f"it belongs in {here}; without it the run cannot go on with the same data",
        )
    move.command(move.source, f"copy {here} to {move.target.name}:{there}")
    copy_objects(move.source, here, move.target, there, progress=move.progress("data"), kind=DATA)
    _hand_out(move, digest)


def _hand_out(move: Migration, digest: str) -> None:
    """From the target's first host to its others."""
    progress = move.progress("data, to each host")
    move.target_group.hand_out(lambda host: host_files.data_directory(host, digest), progress, DATA)
