"""Repair damaged records of a run from the evidence that is left: on its hosts, in its bucket, in migrations' journals.

Nothing is guessed: where the evidence does not determine a record, the repair says what is missing.
"""

from midstream.migrate.repair.proposals import apply, propose
from midstream.migrate.repair.repair_proposal import Proposal
from midstream.migrate.repair.run_evidence import Seen, gather

__all__ = ["Proposal", "Seen", "apply", "gather", "propose"]
