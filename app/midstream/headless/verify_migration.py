"""`--verify MIGRATION`: check a certificate again against the files on the hosts."""

from __future__ import annotations

import argparse
from collections import Counter

from midstream.errors import Exit, MidstreamError
from midstream.format import duration as shown
from midstream.headless.check_lines import print_check
from midstream.json_events.result_event import RecheckResult
from midstream.output import Output


def is_migration(name: str) -> bool:
    """Return True if ``name`` is a migration's id, or a unique prefix of one.

    The prefix has at least its date.
    """
    from midstream.migrate.journal.migration_directory import migration_ids

    ids = migration_ids()
    return name in ids or (len(name) >= 8 and sum(migration.startswith(name) for migration in ids) == 1)


def recheck(options: argparse.Namespace, output: Output) -> int:
    """Check every claim of the certificate again. Return NOT_CERTIFIED if one fails."""
    from midstream.check.check_result import FAIL, WARN
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.journal.migration_directory import MigrationDirectory
    from midstream.migrate.journal.stage_times import report, report_lines
    from midstream.migrate.proof.recheck import recheck as checks

    directory = MigrationDirectory.find(options.verify)
    view = directory.view()
    hosts = HostPool(directory.fleet())
    results = []
    try:
        for check in checks(hosts, view):
            results.append(check)
            print_check(check, output)
    finally:
        hosts.close()
    states = Counter(check.state for check in results)
    failed = next((check for check in results if check.state == FAIL), None)
    code = Exit.NOT_CERTIFIED if failed else Exit.DONE
    duration = report(view.plan, view.stage_times)
    lines = report_lines(duration)
    if view.downtime is not None and view.downtime.total is not None:
        predicted = sum(view.downtime.predicted.values())
        lines.insert(0, f"downtime         predicted {shown(predicted):<8} measured {shown(view.downtime.total)}")
    result = RecheckResult(
        ok=failed is None,
        exit_code=int(code),
        migration=view.migration,
        run=view.plan.run_id,
        not_checked=states[WARN],
        duration=duration,
    )
    output.event(result, lines)
    if failed is not None:
        output.message(f"midstream: {MidstreamError(f'not certified: {failed.name}: {failed.detail}', failed.hint)}")
    elif states[WARN]:
        output.message(f"midstream: {states[WARN]} of {len(results)} can no longer be checked; none failed")
    return code
