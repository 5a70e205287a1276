"""Chain of signed records that proves who owns a run.

A host stores and compares chains; it cannot make one. The operator's machine signs the records and checks them
(`midstream.ownership`), because the standard library has no signatures.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, Dict, List, Optional, Tuple

from midstream_core import json_shapes
from midstream_core.json_types import JsonValue
from midstream_core.records.errors import RecordError
from midstream_core.records.field_forms import DIGEST_OR_EMPTY, NAME, RUN_ID, RUN_ID_OR_EMPTY
from midstream_core.records.files import canonical_json
from midstream_core.records.record import JsonRecord

HEX_DIGEST_OR_EMPTY = json_shapes.Form("a SHA-256 digest", r"(?:[0-9a-f]{64})?")
KEY = json_shapes.Form("32 hexadecimal digits", r"[0-9a-f]{32}")
PUBLIC_KEY = json_shapes.Form("an Ed25519 key of OpenSSH", r"ssh-ed25519 [A-Za-z0-9+/]{68}")
SIGNATURE = json_shapes.Form("an Ed25519 signature", r"(?:[A-Za-z0-9+/]{86}==)?")


@dataclasses.dataclass(frozen=True)
class OwnershipRecord(JsonRecord):
    """One change of a run's owner, signed by an operator.

    Attributes:
        run_id: The run.
        key: Number of the run, made at its first record: a chain of another run of the same name has another.
        number: Position in the chain, from 0.
        previous: Digest of the record before it; empty for the first.
        epoch: Epoch of the fence under which the owner commits.
        owner: Target that owns the run.
        step: First step under the epoch, by the seal; None for a run that has not been migrated.
        root_digest: Digest of the sealed state; empty without one.
        migration: Migration that changed the owner; empty without one.
        consent: What a user agreed to in place of proof; empty where the owner before is proven.
        time: UTC seconds by the operator's clock; for a migration's records, of its plan.
        operator: Public key of the operator.
        signature: Over all other fields.
    """

    run_id: str = dataclasses.field(metadata={"form": RUN_ID})
    key: str = dataclasses.field(metadata={"form": KEY})
    number: int
    previous: str = dataclasses.field(metadata={"form": HEX_DIGEST_OR_EMPTY})
    epoch: int
    owner: str = dataclasses.field(metadata={"form": NAME})
    operator: str = dataclasses.field(metadata={"form": PUBLIC_KEY})
    step: Optional[int] = None
    root_digest: str = dataclasses.field(default="", metadata={"form": DIGEST_OR_EMPTY})
    migration: str = dataclasses.field(default="", metadata={"form": RUN_ID_OR_EMPTY})
    consent: str = dataclasses.field(default="", metadata={"form": NAME})
    time: float = 0.0
    signature: str = dataclasses.field(default="", metadata={"form": SIGNATURE})

    def signed_bytes(self) -> bytes:
        """Return the bytes that the signature covers."""
        value = self.to_json()
        del value["signature"]
        return b"midstream ownership record 1\n" + canonical_json(value)

    @property
    def digest(self) -> str:
        """SHA-256 of the record with its signature, in hexadecimal digits."""
        import hashlib  # OpenSSL: 3.5 MB, for runs with such a chain alone

        return hashlib.sha256(self.signed_bytes() + self.signature.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class OwnershipChain(JsonRecord):
    """``ownership.json``: the records of a run's owners, oldest first."""

    FORMAT: ClassVar[int] = 1

    run_id: str = dataclasses.field(metadata={"form": RUN_ID})
    records: List[Dict[str, JsonValue]] = dataclasses.field(metadata={"items": OwnershipRecord})

    @functools.cached_property  # a guard judges all copies at every report
    def entries(self) -> Tuple[OwnershipRecord, ...]:
        """The records, oldest first."""
        return tuple(OwnershipRecord.from_checked(record) for record in self.records)

    @property
    def head(self) -> OwnershipRecord:
        """The newest record."""
        return self.entries[-1]

    def with_record(self, record: OwnershipRecord) -> OwnershipChain:
        """Return the chain with ``record`` at its end."""
        return OwnershipChain(self.run_id, [*self.records, record.to_json()])

    def continues(self, other: OwnershipChain) -> bool:
        """Return whether ``other`` is this chain or its beginning."""
        return len(other.records) <= len(self.records) and other.records == self.records[: len(other.records)]

    def check_links(self) -> None:
        """Check numbers, digests and epochs of the records.

        Signatures are not checked here. Raises RecordError.
        """
        before: Optional[OwnershipRecord] = None
        for number, entry in enumerate(self.entries):
            where = "record {} of ownership.json".format(number)
            if entry.number != number or entry.run_id != self.run_id:
                raise RecordError("{} is of another place: run {}, record {}".format(where, entry.run_id, entry.number))
            if before is None and entry.previous:
                raise RecordError("{} continues a chain whose beginning is missing".format(where))
            if before is not None and (entry.previous != before.digest or entry.key != before.key):
                raise RecordError("{} does not continue the record before it".format(where))
            if before is not None and entry.epoch < before.epoch:
                raise RecordError("{} goes back from ownership {} to {}".format(where, before.epoch, entry.epoch))
            before = entry
        if before is None:
            raise RecordError("ownership.json has no record")
