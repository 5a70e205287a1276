"""Certificate: what was checked of a migration, claim by claim, with the evidence.

Claims are made in `migrate/proof/`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
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

    ``needed``: the certificate is valid only if it is verified. ``agreed``: it need not hold, because the user has
    agreed to what it shows.
    """

    name: str  # "state", "data", "reference losses" ...: see `copy_certificate`, `trainer_certificate`
    verdict: str  # VERIFIED, CLAIM_FAILED or NOT_CHECKED
    statement: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needed: bool = True
    agreed: bool = False

    @property
    def doubtful(self) -> bool:
        """Whether the certificate is not valid for this claim."""
        missing = self.needed and self.verdict == NOT_CHECKED
        return not self.agreed and (missing or self.verdict == CLAIM_FAILED)


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
        """Whether no claim is in doubt."""
        return self.doubt is None

    @property
    def doubt(self) -> Claim | None:
        """A claim in doubt, one that failed first; None where the certificate is valid."""
        doubts = [claim for claim in self.claims if claim.doubtful]
        return min(doubts, key=lambda claim: claim.verdict != CLAIM_FAILED, default=None)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Names of the claims in doubt for missing evidence alone, none for a failure."""
        doubts = [claim for claim in self.claims if claim.doubtful]
        failed = any(claim.verdict == CLAIM_FAILED for claim in doubts)
        return () if failed else tuple(claim.name for claim in doubts)

    def accepting(self, names: Collection[str]) -> Self:
        """Return it with the user's agreement to the named claims that are not checked."""
        claims = tuple(
            replace(claim, agreed=True, statement=f"{claim.statement}; its user goes on without it")
            if claim.name in names and claim.verdict == NOT_CHECKED
            else claim
            for claim in self.claims
        )
        return replace(self, claims=claims)

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
    def without_evidence(cls, plan: Plan, sealed: Sealed, why: str) -> Self:
        """Return the certificate of a target that has no evidence of what it restored."""
        names = ("state", "data", "reference losses") if plan.trainer is None else ("state", "step")
        return cls.issue(plan, sealed, tuple(Claim(name, NOT_CHECKED, why) for name in names))

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Read a certificate from its JSON value.

        Raises:
            RecordError: A field is missing or of another type; names ``where`` and the field.
        """
        fixed = fields_of(cls, value, where)
        fixed["claims"] = tuple(Claim(**fields_of(Claim, claim, where)) for claim in value["claims"])
        return cls(**fixed)
