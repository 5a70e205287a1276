"""Which fleet a migration belongs to."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.fleet.fleet_file import default_fleet_path

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.migrate.model import Plan

PLACE = ("address", "user", "port")  # with type and root, what makes hosts of two fleet files the same one


def belongs(plan: Plan, own: Callable[[], Fleet | None], fleet: Fleet) -> bool:
    """Whether a plan moves a run between hosts of ``fleet``: it was made with the same file, or its hosts have the same
    names there and are the same machines and directories. ``own`` returns the fleet that it was made with; None where
    no file has it any more: such a migration is shown rather than hidden."""
    if _same_file(plan, fleet):
        return True
    hosts = {*(plan.source_hosts or (plan.source,)), *(plan.target_hosts or (plan.target_host,))}
    if not hosts <= fleet.hosts.keys():
        return False
    made_with = own()
    return made_with is None or all(_place(made_with, name) == _place(fleet, name) for name in hosts)


def with_whole_path(plan: Plan) -> Plan:
    """The plan with a fleet file that is found from any directory, and under any ``$MIDSTREAM_FLEET``."""
    if not plan.fleet_file and not os.environ.get("MIDSTREAM_FLEET"):
        return plan
    return replace(plan, fleet_file=str(Path(plan.fleet_file or default_fleet_path()).expanduser().absolute()))


def _same_file(plan: Plan, fleet: Fleet) -> bool:
    made_with, shown = (Path(path or default_fleet_path()).expanduser() for path in (plan.fleet_file, fleet.path))
    return made_with.is_absolute() and made_with.resolve() == shown.resolve()


def _place(fleet: Fleet, name: str) -> tuple[str, ...]:
    config = fleet.hosts.get(name)
    if config is None:
        return ()
    where = (str(getattr(config, field, None) or "") for field in PLACE)
    return (type(config).__name__, str(Path(config.root).expanduser()), *where)
