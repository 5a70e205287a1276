"""Errors of checkpoints. Every message is one line, or a line and a diff."""

from __future__ import annotations

import dataclasses

from midstream_core.attempt.errors import CheckpointError


class CheckpointFullError(CheckpointError):
    """The disk (or a quota, or a limit on file sizes) has no room for the checkpoint."""


class CheckpointCorruptError(CheckpointError):
    """The stored bytes are not those that were saved; the message names the object."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Array that differs from the wanted one.

    Each field is a pair (checkpoint, wanted), or None if equal.
    """

    name: str
    axes: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    shape: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    dtype: tuple[str, str] | None = None

    def __str__(self) -> str:
        parts: list[str] = []
        for label, pair in (("axes", self.axes), ("shape", self.shape), ("dtype", self.dtype)):
            if pair is not None:
                parts.append(f"{label} {_spell(pair[0])} in the checkpoint, {_spell(pair[1])} wanted")
        return f"{self.name}: {'; '.join(parts)}"


def _spell(value: tuple[object, ...] | str) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


class CheckpointMismatchError(CheckpointError):
    """Error of a sound checkpoint with other arrays than the model and optimizer."""

    SHOWN = 12  # names per list

    def __init__(self, where: str, missing: list[str], extra: list[str], different: list[Difference]) -> None:
        """Build a message with the first ``SHOWN`` names of each list."""
        self.missing = missing
        self.extra = extra
        self.different = different
        lines = [f"{where} does not fit: {len(missing)} missing, {len(extra)} extra, {len(different)} different"]
        for label, entries in (("missing", missing), ("extra", extra), ("different", list(map(str, different)))):
            lines += [f"  {label}: {entry}" for entry in entries[: self.SHOWN]]
            if len(entries) > self.SHOWN:
                lines.append(f"  {label}: and {len(entries) - self.SHOWN} more")
        super().__init__("\n".join(lines))
