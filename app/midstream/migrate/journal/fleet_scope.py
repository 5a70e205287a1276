"""Fleet to which a migration belongs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_path import default_fleet_path
from midstream.migrate.journal.plan import Plan

IDENTITY_FIELDS = ("address", "user", "port")  # with type and root, these identify a host across fleet files


def belongs(plan: Plan, own: Callable[[], Fleet | None], fleet: Fleet) -> bool:
    """Return whether a plan migrates a run between hosts of ``fleet``.

    Either the plan was made with the same fleet file, or its hosts have the same names in ``fleet`` and are the same
    machines and directories. ``own`` returns the fleet that the plan was made with; None if no file has it: such a
    migration is shown, not hidden.
    """
    if _same_file(plan, fleet):
        return True
    hosts = {*(plan.route.source_hosts or (plan.source,)), *(plan.route.target_hosts or (plan.target_host,))}
    if not hosts <= fleet.hosts.keys():
        return False
    made_with = own()
    return made_with is None or all(_identity(made_with, name) == _identity(fleet, name) for name in hosts)


def with_absolute_fleet_file(plan: Plan) -> Plan:
    """Return the plan with the absolute path of its fleet file."""
    if not plan.identity.fleet_file and not os.environ.get("MIDSTREAM_FLEET"):
        return plan
    path = str(Path(plan.identity.fleet_file or default_fleet_path()).expanduser().absolute())
    return replace(plan, identity=replace(plan.identity, fleet_file=path))


def _same_file(plan: Plan, fleet: Fleet) -> bool:
    made_with, shown = (
        Path(path or default_fleet_path()).expanduser() for path in (plan.identity.fleet_file, fleet.path)
    )
    return made_with.is_absolute() and made_with.resolve() == shown.resolve()


def _identity(fleet: Fleet, name: str) -> tuple[str, ...]:
    config = fleet.hosts.get(name)
    if config is None:
        return ()
    where = (str(getattr(config, field, None) or "") for field in IDENTITY_FIELDS)
    return (type(config).__name__, str(Path(config.root).expanduser()), *where)
