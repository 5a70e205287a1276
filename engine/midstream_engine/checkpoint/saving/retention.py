"""Which checkpoints are saved and which are kept.

*Temporary* ones by time: one every ``save_interval``, and the previous goes when the next is complete. *Permanent*
ones by step: never deleted. What is on the disk after any sequence of steps follows from the steps and times alone
(:func:`to_delete`, :meth:`KeepPolicy.is_permanent`), and :class:`Retention` applies it to a run's directory.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.loading.list_checkpoints import list_checkpoints
from midstream_engine.checkpoint.saving.save_fence import read_fence
from midstream_engine.checkpoint.stores import in_bucket, open_checkpoints
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH, RunCheckpoints
from midstream_engine.records import Fence, Pin, RecordError, RunPaths, locked, parse_checkpoint_name

Kind = Literal["permanent", "temporary"]


@dataclasses.dataclass(frozen=True)
class KeepEvery:
    """Steps divisible by ``every`` are permanent, up to and including step ``until`` (None: for good)."""

    every: int
    until: int | None = None


@dataclasses.dataclass(frozen=True)
class KeepPolicy:
    """When to save, and what stays. A step obeys the first rule of ``keep`` whose ``until`` it has not passed.

    ValueError where the rules cannot be meant: an ``every`` below 1, an ``until`` that does not grow from rule to rule,
    a rule after one without ``until`` (it would never be reached).
    """

    save_interval: float = 15 * 60.0  # seconds
    keep: tuple[KeepEvery, ...] = (KeepEvery(every=10_000),)

    def __post_init__(self) -> None:
        if not self.save_interval > 0:
            raise ValueError(f"save_interval is {self.save_interval} seconds; it has to be above 0")
        reached = 0
        for number, rule in enumerate(self.keep):
            where = f"keep[{number}]"
            if rule.every < 1:
                raise ValueError(f"{where}: every is {rule.every}; it has to be at least 1 step")
            if rule.until is None:
                if number != len(self.keep) - 1:
                    raise ValueError(
                        f"{where}: only the last rule may leave out 'until'; those after it are never reached"
                    )
            elif rule.until <= reached:
                raise ValueError(
                    f"{where}: until is {rule.until}, but the rules before it already reach to step {reached}"
                )
            else:
                reached = rule.until

    @classmethod
    def of(cls, save_interval: float, keep: Sequence[Mapping[str, Any]]) -> KeepPolicy:
        """From a configuration's ``[{every: N, until: M}, ..., {every: K}]``."""
        return cls(float(save_interval), tuple(KeepEvery(rule["every"], rule.get("until")) for rule in keep))

    def is_permanent(self, step: int) -> bool:
        """Whether ``step-<step>`` is never deleted. Step 0 is nobody's work and never is."""
        for rule in self.keep:
            if rule.until is None or step <= rule.until:
                return step > 0 and step % rule.every == 0
        return False

    def kind(self, step: int, now: float, last_saved: float) -> Kind | None:
        """What to save at a step boundary at ``now``, the last save having been begun at ``last_saved`` (seconds)."""
        if step <= 0:
            return None
        if self.is_permanent(step):
            return "permanent"
        return "temporary" if now - last_saved >= self.save_interval else None


@dataclasses.dataclass(frozen=True)
class Saved:
    """One complete checkpoint, as far as retention is concerned."""

    step: int
    attempt: int
    epoch: int
    name: str


def to_delete(policy: KeepPolicy, saved: Collection[Saved], fence: Fence | None, pinned: Collection[str]) -> list[str]:
    """The names that may go, oldest first: temporary, accepted by the fence, not pinned, not the newest accepted one.

    What the fence does not accept is no part of this lineage; it is deleted only when a person asks for it.
    """
    accepted = [entry for entry in saved if fence is None or fence.accepts(entry.epoch, entry.step)]
    accepted.sort(key=lambda entry: (entry.step, entry.attempt))
    return [entry.name for entry in accepted[:-1] if not policy.is_permanent(entry.step) and entry.name not in pinned]


class Retention:
    """A policy at work on one run: remembers when it saved last. Times are seconds of one clock, the caller's."""

    def __init__(self, policy: KeepPolicy, started: float):
        """``started``: when training began; the first temporary save is due ``save_interval`` after it."""
        self.policy = policy
        self._last_saved = started

    def decide(self, step: int, now: float) -> Kind | None:
        """What to save at this step boundary; None for nothing."""
        return self.policy.kind(step, now, self._last_saved)

    def saved(self, now: float) -> None:
        """A checkpoint, whatever its reason, was begun at ``now``."""
        self._last_saved = now

    def prune(self, paths: RunPaths, now: float | None = None) -> list[str]:
        """Delete what need not be kept; returns the names. ``now``: UTC seconds, for pins' expiry.

        A name is moved away first and the pins are read again, so that a pin set at any moment either finds its
        checkpoint gone or keeps it: who pins looks afterwards whether it is still there.
        """
        shelf = open_checkpoints(paths.checkpoints)
        if not shelf.names():
            return []
        when = time.time() if now is None else now
        left = self._empty_trash(shelf, paths, when)  # by a pruning that was killed
        with locked(paths.lock):
            saved = [
                Saved(entry.step, entry.attempt, entry.manifest.epoch, entry.name)
                for entry in list_checkpoints(paths)
                if entry.manifest is not None
            ]
            names = to_delete(self.policy, saved, read_fence(paths), read_pins(paths, when))
            for name in names:
                shelf.set_aside(name)
        return left + self._empty_trash(shelf, paths, when)

    @staticmethod
    def _empty_trash(shelf: RunCheckpoints, paths: RunPaths, when: float) -> list[str]:
        """Delete what was moved away, or move it back where it is pinned by now."""
        deleted = []
        for entry in shelf.names():
            name = entry.removeprefix(TRASH)
            if not entry.startswith(TRASH) or parse_checkpoint_name(name) is None:
                continue
            if name in read_pins(paths, when) and shelf.bring_back(name):
                continue
            shelf.empty(name)
            deleted.append(name)
        return deleted


def read_pins(paths: RunPaths, now: float) -> set[str]:
    """Names of the checkpoints that are pinned at ``now`` (UTC seconds), on this host or beside them in their bucket.

    CheckpointError where a pin cannot be read: whatever it holds must not be deleted meanwhile.
    """
    try:
        files = os.listdir(paths.pins)
    except FileNotFoundError:
        files = []
    try:
        pins = [Pin.read_or_none(os.path.join(paths.pins, file)) for file in files if file.endswith(".json")]
        found = {pin.checkpoint for pin in pins if pin is not None and pin.expires > now}
        if in_bucket(paths.checkpoints):
            from midstream_engine.checkpoint.stores import bucket_fence

            found |= bucket_fence.read_pins(paths, now)
    except (RecordError, ValueError) as error:
        raise CheckpointError(f"no checkpoint is deleted while a pin is unreadable: {error}") from error
    return found
