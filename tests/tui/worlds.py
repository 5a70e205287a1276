"""Fleets made by hand: values, the same at every call, for tests and for looking at screens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from midstream.errors import MidstreamError
from midstream.migrate import model
from midstream.tui.actions import Slices, Target
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
    """A loss that falls as losses do. ``attempts``: attempt -> its first step."""
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
    """``(attempt, target, devices, first step)`` each."""
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
    epoch: int = 1,
    attempt: int = 1,
    alive: bool = True,
    curve: Sequence[Mapping[str, Any]] | None = None,
    **changes: Any,
) -> RunView:
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
        alive,
        (checkpoint(1000), checkpoint(1200, pinned=True)),
        rows(step) if curve is None else curve,
        tuple(f"step {number} loss {3 - number / 1000:.3f}" for number in range(max(0, step - 60), step)),
    )
    return replace(value, **changes)


def silent(value: RunView, seconds: float = 191.0) -> RunView:
    """The run as it was heard of that long ago."""
    assert value.status is not None
    return replace(value, status=replace(value.status, heartbeat=NOW - seconds))


def moved_run() -> RunView:
    """A run that crossed from ``small`` to ``large`` at step 600."""
    return run(
        host="large",
        devices=4,
        epoch=2,
        attempt=2,
        curve=rows(1204, {1: 0, 2: 600}),
        fence=records.Fence(2, "large", 600, [{"epoch": 1, "step": 600}]),
        lineage=lineage("nano", (1, "small", 2, 0), (2, "large", 4, 600)),
    )


def snapshot(hosts: Sequence[HostView] = (), runs: Sequence[RunView] = (), version: int = 1) -> Snapshot:
    return Snapshot(version, NOW, tuple(hosts), tuple(runs))


def small_fleet(*runs: RunView) -> Snapshot:
    return snapshot([host("small"), host("large", accelerators=4)], runs or [run()])


def big_fleet() -> Snapshot:
    """Something of everything: GPUs, silence, a lost run, one that failed, one that is done."""
    failed = run("ablate-lr-3e-3", "gpu2", records.FAILED, 77, alive=False, devices=8)
    assert failed.status is not None
    return snapshot(
        [
            host("small"),
            host("large", accelerators=4),
            host("gpu2", STALE, 8, "NVIDIA A100-SXM4-80GB"),
            host("gpu1", DOWN),
        ],
        [
            moved_run(),
            silent(run("gpt2-medium", "gpu2", devices=8, step=880)),
            silent(replace(failed, status=replace(failed.status, message="loss is not finite at step 77"))),
            run("overnight", "small", alive=False, step=300),
            run("baseline", "large", records.FINISHED, 2000, alive=False),
        ],
    )


PLAN = model.Plan(
    migration="20261121-101502-nano-3fa9",
    run_id="nano",
    mode="cold",
    source="small",
    source_attempt=1,
    source_state="training",
    source_step=1204,
    target="large",
    target_host="large",
    source_epoch=1,
    epoch=2,
    checkpoint="now",
    checkpoint_step=None,
    source_devices=2,
    target_devices=4,
    train_batch_size=32,
    per_device_parallelism=8,
    accumulation=1,
    overrides=(),
    changes=(
        model.Change("devices", "2", "4"),
        model.Change("batch", "32", "32", "kept"),
        model.Change("steps", "2000", "2000"),
        model.Change("per device", "16", "8", "how the batch lies on the devices; changes no result"),
        model.Change("accumulation", "1", "1"),
        model.Change("precision", "f32", "f32"),
    ),
    route="relayed through this machine",
    checkpoint_bytes=14_200_000,
    data_digests=(DIGEST,),
    data_bytes=0,
    steps_lost=0,
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
    created=NOW - 30,
)

CHECKS = (
    model.Check("source answers", model.PASS, "small"),
    model.Check("target answers", model.PASS, "large"),
    model.Check("python", model.PASS, "3.11.7"),
    model.Check("disk", model.WARN, "3.1 GB free, 2.9 GB needed", "free some space on large"),
    model.Check("divisibility", model.PASS, "batch 32 over 4 devices: 8 each"),
)
REFUSAL = model.Check("devices free", model.FAIL, "pid 811 uses device 0", "stop it on large: kill 811")


def _event(
    seconds: float, event: str, phase: str = "", state: str = "", message: str = "", **detail: Any
) -> model.Event:
    return model.Event(event, NOW - 30 + seconds, phase, state, message, detail)


STORY = (
    _event(0.0, "phase", model.PREPARE, model.STARTED),
    _event(0.1, "command", model.PREPARE, message="engine bundle 9c1f to ~/.midstream/engines", host="large"),
    _event(2.0, "phase", model.PREPARE, model.DONE),
    _event(2.1, "phase", model.CUTOVER, model.STARTED),
    _event(
        2.2, "command", model.CUTOVER, message="order: save, seal epoch 2 for large, stop (attempt 1)", host="small"
    ),
    _event(3.1, "fact", sealed={"step": 1204, "checkpoint": "step-1204-a001", "root_digest": DIGEST}),
    _event(3.2, "note", model.CUTOVER, message="the source is sealed at step 1204", step=1204),
    _event(
        4.0,
        "phase",
        model.CUTOVER,
        model.PROGRESS,
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
ENDING = (
    _event(5.0, "phase", model.CUTOVER, model.DONE),
    _event(5.1, "phase", model.RELAUNCH, model.STARTED),
    _event(
        5.2, "command", model.RELAUNCH, message="python -m midstream_engine.train --config_path run.yaml", host="large"
    ),
    _event(14.0, "phase", model.RELAUNCH, model.DONE),
    _event(14.1, "phase", model.CERTIFY, model.STARTED),
    _event(15.0, "phase", model.CERTIFY, model.DONE),
    _event(15.1, "phase", model.FINISH, model.STARTED),
)
CERTIFICATE = model.Certificate(
    PLAN.migration,
    "nano",
    "small",
    "large",
    1204,
    "step-1204-a001",
    DIGEST,
    2,
    (
        model.Claim("state", model.VERIFIED, "the restored state is the sealed state, root digest 3f9a1c52e07b"),
        model.Claim("data", model.VERIFIED, "batch 1204 is the one that the source would have taken next"),
        model.Claim(
            "reference losses",
            model.VERIFIED,
            "8 fixed sequences give the same losses, largest relative difference 3.1e-07",
        ),
        model.Claim("continuity", model.NOT_CHECKED, "the source has no losses past the seal to compare with"),
    ),
    NOW - 14,
)
LEDGER = model.DowntimeReport(
    PLAN.predicted_seconds,
    {**PLAN.predicted_seconds, "save": 0.4, "copy": 0.6, "provision": 7.4, "compile": 11.2},
    NOW - 29,
    NOW - 15,
)


def migration(state: str = model.RUNNING, **changes: Any) -> model.MigrationView:
    """One in the middle of its copy."""
    return replace(model.MigrationView(PLAN.migration, PLAN, state, model.CUTOVER, STORY), **changes)


def certified() -> model.MigrationView:
    return migration(phase=model.FINISH, events=STORY + ENDING, downtime=LEDGER, certificate=CERTIFICATE)


def moved_fleet() -> Snapshot:
    """The fleet after the migration above."""
    source = run(
        state=records.STOPPED, alive=False, fence=records.Fence(2, "large", 1204, [{"epoch": 1, "step": 1204}])
    )
    target = run(
        host="large",
        step=1240,
        devices=4,
        epoch=2,
        attempt=2,
        curve=rows(1240, {1: 0, 2: 1204}),
        fence=records.Fence(2, "large", 1204, [{"epoch": 1, "step": 1204}]),
        lineage=lineage("nano", (1, "small", 2, 0), (2, "large", 4, 1204)),
    )
    return small_fleet(target, replace(source, fence=records.Fence(1, "small")))


class Values:
    """A source of snapshots that a test sets."""

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


class Answers:
    """Actions that answer with values and write down what they were asked."""

    def __init__(self, *migrations: model.MigrationView) -> None:
        self.views = migrations
        self.checks: tuple[model.Check, ...] = CHECKS
        self.plan: model.Plan | MidstreamError = PLAN
        self.problems: tuple[str, ...] = ()
        self.asked: list[tuple[Any, ...]] = []
        self.told: Slices | MidstreamError = Slices(asked=False)

    def targets(self) -> tuple[Target, ...]:
        return (Target("small", ("small",)), Target("large", ("large",)), Target("gpu2", ("gpu2",)))

    def make_plan(self, snapshot: Snapshot, request: model.Request) -> model.Plan:
        self.asked.append(("plan", request))
        if isinstance(self.plan, MidstreamError):
            raise self.plan
        return replace(self.plan, target=request.target, mode=request.mode)

    def preflight(self, plan: model.Plan) -> Iterator[model.Check]:
        self.asked.append(("preflight", plan.target))
        yield from self.checks

    def start(self, plan: model.Plan) -> str:
        self.asked.append(("start", plan.migration))
        self.views = (replace(migration(), plan=plan),)
        return plan.migration

    def rollback(self, migration: str) -> None:
        self.asked.append(("rollback", migration))

    def continue_(self, migration: str) -> None:
        self.asked.append(("continue", migration))

    def stop_run(self, run: RunView) -> None:
        self.asked.append(("stop", run.key))

    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        self.asked.append(("verify", checkpoint))
        return list(self.problems)

    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        self.asked.append(("compare", (first, second)))
        return ["~ params/wte: 3 of 64 cells differ"]

    def config(self, run: RunView, attempt: int) -> str:
        self.asked.append(("config", attempt))
        return f"trainer: {{id: nano, per_device_parallelism: {16 // attempt}}}\nseed: 1\n"

    def read_log(self, run: RunView) -> list[str]:
        return [f"line {number} of the whole log" for number in range(20_000)]

    def ssh_hosts(self) -> tuple[dict[str, str], list[str], str]:
        line = "  {0}: {{type: ssh, address: {0}}}"
        return {name: line.format(name) for name in ("gpu1", "gpu2", "login")}, ["lab-tpus"], "~/fleet.yaml"

    def add_hosts(self, lines: list[str]) -> None:
        self.asked.append(("add", tuple(lines)))

    def slices(self) -> Slices:
        if isinstance(self.told, MidstreamError):
            raise self.told
        return self.told

    def create(self, target: str) -> None:
        self.asked.append(("create", target))

    def delete(self, place: str, say: Callable[[str], None]) -> None:
        self.asked.append(("delete", place))

    def shell(self, host: str) -> int:
        self.asked.append(("shell", host))
        return 0

    def migrations(self) -> tuple[model.MigrationView, ...]:
        return self.views
