"""Actions that screens may start: the interface, its values and its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Protocol

from midstream.errors import MidstreamError

if TYPE_CHECKING:
    from midstream.check.check_result import Check
    from midstream.check.fleet_leftovers import AnyLeftover
    from midstream.compare.baseline import Baseline
    from midstream.compare.comparison import Row as Estimated
    from midstream.costs.cost_report import CostReport
    from midstream.install.reporter import Reporter
    from midstream.launch.launch_request import LaunchRequest
    from midstream.migrate.journal.migration_view import MigrationView
    from midstream.migrate.journal.plan import Plan
    from midstream.migrate.journal.request import Request
    from midstream.providers.provider import Slice
    from midstream.watch.host_log import LogLines
    from midstream.watch.log_query import LogQuery
    from midstream.watch.snapshot import RunView, Snapshot
    from midstream_host.runs.log_pages import LogMatches


@dataclass(frozen=True)
class Target:
    """A migration target: its name in the fleet file and its hosts.

    ``allocation``: it is one of SLURM; its host is the login node, which other targets may have too.
    """

    name: str
    hosts: tuple[str, ...]
    allocation: bool = False

    def takes(self, run: RunView) -> bool:
        """Return whether a run may migrate there, from elsewhere or from another job."""
        owner = run.fence.owner if run.fence is not None else ""
        return run.host not in self.hosts or (self.allocation and owner != self.name)


class TargetMissingError(MidstreamError):
    """Error of a target whose slice does not exist and may be created for ``price``.

    Every check that is possible without the slice passed.
    """

    def __init__(self, message: str, price: str) -> None:
        super().__init__(message)
        self.price = price


@dataclass(frozen=True)
class CreatableSlice:
    """A target whose slice does not exist, or was preempted, and may be created."""

    target: str
    path: str  # PROJECT/ZONE/NAME
    accelerator_type: str
    price_class: str
    price: str  # text: the price per hour, and where it comes from


@dataclass(frozen=True)
class SliceListing:
    """The provider's slices, each with the name of its target (or an empty string).

    ``problems`` are projects and zones that could not be listed. ``configured`` is False where the fleet file names no
    project. ``creatable`` are targets whose slice can be created.
    """

    found: tuple[tuple[Slice, str], ...] = ()
    problems: tuple[str, ...] = ()
    configured: bool = True
    creatable: tuple[CreatableSlice, ...] = ()


class Actions(Protocol):
    """Actions of the screens, which call them in background threads.

    The calls block. Each may raise MidstreamError.
    """

    def targets(self) -> tuple[Target, ...]: ...

    def make_plan(self, snapshot: Snapshot, request: Request) -> Plan:
        """Plan a migration, without side effects.

        Raises TargetMissingError where the target must be created first.
        """
        ...

    def create(self, target: str, run_id: str = "") -> None:
        """Create the target's slice and wait until it is ready.

        Prints to the terminal: suspend the screen first.

        Raises:
            MidstreamError: It cannot be created, or the step of the run ``run_id`` cannot fit it.
        """
        ...

    def estimates(self, run: RunView, names: str, report: Reporter, cancel: Event) -> Iterator[Baseline | Estimated]:
        """Yield an estimate of a run for each of ``names``, by compiling for it.

        ``names`` are those of accelerators or targets.

        ``report`` gets the progress. Once ``cancel`` is set compiling ends, with an error.
        """
        ...

    def preflight(self, plan: Plan) -> Iterator[Check]:
        """Yield each check as it completes, without side effects."""
        ...

    def start(self, plan: Plan) -> str:
        """Start the migration in a process of its own, and return its id.

        The process outlives the screen.
        """
        ...

    def rollback(self, migration: str) -> None: ...

    def continue_(self, migration: str) -> None: ...

    def command(self, *words: str) -> str:
        """Return a midstream command line with this fleet file, to paste into a shell."""
        ...

    def configs(self) -> tuple[str, ...]:
        """Return the configs of this directory, and those that midstream ships."""
        ...

    def launch_checks(self, request: LaunchRequest) -> Iterator[Check]:
        """Yield the checks of a launch as each completes, without side effects on runs."""
        ...

    def launch_command(self, request: LaunchRequest) -> str:
        """Return the command line of a launch."""
        ...

    def launch(self, request: LaunchRequest, report: Reporter) -> str:
        """Install engine and environment on the target and start the run. Return its id."""
        ...

    def leftovers(
        self, report: Callable[[str], None], agreed: Collection[AnyLeftover] | None = None
    ) -> list[AnyLeftover]:
        """List leftovers on hosts and buckets, and slices.

        Remove those that were listed and ``agreed`` to, unless they have changed since; None: nothing is removed.
        ``report`` gets lines of progress.
        """
        ...

    def recheck(self, view: MigrationView) -> list[Check]:
        """Check every claim of a migration's certificate again."""
        ...

    def stop_run(self, snapshot: Snapshot, run: RunView, say: Callable[[str], object]) -> str:
        """Save and stop a run; ``say`` gets lines of progress. Return the outcome."""
        ...

    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        """Hash every object of a checkpoint in place. Return its problems, one line each."""
        ...

    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        """Return the differences between the manifests of two checkpoints, one line each."""
        ...

    def config(self, run: RunView, attempt: int) -> str:
        """Return the resolved configuration of an attempt, as YAML."""
        ...

    def read_log(self, run: RunView, process: int, begin: int, end: int) -> LogLines:
        """Return the lines between two bytes of the log of a process.

        A negative ``begin`` counts from the end of the log.
        """
        ...

    def search_log(self, run: RunView, process: int, query: LogQuery, place: int) -> LogMatches:
        """Count the matching lines of a process's log; find those next to byte ``place``."""
        ...

    def ssh_hosts(self) -> tuple[dict[str, str], list[str], str]:
        """Return SSH hosts, gcloud's projects and the path of the fleet file.

        The result is (host -> its line for the fleet file, gcloud's projects, path of the fleet file).
        """
        ...

    def add_hosts(self, lines: list[str]) -> None:
        """Add these lines to the fleet file."""
        ...

    def shell(self, host: str) -> int:
        """Run a shell on the host in this terminal, and return its exit code.

        Suspend the screen first.
        """
        ...

    def delete(self, place: str, report: Callable[[str], None]) -> None:
        """Delete the slice ``PROJECT/ZONE/NAME``; return when it is deleted.

        ``report`` gets lines of progress.
        """
        ...

    def costs(self, seconds: float) -> CostReport:
        """Return what hosts, runs and migrations have cost in the last ``seconds``."""
        ...

    def slices(self) -> SliceListing:
        """List the TPU slices of the fleet file's projects and zones."""
        ...

    def migrations(self) -> tuple[MigrationView, ...]:
        """Return all migrations, newest first."""
        ...
