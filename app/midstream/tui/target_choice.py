"""A target that a run may migrate to; the error of one that does not exist."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError
from midstream.printable import printable

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.operations.create_target import CreatableTarget
    from midstream.watch.snapshot import RunView


@dataclass(frozen=True)
class TargetChoice:
    """A migration target: its name in the fleet file and its hosts.

    ``allocation``: it is one of SLURM; its host is the login node, which other targets may have too.
    """

    name: str
    hosts: tuple[str, ...]
    allocation: bool = False

    def takes(self, run: RunView) -> bool:
        """Return whether a run may migrate there, from elsewhere or from another job."""
        owner = run.fence.owner if run.fence is not None else ""
        return run.host not in self.hosts or (self.allocation and owner != self.name)


class TargetMissingError(MidstreamError):
    """Error of a target that does not exist and may be created.

    Every check that is possible without it has passed.
    """

    def __init__(self, missing: CreatableTarget) -> None:
        super().__init__(missing.state or f"{missing.target} does not exist")
        self.missing = missing


def create(hosts: HostPool, missing: CreatableTarget, run_id: str) -> None:
    """Create a target and wait until it is ready; print to the terminal.

    Raises:
        MidstreamError: It cannot be created, or the step of the run ``run_id`` cannot fit it.
    """
    from midstream.compare.slice_fit import require_fit
    from midstream.compare.subject import of_run_named
    from midstream.operations.create_target import PODS, create_target

    def report(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    if run_id and missing.price_class != PODS:
        require_fit(hosts, missing.target, lambda: of_run_named(hosts, run_id, ()), report)
    create_target(hosts.fleet, missing, report)
