"""The phases of a migration, in the order in which they run."""

from __future__ import annotations

from midstream.migrate.phases.certify import Certify
from midstream.migrate.phases.cutover import Cutover
from midstream.migrate.phases.finish import Finish
from midstream.migrate.phases.prepare import Prepare
from midstream.migrate.phases.relaunch import Relaunch
from midstream.migrate.steps.migration import Phase


def phases() -> tuple[Phase, ...]:
    """Return the phases that follow plan and preflight, in their order."""
    return (Prepare(), Cutover(), Relaunch(), Certify(), Finish())


__all__ = ["phases"]
