"""Claim on a trainer's environment: Python, torch, CUDA, trainer are unchanged."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Claim


def environment_claim(before: Mapping[str, str], after: Mapping[str, str]) -> Claim:
    """Compare the versions of both sides: package -> version."""
    names = sorted(before.keys() & after.keys())
    if not names:
        return Claim("environment", NOT_CHECKED, "the versions of one side are not known", needed=False)
    changed = [f"{name} {before[name]} -> {after[name]}" for name in names if before[name] != after[name]]
    listed = ", ".join(f"{name} {after[name]}" for name in names)
    return Claim(
        "environment",
        CLAIM_FAILED if changed else VERIFIED,
        f"versions differ: {', '.join(changed)}" if changed else f"the same versions: {listed}",
        {"source": dict(before), "target": dict(after)},
        needed=False,
        agreed=True,  # named, and no reason to go back: results are compared by the overlap
    )
