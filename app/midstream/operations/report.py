"""Write a run's report: one static page of HTML."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from midstream.errors import MidstreamError, UsageError
from midstream.listing import run_facts
from midstream_core import records

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.report.run_report import ConfigField, RunReport
    from midstream.watch.snapshot import RunView, Snapshot

SUFFIXES = (".html", ".htm")
DAY = 86400.0
DEFAULT_PERIOD, MAX_PERIOD = 30 * DAY, 3650 * DAY  # seconds of costs: where its start is not known; at most
HIDDEN = "hidden: it looks like a secret"
HEAD = 4096  # bytes of a file that say who has written it


@dataclass(frozen=True)
class WrittenReport:
    """A report that was written, and what is missing from it."""

    path: Path
    report: RunReport


def check_report_path(text: str) -> Path:
    """Return the path of a report.

    Raises:
        UsageError: It is no HTML file, or there is a file that is not a report.
    """
    from midstream.report.page import GENERATOR

    path = Path(text).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{text or 'no file'}: a report is a .html file", "--report RUN report.html")
    if path.is_dir():
        raise UsageError(f"{text} is a directory", "name a file in it")
    try:
        with open(path, "rb") as file:
            ours = GENERATOR.encode() in file.read(HEAD)
    except FileNotFoundError:
        ours = True
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "choose another file") from error
    if not ours:
        raise UsageError(f"{path} exists and is no report of midstream", "choose another file, or remove it")
    return path


def write_report(hosts: HostPool, snapshot: Snapshot, run_id: str, path: Path) -> WrittenReport:
    """Write the report of a run; the file is complete, or as it was before.

    Raises:
        UsageError: There is no such run, or the file cannot be written.
    """
    from midstream.operations.fleet_snapshot import run_of
    from midstream.report.page import page

    report = collect_report(hosts, snapshot, run_of(snapshot, run_id))
    try:
        records.write_bytes(str(path), page(report).encode(), durable=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "choose another file") from error
    return WrittenReport(path, report)


def collect_report(hosts: HostPool, snapshot: Snapshot, run: RunView) -> RunReport:
    """Read what a run's report contains. What cannot be read is named in it."""
    from midstream.costs.collect import collect
    from midstream.migrate.journal.migration_directory import list_migrations
    from midstream.report.run_report import RunReport
    from midstream.watch.run_failure import failure_of

    now = time.time()
    views = [view for view in list_migrations(hosts.fleet) if view.plan.run_id == run.run_id]
    started = run_facts.started(run)
    period = DEFAULT_PERIOD if started is None else min(max(now - started + DAY, DAY), MAX_PERIOD)
    costs = collect(hosts, period, now)
    config, changes, missing = _config(hosts, run)
    here = {view.migration for view in views}
    elsewhere = [entry.migration for entry in (run.lineage.entries if run.lineage else ()) if entry.migration]
    missing += [f"migration {name}: its journal is not on this machine" for name in elsewhere if name not in here]
    failure = failure_of(snapshot.members(run))
    return RunReport(
        run,
        now,
        tuple(sorted(views, key=lambda view: view.plan.identity.created)),
        next((cost for cost in costs.runs if cost.run_id == run.run_id), None),
        tuple(cost for cost in costs.migrations if cost.run_id == run.run_id),
        config,
        changes,
        failure.reason if failure is not None else "",
        (*missing, *(line for line in costs.not_known if line not in costs.not_known_of_hosts)),
    )


def _config(hosts: HostPool, run: RunView) -> tuple[list[ConfigField], list[str], list[str]]:
    """Return the newest configuration, what has changed in it, and what is not known."""
    from midstream.watch import resolved_config

    attempts = sorted({entry.attempt for entry in run.lineage.entries} if run.lineage else {run.attempt} - {0})
    if not attempts:
        return [], [], ["configuration: no attempt was started yet"]
    try:
        newest = resolved_config.read(hosts, run, attempts[-1])
        fields = _hidden(resolved_config.fields(newest))
    except MidstreamError as error:
        return [], [], [f"configuration: {error.message}"]
    try:
        first = resolved_config.read(hosts, run, attempts[0])
        changes = [
            resolved_config.line(change, "→")
            for change in resolved_config.changes(first, newest)
            if not (_is_secret(change.name, change.before) or _is_secret(change.name, change.after))
        ]
    except MidstreamError as error:
        return fields, [], [f"configuration of attempt {attempts[0]}: {error.message}"]
    return fields, changes, []


def _hidden(values: Mapping[str, object]) -> list[ConfigField]:
    """Return the fields as text, without what looks like a secret.

    A report is passed on to others.
    """
    return [(name, HIDDEN if _is_secret(name, value) else str(value)) for name, value in values.items()]


def _is_secret(name: str, value: object) -> bool:
    from midstream.launch.secret_words import without_secrets

    words = [name, *map(str, cast("list[object]", value))] if isinstance(value, list) else [f"{name}={value}"]
    return bool(without_secrets(words)[1])
