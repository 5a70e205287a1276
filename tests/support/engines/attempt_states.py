"""Wait until an attempt on one host is in a state."""

from __future__ import annotations

from collections.abc import Collection

from midstream.hosts.host_pool import HostPool
from midstream.launch.attempt_monitor import wait_ranks
from midstream.launch.start_attempt import ANY, Rank
from midstream_core import records

TRAINING = frozenset({records.TRAINING})


def wait_state(
    hosts: HostPool,
    host: str,
    run_id: str,
    number: int = 1,
    states: Collection[str] = TRAINING,
    timeout: float = 30,
) -> records.Status:
    """Return the status of the attempt's only process once its state is one of ``states``."""
    [found] = wait_ranks(hosts, [Rank(ANY, host)], run_id, number, states, timeout)
    assert found.status is not None
    return found.status
