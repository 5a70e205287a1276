"""Probes of a fleet with many runs on each host, one of which trains; the rest have ended."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from typing import Any

ROWS = 20  # of metrics of each run
STEP = 1000  # of each run at the first poll


class ManyRunsProbes:
    """``runs`` runs on each host."""

    def __init__(self, hosts: int, runs: int) -> None:
        self.hosts = [f"host{number:04}" for number in range(hosts)]
        self._runs = runs

    def first(self, number: int) -> Iterator[str]:
        host = self.hosts[number]
        unit = {"kind": "NVIDIA H100", "memory_total": 80 << 30, "memory_used": 60 << 30, "utilization": 0.9}
        accelerators = [{"index": index, **unit} for index in range(8)]
        yield json.dumps({"event": "hello", "hostname": host, "platform": "Linux", "python": "3.11.7", "cpus": 96})
        for index in range(self._runs):
            name = live_name(number) if index == 0 else f"ended{number:04}-{index:02}"
            for line in _run_lines("training" if index == 0 else "finished"):
                yield line.replace("RUN", name).replace("HOST", host)
        yield json.dumps(
            {
                "event": "beat", "time": time.time(), "cpu_used": 0.5, "accelerators": accelerators,
                "memory_total": 1 << 40, "memory_used": 1 << 39, "disk_total": 1 << 42, "disk_free": 1 << 41,
            }
        )  # fmt: skip

    def later(self, number: int, poll: int) -> Iterator[str]:
        name, step = live_name(number), STEP + poll
        row = {"run": name, "attempt": 1, "inode": 1, "offset": step, "end": step + 1, "text": _row(step)}
        yield json.dumps({"event": "run", "run": name, "status": _status(name, "training", step)})
        yield json.dumps({"event": "metrics", **row})
        yield json.dumps({"event": "beat", "time": time.time(), "cpu_used": round(0.5 + (step % 7) / 100, 2)})


def live_name(number: int) -> str:
    """Return the name of the run that trains on the ``number``-th host."""
    return f"live{number:04}"


@functools.cache
def _run_lines(state: str) -> tuple[str, str]:
    """Return the lines of a run in a probe's first poll, named RUN on HOST."""
    text = "".join(_row(step) for step in range(STEP + 1 - ROWS, STEP + 1))
    metrics = {"run": "RUN", "attempt": 1, "inode": 1, "offset": 0, "end": len(text), "text": text}
    return json.dumps(_run("RUN", "HOST", state)), json.dumps({"event": "metrics", **metrics})


def _row(step: int) -> str:
    value = 2 + 1 / (1 + step)
    return json.dumps({"global_step": step, "time": 1e9 + step, "train/loss": value, "grad/norm/total": value}) + "\n"


def _status(name: str, state: str, step: int) -> dict[str, Any]:
    from midstream_core import records

    status = records.Status(
        state, step, 0, "boot", 4242, 99, time.time(), name, 1, 1, num_train_steps=2000,
        devices=[{"kind": "NVIDIA H100", "platform": "gpu", "memory_bytes": 80 << 30}] * 8,
        versions={"jax": "0.10.2", "python": "3.11.7"}, root_digest="3f9a1c52e07b4d86" * 4,
    )  # fmt: skip
    return status.to_json()


def _run(name: str, host: str, state: str) -> dict[str, Any]:
    from midstream_core import records

    entry = records.LineageEntry(1, 1, host, 8, "NVIDIA H100", 0, None, None, None)
    checkpoint = {
        "name": f"step-{STEP}-a001", "step": STEP, "attempt": 1, "pinned": False, "complete": True, "accepted": True,
        "epoch": 1, "size": 10**9, "created": 1e9, "root_digest": "3f9a1c52e07b4d86" * 4, "damaged": "",
    }  # fmt: skip
    return {
        "event": "run", "run": name, "attempts": [1], "attempt": 1, "running": state == "training",
        "ended_without_status": False, "problem": "", "damaged": {}, "exit": None, "store": None,
        "fence": records.Fence(1, host).to_json(), "status": _status(name, state, STEP),
        "lineage": records.Lineage(name).with_entry(entry).to_json(), "checkpoints": [checkpoint],
    }  # fmt: skip
