"""Mode `--migrate PATH --to TARGET`: convert a checkpoint to a run, on its host."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError
from midstream.headless.migration_request import request_of
from midstream.json_events.migration_events import ImportEvent
from midstream.operations.import_run import ImportRequest, host_path_of, plan_import, run_id_of
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool


def import_request_of(options: argparse.Namespace, engine: tuple[str, ...] = ()) -> ImportRequest:
    """Return the import that the flags request."""
    return ImportRequest(
        options.migrate,
        options.to,
        options.config or "",
        options.gqa_layout or "",
        options.rms_epsilon or "",
        options.cast_parameters or "",
        engine,
    )


def print_import_plan(hosts: HostPool, request: ImportRequest, options: argparse.Namespace, output: Output) -> None:
    """Print the plan of an import and its migration, and the checks of its target.

    Raises:
        MidstreamError: The import cannot be planned (`plan_import`), or a check failed.
    """
    from midstream.check.check_result import FAIL
    from midstream.headless.check_lines import print_check
    from midstream.headless.print_plan import print_plan
    from midstream.migrate.planning import preflight

    hosts.fleet.target(options.to)
    source = host_path_of(hosts.fleet, request.path)
    run_id = run_id_of(source.path)
    migration = request_of(options, run_id, source.host, request.engine)
    plan = plan_import(hosts, request, migration, remember=not options.dry_run)
    output.event(
        ImportEvent(run=run_id, source=source.host, path=source.path, target=options.to, flags=request.flags),
        f"would import {source} as run {run_id}, then migrate it to {options.to}" if options.dry_run else "",
    )
    print_plan(plan, options, output)
    failed = None
    for check in preflight.import_checks(hosts, plan):
        print_check(check, output)
        failed = failed or (check if check.state == FAIL else None)
    if failed is not None:
        raise MidstreamError(f"preflight refused: {failed.name}: {failed.detail}", failed.hint, Exit.REFUSED)
