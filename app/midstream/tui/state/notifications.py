"""Toasts for changes between two screen states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from midstream.migrate.journal import migration_state
from midstream.tui.state.screen_state import ScreenState
from midstream.watch import snapshot as watch
from midstream.watch.run_failure import failure_of
from midstream_core import records

Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True)
class Notification:
    """Toast: text, severity, and the migration it is about (or an empty string).

    ``alert`` also rings the bell: a migration is certified, has failed or needs the user.
    """

    text: str
    severity: Severity = "information"
    migration: str = ""
    alert: bool = False


def between(before: ScreenState, after: ScreenState) -> list[Notification]:
    """Return toasts for ended runs, changed links and changed migrations.

    New runs, hosts and migrations have none.
    """
    toasts = []
    if before.snapshot is not after.snapshot:
        toasts += _runs(before, after) + _hosts(before, after)
    if before.migrations is not after.migrations:
        toasts += _migrations(before, after)
    return toasts


def _runs(before: ScreenState, after: ScreenState) -> list[Notification]:
    notes = []
    for old, run in after.snapshot.changes_since(before.snapshot):
        if old is None or old.state == run.state:
            continue
        if run.state == records.FAILED:
            failure = failure_of([run])
            why = f": {failure.reason}" if failure else ""
            notes.append(Notification(f"{run.run_id} failed on {run.host}{why}", "error"))
        elif run.state == "lost":
            failure = failure_of([run])
            why = f": {failure.reason}" if failure else ""
            notes.append(Notification(f"{run.run_id}: its process on {run.host} has exited{why}", "error"))
        elif run.state == records.FINISHED:
            notes.append(Notification(f"{run.run_id} has finished"))
    return notes


def _hosts(before: ScreenState, after: ScreenState) -> list[Notification]:
    notes = []
    same = set(map(id, before.snapshot.hosts))
    for host in after.snapshot.hosts:
        if id(host) in same:
            continue
        old = before.snapshot.host(host.name)
        if old is None or old.link == host.link:
            continue
        if old.link == watch.LIVE:
            notes.append(Notification(f"{host.name} is unreachable; its last report stays on screen", "warning"))
        elif host.link == watch.LIVE and old.link in (watch.STALE, watch.DOWN):
            notes.append(Notification(f"{host.name} is reachable again"))
    return notes


def _migrations(before: ScreenState, after: ScreenState) -> list[Notification]:
    notes = []
    for view in after.migrations:
        old = before.migration(view.migration)
        if old is None:
            continue
        title = f"{view.plan.run_id} to {view.plan.target}"
        if view.certificate is not None and old.certificate is None:
            valid = view.certificate.valid
            words = "certified" if valid else "not certified"
            notes.append(
                Notification(f"{title}: {words}", "information" if valid else "error", view.migration, alert=True)
            )
        if view.finished and not old.finished:
            notes.append(Notification(f"{title}: finished, source retired", migration=view.migration))
        if view.state != old.state and view.state in (
            migration_state.ROLLED_BACK,
            migration_state.ROLLBACK_INCOMPLETE,
            migration_state.INTERRUPTED,
        ):
            notes.append(Notification(f"{title}: {view.state}", "warning", view.migration, alert=True))
    return notes
