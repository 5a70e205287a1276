"""Accelerators in the store: built once for each list that a host reports."""

from __future__ import annotations

from typing import Any

from midstream.watch.machine import Accelerator
from midstream.watch.snapshot_store import SnapshotStore

GAUGES = {"cpu_used": 0.1, "memory_total": 1, "memory_used": 1, "disk_total": 1, "disk_free": 1}
HELLO = {"event": "hello", "hostname": "h", "platform": "", "python": "", "cpus": 1}


def shown(store: SnapshotStore, host: str, **fields: Any) -> tuple[Accelerator, ...]:
    store.take(host, {"event": "beat", "time": 0.0, **fields})
    view = store.snapshot().host(host)
    assert view is not None
    assert view.machine is not None
    return view.machine.accelerators


def gpu(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "kind": "NVIDIA L4", **fields}


def test_accelerators_stay_the_same_until_a_beat_has_others() -> None:
    store = SnapshotStore({"one": "ssh", "two": "ssh"})
    for host in ("one", "two"):
        store.take(host, HELLO)
    first = shown(store, "one", accelerators=[gpu(utilization=0.1)], **GAUGES)
    assert shown(store, "two", accelerators=[gpu(utilization=0.9)], **GAUGES)[0].utilization == 0.9
    assert shown(store, "one", cpu_used=0.5) is first
    assert shown(store, "one", accelerators=[gpu(utilization=0.2, pids=[7])]) == (
        Accelerator(0, "NVIDIA L4", utilization=0.2, pids=(7,)),
    )
    assert shown(store, "two", cpu_used=0.5)[0].utilization == 0.9
    assert shown(store, "one", accelerators=[]) == ()


def test_accelerators_of_a_restarted_probe_replace_earlier_ones() -> None:
    store = SnapshotStore({"one": "ssh"})
    for share in (0.1, 0.2):
        store.take("one", HELLO)
        assert shown(store, "one", accelerators=[gpu(utilization=share)], **GAUGES)[0].utilization == share
