"""Actions and snapshots with prepared answers, in place of those that reach hosts."""

from __future__ import annotations

import shlex
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from midstream.check.check_result import PASS, Check
from midstream.check.fleet_leftovers import AnyLeftover, FoundLeftover, Skipped, SliceLeftover, SliceProblem
from midstream.compare.baseline import Baseline
from midstream.compare.comparison import ComparisonRow
from midstream.costs.cost_report import CostReport, HostCost, MigrationCost, RunCost
from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.install.reporter import Reporter
from midstream.launch.launch_request import LaunchRequest
from midstream.listing.labels import Label, Labels
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.repair import RepairProposal
from midstream.operations.alerts import Alert
from midstream.operations.create_target import CreatableTarget
from midstream.operations.export_checkpoint import output_of
from midstream.operations.import_run import HostPath
from midstream.operations.list_slices import SliceListing
from midstream.operations.repair import Repair
from midstream.providers.provider import OWNER_LABEL, TARGET_LABEL, Slice, SliceStatus, Worker
from midstream.tui.actions import Actions
from midstream.tui.target_choice import TargetChoice
from midstream.watch.host_log import LogLines
from midstream.watch.log_query import LogQuery
from midstream.watch.snapshot import (
    RunView,
    Snapshot,
)
from midstream_host.runs import log_pages
from support.tui.fleets import NOW
from support.tui.prepared_migrations import CHECKS, PLAN, migration

HOUR = 3600.0
COSTS = CostReport(
    NOW - 30 * 86400,
    NOW,
    (
        HostCost("large", 12.0, 8, NOW - 40 * HOUR, 40 * HOUR, 31.5 * HOUR, 0.5 * HOUR, 8 * HOUR),
        HostCost("small", 2.5, 2, NOW - 90 * HOUR, 90 * HOUR, 20 * HOUR, HOUR, 69 * HOUR),
        HostCost("desk", None, 0, NOW - HOUR, HOUR, 0.0, 0.0, HOUR),
    ),
    (RunCost("nano", ("large", "small"), 52 * HOUR, 51.5 * HOUR, 427.5),),
    (MigrationCost("20261121-101502-nano-3fa9", "nano", "small", "large", "completed", 400.0, 14.0, 1.39),),
    ("gpu1: connection refused: is sshd running on gpu1?", "desk: booted 1.0 h ago"),
)
_WORKERS = tuple(Worker(f"10.0.0.{number}") for number in range(4))
SLICES = SliceListing(
    (
        (
            Slice(
                "lab", "us-central2-b", "v4-32", SliceStatus.READY, "READY", "HEALTHY", "v4-32", "2x2x4", "tpu-vm-base",
                "spot", workers=_WORKERS, created=NOW - 7200,
            ),
            "pod",
        ),
        (
            Slice(
                "lab", "europe-west4-a", "wanted", SliceStatus.CREATING, "WAITING_FOR_RESOURCES",
                accelerator_type="v5p-8", price_class="on demand", queued="WAITING_FOR_RESOURCES", node=False,
                created=NOW - 300,
                why="no capacity at the moment",
            ),
            "",
        ),
        (
            Slice("lab", "us-central2-b", "lost", SliceStatus.PREEMPTED, "PREEMPTED", "UNHEALTHY_MAINTENANCE", "v4-8"),
            "",
        ),
    ),
    ("lab/asia-east1-c: permission tpu.nodes.list is missing",),
)  # fmt: skip


class PreparedSnapshots:
    """Snapshot source whose value a test sets."""

    def __init__(self, first: Snapshot) -> None:
        self._snapshot = first
        self._callbacks: list[Callable[..., Any]] = []

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def subscribe(self, callback: Callable[..., Any], /) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def subscribers(self) -> int:
        return len(self._callbacks)

    def set(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        for callback in self._callbacks:
            callback(snapshot)


LEFTOVERS = (
    FoundLeftover("small", "nano", "checkpoints/step-1300-a001", "partial", 14_200_000, ""),
    FoundLeftover("large", "nano", "run.yaml.tmp-7-0", "temporary", 512, "it changed 3 s ago"),
    Skipped("gpu1", "", HostError("gpu1: connection refused")),
)
_SLICE = Slice(
    "lab", "us-central2-b", "spare", SliceStatus.READY, "READY", "HEALTHY", "v4-8", price_class="spot",
    labels={TARGET_LABEL: "pod", OWNER_LABEL: "ada"},
)  # fmt: skip
SLICE_LEFTOVERS = (
    SliceLeftover(_SLICE, "it is READY, and may be in use: midstream --delete lab/us-central2-b/spare"),
    SliceLeftover(replace(_SLICE, name="lost", status=SliceStatus.PREEMPTED, state="PREEMPTED"), ""),
    SliceProblem("lab/asia-east1-c: permission tpu.nodes.list is missing"),
)


class PreparedActions(Actions):
    """Actions that return prepared values and record their calls."""

    def __init__(self, *migrations: MigrationView) -> None:
        self.views = migrations
        self.checks: tuple[Check, ...] = CHECKS
        self.plan: Plan | MidstreamError = PLAN
        self.problems: tuple[str, ...] = ()
        self.log = ""
        self.started: str | MidstreamError = "nano"
        self.calls: list[tuple[Any, ...]] = []
        self.held: set[str] = set()
        self.stored_labels = Labels()
        self.alerts: list[Alert] | None = None  # what was sent; None: the fleet file names no receiver
        self.cost_report: CostReport | MidstreamError = CostReport(NOW - 30 * 86400, NOW)
        self.left: tuple[AnyLeftover, ...] = LEFTOVERS
        self.listing: SliceListing | MidstreamError = SliceListing(configured=False)
        self.estimated: tuple[Baseline | ComparisonRow, ...] = ()
        self.cancel: threading.Event | None = None
        self.repairs: tuple[Repair, ...] = ()

    @override
    def targets(self) -> tuple[TargetChoice, ...]:
        return (TargetChoice("small", ("small",)), TargetChoice("large", ("large",)), TargetChoice("gpu2", ("gpu2",)))

    @override
    def make_plan(self, snapshot: Snapshot, request: Request) -> Plan:
        self.calls.append(("plan", request))
        if isinstance(self.plan, MidstreamError):
            raise self.plan
        return replace(
            self.plan,
            identity=replace(self.plan.identity, mode=request.mode),
            route=replace(self.plan.route, target=request.target),
        )

    @override
    def estimates(
        self, run: RunView, names: str, report: Reporter, cancel: threading.Event
    ) -> Iterator[Baseline | ComparisonRow]:
        self.calls.append(("estimates", names))
        self.cancel = cancel
        report.update("v5e-16", "compiling")
        yield from self.estimated

    @override
    def preflight(self, plan: Plan) -> Iterator[Check]:
        self.calls.append(("preflight", plan.target))
        yield from self.checks

    @override
    def start(self, plan: Plan) -> str:
        self.calls.append(("start", plan.migration))
        self.views = (replace(migration(), plan=plan),)
        return plan.migration

    @override
    def has_receivers(self) -> bool:
        return self.alerts is not None

    @override
    def send_alert(self, alert: Alert) -> None:
        assert self.alerts is not None
        self.alerts.append(alert)

    @override
    def hold(self, migration: str) -> None:
        self.held.add(migration)

    @override
    def end_hold(self, migration: str) -> None:
        self.held.discard(migration)

    @override
    def rollback(self, migration: str, *, agreed: bool) -> None:
        self.calls.append(("rollback", migration, *(["agreed"] if agreed else [])))

    @override
    def continue_(self, migration: str, *, agreed: bool = False) -> None:
        self.calls.append(("continue", migration, *(["agreed"] if agreed else [])))

    @override
    def configs(self) -> tuple[str, ...]:
        return ("mine.yaml", "configs/gpt2_nano.yaml", "configs/gpt2_small.yaml")

    @override
    def launch_checks(self, request: LaunchRequest) -> Iterator[Check]:
        self.calls.append(("launch_checks", request))
        yield from self.checks
        yield Check("run", PASS, f"{request.run_id or 'nano-3fa9'} starts at step 0")

    @override
    def command(self, *words: str) -> str:
        return shlex.join(["midstream", *words])

    @override
    def launch_command(self, request: LaunchRequest) -> str:
        return request.command()

    @override
    def launch(self, request: LaunchRequest, report: Reporter) -> str:
        self.calls.append(("launch", request))
        report(f"{request.target}: /usr/bin/python3 (present)")
        report.update(request.target, "installing jax, 1 of 2 packages", 12.0)
        if isinstance(self.started, MidstreamError):
            raise self.started
        return self.started

    @override
    def leftovers(
        self, report: Callable[[str], None], agreed: Collection[AnyLeftover] | None = None
    ) -> list[AnyLeftover]:
        remove = agreed is not None
        self.calls.append(("leftovers", remove))
        return [
            each if isinstance(each, Skipped | SliceProblem) else replace(each, removed=remove and not each.kept)
            for each in self.left
        ]

    @override
    def recheck(self, view: MigrationView) -> list[Check]:
        self.calls.append(("recheck", view.migration))
        return list(self.checks)

    @override
    def stop_run(self, snapshot: Snapshot, run: RunView, say: Callable[[str], object]) -> str:
        self.calls.append(("stop", run.key))
        say(f"stopping {run.run_id}")
        return f"{run.run_id} stopped at step 1, checkpoint step-1-a001"

    @override
    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        self.calls.append(("verify", checkpoint))
        return list(self.problems)

    @override
    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        self.calls.append(("compare", (first, second)))
        return ["~ params/wte: 3 of 64 chunks differ"]

    @override
    def report(self, snapshot: Snapshot, run_id: str, path: Path) -> str:
        self.calls.append(("report", run_id, str(path)))
        return f"saved: {path}"

    @override
    def check_export(self, run: RunView, output: str) -> HostPath:
        return output_of(Fleet(hosts={run.host: LocalHostConfig()}), run, output)

    @override
    def export(self, run: RunView, checkpoint: str, form: str, output: str, say: Callable[[str], None]) -> str:
        self.calls.append(("export", checkpoint, form, output))
        return f"{output}: model.safetensors"

    @override
    def config(self, run: RunView, attempt: int) -> str:
        self.calls.append(("config", attempt))
        return f"trainer: {{id: nano, per_device_parallelism: {16 // attempt}}}\nseed: 1\n"

    @override
    def labels(self) -> Labels:
        return self.stored_labels

    @override
    def edit_label(self, run_id: str, label: Label) -> tuple[Labels, str]:
        self.stored_labels = self.stored_labels.edited(run_id, label)
        return self.stored_labels, f"{run_id}: saved; U undoes it"

    @override
    def undo_label(self) -> tuple[Labels, str]:
        self.stored_labels, run_id = self.stored_labels.undone()
        return self.stored_labels, f"{run_id}: as before"

    @override
    def read_log(self, run: RunView, process: int, begin: int, end: int) -> LogLines:
        """Return lines of ``log``, as a host does."""
        self.calls.append(("read_log", process, begin, end))
        page = log_pages.page(self._log_file(), begin, end)
        return LogLines(tuple(page.text.splitlines()), page.begin, page.end, page.size)

    @override
    def search_log(self, run: RunView, process: int, query: LogQuery, place: int) -> log_pages.LogMatches:
        self.calls.append(("search_log", process, place))
        return log_pages.search(self._log_file(), list(query.words), list(query.excluded), query.ignore_case, place)

    def _log_file(self) -> str:
        file = Path(tempfile.mkdtemp()) / "log.txt"
        file.write_text(self.log)
        return str(file)

    @override
    def ssh_hosts(self) -> tuple[dict[str, str], list[str], str]:
        line = "  {0}: {{type: ssh, address: {0}}}"
        return {name: line.format(name) for name in ("gpu1", "gpu2", "login")}, ["lab-tpus"], "~/fleet.yaml"

    @override
    def add_hosts(self, lines: list[str]) -> None:
        self.calls.append(("add", tuple(lines)))

    @override
    def slices(self) -> SliceListing:
        if isinstance(self.listing, MidstreamError):
            raise self.listing
        return self.listing

    @override
    def costs(self, seconds: float) -> CostReport:
        self.calls.append(("costs", seconds))
        if isinstance(self.cost_report, MidstreamError):
            raise self.cost_report
        return self.cost_report

    @override
    def create(self, missing: CreatableTarget, run_id: str = "") -> None:
        self.calls.append(("create", missing))

    @override
    def delete(self, place: str, report: Callable[[str], None]) -> str:
        self.calls.append(("delete", place))
        return f"{place} is deleted"

    @override
    def check(self, name: str) -> list[Check]:
        self.calls.append(("check", name))
        return list(self.checks)

    @override
    def find_damage(self, run_id: str) -> tuple[list[Repair], list[str]]:
        self.calls.append(("find damage", run_id))
        return list(self.repairs), []

    @override
    def repair(self, proposals: Sequence[RepairProposal]) -> str:
        self.calls.append(("repair", *proposals))
        return "wrote: {}"

    @override
    def adopt(self, place: str) -> str:
        self.calls.append(("adopt", place))
        return f"{place} is adopted"

    @override
    def shell(self, host: str) -> int:
        self.calls.append(("shell", host))
        return 0

    @override
    def migrations(self) -> tuple[MigrationView, ...]:
        return self.views
