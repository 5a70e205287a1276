"""What the screens see: the fleet, the migrations and the clock, at one moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from midstream.migrate.model import MigrationView
from midstream.watch import snapshot as watch
from midstream.watch.snapshot import HostView, RunView, Snapshot


class Source(Protocol):
    """Where snapshots come from: a running Watch, or values."""

    def snapshot(self) -> Snapshot: ...

    def subscribe(self, callback: Callable[..., Any], /) -> Callable[[], Any]:
        """``callback`` is called, on any thread, after each change. Returns what ends it."""
        ...


@dataclass(frozen=True)
class World:
    """One moment."""

    snapshot: Snapshot = field(default_factory=lambda: Snapshot(0, 0.0))
    migrations: tuple[MigrationView, ...] = ()  # newest first
    now: float = 0.0  # UTC seconds

    def run(self, host: str, run_id: str) -> RunView | None:
        return next((run for run in self.snapshot.runs if run.key == (host, run_id)), None)

    def migration(self, migration: str) -> MigrationView | None:
        return next((view for view in self.migrations if view.migration == migration), None)

    @cached_property
    def runs_in_order(self) -> list[RunView]:
        """One a run: the copy with the highest fence epoch. Those that run come first."""
        current = self.snapshot.current()  # by their ids
        return [run for run in current if run.running] + [run for run in current if not run.running]

    @cached_property
    def _training(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for run in self.snapshot.runs:
            if run.running:
                found.setdefault(run.host, []).append(run.run_id)
        return found

    def training_on(self, host: str) -> list[str]:
        """The runs whose processes are alive on a host."""
        return self._training.get(host, [])

    def is_stale(self, host: str) -> bool:
        """Whether what is known of the host is not what is true of it now."""
        view = self.snapshot.host(host)
        return view is None or view.link != watch.LIVE

    def run_age(self, run: RunView) -> float | None:
        """Seconds since the run was last heard of; None where it never was. Corrects the host's clock for its skew."""
        if run.status is None:
            return None
        host = self.snapshot.host(run.host)
        skew = host.machine.clock_skew if host and host.machine else 0.0
        return max(0.0, self.now - (run.status.heartbeat - skew))

    def host_age(self, host: HostView) -> float | None:
        return None if host.last_seen is None else max(0.0, self.now - host.last_seen)


def latest(run: RunView, name: str) -> Any:
    """The newest value of a metric, looked for in the last rows only; None where there is none."""
    for index in range(len(run.curve) - 1, max(-1, len(run.curve) - 65), -1):
        if name in run.curve[index]:
            return run.curve[index][name]
    return None


def hardware(run: RunView, times: str) -> str:
    """``8×A100-SXM4-80GB``: what the run's newest attempt computes on."""
    if run.status is None or not run.status.devices:
        return ""
    return devices(len(run.status.devices), str(run.status.devices[0].get("kind", "")), times)


def devices(count: int, kind: str, times: str) -> str:
    return f"{count}{times}{short_kind(kind)}" if kind else str(count)


def short_kind(kind: str) -> str:
    """``NVIDIA H100 80GB HBM3`` -> ``H100``; ``TPU v4`` stays."""
    words = kind.removeprefix("NVIDIA ").replace("-", " ").split()
    return " ".join(words[:2]) if words[:1] in (["TPU"], ["RTX"]) else (words[0] if words else "")


def attempt_hues(run: RunView) -> dict[int, int]:
    """attempt -> the number of its colour: attempts on the same hardware have the same one."""
    places: dict[tuple[str, int, str], int] = {}
    return {
        entry.attempt: places.setdefault((entry.target, entry.devices, entry.device_kind), len(places))
        for entry in (run.lineage.entries if run.lineage else ())
    }


def attempt_names(run: RunView, times: str) -> dict[int, str]:
    """attempt -> ``large 4×cpu``: what each attempt ran on, from the lineage. One that came after another on the same
    place says which it is: ``large #3``."""
    names: dict[int, str] = {}
    before = None
    for entry in run.lineage.entries if run.lineage else ():
        place = (entry.target, entry.devices, entry.device_kind)
        names[entry.attempt] = (
            f"{entry.target} #{entry.attempt}"
            if place == before
            else f"{entry.target} {devices(entry.devices, entry.device_kind, times)}"
        )
        before = place
    return names
