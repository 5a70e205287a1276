"""Fleets of fixed values, for tests, pictures and benchmarks: machines, hosts, runs, snapshots."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from midstream.watch.machine import Accelerator, Machine
from midstream.watch.snapshot import DOWN, LIVE, STALE, HostView, RunView, Snapshot
from midstream.watch.system_series import SystemSeries
from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint

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


def checkpoint(step: int, attempt: int = 1, **changes: Any) -> ListedCheckpoint:
    value = ListedCheckpoint(
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
