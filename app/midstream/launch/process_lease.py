"""Lease of a process that no machine can prove to have ended.

The lease expires if the process's files stay unchanged, by this program's monotonic clock. A process that was suspended
for longer is superseded by the start number of the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from midstream.hosts.host import Host
from midstream.install.errors import LaunchError
from midstream_host.runs import unknown_process

LOOK_INTERVAL = 1.0  # seconds


def wait_for_lease(host: Host, run_id: str, say: Callable[[str], None], lease: float = unknown_process.LEASE) -> None:
    """Wait until no process of the run may run on another machine.

    That machine has the host's root too.

    Raises:
        LaunchError: One does: its files change.
    """
    first = host.call(unknown_process.unknown_process)(root=host.root, run_id=run_id)
    if first is None:
        return
    where = first.host or "another machine"
    say(
        f"attempt {first.attempt} of {run_id} was started on {where}, and {host.name} cannot prove that it has ended: "
        f"waiting {lease:.0f} s for a change of its files"
    )
    deadline = time.monotonic() + lease
    while time.monotonic() < deadline:
        time.sleep(LOOK_INTERVAL)
        process = host.call(unknown_process.unknown_process)(root=host.root, run_id=run_id)
        if process is None:
            return
        if process.mark != first.mark:
            raise LaunchError(
                f"attempt {process.attempt} of {run_id} runs on {where}: its files change",
                f"midstream --stop {run_id}, or start it from the machine that it runs on",
            )
