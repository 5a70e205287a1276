"""Certificate: what was checked of a migration, claim by claim, with the evidence.

Claims are made in `migrate/proof/`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from midstream.migrate.journal.facts import Sealed
from midstream.migrate.journal.json_values import fields_of
from midstream.migrate.journal.plan import Plan
from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty

VERIFIED, CLAIM_FAILED, NOT_CHECKED = "verified", "failed", "not checked"
COMPARED = ("continuity", "replay overlap")  # claims whose evidence has the losses of both sides, ``steps``


@dataclass(frozen=True)
class Claim:
    """One claim of a certificate, and the evidence for it.

    ``needed``: the certificate is valid only if it is verified. ``agreed``: it may fail, because the user has agreed to
    what it shows.
    """

    name: str  # "state", "data", "reference losses", "continuity"; of other trainers see `trainer_certificate`
    verdict: str  # VERIFIED, CLAIM_FAILED or NOT_CHECKED
    statement: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needed: bool = True
    agreed: bool = False


@dataclass(frozen=True)
class Certificate:
    """The proof that the run continued."""

    migration: str
    run_id: str
    source: str
    target: str
    step: int  # of the takeover
    checkpoint: str
    root_digest: str
    epoch: int
    claims: tuple[Claim, ...]
    issued: float  # UTC seconds

    @property
    def valid(self) -> bool:
        """Whether all needed claims are verified and none failed without agreement."""
        return all(claim.verdict == VERIFIED for claim in self.claims if claim.needed) and all(
            claim.verdict != CLAIM_FAILED for claim in self.claims if not claim.agreed
        )

    @property
    def doubt(self) -> Claim | None:
        """The first claim for which the certificate is not valid; None where it is."""
        return next(
            (
                claim
                for claim in self.claims
                if (claim.needed and claim.verdict != VERIFIED) or (claim.verdict == CLAIM_FAILED and not claim.agreed)
            ),
            None,
        )

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Names of the claims that were not checked."""
        return tuple(claim.name for claim in self.claims if claim.verdict == NOT_CHECKED)

    @classmethod
    def issue(cls, plan: Plan, sealed: Sealed, claims: tuple[Claim, ...]) -> Self:
        """Return the certificate of a planned migration with these claims, issued now."""
        return cls(
            migration=plan.migration,
            run_id=plan.run_id,
            source=plan.source,
            target=plan.target,
            step=sealed.step,
            checkpoint=sealed.checkpoint,
            root_digest=sealed.root_digest,
            epoch=plan.epoch,
            claims=claims,
            issued=time.time(),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON value.

        Numbers that are not finite, such as a loss of NaN, become null.
        """
        return object_or_empty(records.finite_json({**asdict(self), "valid": self.valid}))

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Read a certificate from its JSON value.

        Raises:
            RecordError: A field is missing or of another type; names ``where`` and the field.
        """
        fixed = fields_of(cls, value, where)
        fixed["claims"] = tuple(Claim(**fields_of(Claim, claim, where)) for claim in value["claims"])
        return cls(**fixed)
