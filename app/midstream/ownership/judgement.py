"""Judgement of a run's copies: who is proven to own it, and what each copy is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midstream.ownership.memory import Remembered
    from midstream_core import records

# What a copy of a run is.
OWNER = "owner"  # that of the signed owner
UNSIGNED = "unsigned"  # of a run without any signed record
FORMER = "former"  # of an earlier owner, or of a target that does not own the run yet
CLAIM = "claim"  # it shows more than is proven
FOREIGN_HINT = (
    "add the key of its operator to operators: in the fleet file (midstream --doctor prints it there), or "
    "midstream --repair {run_id} --on {host} adopts it"
)
_ORDER = {OWNER: 3, UNSIGNED: 2, FORMER: 1, CLAIM: 0}


@dataclass(frozen=True)
class Standing:
    """Kind of a copy, and the reason why it is not the owner's."""

    kind: str
    reason: str = ""

    @property
    def rank(self) -> int:
        """Order of copies: the owner's has the highest."""
        return _ORDER[self.kind]


@dataclass(frozen=True)
class Judgement:
    """The proven owner of a run, and the standing of each copy.

    Attributes:
        run_id: The run.
        chain: The longest signed chain; None where there is none.
        standings: Standing of each copy, by host.
        owner_hosts: Hosts of the owner in this fleet; empty where the fleet file does not name it.
        remembered: What this machine remembers of the run.
        begun: UTC seconds at which the newest signed run of this name began; 0: none.
        problem: Why nothing is proven although there are signed records: two histories, an unreadable memory.
    """

    run_id: str
    chain: records.OwnershipChain | None = None
    standings: Mapping[str, Standing] = field(default_factory=dict[str, Standing])
    owner_hosts: tuple[str, ...] = ()
    remembered: Remembered | None = None
    problem: str = ""
    begun: float = 0.0

    @property
    def head(self) -> records.OwnershipRecord | None:
        """The newest signed record."""
        return self.chain.head if self.chain is not None else None

    @property
    def signed(self) -> bool:
        """Whether the run has signed records, on any host or in memory."""
        return self.chain is not None or bool(self.problem)

    def standing(self, host: str) -> Standing:
        """Return the standing of the copy on a host."""
        return self.standings.get(host, Standing(FORMER if self.signed else UNSIGNED))

    def has_earlier_fence(self, host: str, fence: records.Fence | None) -> bool:
        """Return whether an owner's host shows a fence from before its ownership.

        It is an earlier copy, restored perhaps.
        """
        earlier = self.head is not None and fence is not None and 0 < fence.epoch < self.head.epoch
        return earlier and host in self.owner_hosts

    def lost_start(self, fences: Mapping[str, records.Fence]) -> int:
        """Return the newest start that this machine has seen, if it is lost.

        0 where an owner's host shows it, or a later one. ``fences``: those of hosts. The disk of an owner that shows
        earlier starts alone was restored: the next start would have the number of one that is lost.
        """
        head, seen = self.head, self.remembered
        if head is None or seen is None or seen.chain.head.key != head.key or seen.start_epoch != head.epoch:
            return 0
        shown = [fence.order for host, fence in fences.items() if host in self.owner_hosts]
        return seen.start if shown and max(shown) < (seen.start_epoch, seen.start) else 0

    def foreign(self, host: str) -> str:
        """Return why the records that a host shows prove nothing.

        Empty where it shows none, or where an owner is proven.
        """
        standing = self.standing(host)
        return standing.reason if not self.signed and standing.kind == CLAIM else ""

    def is_believed(self, host: str) -> bool:
        """Return whether a host shows no more than is proven, where anything is."""
        return self.standing(host).kind != CLAIM
