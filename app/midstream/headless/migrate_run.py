"""Moving runs without a screen: plan, preflight, and following the migration's own process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit, HostError, MidstreamError, UsageError
from midstream.headless.import_run import adopt, is_path
from midstream.headless.status import look, plain
from midstream.output import Output, size

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.migrate.model import Event, MigrationView, Request


def migrate(
    fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output, on_interrupt: str = ""
) -> int:
    """Plan, preflight, then follow the migration's own process to its end. ``on_interrupt``: see ``follow``."""
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.execution import migration_process
    from midstream.migrate.model import FAIL, LIVE
    from midstream.migrate.planning import plan as planning
    from midstream.migrate.planning import preflight

    hosts = Hosts(fleet)
    run_id, source = options.migrate, ""
    if is_path(run_id):
        try:
            run_id, source = adopt(fleet, hosts, options, engine, output)
        except BaseException:
            hosts.close()
            raise
    request = request_of(options, run_id, source, engine)
    try:
        plan = planning.make_plan(fleet, hosts, look(fleet, hosts), request)
        output.value({"event": "plan", **plan.to_json()}, planning.describe(plan) if options.dry_run else "")
        if not options.dry_run and not output.as_json:
            for line in planning.describe(plan):
                output.talk(line)
        failed = []
        for check in preflight.run_checks(fleet, hosts, plan):
            mark = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}[check.state]
            output.value(
                {"event": "check", **plain(check)},
                f"{mark} {check.name}: {check.detail}" + (f" ({check.hint})" if check.hint else ""),
            )
            if check.state == FAIL:
                failed.append(check)
    except MidstreamError as error:
        # Nothing was touched: what cannot be reached, or cannot be done, is a refusal and not a failure.
        if error.code == Exit.FAILED:
            error.code = Exit.REFUSED
        raise
    finally:
        hosts.close()
    if failed:
        raise MidstreamError(f"preflight refused: {failed[0].name}: {failed[0].detail}", failed[0].hint, Exit.REFUSED)
    if options.dry_run:
        output.value({"event": "result", "ok": True, "dry_run": True, "run": plan.run_id, "migration": None})
        return Exit.DONE
    if plan.steps_lost and not options.yes:
        raise MidstreamError(
            f"{plan.steps_lost} steps after {plan.checkpoint} would be given up",
            "say --yes to agree, or --checkpoint now",
            Exit.REFUSED,
        )
    if plan.consent and not options.yes:
        other = ", or --mode warm, which copies" if plan.mode == LIVE else ""
        raise MidstreamError(plan.consent[0], f"say --yes to agree{other}", Exit.REFUSED)
    return follow(migration_process.start(fleet, plan), output, on_interrupt=on_interrupt)


def request_of(options: argparse.Namespace, run_id: str, source: str, engine: tuple[str, ...]) -> Request:
    """What the flags ask for."""
    from midstream.migrate.model import WARM, Request

    return Request(
        run_id=run_id,
        source=source,
        target=options.to,
        mode=options.mode or WARM,
        checkpoint=options.checkpoint,
        source_lost=options.source_lost,
        certify_steps=options.certify_steps,
        healthy_steps=options.healthy_steps,
        overrides=engine,
    )


def resume(options: argparse.Namespace, output: Output) -> int:
    """`--continue` and `--rollback`."""
    from midstream.migrate.execution import migration_directory, migration_process
    from midstream.migrate.model import ROLLED_BACK, WARM

    if options.continue_:
        found = migration_directory.MigrationDirectory.find(options.continue_)
        seen = found.journal_size()
        if options.mode is not None:
            if options.mode != WARM:
                hint = "a live migration can become a warm one only"
                raise UsageError(f"--continue with --mode {options.mode}", hint)
            migration_process.stop_waiting(found.migration)
        migration_process.continue_(found.migration)
        return follow(found.migration, output, seen)
    found = migration_directory.MigrationDirectory.find(options.rollback)
    view = migration_process.readable(found)
    if not view.finished and view.state != ROLLED_BACK and not options.yes:
        given_up = _given_up(view)
        if given_up:
            raise MidstreamError(given_up, "say --yes to agree", Exit.REFUSED)
    seen = found.journal_size()
    migration_process.rollback(view.migration)
    return follow(view.migration, output, seen)


def _given_up(view: MigrationView) -> str:
    """What a rollback would give up, in words; empty where that is nothing. A journal with damaged lines may have lost
    that the target was started: the target is looked at then, too."""
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.execution.migration_directory import MigrationDirectory

    journaled = any(event.event == "fact" and "relaunching" in event.detail for event in view.events)
    if not journaled and not any(line.startswith("journal") for line in view.damage):
        return ""  # no engine was ever started there
    hosts = Hosts(MigrationDirectory(view.migration).fleet())
    try:
        host = hosts.get(view.plan.target_host)
        described = host.call("runs.run_state.describe", root=host.root, run_id=view.plan.run_id)
    except HostError as error:
        return f"a rollback gives up what {view.plan.target} has done since, and it does not answer: {error.message}"
    finally:
        hosts.close()
    step, fence = described["status"]["step"] if described["status"] else None, described["fence"]
    steps = view.steps_given_up(step)
    if view.sealed_step is None and step is not None and fence and fence["epoch"] == view.plan.epoch:
        steps = max(0, step - (fence["sealed_step"] or 0))  # the journal has lost where the run was sealed
    return f"a rollback gives up {steps} steps that {view.plan.target} has done" if steps else ""


def follow(migration: str, output: Output, seen: int = 0, on_interrupt: str = "") -> int:
    """Print a migration's journal as it grows, from byte ``seen`` on. Ctrl-C leaves it running and says how to come
    back, or ``on_interrupt``."""
    from midstream.migrate.execution import migration_process
    from midstream.migrate.execution.migration_directory import MigrationDirectory

    code: int | None = None
    try:
        for event in migration_process.follow(migration, seen):
            if event.event == "result":
                code = int(event.detail["exit_code"])
            if event.event not in ("fact", "trace"):
                _tell(event, output)
    except KeyboardInterrupt:
        back = f"the migration goes on by itself; midstream --continue {migration} follows it again"
        output.talk("")  # after the terminal's ^C
        output.talk(f"midstream: {on_interrupt or back}")
        return Exit.INTERRUPTED
    if code is None:
        said = migration_process.last_words(MigrationDirectory(migration))
        raise MidstreamError(
            f"the process of migration {migration} is gone" + (f": {said}" if said else ""),
            f"midstream --continue {migration} goes on with it",
            Exit.INTERRUPTED,
        )
    return code


def _tell(event: Event, output: Output) -> None:
    detail = event.detail
    if output.as_json:
        output.value(event.to_json())
        if event.event == "result" and detail.get("exit_code"):
            output.talk(f"midstream: {result_lines(event)[0]}")
        return
    if event.event == "phase" and event.state == "progress":
        done, total = detail["bytes_done"], detail["bytes_total"]
        what, rate = detail.get("what", "copy"), size(detail.get("bytes_per_second", 0))
        output.talk(f"    {what}: {size(done)} of {size(total)}, {rate}/s")
    elif event.event == "phase":
        output.talk(f"{event.phase}: {event.state}" + (f": {event.message}" if event.message else ""))
    elif event.event == "command":
        output.talk(f"    [{detail.get('host', '')}] {event.message}")
    elif event.event == "result":
        output.value({}, result_lines(event))
    else:
        output.talk(f"    {event.message}")


def result_lines(event: Event) -> list[str]:
    """The end of a migration for people."""
    detail = event.detail
    lines = [
        f"{detail.get('run') or detail.get('migration')}: {detail.get('outcome')}"
        + (f": {event.message}" if event.message else "")
    ]
    certificate = detail.get("certificate")
    if certificate:
        lines.append(
            f"certificate: {'valid' if certificate['valid'] else 'NOT VALID'}, "
            f"step {certificate['step']}, root digest {certificate['root_digest'][:16]}"
        )
        lines += [f"  {claim['verdict']:<11} {claim['name']}: {claim['statement']}" for claim in certificate["claims"]]
    ledger = detail.get("downtime")
    if ledger and ledger.get("downtime") is not None:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in ledger["measured"].items() if seconds >= 0.05)
        predicted = sum(ledger["predicted"].values())
        lines.append(f"downtime: {ledger['downtime']:.1f} s ({parts}); predicted were {predicted:.1f} s")
    return lines
