"""Divide a checkpoint over another number of processes, on its host."""

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
    """Divide a checkpoint over ``processes``; write it to ``output`` on its host.

    Args:
        fleet: The fleet, if there is one.
        hosts: Its hosts.
        checkpoint: A directory of this machine, or HOST:PATH.
        output: A new directory, PATH or HOST:PATH; a relative one is below the present directory of this machine.
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
    here = not _host_of(checkpoint)
    host, directory = resolve_checkpoint(fleet, hosts, os.path.abspath(checkpoint) if here else checkpoint)
    host.connect()
    divide, where = run_program(host, DIVIDE), _absolute(output, _host_of(checkpoint))
    with divide(directory=directory, output=where, processes=processes) as lines:
        return _result(host, lines, progress)


def _host_of(location: str) -> str:
    """Return HOST of HOST:PATH; empty: a path of this machine."""
    head, colon, _ = location.partition(":")
    return head if colon and "/" not in head else ""


def _absolute(output: str, host: str) -> str:
    """Return the output's path on the checkpoint's host.

    Raises UsageError: it is on another, or relative there.
    """
    named = _host_of(output)
    if named and named != host:
        raise UsageError(f"--output {output} is on another host than the checkpoint", "write it there, then copy it")
    path = output[len(named) + 1 :] if named else output
    if not host:
        return os.path.abspath(os.path.expanduser(path))
    if not path.startswith("/"):
        raise UsageError(f"--output {output} is relative", "an absolute path, which is on the checkpoint's host")
    return os.path.normpath(path)


def _result(host: Host, lines: Iterator[Dividing], progress: Callable[[int, int], None]) -> Divided:
    from midstream.hosts.rpc.report_types import Divided, Problem

    for line in lines:
        if isinstance(line, Problem):
            raise MidstreamError(line.message, "" if "hint:" in line.message else "nothing was written", Exit.REFUSED)
        if isinstance(line, Divided):
            return line
        progress(line.done, line.total)
    raise MidstreamError(f"{host.name}: dividing the checkpoint ended without a result", "run the command again")
