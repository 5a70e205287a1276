"""Claim that both sides compute with the same versions of packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from midstream.counts import count
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Claim

NAME = "environment"
EFFECT = "losses may differ from the source's in their last bits after some steps"
_WITHOUT_EFFECT = ("midstream", "python")  # on what the engine computes


def engine_environment_claim(before: Mapping[str, str], after: Mapping[str, str]) -> Claim:
    """Compare the versions of packages that an update of the engine follows from."""
    claim = environment_claim(
        *({k: v for k, v in side.items() if k not in _WITHOUT_EFFECT} for side in (before, after))
    )
    return replace(claim, statement=f"{claim.statement}; {EFFECT}") if claim.verdict == CLAIM_FAILED else claim


def effective(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of packages that an update of the engine follows from."""
    return {name: version for name, version in versions.items() if name not in _WITHOUT_EFFECT}


def environment_claim(before: Mapping[str, str], after: Mapping[str, str]) -> Claim:
    """Compare the versions of both sides: package -> version."""
    names = sorted(before.keys() & after.keys())
    if not names:
        return Claim(NAME, NOT_CHECKED, "the versions of one side are not known", needed=False)
    changed = [f"{name} {before[name]} -> {after[name]}" for name in names if before[name] != after[name]]
    return Claim(
        NAME,
        CLAIM_FAILED if changed else VERIFIED,
        f"versions differ: {', '.join(changed)}" if changed else f"the same versions of {count(len(names), 'package')}",
        {"source": dict(before), "target": dict(after)},
        needed=False,
        agreed=True,  # named, and no reason to go back: results are compared by the overlap
    )
