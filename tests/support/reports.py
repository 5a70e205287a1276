"""Reports of a run with everything in them, also with hostile texts."""

from __future__ import annotations

from dataclasses import replace

from midstream.costs.cost_report import MigrationCost, RunCost
from midstream.migrate.journal.certificate import VERIFIED, Claim
from midstream.report.run_report import RunReport
from midstream_core import records
from support.tui import fleets, prepared_migrations


def report() -> RunReport:
    """Return the report of a run that was migrated, with a certificate."""
    run = fleets.moved_run()
    migration = prepared_migrations.certified()
    return RunReport(
        run,
        fleets.NOW,
        (migration,),
        RunCost(run.run_id, ("small", "large"), 7200.0, 3600.0, 24.5),
        (MigrationCost(migration.migration, run.run_id, "small", "large", "completed", 30.0, 4.0, 1.25),),
        (("trainer.seed", "1"), ("optimizer.learning_rate", "0.0003")),
        ("~ trainer.per_device_parallelism 16 → 8",),
        "",
        ("gpu1: connection refused",),
    )


def hostile(value: RunReport, words: str) -> RunReport:
    """Return a report in which every text of a host, a file or a user is ``words``."""
    run, migration = value.run, value.migrations[0]
    assert run.status is not None
    assert run.lineage is not None
    assert migration.certificate is not None
    lineage = records.Lineage(run.run_id, [{**entry, "device_kind": words} for entry in run.lineage.attempts])
    proof = replace(migration.certificate, claims=(Claim(words, VERIFIED, words),), target=words)
    return replace(
        value,
        run=replace(
            run,
            run_id=words,
            host=words,
            problem=words,
            store=words,
            lineage=lineage,
            status=replace(run.status, tags=[words], project=words, message=words),
        ),
        migrations=(replace(migration, certificate=proof, error=words, damage=(words,)),),
        config=((words, words),),
        config_changes=(words,),
        reason=words,
        not_known=(words,),
    )
