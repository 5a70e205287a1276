"""Paths and names of a run directory, its attempts and its checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import posixpath
import re
from typing import Optional, Tuple

from midstream_core.records.errors import RecordError
from midstream_core.records.field_forms import RUN_ID


@dataclasses.dataclass(frozen=True)
class RunPaths:
    """Paths of one run under a host's root."""

    root: str
    run_id: str
    store: str = ""  # URL of a prefix for the checkpoints; empty: they are under the root, like everything else

    @functools.cached_property
    def dir(self) -> str:
        """The run directory."""
        return posixpath.join(self.root, "runs", self.run_id)

    def _in(self, *parts: str) -> str:
        return "/".join((self.dir, *parts))

    @property
    def config(self) -> str:
        """The run's configuration, as the engine resolved it."""
        return self._in("run.yaml")

    @property
    def lineage(self) -> str:
        """File of `Lineage`."""
        return self._in("lineage.json")

    @property
    def ownership(self) -> str:
        """Chain of signed ownership records."""
        return self._in("ownership.json")

    @property
    def fence(self) -> str:
        """File of `Fence`."""
        return self._in("fence.json")

    @property
    def migration_lock(self) -> str:
        """File of `MigrationLock`."""
        return self._in("migration_lock.json")

    @property
    def lock(self) -> str:
        """Lock file (flock) around commits of checkpoints and changes of fence or lineage."""
        return self._in(".lock")

    @property
    def pins(self) -> str:
        """Directory of the `Pin` files."""
        return self._in("pins")

    @property
    def attempts(self) -> str:
        """Directory of the attempts."""
        return self._in("attempts")

    @property
    def checkpoints(self) -> str:
        """Directory, or URL, of the checkpoints."""
        return posixpath.join(self.store, "runs", self.run_id, "checkpoints") if self.store else self._in("checkpoints")

    def checkpoint(self, name: str) -> str:
        """Directory, or URL, of one checkpoint."""
        return posixpath.join(self.checkpoints, name)

    @property
    def store_file(self) -> str:
        """File of `Store`, where the checkpoints are not in the run directory."""
        return self._in("store.json")

    def attempt(self, number: int) -> AttemptPaths:
        """Paths of attempt ``number``."""
        return AttemptPaths(self._in("attempts", attempt_name(number)))


@dataclasses.dataclass(frozen=True)
class AttemptPaths:
    """Paths of one attempt."""

    dir: str

    def status(self, process: int = 0) -> str:
        """File of `Status`."""
        return f"{self.dir}/status-{process}.json"

    def log(self, process: int = 0) -> str:
        """The log of a process."""
        return f"{self.dir}/log-{process}.txt"

    def launched(self, process: int = 0) -> str:
        """Record of what was started for the process, before it has written a status."""
        return posixpath.join(self.dir, "launch.json" if process == 0 else f"launch-{process}.json")

    def exit(self, process: int = 0) -> str:
        """File of `ProcessExit`."""
        return f"{self.dir}/exit-{process}.json"

    @property
    def metrics(self) -> str:
        """One row of metrics per step."""
        return f"{self.dir}/metrics.jsonl"

    @property
    def command_file(self) -> str:
        """File of `Command`."""
        return f"{self.dir}/command.json"

    @property
    def restore(self) -> str:
        """File of `Restore`: the engine's evidence of what it restored."""
        return f"{self.dir}/restore.json"

    @property
    def trainer_evidence(self) -> str:
        """File of `TrainerEvidence`."""
        return f"{self.dir}/trainer_evidence.json"

    @property
    def replay(self) -> str:
        """Rows of replayed steps, part of the run only if the replica is promoted.

        Those of the attempt's first process: see `midstream_core.attempt.replay_file`.
        """
        return f"{self.dir}/replay.jsonl"

    @property
    def lease(self) -> str:
        """File that the migration renews; the standby exits when it expires."""
        return f"{self.dir}/lease"

    @property
    def parameter_drift(self) -> str:
        """File of `ParameterDrift`."""
        return f"{self.dir}/parameter_drift.json"


def attempt_name(number: int) -> str:
    """Return the directory of an attempt: ``3`` -> ``"003"``."""
    return f"{number:03d}"


_CHECKPOINT = re.compile(r"step-([0-9]{1,18})-a([0-9]{1,18})(?:-s[0-9]{1,18})?")


def checkpoint_name(step: int, attempt: int, start: int = 0) -> str:
    """Return the name of a checkpoint: ``(1200, 3)`` -> ``"step-1200-a003"``.

    ``start``: number of the start, for a name that no other start of the attempt has: ``(1200, 3, 2)`` ->
    ``"step-1200-a003-s2"``. The first start of an epoch needs none.
    """
    return f"step-{step}-a{attempt:03d}" + (f"-s{start}" if start > 1 else "")


@functools.lru_cache(maxsize=1024)
def parse_checkpoint_name(name: str) -> Optional[Tuple[int, int]]:
    """Return step and attempt of a checkpoint's name; None for any other name.

    ``"step-1200-a003"`` and ``"step-1200-a003-s2"`` -> ``(1200, 3)``.
    """
    match = _CHECKPOINT.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def check_run_id(run_id: str) -> str:
    """Return the id if it may name a directory. Raises RecordError otherwise."""
    if not re.fullmatch(RUN_ID.pattern, run_id):
        raise RecordError(
            f"run id {run_id!r}: use 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
    return run_id
