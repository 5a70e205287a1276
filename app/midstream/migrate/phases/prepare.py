"""Everything that can be done while the source trains on: engine, environment, data."""

from __future__ import annotations

from midstream.migrate.execution.migration import Migration, pin
from midstream.migrate.model import PREPARE
from midstream.migrate.phases import prepare_standby
from midstream.migrate.phases.data_copy import copy_all
from midstream.migrate.phases.streamed_copy import bring_checkpoint


class Prepare:
    """Puts engine, environment and data on the target, and where the mode says so an attempt that stands by there. That
    one alone needs undoing."""

    name = PREPARE

    def run(self, move: Migration) -> None:
        plan = move.plan
        for name, ready in move.target_group.prepared(move.fleet).items():
            host = move.hosts.get(name)
            move.command(host, f"install engine {ready.engine.digest[:12]} in {ready.engine.directory}")
            move.command(host, f"{ready.environment.python} ({ready.environment.how})")
        copy_all(move, plan.data_digests)
        _ = move.source_group.run_hosts  # looked at now: later the run stands still
        if plan.stands_by:
            prepare_standby.ensure(move)
        elif plan.checkpoint != "now":
            self._copy_checkpoint(move)

    def _copy_checkpoint(self, move: Migration) -> None:
        """A checkpoint that exists already travels before the cutover: one that is damaged is found out while the
        source is untouched, and the downtime has nothing to wait for."""
        pin(move, move.plan.checkpoint)
        bring_checkpoint(move, move.plan.checkpoint, "checkpoint")
