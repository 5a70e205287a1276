"""Everything that can be done while the source trains on: engine, environment, data."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.launch.bundle import install_engine
from midstream.launch.environment import prepare_environment
from midstream.migrate import plan as planning
from midstream.migrate.model import PREPARE
from midstream.migrate.move import Move, pin
from midstream.transfer import copy_objects
from midstream_engine import records


class Prepare:
    """Puts engine, environment and data on the target. Writes nothing into any run, and needs no undoing."""

    name = PREPARE

    def run(self, move: Move) -> None:
        plan, target = move.plan, move.target
        install = install_engine(target)
        move.command(target, f"install engine {install.digest[:12]} in {install.directory}")
        environment = prepare_environment(target, move.fleet.hosts[plan.target_host])
        move.command(target, f"{environment.python} ({environment.how})")
        if plan.data_digest:
            copy_data(move, plan.data_digest)
        if plan.checkpoint != "now":
            self._copy_checkpoint(move)

    def _copy_checkpoint(self, move: Move) -> None:
        """A checkpoint that exists already travels before the cutover: one that is damaged is found out while the
        source is untouched, and the downtime has nothing to wait for."""
        source, target, name = move.source, move.target, move.plan.checkpoint
        pin(move, name)
        here, there = move.source_paths.checkpoint(name), move.target_paths.checkpoint(name)
        move.command(source, f"copy {here} to {target.name}:{there}")
        copy_objects(source, here, target, there, progress=move.progress("checkpoint"))


def copy_data(move: Move, digest: str) -> None:
    """Bring the token cache ``digest`` to the target, unless it is there."""
    there = planning.data_directory(move.target, digest)
    here = planning.data_directory(move.source, digest)
    if planning.has_manifest(move.target, there):
        move.note("the target has the data already", what="data")
        return
    if not planning.has_manifest(move.source, here):
        raise MidstreamError(
            f"the token cache {digest[:12]} is neither on {move.source.name} nor on {move.target.name}",
            f"it belongs in {here}; without it the run cannot go on with the same data",
        )
    move.command(move.source, f"copy {here} to {move.target.name}:{there}")
    copy_objects(move.source, here, move.target, there, manifest_name=records.MANIFEST, progress=move.progress("data"))
