"""Claim that both sides compute with the same versions of packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from midstream.counts import count
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Claim

NAME = "environment"
EFFECT = "losses may differ from the source's in their last bits after some steps"
_WITHOUT_EFFECT = ("midstream", "python")  # on what the engine computes
_OF_ACCELERATORS = ("jax-cuda", "libtpu", "nvidia-")  # beginnings of compilers' names: a host has those of one kind


def engine_environment_claim(before: Mapping[str, str], after: Mapping[str, str]) -> Claim:
    """Compare the versions of packages that an update of the engine follows from.

    A package that one side does not name proves nothing: the claim is not checked then, unless versions differ.
    """
    before, after = effective(before), effective(after)
    claim = environment_claim(before, after)
    if claim.verdict == CLAIM_FAILED:
        return replace(claim, statement=f"{claim.statement}; {EFFECT}")
    one_sided = sorted(name for name in before.keys() ^ after.keys() if not name.startswith(_OF_ACCELERATORS))
    if claim.verdict == VERIFIED and one_sided:
        statement = f"{claim.statement}; one side alone names {', '.join(one_sided)}"
        return replace(claim, verdict=NOT_CHECKED, statement=statement)
    return claim


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
