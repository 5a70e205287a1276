"""`--reshard`: divide a checkpoint of DeepSpeed over another number of processes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import Exit
from midstream.format import size
from midstream.json_events.result_event import ReshardResult
from midstream.launch.progress_line import reporter
from midstream.operations import reshard as operation
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

_WHAT = "written"


def reshard(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Divide a checkpoint, and print what its new files have."""
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool

    lines = reporter(output)
    hosts = HostPool(fleet or Fleet())
    try:
        divided = operation.reshard(
            fleet, hosts, options.reshard, options.output, options.processes,
            lambda done, total: lines.update(_WHAT, f"{size(done)} of {size(total)}"),
        )  # fmt: skip
    finally:
        lines.end(_WHAT)
        hosts.close()
    digests = dict(divided.digests)
    event = ReshardResult(
        checkpoint=options.output,
        step=divided.step,
        ranks_before=divided.ranks_before,
        ranks=divided.ranks,
        files=divided.files,
        bytes=divided.bytes,
        digests=digests,
        continued=divided.continued,
    )
    step = "" if divided.step is None else f" of step {divided.step}"
    ranks = count(divided.ranks, "data-parallel process", "data-parallel processes")
    files = f"{count(divided.files, 'file')}, {size(divided.bytes)}"
    head = f"{options.output}: checkpoint{step} for {ranks} (saved by {divided.ranks_before}): {files}"
    output.event(event, [head, *(f"  {kind}: SHA-256 {digest}, as before" for kind, digest in digests.items())])
    return Exit.DONE
