"""Print a plan and its checks, and ask for the confirmation that it needs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import Exit, MidstreamError
from midstream.headless.confirmation import can_ask, confirmed
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.check.check_result import Check
    from midstream.migrate.journal.plan import Plan


def print_plan(plan: Plan, options: argparse.Namespace, output: Output) -> None:
    """Print a plan: on stdout where it is the result (`--dry-run`), else as a message."""
    from midstream.migrate.planning.plan_description import describe

    lines = describe(plan)
    output.value({"event": "plan", **plan.to_json()}, lines if options.dry_run else "")
    if not options.dry_run and not output.as_json:
        for line in lines:
            output.message(line)


def print_check(check: Check, output: Output) -> None:
    """Print one line of the preflight."""
    mark = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}[check.state]
    hint = f" ({check.hint})" if check.hint else ""
    output.value({"event": "check", **asdict(check)}, f"{mark} {check.name}: {check.detail}{hint}")


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
    from midstream_core.records import ENDED

    if options.yes:
        return
    reasons = list(plan.policy.consent)
    if plan.estimate.steps_lost:
        reasons.insert(0, f"{count(plan.estimate.steps_lost, 'step')} after {plan.checkpoint} would be discarded")
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
