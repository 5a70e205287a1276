"""All that the screens do to the world, in one place. Calls block; screens make them in worker threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from midstream.errors import MidstreamError
from midstream.migrate import model
from midstream.printable import printable
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts
    from midstream.hosts.providers.interface import Slice
    from midstream.stores.bucket import Bucket
    from midstream.watch.snapshot import RunView, Snapshot

LOG_LIMIT = 16 << 20  # characters of a log that the screen reads
STOP_TIMEOUT = 600.0  # seconds: the run saves before it stops


@dataclass(frozen=True)
class Target:
    """A place to move to: its name in the fleet file and the hosts that form it."""

    name: str
    hosts: tuple[str, ...]


class NotMade(MidstreamError):
    """A target's slice is not there, and may be asked for: ``price`` says what it would cost. Nothing that can be seen
    without it stands against the move."""

    def __init__(self, message: str, price: str):
        super().__init__(message)
        self.price = price


@dataclass(frozen=True)
class Wanted:
    """A target whose slice is not there, or is gone, and may be asked for."""

    target: str
    place: str  # PROJECT/ZONE/NAME
    accelerator_type: str
    price_class: str
    price: str  # what it would cost, in words


@dataclass(frozen=True)
class Slices:
    """What a provider tells: each slice with its target's name (or none), and where nothing could be seen. ``asked``:
    whether the fleet file names any place to look at; ``wanted``: what can be made."""

    found: tuple[tuple[Slice, str], ...] = ()
    problems: tuple[str, ...] = ()
    asked: bool = True
    wanted: tuple[Wanted, ...] = ()


class Actions(Protocol):
    """What the screens ask for. Errors for people are MidstreamErrors."""

    def targets(self) -> tuple[Target, ...]: ...

    def make_plan(self, snapshot: Snapshot, request: model.Request) -> model.Plan:
        """No side effects. NotMade where the target has to be asked for first."""
        ...

    def create(self, target: str) -> None:
        """Have its slice made. Talks to the terminal, which the screen has left, and ends when it is ready."""
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

    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        """Hash every object of a checkpoint where it lies. What is wrong with it, one line each; none: it is whole."""
        ...

    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        """What differs between two checkpoints of a run, by their manifests, one line each."""
        ...

    def config(self, run: RunView, attempt: int) -> str:
        """The resolved configuration of an attempt, as YAML."""
        ...

    def read_log(self, run: RunView) -> list[str]:
        """All lines of the newest attempt's log."""
        ...

    def ssh_hosts(self) -> tuple[dict[str, str], list[str], str]:
        """(name -> line of a fleet file, gcloud's projects, the fleet file) for what could be added to the fleet."""
        ...

    def add_hosts(self, lines: list[str]) -> None:
        """Write these lines into the fleet file."""
        ...

    def shell(self, host: str) -> int:
        """Give the terminal, which has to be free, to a shell on the host. Its exit code."""
        ...

    def delete(self, place: str, say: Callable[[str], None]) -> None:
        """Delete the slice at ``PROJECT/ZONE/NAME``; returns when it is gone. ``say`` gets lines of progress."""
        ...

    def slices(self) -> Slices:
        """The TPU slices of the fleet file's projects and zones."""
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
        """Those whose hosts are not known now have none: a plan for them says why, and what mends it. A worker of a
        slice is none: alone it has not the devices that it would wait for."""
        from midstream.hosts.providers import fleet_slices

        fleet = self._fleet
        names = [
            name for name in fleet.target_names if name in fleet.targets or not fleet_slices.target_of_host(fleet, name)
        ]
        return tuple(Target(name, fleet.hosts_of(name)) for name in names)

    def make_plan(self, snapshot: Snapshot, request: model.Request) -> model.Plan:
        from midstream.hosts.providers import fleet_slices
        from midstream.migrate.planning import plan

        fleet, name = self._fleet, request.target
        mine, missing = fleet_slices.of(fleet).get(name), fleet.absent.get(name)
        if mine is not None and mine.create and isinstance(missing, fleet_slices.Missing):
            store = fleet.store_of_target(name)
            plan.check_ahead(fleet, self._hosts, snapshot, request, store, fleet_slices.devices(mine))
            raise NotMade(missing.message, fleet_slices.price(mine))
        return plan.make_plan(fleet, self._hosts, snapshot, request)

    def create(self, target: str) -> None:
        from midstream.hosts.providers import fleet_slices

        mine = fleet_slices.of(self._fleet)[target]

        def say(line: str) -> None:
            print(printable(line), file=sys.stderr, flush=True)

        fleet_slices.provider(mine).create(target, mine, say)
        fleet_slices.wait_for_login(fleet_slices.found(self._fleet, say, only=(target,)), target, say)

    def slices(self) -> Slices:
        from midstream.hosts.providers import fleet_slices, interface

        known = fleet_slices.of(self._fleet)
        mine = {fleet_slices.place(name, target): name for name, target in known.items()}
        if not mine and not self._fleet.google.projects:
            return Slices(asked=False)
        told = fleet_slices.inventory(self._fleet)
        there = {each.place for each in told.slices if each.standing not in (interface.PREEMPTED, interface.FAILED)}
        wanted = tuple(
            Wanted(name, place, target.accelerator_type, target.price_class, fleet_slices.price(target))
            for place, name in mine.items()
            if (target := known[name]).create and place not in there
        )
        found = tuple((each, mine.get(each.place, "")) for each in told.slices)
        return Slices(found, tuple(told.problems), wanted=wanted)

    def delete(self, place: str, say: Callable[[str], None]) -> None:
        from midstream.hosts.providers import fleet_slices

        fleet_slices.google().delete(place, say)

    def preflight(self, plan: model.Plan) -> Iterator[model.Check]:
        from midstream.migrate.planning import preflight

        return preflight.run_checks(self._fleet, self._hosts, plan)

    def start(self, plan: model.Plan) -> str:
        from midstream.migrate.execution import migration_process

        return migration_process.start(self._fleet, plan)

    def rollback(self, migration: str) -> None:
        from midstream.migrate.execution import migration_process

        migration_process.rollback(migration)

    def continue_(self, migration: str) -> None:
        from midstream.migrate.execution import migration_process

        migration_process.continue_(migration)

    def stop_run(self, run: RunView) -> None:
        from midstream.launch.attempt_monitor import stop_run
        from midstream.watch.damaged_runs import refuse_damaged

        if not run.attempt:
            raise MidstreamError(f"run {run.run_id} on {run.host} has no attempt to stop")
        refuse_damaged([run])
        stop_run(self._hosts, run.host, run.run_id, run.attempt, STOP_TIMEOUT)

    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        from midstream.transfer import verify_objects

        place = self._checkpoint(run, checkpoint)
        if run.store:
            (found,) = self._bucket(place).examine()
            problems = [*found["problems"]]
            if not problems and found["recomputed"] != found["recorded"]:
                problems = [
                    [records.MANIFEST, f"the root digest is {found['recomputed']}, it says {found['recorded']}"]
                ]
        else:
            problems = verify_objects(self._hosts.get(run.host), place).problems
        return [f"{path}: {what}" for path, what in problems]

    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        from midstream.transfer.compare import compare, line

        return [line(entry) for entry in compare(self._manifest(run, first), self._manifest(run, second))]

    def _manifest(self, run: RunView, name: str) -> records.Manifest:
        place = self._checkpoint(run, name)
        if run.store:
            return self._bucket(place).manifest()
        value = self._hosts.get(run.host).call("verify.tree.manifest_value", directory=place, manifest=records.MANIFEST)
        return records.Manifest.from_json(value, name)

    def config(self, run: RunView, attempt: int) -> str:
        from midstream.watch import resolved_config

        return resolved_config.read(self._hosts, run, attempt)

    def read_log(self, run: RunView) -> list[str]:
        from midstream.watch.log_file import log_parts

        lines: list[str] = []
        size = 0
        for part in log_parts(self._hosts.get(run.host), self._log(run, run.attempt)):
            lines += part.splitlines()
            size += len(part)
            if size > LOG_LIMIT:
                return [*lines, f"... the log is longer: midstream --log {run.run_id} prints all of it"]
        return lines

    def _bucket(self, place: str) -> Bucket:
        from midstream.stores.bucket import Bucket
        from midstream.stores.bucket_access import access_for

        return Bucket(place, access_for(self._fleet, place))

    def _checkpoint(self, run: RunView, name: str) -> str:
        return records.RunPaths(self._hosts.get(run.host).root, run.run_id, run.store).checkpoint(name)

    def _log(self, run: RunView, attempt: int) -> str:
        return records.RunPaths(self._hosts.get(run.host).root, run.run_id).attempt(attempt).log(0)

    def ssh_hosts(self) -> tuple[dict[str, str], list[str], str]:
        from midstream.fleet.ssh_config_hosts import candidates, gcloud_projects

        return candidates(self._fleet.hosts), gcloud_projects(), str(self._file)

    def add_hosts(self, lines: list[str]) -> None:
        from midstream.fleet.ssh_config_hosts import add_hosts

        add_hosts(self._file, lines)

    @property
    def _file(self) -> Path:
        from midstream.fleet.fleet_file import default_fleet_path

        return Path(self._fleet.path).expanduser() if self._fleet.path else default_fleet_path()

    def shell(self, host: str) -> int:
        from midstream.hosts.prompter import PROMPTS
        from midstream.hosts.shell import open_shell

        PROMPTS.forget()  # who opens a shell may have changed their mind about a key, too
        return open_shell(host, self._fleet.hosts[host])

    def migrations(self) -> tuple[model.MigrationView, ...]:
        from midstream.migrate.execution import migration_directory

        return tuple(migration_directory.list_migrations(self._fleet))
