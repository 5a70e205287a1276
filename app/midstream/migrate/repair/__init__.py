"""Repair damaged records of a run from the evidence that is left: on its hosts, in its bucket, in migrations' journals.

Nothing is guessed: where the evidence does not determine a record, the repair says what is missing.
"""

from midstream.migrate.repair.evidence import Seen, gather
from midstream.migrate.repair.proposal import Proposal
from midstream.migrate.repair.propose import apply, propose

__all__ = ["Proposal", "Seen", "apply", "gather", "propose"]
