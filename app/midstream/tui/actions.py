"""Actions of the screens on a fleet."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError
from midstream.tui.target_choice import TargetChoice, TargetMissingError

if TYPE_CHECKING:
    from midstream.check.check_result import Check
    from midstream.check.fleet_leftovers import AnyLeftover
    from midstream.compare.baseline import Baseline
    from midstream.compare.comparison import ComparisonRow
    from midstream.costs.cost_report import CostReport
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.install.reporter import Reporter
    from midstream.launch.launch_request import LaunchRequest
    from midstream.listing.fleet_facts import FleetFacts
    from midstream.listing.labels import Label, Labels
    from midstream.migrate.journal.migration_view import MigrationView
    from midstream.migrate.journal.plan import Plan
    from midstream.migrate.journal.request import Request
    from midstream.migrate.repair import RepairProposal
    from midstream.operations.alerts import Alert
    from midstream.operations.create_target import CreatableTarget
    from midstream.operations.examine_checkpoint import CheckpointLocation
    from midstream.operations.import_run import HostPath
    from midstream.operations.list_slices import SliceListing
    from midstream.operations.repair import Repair
    from midstream.operations.run_log import RunLog
    from midstream.watch.host_log import LogLines
    from midstream.watch.log_query import LogQuery
    from midstream.watch.snapshot import RunView, Snapshot
    from midstream_host.runs.log_pages import LogMatches


class Actions:
    """Actions of the screens on a fleet. Screens call them in background threads.

    The calls block, and each may raise MidstreamError. Methods import what they need: planning, migration and cloud
    modules would delay the first paint.
    """

    def __init__(self, fleet: Fleet, hosts: HostPool) -> None:
        self._fleet = fleet
        self._hosts = hosts
        self._holds: dict[str, Callable[[], None]] = {}

    def targets(self) -> tuple[TargetChoice, ...]:
        """Return the targets; one whose hosts are unknown has none, and its plan says why.

        A worker of a slice is no target: a run there would wait for the devices of the others.
        """
        from midstream.providers import fleet_slices

        fleet = self._fleet
        names = [
            name for name in fleet.target_names if name in fleet.targets or not fleet_slices.target_of_host(fleet, name)
        ]
        return tuple(TargetChoice(name, fleet.hosts_of(name), fleet.slurm_of(name) is not None) for name in names)

    def make_plan(self, snapshot: Snapshot, request: Request) -> Plan:
        """Plan a migration, without side effects.

        Raises TargetMissingError where the target must be created first.
        """
        from midstream.migrate.planning import planner
        from midstream.operations.create_target import creatable_target
        from midstream.operations.plan_migration import check_ahead

        missing = creatable_target(self._fleet, request.target)
        if missing is not None:
            check_ahead(self._hosts, snapshot, request)
            raise TargetMissingError(missing)
        return planner.make_plan(self._hosts, snapshot, request)

    def create(self, missing: CreatableTarget, run_id: str = "") -> None:
        """Create the target; see `target_choice.create`.

        Suspend the screen first: it prints to the terminal.
        """
        from midstream.tui.target_choice import create

        create(self._hosts, missing, run_id)

    def estimates(
        self, run: RunView, names: str, report: Reporter, cancel: Event
    ) -> Iterator[Baseline | ComparisonRow]:
        """Yield an estimate of a run for each of ``names``, by compiling for it.

        ``names`` are those of accelerators or targets. ``report`` gets the progress. Once ``cancel`` is set compiling
        ends, with an error.
        """
        from midstream.compare.subject import of_run
        from midstream.operations.compare import CompareRequest, compare
        from midstream.operations.fleet_snapshot import fleet_snapshot

        hosts = self._hosts
        request = CompareRequest(names)
        yield from compare(hosts, of_run(hosts, run, ()), request, fleet_snapshot(hosts), report, cancel)

    def costs(self, seconds: float) -> CostReport:
        """Return what hosts, runs and migrations have cost in the last ``seconds``."""
        from midstream.costs.collect import collect

        return collect(self._hosts, seconds)

    def read_facts(self, facts: FleetFacts, *, costs: bool) -> None:
        """Read the configurations that lists have noted, and with ``costs`` the costs."""
        from midstream.operations.fleet_facts import ALL_TIME, costs_of

        if costs:
            facts.set_costs(costs_of(self.costs(ALL_TIME)))
        facts.read(lambda run: self.config(run, run.attempt))

    def labels(self) -> Labels:
        """Return the names, tags and notes of runs."""
        from midstream.listing import labels

        return labels.load()

    def edit_label(self, run_id: str, label: Label) -> tuple[Labels, str]:
        """Set name, tags and note of a run. Return all labels and the outcome."""
        from midstream.listing import labels

        return labels.edit(run_id, label), f"{run_id}: saved; U undoes it"

    def undo_label(self) -> tuple[Labels, str]:
        """Undo the last edit of a label. Return all labels and the outcome."""
        from midstream.listing import labels

        restored, run_id = labels.undo()
        return restored, f"{run_id}: name, tags and note are as before"

    def slices(self) -> SliceListing:
        """List the TPU slices of the fleet file's projects and zones."""
        from midstream.operations.list_slices import list_slices

        return list_slices(self._fleet)

    def check(self, name: str) -> list[Check]:
        """Check a target before a run starts there, or a run before it is moved."""
        from midstream.operations.check import check

        return list(check(self._hosts, name))

    def find_damage(self, run_id: str) -> tuple[list[Repair], list[str]]:
        """Return proposals for a run's records, and lines about damaged checkpoints."""
        from midstream.operations.repair import Repair, find_damage

        proposals, damaged = find_damage(self._hosts, run_id)
        return [Repair(proposal) for proposal in proposals], damaged

    def repair(self, proposals: Sequence[RepairProposal]) -> str:
        """Write the replacements that the user has agreed to. Return the outcome."""
        from midstream.operations.repair import repair

        return "\n".join(
            proposal.refused or proposal.lines()[-1].strip() for proposal in repair(self._hosts, proposals, agreed=True)
        )

    def adopt(self, place: str) -> str:
        """Adopt the trainer that runs in a directory ``HOST:DIR``. Return the outcome."""
        from midstream.launch.adopt_process import adopt_process, adopted_words

        return adopted_words(adopt_process(self._hosts, place))

    def delete(self, place: str, report: Callable[[str], None]) -> str:
        """Delete a slice, or the slice or pods of a target. Return the outcome.

        ``report`` gets lines of progress.
        """
        from midstream.operations.delete_target import delete_target

        return delete_target(self._fleet, place, report)

    def preflight(self, plan: Plan) -> Iterator[Check]:
        """Yield each check as it completes, without side effects."""
        from midstream.migrate.planning import preflight

        return preflight.run_checks(self._hosts, plan)

    def start(self, plan: Plan) -> str:
        """Start the migration in a process of its own, and return its id.

        The process outlives the screen.
        """
        from midstream.migrate import migration_process

        return migration_process.start(self._fleet, plan)

    def has_receivers(self) -> bool:
        """Return whether the fleet file names receivers of notifications."""
        return bool(self._fleet.notify or self._fleet.on_event)

    def send_alert(self, alert: Alert) -> None:
        """Send an alert to all receivers of the fleet file."""
        from midstream.operations.alerts import send

        send(self._fleet, alert)

    def hold(self, migration: str) -> None:
        """Keep a migration from finishing while a question about its rollback is open."""
        from midstream.migrate.journal.migration_directory import MigrationDirectory

        self.end_hold(migration)
        self._holds[migration] = MigrationDirectory(migration).hold()

    def end_hold(self, migration: str) -> None:
        """Let a migration finish again."""
        if release := self._holds.pop(migration, None):
            release()

    def rollback(self, migration: str, *, agreed: bool) -> None:
        """Roll a migration back; ``agreed``: to the loss that was named."""
        from midstream.migrate import migration_process

        migration_process.rollback(migration, agreed=agreed)
        self.end_hold(migration)
        migration_process.refuse_late_rollback(migration)

    def continue_(self, migration: str, *, agreed: bool = False) -> None:
        """Continue a migration; ``agreed``: without evidence that was shown as missing."""
        from midstream.migrate import migration_process

        migration_process.continue_(migration, agreed=agreed)

    def configs(self) -> tuple[str, ...]:
        """Return the configs of this directory, and those that midstream ships."""
        from midstream.launch.offered_configs import offered_configs

        return offered_configs()

    def launch_checks(self, request: LaunchRequest) -> Iterator[Check]:
        """Yield the checks of a launch as each completes, without side effects on runs."""
        from midstream.check.launch_checks import check_request

        return check_request(self._hosts, request)

    def command(self, *words: str) -> str:
        """Return a midstream command line with this fleet file, to paste into a shell."""
        fleet = ("--fleet", self._named_file) if self._named_file else ()
        return shlex.join(["midstream", *fleet, *words])

    def launch_command(self, request: LaunchRequest) -> str:
        """Return the command line of a launch."""
        return request.command(self._named_file)

    def launch(self, request: LaunchRequest, report: Reporter) -> str:
        """Install engine and environment on the target and start the run. Return its id."""
        from midstream.operations.launch import launch

        return launch(self._hosts, request, report).run_id

    def leftovers(
        self, report: Callable[[str], None], agreed: Collection[AnyLeftover] | None = None
    ) -> list[AnyLeftover]:
        """List leftovers on hosts and buckets, and slices.

        Remove those that were listed and ``agreed`` to, unless they have changed since; None: nothing is removed.
        ``report`` gets lines of progress.
        """
        from midstream.check.fleet_leftovers import SliceProblem
        from midstream.operations.clean import clean

        leftovers: list[AnyLeftover] = []
        try:
            leftovers.extend(clean(self._hosts, report, agreed=agreed))
        except MidstreamError as error:  # what was found and removed before it is shown
            leftovers.append(SliceProblem(" ".join(filter(None, (f"{error.message}.", error.hint)))))
        return leftovers

    def recheck(self, view: MigrationView) -> list[Check]:
        """Check every claim of a migration's certificate again."""
        from midstream.migrate.proof.recheck import recheck

        return list(recheck(self._hosts, view))

    def stop_run(self, snapshot: Snapshot, run: RunView, say: Callable[[str], object]) -> str:
        """Save and stop a run; ``say`` gets lines of progress. Return the outcome."""
        from midstream.operations import stop

        return stop.stop(self._hosts, snapshot, run, say).words

    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        """Hash every object of a checkpoint in place. Return its problems, one line each."""
        from midstream.operations.examine_checkpoint import problems_of, verify

        return [f"{path}: {what}" for path, what in problems_of(verify(self._location(run, checkpoint)))]

    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        """Return the differences between the manifests of two checkpoints, one line each."""
        from midstream.operations.diff_checkpoints import diff_checkpoints

        return diff_checkpoints(self._location(run, first), self._location(run, second)).lines()

    def report(self, snapshot: Snapshot, run_id: str, path: Path) -> str:
        """Write the report of a run. Return the outcome."""
        from midstream.operations.report import write_report

        return f"saved: {write_report(self._hosts, snapshot, run_id, path).path.absolute()}"

    def check_export(self, run: RunView, output: str) -> HostPath:
        """Return where an export is written. UsageError where it cannot be."""
        from midstream.operations.export_checkpoint import output_of

        return output_of(self._fleet, run, output)

    def export(self, run: RunView, checkpoint: str, form: str, output: str, say: Callable[[str], None]) -> str:
        """Export a checkpoint of a run to ``output`` (HOST:PATH). Return the outcome."""
        from midstream.operations.export_checkpoint import ExportRequest, export_checkpoint

        return export_checkpoint(self._hosts, ExportRequest(run, checkpoint, form, self.check_export(run, output)), say)

    def config(self, run: RunView, attempt: int) -> str:
        """Return the resolved configuration of an attempt, as YAML."""
        from midstream.watch import resolved_config

        return resolved_config.read(self._hosts, run, attempt)

    def read_log(self, run: RunView, process: int, begin: int, end: int) -> LogLines:
        """Return the lines between two bytes of the log of a process.

        A negative ``begin`` counts from the end of the log.
        """
        from midstream.watch.host_log import read_page

        log = self._log(run, process)
        return read_page(log.host, log.path, begin, end)

    def search_log(self, run: RunView, process: int, query: LogQuery, place: int) -> LogMatches:
        """Count the matching lines of a process's log; find those next to byte ``place``."""
        from midstream.watch.host_log import search

        log = self._log(run, process)
        return search(log.host, log.path, query, place)

    def _location(self, run: RunView, name: str) -> CheckpointLocation:
        from midstream.operations.examine_checkpoint import location_of

        return location_of(self._hosts, run, name)

    def _log(self, run: RunView, process: int) -> RunLog:
        from midstream.operations.run_log import log_on

        return log_on(self._hosts.get(run.host), run, process)

    def ssh_hosts(self) -> tuple[dict[str, str], list[str], str]:
        """Return SSH hosts, gcloud's projects and the path of the fleet file.

        The result is (host -> its line for the fleet file, gcloud's projects, path of the fleet file).
        """
        from midstream.fleet.ssh_config_hosts import candidates, gcloud_projects

        return candidates(self._fleet.hosts), gcloud_projects(), str(self._file)

    def add_hosts(self, lines: list[str]) -> None:
        """Add these lines to the fleet file."""
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
        """Run a shell on the host in this terminal, and return its exit code.

        Suspend the screen first.
        """
        from midstream.hosts.host_pool import open_host
        from midstream.hosts.prompter import PROMPTS
        from midstream.hosts.ssh import failed_logins

        PROMPTS.reset()  # a declined host key may be offered again
        failed_logins.forget()
        return open_host(host, self._fleet.hosts[host]).open_shell()

    def migrations(self) -> tuple[MigrationView, ...]:
        """Return all migrations, newest first."""
        from midstream.migrate.journal import migration_directory

        return tuple(migration_directory.list_migrations(self._fleet))
