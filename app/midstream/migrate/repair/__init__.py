"""Repair of a run's damaged records from evidence.

The evidence is on the run's hosts, in its bucket and in migrations' journals.

Nothing is guessed: where the evidence does not determine a record, the proposal has what is missing.
"""

from midstream.migrate.repair.proposals import apply, propose
from midstream.migrate.repair.repair_proposal import RepairProposal
from midstream.migrate.repair.run_evidence import FleetEvidence, gather

__all__ = ["FleetEvidence", "RepairProposal", "apply", "gather", "propose"]
