"""What a copy tells: immutable values that phases, flags and screens read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Bytes and objects that are done: verified at the far end, or found there. ``object`` is the newest of them."""

    bytes_done: int
    bytes_total: int
    objects_done: int
    objects_total: int
    object: str = ""
    bytes_per_second: float = 0.0  # of what was sent lately; 0 where nothing was yet
    eta_seconds: float | None = None  # None where no rate is known


@dataclass(frozen=True)
class CopyReport:
    """A copy that is complete. Sizes in bytes, of objects. ``bytes_sent`` are those that this very call sent. Objects
    in ``skipped`` lay at the target already; those of them in ``held`` belonged to another tree there. ``routes`` says
    in words which ways were taken."""

    objects: int
    objects_sent: int
    bytes: int
    bytes_sent: int
    seconds: float
    skipped: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()

    @property
    def bytes_skipped(self) -> int:
        return self.bytes - self.bytes_sent


@dataclass(frozen=True)
class VerifyReport:
    """What was found. ``bytes`` were read. ``root_digest`` is recomputed from them, where the tree is a checkpoint;
    ``root_digest_ok`` is None for other trees. Files that the manifest does not name (``extra``) harm nothing."""

    ok: bool
    problems: tuple[tuple[str, str], ...]  # (path, what is wrong)
    objects: int
    bytes: int
    extra: tuple[str, ...] = ()
    root_digest: str | None = None
    root_digest_ok: bool | None = None


@dataclass(frozen=True)
class HistoryReport:
    """A run's history that was brought over. Paths are relative to the run directory.

    ``kept`` are files of attempts that the target knows further than the source. ``set_aside`` are the target's own
    metrics of attempts that went another way there than on the source: (path, where they lie now)."""

    files: int
    bytes: int
    copied: tuple[str, ...]
    kept: tuple[str, ...] = ()
    set_aside: tuple[tuple[str, str], ...] = ()
