"""Compare two checkpoints by their manifests, without reading arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from midstream.operations.examine_checkpoint import CheckpointLocation, read_manifest
from midstream.transfer.manifest_diff import describe_difference, diff_manifests
from midstream_core import records


@dataclass(frozen=True)
class CheckpointDifference:
    """Two manifests, and how their arrays differ."""

    manifests: tuple[records.Manifest, records.Manifest]
    arrays: list[dict[str, Any]]  # of `diff_manifests`

    @property
    def equal(self) -> bool:
        """True if both have the same state: arrays and training state."""
        return self.manifests[0].root_digest == self.manifests[1].root_digest

    def lines(self) -> list[str]:
        """Return the comparison as text."""
        if self.equal:
            return [f"equal states: root digest {self.manifests[0].root_digest}"]
        differences = [describe_difference(entry) for entry in self.arrays]
        return differences or ["all arrays are equal; the training state in train.json differs"]


def diff_checkpoints(first: CheckpointLocation, second: CheckpointLocation) -> CheckpointDifference:
    """Read both manifests and compare them.

    Raises:
        MidstreamError: One of them is missing or damaged.
    """
    manifests = (read_manifest(first), read_manifest(second))
    return CheckpointDifference(manifests, diff_manifests(*manifests))
