"""Actions on a real fleet."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError
from midstream.printable import printable
from midstream.tui.actions import CreatableSlice, SliceListing, Target, TargetMissingError
from midstream_core import records

if TYPE_CHECKING:
    from midstream.check.check_result import Check
    from midstream.check.fleet_leftovers import AnyLeftover
    from midstream.compare.baseline import Baseline
    from midstream.compare.comparison import Row as Estimated
    from midstream.costs.cost_report import CostReport
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.install.reporter import Reporter
    from midstream.launch.launch_request import LaunchRequest
    from midstream.migrate.journal.migration_view import MigrationView
    from midstream.migrate.journal.plan import Plan
    from midstream.migrate.journal.request import Request
    from midstream.operations.examine_checkpoint import CheckpointLocation
    from midstream.watch.host_log import LogLines
    from midstream.watch.log_query import LogQuery
    from midstream.watch.snapshot import RunView, Snapshot
    from midstream_host.runs.log_pages import LogMatches

MAX_CONFIGS = 200  # files of this directory that a launch offers
CONFIG_SIZE = 64_000  # characters of a file that are looked at
_CONFIG_SECTION = re.compile(r"^(data|model|trainer|optimizer)[ \t]*:", re.MULTILINE)


class FleetActions:
    """Actions on a real fleet.

    Methods import what they need: planning, migration and cloud modules would delay the first paint.
    """

    def __init__(self, fleet: Fleet, hosts: HostPool) -> None:
        self._fleet = fleet
        self._hosts = hosts

    def targets(self) -> tuple[Target, ...]:
        """Return the targets; one whose hosts are unknown has none, and its plan says why.

        A worker of a slice is no target: a run there would wait for the devices of the others.
        """
        from midstream.providers import fleet_slices

        fleet = self._fleet
        names = [
            name for name in fleet.target_names if name in fleet.targets or not fleet_slices.target_of_host(fleet, name)
        ]
        return tuple(Target(name, fleet.hosts_of(name), fleet.slurm_of(name) is not None) for name in names)

    def make_plan(self, snapshot: Snapshot, request: Request) -> Plan:
        from midstream.hosts.pod_job import missing_pods
        from midstream.migrate.planning import planner
        from midstream.providers import fleet_slices

        fleet, name = self._fleet, request.target
        tpu_target, missing = fleet.slices.get(name), fleet.unavailable.get(name)
        if tpu_target is not None and tpu_target.create and isinstance(missing, fleet_slices.SliceMissingError):
            store = fleet.store_of_target(name)
            planner.check_ahead(fleet, self._hosts, snapshot, request, store, tpu_target.device_count)
            raise TargetMissingError(missing.message, fleet_slices.price_text(tpu_target))
        job = missing_pods(fleet, name)
        if job is not None:
            planner.check_ahead(fleet, self._hosts, snapshot, request, fleet.store_of_target(name), None)
            raise TargetMissingError(f"{name} does not exist", job.description)
        return planner.make_plan(fleet, self._hosts, snapshot, request)

    def create(self, target: str, run_id: str = "") -> None:
        from midstream.compare.slice_fit import require_fit
        from midstream.compare.subject import of_run_named
        from midstream.hosts.pod_job import missing_pods
        from midstream.operations.create_slice import create_slice

        def report(line: str) -> None:
            print(printable(line), file=sys.stderr, flush=True)

        job = missing_pods(self._fleet, target)
        if job is not None:
            return job.create(report)
        if run_id:
            fleet, hosts = self._fleet, self._hosts
            require_fit(fleet, hosts, target, lambda: of_run_named(fleet, hosts, run_id, ()), report)
        create_slice(self._fleet, target, report)

    def estimates(self, run: RunView, names: str, report: Reporter, cancel: Event) -> Iterator[Baseline | Estimated]:
        from midstream.compare.baseline import baseline
        from midstream.compare.candidates import candidates
        from midstream.compare.compare import compare
        from midstream.compare.compiler import Compilers
        from midstream.compare.subject import SNAPSHOT_TIMEOUT, of_run
        from midstream.watch.watcher import take_snapshot

        fleet, hosts = self._fleet, self._hosts
        snapshot = take_snapshot(fleet, hosts, timeout=SNAPSHOT_TIMEOUT)
        wanted = candidates(names, fleet, snapshot, {})
        subject = of_run(fleet, hosts, run, ())
        present = baseline(subject.run)
        if present is not None:
            yield present
        yield from compare(fleet, subject, wanted, Compilers(fleet, hosts, None, report, cancel))

    def costs(self, seconds: float) -> CostReport:
        from midstream.costs.collect import collect

        return collect(self._fleet, self._hosts, seconds)

    def slices(self) -> SliceListing:
        from midstream.providers import fleet_slices
        from midstream.providers.provider import SliceStatus

        targets = self._fleet.slices
        names = {fleet_slices.slice_path(name, target): name for name, target in targets.items()}
        if not names and not self._fleet.google.projects:
            return SliceListing(configured=False)
        inventory = fleet_slices.list_slices(self._fleet)
        ended = (SliceStatus.PREEMPTED, SliceStatus.FAILED)
        existing = {each.path for each in inventory.slices if each.status not in ended or each.stopped}
        creatable = tuple(
            CreatableSlice(name, place, target.kind, target.price_class, fleet_slices.price_text(target))
            for place, name in names.items()
            if (target := targets[name]).create and place not in existing
        )
        found = tuple((each, names.get(each.path, "")) for each in inventory.slices)
        return SliceListing(found, tuple(inventory.problems), creatable=creatable)

    def delete(self, place: str, report: Callable[[str], None]) -> None:
        from midstream.providers import fleet_slices

        fleet_slices.delete(self._fleet, place, report)

    def preflight(self, plan: Plan) -> Iterator[Check]:
        from midstream.migrate.planning import preflight

        return preflight.run_checks(self._fleet, self._hosts, plan)

    def start(self, plan: Plan) -> str:
        from midstream.migrate import migration_process

        return migration_process.start(self._fleet, plan)

    def rollback(self, migration: str) -> None:
        from midstream.migrate import migration_process

        migration_process.rollback(migration)
        migration_process.refuse_late_rollback(migration)

    def continue_(self, migration: str) -> None:
        from midstream.migrate import migration_process

        migration_process.continue_(migration)

    def configs(self) -> tuple[str, ...]:
        from midstream.bundled_files import config_names

        found = sorted(path for pattern in ("*.yaml", "*/*.yaml") for path in Path().glob(pattern))
        own = [str(path) for path in found[:MAX_CONFIGS] if _looks_like_config(path)]
        return tuple(dict.fromkeys([*own, *config_names()]))

    def launch_checks(self, request: LaunchRequest) -> Iterator[Check]:
        from midstream.check.launch_checks import check_request

        return check_request(self._fleet, self._hosts, request)

    def command(self, *words: str) -> str:
        fleet = ("--fleet", self._named_file) if self._named_file else ()
        return shlex.join(["midstream", *fleet, *words])

    def launch_command(self, request: LaunchRequest) -> str:
        return request.command(self._named_file)

    def launch(self, request: LaunchRequest, report: Reporter) -> str:
        from midstream.launch.launch_run_file import launch_any

        config, run_id, flags = request.config, request.run_id, request.overrides
        return launch_any(
            self._hosts, self._fleet, request.target, config, run_id, flags, report, request.agreed
        ).run_id

    def leftovers(
        self, report: Callable[[str], None], agreed: Collection[AnyLeftover] | None = None
    ) -> list[AnyLeftover]:
        from midstream.check.fleet_leftovers import Examined, SliceProblem, find_leftovers
        from midstream.check.slice_leftovers import find_slice_leftovers

        remove = agreed is not None
        on_hosts = find_leftovers(self._fleet, self._hosts, remove=remove, agreed=agreed)
        found: list[AnyLeftover] = [each for each in on_hosts if not isinstance(each, Examined)]
        try:
            found.extend(find_slice_leftovers(self._fleet, report, remove=remove, agreed=agreed))
        except MidstreamError as error:  # what was found and removed before it is shown
            found.append(SliceProblem(" ".join(filter(None, (f"{error.message}.", error.hint)))))
        return found

    def recheck(self, view: MigrationView) -> list[Check]:
        from midstream.migrate.proof.recheck import recheck

        return list(recheck(self._hosts, view))

    def stop_run(self, snapshot: Snapshot, run: RunView, say: Callable[[str], object]) -> str:
        from midstream.operations import stop

        return stop.stop(self._hosts, snapshot, run, say).words

    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        from midstream.operations.examine_checkpoint import problems_of, verify

        return [f"{path}: {what}" for path, what in problems_of(verify(self._location(run, checkpoint)))]

    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        from midstream.operations.examine_checkpoint import read_manifest
        from midstream.transfer.manifest_diff import describe_difference, diff_manifests

        manifests = [read_manifest(self._location(run, name)) for name in (first, second)]
        return [describe_difference(entry) for entry in diff_manifests(*manifests)]

    def config(self, run: RunView, attempt: int) -> str:
        from midstream.watch import resolved_config

        return resolved_config.read(self._hosts, run, attempt)

    def read_log(self, run: RunView, process: int, begin: int, end: int) -> LogLines:
        from midstream.watch.host_log import read_page

        return read_page(self._hosts.get(run.host), self._log(run, process), begin, end)

    def search_log(self, run: RunView, process: int, query: LogQuery, place: int) -> LogMatches:
        from midstream.watch.host_log import search

        return search(self._hosts.get(run.host), self._log(run, process), query, place)

    def _location(self, run: RunView, name: str) -> CheckpointLocation:
        from midstream.operations.examine_checkpoint import location_of

        return location_of(self._fleet, self._hosts, run, name)

    def _log(self, run: RunView, process: int) -> str:
        return records.RunPaths(self._hosts.get(run.host).root, run.run_id).attempt(run.attempt).log(process)

    def ssh_hosts(self) -> tuple[dict[str, str], list[str], str]:
        from midstream.fleet.ssh_config_hosts import candidates, gcloud_projects

        return candidates(self._fleet.hosts), gcloud_projects(), str(self._file)

    def add_hosts(self, lines: list[str]) -> None:
        from midstream.fleet.ssh_config_hosts import add_hosts

        add_hosts(self._file, lines)

    @property
    def _named_file(self) -> str:
        """The fleet file as a flag names it; empty for the default one, which needs none."""
        from midstream.fleet.fleet_path import default_fleet_path

        return "" if self._fleet.path == str(default_fleet_path()) else self._fleet.path

    @property
    def _file(self) -> Path:
        from midstream.fleet.fleet_path import default_fleet_path

        return Path(self._fleet.path).expanduser() if self._fleet.path else default_fleet_path()

    def shell(self, host: str) -> int:
        from midstream.hosts.prompter import PROMPTS
        from midstream.hosts.shell import open_shell
        from midstream.hosts.ssh import failed_logins

        PROMPTS.reset()  # a declined host key may be offered again
        failed_logins.forget()
        return open_shell(host, self._fleet.hosts[host])

    def migrations(self) -> tuple[MigrationView, ...]:
        from midstream.migrate.journal import migration_directory

        return tuple(migration_directory.list_migrations(self._fleet))


def _looks_like_config(path: Path) -> bool:
    """Return whether a YAML file has a section of a config.

    A fleet file, for example, has none.
    """
    try:
        with path.open(errors="replace") as file:
            return _CONFIG_SECTION.search(file.read(CONFIG_SIZE)) is not None
    except OSError:
        return False
