"""Short facts about runs and hosts, for lists and filters."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from midstream.watch.loss_curve import newest_value
from midstream.watch.snapshot import LIVE, HostView, RunView
from midstream_core import records

if TYPE_CHECKING:
    from midstream.listing.fleet_moment import FleetMoment

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


def seconds_left(run: RunView) -> float | None:
    """Estimate the seconds to the last step from the latest steps, or None."""
    if run.status is None or not run.status.num_train_steps or run.state != records.TRAINING:
        return None
    tail = [run.curve[index] for index in range(max(0, len(run.curve) - 32), len(run.curve))]
    durations = [row["throughput/duration"] for row in tail if "throughput/duration" in row]
    if not durations:
        return None
    import statistics  # after the first frame

    return statistics.median(durations) * (run.status.num_train_steps - run.status.step)


def progress(run: RunView) -> float | None:
    """Return the share of its steps that a run has done, 0..1."""
    total = run.status.num_train_steps if run.status else 0
    return None if not total or run.step is None else min(1.0, max(0.0, run.step / total))


def elapsed(run: RunView, moment: FleetMoment) -> float | None:
    """Return seconds from the run's first start to now, or to its last heartbeat."""
    begin, age = started(run), moment.run_age(run)
    if begin is None or age is None:
        return None
    return max(0.0, moment.now - (0.0 if run.running else age) - begin)


def used_by(run: RunView, moment: FleetMoment) -> float | None:
    """Return the mean utilization of the accelerators that a run uses, 0..1."""
    shares = list[float]()
    for member in moment.snapshot.members(run) if run.running else ():
        host = moment.snapshot.host(member.host)
        machine = host.machine if host is not None and host.link == LIVE else None
        pids = {user.pid for user in machine.users if user.run == run.run_id} if machine else set[int]()
        for item in machine.accelerators if machine else ():
            if item.utilization is not None and not pids.isdisjoint(item.pids):
                shares.append(item.utilization)
    return sum(shares) / len(shares) if shares else None


def trend(points: Sequence[float]) -> float | None:
    """Return the change of the loss over the newest quarter, as a share of it."""
    if len(points) < 4:
        return None
    before = points[-1 - len(points) // 4]
    return points[-1] / before - 1 if before else None


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
