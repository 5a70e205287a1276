"""Modes `--migrate`, `--continue` and `--rollback`: plan, preflight, progress."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from midstream.errors import Exit, HostError, MidstreamError, RemoteError, UsageError
from midstream.format import duration, size
from midstream.headless.check_lines import print_check
from midstream.headless.confirmation import can_ask, confirmed
from midstream.headless.import_run import import_request_of, print_import_plan
from midstream.headless.migration_request import is_path, request_of
from midstream.headless.print_plan import print_plan, require_consent
from midstream.json_events.result_event import DryRunResult
from midstream.migrate.journal.certificate import NOT_CHECKED
from midstream.migrate.journal.downtime_report import shown_phase
from midstream.migrate.journal.event import STAGE, Event, shell_line_of
from midstream.migrate.journal.migration_state import ROLLBACK_INCOMPLETE, ROLLED_BACK
from midstream.migrate.journal.stage_times import DONE, report_lines
from midstream.operations.fleet_snapshot import fleet_snapshot
from midstream.operations.import_run import import_run
from midstream.output import Output
from midstream_host.runs import run_state

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.migrate.journal.migration_view import MigrationView


def migrate(
    fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output, on_interrupt: str = ""
) -> int:
    """Plan, run the preflight, then start the migration and follow it to its end.

    Args:
        fleet: The fleet.
        options: Flags of the command line.
        engine: Flags of the engine.
        output: Output of the command.
        on_interrupt: See `follow`.

    Raises:
        MidstreamError: The migration was refused, or needs confirmation.
    """
    from midstream.check.check_result import FAIL
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate import migration_process
    from midstream.migrate.planning import planner as planning
    from midstream.migrate.planning import preflight

    to_import = import_request_of(options, engine)
    if to_import.flags and not is_path(options.migrate):
        flags = " ".join(to_import.flags)
        raise UsageError(f"{flags}: {options.migrate} is a run, not the PATH of a checkpoint to import")
    hosts = HostPool(fleet)
    run_id, source = options.migrate, ""
    imported = False
    try:
        if is_path(run_id):
            asks = can_ask(output) and not options.yes
            if options.dry_run or asks:
                print_import_plan(hosts, to_import, options, output)
            if options.dry_run:
                output.event(DryRunResult(run=None, migration=None))
                return Exit.DONE
            if asks and not confirmed(f"Import {options.migrate} and migrate it to {options.to}?", output):
                raise MidstreamError(
                    "not confirmed: nothing was changed",
                    "--yes imports and migrates without the question",
                    Exit.REFUSED,
                )
            made = import_run(hosts, to_import, output.message)
            run_id, source, imported = made.run_id, made.host, True
        request = request_of(options, run_id, source, engine)
        snapshot = fleet_snapshot(hosts, remember=not options.dry_run)
        plan = planning.make_plan(hosts, snapshot, request)
        print_plan(plan, options, output)
        failed = None
        for check in preflight.run_checks(hosts, plan):
            print_check(check, output)
            failed = failed or (check if check.state == FAIL else None)
    except MidstreamError as error:
        # Nothing was changed: an unreachable host or an impossible plan is a refusal, not a failure.
        if error.code == Exit.FAILED:
            error.code = Exit.REFUSED
        raise
    finally:
        hosts.close()
    if failed is not None:
        raise MidstreamError(f"preflight refused: {failed.name}: {failed.detail}", failed.hint, Exit.REFUSED)
    if options.dry_run:
        output.event(DryRunResult(run=plan.run_id, migration=None))
        return Exit.DONE
    require_consent(plan, options, output, confirmed_before=imported)
    migration = migration_process.start(fleet, plan)
    return follow(migration, output, on_interrupt=on_interrupt, verbose=options.verbose)


def resume(options: argparse.Namespace, output: Output) -> int:
    """`--continue` and `--rollback`."""
    from midstream.migrate import migration_process
    from midstream.migrate.journal import migration_directory
    from midstream.migrate.journal.migration_state import ROLLED_BACK
    from midstream.migrate.modes.registry import WARM

    if options.continue_:
        directory = migration_directory.MigrationDirectory.find(options.continue_)
        offset = directory.journal_size()
        if options.mode is not None:
            if options.mode != WARM:
                hint = "a live migration can only continue as a warm one"
                raise UsageError(f"--continue with --mode {options.mode}", hint)
            migration_process.switch_to_warm(directory.migration)
        migration_process.continue_(directory.migration, agreed=options.yes)
        return follow(directory.migration, output, offset, verbose=options.verbose)
    directory = migration_directory.MigrationDirectory.find(options.rollback)
    view = migration_process.readable(directory)
    if not view.finished and view.state != ROLLED_BACK and not options.yes:
        discarded = _discarded_steps(view)
        if discarded:
            raise MidstreamError(discarded, "--yes accepts it", Exit.REFUSED)
    offset = directory.journal_size()
    migration_process.rollback(view.migration, agreed=options.yes)
    code = follow(view.migration, output, offset, verbose=options.verbose)
    migration_process.refuse_finished(directory)  # completed before its process read the request
    return code


def _discarded_steps(view: MigrationView) -> str:
    """Return which steps a rollback would discard, by what the target reports now."""
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.journal.migration_directory import MigrationDirectory
    from midstream.operations.rollback import discarded

    hosts = HostPool(MigrationDirectory(view.migration).fleet())
    try:
        host = hosts.get(view.plan.target_host)
        described = host.call(run_state.describe)(root=host.root, run_id=view.plan.run_id)
    except RemoteError as error:
        return discarded(view, None, None, unreadable=error.message)
    except HostError as error:
        return discarded(view, None, None, unreachable=error.message)
    finally:
        hosts.close()
    return discarded(view, described.status, described.fence, described.attempts)


def follow(migration: str, output: Output, offset: int = 0, on_interrupt: str = "", *, verbose: bool = False) -> int:
    """Print a migration's journal to its end; return its exit code.

    It begins at byte ``offset``. A terminal gets one line that is redrawn, unless ``verbose``.

    Ctrl-C leaves the migration running and prints ``on_interrupt``, or how to follow it again.

    Raises:
        MidstreamError: The migration's process exited without a result.
    """
    from midstream.migrate import migration_process
    from midstream.migrate.journal.migration_directory import MigrationDirectory

    code: int | None = None
    try:
        with contextlib.ExitStack() as terminal:
            show = partial(print_event, output=output)
            if not verbose and (live := output.live_terminal) is not None:
                from midstream.headless.live_line import LiveLine

                show = terminal.enter_context(LiveLine(MigrationDirectory.find(migration), live)).show
            for event in migration_process.follow(migration, offset):
                if event.event == "result":
                    code = int(event.detail["exit_code"])
                    terminal.close()
                    print_event(event, output)
                    output.alert(str(event.message or event.detail.get("outcome", "")))
                elif event.event not in ("fact", "trace"):
                    show(event)
    except KeyboardInterrupt:
        back = f"the migration continues; midstream --continue {migration} follows it again"
        output.message("")  # after the terminal's ^C
        output.message(f"midstream: {on_interrupt or back}")
        return Exit.INTERRUPTED
    if code is None:
        last_line = migration_process.last_log_line(MigrationDirectory(migration))
        raise MidstreamError(
            f"the process of migration {migration} has exited" + (f": {last_line}" if last_line else ""),
            f"midstream --continue {migration} continues it",
            Exit.INTERRUPTED,
        )
    return code


def print_event(event: Event, output: Output) -> None:
    """Print one event of a migration's journal."""
    detail = event.detail
    if output.as_json:
        output.value(event.to_json())
        if event.event == "result" and detail.get("exit_code"):
            output.message(f"midstream: {result_lines(event)[0]}")
        return
    if event.event == "phase" and event.state == "progress":
        done, total = detail["bytes_done"], detail["bytes_total"]
        what, rate = detail.get("what", "copy"), size(detail.get("bytes_per_second", 0))
        eta = detail.get("eta_seconds")
        remaining = f", {duration(eta)} left" if eta is not None and done < total else ""
        output.message(f"    {what}: {size(done)} of {size(total)}, {rate}/s{remaining}")
    elif event.event == "phase":
        output.message(f"{event.phase}: {event.state}" + (f": {event.message}" if event.message else ""))
    elif event.event == "command":
        output.message(f"    [{detail.get('host') or 'here'}] {event.message}")
        output.message("        " + " ".join(shell_line_of(event)).rstrip())
    elif event.event == "result":
        output.value({}, result_lines(event))
    elif event.event == STAGE and event.state == DONE:
        seconds = detail.get("seconds")
        output.message(f"    {detail.get('stage')}: took {duration(seconds)}" if seconds is not None else "")
    else:
        output.message(f"    {event.message}")


def result_lines(event: Event) -> list[str]:
    """Return the result of a migration as text."""
    detail = event.detail
    lines = [
        f"{detail.get('run') or detail.get('migration')}: {detail.get('outcome')}"
        + (f": {event.message}" if event.message else "")
    ]
    certificate = detail.get("certificate")
    if certificate:
        lines.append(
            f"certificate: {_validity(certificate['valid'], detail.get('outcome'))}{_unchecked(certificate)}, "
            f"step {certificate['step']}, root digest {certificate['root_digest'][:16]}"
        )
        lines += [f"  {claim['verdict']:<11} {claim['name']}: {claim['statement']}" for claim in certificate["claims"]]
    report = detail.get("downtime")
    if report and report.get("total") is not None:
        parts = ", ".join(
            f"{shown_phase(name)} {seconds:.1f}" for name, seconds in report["measured"].items() if seconds >= 0.05
        )
        predicted = sum(report["predicted"].values())
        lines.append(f"downtime: {report['total']:.1f} s{f' ({parts})' if parts else ''}; predicted {predicted:.1f} s")
    return [*lines, *report_lines(detail.get("duration") or {})]


def _unchecked(certificate: Mapping[str, Any]) -> str:
    """Return which claims were not checked, for the certificate's line."""
    names = [claim["name"] for claim in certificate["claims"] if claim["verdict"] == NOT_CHECKED]
    return f" (not checked: {', '.join(names)})" if names else ""


def _validity(valid: bool, outcome: object) -> str:
    if not valid:
        return "NOT VALID"
    return "void (rolled back)" if outcome in (ROLLED_BACK, ROLLBACK_INCOMPLETE) else "valid"
