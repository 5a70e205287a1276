"""Memory of this machine: the owners of runs that it has seen.

The longest chain of each run, its newest step and its newest start, in one file for each run in
`$MIDSTREAM_STATE/ownership/`. Hosts may be restored from a backup, hide records, or not answer; what this machine has
seen stays.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from midstream.errors import MidstreamError
from midstream.state_directory import make_directory, state_directory
from midstream_core import records

DIRECTORY = "ownership"
CACHED = 256  # files whose content is kept
MAX_START = 10**6  # a start number that a host shows counts up to here: none can use up the numbers


@dataclass(frozen=True)
class Remembered(records.JsonRecord):
    """``ownership/<run>.json``: a chain, its newest checkpoint, and its newest start.

    Attributes:
        chain: The longest chain.
        step: Step of the newest accepted checkpoint that was seen complete; None: none.
        epoch: Its epoch.
        host: The host that showed it.
        earlier: Keys of earlier runs of this name, which this one has replaced.
        start: Newest start number that was seen in a fence of the owner.
        start_epoch: Its epoch.
    """

    FORMAT: ClassVar[int] = 1

    chain: records.OwnershipChain
    step: int | None = None
    epoch: int = 0
    host: str = ""
    earlier: list[str] = field(default_factory=list[str])
    start: int = 0
    start_epoch: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "chain": self.chain.to_json()}

    @classmethod
    def from_checked(cls, value: Any) -> Remembered:
        checked = super().from_checked(value)
        chain = records.OwnershipChain.from_json(value["chain"], "chain")
        return dataclasses.replace(checked, chain=chain)


def memory_file(run_id: str) -> Path:
    """Return the file that has what is remembered of a run."""
    return state_directory() / DIRECTORY / f"{records.check_run_id(run_id)}.json"


def recall(run_id: str) -> Remembered | None:
    """Return what is remembered of a run; None where nothing is.

    Raises:
        MidstreamError: The file exists and cannot be read: it may name another owner.
    """
    path = memory_file(run_id)
    try:
        status = path.stat()
        return _read(str(path), status.st_mtime_ns, status.st_ino)
    except FileNotFoundError:
        return None
    except (records.RecordError, OSError) as error:
        raise MidstreamError(
            f"{error}", f"restore it from a backup, or remove it: what hosts show counts alone then ({path})"
        ) from error


@functools.lru_cache(maxsize=CACHED)
def _read(path: str, changed: int, inode: int) -> Remembered:  # noqa: ARG001  a changed file is read again
    return Remembered.read(path)


def remember(
    chain: records.OwnershipChain,
    *,
    step: int | None = None,
    epoch: int = 0,
    host: str = "",
    started: tuple[int, int] = (0, 0),
) -> None:
    """Remember a chain that was checked, a step, and a start.

    What is remembered only grows. A chain of a newer run of the same name replaces the older one. ``started``: the
    ownership number and the start number that the owner shows; none above `MAX_START` counts.

    Raises:
        MidstreamError: It cannot be written, or contradicts what is remembered.
    """
    path = memory_file(chain.run_id)
    start_epoch, start = started if started[1] <= MAX_START else (0, 0)
    now = Remembered(chain, step, epoch, host, start=start, start_epoch=start_epoch)
    try:
        make_directory(path.parent)
        with records.locked(str(path.with_suffix(".lock"))):
            before = recall(chain.run_id)
            after = _merged(before, now)
            if after != before:
                Remembered.from_json(after.to_json(), "ownership")  # what could not be read again hides the owner
                after.write(str(path))
                os.chmod(path, 0o600)
    except (OSError, records.RecordError) as error:
        raise MidstreamError(f"{path} cannot be written: {error}") from error


def _merged(before: Remembered | None, now: Remembered) -> Remembered:
    if before is None:
        return now
    if before.chain.head.key != now.chain.head.key:
        newer = now if now.chain.entries[0].time >= before.chain.entries[0].time else before
        older = before if newer is now else now
        earlier = sorted({*before.earlier, older.chain.head.key} - {newer.chain.head.key})
        return dataclasses.replace(newer, earlier=earlier)
    if not (now.chain.continues(before.chain) or before.chain.continues(now.chain)):
        a, b = before.chain.head, now.chain.head
        raise MidstreamError(
            f"run {now.chain.run_id} has two signed histories: this machine remembers {a.owner} (ownership {a.epoch}), "
            f"another one names {b.owner} (ownership {b.epoch})",
            f"midstream --repair {now.chain.run_id} shows both",
        )
    longer = now if len(now.chain.records) > len(before.chain.records) else before
    newest = now if (now.epoch, _number(now.step)) > (before.epoch, _number(before.step)) else before
    start_epoch, start = max((seen.start_epoch, seen.start) for seen in (before, now))
    return dataclasses.replace(
        newest, chain=longer.chain, earlier=list(before.earlier), start=start, start_epoch=start_epoch
    )


def _number(step: int | None) -> int:
    return -1 if step is None else step
