"""Everything that can be done while the source trains on: engine, environment, data."""

from __future__ import annotations

from midstream.launch.bundle import install_engine
from midstream.launch.environment import prepare_environment
from midstream.migrate import standby
from midstream.migrate.data import copy_all
from midstream.migrate.model import PREPARE
from midstream.migrate.move import Move, pin
from midstream.transfer import copy_objects


class Prepare:
    """Puts engine, environment and data on the target, and where the mode says so an attempt that stands by there. That
    one alone needs undoing."""

    name = PREPARE

    def run(self, move: Move) -> None:
        plan, target = move.plan, move.target
        install = install_engine(target)
        move.command(target, f"install engine {install.digest[:12]} in {install.directory}")
        environment = prepare_environment(target, move.fleet.hosts[plan.target_host])
        move.command(target, f"{environment.python} ({environment.how})")
        copy_all(move, plan.data_digests)
        if plan.stands_by:
            standby.ensure(move)
        elif plan.checkpoint != "now":
            self._copy_checkpoint(move)

    def _copy_checkpoint(self, move: Move) -> None:
        """A checkpoint that exists already travels before the cutover: one that is damaged is found out while the
        source is untouched, and the downtime has nothing to wait for."""
        source, target, name = move.source, move.target, move.plan.checkpoint
        pin(move, name)
        here, there = move.source_paths.checkpoint(name), move.target_paths.checkpoint(name)
        move.command(source, f"copy {here} to {target.name}:{there}")
        copy_objects(source, here, target, there, progress=move.progress("checkpoint"))
