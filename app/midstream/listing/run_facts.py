"""Short facts about runs and hosts, for lists and filters."""

from __future__ import annotations

import functools
from typing import Any

from midstream.watch.loss_curve import newest_value
from midstream.watch.snapshot import HostView, RunView

NEWEST_ROWS = 64  # rows of a curve that are searched for a metric


def latest(run: RunView, name: str) -> Any:
    """Return the newest value of a metric among the last `NEWEST_ROWS` rows, or None."""
    return newest_value(run.curve, name, NEWEST_ROWS)


def loss(run: RunView) -> float | None:
    """Return the last logged loss, without reading the rest of its row."""
    return newest_value(run.curve, "train/loss")


def tokens_per_second(run: RunView) -> float | None:
    """Return the newest throughput of a running run."""
    return latest(run, "throughput/tokens_per_second") if run.running else None


def hardware(run: RunView, times: str) -> str:
    """Format the devices of the newest attempt: ``8×A100``."""
    if run.status is None or not run.status.devices:
        return ""
    return devices(len(run.status.devices), str(run.status.devices[0].get("kind", "")), times)


def devices(count: int, kind: str, times: str) -> str:
    """Format a number of devices: ``8×A100``."""
    return f"{count}{times}{short_kind(kind)}" if kind else str(count)


@functools.lru_cache(maxsize=1024)
def short_kind(kind: str) -> str:
    """Shorten a device kind: ``NVIDIA H100 80GB HBM3`` -> ``H100``.

    ``TPU v4`` is unchanged.
    """
    words = kind.removeprefix("NVIDIA ").replace("-", " ").split()
    return " ".join(words[:2]) if words[:1] in (["TPU"], ["RTX"]) else (words[0] if words else "")


def utilization(host: HostView) -> float | None:
    """Return a host's mean accelerator utilization, 0..1; None if it reports none."""
    used = [item.utilization for item in host.machine.accelerators] if host.machine else []
    shares = [value for value in used if value is not None]
    return sum(shares) / len(shares) if shares else None


def memory_share(host: HostView) -> float | None:
    """Return the used share of a host's memory, 0..1."""
    machine = host.machine
    return machine.memory_used / machine.memory_total if machine and machine.memory_total else None


def started(run: RunView) -> float | None:
    """Return when the run's first attempt started; None if unknown.

    The time is UTC seconds by its host's clock.
    """
    times = [entry.started for entry in run.lineage.entries] if run.lineage else []
    return min((time for time in times if time), default=None)


def tags(run: RunView) -> tuple[str, ...]:
    """Return the tags of the run's tracker."""
    return tuple(run.status.tags) if run.status else ()


def project(run: RunView) -> str:
    """Return the project of the run's tracker."""
    return run.status.project if run.status else ""
