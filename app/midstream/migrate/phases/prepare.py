"""Prepare the target while the source trains: engine, environment, data."""

from __future__ import annotations

import shlex

from midstream.hosts.reconnect import STANDBY_END
from midstream.migrate import stages
from midstream.migrate.journal.phase_names import PREPARE
from midstream.migrate.steps import prepare_standby, rehearsal_overlap
from midstream.migrate.steps.data_copy import copy_token_caches
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.pins import pin
from midstream.migrate.steps.preemption import preempted
from midstream.migrate.steps.streamed_copy import copy_checkpoint, prepare_copy


class Prepare:
    """Install engine, environment and data on the target.

    In warm and live mode, also start the standby there.
    """

    name = PREPARE

    def run(self, migration: Migration) -> None:
        plan = migration.plan
        migration.log_own_command(f"migrate {plan.run_id} from {plan.source} to {plan.target}", plan.command())
        with migration.stage(stages.INSTALL):
            prepared = migration.target_group.prepared()
        for name, ready in prepared.items():
            host = migration.hosts.get(name)
            engine, python = ready.engine, ready.environment.python
            listing = f"ls -l {shlex.quote(engine.directory)}"
            migration.log_command(host, f"install engine {engine.digest[:12]} in {engine.directory}", shows=listing)
            what = "import jax; print(jax.__version__)" if plan.trainer is None else "import sys; print(sys.version)"
            imports = shlex.join([python, "-c", what])
            migration.log_command(host, f"{python} ({ready.environment.how})", shows=imports)
        with migration.stage(stages.DATA):
            copy_token_caches(migration, plan.route.data_digests)
        _ = migration.source_group.run_hosts  # determined now: later the run is stopped
        prepare_copy(migration)
        if plan.has_standby:
            prepare_standby.ensure(migration)
            if plan.trainer is not None:
                rehearsal_overlap.check(migration)
        elif plan.checkpoint != "now":
            with migration.stage(stages.CHECKPOINT):
                self._copy_checkpoint(migration)

    def undo(self, migration: Migration) -> None:
        """Release the migration lock and the pin; end a standby that still runs."""
        plan = migration.plan
        migration.source_group.release(plan.migration, plan.epoch, plan.target)
        if not preempted(migration.fleet, migration.target_group.target):
            # The run is safe; a remaining standby occupies accelerators.
            prepare_standby.end_standby_if_reachable(migration, STANDBY_END)

    def _copy_checkpoint(self, migration: Migration) -> None:
        """Copy an existing checkpoint before the cutover.

        Damage is found while the source trains, and the copy is no part of the downtime.
        """
        pin(migration, migration.plan.checkpoint)
        copy_checkpoint(migration, migration.plan.checkpoint, "checkpoint")
