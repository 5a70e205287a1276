"""Divide a checkpoint of another trainer over another number of processes, on its host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.operations.checkpoint_argument import resolve_checkpoint

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import HostPool
    from midstream.hosts.rpc.report_types import Divided, Dividing


def reshard(
    fleet: Fleet | None,
    hosts: HostPool,
    checkpoint: str,
    output: str,
    processes: int,
    progress: Callable[[int, int], None],
) -> Divided:
    """Divide a checkpoint over ``processes`` into the directory ``output`` of the same host.

    Args:
        fleet: The fleet, if there is one.
        hosts: Its hosts.
        checkpoint: A directory of this machine, or HOST:PATH.
        output: A new directory; a relative one is below the present directory of this machine.
        processes: All processes that will load it.
        progress: Called with the bytes that are written, and all.

    Raises:
        UsageError: There is no such directory or host, or the number is not positive.
        MidstreamError: The checkpoint is partial, damaged or foreign, or the output is not new; nothing was left.
        HostError: The host does not answer.
    """
    from midstream.hosts.rpc.remote_program import run_program
    from midstream.hosts.rpc.report_types import DIVIDE

    if processes < 1:
        raise UsageError(f"--processes {processes}: expected 1 or more")
    here = ":" not in checkpoint.split("/")[0]
    host, directory = resolve_checkpoint(fleet, hosts, os.path.abspath(checkpoint) if here else checkpoint)
    host.connect()
    divide, where = run_program(host, DIVIDE), _absolute(output, here)
    with divide(directory=directory, output=where, processes=processes) as lines:
        return _result(host, lines, progress)


def _absolute(output: str, here: bool) -> str:
    """Return the output's path. Raises UsageError: it is relative, and on another host."""
    if here:
        return os.path.abspath(os.path.expanduser(output))
    if not output.startswith("/"):
        raise UsageError(f"--output {output} is relative", "an absolute path, which is on the checkpoint's host")
    return os.path.normpath(output)


def _result(host: Host, lines: Iterator[Dividing], progress: Callable[[int, int], None]) -> Divided:
    from midstream.hosts.rpc.report_types import Divided, Problem

    for line in lines:
        if isinstance(line, Problem):
            raise MidstreamError(line.message, "" if "hint:" in line.message else "nothing was written", Exit.REFUSED)
        if isinstance(line, Divided):
            return line
        progress(line.done, line.total)
    raise MidstreamError(f"{host.name}: dividing the checkpoint ended without a result", "run the command again")
