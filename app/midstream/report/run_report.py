"""Contents of a run's report, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midstream.costs.cost_report import MigrationCost, RunCost
from midstream.migrate.journal.migration_view import MigrationView
from midstream.watch.snapshot import RunView

ConfigField = tuple[str, str]  # dotted name, value as text


@dataclass(frozen=True)
class RunReport:
    """A run, its migrations, costs and configuration at one moment.

    ``not_known``: one line for each thing that could not be read.
    """

    run: RunView
    made: float  # UTC seconds
    migrations: tuple[MigrationView, ...] = ()  # oldest first
    cost: RunCost | None = None
    migration_costs: tuple[MigrationCost, ...] = ()
    config: Sequence[ConfigField] = ()  # of the newest attempt
    config_changes: Sequence[str] = ()  # since the first attempt, one line each
    reason: str = ""  # why the run failed; empty where it did not
    not_known: tuple[str, ...] = ()
