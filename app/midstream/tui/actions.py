"""All that the screens do to the world, in one place. Calls block; screens make them in worker threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from midstream.errors import MidstreamError
from midstream.migrate import model

if TYPE_CHECKING:
    from midstream.fleet.config import Fleet
    from midstream.hosts.open import Hosts
    from midstream.watch.model import RunView, Snapshot

STOP_TIMEOUT = 600.0  # seconds: the run saves before it stops


@dataclass(frozen=True)
class Target:
    """A place to move to: its name in the fleet file and the hosts that form it."""

    name: str
    hosts: tuple[str, ...]


class Actions(Protocol):
    """What the screens ask for. Errors for people are MidstreamErrors."""

    def targets(self) -> tuple[Target, ...]: ...

    def make_plan(self, snapshot: Snapshot, request: model.Request) -> model.Plan:
        """No side effects."""
        ...

    def preflight(self, plan: model.Plan) -> Iterator[model.Check]:
        """Each check as it is done. No side effects."""
        ...

    def start(self, plan: model.Plan) -> str:
        """Start the move in a process of its own, which outlives the screen. Its id."""
        ...

    def rollback(self, migration: str) -> None: ...

    def continue_(self, migration: str) -> None: ...

    def stop_run(self, run: RunView) -> None:
        """Save and stop. Returns when the run has stopped."""
        ...

    def shell(self, host: str) -> int:
        """Give the terminal, which has to be free, to a shell on the host. Its exit code."""
        ...

    def migrations(self) -> tuple[model.MigrationView, ...]:
        """Newest first."""
        ...


class FleetActions:
    """The actions on a real fleet. Modules are imported where they are needed: the first paint waits for none."""

    def __init__(self, fleet: Fleet, hosts: Hosts) -> None:
        self._fleet = fleet
        self._hosts = hosts

    def targets(self) -> tuple[Target, ...]:
        targets = (self._fleet.target(name) for name in self._fleet.target_names)
        return tuple(Target(target.name, tuple(target.hosts)) for target in targets)

    def make_plan(self, snapshot: Snapshot, request: model.Request) -> model.Plan:
        from midstream.migrate import plan

        return plan.make_plan(self._fleet, self._hosts, snapshot, request)

    def preflight(self, plan: model.Plan) -> Iterator[model.Check]:
        from midstream.migrate import preflight

        return preflight.run_checks(self._fleet, self._hosts, plan)

    def start(self, plan: model.Plan) -> str:
        from midstream.migrate import process

        return process.start(self._fleet, plan)

    def rollback(self, migration: str) -> None:
        from midstream.migrate import process

        process.rollback(migration)

    def continue_(self, migration: str) -> None:
        from midstream.migrate import process

        process.continue_(migration)

    def stop_run(self, run: RunView) -> None:
        from midstream.launch.start import stop_attempt

        if not run.attempt:
            raise MidstreamError(f"run {run.run_id} on {run.host} has no attempt to stop")
        stop_attempt(self._hosts.get(run.host), run.run_id, run.attempt, STOP_TIMEOUT)

    def shell(self, host: str) -> int:
        from midstream.hosts.ask import DESK
        from midstream.hosts.shell import open_shell

        DESK.forget()  # who opens a shell may have changed their mind about a key, too
        return open_shell(host, self._fleet.hosts[host])

    def migrations(self) -> tuple[model.MigrationView, ...]:
        from midstream.migrate import directory

        return tuple(directory.list_migrations())
