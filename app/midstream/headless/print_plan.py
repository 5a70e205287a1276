"""Print a plan and its checks, and ask for the confirmation that it needs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError
from midstream.headless.confirmation import can_ask, confirmed
from midstream.json_events.migration_events import PlanEvent
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.migrate.journal.plan import Plan


def print_plan(plan: Plan, options: argparse.Namespace, output: Output) -> None:
    """Print a plan: on stdout where it is the result (`--dry-run`), else as a message."""
    from midstream.migrate.planning.plan_description import describe

    lines = describe(plan)
    output.event(PlanEvent(**plan.to_json()), lines if options.dry_run else "")
    if not options.dry_run and not output.as_json:
        for line in lines:
            output.message(line)


def require_consent(plan: Plan, options: argparse.Namespace, output: Output, *, confirmed_before: bool = False) -> None:
    """Ask before a migration begins.

    Without a terminal, refuse one that costs or gives up something.

    Args:
        plan: The plan, which has been printed.
        options: Flags of the command line; ``--yes`` agrees to everything.
        output: Output of the command.
        confirmed_before: The user has agreed to this migration; what its plan gives up still needs a confirmation.

    Raises:
        MidstreamError: The user did not agree.
    """
    from midstream.migrate.modes.registry import mode_of
    from midstream.operations.plan_migration import losses
    from midstream_core.records import ENDED

    if options.yes:
        return
    reasons = losses(plan)
    if can_ask(output) and (reasons or not confirmed_before):
        for reason in reasons:
            output.message(f"midstream: {reason}")
        if confirmed(f"Migrate {plan.run_id} from {plan.source} to {plan.target}?", output):
            return
        raise MidstreamError("not confirmed: nothing was changed", "--yes migrates without the question", Exit.REFUSED)
    if not reasons:
        return
    if plan.estimate.steps_lost:
        running = plan.route.source_state not in (*ENDED, "lost", "unknown")
        hint = "--yes accepts it" + ("; --checkpoint now discards none" if running else "")
    else:
        hint = "--yes accepts it" + mode_of(plan.mode).alternative
    raise MidstreamError(f"nothing was changed, because you did not agree to: {'; '.join(reasons)}", hint, Exit.REFUSED)
