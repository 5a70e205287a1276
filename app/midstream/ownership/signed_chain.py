"""Chains of signed ownership records: text, check, next record."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from midstream.ownership import operator_key
from midstream_core import records

CACHED = 4096  # chains whose check is remembered
AFTER = 0.001  # seconds between the beginnings of two runs of one name


@dataclass(frozen=True)
class CheckedChain:
    """A chain as a host shows it: valid, or the reason why it is not.

    ``shown``: a chain of true signatures, one of them of an operator who does not count.
    """

    chain: records.OwnershipChain | None
    problem: str = ""
    shown: records.OwnershipChain | None = None


# Checked chains, the one that was used last at the end.
_known: dict[tuple[bytes, str, frozenset[str]], CheckedChain] = {}


def check_chain(text: str, run_id: str, accepted: frozenset[str]) -> CheckedChain:
    """Check an ``ownership.json``: form, links, signatures, operators.

    Args:
        text: The JSON text. Empty: the host shows no chain.
        run_id: The run.
        accepted: Public keys whose signatures count.
    """
    if not text:
        return CheckedChain(None, "it has no signed ownership record")
    import hashlib  # OpenSSL: 3.5 MB

    # The text itself is not kept: a host may show ever new ones.
    key = hashlib.sha256(text.encode(errors="replace")).digest(), run_id, accepted
    chain = _known.pop(key, None) or _check(text, run_id, accepted)
    _known[key] = chain
    if len(_known) > CACHED:
        _known.pop(next(iter(_known)), None)
    return chain


def _check(text: str, run_id: str, accepted: frozenset[str]) -> CheckedChain:
    try:
        chain = records.OwnershipChain.from_json(records.parse_json(text, "ownership.json"), "ownership.json")
        chain.check_links()
    except records.RecordError as error:
        return CheckedChain(None, str(error))
    if chain.run_id != run_id:
        return CheckedChain(None, f"its ownership records are those of run {chain.run_id}")
    entries = chain.entries
    wrong = next((entry for entry in entries if not operator_key.is_signed(entry)), None)
    if wrong is not None:
        return CheckedChain(None, f"record {wrong.number} of ownership.json has a wrong signature")
    foreign = next((entry for entry in entries if entry.operator not in accepted), None)
    if foreign is not None:
        signer = "an operator that the fleet file does not name"
        return CheckedChain(None, f"record {foreign.number} of ownership.json is signed by {signer}", chain)
    return CheckedChain(chain)


def first_chain(
    run_id: str,
    owner: str,
    fence: records.Fence,
    *,
    consent: str = "",
    begun: float = 0.0,
    migration: str = "",
    planned: float = 0.0,
) -> records.OwnershipChain:
    """Return a new chain with one signed record.

    ``owner`` has the run under the epoch of ``fence``.

    Args:
        run_id: The run.
        owner: Its owner.
        fence: Its fence.
        consent: What a user agreed to, for a run that began without records.
        begun: UTC seconds at which the run of this name that it replaces began. The new one begins later, whatever the
            clocks of the two machines show.
        migration: Migration that begins the chain; two copies of its plan begin the same one.
        planned: UTC seconds at which it was planned.
    """
    import hashlib

    key = hashlib.sha256(f"{run_id} {migration}".encode()).hexdigest()[:32] if migration else os.urandom(16).hex()
    record = records.OwnershipRecord(
        run_id=run_id,
        key=key,
        number=0,
        previous="",
        epoch=fence.epoch,
        owner=owner,
        operator="",
        step=fence.sealed_step,
        consent=_line(consent),
        time=max(planned or time.time(), begun + AFTER),
    )
    return records.OwnershipChain(run_id, [operator_key.signed(record).to_json()])


def next_chain(
    chain: records.OwnershipChain,
    *,
    epoch: int,
    owner: str,
    step: int | None,
    root_digest: str = "",
    migration: str = "",
    planned: float = 0.0,
    consent: str = "",
) -> records.OwnershipChain:
    """Return the chain with one more signed record.

    A newest record that says the same is not repeated. Two copies of a migration's plan sign the same record, because
    all of it comes from the plan and the seal: each would have a history that the other one's hosts refuse otherwise.

    Args:
        chain: The chain so far.
        epoch: Epoch under which the new owner commits.
        owner: The new owner.
        step: First step under that epoch.
        root_digest: Digest of the sealed state; empty where none is known.
        migration: Migration that changes the owner.
        planned: UTC seconds at which it was planned.
        consent: What a user agreed to in place of proof.
    """
    head = chain.head
    if (head.epoch, head.owner, head.step, head.migration) == (epoch, owner, step, migration):
        return chain
    record = records.OwnershipRecord(
        run_id=chain.run_id,
        key=head.key,
        number=head.number + 1,
        previous=head.digest,
        epoch=epoch,
        owner=owner,
        operator="",
        step=step,
        root_digest=root_digest,
        migration=migration,
        consent=_line(consent),
        time=planned or time.time(),
    )
    return chain.with_record(operator_key.signed(record))


def _line(text: str) -> str:
    return " ".join(text.split())[:255]
