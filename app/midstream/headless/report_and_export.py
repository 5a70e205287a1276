"""`--report` and `--export`: a run as a page, a checkpoint for another program."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import Exit
from midstream.json_events.result_event import ExportResult, ReportResult
from midstream.operations import export_checkpoint
from midstream.operations.fleet_snapshot import find_run, fleet_snapshot
from midstream.operations.report import check_report_path, write_report
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def report(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Write the report of a run; what it does not know is named in it and here."""
    from midstream.hosts.host_pool import HostPool

    run_id, file = options.report
    path = check_report_path(file)  # before any host is connected
    hosts = HostPool(fleet)
    try:
        written = write_report(hosts, fleet_snapshot(hosts), run_id, path)
    finally:
        hosts.close()
    run_report = written.report
    output.event(
        ReportResult(
            run=run_id,
            file=str(path.absolute()),
            migrations=len(run_report.migrations),
            not_known=list(run_report.not_known),
        ),
        f"{path.absolute()}: report of {run_id}, {count(len(run_report.migrations), 'migration')}",
    )
    for line in run_report.not_known:
        output.message(f"midstream: not known: {line}")
    return Exit.DONE


def export(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Export a checkpoint of a run to another program's format."""
    from midstream.hosts.host_pool import HostPool

    run_id, step = export_checkpoint.split_run(options.export)
    flags = export_checkpoint.division_flags(options.as_, options.processes, options.model_parallel_size)
    hosts = HostPool(fleet)
    try:
        run = find_run(hosts, run_id)
        place = export_checkpoint.output_of(fleet, run, options.output)
        chosen = export_checkpoint.checkpoint_at(run, step)
        request = export_checkpoint.ExportRequest(run, chosen.name, options.as_, place, flags)
        line = export_checkpoint.export_checkpoint(hosts, request, output.message)
    finally:
        hosts.close()
    output.event(
        ExportResult(run=run_id, checkpoint=chosen.name, format=options.as_, host=place.host, path=place.path),
        f"{place.host}: {line}",
    )
    return Exit.DONE
