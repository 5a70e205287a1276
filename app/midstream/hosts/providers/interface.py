"""What midstream asks of whoever provides machines: what is there, make one, take it away, how to reach it.

A slice is what a provider gives and takes as one: a TPU node with all its workers, whatever asked for it. Another
provider (instances with GPUs, the TPUs that come as instances) is another implementation of ``Provider`` and a target
type of its own; nothing above this seam knows whose machines they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

from midstream.errors import HostError

Say = Callable[[str], None]

# What a slice's states come to, whatever its provider calls them.
READY = "ready"  # it runs
COMING = "coming"  # it is made, or waits to be
GOING = "going"  # it still runs, and will not for long
PREEMPTED = "gone"  # it does not run, and will not again: the provider says so
FAILED = "failed"  # it was asked for and did not come
UNCLEAR = "unclear"  # the provider says nothing that helps


class ProviderError(HostError):
    """What a provider refused. ``kind`` is one of the words below; ``costs`` names what may be left and costs money."""

    def __init__(self, message: str, hint: str = "", kind: str = "", costs: str = ""):
        super().__init__(message, hint)
        self.kind = kind
        self.costs = costs


QUOTA, STOCKOUT, PERMISSION, CREDENTIALS, DISABLED = "quota", "stockout", "permission", "credentials", "disabled"
ABSENT, EXISTS, INVALID, BUSY, UNAVAILABLE = "absent", "exists", "invalid", "busy", "unavailable"
CANCELLED, LATE, PREEMPTED = "cancelled", "late", "preempted"


@dataclass(frozen=True)
class Worker:
    """One machine of a slice, as its provider addresses it. ``external`` is empty where it has no such address."""

    internal: str
    external: str = ""


@dataclass(frozen=True)
class Slice:
    """Machines that come and go as one. ``place`` tells them from all others: ``PROJECT/ZONE/NAME``."""

    project: str
    zone: str
    name: str
    standing: str  # one of the words above
    state: str  # in the provider's words: "READY", "WAITING_FOR_RESOURCES"
    health: str = ""
    accelerator_type: str = ""
    topology: str = ""
    runtime_version: str = ""
    price_class: str = ""
    queued: str = ""  # state of the request that it comes from, where it was asked for in a queue
    request: str = ""  # the provider's name of that request
    workers: tuple[Worker, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    node: bool = True  # False: asked for, and nothing is there yet
    identity: str = ""  # tells it from an earlier one of the same name
    created: float | None = None  # UTC seconds
    why: str = ""  # what the provider says of it, where it says anything

    @property
    def place(self) -> str:
        return f"{self.project}/{self.zone}/{self.name}"

    @property
    def ours(self) -> bool:
        """Whether midstream made it."""
        return OURS in self.labels

    def text(self) -> str:
        """One line for people, without its place."""
        state = f"{self.state}, {self.health.lower()}" if self.health not in ("", "HEALTHY") else self.state
        queued = f"queued: {self.queued}" if self.queued and self.queued != "ACTIVE" else ""
        size = f"{len(self.workers)} workers" if self.workers else ""
        words = (self.accelerator_type, self.topology, self.runtime_version, size, self.price_class, queued, self.why)
        return ", ".join(filter(None, (state, *words)))


OURS = "midstream-target"  # the label of what midstream made; its value is the target's name
TOKEN = "midstream-token"  # of one creation: what may be deleted again when that creation fails
MAKER = "midstream-by"  # who made it


@dataclass(frozen=True)
class Inventory:
    """What was found, and where nothing could be seen, in words."""

    slices: tuple[Slice, ...] = ()
    problems: tuple[str, ...] = ()


class Provider(Protocol):
    """``target`` is the fleet file's entry; ``name`` what the fleet file calls it. All raise ProviderError."""

    def inventory(self, places: Sequence[tuple[str, str]]) -> Inventory:
        """All slices of these (project, zone); what cannot be seen is among the problems. Raises nothing else."""
        ...

    def find(self, name: str, target: Any) -> Slice | None:
        """The target's slice; None where there is none."""
        ...

    def create(self, name: str, target: Any, say: Say, cancel: Event | None = None) -> Slice:
        """Have it made and wait until it is ready. Where that fails or is cancelled, nothing that costs money is left,
        and the error says so."""
        ...

    def delete(self, place: str, say: Say) -> None:
        """Delete a slice, and wait until it is gone."""
        ...

    def reach(self, name: str, target: Any, found: Slice, say: Say, *, touch: bool) -> dict[str, dict[str, Any]]:
        """Its workers as entries of the fleet file's ``hosts:``, by name, worker 0 first. ``touch=False`` lets no key
        in: what is there already has to do."""
        ...


def words_for(seconds: float) -> str:
    """``4 s``, ``12 m``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} m" if seconds < 5400 else f"{seconds / 3600:.1f} h"


FIRST, LONGEST = 0.2, 5.0  # seconds between two looks at something that takes its time, at first and later


class Pauses:
    """Between looks at something that takes its time. ``next`` is False once ``cancel`` is set."""

    def __init__(self, cancel: Event | None = None):
        self._pause, self._cancel = FIRST, cancel

    def next(self) -> bool:
        pause, self._pause = self._pause, min(LONGEST, self._pause * 1.5)
        if self._cancel is None:
            time.sleep(pause)
            return True
        return not self._cancel.wait(pause)
