"""Facts of a migration: journaled values that a continuing process needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, TypeVar

from midstream.errors import MidstreamError
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.json_values import fields_of
from midstream_core import records

T = TypeVar("T")

FACT = "fact"  # the event that contains facts


@dataclass(frozen=True)
class Sealed:
    """The state that the source was sealed with, as its disk has it."""

    step: int
    checkpoint: str
    root_digest: str
    attempt: int  # the source's newest: attempts on the target have higher numbers
    fence: records.Fence
    bytes: int = 0

    @property
    def starting_point(self) -> StartingPoint:
        return StartingPoint(self.checkpoint, self.step, self.root_digest)


@dataclass(frozen=True)
class StartingPoint:
    """A checkpoint that an attempt starts from."""

    name: str
    step: int
    root_digest: str


@dataclass(frozen=True)
class Copied:
    """A copy of a checkpoint to the target."""

    bytes: int  # that left the source
    seconds: float


@dataclass(frozen=True)
class ReplayAgreement:
    """The steps that source and replica both did, compared."""

    steps: int
    first: int | None
    last: int | None
    largest_relative_difference: float | None  # of a step's losses; None: one of them is not finite
    tolerance: float
    last_step_numbers: bool = False  # the trainer's checkpoints have the number of their last step


@dataclass(frozen=True)
class Facts:
    """Facts of one migration; None: not known or not done yet.

    Times are UTC seconds by the operator's clock.
    """

    # Preparation
    rehearsal: StartingPoint | None = None  # that the standby rehearsed with, or the replica began with
    rehearsal_copy: Copied | None = None
    rehearsed_step_seconds: float | None = None
    standby_attempt: int | None = None
    predicted: Mapping[str, float] | None = None  # seconds by phase of the downtime: the newest estimate
    # Live migration
    takeover_step: int | None = None
    agreement: ReplayAgreement | None = None
    fallback_reason: str | None = None  # why it goes on as a warm migration
    # Seal
    owner_before: str | None = None  # of the source's fence
    seal_started_at: float | None = None
    source_was_running: bool | None = None
    sealing_attempt: int | None = None  # the source's attempt that was commanded to stop
    stop_commanded_at: float | None = None
    stop_sequence: int | None = None  # of that command
    stop_confirmed_at: float | None = None
    sealed: Sealed | None = None
    # Copy
    sent_ahead: bool | None = None  # streams were opened before the seal
    state_copy: Copied | None = None
    verify_seconds: float | None = None
    history_copied: bool | None = None
    target_config: str | None = None  # run.yaml as the target has resolved it
    source_config: str | None = None  # run.yaml before the target's attempt, where both have one run directory
    # Relaunch
    relaunching: bool | None = None  # from here on a rollback has to look at the target
    relaunch_started_at: float | None = None
    target_attempt: int | None = None
    training_confirmed_at: float | None = None
    # End
    rolled_back_at: float | None = None
    not_running: str | None = None  # why the run does not run on its source after a rollback; empty: it does
    reestablished_at: float | None = None  # facts that damaged lines may have held were read from the hosts

    def updated(self, newer: Facts) -> Self:
        """Return these facts with those that ``newer`` has in their place."""
        changes = {field.name: getattr(newer, field.name) for field in fields(newer)}
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def without(self, older: Facts) -> Self:
        """Return these facts less those that ``older`` has too, whatever their values."""
        return replace(self, **{field.name: None for field in fields(older) if getattr(older, field.name) is not None})

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Read facts; those that a newer version added are left out.

        Raises:
            RecordError: one has another type; the message names ``where`` and the field.
        """
        fields = fields_of(cls, value, where)
        for name, kind in _NESTED.items():
            if fields.get(name) is not None:
                fields[name] = kind(**fields_of(kind, fields[name], where))
        if fields.get("sealed") is not None:
            sealed: Sealed = fields["sealed"]
            fields["sealed"] = replace(sealed, fence=records.Fence.from_json(value["sealed"]["fence"], where))
        return cls(**fields)


_NESTED: Mapping[str, type[Any]] = {
    "rehearsal": StartingPoint,
    "rehearsal_copy": Copied,
    "agreement": ReplayAgreement,
    "sealed": Sealed,
    "state_copy": Copied,
}


def required(value: T | None, name: str) -> T:
    """Return a fact that must have been journaled. MidstreamError if it is missing."""
    if value is None:
        raise MidstreamError(f"the journal does not have {name!r}", "restore journal.jsonl from a backup")
    return value


def facts_of(events: Iterable[Event]) -> Facts:
    """Return all facts of a journal's events. RecordError if one has another type."""
    facts = Facts()
    for event in events:
        if event.event == FACT:
            facts = facts.updated(Facts.from_json(event.detail))
    return facts
