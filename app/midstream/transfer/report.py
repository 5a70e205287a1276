"""Progress and reports of copies: immutable values for phases, flags and screens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Bytes and objects that are done: verified at the target, or found there.

    ``object`` is the newest of them.
    """

    bytes_done: int
    bytes_total: int
    objects_done: int
    objects_total: int
    object: str = ""
    bytes_per_second: float = 0.0  # over the last seconds; 0 if nothing was sent
    eta_seconds: float | None = None  # None if no rate is known


@dataclass(frozen=True)
class CopyReport:
    """A complete copy.

    Attributes:
        objects: Number of objects of the tree.
        objects_sent: Number of objects that this call sent.
        bytes: Size of all objects.
        bytes_sent: Bytes of objects that this call sent.
        bytes_on_link: Bytes that the streams carried for them, fewer where chunks were packed.
        seconds: Duration of this call.
        skipped: Objects that the target had before.
        linked: Those of ``skipped`` that belonged to another tree of the target.
        routes: The routes that the bytes took, in words.
    """

    objects: int
    objects_sent: int
    bytes: int
    bytes_sent: int
    bytes_on_link: int
    seconds: float
    skipped: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifyReport:
    """The result of reading a tree.

    Attributes:
        ok: Whether the tree is what its manifest says.
        problems: (path, what is wrong) of each wrong object.
        objects: Number of objects that were read.
        bytes: Bytes that were read.
        extra: Files that the manifest does not name; they are no problem.
        root_digest: Recomputed from the bytes, if the tree is a checkpoint.
        root_digest_ok: Whether it is the recorded one; None for other trees.
    """

    ok: bool
    problems: tuple[tuple[str, str], ...]
    objects: int
    bytes: int
    extra: tuple[str, ...] = ()
    root_digest: str | None = None
    root_digest_ok: bool | None = None


@dataclass(frozen=True)
class HistoryReport:
    """A copied run history. Paths are relative to the run directory.

    Attributes:
        files: Number of files of the source's history.
        bytes: Bytes that were sent.
        copied: Files that were sent.
        kept: Files of attempts of which the target has more than the source.
        set_aside: The target's own metrics of attempts that differ from the source's: (path, new path).
    """

    files: int
    bytes: int
    copied: tuple[str, ...]
    kept: tuple[str, ...] = ()
    set_aside: tuple[tuple[str, str], ...] = ()
