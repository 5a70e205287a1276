"""Interface of providers, which create, find, delete and grant access to machines.

A slice is the unit that a provider creates and deletes: a TPU node with all its workers. Another provider is another
implementation of ``Provider`` with a target type of its own; callers depend on this module alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event
from typing import Protocol

from midstream.counts import count
from midstream.errors import HostError
from midstream.fleet.slice_target import SliceTarget
from midstream_core.json_types import JsonValue

Progress = Callable[[str], None]  # gets one line of text at a time

TARGET_LABEL = "midstream-target"  # on every slice that midstream created; its value is the target's name
TOKEN_LABEL = "midstream-token"  # identifies one creation, whose remains may be deleted when it fails
OWNER_LABEL = "midstream-by"  # user who created it
PRICE_LABEL = "midstream-price"  # price class, where the service does not report it: flex-start

FIRST_POLL_INTERVAL = 0.2  # seconds
MAX_POLL_INTERVAL = 5.0  # seconds
POLL_INTERVAL_GROWTH = 1.5


class SliceStatus(StrEnum):
    """Status of a slice, independent of the provider."""

    READY = "ready"
    CREATING = "creating"  # or queued
    STOPPING = "stopping"  # still running, but not for long
    PREEMPTED = "preempted"  # the provider reports that it does not run and will not run again
    FAILED = "failed"  # the creation failed
    UNKNOWN = "unknown"  # the provider's report is inconclusive


class ErrorKind(StrEnum):
    """Reason of a ProviderError."""

    QUOTA = "quota"
    STOCKOUT = "stockout"
    PERMISSION = "permission"
    CREDENTIALS = "credentials"
    DISABLED = "disabled"
    NOT_FOUND = "not found"
    EXISTS = "exists"
    INVALID = "invalid"
    BUSY = "busy"
    RATE = "rate"  # too many requests; passes
    UNAVAILABLE = "unavailable"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"


class ProviderError(HostError):
    """Refusal of a request by a provider.

    ``costs`` names what may be left over and cost money.
    """

    def __init__(self, message: str, hint: str = "", kind: ErrorKind | None = None, costs: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind
        self.costs = costs


@dataclass(frozen=True)
class Worker:
    """Addresses of one machine of a slice; ``external`` is empty if it has none."""

    internal: str
    external: str = ""


@dataclass(frozen=True)
class Slice:
    """Machines that are created and deleted together."""

    project: str
    zone: str
    name: str
    status: SliceStatus
    state: str  # in the provider's words: "READY", "WAITING_FOR_RESOURCES"
    health: str = ""
    accelerator_type: str = ""
    topology: str = ""
    runtime_version: str = ""
    price_class: str = ""
    queued: str = ""  # state of its queued request, if it was requested in a queue
    request: str = ""  # the provider's name of that request
    workers: tuple[Worker, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    node: bool = True  # False: requested, but not created yet
    identity: str = ""  # distinguishes it from an earlier slice of the same name
    created: float | None = None  # UTC seconds
    why: str = ""  # the provider's explanation, if any
    machines: tuple[str, ...] = ()  # the provider's names of the workers, where it has them
    stopped: bool = False  # by its owner: it can be started again, with all that is on its disks
    multislice: bool = False  # one of several slices that were requested together

    @property
    def path(self) -> str:
        """``PROJECT/ZONE/NAME``, which is unique."""
        return f"{self.project}/{self.zone}/{self.name}"

    @property
    def ours(self) -> bool:
        """True if midstream created it."""
        return TARGET_LABEL in self.labels

    def text(self) -> str:
        """Describe the slice in one line, without its path."""
        state = f"{self.state}, {self.health.lower()}" if self.health not in ("", "HEALTHY") else self.state
        queued = f"queued: {self.queued}" if self.queued and self.queued != "ACTIVE" else ""
        size = count(len(self.workers), "worker") if self.workers else ""
        multislice = "one of a Multislice" if self.multislice else ""
        words = (
            self.accelerator_type,
            self.topology,
            self.runtime_version,
            size,
            self.price_class,
            queued,
            multislice,
            self.why,
        )
        return ", ".join(filter(None, (state, *words)))


@dataclass(frozen=True)
class Inventory:
    """The slices that were found, and a line for each unlisted project and zone."""

    slices: tuple[Slice, ...] = ()
    problems: tuple[str, ...] = ()


class Provider(Protocol):
    """Operations on slices.

    ``name`` and ``target`` are a target of the fleet file. Methods raise ProviderError.
    """

    def inventory(self, zones: Sequence[tuple[str, str]]) -> Inventory:
        """List the slices of these (project, zone) pairs.

        Errors become ``problems``; none is raised.
        """
        ...

    def find(self, name: str, target: SliceTarget) -> Slice | None:
        """Return the target's slice, None if there is none."""
        ...

    def create(self, name: str, target: SliceTarget, progress: Progress, cancel: Event | None = None) -> Slice:
        """Create the target's slice and wait until it is ready.

        If that fails or is cancelled, everything that costs money is deleted again, and the error says so.
        """
        ...

    def delete(self, path: str, progress: Progress) -> None:
        """Delete the slice at ``PROJECT/ZONE/NAME`` and wait until it is deleted."""
        ...

    def grant_access(
        self, name: str, target: SliceTarget, slice_: Slice, progress: Progress, *, touch: bool
    ) -> dict[str, dict[str, JsonValue]]:
        """Return the workers as entries of the fleet file's ``hosts:``, by name.

        Worker 0 is the first.

        Args:
            name: Name of the target in the fleet file.
            target: The target.
            slice_: Its slice.
            progress: Receives the progress.
            touch: False installs no SSH key: the keys that are installed have to be sufficient.
        """
        ...


class Polling:
    """Growing pauses between two polls of a long operation."""

    def __init__(self, cancel: Event | None = None) -> None:
        self._pause, self._cancel = FIRST_POLL_INTERVAL, cancel

    def wait(self) -> bool:
        """Wait for the next poll. False once ``cancel`` is set."""
        pause, self._pause = self._pause, min(MAX_POLL_INTERVAL, self._pause * POLL_INTERVAL_GROWTH)
        if self._cancel is None:
            time.sleep(pause)
            return True
        return not self._cancel.wait(pause)
