"""A migration of fixed values, for tests, pictures and benchmarks: plan, checks, events, certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.migrate.journal import migration_state, phase_names
from midstream.migrate.journal.certificate import NOT_CHECKED, VERIFIED, Certificate, Claim
from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.facts import Facts, Sealed
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import Change, Estimate, Identity, Plan, Route, Shape
from midstream.watch.snapshot import (
    Snapshot,
)
from midstream_core import records
from support.tui.fleets import DIGEST, NOW, lineage, rows, run, small_fleet

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
        message="command: save, pass ownership 2 to large, stop (attempt 1)",
        host="small",
        shows="ssh small 'cat /root/.midstream/runs/nano/attempts/001/command.json'",
    ),
    _event(3.1, "fact", **Facts(sealed=SEALED).to_json()),
    _event(
        3.2,
        "note",
        phase_names.CUTOVER,
        message="the source is sealed at step 1204: no later step of it counts",
        step=1204,
    ),
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
        Claim("state", VERIFIED, "the restored state is the source's last state, root digest 3f9a1c52e07b"),
        Claim("data", VERIFIED, "batch 1204 is the one that the source would have used next"),
        Claim(
            "reference losses",
            VERIFIED,
            "8 fixed sequences give the same losses, largest relative difference 3.1e-07",
        ),
        Claim("continuity", NOT_CHECKED, "the source has no losses past the checkpoint to compare with", needed=False),
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
