"""The certificate: what was checked of a migration, claim by claim, with the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from midstream.migrate.json_values import fields_of

VERIFIED, CLAIM_FAILED, NOT_CHECKED = "verified", "failed", "not checked"


@dataclass(frozen=True)
class Claim:
    """One claim of a certificate, and the evidence for it."""

    name: str  # "state", "data", "reference losses", "continuity"
    verdict: str  # VERIFIED, CLAIM_FAILED or NOT_CHECKED
    statement: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])


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
    issued: float

    @property
    def valid(self) -> bool:
        """Whether state, data and reference losses are verified, and no claim has failed."""
        return all(claim.verdict == VERIFIED for claim in self.claims if claim.name != "continuity") and all(
            claim.verdict != CLAIM_FAILED for claim in self.claims
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "valid": self.valid}

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Read a certificate from its JSON value.

        Raises:
            RecordError: A field is missing or of another type; names ``where`` and the field.
        """
        fixed = fields_of(cls, value, where)
        fixed["claims"] = tuple(Claim(**fields_of(Claim, claim, where)) for claim in value["claims"])
        return cls(**fixed)
