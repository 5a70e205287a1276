"""Fleets of fixed values, for tests, pictures and benchmarks."""

from __future__ import annotations

import math
import random
import shlex
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.check.leftovers import AnyLeftover, Leftover, Skipped, SliceLeftover, SliceProblem
from midstream.compare.comparison import Row as Estimated
from midstream.costs.cost_report import CostReport, HostCost, MigrationCost, RunCost
from midstream.errors import HostError, MidstreamError
from midstream.hosts.providers.provider import OWNER_LABEL, TARGET_LABEL, Slice, SliceStatus, Worker
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.reporter import Reporter
from midstream.migrate import migration_state, phase_names
from midstream.migrate.event import Event
from midstream.migrate.facts import Facts, Sealed
from midstream.migrate.migration_view import MigrationView
from midstream.migrate.plan import Change, Estimate, Identity, Plan, Route, Shape
from midstream.migrate.proof.certificate import NOT_CHECKED, VERIFIED, Certificate, Claim
from midstream.migrate.proof.downtime_report import DowntimeReport
from midstream.migrate.request import Request
from midstream.remote.runs import log_pages
from midstream.tui.actions import Actions, SliceListing, Target
from midstream.watch.logs.host_log import LogLines
from midstream.watch.logs.log_query import LogQuery
from midstream.watch.snapshot import (
    DOWN,
    LIVE,
    STALE,
    Accelerator,
    CheckpointView,
    HostView,
    Machine,
    RunView,
    Snapshot,
)
from midstream.watch.system.system_series import SystemSeries
from midstream_engine import records

NOW = 1_795_250_000.0
GB = 10**9
DIGEST = "3f9a1c52e07b4d86" * 4


def machine(name: str = "small", accelerators: int = 2, kind: str = "cpu", **changes: Any) -> Machine:
    units = tuple(
        Accelerator(index, kind, 80 * GB, 61 * GB, 0.93) if kind != "cpu" else Accelerator(index, kind)
        for index in range(accelerators)
    )
    return replace(
        Machine(
            name, "Linux-6.1 x86_64 glibc2.36", "3.11.7", 16, 0.41, 128 * GB, 32 * GB, 1000 * GB, 120 * GB, 0.0, units
        ),
        **changes,
    )


def host(name: str, link: str = LIVE, accelerators: int = 2, kind: str = "cpu", **changes: Any) -> HostView:
    value = HostView(name, "local", link, NOW - 0.4, machine=machine(name, accelerators, kind))
    if link == STALE:
        value = replace(value, last_seen=NOW - 190, error="no word for 190 s; reconnecting")
    if link == DOWN:
        value = replace(
            value, kind="ssh", last_seen=None, machine=None, error="connection refused: is sshd running on gpu1?"
        )
    return replace(value, **changes)


def rows(count: int, attempts: Mapping[int, int] | None = None, seed: int = 7, first: int = 0) -> list[dict[str, Any]]:
    """Metrics rows of a falling loss. ``attempts``: attempt -> its first step."""
    chance = random.Random(seed)
    starts = sorted((attempts or {1: 0}).items(), key=lambda item: item[1])
    found = []
    for step in range(first, count):
        attempt = [number for number, begin in starts if begin <= step][-1]
        loss = 2.1 + 3.4 * math.exp(-step / 180) + 0.09 * chance.gauss(0, 1)
        found.append(
            {
                "global_step": step,
                "train/loss": loss,
                "optim/learning_rate": 3e-4 * min(1.0, (step + 1) / 100),
                "grad/norm/total": 0.6 + 0.2 * chance.random(),
                "throughput/tokens_per_second": 12_345.6,
                "throughput/duration": 0.21,
                "time": NOW - 0.21 * (count - step),
                "attempt": attempt,
            }
        )
    return found


def lineage(run_id: str, *attempts: tuple[int, str, int, int]) -> records.Lineage:
    """Lineage of ``(attempt, target, devices, first step)`` entries."""
    chain = records.Lineage(run_id)
    for number, (attempt, target, devices, first) in enumerate(attempts):
        last = attempts[number + 1][3] if number + 1 < len(attempts) else None
        point = records.checkpoint_name(first, attempt - 1) if first else None
        chain = chain.with_entry(
            records.LineageEntry(
                attempt, number + 1, target, devices, "cpu", first, last, point, DIGEST if point else None
            )
        )
    return chain


def checkpoint(step: int, attempt: int = 1, **changes: Any) -> CheckpointView:
    value = CheckpointView(
        records.checkpoint_name(step, attempt), step, attempt, True, True, 14_200_000, NOW - 180, DIGEST, pinned=False
    )
    return replace(value, **changes)


def run(
    run_id: str = "nano",
    host: str = "small",
    state: str = records.TRAINING,
    step: int = 1204,
    *,
    devices: int = 2,
    attempt: int = 1,
    running: bool = True,
    curve: Sequence[Mapping[str, Any]] | None = None,
    **changes: Any,
) -> RunView:
    """Create a run whose epoch is the number of its attempt."""
    epoch = attempt
    status = records.Status(
        state,
        step,
        0,
        "boot",
        4242,
        99,
        NOW - 1.5,
        run_id,
        attempt,
        epoch,
        num_train_steps=2000,
        devices=[{"kind": "cpu", "platform": "cpu", "memory_bytes": None}] * devices,
        versions={"jax": "0.10.2", "python": "3.11.7"},
        root_digest=DIGEST,
    )
    value = RunView(
        run_id,
        host,
        records.Fence(epoch, host),
        lineage(run_id, (attempt, host, devices, 0)),
        attempt,
        status,
        running,
        (checkpoint(1000), checkpoint(1200, pinned=True)),
        rows(step) if curve is None else curve,
        tuple(f"step {number} loss {3 - number / 1000:.3f}" for number in range(max(0, step - 60), step)),
    )
    return replace(value, **changes)


def labelled(value: RunView, hours: float, project: str = "", *tags: str) -> RunView:
    """Return the run as started ``hours`` ago, with the labels of its tracker."""
    assert value.status is not None
    assert value.lineage is not None
    chain = value.lineage
    for entry in chain.entries:
        chain = chain.with_entry(replace(entry, started=NOW - 3600 * hours))
    status = replace(value.status, project=project, tags=list(tags))
    return replace(value, status=status, lineage=chain)


def unreachable(value: RunView, seconds: float = 191.0) -> RunView:
    """Return the run as it was observed ``seconds`` ago."""
    assert value.status is not None
    return replace(value, status=replace(value.status, heartbeat=NOW - seconds))


def moved_run() -> RunView:
    """A run that migrated from ``small`` to ``large`` at step 600."""
    return run(
        host="large",
        devices=4,
        attempt=2,
        curve=rows(1204, {1: 0, 2: 600}),
        fence=records.Fence(2, "large", 600, [{"epoch": 1, "step": 600}]),
        lineage=lineage("nano", (1, "small", 2, 0), (2, "large", 4, 600)),
    )


def snapshot(
    hosts: Sequence[HostView] = (),
    runs: Sequence[RunView] = (),
    version: int = 1,
    system: Mapping[str, SystemSeries] | None = None,
) -> Snapshot:
    return Snapshot(version, NOW, tuple(hosts), tuple(runs), system or {})


def system_series(seconds: int, *, accelerators: int = 2, busy: float = 0.9, step: float = 5.0) -> SystemSeries:
    """System metrics of the ``seconds`` before NOW; accelerator k has the utilization ``busy`` - k / 10."""
    series = SystemSeries()
    chance = random.Random(5)
    for number in range(int(seconds / step) + 1):
        share = chance.random()
        units = [
            {
                "index": index,
                "utilization": max(0.0, busy - index / 10),
                "memory_used": 40 * GB,
                "power": 300.0 + 100 * index,
                "temperature": 50.0 + index,
            }
            for index in range(accelerators)
        ]
        gauges = {
            "cpu_used": 0.2 + 0.1 * share,
            "memory_used": 32 * GB,
            "network_received": round(1e8 * share),
            "network_sent": round(5e7 * share),
            "disk_read": 0,
            "disk_written": round(2e6 * share),
        }
        series.add(NOW - seconds + step * number, {**gauges, "accelerators": units})
    return series


def small_fleet(*runs: RunView) -> Snapshot:
    return snapshot([host("small"), host("large", accelerators=4)], runs or [run()])


def big_fleet() -> Snapshot:
    """A fleet of GPUs with an unreachable host and a lost, a failed and a finished run."""
    failed = run("ablate-lr-3e-3", "gpu2", records.FAILED, 77, running=False, devices=8)
    assert failed.status is not None
    return snapshot(
        [
            host("small"),
            host("large", accelerators=4),
            host("gpu2", STALE, 8, "NVIDIA A100-SXM4-80GB"),
            host("gpu1", DOWN),
        ],
        [
            labelled(moved_run(), 5, "shakespeare", "wide"),
            labelled(unreachable(run("gpt2-medium", "gpu2", devices=8, step=880)), 50, "webtext"),
            labelled(
                unreachable(replace(failed, status=replace(failed.status, message="loss is not finite at step 77"))),
                2,
                "webtext",
                "lr",
                "ablation",
            ),
            run("overnight", "small", running=False, step=300),
            labelled(run("baseline", "large", records.FINISHED, 2000, running=False), 24 * 300, "shakespeare"),
        ],
    )


PLAN = Plan(
    identity=Identity("20261121-101502-nano-3fa9", "nano", "cold", source_epoch=1, epoch=2, created=NOW - 30),
    shape=Shape(
        source_devices=2,
        target_devices=4,
        train_batch_size=32,
        per_device_parallelism=8,
        accumulation=1,
        changes=(
            Change("devices", "2", "4"),
            Change("batch", "32", "32", "kept"),
            Change("steps", "2000", "2000"),
            Change("per device", "16", "8", "division of the batch over devices; changes no result"),
            Change("accumulation", "1", "1"),
            Change("precision", "f32", "f32"),
        ),
    ),
    route=Route(
        "small",
        source_attempt=1,
        source_state="training",
        source_step=1204,
        target="large",
        target_host="large",
        probed="relayed through this machine",
        data_digests=(DIGEST,),
    ),
    estimate=Estimate(
        checkpoint_bytes=14_200_000,
        predicted_seconds={
            "quiesce": 1.2,
            "save": 0.5,
            "copy": 1.1,
            "verify": 0.3,
            "provision": 6.0,
            "install": 0.0,
            "compile": 4.1,
            "restore": 1.0,
            "first_step": 0.2,
        },
        duration={"install": 1.5, "data": 0.2, "downtime": 14.4, "certify": 1.0, "healthy steps": 20.0},
    ),
)

CHECKS = (
    Check("source answers", PASS, "small"),
    Check("target answers", PASS, "large"),
    Check("python", PASS, "3.11.7"),
    Check("disk", WARN, "3.1 GB free, 2.9 GB needed", "free some space on large"),
    Check("divisibility", PASS, "batch 32 over 4 devices: 8 each"),
)
REFUSAL = Check("devices free", FAIL, "pid 811 uses device 0", "stop it on large: kill 811")


def _event(at: float, /, event: str, phase: str = "", state: str = "", message: str = "", **detail: Any) -> Event:
    return Event(event, NOW - 30 + at, phase, state, message, detail)


SEALED = Sealed(1204, "step-1204-a001", DIGEST, 1, records.Fence(1, "small").sealed(2, "large", 1204))
EVENTS = (
    _event(0.0, "phase", phase_names.PREPARE, phase_names.STARTED),
    _event(
        0.1,
        "command",
        phase_names.PREPARE,
        message="engine bundle 9c1f to ~/.midstream/engines",
        host="large",
        shows="ssh large 'ls -l /root/.midstream/engines/9c1f'",
    ),
    _event(0.1, "stage", phase_names.PREPARE, "started", "install (of about 1.5s); left in all: 37s", stage="install"),
    _event(1.9, "stage", phase_names.PREPARE, "done", stage="install", seconds=1.8),
    _event(2.0, "phase", phase_names.PREPARE, phase_names.DONE),
    _event(2.1, "phase", phase_names.CUTOVER, phase_names.STARTED),
    _event(2.1, "stage", phase_names.CUTOVER, "started", "downtime (of about 14s); left in all: 35s", stage="downtime"),
    _event(
        2.2,
        "command",
        phase_names.CUTOVER,
        message="command: save, seal epoch 2 for large, stop (attempt 1)",
        host="small",
        shows="ssh small 'cat /root/.midstream/runs/nano/attempts/001/command.json'",
    ),
    _event(3.1, "fact", **Facts(sealed=SEALED).to_json()),
    _event(3.2, "note", phase_names.CUTOVER, message="the source is sealed at step 1204", step=1204),
    _event(
        4.0,
        "phase",
        phase_names.CUTOVER,
        phase_names.PROGRESS,
        what="checkpoint",
        bytes_done=9_100_000,
        bytes_total=14_200_000,
        objects_done=5,
        objects_total=9,
        bytes_per_second=4.12e8,
        eta_seconds=12.0,
        object="params/c/0",
    ),
)
LAST_EVENTS = (
    _event(5.0, "stage", phase_names.CUTOVER, "done", stage="downtime", seconds=2.9),
    _event(5.0, "phase", phase_names.CUTOVER, phase_names.DONE),
    _event(5.1, "phase", phase_names.RELAUNCH, phase_names.STARTED),
    _event(
        5.2,
        "command",
        phase_names.RELAUNCH,
        message="python -m midstream_engine.train --config_path run.yaml",
        host="large",
    ),
    _event(14.0, "phase", phase_names.RELAUNCH, phase_names.DONE),
    _event(14.1, "phase", phase_names.CERTIFY, phase_names.STARTED),
    _event(15.0, "phase", phase_names.CERTIFY, phase_names.DONE),
    _event(15.1, "phase", phase_names.FINISH, phase_names.STARTED),
)
CERTIFICATE = Certificate(
    PLAN.migration,
    "nano",
    "small",
    "large",
    1204,
    "step-1204-a001",
    DIGEST,
    2,
    (
        Claim("state", VERIFIED, "the restored state is the sealed state, root digest 3f9a1c52e07b"),
        Claim("data", VERIFIED, "batch 1204 is the one that the source would have used next"),
        Claim(
            "reference losses",
            VERIFIED,
            "8 fixed sequences give the same losses, largest relative difference 3.1e-07",
        ),
        Claim("continuity", NOT_CHECKED, "the source has no losses past the seal to compare with", needed=False),
    ),
    NOW - 14,
)
DOWNTIME_REPORT = DowntimeReport(
    PLAN.estimate.predicted_seconds,
    {**PLAN.estimate.predicted_seconds, "save": 0.4, "copy": 0.6, "provision": 7.4, "compile": 11.2},
    NOW - 29,
    NOW - 15,
)


def migration(state: str = migration_state.RUNNING, **changes: Any) -> MigrationView:
    """A migration during its copy."""
    return replace(MigrationView(PLAN.migration, PLAN, state, phase_names.CUTOVER, EVENTS), **changes)


def certified() -> MigrationView:
    return migration(
        phase=phase_names.FINISH, events=EVENTS + LAST_EVENTS, downtime=DOWNTIME_REPORT, certificate=CERTIFICATE
    )


def moved_fleet() -> Snapshot:
    """The fleet after the migration above."""
    source = run(
        state=records.STOPPED, running=False, fence=records.Fence(2, "large", 1204, [{"epoch": 1, "step": 1204}])
    )
    target = run(
        host="large",
        step=1240,
        devices=4,
        attempt=2,
        curve=rows(1240, {1: 0, 2: 1204}),
        fence=records.Fence(2, "large", 1204, [{"epoch": 1, "step": 1204}]),
        lineage=lineage("nano", (1, "small", 2, 0), (2, "large", 4, 1204)),
    )
    return small_fleet(target, replace(source, fence=records.Fence(1, "small")))


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
    Leftover("small", "nano", "checkpoints/step-1300-a001", "partial", 14_200_000, ""),
    Leftover("large", "nano", "run.yaml.tmp-7-0", "temporary", 512, "it changed 3 s ago"),
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
        self.cost_report: CostReport | MidstreamError = CostReport(NOW - 30 * 86400, NOW)
        self.left: tuple[AnyLeftover, ...] = LEFTOVERS
        self.listing: SliceListing | MidstreamError = SliceListing(configured=False)
        self.estimated: tuple[Estimated, ...] = ()
        self.cancel: threading.Event | None = None

    @override
    def targets(self) -> tuple[Target, ...]:
        return (Target("small", ("small",)), Target("large", ("large",)), Target("gpu2", ("gpu2",)))

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
    def estimates(self, run: RunView, names: str, report: Reporter, cancel: threading.Event) -> Iterator[Estimated]:
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
    def rollback(self, migration: str) -> None:
        self.calls.append(("rollback", migration))

    @override
    def continue_(self, migration: str) -> None:
        self.calls.append(("continue", migration))

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
    def leftovers(self, report: Callable[[str], None], *, remove: bool) -> list[AnyLeftover]:
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
    def stop_run(self, run: RunView) -> None:
        self.calls.append(("stop", run.key))

    @override
    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        self.calls.append(("verify", checkpoint))
        return list(self.problems)

    @override
    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        self.calls.append(("compare", (first, second)))
        return ["~ params/wte: 3 of 64 chunks differ"]

    @override
    def config(self, run: RunView, attempt: int) -> str:
        self.calls.append(("config", attempt))
        return f"trainer: {{id: nano, per_device_parallelism: {16 // attempt}}}\nseed: 1\n"

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
    def create(self, target: str, run_id: str = "") -> None:
        self.calls.append(("create", target))

    @override
    def delete(self, place: str, report: Callable[[str], None]) -> None:
        self.calls.append(("delete", place))

    @override
    def shell(self, host: str) -> int:
        self.calls.append(("shell", host))
        return 0

    @override
    def migrations(self) -> tuple[MigrationView, ...]:
        return self.views
