"""What happened between two looks that a person should hear of wherever they are: toasts."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.migrate import model
from midstream.tui.screen_state import World
from midstream.watch import snapshot as watch
from midstream_engine import records

INFORMATION, WARNING, ERROR = "information", "warning", "error"


@dataclass(frozen=True)
class Item:
    """One piece of news."""

    text: str
    severity: str = INFORMATION
    about: str = ""  # the migration that it tells of: who looks at it sees it anyway


def between(before: World, after: World) -> list[Item]:
    """Runs that ended, hosts that fell silent or came back, moves that went on. Of what is new there is none."""
    found = []
    if before.snapshot is not after.snapshot:
        found += _runs(before, after) + _hosts(before, after)
    if before.migrations is not after.migrations:
        found += _migrations(before, after)
    return found


def _runs(before: World, after: World) -> list[Item]:
    same = set(map(id, before.snapshot.runs))
    changed = [run for run in after.snapshot.runs if id(run) not in same]
    if not changed:
        return []
    known = {run.key: run for run in before.snapshot.runs}
    found = []
    for run in changed:
        old = known.get(run.key)
        if old is None or old.state == run.state:
            continue
        if run.state == records.FAILED:
            why = f": {run.status.message}" if run.status and run.status.message else ""
            found.append(Item(f"{run.run_id} failed on {run.host}{why}", ERROR))
        elif run.state == "lost":
            found.append(Item(f"{run.run_id}: its process on {run.host} is gone", ERROR))
        elif run.state == records.FINISHED:
            found.append(Item(f"{run.run_id} has finished"))
    return found


def _hosts(before: World, after: World) -> list[Item]:
    found = []
    same = set(map(id, before.snapshot.hosts))
    for host in after.snapshot.hosts:
        if id(host) in same:
            continue
        old = before.snapshot.host(host.name)
        if old is None or old.link == host.link:
            continue
        if old.link == watch.LIVE:
            found.append(Item(f"{host.name} fell silent; what is known of it stays on the screen", WARNING))
        elif host.link == watch.LIVE and old.link in (watch.STALE, watch.DOWN):
            found.append(Item(f"{host.name} answers again"))
    return found


def _migrations(before: World, after: World) -> list[Item]:
    found = []
    for view in after.migrations:
        old = before.migration(view.migration)
        if old is None:
            continue
        move = f"{view.plan.run_id} to {view.plan.target}"
        if view.certificate is not None and old.certificate is None:
            valid = view.certificate.valid
            words = "certified" if valid else "not certified"
            found.append(Item(f"{move}: {words}", INFORMATION if valid else ERROR, view.migration))
        if view.finished and not old.finished:
            found.append(Item(f"{move}: finished, the source is retired", about=view.migration))
        if view.state != old.state and view.state in (model.ROLLED_BACK, model.ROLLBACK_INCOMPLETE, model.INTERRUPTED):
            found.append(Item(f"{move}: {view.state}", WARNING, view.migration))
    return found
