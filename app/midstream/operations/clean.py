"""Find what killed saves, copies and creations left; remove what was agreed to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from midstream.check.fleet_leftovers import AnyLeftover, ExaminedHost, Skipped, find_leftovers
from midstream.errors import UsageError
from midstream.suggestions import nearest_run

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool


def clean(
    hosts: HostPool,
    say: Callable[[str], None],
    run_id: str = "",
    agreed: Collection[AnyLeftover] | None = None,
) -> Iterator[AnyLeftover]:
    """Yield leftovers on hosts, in buckets and, without a run, of slices.

    Those that were listed and ``agreed`` to are removed, unless they have changed since.

    Args:
        hosts: Connections to the fleet's hosts.
        say: Gets lines of progress.
        run_id: The run; empty for all.
        agreed: What may be removed; None: nothing is.

    Raises:
        UsageError: No host that answers has the run.
        MidstreamError: A slice could not be deleted, or the run's records are damaged.
    """
    from midstream.check.compiler_leftovers import find_compiler_leftovers
    from midstream.check.slice_leftovers import find_slice_leftovers

    run_ids, unreachable, remove = set[str](), list[str](), agreed is not None
    for entry in find_leftovers(hosts, run_id, remove=remove, agreed=agreed):
        if isinstance(entry, ExaminedHost):
            run_ids |= set(entry.runs)
            continue
        if isinstance(entry, Skipped) and not entry.run:
            unreachable.append(entry.host)
        yield entry
    if not run_id:
        yield from find_compiler_leftovers(remove=remove, agreed=agreed)
        yield from find_slice_leftovers(hosts.fleet, say, remove=remove, agreed=agreed)
    elif run_id not in run_ids and not remove:
        raise UsageError(f"no run {run_id!r}", nearest_run(run_id, sorted(run_ids), unreachable))
